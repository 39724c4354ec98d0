"""OpenAI chat completions, and the many servers with the same API (read November 2026)."""

from collections.abc import Mapping
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

_PLAIN_FIELDS = frozenset(("role", "content"))
# Fields that make the provider add to the input: searches (OpenRouter, xAI), data sources (Azure OpenAI),
# presets (OpenRouter).
_SERVER_SIDE_FIELDS = ("web_search_options", "audio", "plugins", "search_parameters", "data_sources", "preset")


def _single_block_kind(message: Mapping[str, Any]) -> str:
    return "tool_result" if message.get("role") in ("tool", "function") else ""


LAYOUT = FormatLayout(
    message_fields=("messages",),
    content_field="content",
    tool_paths=(("tools",), ("functions",)),
    text_kind="text",
    result_paths={"tool_result": ("content",)},
    breakpoints_inside_results=True,
    single_block_kind=_single_block_kind,
    tool_calls_field="tool_calls",
    breakpoint_styles=(BreakpointStyle.CACHE_CONTROL, BreakpointStyle.PROMPT_CACHE_BREAKPOINT),
)


def parse_request(body: bytes, fields: Fields) -> Request:
    """System and developer messages stay among the messages."""
    return Request(
        format=Format.CHAT,
        model=as_text(parse_json(fields.get("model"))),
        body=body,
        system=(),
        tools=parse_items(fields.get("tools")) + parse_items(fields.get("functions")),
        messages=split_messages(fields),
        tool_choice=parse_tool_choice(parse_json(fields.get("tool_choice") or fields.get("function_call"))),
        thinking=_read_thinking(fields),
        schema=parse_response_schema(parse_object(fields.get("response_format"))),
        unexplained=tuple(name for name in _SERVER_SIDE_FIELDS if is_set(fields.get(name))),
    )


def split_messages(fields: Fields) -> tuple[bytes, ...]:
    return parse_entries(fields.get("messages"), "messages")


def parse_message(raw: bytes) -> Message:
    fields = parse_message_object(raw)
    role = as_text(fields.get("role"))
    inner = parse_content(fields.get("content"))
    if role in ("tool", "function"):
        result = ToolResult(
            parts=inner, id=as_text(fields.get("tool_call_id")), name=as_text(fields.get("name"))
        )
        return Message(role=role, parts=(result,))
    if fields.keys() <= _PLAIN_FIELDS:  # fast path for most messages
        return Message(role=role, parts=inner)
    reasoning = as_text(fields.get("reasoning_content")) or as_text(fields.get("reasoning"))
    thinking = (Thinking(reasoning),) if reasoning else ()
    refusal = (Text(fields["refusal"]),) if as_text(fields.get("refusal")) else ()
    calls = _parse_tool_calls(fields.get("tool_calls"))
    if fields.get("function_call"):
        calls.append(_parse_tool_call({"function": fields["function_call"]}))
    return Message(role=role, parts=(*thinking, *inner, *refusal, *calls), name=as_text(fields.get("name")))


def parse_tool(raw: bytes) -> Tool:
    """Parse one entry of `tools`, or of the older `functions`."""
    fields = parse_object(raw)
    kind = as_text(fields.get("type")) or "function"
    inner = as_dict(fields.get(kind)) or fields
    return Tool(
        kind=kind,
        name=as_text(inner.get("name")),
        description=as_text(inner.get("description")),
        parameters=to_json(inner.get("parameters") or {}),
        raw=raw,
    )


def _read_thinking(fields: Fields) -> str:
    """Return the reasoning effort: OpenAI's field, OpenRouter's, or that of Z.ai and DeepSeek."""
    reasoning = parse_object(fields.get("reasoning"))
    is_enabled = reasoning.get("enabled") is True or reasoning.get("max_tokens")
    return (
        as_text(parse_json(fields.get("reasoning_effort")))
        or as_text(reasoning.get("effort"))
        or as_text(parse_object(fields.get("thinking")).get("type"))
        or ("enabled" if is_enabled or as_text(parse_json(fields.get("model"))).endswith(":thinking") else "")
    )


