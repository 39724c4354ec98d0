"""What a model answered to being asked for a summary: its text, and why that may be none."""

import re
from dataclasses import dataclass

import msgspec

from foveate.errors import MalformedRequest
from foveate.upstream import Reply
from foveate.values import Format, Usage
from foveate.wire.usage import usage_in

# Anthropic's reasons: platform.claude.com/docs/en/build-with-claude/handling-stop-reasons (read November 2026).
_CUT_OFF = frozenset(("max_tokens", "length", "model_context_window_exceeded"))
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


class _Choice(msgspec.Struct):
    message: _Message = msgspec.field(default_factory=_Message)
    finish_reason: str | None = None


_BLOCKS = msgspec.json.Decoder(list[_Block])
_CHOICES = msgspec.json.Decoder(list[_Choice])
_REASON = msgspec.json.Decoder(str | None)


def answer_of(spoken: Format, reply: Reply) -> Answer:
    """The answer in a reply, in the format of the route that gave it."""
    try:
        usage = usage_in(spoken, reply)
    except MalformedRequest:
        usage = None
    try:
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
