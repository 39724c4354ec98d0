"""Content of a model's answer: the parts that identify it when a client sends it back, and its texts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from foveate.errors import MalformedRequest
from foveate.formats.json_text.lenient_parse import parse_object_leniently
from foveate.formats.json_text.parse import (
    as_dict,
    as_list,
    as_text,
    parse_fields,
    parse_json,
    parse_object,
    read_role,
)
from foveate.formats.response.event_streams import (
    AwsFrameSplitter,
    JsonListSplitter,
    SseSplitter,
    StreamSplitter,
)
from foveate.model import Format

MAX_TEXT_CHARS = 300
"""Compared start of an answer's text, without whitespace, because some clients trim it."""
# A text may have millions of words; only the first are needed.
_SLICE_CHARS = 4 * MAX_TEXT_CHARS
_MAX_TOOL_CALLS = 16
_MAX_SIGNATURE_CHARS = 64
_MODEL_ROLES = frozenset(("assistant", "model"))
# Items of the Responses API that a model writes and that have no role.
_MODEL_ITEMS = (
    *("function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call"),
    "reasoning",
)


# Bytes in the events with tool calls, and in those with text and ids. Other events are skipped, because a long
# answer has thousands.
_TOOL_CALL_MARKERS: dict[Format, tuple[bytes, ...]] = {
    Format.ANTHROPIC: (b"content_block_start",),
    Format.CHAT: (b'"tool_calls"',),
    Format.RESPONSES: (b"output_item",),
    Format.GEMINI: (b'"functionCall"', b'"thoughtSignature"'),
}
_TEXT_MARKERS: dict[Format, tuple[bytes, ...]] = {
    Format.ANTHROPIC: (b"text_delta", b"message_start"),
    # It is null in reasoning events.
    Format.CHAT: (b'"content":"', b'"content": "', b'"content":[', b'"content": ['),
    Format.RESPONSES: (b"output_text.delta", b"response.created"),
    Format.GEMINI: (b'"candidates"',),
}
_DECODER = msgspec.json.Decoder()
# Small chunks are parsed together, which is faster.
_BATCH_BYTES = 4 * 1024
# Larger events are skipped, because decoding would block the event loop.
_MAX_EVENT_BYTES = 1024 * 1024


class AnswerParts(msgspec.Struct, frozen=True, kw_only=True):
    """The id of an answer, the ids of its tool calls, and the start of its text without whitespace."""

    id: str = ""
    tool_calls: tuple[str, ...] = ()
    text: str = ""


def read_answer_parts(api_format: Format, body: bytes) -> AnswerParts:
    collect = _COLLECTORS.get(api_format)
    if collect is None:
        return AnswerParts()
    parts = _PartCollector()
    try:
        collect(parts, parse_object_leniently(body))
    except MalformedRequest:
        return AnswerParts()
    return parts.parts()


def read_message_parts(api_format: Format, messages: Sequence[bytes]) -> AnswerParts:
    parts = _PartCollector()
    for raw in messages:
        message = parse_object(raw)
        parts.add_content(message.get("content"))
        parts.add_content(message.get("parts"))
        for call in as_list(message.get("tool_calls")):
            parts.add_tool_call(as_dict(call).get("id"))
        if api_format is Format.RESPONSES:
            parts.add_tool_call(message.get("call_id"))
    return parts.parts()


def is_from_model(raw: bytes) -> bool:
    """Return whether a model wrote this message of a request.

    Raises:
        MalformedRequest: it cannot be parsed.
    """
    role = read_role(raw)
    return role in _MODEL_ROLES if role else parse_json(parse_fields(raw).get("type")) in _MODEL_ITEMS


