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
from foveate.values import Format, Usage
from foveate.wire.body import Fields, as_list, as_record, as_text, compact
from foveate.wire.events import Event, EventFinder, EventSplitter, ListSplitter, Piece, Splitter
from foveate.wire.frames import FrameSplitter
from foveate.wire.replies import fields, inner_fields, record, value
from foveate.wire.usage import block_usage, is_token_count, tokens, usage_in


@dataclass(frozen=True, slots=True)
class StreamError:
    """An error that came in the middle of a stream: the provider's word for it, and what it says."""

    kind: str
    message: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
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


_NOTHING = Seen()
# A stream has many small chunks, and reading two takes hardly longer than reading one.
_MOST_UNREAD_BYTES = 16 * 1024


class StreamReader:
    """Looks at the chunks of one reply, however they are cut; it can be asked at any time, best after `end`.

    They are read together once they are some, or somebody asks for what only they can tell. `is_framed`: its
    events come in the frames of AWS, whatever their format.
    """

    def __init__(self, spoken: Format, *, is_framed: bool = False) -> None:
        splits, self._matters, self._ends, self._look = _FORMATS[spoken]
        if is_framed:
            splits, self._matters, self._ends = _split_frames, _ANYTHING, ()
            self._look = partial(_in_frame, self._look)
        self._splitter = splits(self._matters)
        self._read = _NOTHING
        self._billed_numbers: Mapping[str, Any] = {}
        self._billed: Usage | None = None
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
            self._last_bytes = near[-_LONGEST_END_BYTES:]
            for end in self._ends:
                if end in near:
                    self._may_have_ended = True
        if self._unread_bytes > _MOST_UNREAD_BYTES:
            self._read_all()

    def end(self) -> None:
        """Takes note that no more bytes come: a last event may lack its empty line."""
        self._read_all()
        self._take(self._splitter.end())

    def _read_all(self) -> None:
        chunk = b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        self._take(self._splitter.feed(chunk))

    @property
    def _seen(self) -> Seen:
        if self._unread:
            self._read_all()
        return self._read

    def _take(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if self._may_have_ended or self._matters.search(piece.raw):
                self._see(piece.data)

    def _see(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._read = self._look(self._read, data)
        except MalformedRequest:  # what is not JSON tells nothing
            return

    @property
    def usage(self) -> Usage | None:
        """The bill, once it came."""
        numbers = self._seen.numbers
        if not numbers:
            return self._seen.usage
        if self._billed_numbers is not numbers:  # not for every event: there may be any number of them
            self._billed_numbers, self._billed = numbers, block_usage(Format.ANTHROPIC, compact(numbers))
        return self._billed

    @property
    def model(self) -> str:
        """The model that answers, by its own name."""
        return self._seen.model

    @property
    def id(self) -> str:
        """The provider's name for the reply."""
        return self._seen.id

    @property
    def stop_reason(self) -> str:
        """Why the model stopped, in the provider's word; nothing before it did."""
        return self._seen.stop_reason

    @property
    def error(self) -> StreamError | None:
        """The error that the provider sent in the stream."""
        return self._seen.error

    @property
    def is_complete(self) -> bool:
        """Whether the answer came to its end: it was not broken off, and did not fail."""
        return self._seen.is_complete and self._seen.error is None

    @property
    def has_ended(self) -> bool:
        """Whether the event has come with which a stream of its format ends; Gemini's have none."""
        return self._may_have_ended and self._seen.has_ended


class UsageChunkFilter:
    """A chat stream without the extra chunk of usage, for a client that did not ask for it.

    Every other byte passes as soon as its event is whole.
    """

    def __init__(self) -> None:
        self._splitter = EventSplitter()

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on by now."""
        if not self._splitter.is_open and chunk.endswith(b"\n\n") and not _USAGE.search(chunk):
            return chunk
        return _kept(self._splitter.feed(chunk))

    def end(self) -> bytes:
        """What is left when no more bytes come."""
        return _kept(self._splitter.end())


# Many hosts say in every chunk that there is none yet.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')


def _kept(events: Sequence[Event]) -> bytes:
    return b"".join(event.raw for event in events if not is_usage_chunk(event))


def is_usage_chunk(event: Event) -> bool:
    """Whether it is the event that `stream_options.include_usage` adds to a stream: usage, and no choice."""
    if not _USAGE.search(event.raw):
        return False
    try:
        chunk = fields(event.data)
        return value(chunk.get("choices")) == [] and bool(record(chunk.get("usage")))
    except MalformedRequest:
        return False


def _anthropic(seen: Seen, data: bytes) -> Seen:
    """message_start, then deltas, then message_delta and message_stop (platform.claude.com, November 2026)."""
    event = record(data)
    match event.get("type"):
        case "message_start":
            message = as_record(event.get("message"))
            named = replace(seen, id=as_text(message.get("id")), model=as_text(message.get("model")))
            return _billed(named, message.get("usage"))
        case "message_delta":
            stop = as_text(as_record(event.get("delta")).get("stop_reason"))
            return _billed(replace(seen, stop_reason=stop or seen.stop_reason), event.get("usage"))
        case "message_stop":
            return replace(seen, is_complete=True, has_ended=True)
        case "error":
            return replace(seen, error=_error(event.get("error")))
    return seen


def _billed(seen: Seen, usage: object) -> Seen:
    """With the numbers of one more event. They grow as the stream goes, so the later ones win.

    But some hosts say the input at the start and end with zeros: those unsay nothing. Where the later ones say
    another sum of what was written and not for how long, the earlier split of it goes.
    """
    later = {
        name: said
        for name, said in as_record(usage).items()
        if _tells(said) or name not in seen.numbers or _is_unreadable(name, said)
    }
    merged = {**seen.numbers, **{name: _as_json(said) for name, said in later.items()}}
    numbers = dict(islice(merged.items(), _MAX_NAMES))
    split = islice(as_record(seen.numbers.get(_SPLIT)).values(), _MAX_NAMES)
    if _WRITTEN in later and _SPLIT not in later and sum(map(tokens, split)) != tokens(later[_WRITTEN]):
        numbers.pop(_SPLIT, None)
    return replace(seen, numbers=numbers)


_WRITTEN, _SPLIT = "cache_creation_input_tokens", "cache_creation"
# Anthropic has about 15. With any number of them, each event would take longer than the one before.
_MAX_NAMES = 64


def _tells(said: object) -> bool:
    """Whether it is a number other than 0, or holds one."""
    if isinstance(said, dict):
        return any(map(tokens, said.values()))
    return bool(said) if isinstance(said, list) else tokens(said) > 0


def _is_unreadable(name: str, said: object) -> bool:
    """Whether it should be a number of tokens, and cannot be one: then an earlier one does not count either."""
    if isinstance(said, dict):
        return any(_is_unreadable(inner, part) for inner, part in said.items())
    return name.endswith(("_tokens", "_requests")) and said is not None and not is_token_count(said)


def _as_json(said: object) -> object:
    """Return a value that JSON has: for NaN and infinities, their names."""
    if isinstance(said, dict):
        return {name: _as_json(part) for name, part in said.items()}
    return repr(said) if isinstance(said, float) and not math.isfinite(said) else said


def _chat(seen: Seen, data: bytes) -> Seen:
    """Chunks of choices, the last ones with a finish_reason and usage, then [DONE]; hosts differ in it all."""
    if data == b"[DONE]":
        return replace(seen, is_complete=True, has_ended=True)
    chunk = fields(data)
    choices = bytes(chunk.get("choices", b""))
    if not (seen.id and seen.model):
        seen = replace(seen, id=seen.id or _text(chunk, "id"), model=seen.model or _text(chunk, "model"))
    if _FINISHED.search(choices):
        stops = [as_text(as_record(choice).get("finish_reason")) for choice in as_list(value(choices))]
        seen = replace(seen, stop_reason=next(filter(None, stops), seen.stop_reason), is_complete=True)
    if "error" in chunk:
        seen = replace(seen, error=_error(value(chunk["error"])) or seen.error)
    usage = chunk.get("usage")
    is_said = usage is not None and bytes(usage) != b"null"
    if is_said or "x_groq" in chunk or "timings" in chunk or b'"usage"' in choices:
        seen = replace(seen, usage=usage_in(Format.CHAT, chunk) or seen.usage)
    return seen


_FINISHED = re.compile(rb'"finish_reason"\s*:\s*"')


def _responses(seen: Seen, data: bytes) -> Seen:
    """response.created, then deltas, then the whole response once more, with how it ended."""
    event = fields(data)
    kind = _text(event, "type")
    if kind == "error":
        nested = value(event.get("error"))
        return replace(seen, error=_error(nested) or StreamError(_text(event, "code"), _text(event, "message")))
    status = kind.removeprefix("response.")
    if status not in _STATUSES:
        return seen
    response = inner_fields(event.get("response"))
    stop = as_text(record(response.get("incomplete_details")).get("reason"))
    return replace(
        seen,
        usage=usage_in(Format.RESPONSES, response) or seen.usage,
        model=_text(response, "model") or seen.model,
        id=_text(response, "id") or seen.id,
        stop_reason="" if status == "created" else stop or status,
        error=_error(value(response.get("error"))) or seen.error,
        is_complete=status in ("completed", "incomplete"),
        has_ended=status != "created",
    )


_STATUSES = frozenset(("created", "completed", "incomplete", "failed", "cancelled"))


def _gemini(seen: Seen, data: bytes) -> Seen:
    """Whole replies, each with a piece of the text and the usage so far; the last has a finishReason."""
    chunk = fields(data)
    stops = [as_text(record(chunk.get("promptFeedback")).get("blockReason"))]
    if b'"finishReason"' in bytes(chunk.get("candidates", b"")):
        stops += [as_text(as_record(one).get("finishReason")) for one in as_list(value(chunk["candidates"]))]
    stop = next(filter(None, stops), seen.stop_reason)
    return replace(
        seen,
        usage=usage_in(Format.GEMINI, chunk) or seen.usage,
        model=_text(chunk, "modelVersion") or seen.model,
        id=_text(chunk, "responseId") or seen.id,
        stop_reason=stop,
        error=_error(value(chunk.get("error"))) or seen.error,
        is_complete=bool(stop),
    )


class _GeminiSplitter:
    """Events where they were asked for, otherwise one long JSON list: its first byte tells."""

    def __init__(self, matters: re.Pattern[bytes]) -> None:
        self._matters = matters
        self._chosen: Splitter | None = None

    def feed(self, chunk: bytes) -> Sequence[Piece]:
        """The events or objects that end in `chunk`."""
        if self._chosen is None and chunk.strip():
            self._chosen = ListSplitter() if chunk.lstrip().startswith(b"[") else EventFinder(self._matters)
        return self._chosen.feed(chunk) if self._chosen else ()

    def end(self) -> Sequence[Piece]:
        """The last event, where it lacks its empty line."""
        return self._chosen.end() if self._chosen else ()


def _bedrock(seen: Seen, data: bytes) -> Seen:
    """messageStart, deltas, messageStop, metadata, or an exception. The model stands in the route."""
    name, said = next(iter(record(data).items()), ("", None))
    found = as_record(said)
    if name == "messageStop":
        return replace(seen, stop_reason=as_text(found.get("stopReason")), is_complete=True)
    if name == "metadata":
        usage = block_usage(Format.BEDROCK, compact(found.get("usage"))) or seen.usage
        return replace(seen, usage=usage, has_ended=True)
    if name.endswith("Exception"):
        return replace(seen, error=StreamError(name, as_text(found.get("message"))))
    return seen


def _in_frame(look: Callable[[Seen, bytes], Seen], seen: Seen, data: bytes) -> Seen:
    """What is seen in the event of a frame; an exception is one of AWS's, whatever the format."""
    name, said = next(iter(record(data).items()), ("", None))
    if name.endswith("Exception"):
        return replace(seen, error=StreamError(name, as_text(as_record(said).get("message"))))
    return look(seen, data)


def _error(said: object) -> StreamError | None:
    """An error as most providers write it; some only as a string."""
    if not said:
        return None
    found = as_record(said)
    kinds = (found.get("type"), found.get("status"), found.get("code"))
    return StreamError(
        next((str(kind) for kind in kinds if kind), ""), as_text(found.get("message")) or as_text(said)
    )


def _split_frames(_: re.Pattern[bytes]) -> Splitter:
    return FrameSplitter()


_ANYTHING = re.compile(rb"")


def _text(found: Fields, name: str) -> str:
    return as_text(value(found.get(name)))


# Per format: how it is cut, the bytes without which an event tells nothing (but that it is the last), those of
# which the last has some, and what is seen in one.
_FORMATS: dict[
    Format,
    tuple[
        Callable[[re.Pattern[bytes]], Splitter],
        re.Pattern[bytes],
        tuple[bytes, ...],
        Callable[[Seen, bytes], Seen],
    ],
] = {
    Format.ANTHROPIC: (
        EventFinder,
        re.compile(rb'"(?:message_(?:start|delta|stop)|error)"'),
        (b'"message_stop"',),
        _anthropic,
    ),
    Format.CHAT: (
        # Apart from the others, which begin all alike: so they are found in a third of the time.
        partial(EventFinder, last=b"[DONE]"),
        # The first chunk of an answer says its role, and by which model it is.
        re.compile(rb'"(?:role"|error"|x_groq"|timings"|finish_reason"\s*:\s*"|usage"\s*:\s*\{)'),
        (b"[DONE]",),
        _chat,
    ),
    Format.RESPONSES: (
        EventFinder,
        re.compile(rb'"(?:response\.(?:created|completed|incomplete|failed|cancelled)|error)"'),
        (b'completed"', b'incomplete"', b'failed"', b'cancelled"'),
        _responses,
    ),
    Format.GEMINI: (_GeminiSplitter, re.compile(rb"[{]"), (), _gemini),
    Format.BEDROCK: (
        _split_frames,
        re.compile(rb"messageStop|metadata|Exception"),
        (b"metadata",),
        _bedrock,
    ),
}
_LONGEST_END_BYTES = 32
