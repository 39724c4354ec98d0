"""Request bodies in, values out: one file a wire format. And edits back in, into the bytes that came.

`read` recognises the format and reads what every request needs; `message` and `tool` read one of its parts
when somebody looks at it, `blocks` gives all of it as a provider's cache sees it, `write` puts edits in.
What comes back: `reply_usage` and `block_usage` read a bill, a `StreamReader` looks at a reply as it streams.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from foveate.errors import MalformedRequest
from foveate.values import Block, Edit, Format, MarkStyle, Message, Request, Tool, Ttl
from foveate.wire import anthropic, bedrock, chat, gemini, responses
from foveate.wire.around import AROUNDS, Around
from foveate.wire.blocks import automatic_mark_of, blocks_of, front_of, link_blocks, message_blocks_of
from foveate.wire.body import (
    TOO_DEEP,
    Fields,
    as_text,
    compact,
    fields,
    inner_fields,
    items,
    to_bytes,
    value,
)
from foveate.wire.duplicate_keys import check_unique_keys
from foveate.wire.edits import written
from foveate.wire.grown import GROWN, MAX_BYTES, Read, is_huge
from foveate.wire.heads import Laid
from foveate.wire.large_json import contains
from foveate.wire.limits import RequestLimits
from foveate.wire.marks import MEMBERS, without_marks
from foveate.wire.shapes import Shape
from foveate.wire.streams import StreamError, StreamReader, UsageChunkFilter
from foveate.wire.trails import Alone, Link, Trail, trail_of
from foveate.wire.usage import block_usage, reply_usage

__all__ = [
    "Link",
    "RequestLimits",
    "StreamError",
    "StreamReader",
    "Trail",
    "UsageChunkFilter",
    "automatic_mark",
    "block_usage",
    "blocks",
    "blocks_at",
    "front_blocks",
    "known_bytes",
    "message",
    "message_blocks",
    "read",
    "recognise",
    "reply_usage",
    "tool",
    "trail",
    "unmarked",
    "write",
]


class Wire(Protocol):
    """What a format's file offers."""

    SHAPE: Shape

    def read(self, body: bytes, fields: Fields) -> Request:
        """The whole body."""

    def messages(self, fields: Fields) -> tuple[bytes, ...]:
        """The JSON of each message."""

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
_CONTROL, _BREAKPOINT = (f'"{name}"'.encode() for name in MEMBERS)
_LOOKED_AT = 8  # of the first messages and of the last: a long talk in plain strings bears no sign at all
_DEPTH_OF_MESSAGES = 2  # the request, and the list of messages
_CHAT_ROLES = frozenset(("system", "developer", "tool", "function"))


def read(
    body: Mapping[str, Any] | str | bytes,
    spoken: Format | None = None,
    *,
    limits: RequestLimits | None = None,
    model: str = "",
) -> Request:
    """A request body as a `Request`; its format is recognised unless it is said.

    `model` takes the place of the model in the body, for APIs that name it in the path.

    Raises:
        DuplicateKey: one of its objects has the same key twice.
        MalformedRequest: not JSON, not an object, or none of the known shapes.
        RequestLimitExceeded: it has more of something than `limits` allow.
    """
    data = to_bytes(body)

    def check_rest(start: int) -> None:
        if limits is not None:
            limits.check_rest(data, start, _DEPTH_OF_MESSAGES)

    grown = GROWN.read(spoken, data, check_rest) if spoken is not None else None
    if grown is None and limits is not None:
        limits.check(data)
    request = _read(data, spoken, grown, model)
    if limits is not None:
        limits.check_messages(len(request.messages))
        limits.check_tools(len(request.tools))
    if is_huge(data) if grown is None else len(data) > MAX_BYTES:
        return replace(request, trail=Alone.of(request.messages))
    if spoken is not None and grown is None and request.around is not None:
        GROWN.keep(request)
    return request


