"""Anthropic's message threads: requests that carry only new messages, made whole again.

After the official Python SDK 2.8 (`lib/threads/_thread_state.py` and the types of `thread`, November 2026). A
request with `thread: {"type": "create"}` carries the whole conversation. One with `{"type": "continue",
"previous_message_id": …}` carries only the messages after that response; `system` and `tools` are those of the
thread. Breakpoints in messages belong to the request that carries them: the SDK removes them from messages that
it sends again, and so does this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from foveate.errors import MalformedRequest
from foveate.wire.body import as_record, as_text, is_said, value
from foveate.wire.duplicate_keys import check_unique_keys
from foveate.wire.events import EventSplitter
from foveate.wire.large_json import contains
from foveate.wire.replies import fields as reply_fields
from foveate.wire.spans import Members, Span, items, members, whole
from foveate.wire.splice import Patch

BETA_PREFIX = "message-threads-"
"""Beta values that begin so turn threads on (`message-threads-2026-08-12`)."""
FIXED_FIELDS = ("system", "tools")
"""Fields that a thread keeps from the request that created it."""

# The codes of `error.details.error_code`; the first has status 404, all others 400.
NOT_FOUND = "thread_not_found"
ALREADY_CONTINUED = "thread_already_continued"
CONTINUE_IN_FLIGHT = "thread_continue_in_flight"
FINGERPRINT_MISMATCH = "thread_fingerprint_mismatch"
UNSUPPORTED_REQUEST = "thread_unsupported_request"

_FIELD = "thread"
_QUOTED_FIELD = b'"thread"'
# A key may be written with escapes, and then has at least one of these in it.
_ESCAPE = b"\\u00"
_ESCAPED_LETTERS = tuple(b"\\u00%02x" % letter for letter in sorted(set(b"thread")))
_BREAKPOINT = "cache_control"
_QUOTED_BREAKPOINT = b'"cache_control"'
# The keys below a message that hold blocks; the same name in a tool's input is data like any other.
_BLOCK_KEYS = ("content", "source", "tool", "definition", "tool_references")
# What each kind of delta adds to its block. All but these make an answer that cannot be rebuilt.
_APPENDED = {"text_delta": "text", "thinking_delta": "thinking"}
_REPLACED = {"signature_delta": ("signature",), "compaction_delta": ("content", "encrypted_content")}


@dataclass(frozen=True, slots=True)
class ThreadRequest:
    """A request with a `thread` field; `previous_message_id` is None if it creates a thread."""

    body: bytes
    root: Members
    previous_message_id: str | None

    @property
    def fixed_bytes(self) -> int:
        """The size of the fixed fields that it has."""
        spans = (self.root.values.get(name) for name in FIXED_FIELDS)
        return sum(len(span.of(self.body)) for span in spans if span is not None)

    @property
    def is_compaction(self) -> bool:
        """Whether the response replaces the conversation, so that nothing can continue from it."""
        span = self.root.values.get("compaction")
        return span is not None and is_said(span.of(self.body))


@dataclass(frozen=True, slots=True)
class ThreadHistory:
    """A conversation up to a response: the JSON of `system` and `tools`, empty if there are none.

    `messages` is the inside of a JSON list. It only ever grows at its end.
    """

    system: bytes
    tools: bytes
    messages: bytes

    @property
    def size_bytes(self) -> int:
        """The bytes of all three."""
        return len(self.system) + len(self.tools) + len(self.messages)


def may_use_thread(body: bytes) -> bool:
    """Tell quickly whether a request may have a `thread` field; one that may not does not have to be parsed."""
    return contains(body, _QUOTED_FIELD) or (
        contains(body, _ESCAPE) and any(contains(body, letter) for letter in _ESCAPED_LETTERS)
    )


def read_thread_request(body: bytes) -> ThreadRequest | None:
    """Return a request that uses a thread; None for any other, and for one that is not a JSON object.

    Raises:
        DuplicateKey: an object in it has the same key twice.
        MalformedRequest: its `thread` is not one of the two known shapes, or it continues one without a list of
            messages.
    """
    if not may_use_thread(body):
        return None
    try:
        root = members(body, whole(body))
    except MalformedRequest:
        return None
    span = root.values.get(_FIELD)
    if span is None or span.of(body) == b"null":
        return None
    check_unique_keys(body, root.values)
    thread = as_record(value(span.of(body)))
    match thread.get("type"):
        case "create":
            previous = None
        case "continue" if isinstance(thread.get("previous_message_id"), str):
            previous = as_text(thread["previous_message_id"])
        case "continue":
            raise MalformedRequest("thread.continue.previous_message_id: Field required")
        case _:
            raise MalformedRequest("thread: Input should be an object of type 'create' or 'continue'")
    if not _inside(body, root):
        raise MalformedRequest("messages: Input should be a valid list")
    return ThreadRequest(body, root, previous)


def changed_fields(request: ThreadRequest, history: ThreadHistory) -> list[str]:
    """Return the fixed fields that a request repeats with another value than its thread has.

    A field that says nothing, as `null` or an empty list does, is one that the request leaves out.
    """
    held = {"system": history.system, "tools": history.tools}
    return [
        name
        for name in FIXED_FIELDS
        if (said := _fixed_field(request, name)) and not _is_same(said, held[name] or b"null")
    ]


def _is_same(one: bytes, other: bytes) -> bool:
    return one == other or value(one) == value(other)


def whole_body(request: ThreadRequest, history: ThreadHistory | None) -> bytes:
    """Return the body of the same request for a server without threads.

    `history` is the conversation that it continues. What the client has written stays as it is.
    """
    patch = Patch()
    patch.put(*_member_cut(request.body, request.root, _FIELD), b"")
    if history is not None:
        start, _, new = _new_messages(request)
        comma = b"," if history.messages and new else b""
        patch.put(start, start, history.messages + comma)
        for name, held in (("system", history.system), ("tools", history.tools)):
            if held and name not in request.root.values:
                patch.set_member(_without(request.root, _FIELD), name, held)
            elif held and not _fixed_field(request, name):
                patch.put(*request.root.values[name], held)
    return patch.applied(request.body)


def next_history(request: ThreadRequest, history: ThreadHistory | None, answer: bytes) -> ThreadHistory:
    """Return the conversation after a request and its answer, the message that `answer_message` gives."""
    if history is None:
        system, tools = (_fixed_field(request, name) for name in FIXED_FIELDS)
        history = ThreadHistory(system, tools, b"")
    new = _without_breakpoints(request)
    parts = (history.messages, new, answer)
    return ThreadHistory(history.system, history.tools, b",".join(part for part in parts if part))


def _fixed_field(request: ThreadRequest, name: str) -> bytes:
    span = request.root.values.get(name)
    raw = b"" if span is None else span.of(request.body)
    return raw if raw and is_said(raw) else b""


def answer_message(answer: bytes, *, is_stream: bool) -> tuple[str, bytes] | None:
    """Return the id of a response and the JSON of its message, as a client sends it back.

    The message is empty if the response has no content. None: the response cannot be rebuilt from its bytes.
    """
    try:
        return _streamed_message(answer) if is_stream else _plain_message(answer)
    except (MalformedRequest, msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None


def _plain_message(answer: bytes) -> tuple[str, bytes] | None:
    found = reply_fields(answer)
    message_id, content = value(found.get("id")), bytes(found.get("content") or b"")
    blocks = value(content)
    if not isinstance(message_id, str) or not message_id or not isinstance(blocks, list):
        return None
    if any(map(_is_blank, blocks)):
        raws = (span.of(content) for span in items(content, whole(content)))
        kept = [raw for raw, block in zip(raws, blocks, strict=True) if not _is_blank(block)]
        content = b"[" + b",".join(kept) + b"]" if kept else b""
    return message_id, _assistant(content) if blocks and content else b""


def _is_blank(block: object) -> bool:
    """Whether a block is a text without anything but whitespace, which the provider refuses in a request."""
    found = as_record(block)
    return found.get("type") == "text" and not as_text(found.get("text")).strip()


def _streamed_message(answer: bytes) -> tuple[str, bytes] | None:
    message_id, blocks, inputs = "", list[dict[str, Any]](), dict[int, list[str]]()
    for event in _events(answer):
        match event.get("type"):
            case "message_start":
                message_id = as_text(as_record(event.get("message")).get("id"))
            case "content_block_start":
                if event.get("index") != len(blocks):
                    return None
                blocks.append(as_record(event.get("content_block")))
            case "content_block_delta":
                at = event.get("index")
                if not isinstance(at, int) or not 0 <= at < len(blocks):
                    return None
                if not _add_delta(blocks[at], as_record(event.get("delta")), inputs.setdefault(at, [])):
                    return None
    if not message_id:
        return None
    for at, pieces in inputs.items():
        if written := "".join(pieces):
            blocks[at]["input"] = msgspec.Raw(_checked_json(written))
    kept = [block for block in blocks if not _is_blank(block)]
    return message_id, _assistant(msgspec.json.encode(kept)) if kept else b""


def _add_delta(block: dict[str, Any], delta: dict[str, Any], input_pieces: list[str]) -> bool:
    """Add a delta to its block; False if its kind is not known."""
    kind = as_text(delta.get("type"))
    if kind in _APPENDED:
        name = _APPENDED[kind]
        block[name] = as_text(block.get(name)) + as_text(delta.get(name))
    elif kind in _REPLACED:
        block.update({name: delta[name] for name in _REPLACED[kind] if name in delta})
    elif kind == "input_json_delta":
        input_pieces.append(as_text(delta.get("partial_json")))
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
    else:
        return False
    return True


def _events(answer: bytes) -> Iterator[dict[str, Any]]:
    splitter = EventSplitter()
    for piece in (*splitter.feed(answer), *splitter.end()):
        if piece.data:
            yield as_record(msgspec.json.decode(piece.data))


def _checked_json(written: str) -> bytes:
    """Return the bytes of a JSON text, which must be whole."""
    raw = written.encode()
    msgspec.json.decode(raw)
    return raw


def _assistant(content: bytes) -> bytes:
    return b'{"role":"assistant","content":' + content + b"}"


def _inside(body: bytes, root: Members) -> bool:
    span = root.values.get("messages")
    return span is not None and body[span.start : span.start + 1] == b"["


def _new_messages(request: ThreadRequest) -> tuple[int, int, bytes]:
    """Return where the inside of the list of messages begins and ends, and what stands there."""
    span = request.root.values["messages"]
    start, end = span.start + 1, span.end - 1
    return start, end, request.body[start:end].strip()


def _member_cut(data: bytes, owner: Members, name: str) -> tuple[int, int]:
    """Return the range of bytes without which an object no longer has a member."""
    span = owner.values[name]
    ordered = sorted(owner.values.values())
    at = ordered.index(span)
    if at:
        return ordered[at - 1].end, span.end
    if len(ordered) == 1:
        return owner.span.start + 1, span.end
    return owner.span.start + 1, data.index(b",", span.end) + 1


def _without(owner: Members, name: str) -> Members:
    """Return an object as it is once a member is cut out, for members that are added at its end."""
    return owner._replace(values={key: span for key, span in owner.values.items() if key != name})


def _without_breakpoints(request: ThreadRequest) -> bytes:
    """Return the new messages without their breakpoints."""
    _, _, new = _new_messages(request)
    if not contains(new, _QUOTED_BREAKPOINT):
        return new
    listed = b"[" + new + b"]"
    patch = Patch()
    for span in items(listed, Span(0, len(listed))):
        _cut_breakpoints(listed, span, patch)
    return patch.applied(listed)[1:-1]


def _cut_breakpoints(data: bytes, span: Span, patch: Patch) -> None:
    if data.startswith(b"[", span.start):
        for item in items(data, span):
            _cut_breakpoints(data, item, patch)
    elif data.startswith(b"{", span.start) and _QUOTED_BREAKPOINT in span.of(data):
        found = members(data, span)
        if _BREAKPOINT in found.values:
            patch.put(*_member_cut(data, found, _BREAKPOINT), b"")
        for name in _BLOCK_KEYS:
            if name in found.values:
                _cut_breakpoints(data, found.values[name], patch)


def without_threads_beta(header: str) -> str:
    """Return an `anthropic-beta` header without the values that turn threads on."""
    values = [each.strip() for each in header.split(",")]
    return ",".join(each for each in values if each and not each.startswith(BETA_PREFIX))


def continues_thread(thread: object) -> bool:
    """Return whether the value of `thread` leaves out messages that the provider keeps."""
    return thread is not None and as_record(thread).get("type") != "create"
