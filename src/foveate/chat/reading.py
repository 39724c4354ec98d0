"""An answer as people read it: the words, thoughts and calls in it, out of a stream or a whole reply."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from foveate import wire
from foveate.errors import MalformedRequest
from foveate.values import Format
from foveate.wire.body import as_list, as_record, as_text
from foveate.wire.events import EventSplitter, Piece
from foveate.wire.replies import record


class Kind(StrEnum):
    """What a piece of an answer is."""

    TEXT = "text"
    THOUGHT = "thought"
    CALL = "call"


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of an answer: some of its words, some of its thoughts, or the name of a tool that it calls."""

    kind: Kind
    text: str


class StreamedAnswer:
    """Reads an answer as it comes, however it is cut."""

    def __init__(self, spoken: Format) -> None:
        self._look = _STREAMED[spoken]
        self._events = EventSplitter()
        self.told = wire.StreamReader(spoken)
        """What it tells of itself: its bill, why it stopped, and what went wrong."""

    def feed(self, chunk: bytes) -> Iterator[Said]:
        """What the next bytes of it say."""
        self.told.feed(chunk)
        return self._said(self._events.feed(chunk))

    def end(self) -> Iterator[Said]:
        """What is left when no more bytes come."""
        self.told.end()
        return self._said(self._events.end())

    def _said(self, events: Sequence[Piece]) -> Iterator[Said]:
        for event in events:
            try:
                found = record(event.data)
            except MalformedRequest:  # the last word of a chat, or a host's own
                continue
            yield from self._look(found)


def whole_answer(spoken: Format, body: bytes) -> list[Said]:
    """What an answer says that did not stream; nothing where it cannot be read."""
    try:
        found = record(body)
    except MalformedRequest:
        return []
    if spoken is Format.ANTHROPIC:
        return [said for block in as_list(found.get("content")) for said in _block(as_record(block))]
    choices = as_list(found.get("choices"))
    return list(_delta(as_record(as_record(choices[0]).get("message")))) if choices else []


def _anthropic(event: dict[str, Any]) -> Iterator[Said]:
    """An event of Anthropic's stream (platform.claude.com, November 2026)."""
    match event.get("type"):
        case "content_block_start":
            yield from _block(as_record(event.get("content_block")))
        case "content_block_delta":
            delta = as_record(event.get("delta"))
            yield from _told(Kind.TEXT, delta.get("text"))
            yield from _told(Kind.THOUGHT, delta.get("thinking"))


def _block(block: dict[str, Any]) -> Iterator[Said]:
    match as_text(block.get("type")):
        case "text":
            yield from _told(Kind.TEXT, block.get("text"))
        case "thinking":
            yield from _told(Kind.THOUGHT, block.get("thinking"))
        case kind if kind.endswith("tool_use"):
            yield from _told(Kind.CALL, block.get("name"))


def _chat(chunk: dict[str, Any]) -> Iterator[Said]:
    """A chunk of a chat; thoughts are called one thing or the other by different hosts (November 2026)."""
    choices = as_list(chunk.get("choices"))
    if choices:
        yield from _delta(as_record(as_record(choices[0]).get("delta")))


def _delta(delta: dict[str, Any]) -> Iterator[Said]:
    yield from _told(Kind.THOUGHT, delta.get("reasoning_content") or delta.get("reasoning"))
    yield from _told(Kind.TEXT, delta.get("content"))
    yield from _told(Kind.TEXT, delta.get("refusal"))
    for call in as_list(delta.get("tool_calls")):
        yield from _told(Kind.CALL, as_record(as_record(call).get("function")).get("name"))


def _told(kind: Kind, text: object) -> Iterator[Said]:
    if isinstance(text, str) and text:
        yield Said(kind, text)


_STREAMED: dict[Format, Callable[[dict[str, Any]], Iterator[Said]]] = {
    Format.ANTHROPIC: _anthropic,
    Format.CHAT: _chat,
}
