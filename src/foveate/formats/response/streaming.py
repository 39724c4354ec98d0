"""What a streamed reply tells, read from its events as they pass; nothing is changed or held back.

Each format is a function that takes what was seen so far and one event's data, and answers with what is seen
now. Deltas of text, which are nearly all of a stream, are told by a few bytes and not parsed further.
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
from foveate.formats.json_text.lenient import (
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
    """An error that came in the middle of a stream: the provider's word for it, and what it says."""

    kind: str
    message: str


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream told so far.

    `stop_reason` is the provider's own word. `is_complete` says that the answer came to its end: it was not
    broken off, and did not fail. `has_ended` says that it is over by its own account, however it ended.
    """

    usage: Usage | None = None
    model: str = ""
    id: str = ""
    stop_reason: str = ""
    error: StreamError | None = None
    is_complete: bool = False
    has_ended: bool = False
    numbers: Mapping[str, Any] = msgspec.field(default_factory=dict)  # of Anthropic, which come in two events


_EMPTY_STATE = StreamState()
# A stream has many small chunks, and reading two takes hardly longer than reading one.
_MAX_UNREAD_BYTES = 16 * 1024


class StreamReader:
    """Looks at the chunks of one reply, however they are cut; it can be asked at any time, best after `end`.

    They are read together once they are some, or somebody asks for what only they can tell. `is_framed`: its
    events come in the frames of AWS, whatever their format.
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
        """Takes the next bytes of the reply."""
        self._unread.append(chunk)
        self._unread_bytes += len(chunk)
        if not self._may_have_ended:
            near = self._last_bytes + chunk
            self._last_bytes = near[-_MAX_END_MARKER_BYTES:]
            for end in self._end_markers:
                if end in near:
                    self._may_have_ended = True
        if self._unread_bytes > _MAX_UNREAD_BYTES:
            self._read_all()

    def end(self) -> None:
        """Takes note that no more bytes come: a last event may lack its empty line."""
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
        except MalformedRequest:  # what is not JSON tells nothing
            return

    @property
    def usage(self) -> Usage | None:
        """The bill, once it came."""
        numbers = self._current_state.numbers
        if not numbers:
            return self._current_state.usage
        if self._usage_numbers is not numbers:  # not for every event: there may be any number of them
            self._usage_numbers, self._usage = numbers, parse_usage(Format.ANTHROPIC, to_json(numbers))
        return self._usage

    @property
    def model(self) -> str:
        """The model that answers, by its own name."""
        return self._current_state.model

    @property
    def id(self) -> str:
        """The provider's name for the reply."""
        return self._current_state.id

    @property
    def stop_reason(self) -> str:
        """Why the model stopped, in the provider's word; nothing before it did."""
        return self._current_state.stop_reason

    @property
    def error(self) -> StreamError | None:
        """The error that the provider sent in the stream."""
        return self._current_state.error

    @property
    def is_complete(self) -> bool:
        """Whether the answer came to its end: it was not broken off, and did not fail."""
        return self._current_state.is_complete and self._current_state.error is None

    @property
    def has_ended(self) -> bool:
        """Whether the event has come with which a stream of its format ends; Gemini's have none."""
        return self._may_have_ended and self._current_state.has_ended


class UsageChunkFilter:
    """A chat stream without the extra chunk of usage, for a client that did not ask for it.

    Every other byte passes as soon as its event is whole.
    """

    def __init__(self) -> None:
        self._splitter = SseSplitter()

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on by now."""
        if not self._splitter.is_open and chunk.endswith(b"\n\n") and not _USAGE.search(chunk):
            return chunk
        return _drop_usage_chunks(self._splitter.feed(chunk))

    def end(self) -> bytes:
        """What is left when no more bytes come."""
        return _drop_usage_chunks(self._splitter.end())


# Many hosts say in every chunk that there is none yet.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')


def _drop_usage_chunks(events: Sequence[ServerSentEvent]) -> bytes:
    return b"".join(event.raw for event in events if not is_usage_chunk(event))


def is_usage_chunk(event: ServerSentEvent) -> bool:
    """Whether it is the event that `stream_options.include_usage` adds to a stream: usage, and no choice."""
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
    """message_start, then deltas, then message_delta and message_stop (platform.claude.com, November 2026)."""
    event = parse_object_leniently(data)
    match event.get("type"):
        case "message_start":
            message = as_dict(event.get("message"))
            named = replace(state, id=as_text(message.get("id")), model=as_text(message.get("model")))
            return _merge_usage(named, message.get("usage"))
        case "message_delta":
            stop = as_text(as_dict(event.get("delta")).get("stop_reason"))
            return _merge_usage(replace(state, stop_reason=stop or state.stop_reason), event.get("usage"))
        case "message_stop":
            return replace(state, is_complete=True, has_ended=True)
        case "error":
            return replace(state, error=_parse_error(event.get("error")))
    return state


def _merge_usage(state: StreamState, usage: object) -> StreamState:
    """With the numbers of one more event. They grow as the stream goes, so the later ones win.

    But some hosts say the input at the start and end with zeros: those unsay nothing. Where the later ones say
    another sum of what was written and not for how long, the earlier split of it goes.
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
# Anthropic has about 15. With any number of them, each event would take longer than the one before.
_MAX_USAGE_FIELDS = 64


