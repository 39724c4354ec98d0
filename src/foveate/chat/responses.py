"""An answer as people read it: the words, thoughts and calls in it, out of a stream or a whole reply."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.formats.json_text.lenient import parse_object_leniently
from foveate.formats.json_text.parse import as_dict, as_list, as_text
from foveate.formats.response.event_streams import SseSplitter, StreamEvent
from foveate.model import Format


class FragmentKind(StrEnum):
    """What a piece of an answer is."""

    TEXT = "text"
    THINKING = "thought"
    TOOL_CALL = "call"


@dataclass(frozen=True, slots=True)
class ResponseFragment:
    """A piece of an answer: some of its words, some of its thoughts, or the name of a tool that it calls."""

    kind: FragmentKind
    text: str


class ResponseStream:
    """Reads an answer as it comes, however it is cut."""

    def __init__(self, api_format: Format) -> None:
        self._read_event = _EVENT_READERS[api_format]
        self._events = SseSplitter()
        self.reader = formats.StreamReader(api_format)
        """What it tells of itself: its bill, why it stopped, and what went wrong."""

    def feed(self, chunk: bytes) -> Iterator[ResponseFragment]:
        """What the next bytes of it say."""
        self.reader.feed(chunk)
        return self._read_events(self._events.feed(chunk))

    def end(self) -> Iterator[ResponseFragment]:
        """What is left when no more bytes come."""
        self.reader.end()
        return self._read_events(self._events.end())

    def _read_events(self, events: Sequence[StreamEvent]) -> Iterator[ResponseFragment]:
        for event in events:
            try:
                found = parse_object_leniently(event.data)
            except MalformedRequest:  # the last word of a chat, or a host's own
                continue
            yield from self._read_event(found)


def read_response(api_format: Format, body: bytes) -> list[ResponseFragment]:
    """What an answer says that did not stream; nothing where it cannot be read."""
    try:
        found = parse_object_leniently(body)
    except MalformedRequest:
        return []
    if api_format is Format.ANTHROPIC:
        return [fragment for block in as_list(found.get("content")) for fragment in _read_block(as_dict(block))]
    choices = as_list(found.get("choices"))
    return list(_read_delta(as_dict(as_dict(choices[0]).get("message")))) if choices else []


def _read_anthropic_event(event: dict[str, Any]) -> Iterator[ResponseFragment]:
    """An event of Anthropic's stream (platform.claude.com, November 2026)."""
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
    """A chunk of a chat; thoughts are called one thing or the other by different hosts (November 2026)."""
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
