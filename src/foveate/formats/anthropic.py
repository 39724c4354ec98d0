"""Anthropic Messages: https://docs.anthropic.com/en/api/messages (read November 2026)."""

from typing import Any

from foveate.formats import media
from foveate.formats.json_text.parse import (
    Fields,
    as_dict,
    as_text,
    is_set,
    make_opaque,
    parse_entries,
    parse_items,
    parse_json,
    parse_message_object,
    parse_object,
    to_json,
)
from foveate.formats.layout import FormatLayout
from foveate.formats.message_threads import continues_thread
from foveate.model import (
    BreakpointStyle,
    Document,
    Format,
    Image,
    MediaSource,
    Message,
    Part,
    Request,
    ResponseSchema,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)

# Fields that make the provider add to the input; the last two are OpenRouter's.
_SERVER_SIDE_FIELDS = ("container", "mcp_servers", "context_management", "preset", "plugins")


LAYOUT = FormatLayout(
    message_fields=("messages",),
    content_field="content",
    tool_paths=(("tools",),),
    system_fields=("system",),
    text_kind="text",
    result_paths={"tool_result": ("content",)},
    breakpoint_styles=(BreakpointStyle.CACHE_CONTROL,),
)


def parse_request(body: bytes, fields: Fields) -> Request:
    config = parse_object(fields.get("output_config"))
    output = config.get("format") or parse_json(fields.get("output_format"))
    return Request(
        format=Format.ANTHROPIC,
        model=as_text(parse_json(fields.get("model"))),
        body=body,
        system=parse_content(parse_json(fields.get("system"))),
        tools=parse_items(fields.get("tools")),
        messages=split_messages(fields),
        tool_choice=as_text(parse_object(fields.get("tool_choice")).get("type")),
        thinking=as_text(parse_object(fields.get("thinking")).get("type")),
        schema=_parse_schema(as_dict(output)),
        extras=("task_budget",) if config.get("task_budget") else (),
        unexplained=tuple(name for name in _SERVER_SIDE_FIELDS if is_set(fields.get(name)))
        + (("thread",) if continues_thread(parse_json(fields.get("thread"))) else ()),
    )


def split_messages(fields: Fields) -> tuple[bytes, ...]:
    return parse_entries(fields.get("messages"), "messages")


def parse_message(raw: bytes) -> Message:
    fields = parse_message_object(raw)
    return Message(role=as_text(fields.get("role")), parts=parse_content(fields.get("content")))


def parse_tool(raw: bytes) -> Tool:
    """A tool without `input_schema` is one of Anthropic's own."""
    fields = parse_object(raw)
    kind = as_text(fields.get("type")) or "custom"
    return Tool(
        kind="function" if kind == "custom" else kind,
        name=as_text(fields.get("name")),
        description=as_text(fields.get("description")),
        parameters=to_json(fields.get("input_schema") or {}),
        raw=raw,
    )


def parse_content(content: object) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, list):
        return tuple(map(_parse_block, content))
    return () if content is None else (make_opaque(content),)


def _parse_block(block: object) -> Part:
    fields = as_dict(block)
    kind = as_text(fields.get("type"))
    match kind:
        case "text" if isinstance(fields.get("text", ""), str):
            return Text(as_text(fields.get("text")))
        case "thinking":
            return Thinking(as_text(fields.get("thinking")), len(as_text(fields.get("signature"))))
        case "redacted_thinking":
            return Thinking("", len(as_text(fields.get("data"))))
        case "image":
            return parse_image(as_dict(fields.get("source")))
        case "document":
            return _parse_document(fields)
        case "tool_use":
            return ToolCall(
                format=Format.ANTHROPIC,
                name=as_text(fields.get("name")),
                arguments=to_json(fields.get("input")).decode(),
                id=as_text(fields.get("id")),
            )
        case "tool_result":
            return ToolResult(
                parts=parse_content(fields.get("content")),
                id=as_text(fields.get("tool_use_id")),
                is_error=fields.get("is_error") is True,
            )
        case _:
            return make_opaque(block)


def parse_image(source: dict[str, Any]) -> Image:
    if source.get("type") == "base64":
        size = media.image_size(as_text(source.get("data"))) or (None, None)
        return Image(source=MediaSource.INLINE, width=size[0], height=size[1])
    return Image(source=MediaSource.FILE if source.get("type") == "file" else MediaSource.URL)


def _parse_document(block: dict[str, Any]) -> Document:
    source = as_dict(block.get("source"))
    heading = "\n".join(filter(None, (as_text(block.get("title")), as_text(block.get("context")))))
    media_type = as_text(source.get("media_type"))
    match source.get("type"):
        case "text":
            text = "\n".join(filter(None, (heading, as_text(source.get("data")))))
            return Document(source=MediaSource.INLINE, media_type="text/plain", text=text)
        case "content":
            inner = "\n".join(p.text for p in parse_content(source.get("content")) if isinstance(p, Text))
            return Document(source=MediaSource.INLINE, media_type="text/plain", text=heading + inner)
        case "base64":
            data = as_text(source.get("data"))
            return Document(
                source=MediaSource.INLINE,
                media_type=media_type or "application/pdf",
                text=heading,
                pages=media.count_pdf_pages(data),
                size_bytes=len(data) * 3 // 4,
            )
        case kind:
            media_source = MediaSource.FILE if kind == "file" else MediaSource.URL
            return Document(source=media_source, media_type=media_type or "application/pdf", text=heading)


def _parse_schema(output: dict[str, Any]) -> ResponseSchema | None:
    if output.get("type") != "json_schema":
        return None
    return ResponseSchema(name="", description="", schema=to_json(output.get("schema") or {}))
