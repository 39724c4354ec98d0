"""Text, thinking and tool calls of a response, from a stream or a complete body."""

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
