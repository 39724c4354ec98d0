"""What a model answered to being asked for a summary: its text, and why that may be none."""

import re
from dataclasses import dataclass

import msgspec

from foveate.errors import MalformedRequest
from foveate.upstream import JsonReply
from foveate.values import Format, Usage
from foveate.wire.usage import find_usage

# Anthropic's reasons: platform.claude.com/docs/en/build-with-claude/handling-stop-reasons (read November 2026).
_TRUNCATED_REASONS = frozenset(("max_tokens", "length", "model_context_window_exceeded", "max_output_tokens"))
_REFUSAL_REASONS = frozenset(("refusal", "content_filter"))
_TOOL_CALL_REASONS = frozenset(("tool_use", "tool_calls", "function_call", "pause_turn"))
# Local models that think do so in their answer where the server does not part the two. Some templates open the
# block in the prompt, and only its end is answered: ggml-org/llama.cpp#11861, vllm-project/vllm#13125 (2025).
_THINKING_BLOCK = re.compile(r"\s*<(think|thinking)>.*?(</\1>|\Z)", re.DOTALL)
_THINKING_END = re.compile(r"^[^\S\n]*</(think|thinking)>[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryResponse:
    """What was said, what it was billed, and why it is no whole answer, if it is none (`problem`).

    `calls`: it called a tool, which it could do only since it was shown some. `cut_off`: it had no more room.
    """

    text: str
    usage: Usage | None
    problem: str | None = None
    has_tool_calls: bool = False
    is_truncated: bool = False


class _AnthropicBlock(msgspec.Struct):
    """A block of an answer by Anthropic."""

    type: str = ""
    text: str = ""


class _ChatMessage(msgspec.Struct):
    """An answer in a chat."""

    content: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None  # the older way to say the same


class _ResponsesItem(msgspec.Struct):
    """An item of a response; only a message has content that is read."""

    type: str = ""
    content: list["_ResponsesContent"] | None = None


class _ResponsesContent(msgspec.Struct):
    """A part of a message in a response."""

    type: str = ""
    text: str = ""


class _IncompleteDetails(msgspec.Struct):
    reason: str | None = None


class _ChatChoice(msgspec.Struct):
    message: _ChatMessage = msgspec.field(default_factory=_ChatMessage)
    finish_reason: str | None = None


_BLOCKS_DECODER = msgspec.json.Decoder(list[_AnthropicBlock])
_CHOICES_DECODER = msgspec.json.Decoder(list[_ChatChoice])
_REASON_DECODER = msgspec.json.Decoder(str | None)
_OUTPUT_DECODER = msgspec.json.Decoder(list[_ResponsesItem])
_INCOMPLETE_DECODER = msgspec.json.Decoder(_IncompleteDetails | None)
_NULL = msgspec.Raw(b"null")


def parse_response(api_format: Format, reply: JsonReply) -> SummaryResponse:
    """The answer in a reply, in the format of the route that gave it."""
    try:
        usage = find_usage(api_format, reply)
    except MalformedRequest:
        usage = None
    try:
        if api_format is Format.RESPONSES:
            return _parse_responses(reply, usage)
        return _parse_anthropic(reply, usage) if api_format is Format.ANTHROPIC else _parse_chat(reply, usage)
    except msgspec.MsgspecError:
        return SummaryResponse(text="", usage=usage, problem="the answer has not the shape of one")


def _parse_anthropic(reply: JsonReply, usage: Usage | None) -> SummaryResponse:
    if "content" not in reply:
        return SummaryResponse(text="", usage=usage, problem="the answer has no content")
    blocks = _BLOCKS_DECODER.decode(reply["content"])
    reason = _REASON_DECODER.decode(reply.get("stop_reason", msgspec.Raw(b"null"))) or ""
    text = "".join(block.text for block in blocks if block.type == "text")
    return _build_response(
        text, usage, reason, has_tool_calls=any(block.type.endswith("tool_use") for block in blocks)
    )


def _parse_chat(reply: JsonReply, usage: Usage | None) -> SummaryResponse:
    choices = _CHOICES_DECODER.decode(reply.get("choices", msgspec.Raw(b"[]")))
    if not choices:
        return SummaryResponse(text="", usage=usage, problem="the answer has no choices")
    message = choices[0].message
    reason = "refusal" if message.refusal else choices[0].finish_reason or ""
    return _build_response(
        message.content or "", usage, reason, has_tool_calls=bool(message.tool_calls or message.function_call)
    )


def _parse_responses(reply: JsonReply, usage: Usage | None) -> SummaryResponse:
    status = _REASON_DECODER.decode(reply.get("status", _NULL)) or "completed"
    if status not in ("completed", "incomplete"):
        return SummaryResponse(text="", usage=usage, problem=f"the response is {status}")
    items = _OUTPUT_DECODER.decode(reply.get("output", msgspec.Raw(b"[]")))
    parts = [part for item in items if item.type == "message" for part in item.content or ()]
    if not items:
        return SummaryResponse(text="", usage=usage, problem="the response has no output")
    incomplete = _INCOMPLETE_DECODER.decode(reply.get("incomplete_details", _NULL))
    reason = (incomplete.reason if incomplete is not None else None) or ""
    if any(part.type == "refusal" for part in parts):
        reason = "refusal"
    text = "".join(part.text for part in parts if part.type == "output_text")
    return _build_response(
        text, usage, reason, has_tool_calls=any(item.type.endswith("_call") for item in items)
    )


def _build_response(text: str, usage: Usage | None, reason: str, *, has_tool_calls: bool) -> SummaryResponse:
    problem = None
    has_tool_calls = has_tool_calls or reason in _TOOL_CALL_REASONS
    is_truncated = not has_tool_calls and reason in _TRUNCATED_REASONS
    if has_tool_calls:
        problem = "the answer calls a tool"
    elif reason in _REFUSAL_REASONS:
        problem = "the answer is a refusal, not a summary"
    elif is_truncated:
        problem = "the summary was cut off"
    return SummaryResponse(
        text=_strip_thinking(text),
        usage=usage,
        problem=problem,
        has_tool_calls=has_tool_calls,
        is_truncated=is_truncated,
    )


def _strip_thinking(text: str) -> str:
    """What is said after what is thought."""
    thinking = _THINKING_BLOCK.match(text) or _THINKING_END.search(text)
    return text[thinking.end() :].strip() if thinking else text.strip()
