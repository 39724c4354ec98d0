"""Parts of a model's answer by which the same answer is recognised when a client sends it back as history."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from foveate.errors import MalformedRequest
from foveate.values import Format
from foveate.wire.body import as_list, as_record, as_text, fields, record, role_of, value
from foveate.wire.events import ListSplitter, Splitter
from foveate.wire.frames import FrameSplitter
from foveate.wire.replies import record as reply_record

MAX_TEXT_CHARS = 300
"""Only this much of an answer's text is compared, without blanks: some clients trim what they send back."""
# A text may have millions of words, of which only the first are needed.
_SLICE_CHARS = 4 * MAX_TEXT_CHARS
_MAX_TOOL_CALLS = 16
_MAX_SIGNATURE_CHARS = 64
_MODEL_ROLES = frozenset(("assistant", "model"))
# Items of the Responses API that a model writes and that have no role.
_MODEL_ITEMS = (
    *("function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call"),
    "reasoning",
)


# What stands in the events that tell a part of an answer: in those of tool calls, and in those of text and ids.
# Others are skipped, since a long answer has thousands.
_TOOL_SIGNS: dict[Format, tuple[bytes, ...]] = {
    Format.ANTHROPIC: (b"content_block_start",),
    Format.CHAT: (b'"tool_calls"',),
    Format.RESPONSES: (b"output_item",),
    Format.GEMINI: (b'"functionCall"', b'"thoughtSignature"'),
}
_TEXT_SIGNS: dict[Format, tuple[bytes, ...]] = {
    Format.ANTHROPIC: (b"text_delta", b"message_start"),
    # It is null in events of reasoning.
    Format.CHAT: (b'"content":"', b'"content": "', b'"content":[', b'"content": ['),
    Format.RESPONSES: (b"output_text.delta", b"response.created"),
    Format.GEMINI: (b'"candidates"',),
}
_DECODER = msgspec.json.Decoder()
# Many small chunks are read together: that takes less time.
_BATCH_BYTES = 4 * 1024
# A larger event is not read: decoding it would block the event loop.
_MAX_EVENT_BYTES = 1024 * 1024


