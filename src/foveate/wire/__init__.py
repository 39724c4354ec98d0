"""Request bodies in, values out: one file a wire format. And edits back in, into the bytes that came.

`read` recognises the format and reads what every request needs; `message` and `tool` read one of its parts
when somebody looks at it, `blocks` gives all of it as a provider's cache sees it, `write` puts edits in.
What comes back: `reply_usage` and `block_usage` read a bill, a `StreamReader` looks at a reply as it streams.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from foveate.errors import MalformedRequest
from foveate.values import Block, Edit, Format, MarkStyle, Message, Request, Tool, Ttl
from foveate.wire import anthropic, bedrock, chat, gemini, responses
from foveate.wire.blocks import automatic_mark_of, blocks_of
from foveate.wire.body import (
    TOO_DEEP,
    Fields,
    as_list,
    as_record,
    as_text,
    compact,
    fields,
    items,
    record,
    to_bytes,
    value,
)
from foveate.wire.edits import written
from foveate.wire.marks import MEMBERS, without_marks
from foveate.wire.shapes import Shape
from foveate.wire.streams import StreamError, StreamReader, UsageChunkFilter
from foveate.wire.usage import block_usage, reply_usage

__all__ = [
    "StreamError",
    "StreamReader",
    "UsageChunkFilter",
    "automatic_mark",
    "block_usage",
    "blocks",
    "message",
    "read",
    "recognise",
    "reply_usage",
    "tool",
    "unmarked",
    "write",
]


class Wire(Protocol):
    """What a format's file offers."""

    SHAPE: Shape

    def read(self, body: bytes, fields: Fields) -> Request:
        """The whole body."""

    def message(self, raw: bytes) -> Message:
        """One message."""

    def tool(self, raw: bytes) -> Tool:
        """One tool."""


FORMATS: dict[Format, Wire] = {
    Format.ANTHROPIC: anthropic,
    Format.CHAT: chat,
    Format.RESPONSES: responses,
    Format.GEMINI: gemini,
    Format.BEDROCK: bedrock,
}

_CHAT_FIELDS = frozenset(
    ("response_format", "max_completion_tokens", "functions", "logit_bias", "n", "reasoning_effort",
     "parallel_tool_calls", "stream_options", "frequency_penalty", "presence_penalty", "logprobs")
)  # fmt: skip
_ANTHROPIC_FIELDS = frozenset(
    ("system", "anthropic_version", "anthropic_beta", "mcp_servers", "output_config", "output_format",
     "context_management", "container")
)  # fmt: skip
_ANTHROPIC_BLOCKS = frozenset(("tool_use", "tool_result", "redacted_thinking", "image", "document"))
_MARK_NAMES = tuple(f'"{name}"'.encode() for name in MEMBERS)
_CHAT_ROLES = frozenset(("system", "developer", "tool", "function"))


def read(body: Mapping[str, Any] | str | bytes, spoken: Format | None = None) -> Request:
    """A request body as a `Request`; its format is recognised unless it is said.

    Raises:
        MalformedRequest: not JSON, not an object, or none of the known shapes.
    """
    data = to_bytes(body)
    found = fields(data)
    try:
        return FORMATS[spoken or recognise(found)].read(data, found)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def message(spoken: Format, raw: bytes) -> Message:
    """One message of a request, read.

    Raises:
        MalformedRequest: not UTF-8, or nested too deeply.
    """
    try:
        return FORMATS[spoken].message(raw)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def tool(spoken: Format, raw: bytes) -> Tool:
    """One tool of a request, read.

    Raises:
        MalformedRequest: not UTF-8, or nested too deeply.
    """
    try:
        return FORMATS[spoken].tool(raw)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def recognise(found: Fields) -> Format:
    """The format whose marks a body bears.

    Raises:
        MalformedRequest: it has no messages under any of the known names.
    """
    names = found.keys()
    if "contents" in names or "generateContentRequest" in names:
        return Format.GEMINI
    if "input" in names and "messages" not in names:
        return Format.RESPONSES
    if "messages" not in names:
        raise MalformedRequest(
            "no messages in the request: expected `messages` (Anthropic, OpenAI chat, Bedrock), "
            "`input` (OpenAI Responses) or `contents` (Gemini)"
        )
    if names & {"inferenceConfig", "toolConfig", "modelId", "additionalModelRequestFields"}:
        return Format.BEDROCK
    return _by_content(found)


def _by_content(found: Fields) -> Format:
    """Anthropic, chat and Bedrock all say `messages`: the surest sign that is there decides."""
    if _is_untyped(value(found.get("system"))):  # Converse names a block by its key, all others by a type
        return Format.BEDROCK
    if found.keys() & _ANTHROPIC_FIELDS:
        return Format.ANTHROPIC
    if found.keys() & _CHAT_FIELDS:
        return Format.CHAT
    for entry in map(record, items(found.get("tools"))):
        if "function" in entry:
            return Format.CHAT
        if "input_schema" in entry:
            return Format.ANTHROPIC
    for entry in map(record, items(found["messages"])):
        if as_text(entry.get("role")) in _CHAT_ROLES or "tool_calls" in entry:
            return Format.CHAT
        blocks = as_list(entry.get("content"))
        if _is_untyped(blocks):
            return Format.BEDROCK
        if any(as_text(block.get("type")) in _ANTHROPIC_BLOCKS for block in map(as_record, blocks)):
            return Format.ANTHROPIC
    return Format.ANTHROPIC if str(value(found.get("model"))).startswith("claude") else Format.CHAT


def _is_untyped(blocks: object) -> bool:
    return any(block and "type" not in block for block in map(as_record, as_list(blocks)))


def unmarked(raw: bytes) -> bytes:
    """A message without its cache marks, which move from turn to turn and are never counted."""
    if not any(name in raw for name in _MARK_NAMES):
        return raw
    try:
        return compact(without_marks(value(raw)))
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def blocks(request: Request) -> tuple[Block, ...]:
    """Every block of a request in the order its provider reads them: tools, system prompt, messages.

    Raises:
        MalformedRequest: a part of it cannot be read, or is nested too deeply.
    """
    try:
        return blocks_of(request, FORMATS[request.format].SHAPE)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def automatic_mark(request: Request) -> Ttl | None:
    """How long a client asks Anthropic to keep the whole request, by a mark on no block in particular."""
    return automatic_mark_of(request)


def write(request: Request, edits: Sequence[Edit], *, marks: MarkStyle | None = None) -> bytes:
    """The body of `request` with `edits` written into it; the very same bytes where there are none.

    Every place that an edit names is one of the request as it came. `marks` says how cache marks are written
    where a format knows several ways: in chat completions it is Anthropic's way unless said.

    Raises:
        BadEdit: an edit names what is not there, cannot be written in this format, or contradicts another.
        MalformedRequest: the request is nested too deeply.
    """
    try:
        return written(request, edits, FORMATS[request.format].SHAPE, marks)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None
