"""Responses of a model: text, thinking and tool calls, from a stream or a complete body, and failures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from foveate import formats
from foveate.chat.requests import ModelTarget
from foveate.errors import MalformedRequest
from foveate.formats.json_text.lenient_parse import parse_object_leniently
from foveate.formats.json_text.parse import as_dict, as_list, as_text
from foveate.formats.response.event_streams import SseSplitter, StreamEvent
from foveate.formats.response.streaming import StreamError
from foveate.gateway.config import DEFAULT_KEY_VARIABLES
from foveate.model import Format

# Limit for messages of others, so that the advice after them stays visible.
_MAX_CHARS = 400
_RETRY_ADVICE = "your message is not in the conversation: send it again"


class FragmentKind(StrEnum):
    TEXT = "text"
    THINKING = "thought"
    TOOL_CALL = "call"


@dataclass(frozen=True, slots=True)
class ResponseFragment:
    kind: FragmentKind
    text: str


class ResponseStream:
    def __init__(self, api_format: Format) -> None:
        self._read_event = _EVENT_READERS[api_format]
        self._events = SseSplitter()
        self.reader = formats.StreamReader(api_format)
        """Usage, stop reason and errors of the response."""

    def feed(self, chunk: bytes) -> Iterator[ResponseFragment]:
        self.reader.feed(chunk)
        return self._read_events(self._events.feed(chunk))

    def end(self) -> Iterator[ResponseFragment]:
        self.reader.end()
        return self._read_events(self._events.end())

    def _read_events(self, events: Sequence[StreamEvent]) -> Iterator[ResponseFragment]:
        for event in events:
            try:
                data = parse_object_leniently(event.data)
            except MalformedRequest:  # `[DONE]`, or an extension
                continue
            yield from self._read_event(data)


def read_response(api_format: Format, body: bytes) -> list[ResponseFragment]:
    """Return the fragments of a response that did not stream; empty if it cannot be parsed."""
    try:
        data = parse_object_leniently(body)
    except MalformedRequest:
        return []
    if api_format is Format.ANTHROPIC:
        return [fragment for block in as_list(data.get("content")) for fragment in _read_block(as_dict(block))]
    choices = as_list(data.get("choices"))
    return list(_read_delta(as_dict(as_dict(choices[0]).get("message")))) if choices else []


def _read_anthropic_event(event: dict[str, Any]) -> Iterator[ResponseFragment]:
    """Parse an event of Anthropic's stream (platform.claude.com, November 2026)."""
    match event.get("type"):
        case "content_block_start":
            yield from _read_block(as_dict(event.get("content_block")))
        case "content_block_delta":
            delta = as_dict(event.get("delta"))
            yield from _yield_fragment(FragmentKind.TEXT, delta.get("text"))
            yield from _yield_fragment(FragmentKind.THINKING, delta.get("thinking"))


def _read_block(block: dict[str, Any]) -> Iterator[ResponseFragment]:
    match as_text(block.get("type")):
        case "text":
            yield from _yield_fragment(FragmentKind.TEXT, block.get("text"))
        case "thinking":
            yield from _yield_fragment(FragmentKind.THINKING, block.get("thinking"))
        case kind if kind.endswith("tool_use"):
            yield from _yield_fragment(FragmentKind.TOOL_CALL, block.get("name"))


def _read_chat_chunk(chunk: dict[str, Any]) -> Iterator[ResponseFragment]:
    """Parse a chunk of chat completions; hosts use different names for thinking (November 2026)."""
    choices = as_list(chunk.get("choices"))
    if choices:
        yield from _read_delta(as_dict(as_dict(choices[0]).get("delta")))


def _read_delta(delta: dict[str, Any]) -> Iterator[ResponseFragment]:
    yield from _yield_fragment(FragmentKind.THINKING, delta.get("reasoning_content") or delta.get("reasoning"))
    yield from _yield_fragment(FragmentKind.TEXT, delta.get("content"))
    yield from _yield_fragment(FragmentKind.TEXT, delta.get("refusal"))
    for call in as_list(delta.get("tool_calls")):
        yield from _yield_fragment(FragmentKind.TOOL_CALL, as_dict(as_dict(call).get("function")).get("name"))


