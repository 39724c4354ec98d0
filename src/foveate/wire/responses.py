"""OpenAI Responses: https://platform.openai.com/docs/api-reference/responses (read November 2026)."""

from collections.abc import Mapping
from typing import Any

from foveate.values import (
    Format,
    MarkStyle,
    Message,
    Opaque,
    Part,
    Request,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from foveate.wire import chat
from foveate.wire.body import (
    Fields,
    as_list,
    as_record,
    as_text,
    compact,
    entries,
    is_said,
    items,
    message_record,
    record,
    value,
)
from foveate.wire.shapes import Shape

# Fields through which the provider adds what it has stored; the last two are OpenRouter's.
_STORED_FIELDS = (
    "previous_response_id", "conversation", "prompt", "context_management", "preset", "plugins"
)  # fmt: skip


def _whole_kind(message: Mapping[str, Any]) -> str:
    kind = as_text(message.get("type")) or "message"
    return "" if kind == "message" else kind


SHAPE = Shape(
    messages=("input",),
    content="content",
    tools=(("tools",),),
    system=("instructions",),
    system_is_text=True,
    text_kind="input_text",
    text_kind_by_role={"assistant": "output_text"},
    results={"function_call_output": ("output",), "custom_tool_call_output": ("output",)},
    marks_inside_results=True,
    whole_kind=_whole_kind,
    mark_styles=(MarkStyle.BREAKPOINT, MarkStyle.CACHE_CONTROL),
)


def read(body: bytes, fields: Fields) -> Request:
    """A Responses body as a `Request`; a plain string for `input` is one user message."""
    reasoning = record(fields.get("reasoning"))
    hidden = [name for name in _STORED_FIELDS if is_said(fields.get(name))]
    if reasoning.get("mode") == "pro":
        hidden.append("reasoning mode pro")
    return Request(
        format=Format.RESPONSES,
        model=as_text(value(fields.get("model"))),
        body=body,
        system=chat.content(value(fields.get("instructions"))),
        tools=items(fields.get("tools")),
        messages=messages(fields),
        tool_choice=chat.choice(value(fields.get("tool_choice"))),
        thinking=as_text(reasoning.get("effort")),
        schema=chat.schema(as_record(record(fields.get("text")).get("format"))),
        unexplained=tuple(hidden),
    )


def messages(fields: Fields) -> tuple[bytes, ...]:
    """The JSON of each item; a plain string is one message of the user's."""
    given = fields.get("input")
    if given is not None and bytes(memoryview(given)[:1]) == b'"':
        return (b'{"role":"user","content":' + bytes(given) + b"}",)
    return entries(given, "input")


def message(raw: bytes) -> Message:
    """One entry of `input`: a message, or an item that stands beside the messages."""
    found = message_record(raw)
    kind = as_text(found.get("type")) or "message"
    match kind:
        case "message":
            return Message(role=as_text(found.get("role")), parts=chat.content(found.get("content")))
        case "function_call" | "custom_tool_call":
            given = found.get("arguments", found.get("input"))
            call = ToolCall(
                format=Format.RESPONSES,
                name=as_text(found.get("name")),
                arguments=given if isinstance(given, str) else compact(given).decode(),
                id=as_text(found.get("call_id")),
                item_id=as_text(found.get("id")),
            )
            return Message(role="assistant", parts=(call,))
        case "function_call_output" | "custom_tool_call_output":
            result = ToolResult(parts=chat.content(found.get("output")), id=as_text(found.get("call_id")))
            return Message(role="tool", parts=(result,))
        case "reasoning":
            return Message(role="assistant", parts=(_reasoning(found),))
        case _:
            return Message(role="assistant", parts=(Opaque(kind, raw),))


def tool(raw: bytes) -> Tool:
    """One entry of `tools`: flat, where chat nests."""
    return chat.tool(raw)


def _reasoning(found: dict[str, object]) -> Part:
    said = chat.content(found.get("content")) or tuple(map(chat.part, as_list(found.get("summary"))))
    text = "\n".join(p.text for p in said if isinstance(p, Text))
    return Thinking(text, len(as_text(found.get("encrypted_content"))))