class AnswerParts(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's id of an answer, the ids of its tool calls, and its text without blanks, cut off."""

    id: str = ""
    tool_calls: tuple[str, ...] = ()
    text: str = ""


def answer_parts(api_format: Format, body: bytes) -> AnswerParts:
    """Return the parts of a response body; empty if it has none."""
    collect = _COLLECTORS.get(api_format)
    if collect is None:
        return AnswerParts()
    found = _Collected()
    try:
        collect(found, reply_record(body))
    except MalformedRequest:
        return AnswerParts()
    return found.parts()


def message_parts(spoken: Format, messages: Sequence[bytes]) -> AnswerParts:
    """Return the parts of consecutive messages of a request that the model wrote."""
    found = _Collected()
    for raw in messages:
        said = record(raw)
        found.add_content(said.get("content"))
        found.add_content(said.get("parts"))
        for call in as_list(said.get("tool_calls")):
            found.add_tool_call(as_record(call).get("id"))
        if spoken is Format.RESPONSES:
            found.add_tool_call(said.get("call_id"))
    return found.parts()


def is_from_model(raw: bytes) -> bool:
    """Return whether a model wrote this message of a request.

    Raises:
        MalformedRequest: it cannot be read.
    """
    role = role_of(raw)
    return role in _MODEL_ROLES if role else value(fields(raw).get("type")) in _MODEL_ITEMS


class _Collected:
    """Parts as they are found."""

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
        """Whether more text would not be used."""
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
        """Add a string, or a list of blocks of any format."""
        self.add_text(content)
        for each in as_list(content):
            block = as_record(each)
            if block.get("type") in ("text", "output_text"):
                self.add_text(block.get("text"))
            elif block.get("type") == "tool_use":
                self.add_tool_call(block.get("id"))
            elif "type" not in block:
                self._add_untyped(block)

    def _add_untyped(self, block: dict[str, Any]) -> None:
        """Add a block of Bedrock or a part of Gemini.

        Older models of Gemini give their calls no ids, but a signature, which clients send back too.
        """
        if block.get("thought") is not True:
            self.add_text(block.get("text"))
        self.add_tool_call(as_record(block.get("toolUse")).get("toolUseId"))
        if "functionCall" in block:
            signature = filter(str.isalnum, as_text(block.get("thoughtSignature")))
            id_ = as_text(as_record(block["functionCall"]).get("id"))
            self.add_tool_call(id_ or "".join(signature)[:_MAX_SIGNATURE_CHARS])

    def parts(self) -> AnswerParts:
        calls = tuple(dict.fromkeys(self._tool_calls))
        return AnswerParts(id=self._id, tool_calls=calls, text="".join(self._texts)[:MAX_TEXT_CHARS])


class StreamParts:
    """Collects the parts of an answer while it streams; of its tool calls, only the first.

    Thinking of any length may come before the text, so nothing is kept of an event but its parts. Gemini also
    streams a JSON list, and AWS binary frames, which begin with their length.
    """

    def __init__(self, api_format: Format) -> None:
        self._collect = _COLLECTORS.get(api_format)
        self._tool_signs = _TOOL_SIGNS.get(api_format, ())
        self._signs = _TEXT_SIGNS.get(api_format, ()) + self._tool_signs
        self._collected = _Collected()
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._has_begun = False
        self._splitter: Splitter | None = None
        self._open_line = b""

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._collect is None:
            return
        self._unread.append(chunk)
        self._unread_bytes += len(chunk)
        if self._unread_bytes > _BATCH_BYTES:
            self._read()

    def end(self) -> AnswerParts:
        """Return the parts of the stream, which may have been cut off."""
        self._unread.append(b"\n")
        self._read()
        return self._collected.parts()

    def _read(self) -> None:
        chunk = b"".join(self._unread)
        self._unread.clear()
        self._unread_bytes = 0
        if not self._has_begun:
            self._has_begun = True
            self._splitter = _splitter(chunk)
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
                self._collect(self._collected, as_record(_DECODER.decode(data)))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
            if self._collected.has_tool_call:  # nothing more is needed
                self._collect = None

    def _data_lines(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the data of the server-sent events that may tell something new."""
        lines, newline, self._open_line = (self._open_line + chunk).rpartition(b"\n")
        if len(self._open_line) > _MAX_EVENT_BYTES:
            self._open_line = b""
        if not newline:
            return
        if self._collected.has_all_text and not _has_any(self._tool_signs, lines):
            return
        for line in lines.split(b"\n"):
            if line.startswith(b"data:"):
                signs = self._tool_signs if self._collected.has_all_text else self._signs
                if _has_any(signs, line):
                    yield line[5:]


def _splitter(start: bytes) -> Splitter | None:
    if start.startswith(b"\0"):
        return FrameSplitter()
    return ListSplitter() if start.startswith(b"[") else None


def _has_any(signs: Sequence[bytes], data: bytes) -> bool:
    for sign in signs:  # noqa: SIM110 - this is called for every event, and `any` takes twice the time
        if sign in data:
            return True
    return False


def _anthropic(found: _Collected, event: dict[str, Any]) -> None:
    match event.get("type"):
        case "message_start":
            found.add_id(as_record(event.get("message")).get("id"))
        case "content_block_start":
            found.add_content([event.get("content_block")])
        case "content_block_delta":
            delta = as_record(event.get("delta"))
            if delta.get("type") == "text_delta":
                found.add_text(delta.get("text"))
        case "message":
            found.add_id(event.get("id"))
            found.add_content(event.get("content"))


def _chat(found: _Collected, event: dict[str, Any]) -> None:
    found.add_id(event.get("id"))
    for choice in as_list(event.get("choices"))[:1]:
        said = as_record(as_record(choice).get("delta")) or as_record(as_record(choice).get("message"))
        found.add_content(said.get("content"))
        for call in as_list(said.get("tool_calls")):
            found.add_tool_call(as_record(call).get("id"))


def _responses(found: _Collected, event: dict[str, Any]) -> None:
    match event.get("type"):
        case "response.created":
            found.add_id(as_record(event.get("response")).get("id"))
        case "response.output_text.delta":
            found.add_text(event.get("delta"))
        case "response.output_item.added" | "response.output_item.done":
            found.add_tool_call(as_record(event.get("item")).get("call_id"))
        case None if event.get("object") == "response":
            found.add_id(event.get("id"))
            for each in as_list(event.get("output")):
                item = as_record(each)
                found.add_tool_call(item.get("call_id"))
                if item.get("type") == "message":
                    found.add_content(item.get("content"))


def _gemini(found: _Collected, event: dict[str, Any]) -> None:
    found.add_id(event.get("responseId"))
    for candidate in as_list(event.get("candidates"))[:1]:
        found.add_content(as_record(as_record(candidate).get("content")).get("parts"))


def _bedrock(found: _Collected, event: dict[str, Any]) -> None:
    found.add_content(as_record(as_record(event.get("output")).get("message")).get("content"))
    found.add_content([as_record(event.get("contentBlockStart")).get("start")])
    found.add_content([as_record(event.get("contentBlockDelta")).get("delta")])


_COLLECTORS: dict[Format, Callable[[_Collected, dict[str, Any]], None]] = {
    Format.ANTHROPIC: _anthropic,
    Format.CHAT: _chat,
    Format.RESPONSES: _responses,
    Format.GEMINI: _gemini,
    Format.BEDROCK: _bedrock,
}