def _has_tokens(value: object) -> bool:
    """Whether it is a number other than 0, or holds one."""
    if isinstance(value, dict):
        return any(map(tokens_or_zero, value.values()))
    return bool(value) if isinstance(value, list) else tokens_or_zero(value) > 0


def _is_unreadable(name: str, value: object) -> bool:
    """Whether it should be a number of tokens, and cannot be one: then an earlier one does not count either."""
    if isinstance(value, dict):
        return any(_is_unreadable(inner, part) for inner, part in value.items())
    return name.endswith(("_tokens", "_requests")) and value is not None and not is_token_count(value)


def _replace_nonfinite(value: object) -> object:
    """Return a value that JSON has: for NaN and infinities, their names."""
    if isinstance(value, dict):
        return {name: _replace_nonfinite(part) for name, part in value.items()}
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read_chat_event(state: StreamState, data: bytes) -> StreamState:
    """Chunks of choices, the last ones with a finish_reason and usage, then [DONE]; hosts differ in it all."""
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
    """response.created, then deltas, then the whole response once more, with how it ended."""
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
    """Whole replies, each with a piece of the text and the usage so far; the last has a finishReason."""
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
    """Events where they were asked for, otherwise one long JSON list: its first byte tells."""

    def __init__(self, relevant: re.Pattern[bytes]) -> None:
        self._relevant = relevant
        self._splitter: StreamSplitter | None = None

    def feed(self, chunk: bytes) -> Sequence[StreamEvent]:
        """The events or objects that end in `chunk`."""
        if self._splitter is None and chunk.strip():
            self._splitter = (
                JsonListSplitter() if chunk.lstrip().startswith(b"[") else SseFinder(self._relevant)
            )
        return self._splitter.feed(chunk) if self._splitter else ()

    def end(self) -> Sequence[StreamEvent]:
        """The last event, where it lacks its empty line."""
        return self._splitter.end() if self._splitter else ()


def _read_bedrock_event(state: StreamState, data: bytes) -> StreamState:
    """messageStart, deltas, messageStop, metadata, or an exception. The model stands in the route."""
    name, payload = next(iter(parse_object_leniently(data).items()), ("", None))
    found = as_dict(payload)
    if name == "messageStop":
        return replace(state, stop_reason=as_text(found.get("stopReason")), is_complete=True)
    if name == "metadata":
        usage = parse_usage(Format.BEDROCK, to_json(found.get("usage"))) or state.usage
        return replace(state, usage=usage, has_ended=True)
    if name.endswith("Exception"):
        return replace(state, error=StreamError(name, as_text(found.get("message"))))
    return state


def _read_framed_event(
    read_event: Callable[[StreamState, bytes], StreamState], state: StreamState, data: bytes
) -> StreamState:
    """What is seen in the event of a frame; an exception is one of AWS's, whatever the format."""
    name, payload = next(iter(parse_object_leniently(data).items()), ("", None))
    if name.endswith("Exception"):
        return replace(state, error=StreamError(name, as_text(as_dict(payload).get("message"))))
    return read_event(state, data)


def _parse_error(value: object) -> StreamError | None:
    """An error as most providers write it; some only as a string."""
    if not value:
        return None
    found = as_dict(value)
    kinds = (found.get("type"), found.get("status"), found.get("code"))
    return StreamError(
        next((str(kind) for kind in kinds if kind), ""), as_text(found.get("message")) or as_text(value)
    )


def _make_frame_splitter(_: re.Pattern[bytes]) -> StreamSplitter:
    return AwsFrameSplitter()


_ANYTHING = re.compile(rb"")


def _read_text(found: Fields, name: str) -> str:
    return as_text(parse_json_leniently(found.get(name)))


# Per format: how it is cut, the bytes without which an event tells nothing (but that it is the last), those of
# which the last has some, and what is seen in one.
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
        # Apart from the others, which begin all alike: so they are found in a third of the time.
        partial(SseFinder, last=b"[DONE]"),
        # The first chunk of an answer says its role, and by which model it is.
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