def _read(data: bytes, spoken: Format | None, grown: Read | None, model: str) -> Request:
    if grown is not None and spoken is not None:
        around = AROUNDS.of(spoken, _with_model(grown.fields, model))
        if around is not None and around.request is not None:
            return _with_messages(around.request, around, data, grown.messages, grown.laid)
    found: Fields = fields(data)
    check_unique_keys(data, found)
    spoken = spoken or recognise(found)
    found = _with_model(found, model)
    try:
        around = AROUNDS.of(spoken, found)
        if around is None:
            request = FORMATS[spoken].read(data, found)
            return replace(request, model=model) if model else request
        if around.request is not None:
            return _with_messages(around.request, around, data, FORMATS[spoken].messages(found))
        whole = FORMATS[spoken].read(data, found)
        around.request = replace(whole, body=b"", messages=())
        return _with_messages(around.request, around, data, whole.messages)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def _with_model(found: Fields, model: str) -> Fields:
    """The fields of a body as if it named `model`: all that is remembered of them is kept by model."""
    return {**found, "model": msgspec.Raw(compact(model))} if model else found


def known_bytes(data: bytes, spoken: Format) -> int:
    """How much of a body, from its beginning on, is that of one that was read before."""
    return GROWN.known_bytes(spoken, data)


def _with_messages(
    known: Request, around: Around, body: bytes, messages: tuple[bytes, ...], laid: Laid | None = None
) -> Request:
    """The same request with other messages; all fields by their names, at a third of what `replace` takes."""
    return Request(
        format=known.format,
        model=known.model,
        body=body,
        system=known.system,
        tools=known.tools,
        messages=messages,
        tool_choice=known.tool_choice,
        thinking=known.thinking,
        schema=known.schema,
        extras=known.extras,
        unexplained=known.unexplained,
        around=around,
        laid=laid,
    )


def trail(request: Request) -> Trail:
    """The messages of a request, each with what is known of it from requests that have said the same so far.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    return trail_of(request)


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
    system = map(inner_fields, items(found.get("system")))
    if any(map(_is_untyped, system)):
        return Format.BEDROCK
    if found.keys() & _ANTHROPIC_FIELDS:
        return Format.ANTHROPIC
    if found.keys() & _CHAT_FIELDS:
        return Format.CHAT
    for tool in map(inner_fields, items(found.get("tools"))):
        if "function" in tool:
            return Format.CHAT
        if "input_schema" in tool:
            return Format.ANTHROPIC
    messages = items(found["messages"])
    for message in map(inner_fields, (*messages[:_LOOKED_AT], *messages[_LOOKED_AT:][-_LOOKED_AT:])):
        if _text(message, "role") in _CHAT_ROLES or "tool_calls" in message:
            return Format.CHAT
        for block in map(inner_fields, items(message.get("content"))):
            if _is_untyped(block):
                return Format.BEDROCK
            if _text(block, "type") in _ANTHROPIC_BLOCKS:
                return Format.ANTHROPIC
    return Format.ANTHROPIC if _text(found, "model").startswith("claude") else Format.CHAT


def _is_untyped(block: Fields) -> bool:
    """Whether it is a block of Converse, which names it by its key, where all others say a type."""
    return bool(block) and "type" not in block


def _text(found: Fields, name: str) -> str:
    """A text among fields that are otherwise not read: what a tool is called with need not be readable."""
    raw = found.get(name)
    return as_text(value(raw)) if raw is not None and bytes(raw).startswith(b'"') else ""


def unmarked(raw: bytes) -> bytes:
    """A message without its cache marks, which move from turn to turn and are never counted."""
    if not contains(raw, _CONTROL) and not contains(raw, _BREAKPOINT):
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


def front_blocks(request: Request, trail: Trail) -> tuple[Block, ...]:
    """The blocks of all that stands before the messages of the request's trail.

    Raises:
        MalformedRequest: a part of it cannot be read, or is nested too deeply.
    """
    try:
        return front_of(request, FORMATS[request.format].SHAPE, trail)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def blocks_at(request: Request, trail: Trail, position: int) -> tuple[Block, ...]:
    """The blocks of the one message that stands at `position` of the request's trail.

    Raises:
        MalformedRequest: it cannot be read, or is nested too deeply.
    """
    try:
        return link_blocks(request, FORMATS[request.format].SHAPE, trail, position)
    except RecursionError:
        raise MalformedRequest(TOO_DEEP) from None


def message_blocks(spoken: Format, raw: bytes, index: int = 0) -> tuple[Block, ...]:
    """The blocks of one message alone, as if it stood at `index`.

    Raises:
        MalformedRequest: it cannot be read, or is nested too deeply.
    """
    try:
        return message_blocks_of(spoken, FORMATS[spoken].SHAPE, raw, index)
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