class _PartCollector:
    def __init__(self) -> None:
        self._id = ""
        self._tool_calls: list[str] = []
        self._texts: list[str] = []
        self._chars = 0

    @property
    def has_tool_call(self) -> bool:
        return bool(self._tool_calls)

    @property
    def has_all_text(self) -> bool:
        """Return whether more text would be ignored."""
        return self._chars >= MAX_TEXT_CHARS

    def add_id(self, value: object) -> None:
        self._id = self._id or as_text(value)

    def add_tool_call(self, value: object) -> None:
        if isinstance(value, str) and value and len(self._tool_calls) < _MAX_TOOL_CALLS:
            self._tool_calls.append(value)

    def add_text(self, value: object) -> None:
        if not isinstance(value, str):
            return
        start = 0
        while start < len(value) and self._chars < MAX_TEXT_CHARS:
            text = "".join(value[start : start + _SLICE_CHARS].split())
            self._texts.append(text)
            self._chars += len(text)
            start += _SLICE_CHARS

    def add_content(self, content: object) -> None:
        self.add_text(content)
        for entry in as_list(content):
            block = as_dict(entry)
            if block.get("type") in ("text", "output_text"):
                self.add_text(block.get("text"))
            elif block.get("type") == "tool_use":
                self.add_tool_call(block.get("id"))
            elif "type" not in block:
                self._add_untyped(block)

    def _add_untyped(self, block: dict[str, Any]) -> None:
        """Add a block of Bedrock or a part of Gemini.

        Older Gemini models give tool calls a signature instead of an id. Clients send it back too.
        """
        if block.get("thought") is not True:
            self.add_text(block.get("text"))
        self.add_tool_call(as_dict(block.get("toolUse")).get("toolUseId"))
        if "functionCall" in block:
            signature = filter(str.isalnum, as_text(block.get("thoughtSignature")))
            id_ = as_text(as_dict(block["functionCall"]).get("id"))
            self.add_tool_call(id_ or "".join(signature)[:_MAX_SIGNATURE_CHARS])

    def parts(self) -> AnswerParts:
        calls = tuple(dict.fromkeys(self._tool_calls))
        return AnswerParts(id=self._id, tool_calls=calls, text="".join(self._texts)[:MAX_TEXT_CHARS])


