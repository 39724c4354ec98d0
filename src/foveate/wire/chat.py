"""OpenAI chat completions, and the many servers that speak it (read November 2026)."""

from collections.abc import Mapping
from typing import Any

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
    is_said,
    items,
    message_record,
    opaque,
    record,
    value,
)
from foveate.wire.shapes import Shape

_PLAIN_FIELDS = frozenset(("role", "content"))
# What OpenRouter and xAI search for by these is added too, what Azure OpenAI finds in data sources, and what an
# OpenRouter preset holds.
_SERVER_SIDE_FIELDS = ("web_search_options", "audio", "plugins", "search_parameters", "data_sources", "preset")


def _whole_kind(message: Mapping[str, Any]) -> str:
    return "tool_result" if message.get("role") in ("tool", "function") else ""


SHAPE = Shape(
    messages=("messages",),
    content="content",
    tools=(("tools",), ("functions",)),
    text_kind="text",
    results={"tool_result": ("content",)},
    marks_inside_results=True,
    whole_kind=_whole_kind,
    calls="tool_calls",
    mark_styles=(MarkStyle.CACHE_CONTROL, MarkStyle.BREAKPOINT),
)


def read(body: bytes, fields: Fields) -> Request:
    """A chat completions body as a `Request`; system and developer messages stay where they stand."""
    return Request(
        format=Format.CHAT,
        model=as_text(value(fields.get("model"))),
        body=body,
        system=(),
        tools=items(fields.get("tools")) + items(fields.get("functions")),
        messages=messages(fields),
        tool_choice=choice(value(fields.get("tool_choice") or fields.get("function_call"))),
        thinking=_thinking(fields),
        schema=schema(record(fields.get("response_format"))),
        unexplained=tuple(name for name in _SERVER_SIDE_FIELDS if is_said(fields.get(name))),
    )


def messages(fields: Fields) -> tuple[bytes, ...]:
    """The JSON of each message."""
    return entries(fields.get("messages"), "messages")


def message(raw: bytes) -> Message:
    """One entry of `messages`."""
    found = message_record(raw)
    role = as_text(found.get("role"))
    inner = content(found.get("content"))
    if role in ("tool", "function"):
        result = ToolResult(parts=inner, id=as_text(found.get("tool_call_id")), name=as_text(found.get("name")))
        return Message(role=role, parts=(result,))
    if found.keys() <= _PLAIN_FIELDS:  # most messages, and the quickest way
        return Message(role=role, parts=inner)
    said = as_text(found.get("reasoning_content")) or as_text(found.get("reasoning"))
    thought = (Thinking(said),) if said else ()
    refused = (Text(found["refusal"]),) if as_text(found.get("refusal")) else ()
    calls = _calls(found.get("tool_calls"))
    if found.get("function_call"):
        calls.append(_call({"function": found["function_call"]}))
    return Message(role=role, parts=(*thought, *inner, *refused, *calls), name=as_text(found.get("name")))


def tool(raw: bytes) -> Tool:
    """One entry of `tools`, or of the older `functions`."""
    found = record(raw)
    kind = as_text(found.get("type")) or "function"
    inner = as_record(found.get(kind)) or found
    return Tool(
        kind=kind,
        name=as_text(inner.get("name")),
        description=as_text(inner.get("description")),
        parameters=compact(inner.get("parameters") or {}),
        raw=raw,
    )


def _thinking(fields: Fields) -> str:
    """How much to reason: OpenAI's field, OpenRouter's, or the one of Z.ai and DeepSeek."""
    asked = record(fields.get("reasoning"))
    wanted = asked.get("enabled") is True or asked.get("max_tokens")
    return (
        as_text(value(fields.get("reasoning_effort")))
        or as_text(asked.get("effort"))
        or as_text(record(fields.get("thinking")).get("type"))
        or ("enabled" if wanted or as_text(value(fields.get("model"))).endswith(":thinking") else "")
    )


def choice(found: object) -> str:
    """How free the model is: `auto`, `none`, `required`, the name of a tool, or nothing said."""
    if isinstance(found, str):
        return found
    named = as_record(found)
    inner = as_record(named.get("function"))
    return as_text(inner.get("name")) or as_text(named.get("name")) or as_text(named.get("type"))


def schema(response_format: dict[str, Any]) -> Schema | None:
    """The JSON schema that the answer is held to."""
    if response_format.get("type") != "json_schema":
        return None
    inner = as_record(response_format.get("json_schema")) or response_format
    return Schema(
        name=as_text(inner.get("name")),
        description=as_text(inner.get("description")),
        schema=compact(inner.get("schema") or {}),
    )


def content(found: object) -> tuple[Part, ...]:
    """The parts of a content field, a string being one text part."""
    if isinstance(found, str):
        return (Text(found),) if found else ()
    if isinstance(found, list):
        return tuple(map(part, found))
    return () if found is None else (opaque(found),)


def part(entry: object) -> Part:
    """One content part; the Responses format uses the same shapes under `input_…` and `output_…`."""
    if isinstance(entry, str):
        return Text(entry)
    found = as_record(entry)
    kind = as_text(found.get("type"))
    match kind:
        case "text" | "input_text" | "output_text" | "summary_text" | "reasoning_text" if isinstance(
            found.get("text", ""), str
        ):
            return Text(as_text(found.get("text")))
        case "thinking":  # Mistral: a list of text parts
            return Thinking("".join(p.text for p in content(found.get("thinking")) if isinstance(p, Text)))
        case "refusal":
            return Text(as_text(found.get("refusal")))
        case "image_url" | "input_image":
            return _image(found)
        case "file" | "input_file":
            return _file(as_record(found.get("file")) or found)
        case _:
            return opaque(entry)


def _calls(found: object) -> list[ToolCall | Opaque]:
    if isinstance(found, list):
        return [_call(entry) for entry in found]
    return [Opaque("tool_calls", compact(found))] if found else []


def _call(entry: object) -> ToolCall | Opaque:
    found = as_record(entry)
    inner = as_record(found.get("function"))
    if not inner:
        return Opaque(as_text(found.get("type")) or "tool_call", compact(entry))
    arguments = inner.get("arguments")
    return ToolCall(
        format=Format.CHAT,
        name=as_text(inner.get("name")),
        arguments=arguments if isinstance(arguments, str) else compact(arguments).decode(),
        id=as_text(found.get("id")),
    )


def _image(found: dict[str, Any]) -> Image:
    holder = found.get("image_url")
    url = holder if isinstance(holder, str) else as_text(as_record(holder).get("url"))
    detail = as_text(found.get("detail")) or as_text(as_record(holder).get("detail")) or "auto"
    if url.startswith("data:"):
        size = media.pixels(url.partition(",")[2]) or (None, None)
        return Image(source=Source.INLINE, width=size[0], height=size[1], detail=detail)
    return Image(source=Source.URL if url else Source.FILE, detail=detail)


def _file(found: dict[str, Any]) -> Document:
    data = as_text(found.get("file_data"))
    name = as_text(found.get("filename"))
    if not data:
        where = Source.URL if found.get("file_url") else Source.FILE
        return Document(source=where, media_type="", text=name)
    head, _, payload = data.rpartition(",")
    media_type = head.removeprefix("data:").partition(";")[0] or "application/pdf"
    if media_type.startswith("text/"):
        text = media.decoded(payload).decode("utf-8", "replace")
        return Document(source=Source.INLINE, media_type=media_type, text=text)
    return Document(
        source=Source.INLINE,
        media_type=media_type,
        text=name,
        pages=media.pdf_pages(payload),
        size_bytes=len(payload) * 3 // 4,
    )