def parse_tool_choice(value: object) -> str:
    """Return `auto`, `none`, `required`, the name of a tool, or an empty string."""
    if isinstance(value, str):
        return value
    fields = as_dict(value)
    inner = as_dict(fields.get("function"))
    return as_text(inner.get("name")) or as_text(fields.get("name")) or as_text(fields.get("type"))


def parse_response_schema(response_format: dict[str, Any]) -> ResponseSchema | None:
    if response_format.get("type") != "json_schema":
        return None
    inner = as_dict(response_format.get("json_schema")) or response_format
    return ResponseSchema(
        name=as_text(inner.get("name")),
        description=as_text(inner.get("description")),
        schema=to_json(inner.get("schema") or {}),
    )


def parse_content(content: object) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (Text(content),) if content else ()
    if isinstance(content, list):
        return tuple(map(parse_part, content))
    return () if content is None else (make_opaque(content),)


def parse_part(entry: object) -> Part:
    """The Responses format has the same parts under `input_…` and `output_…`."""
    if isinstance(entry, str):
        return Text(entry)
    fields = as_dict(entry)
    kind = as_text(fields.get("type"))
    match kind:
        case "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" if isinstance(
            fields.get("text", ""), str
        ):
            return Text(as_text(fields.get("text")))
        case "thinking":  # Mistral: a list of text parts
            return Thinking(
                "".join(p.text for p in parse_content(fields.get("thinking")) if isinstance(p, Text))
            )
        case "refusal":
            return Text(as_text(fields.get("refusal")))
        case "image_url" | "input_image":
            return _parse_image(fields)
        case "file" | "input_file":
            return _parse_file(as_dict(fields.get("file")) or fields)
        case _:
            return make_opaque(entry)


def _parse_tool_calls(calls: object) -> list[ToolCall | Opaque]:
    if isinstance(calls, list):
        return [_parse_tool_call(entry) for entry in calls]
    return [Opaque("tool_calls", to_json(calls))] if calls else []


def _parse_tool_call(entry: object) -> ToolCall | Opaque:
    fields = as_dict(entry)
    inner = as_dict(fields.get("function"))
    if not inner:
        return Opaque(as_text(fields.get("type")) or "tool_call", to_json(entry))
    arguments = inner.get("arguments")
    return ToolCall(
        format=Format.CHAT,
        name=as_text(inner.get("name")),
        arguments=arguments if isinstance(arguments, str) else to_json(arguments).decode(),
        id=as_text(fields.get("id")),
    )


def _parse_image(part: dict[str, Any]) -> Image:
    holder = part.get("image_url")
    url = holder if isinstance(holder, str) else as_text(as_dict(holder).get("url"))
    detail = as_text(part.get("detail")) or as_text(as_dict(holder).get("detail")) or "auto"
    if url.startswith("data:"):
        size = media.image_size(url.partition(",")[2]) or (None, None)
        return Image(source=MediaSource.INLINE, width=size[0], height=size[1], detail=detail)
    return Image(source=MediaSource.URL if url else MediaSource.FILE, detail=detail)


def _parse_file(file: dict[str, Any]) -> Document:
    data = as_text(file.get("file_data"))
    name = as_text(file.get("filename"))
    if not data:
        media_source = MediaSource.URL if file.get("file_url") else MediaSource.FILE
        return Document(source=media_source, media_type="", text=name)
    head, _, payload = data.rpartition(",")
    media_type = head.removeprefix("data:").partition(";")[0] or "application/pdf"
    if media_type.startswith("text/"):
        text = media.decode_base64(payload).decode("utf-8", "replace")
        return Document(source=MediaSource.INLINE, media_type=media_type, text=text)
    return Document(
        source=MediaSource.INLINE,
        media_type=media_type,
        text=name,
        pages=media.count_pdf_pages(payload),
        size_bytes=len(payload) * 3 // 4,
    )
