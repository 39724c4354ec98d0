"""Read usage, model, stop reason and errors from a streamed response while it passes through unchanged.

For each format, a function takes the state so far and the data of one event, and returns the new state. Text
deltas, which are most of a stream, are recognized by a few bytes and not parsed.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from foveate.errors import MalformedRequest
from foveate.formats.json_text.lenient_parse import (
    parse_fields_leniently,
    parse_inner_fields_leniently,
    parse_json_leniently,
    parse_object_leniently,
)
from foveate.formats.json_text.parse import Fields, as_dict, as_list, as_text, to_json
from foveate.formats.response.event_streams import (
    AwsFrameSplitter,
    JsonListSplitter,
    ServerSentEvent,
    SseFinder,
    SseSplitter,
    StreamEvent,
    StreamSplitter,
)
from foveate.formats.response.usage import find_usage, is_token_count, parse_usage, tokens_or_zero
from foveate.model import Format, Usage


@dataclass(frozen=True, slots=True)
class StreamError:
    kind: str
    message: str


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """State of a stream so far.

    `is_complete`: the answer reached its end without being truncated or failing. `has_ended`: the stream says
    that it is over, however it ended.
    """

    usage: Usage | None = None
    model: str = ""
    id: str = ""
    stop_reason: str = ""
    error: StreamError | None = None
    is_complete: bool = False
    has_ended: bool = False
    numbers: Mapping[str, Any] = msgspec.field(
        default_factory=dict
    )  # Anthropic's usage, which comes in two events


_EMPTY_STATE = StreamState()
# Small chunks are parsed together, which is faster.
_MAX_UNREAD_BYTES = 16 * 1024


class StreamReader:
    """Reads the chunks of one response. Its properties are valid at any time, and final after `end`.

    Chunks are parsed in batches, or when a property is read. `is_framed`: events come in AWS frames, whatever
    their format.
    """

    def __init__(self, api_format: Format, *, is_framed: bool = False) -> None:
        make_splitter, self._relevant, self._end_markers, self._read_event = _STREAM_FORMATS[api_format]
        if is_framed:
            make_splitter, self._relevant, self._end_markers = _make_frame_splitter, _ANYTHING, ()
            self._read_event = partial(_read_framed_event, self._read_event)
        self._splitter = make_splitter(self._relevant)
        self._state = _EMPTY_STATE
        self._usage_numbers: Mapping[str, Any] = {}
        self._usage: Usage | None = None
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._last_bytes = b""
        self._may_have_ended = False

    def feed(self, chunk: bytes) -> None:
        self._unread.append(chunk)
        self._unread_bytes += len(chunk)
        if not self._may_have_ended:
            tail = self._last_bytes + chunk
            self._last_bytes = tail[-_MAX_END_MARKER_BYTES:]
            for end in self._end_markers:
                if end in tail:
                    self._may_have_ended = True
        if self._unread_bytes > _MAX_UNREAD_BYTES:
            self._read_all()

    def end(self) -> None:
        """Process the end of the stream; the last event may lack its blank line."""
        self._read_all()
        self._process_events(self._splitter.end())

    def _read_all(self) -> None:
        chunk = b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        self._process_events(self._splitter.feed(chunk))

    @property
    def _current_state(self) -> StreamState:
        if self._unread:
            self._read_all()
        return self._state

    def _process_events(self, pieces: Sequence[StreamEvent]) -> None:
        for piece in pieces:
            if self._may_have_ended or self._relevant.search(piece.raw):
                self._process_data(piece.data)

    def _process_data(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._state = self._read_event(self._state, data)
        except MalformedRequest:  # not JSON
            return

    @property
    def usage(self) -> Usage | None:
        numbers = self._current_state.numbers
        if not numbers:
            return self._current_state.usage
        if self._usage_numbers is not numbers:  # not for every event, because there may be many
            self._usage_numbers, self._usage = numbers, parse_usage(Format.ANTHROPIC, to_json(numbers))
        return self._usage

    @property
    def model(self) -> str:
        return self._current_state.model

    @property
    def id(self) -> str:
        return self._current_state.id

    @property
    def stop_reason(self) -> str:
        return self._current_state.stop_reason

    @property
    def error(self) -> StreamError | None:
        return self._current_state.error

    @property
    def is_complete(self) -> bool:
        return self._current_state.is_complete and self._current_state.error is None

    @property
    def has_ended(self) -> bool:
        """Return whether the final event of the format has arrived. Gemini has none."""
        return self._may_have_ended and self._current_state.has_ended


class UsageChunkFilter:
    """Removes the extra usage chunk from a chat stream, for a client that did not request it.

    All other bytes pass as soon as their event is complete.
    """

    def __init__(self) -> None:
        self._splitter = SseSplitter()

    def feed(self, chunk: bytes) -> bytes:
        if not self._splitter.is_open and chunk.endswith(b"\n\n") and not _USAGE.search(chunk):
            return chunk
        return _drop_usage_chunks(self._splitter.feed(chunk))

    def end(self) -> bytes:
        return _drop_usage_chunks(self._splitter.end())


# Many hosts send a null in every chunk.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')


def _drop_usage_chunks(events: Sequence[ServerSentEvent]) -> bytes:
    return b"".join(event.raw for event in events if not is_usage_chunk(event))


def is_usage_chunk(event: ServerSentEvent) -> bool:
    """Return whether an event is the one that `stream_options.include_usage` adds: usage without choices."""
    if not _USAGE.search(event.raw):
        return False
    try:
        chunk = parse_fields_leniently(event.data)
        return parse_json_leniently(chunk.get("choices")) == [] and bool(
            parse_object_leniently(chunk.get("usage"))
        )
    except MalformedRequest:
        return False


def _read_anthropic_event(state: StreamState, data: bytes) -> StreamState:
    """Read message_start, message_delta and message_stop (platform.claude.com, November 2026)."""
    event = parse_object_leniently(data)
    match event.get("type"):
        case "message_start":
            message = as_dict(event.get("message"))
            started = replace(state, id=as_text(message.get("id")), model=as_text(message.get("model")))
            return _merge_usage(started, message.get("usage"))
        case "message_delta":
            stop = as_text(as_dict(event.get("delta")).get("stop_reason"))
            return _merge_usage(replace(state, stop_reason=stop or state.stop_reason), event.get("usage"))
        case "message_stop":
            return replace(state, is_complete=True, has_ended=True)
        case "error":
            return replace(state, error=_parse_error(event.get("error")))
    return state


def _merge_usage(state: StreamState, usage: object) -> StreamState:
    """Merge the usage numbers of one more event. They grow during the stream, so later ones win.

    Some hosts send the input at the start and zeros at the end: zeros do not overwrite. If a later event has a
    different sum of written tokens without a split by TTL, the earlier split is dropped.
    """
    later = {
        name: value
        for name, value in as_dict(usage).items()
        if _has_tokens(value) or name not in state.numbers or _is_unreadable(name, value)
    }
    merged = {**state.numbers, **{name: _replace_nonfinite(value) for name, value in later.items()}}
    numbers = dict(islice(merged.items(), _MAX_USAGE_FIELDS))
    split = islice(as_dict(state.numbers.get(_WRITTEN_BY_TTL_FIELD)).values(), _MAX_USAGE_FIELDS)
    if (
        _WRITTEN_FIELD in later
        and _WRITTEN_BY_TTL_FIELD not in later
        and sum(map(tokens_or_zero, split)) != tokens_or_zero(later[_WRITTEN_FIELD])
    ):
        numbers.pop(_WRITTEN_BY_TTL_FIELD, None)
    return replace(state, numbers=numbers)


_WRITTEN_FIELD, _WRITTEN_BY_TTL_FIELD = "cache_creation_input_tokens", "cache_creation"
# Anthropic has about 15. Without a limit, each event could take longer than the one before.
_MAX_USAGE_FIELDS = 64


def _has_tokens(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(tokens_or_zero, value.values()))
    return bool(value) if isinstance(value, list) else tokens_or_zero(value) > 0


def _is_unreadable(name: str, value: object) -> bool:
    """Return whether a value should be a token count and cannot be one. It then replaces an earlier number."""
    if isinstance(value, dict):
        return any(_is_unreadable(inner, part) for inner, part in value.items())
    return name.endswith(("_tokens", "_requests")) and value is not None and not is_token_count(value)


def _replace_nonfinite(value: object) -> object:
    """Replace NaN and infinities by their names, because JSON does not have them."""
    if isinstance(value, dict):
        return {name: _replace_nonfinite(part) for name, part in value.items()}
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read_chat_event(state: StreamState, data: bytes) -> StreamState:
    """Read a chunk of choices. The last ones have a finish_reason and usage, before [DONE]; hosts differ."""
    if data == b"[DONE]":
        return replace(state, is_complete=True, has_ended=True)
    chunk = parse_fields_leniently(data)
    choices = bytes(chunk.get("choices", b""))
    if not (state.id and state.model):
        state = replace(
            state, id=state.id or _read_text(chunk, "id"), model=state.model or _read_text(chunk, "model")
        )
    if _FINISH_REASON.search(choices):
        stops = [
            as_text(as_dict(choice).get("finish_reason")) for choice in as_list(parse_json_leniently(choices))
        ]
        state = replace(state, stop_reason=next(filter(None, stops), state.stop_reason), is_complete=True)
    if "error" in chunk:
        state = replace(state, error=_parse_error(parse_json_leniently(chunk["error"])) or state.error)
    usage = chunk.get("usage")
    has_usage = usage is not None and bytes(usage) != b"null"
    if has_usage or "x_groq" in chunk or "timings" in chunk or b'"usage"' in choices:
        state = replace(state, usage=find_usage(Format.CHAT, chunk) or state.usage)
    return state


_FINISH_REASON = re.compile(rb'"finish_reason"\s*:\s*"')


def _read_responses_event(state: StreamState, data: bytes) -> StreamState:
    """Read response.created and the final event, which contains the whole response."""
    event = parse_fields_leniently(data)
    kind = _read_text(event, "type")
    if kind == "error":
        nested = parse_json_leniently(event.get("error"))
        return replace(
            state,
            error=_parse_error(nested) or StreamError(_read_text(event, "code"), _read_text(event, "message")),
        )
    status = kind.removeprefix("response.")
    if status not in _STATUSES:
        return state
    response = parse_inner_fields_leniently(event.get("response"))
    stop = as_text(parse_object_leniently(response.get("incomplete_details")).get("reason"))
    return replace(
        state,
        usage=find_usage(Format.RESPONSES, response) or state.usage,
        model=_read_text(response, "model") or state.model,
        id=_read_text(response, "id") or state.id,
        stop_reason="" if status == "created" else stop or status,
        error=_parse_error(parse_json_leniently(response.get("error"))) or state.error,
        is_complete=status in ("completed", "incomplete"),
        has_ended=status != "created",
    )


_STATUSES = frozenset(("created", "completed", "incomplete", "failed", "cancelled"))


def _read_gemini_event(state: StreamState, data: bytes) -> StreamState:
    """Read a partial response with the usage so far. The last one has a finishReason."""
    chunk = parse_fields_leniently(data)
    stops = [as_text(parse_object_leniently(chunk.get("promptFeedback")).get("blockReason"))]
    if b'"finishReason"' in bytes(chunk.get("candidates", b"")):
        stops += [
            as_text(as_dict(candidate).get("finishReason"))
            for candidate in as_list(parse_json_leniently(chunk["candidates"]))
        ]
    stop = next(filter(None, stops), state.stop_reason)
    return replace(
        state,
        usage=find_usage(Format.GEMINI, chunk) or state.usage,
        model=_read_text(chunk, "modelVersion") or state.model,
        id=_read_text(chunk, "responseId") or state.id,
        stop_reason=stop,
        error=_parse_error(parse_json_leniently(chunk.get("error"))) or state.error,
        is_complete=bool(stop),
    )


class _GeminiSplitter:
    """Splits server-sent events or one JSON list, depending on the first byte."""

    def __init__(self, relevant: re.Pattern[bytes]) -> None:
        self._relevant = relevant
        self._splitter: StreamSplitter | None = None

    def feed(self, chunk: bytes) -> Sequence[StreamEvent]:
        if self._splitter is None and chunk.strip():
            self._splitter = (
                JsonListSplitter() if chunk.lstrip().startswith(b"[") else SseFinder(self._relevant)
            )
        return self._splitter.feed(chunk) if self._splitter else ()

    def end(self) -> Sequence[StreamEvent]:
        return self._splitter.end() if self._splitter else ()


def _read_bedrock_event(state: StreamState, data: bytes) -> StreamState:
    """Read messageStop, metadata, or an exception. The model is in the URL."""
    name, payload = next(iter(parse_fields_leniently(data).items()), ("", None))
    if name == "messageStop":
        stop = as_text(parse_object_leniently(payload).get("stopReason"))
        return replace(state, stop_reason=stop, is_complete=True)
    if name == "metadata":
        usage = find_usage(Format.BEDROCK, parse_inner_fields_leniently(payload)) or state.usage
        return replace(state, usage=usage, has_ended=True)
    if name.endswith("Exception"):
        message = as_text(parse_object_leniently(payload).get("message"))
        return replace(state, error=StreamError(name, message))
    return state


def _read_framed_event(
    read_event: Callable[[StreamState, bytes], StreamState], state: StreamState, data: bytes
) -> StreamState:
    """Read the event in an AWS frame. Exceptions are those of AWS, whatever the format."""
    name, payload = next(iter(parse_object_leniently(data).items()), ("", None))
    if name.endswith("Exception"):
        return replace(state, error=StreamError(name, as_text(as_dict(payload).get("message"))))
    return read_event(state, data)


def _parse_error(value: object) -> StreamError | None:
    """Parse an error object; some providers send only a string."""
    if not value:
        return None
    fields = as_dict(value)
    kinds = (fields.get("type"), fields.get("status"), fields.get("code"))
    return StreamError(
        next((str(kind) for kind in kinds if kind), ""), as_text(fields.get("message")) or as_text(value)
    )


def _make_frame_splitter(_: re.Pattern[bytes]) -> StreamSplitter:
    return AwsFrameSplitter()


_ANYTHING = re.compile(rb"")


def _read_text(fields: Fields, name: str) -> str:
    return as_text(parse_json_leniently(fields.get(name)))


# By format: the splitter, a pattern for relevant events, bytes that mark the last event, and the function that
# reads an event.
_STREAM_FORMATS: dict[
    Format,
    tuple[
        Callable[[re.Pattern[bytes]], StreamSplitter],
        re.Pattern[bytes],
        tuple[bytes, ...],
        Callable[[StreamState, bytes], StreamState],
    ],
] = {
    Format.ANTHROPIC: (
        SseFinder,
        re.compile(rb'"(?:message_(?:start|delta|stop)|error)"'),
        (b'"message_stop"',),
        _read_anthropic_event,
    ),
    Format.CHAT: (
        # Searched separately from the pattern, whose alternatives start alike: a third of the time.
        partial(SseFinder, last=b"[DONE]"),
        # The first chunk contains the role and the model.
        re.compile(rb'"(?:role"|error"|x_groq"|timings"|finish_reason"\s*:\s*"|usage"\s*:\s*\{)'),
        (b"[DONE]",),
        _read_chat_event,
    ),
    Format.RESPONSES: (
        SseFinder,
        re.compile(rb'"(?:response\.(?:created|completed|incomplete|failed|cancelled)|error)"'),
        (b'completed"', b'incomplete"', b'failed"', b'cancelled"'),
        _read_responses_event,
    ),
    Format.GEMINI: (_GeminiSplitter, re.compile(rb"[{]"), (), _read_gemini_event),
    Format.BEDROCK: (
        _make_frame_splitter,
        re.compile(rb"messageStop|metadata|Exception"),
        (b"metadata",),
        _read_bedrock_event,
    ),
}
_MAX_END_MARKER_BYTES = 32
