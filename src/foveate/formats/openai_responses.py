"""OpenAI Responses: https://platform.openai.com/docs/api-reference/responses (read November 2026)."""

from collections.abc import Mapping
from typing import Any

from foveate.formats import openai_chat
from foveate.formats.json_text.parse import (
    Fields,
    as_dict,
    as_list,
    as_text,
    is_set,
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
    Format,
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

# Fields that make the provider add stored content; the last two are OpenRouter's.
_STORED_FIELDS = (
    "previous_response_id", "conversation", "prompt", "context_management", "preset", "plugins"
)  # fmt: skip


def _single_block_kind(message: Mapping[str, Any]) -> str:
    kind = as_text(message.get("type")) or "message"
    return "" if kind == "message" else kind


LAYOUT = FormatLayout(
    message_fields=("input",),
    content_field="content",
    tool_paths=(("tools",),),
    system_fields=("instructions",),
    system_is_text=True,
    text_kind="input_text",
    text_kind_by_role={"assistant": "output_text"},
    result_paths={"function_call_output": ("output",), "custom_tool_call_output": ("output",)},
    breakpoints_inside_results=True,
    single_block_kind=_single_block_kind,
    breakpoint_styles=(BreakpointStyle.PROMPT_CACHE_BREAKPOINT, BreakpointStyle.CACHE_CONTROL),
)


def parse_request(body: bytes, fields: Fields) -> Request:
    """A plain string for `input` is one user message."""
    reasoning = parse_object(fields.get("reasoning"))
    hidden = [name for name in _STORED_FIELDS if is_set(fields.get(name))]
    if reasoning.get("mode") == "pro":
        hidden.append("reasoning mode pro")
    return Request(
        format=Format.RESPONSES,
        model=as_text(parse_json(fields.get("model"))),
        body=body,
        system=openai_chat.parse_content(parse_json(fields.get("instructions"))),
        tools=parse_items(fields.get("tools")),
        messages=split_messages(fields),
        tool_choice=openai_chat.parse_tool_choice(parse_json(fields.get("tool_choice"))),
        thinking=as_text(reasoning.get("effort")),
        schema=openai_chat.parse_response_schema(as_dict(parse_object(fields.get("text")).get("format"))),
        unexplained=tuple(hidden),
    )


def split_messages(fields: Fields) -> tuple[bytes, ...]:
    """Return the JSON of each item. A plain string is one user message."""
    raw_input = fields.get("input")
    if raw_input is not None and bytes(memoryview(raw_input)[:1]) == b'"':
        return (b'{"role":"user","content":' + bytes(raw_input) + b"}",)
    return parse_entries(raw_input, "input")


def parse_message(raw: bytes) -> Message:
    fields = parse_message_object(raw)
    kind = as_text(fields.get("type")) or "message"
    match kind:
        case "message":
            return Message(
                role=as_text(fields.get("role")), parts=openai_chat.parse_content(fields.get("content"))
            )
        case "function_call" | "custom_tool_call":
            arguments = fields.get("arguments", fields.get("input"))
            call = ToolCall(
                format=Format.RESPONSES,
                name=as_text(fields.get("name")),
                arguments=arguments if isinstance(arguments, str) else to_json(arguments).decode(),
                id=as_text(fields.get("call_id")),
                item_id=as_text(fields.get("id")),
            )
            return Message(role="assistant", parts=(call,))
        case "function_call_output" | "custom_tool_call_output":
            result = ToolResult(
                parts=openai_chat.parse_content(fields.get("output")), id=as_text(fields.get("call_id"))
            )
            return Message(role="tool", parts=(result,))
        case "reasoning":
            return Message(role="assistant", parts=(_parse_reasoning(fields),))
        case _:
            return Message(role="assistant", parts=(Opaque(kind, raw),))


def parse_tool(raw: bytes) -> Tool:
    """Parse one entry of `tools`, which is flat instead of nested as in chat."""
    return openai_chat.parse_tool(raw)


def _parse_reasoning(item: dict[str, object]) -> Part:
    parts = openai_chat.parse_content(item.get("content")) or tuple(
        map(openai_chat.parse_part, as_list(item.get("summary")))
    )
    text = "\n".join(p.text for p in parts if isinstance(p, Text))
    return Thinking(text, len(as_text(item.get("encrypted_content"))))