class StreamPartCollector:
    """Collects the parts of an answer while it streams, but only the first tool call.

    Thinking of any length may precede the text, so only the parts of an event are kept. Gemini also streams a
    JSON list, and AWS binary frames, which start with their length.
    """

    def __init__(self, api_format: Format) -> None:
        self._collect = _COLLECTORS.get(api_format)
        self._tool_call_markers = _TOOL_CALL_MARKERS.get(api_format, ())
        self._markers = _TEXT_MARKERS.get(api_format, ()) + self._tool_call_markers
        self._parts = _PartCollector()
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._has_begun = False
        self._splitter: StreamSplitter | None = None
        self._open_line = b""

    def feed(self, chunk: bytes) -> None:
        if self._collect is None:
            return
        self._unread.append(chunk)
        self._unread_bytes += len(chunk)
        if self._unread_bytes > _BATCH_BYTES:
            self._read()

    def end(self) -> AnswerParts:
        self._unread.append(b"\n")
        self._read()
        return self._parts.parts()

    def _read(self) -> None:
        chunk = b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        if not self._has_begun:
            self._has_begun = True
            self._splitter = _choose_splitter(chunk)
        if self._splitter is None:
            events: Iterable[bytes] = self._data_lines(chunk)
        else:
            events = (piece.data for piece in self._splitter.feed(chunk))
        for data in events:
            if self._collect is None:
                return
            if len(data) > _MAX_EVENT_BYTES:
                continue
            try:
                self._collect(self._parts, as_dict(_DECODER.decode(data)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if self._parts.has_tool_call:  # nothing more is needed
                self._collect = None

    def _data_lines(self, chunk: bytes) -> Iterator[bytes]:
        lines, newline, self._open_line = (self._open_line + chunk).rpartition(b"\n")
        if len(self._open_line) > _MAX_EVENT_BYTES:
            self._open_line = b""
        if not newline:
            return
        if self._parts.has_all_text and not _has_any(self._tool_call_markers, lines):
            return
        for line in lines.split(b"\n"):
            if line.startswith(b"data:"):
                markers = self._tool_call_markers if self._parts.has_all_text else self._markers
                if _has_any(markers, line):
                    yield line[5:]


def _choose_splitter(start: bytes) -> StreamSplitter | None:
    if start.startswith(b"\0"):
        return AwsFrameSplitter()
    return JsonListSplitter() if start.startswith(b"[") else None


def _has_any(markers: Sequence[bytes], data: bytes) -> bool:
    for marker in markers:  # noqa: SIM110 - this is called for every event, and `any` takes twice the time
        if marker in data:
            return True
    return False


def _collect_anthropic(parts: _PartCollector, event: dict[str, Any]) -> None:
    match event.get("type"):
        case "message_start":
            parts.add_id(as_dict(event.get("message")).get("id"))
        case "content_block_start":
            parts.add_content([event.get("content_block")])
        case "content_block_delta":
            delta = as_dict(event.get("delta"))
            if delta.get("type") == "text_delta":
                parts.add_text(delta.get("text"))
        case "message":
            parts.add_id(event.get("id"))
            parts.add_content(event.get("content"))


def _collect_chat(parts: _PartCollector, event: dict[str, Any]) -> None:
    parts.add_id(event.get("id"))
    for choice in as_list(event.get("choices"))[:1]:
        message = as_dict(as_dict(choice).get("delta")) or as_dict(as_dict(choice).get("message"))
        parts.add_content(message.get("content"))
        for call in as_list(message.get("tool_calls")):
            parts.add_tool_call(as_dict(call).get("id"))


def _collect_responses(parts: _PartCollector, event: dict[str, Any]) -> None:
    match event.get("type"):
        case "response.created":
            parts.add_id(as_dict(event.get("response")).get("id"))
        case "response.output_text.delta":
            parts.add_text(event.get("delta"))
        case "response.output_item.added" | "response.output_item.done":
            parts.add_tool_call(as_dict(event.get("item")).get("call_id"))
        case None if event.get("object") == "response":
            parts.add_id(event.get("id"))
            for entry in as_list(event.get("output")):
                item = as_dict(entry)
                parts.add_tool_call(item.get("call_id"))
                if item.get("type") == "message":
                    parts.add_content(item.get("content"))


def _collect_gemini(parts: _PartCollector, event: dict[str, Any]) -> None:
    parts.add_id(event.get("responseId"))
    for candidate in as_list(event.get("candidates"))[:1]:
        parts.add_content(as_dict(as_dict(candidate).get("content")).get("parts"))


def _collect_bedrock(parts: _PartCollector, event: dict[str, Any]) -> None:
    parts.add_content(as_dict(as_dict(event.get("output")).get("message")).get("content"))
    parts.add_content([as_dict(event.get("contentBlockStart")).get("start")])
    parts.add_content([as_dict(event.get("contentBlockDelta")).get("delta")])


_COLLECTORS: dict[Format, Callable[[_PartCollector, dict[str, Any]], None]] = {
    Format.ANTHROPIC: _collect_anthropic,
    Format.CHAT: _collect_chat,
    Format.RESPONSES: _collect_responses,
    Format.GEMINI: _collect_gemini,
    Format.BEDROCK: _collect_bedrock,
}


# platform.claude.com/docs/en/build-with-claude/handling-stop-reasons (November 2026).
_COMPLETE_STOP_REASONS = frozenset(("end_turn", "stop_sequence"))


def read_complete_texts(response: bytes, *, streams: bool) -> tuple[str, ...]:
    """Return the texts of an Anthropic response as a client sends them back.

    Empty if the response contains anything else, or did not end by itself.
    """
    try:
        texts, stop = _read_streamed_response(response) if streams else _read_whole_response(response)
    except MalformedRequest:
        return ()
    return tuple(texts) if stop in _COMPLETE_STOP_REASONS and all(texts) else ()


def _read_whole_response(response: bytes) -> tuple[list[str], str]:
    message = parse_object_leniently(response)
    blocks = [as_dict(block) for block in as_list(message.get("content"))]
    return [_read_text_block(block) for block in blocks], as_text(message.get("stop_reason"))


def _read_streamed_response(response: bytes) -> tuple[list[str], str]:
    splitter = SseSplitter()
    texts: dict[int, str] = {}
    stop = ""
    for piece in (*splitter.feed(response), *splitter.end()):
        event = parse_object_leniently(piece.data) if piece.data else {}
        at = event.get("index")
        match event.get("type"):
            case "content_block_start" if isinstance(at, int):
                block = as_dict(event.get("content_block"))
                texts[at] = as_text(block.get("text")) if block.get("type") == "text" else _NOT_TEXT
            case "content_block_delta" if isinstance(at, int) and texts.get(at, _NOT_TEXT) != _NOT_TEXT:
                texts[at] += as_text(as_dict(event.get("delta")).get("text"))
            case "message_delta":
                stop = as_text(as_dict(event.get("delta")).get("stop_reason")) or stop
    return ["" if text == _NOT_TEXT else text for _, text in sorted(texts.items())], stop


# Placeholder that no model writes.
_NOT_TEXT = "\0"


def _read_text_block(block: dict[str, object]) -> str:
    return as_text(block.get("text")) if block.get("type") == "text" else ""
