"""Anthropic Messages: https://docs.anthropic.com/en/api/messages (read November 2026)."""

from typing import Any

from foveate.values import (
    Document,
    Format,
    Image,
    MarkStyle,
    Message,
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
    is_said,
    items,
    message_record,
    opaque,
    record,
    value,
)
from foveate.wire.shapes import Shape
from foveate.wire.threads import continues_thread

# Fields by which the provider adds to the input; the last two are OpenRouter's.
_SERVER_SIDE_FIELDS = ("container", "mcp_servers", "context_management", "preset", "plugins")


SHAPE = Shape(
    messages=("messages",),
    content="content",
    tools=(("tools",),),
    system=("system",),
    text_kind="text",
    results={"tool_result": ("content",)},
    mark_styles=(MarkStyle.CACHE_CONTROL,),
)


def read(body: bytes, fields: Fields) -> Request:
    """A Messages body as a `Request`."""
    config = record(fields.get("output_config"))
    output = config.get("format") or value(fields.get("output_format"))
    return Request(
        format=Format.ANTHROPIC,
        model=as_text(value(fields.get("model"))),
        body=body,
        system=parts(value(fields.get("system"))),
        tools=items(fields.get("tools")),
        messages=messages(fields),
        tool_choice=as_text(record(fields.get("tool_choice")).get("type")),
        thinking=as_text(record(fields.get("thinking")).get("type")),
        schema=_schema(as_record(output)),
        extras=("task_budget",) if config.get("task_budget") else (),
        unexplained=tuple(name for name in _SERVER_SIDE_FIELDS if is_said(fields.get(name)))
        + (("thread",) if continues_thread(value(fields.get("thread"))) else ()),
    )


def messages(fields: Fields) -> tuple[bytes, ...]:
    """The JSON of each message."""
    return entries(fields.get("messages"), "messages")


def message(raw: bytes) -> Message:
    """One entry of `messages`."""
    found = message_record(raw)
    return Message(role=as_text(found.get("role")), parts=parts(found.get("content")))


def tool(raw: bytes) -> Tool:
    """One entry of `tools`; what has no schema of its own is the provider's."""
    found = record(raw)
    kind = as_text(found.get("type")) or "custom"
    return Tool(
        kind="function" if kind == "custom" else kind,
        name=as_text(found.get("name")),
        description=as_text(found.get("description")),
        parameters=compact(found.get("input_schema") or {}),
        raw=raw,
    )


def parts(content: object) -> tuple[Part, ...]:
    """The blocks of a content field, a string being one text block."""
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, list):
        return tuple(map(_part, content))
    return () if content is None else (opaque(content),)


def _part(block: object) -> Part:
    found = as_record(block)
    kind = as_text(found.get("type"))
    match kind:
        case "text" if isinstance(found.get("text", ""), str):
            return Text(as_text(found.get("text")))
        case "thinking":
            return Thinking(as_text(found.get("thinking")), len(as_text(found.get("signature"))))
        case "redacted_thinking":
            return Thinking("", len(as_text(found.get("data"))))
        case "image":
            return image(as_record(found.get("source")))
        case "document":
            return _document(found)
        case "tool_use":
            return ToolCall(
                format=Format.ANTHROPIC,
                name=as_text(found.get("name")),
                arguments=compact(found.get("input")).decode(),
                id=as_text(found.get("id")),
            )
        case "tool_result":
            return ToolResult(
                parts=parts(found.get("content")),
                id=as_text(found.get("tool_use_id")),
                is_error=found.get("is_error") is True,
            )
        case _:
            return opaque(block)


def image(source: dict[str, Any]) -> Image:
    """An image block's source."""
    if source.get("type") == "base64":
        size = media.pixels(as_text(source.get("data"))) or (None, None)
        return Image(source=Source.INLINE, width=size[0], height=size[1])
    return Image(source=Source.FILE if source.get("type") == "file" else Source.URL)


def _document(block: dict[str, Any]) -> Document:
    source = as_record(block.get("source"))
    heading = "\n".join(filter(None, (as_text(block.get("title")), as_text(block.get("context")))))
    media_type = as_text(source.get("media_type"))
    match source.get("type"):
        case "text":
            text = "\n".join(filter(None, (heading, as_text(source.get("data")))))
            return Document(source=Source.INLINE, media_type="text/plain", text=text)
        case "content":
            inner = "\n".join(p.text for p in parts(source.get("content")) if isinstance(p, Text))
            return Document(source=Source.INLINE, media_type="text/plain", text=heading + inner)
        case "base64":
            data = as_text(source.get("data"))
            return Document(
                source=Source.INLINE,
                media_type=media_type or "application/pdf",
                text=heading,
                pages=media.pdf_pages(data),
                size_bytes=len(data) * 3 // 4,
            )
        case kind:
            where = Source.FILE if kind == "file" else Source.URL
            return Document(source=where, media_type=media_type or "application/pdf", text=heading)


def _schema(output: dict[str, Any]) -> Schema | None:
    if output.get("type") != "json_schema":
        return None
    return Schema(name="", description="", schema=compact(output.get("schema") or {}))