def _yield_fragment(kind: FragmentKind, text: object) -> Iterator[ResponseFragment]:
    if isinstance(text, str) and text:
        yield ResponseFragment(kind, text)


_EVENT_READERS: dict[Format, Callable[[dict[str, Any]], Iterator[ResponseFragment]]] = {
    Format.ANTHROPIC: _read_anthropic_event,
    Format.CHAT: _read_chat_chunk,
}


class FailureKind(StrEnum):
    KEY = "key"
    CAP = "cap"
    WINDOW = "window"
    BUSY = "busy"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    BROKEN = "broken"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    kind: FailureKind
    text: str


def classify_failure(
    status: int, headers: dict[str, str], body: bytes, target: ModelTarget, *, has_history: bool
) -> Failure:
    """`has_history`: the conversation has earlier turns."""
    message = _read_error_message(body)
    server = f"{target.upstream.name} ({target.upstream.base_url})"
    match status:
        case 401 | 403:
            variable = DEFAULT_KEY_VARIABLES.get(target.upstream.name)
            key = (
                f"check {variable}" if variable else "check key_variable of this upstream in the configuration"
            )
            return _build_failure(FailureKind.KEY, f"{server} rejected the API key: {message}; {key}")
        case 402:
            return _build_failure(FailureKind.CAP, message)
        case 429 | 529 | 503:
            return _build_failure(
                FailureKind.BUSY,
                f"{server} is rate limited or overloaded: {message}; {_format_retry_delay(headers)}",
            )
        case 400 | 413 if _is_context_overflow(message):
            advice = "use :compact or :reset" if has_history else "send a shorter message"
            return _build_failure(
                FailureKind.WINDOW,
                f"{message}; {advice}, or use :model to switch to a model with a larger context window",
            )
        case 404:
            return _build_failure(FailureKind.REFUSED, f"{server}: {message}; :model switches to another model")
        case 502 | 504:
            return _build_failure(
                FailureKind.UNREACHABLE,
                f"{server}: {message}; try again, or switch to another model with :model",
            )
        case _ if status >= 500:
            return _build_failure(FailureKind.UNREACHABLE, f"{server} failed ({status}): {message}; try again")
        case _:
            return _build_failure(FailureKind.REFUSED, f"{server} rejected the request ({status}): {message}")


def describe_interruption(error: StreamError | None, *, has_content: bool) -> Failure:
    """Describe an answer that was cut off. `has_content`: a part of it arrived."""
    reason = _truncate(error.message or error.kind) if error is not None else "the connection was lost"
    consequence = "the part that arrived stays in the conversation" if has_content else _RETRY_ADVICE
    return _build_failure(FailureKind.BROKEN, f"the response was interrupted: {reason}; {consequence}")


def describe_internal_error(error: BaseException) -> Failure:
    return _build_failure(
        FailureKind.INTERNAL,
        f"internal error in Foveate ({_truncate(f'{type(error).__name__}: {error}')}); {_RETRY_ADVICE}",
    )


def describe_empty_response() -> Failure:
    return _build_failure(FailureKind.REFUSED, f"the response is empty; {_RETRY_ADVICE}")


def _build_failure(kind: FailureKind, text: str) -> Failure:
    return Failure(kind=kind, text=" ".join(text.split()))


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def _read_error_message(body: bytes) -> str:
    try:
        error = parse_object_leniently(body).get("error")
    except MalformedRequest:
        error = None
    message = as_text(as_dict(error).get("message")) or as_text(error)
    return _truncate((message or body.decode("utf-8", "replace").strip() or "no details").rstrip("."))


def _format_retry_delay(headers: dict[str, str]) -> str:
    seconds = headers.get("retry-after", "")
    return f"try again in {seconds} s" if seconds.isdecimal() else "try again in a moment"


def _is_context_overflow(message: str) -> bool:
    text = message.lower()
    return any(sign in text for sign in ("too long", "context length", "maximum size", "context size"))
