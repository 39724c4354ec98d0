"""Amazon Bedrock Converse (read November 2026). The model stands in the route, not in the body."""

from typing import Any

from foveate.errors import MalformedRequest
from foveate.values import (
    Document,
    Format,
    Image,
    MarkStyle,
    Message,
    Opaque,
    Part,
    Request,
    Schema,
    Source,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from foveate.wire import media
from foveate.wire.body import (
    Fields,
    as_record,
    as_text,
    compact,
    entries,
    inner_fields,
    items,
    message_record,
    opaque,
    record,
    value,
)
from foveate.wire.marks import is_point
from foveate.wire.shapes import Shape

SHAPE = Shape(
    messages=("messages",),
    content="content",
    tools=(("toolConfig", "tools"),),
    system=("system",),
    results={"toolResult": ("toolResult", "content")},
    mark_styles=(MarkStyle.CACHE_POINT,),
)


def read(body: bytes, fields: Fields) -> Request:
    """A Converse body as a `Request`."""
    config = inner_fields(fields.get("toolConfig"))
    added = record(fields.get("additionalModelRequestFields"))
    thinking = as_text(as_record(added.get("thinking")).get("type"))
    choice = next(iter(record(config.get("toolChoice"))), "")
    return Request(
        format=Format.BEDROCK,
        model=as_text(value(fields.get("modelId"))),
        body=body,
        system=parts(value(fields.get("system"))),
        tools=tuple(raw for raw in items(config.get("tools")) if not is_point(record(raw))),
        messages=messages(fields),
        tool_choice=choice,
        thinking=thinking or as_text(added.get("reasoning_config")),
        schema=_schema(record(fields.get("outputConfig"))),
        unexplained=tuple(name for name in ("guardrailConfig",) if value(fields.get(name))),
    )


def messages(fields: Fields) -> tuple[bytes, ...]:
    """The JSON of each message."""
    return entries(fields.get("messages"), "messages")


def message(raw: bytes) -> Message:
    """One entry of `messages`."""
    found = message_record(raw)
    return Message(role=as_text(found.get("role")), parts=parts(found.get("content")))


def tool(raw: bytes) -> Tool:
    """One entry of `toolConfig.tools`."""
    found = record(raw)
    spec = as_record(found.get("toolSpec"))
    if not spec:
        kind = next(iter(found), "tool")
        return Tool(kind=kind, name=kind, description="", parameters=b"{}", raw=raw)
    return Tool(
        kind="function",
        name=as_text(spec.get("name")),
        description=as_text(spec.get("description")),
        parameters=compact(as_record(spec.get("inputSchema")).get("json") or {}),
        raw=raw,
    )


def parts(content: object) -> tuple[Part, ...]:
    """The blocks of a content or system field, without cache points; a string is one text."""
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, list):
        return tuple(_part(block) for block in content if "cachePoint" not in as_record(block))
    return () if content is None else (opaque(content),)


def _part(block: object) -> Part:
    if not isinstance(block, dict):
        return opaque(block)
    kind, inner = next(iter(block.items()), ("empty", None))
    found = as_record(inner)
    match kind:
        case "text" if isinstance(inner, str):
            return Text(inner)
        case "json":
            return Text(compact(inner).decode())
        case "reasoningContent":
            said = as_record(found.get("reasoningText"))
            return Thinking(as_text(said.get("text")), len(as_text(said.get("signature"))))
        case "toolUse":
            return ToolCall(
                format=Format.BEDROCK,
                name=as_text(found.get("name")),
                arguments=compact(found.get("input")).decode(),
                id=as_text(found.get("toolUseId")),
            )
        case "toolResult":
            return ToolResult(
                parts=parts(found.get("content")),
                id=as_text(found.get("toolUseId")),
                is_error=found.get("status") == "error",
            )
        case "image":
            data = as_text(as_record(found.get("source")).get("bytes"))
            size = media.pixels(data) or (None, None)
            where = Source.INLINE if data else Source.URL
            return Image(source=where, width=size[0], height=size[1])
        case "document":
            return _document(found)
        case _:
            return Opaque(kind, compact(block))


def _schema(output: dict[str, Any]) -> Schema | None:
    structure = as_record(as_record(output.get("textFormat")).get("structure"))
    given = as_record(structure.get("jsonSchema"))
    if "schema" not in given:
        return None
    schema = given["schema"]
    return Schema(
        name=as_text(given.get("name")),
        description=as_text(given.get("description")),
        schema=_written(schema) if isinstance(schema, str) else compact(schema),
    )


def _written(schema: str) -> bytes:
    """The JSON that a string holds; the string itself, as JSON, where it holds something else."""
    raw = schema.encode("utf-8", "surrogatepass")
    try:
        return compact(value(raw))
    except (MalformedRequest, RecursionError):
        return compact(schema)


def _document(found: dict[str, Any]) -> Document:
    source = as_record(found.get("source"))
    kind = as_text(found.get("format")) or "pdf"
    data = as_text(source.get("bytes"))
    plain = kind in ("txt", "md", "csv", "html")
    return Document(
        source=Source.INLINE if data or source.get("text") else Source.URL,
        media_type="application/pdf" if kind == "pdf" else f"text/{kind}" if plain else kind,
        text=as_text(source.get("text")) or (media.decoded(data).decode("utf-8", "replace") if plain else ""),
        pages=media.pdf_pages(data) if kind == "pdf" and data else None,
        size_bytes=len(data) * 3 // 4,
    )
