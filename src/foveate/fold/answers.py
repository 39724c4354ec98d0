"""What a model answered to being asked for a summary: its text, and why that may be none."""

import re
from dataclasses import dataclass

import msgspec

from foveate.errors import MalformedRequest
from foveate.upstream import Reply
from foveate.values import Format, Usage
from foveate.wire.usage import usage_in

# Anthropic's reasons: platform.claude.com/docs/en/build-with-claude/handling-stop-reasons (read November 2026).
_CUT_OFF = frozenset(("max_tokens", "length", "model_context_window_exceeded", "max_output_tokens"))
_REFUSED = frozenset(("refusal", "content_filter"))
_CALLED = frozenset(("tool_use", "tool_calls", "function_call", "pause_turn"))
# Local models that think do so in their answer where the server does not part the two. Some templates open the
# block in the prompt, and only its end is answered: ggml-org/llama.cpp#11861, vllm-project/vllm#13125 (2025).
_THOUGHT = re.compile(r"\s*<(think|thinking)>.*?(</\1>|\Z)", re.DOTALL)
_THOUGHT_END = re.compile(r"^[^\S\n]*</(think|thinking)>[ \t]*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was said, what it was billed, and why it is no whole answer, if it is none (`problem`).

    `calls`: it called a tool, which it could do only since it was shown some. `cut_off`: it had no more room.
    """

    text: str
    usage: Usage | None
    problem: str | None = None
    calls: bool = False
    cut_off: bool = False


class _Block(msgspec.Struct):
    """A block of an answer by Anthropic."""

    type: str = ""
    text: str = ""


class _Message(msgspec.Struct):
    """An answer in a chat."""

    content: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: dict[str, msgspec.Raw] | None = None  # the older way to say the same


class _Item(msgspec.Struct):
    """An item of a response; only a message has content that is read."""

    type: str = ""
    content: list["_Content"] | None = None


class _Content(msgspec.Struct):
    """A part of a message in a response."""

    type: str = ""
    text: str = ""


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Choice(msgspec.Struct):
    message: _Message = msgspec.field(default_factory=_Message)
    finish_reason: str | None = None


_BLOCKS = msgspec.json.Decoder(list[_Block])
_CHOICES = msgspec.json.Decoder(list[_Choice])
_REASON = msgspec.json.Decoder(str | None)
_OUTPUT = msgspec.json.Decoder(list[_Item])
_INCOMPLETE = msgspec.json.Decoder(_Incomplete | None)
_NULL = msgspec.Raw(b"null")


def answer_of(spoken: Format, reply: Reply) -> Answer:
    """The answer in a reply, in the format of the route that gave it."""
    try:
        usage = usage_in(spoken, reply)
    except MalformedRequest:
        usage = None
    try:
        if spoken is Format.RESPONSES:
            return _in_response(reply, usage)
        return _by_anthropic(reply, usage) if spoken is Format.ANTHROPIC else _in_chat(reply, usage)
    except msgspec.MsgspecError:
        return Answer(text="", usage=usage, problem="the answer has not the shape of one")


def _by_anthropic(reply: Reply, usage: Usage | None) -> Answer:
    if "content" not in reply:
        return Answer(text="", usage=usage, problem="the answer has no content")
    blocks = _BLOCKS.decode(reply["content"])
    reason = _REASON.decode(reply.get("stop_reason", msgspec.Raw(b"null"))) or ""
    text = "".join(block.text for block in blocks if block.type == "text")
    return _answer(text, usage, reason, calls=any(block.type.endswith("tool_use") for block in blocks))


def _in_chat(reply: Reply, usage: Usage | None) -> Answer:
    choices = _CHOICES.decode(reply.get("choices", msgspec.Raw(b"[]")))
    if not choices:
        return Answer(text="", usage=usage, problem="the answer has no choices")
    said = choices[0].message
    reason = "refusal" if said.refusal else choices[0].finish_reason or ""
    return _answer(said.content or "", usage, reason, calls=bool(said.tool_calls or said.function_call))


def _in_response(reply: Reply, usage: Usage | None) -> Answer:
    status = _REASON.decode(reply.get("status", _NULL)) or "completed"
    if status not in ("completed", "incomplete"):
        return Answer(text="", usage=usage, problem=f"the response is {status}")
    items = _OUTPUT.decode(reply.get("output", msgspec.Raw(b"[]")))
    parts = [part for item in items if item.type == "message" for part in item.content or ()]
    if not items:
        return Answer(text="", usage=usage, problem="the response has no output")
    incomplete = _INCOMPLETE.decode(reply.get("incomplete_details", _NULL))
    reason = (incomplete.reason if incomplete is not None else None) or ""
    if any(part.type == "refusal" for part in parts):
        reason = "refusal"
    text = "".join(part.text for part in parts if part.type == "output_text")
    return _answer(text, usage, reason, calls=any(item.type.endswith("_call") for item in items))


def _answer(text: str, usage: Usage | None, reason: str, *, calls: bool) -> Answer:
    problem = None
    calls = calls or reason in _CALLED
    cut_off = not calls and reason in _CUT_OFF
    if calls:
        problem = "the answer calls a tool"
    elif reason in _REFUSED:
        problem = "the answer is a refusal, not a summary"
    elif cut_off:
        problem = "the summary was cut off"
    return Answer(text=_spoken(text), usage=usage, problem=problem, calls=calls, cut_off=cut_off)


def _spoken(text: str) -> str:
    """What is said after what is thought."""
    thought = _THOUGHT.match(text) or _THOUGHT_END.search(text)
    return text[thought.end() :].strip() if thought else text.strip()
