"""Amazon Bedrock Converse (read November 2026). The model is in the URL, not in the body."""

from typing import Any

from foveate.errors import MalformedRequest
from foveate.formats import media
from foveate.formats.json_text.parse import (
    Fields,
    as_dict,
    as_text,
    make_opaque,
    parse_entries,
    parse_inner_fields,
    parse_items,
    parse_json,
    parse_message_object,
    parse_object,
    to_json,
)
from foveate.formats.layout import FormatLayout, is_cache_point
from foveate.model import (
    BreakpointStyle,
    Document,
    Format,
    Image,
    MediaSource,
    Message,
    Opaque,
    Part,
    Request,
    ResponseSchema,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)

LAYOUT = FormatLayout(
    message_fields=("messages",),
    content_field="content",
    tool_paths=(("toolConfig", "tools"),),
    system_fields=("system",),
    result_paths={"toolResult": ("toolResult", "content")},
    breakpoint_styles=(BreakpointStyle.CACHE_POINT,),
)


def parse_request(body: bytes, fields: Fields) -> Request:
    config = parse_inner_fields(fields.get("toolConfig"))
    added = parse_object(fields.get("additionalModelRequestFields"))
    thinking = as_text(as_dict(added.get("thinking")).get("type"))
    choice = next(iter(parse_object(config.get("toolChoice"))), "")
    return Request(
        format=Format.BEDROCK,
        model=as_text(parse_json(fields.get("modelId"))),
        body=body,
        system=parse_content(parse_json(fields.get("system"))),
        tools=tuple(raw for raw in parse_items(config.get("tools")) if not is_cache_point(parse_object(raw))),
        messages=split_messages(fields),
        tool_choice=choice,
        thinking=thinking or as_text(added.get("reasoning_config")),
        schema=_parse_schema(parse_object(fields.get("outputConfig"))),
        unexplained=tuple(name for name in ("guardrailConfig",) if parse_json(fields.get(name))),
    )


def split_messages(fields: Fields) -> tuple[bytes, ...]:
    return parse_entries(fields.get("messages"), "messages")


def parse_message(raw: bytes) -> Message:
    fields = parse_message_object(raw)
    return Message(role=as_text(fields.get("role")), parts=parse_content(fields.get("content")))


def parse_tool(raw: bytes) -> Tool:
    fields = parse_object(raw)
    spec = as_dict(fields.get("toolSpec"))
    if not spec:
        kind = next(iter(fields), "tool")
        return Tool(kind=kind, name=kind, description="", parameters=b"{}", raw=raw)
    return Tool(
        kind="function",
        name=as_text(spec.get("name")),
        description=as_text(spec.get("description")),
        parameters=to_json(as_dict(spec.get("inputSchema")).get("json") or {}),
        raw=raw,
    )


def parse_content(content: object) -> tuple[Part, ...]:
    """Parse a content or system field, without cache points. A string is one text block."""
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, list):
        return tuple(_parse_block(block) for block in content if "cachePoint" not in as_dict(block))
    return () if content is None else (make_opaque(content),)


def _parse_block(block: object) -> Part:
    if not isinstance(block, dict):
        return make_opaque(block)
    kind, inner = next(iter(block.items()), ("empty", None))
    fields = as_dict(inner)
    match kind:
        case "text" if isinstance(inner, str):
            return Text(inner)
        case "json":
            return Text(to_json(inner).decode())
        case "reasoningContent":
            reasoning = as_dict(fields.get("reasoningText"))
            return Thinking(as_text(reasoning.get("text")), len(as_text(reasoning.get("signature"))))
        case "toolUse":
            return ToolCall(
                format=Format.BEDROCK,
                name=as_text(fields.get("name")),
                arguments=to_json(fields.get("input")).decode(),
                id=as_text(fields.get("toolUseId")),
            )
        case "toolResult":
            return ToolResult(
                parts=parse_content(fields.get("content")),
                id=as_text(fields.get("toolUseId")),
                is_error=fields.get("status") == "error",
            )
        case "image":
            data = as_text(as_dict(fields.get("source")).get("bytes"))
            size = media.image_size(data) or (None, None)
            media_source = MediaSource.INLINE if data else MediaSource.URL
            return Image(source=media_source, width=size[0], height=size[1])
        case "document":
            return _parse_document(fields)
        case _:
            return Opaque(kind, to_json(block))


def _parse_schema(output: dict[str, Any]) -> ResponseSchema | None:
    structure = as_dict(as_dict(output.get("textFormat")).get("structure"))
    json_schema = as_dict(structure.get("jsonSchema"))
    if "schema" not in json_schema:
        return None
    schema = json_schema["schema"]
    return ResponseSchema(
        name=as_text(json_schema.get("name")),
        description=as_text(json_schema.get("description")),
        schema=_schema_json(schema) if isinstance(schema, str) else to_json(schema),
    )


def _schema_json(schema: str) -> bytes:
    """Return the JSON inside a string, or the string itself as JSON if it does not contain any."""
    raw = schema.encode("utf-8", "surrogatepass")
    try:
        return to_json(parse_json(raw))
    except (MalformedRequest, RecursionError):
        return to_json(schema)


def _parse_document(document: dict[str, Any]) -> Document:
    source = as_dict(document.get("source"))
    kind = as_text(document.get("format")) or "pdf"
    data = as_text(source.get("bytes"))
    is_plain_text = kind in ("txt", "md", "csv", "html")
    return Document(
        source=MediaSource.INLINE if data or source.get("text") else MediaSource.URL,
        media_type="application/pdf" if kind == "pdf" else f"text/{kind}" if is_plain_text else kind,
        text=as_text(source.get("text"))
        or (media.decode_base64(data).decode("utf-8", "replace") if is_plain_text else ""),
        pages=media.count_pdf_pages(data) if kind == "pdf" and data else None,
        size_bytes=len(data) * 3 // 4,
    )
