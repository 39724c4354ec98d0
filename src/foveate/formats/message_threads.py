"""Anthropic's message threads: expand requests that contain only new messages.

Follows the official Python SDK 2.8 (`lib/threads/_thread_state.py` and the types of `thread`, November 2026). A
request with `thread: {"type": "create"}` contains the whole conversation. One with `{"type": "continue",
"previous_message_id": …}` contains only the messages after that response; `system` and `tools` are those of the
thread. Breakpoints in messages apply to the request that contains them: the SDK removes them from messages that
it sends again, and so does this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from foveate.errors import MalformedRequest
from foveate.formats.json_text.duplicate_keys import check_unique_keys
from foveate.formats.json_text.large_json import contains
from foveate.formats.json_text.lenient_parse import parse_fields_leniently
from foveate.formats.json_text.offsets import (
    ByteSpan,
    ObjectMembers,
    Patch,
    find_items,
    find_members,
    value_span,
)
from foveate.formats.json_text.parse import as_dict, as_text, is_set, parse_json
from foveate.formats.response.event_streams import SseSplitter

BETA_PREFIX = "message-threads-"
"""Prefix of the beta values that enable threads (`message-threads-2026-08-12`)."""
FIXED_FIELDS = ("system", "tools")
"""Fields that a thread keeps from the request that created it."""

# The codes of `error.details.error_code`; the first has status 404, all others 400.
NOT_FOUND = "thread_not_found"
ALREADY_CONTINUED = "thread_already_continued"
CONTINUE_IN_FLIGHT = "thread_continue_in_flight"
FINGERPRINT_MISMATCH = "thread_fingerprint_mismatch"
UNSUPPORTED_REQUEST = "thread_unsupported_request"

_THREAD_FIELD = "thread"
_QUOTED_THREAD_FIELD = b'"thread"'
# A key with escapes contains at least one of these.
_ESCAPE = b"\\u00"
_ESCAPED_LETTERS = tuple(b"\\u00%02x" % letter for letter in sorted(set(b"thread")))
_BREAKPOINT_FIELD = "cache_control"
_QUOTED_BREAKPOINT = b'"cache_control"'
# Keys below a message that contain blocks; the same names in a tool's input are data.
_BLOCK_KEYS = ("content", "source", "tool", "definition", "tool_references")
# Fields that each kind of delta changes. A response with other kinds cannot be rebuilt.
_APPENDED_FIELDS = {"text_delta": "text", "thinking_delta": "thinking"}
_REPLACED_FIELDS = {"signature_delta": ("signature",), "compaction_delta": ("content", "encrypted_content")}


@dataclass(frozen=True, slots=True)
class ThreadRequest:
    """A request with a `thread` field; `previous_message_id` is None if it creates a thread."""

    body: bytes
    root: ObjectMembers
    previous_message_id: str | None

    @property
    def fixed_bytes(self) -> int:
        spans = (self.root.values.get(name) for name in FIXED_FIELDS)
        return sum(len(span.read(self.body)) for span in spans if span is not None)

    @property
    def is_compaction(self) -> bool:
        """Return whether the response replaces the conversation, so that no request can continue from it."""
        span = self.root.values.get("compaction")
        return span is not None and is_set(span.read(self.body))


@dataclass(frozen=True, slots=True)
class ThreadHistory:
    """A conversation up to a response: the JSON of `system` and `tools`, empty if there are none.

    `messages` is the inside of a JSON list. It only grows at its end.
    """

    system: bytes
    tools: bytes
    messages: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.system) + len(self.tools) + len(self.messages)


def may_use_thread(body: bytes) -> bool:
    """Tell quickly whether a request may have a `thread` field, without parsing it."""
    return contains(body, _QUOTED_THREAD_FIELD) or (
        contains(body, _ESCAPE) and any(contains(body, letter) for letter in _ESCAPED_LETTERS)
    )


def read_thread_request(body: bytes) -> ThreadRequest | None:
    """Parse a request that uses a thread; None for other requests and for anything but a JSON object.

    Raises:
        DuplicateKey: an object has the same key twice.
        MalformedRequest: `thread` has neither known form, or a continuation has no list of messages.
    """
    if not may_use_thread(body):
        return None
    try:
        root = find_members(body, value_span(body))
    except MalformedRequest:
        return None
    span = root.values.get(_THREAD_FIELD)
    if span is None or span.read(body) == b"null":
        return None
    check_unique_keys(body, root.values)
    thread = as_dict(parse_json(span.read(body)))
    match thread.get("type"):
        case "create":
            previous = None
        case "continue" if isinstance(thread.get("previous_message_id"), str):
            previous = as_text(thread["previous_message_id"])
        case "continue":
            raise MalformedRequest("thread.continue.previous_message_id: Field required")
        case _:
            raise MalformedRequest("thread: Input should be an object of type 'create' or 'continue'")
    if not _has_message_list(body, root):
        raise MalformedRequest("messages: Input should be a valid list")
    return ThreadRequest(body, root, previous)


def find_changed_fields(request: ThreadRequest, history: ThreadHistory) -> list[str]:
    """Return the fixed fields that a request repeats with a different value.

    An empty value, such as `null` or an empty list, counts as omitted.
    """
    thread_fields = {"system": history.system, "tools": history.tools}
    return [
        name
        for name in FIXED_FIELDS
        if (value := _read_fixed_field(request, name))
        and not _is_same_json(value, thread_fields[name] or b"null")
    ]


def _is_same_json(left: bytes, right: bytes) -> bool:
    return left == right or parse_json(left) == parse_json(right)


def expand_body(request: ThreadRequest, history: ThreadHistory | None) -> bytes:
    """Return the body of the same request for a server without threads.

    `history` is the conversation that it continues. Bytes written by the client stay the same.
    """
    patch = Patch()
    patch.replace(*_member_range(request.body, request.root, _THREAD_FIELD), b"")
    if history is not None:
        start, _, new = _locate_new_messages(request)
        comma = b"," if history.messages and new else b""
        patch.replace(start, start, history.messages + comma)
        for name, thread_value in (("system", history.system), ("tools", history.tools)):
            if thread_value and name not in request.root.values:
                patch.set_member(_drop_member(request.root, _THREAD_FIELD), name, thread_value)
            elif thread_value and not _read_fixed_field(request, name):
                patch.replace(*request.root.values[name], thread_value)
    return patch.apply(request.body)


def extend_history(
    request: ThreadRequest, history: ThreadHistory | None, response_message: bytes
) -> ThreadHistory:
    if history is None:
        system, tools = (_read_fixed_field(request, name) for name in FIXED_FIELDS)
        history = ThreadHistory(system, tools, b"")
    new = _remove_breakpoints(request)
    parts = (history.messages, new, response_message)
    return ThreadHistory(history.system, history.tools, b",".join(part for part in parts if part))


def _read_fixed_field(request: ThreadRequest, name: str) -> bytes:
    span = request.root.values.get(name)
    raw = b"" if span is None else span.read(request.body)
    return raw if raw and is_set(raw) else b""


def read_response_message(response: bytes, *, is_stream: bool) -> tuple[str, bytes] | None:
    """Return the id of a response and the JSON of its message, as a client sends it back.

    The message is empty if the response has no content. None: the response cannot be rebuilt from its bytes.
    """
    try:
        return _read_streamed_message(response) if is_stream else _read_plain_message(response)
    except (MalformedRequest, msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        return None


def _read_plain_message(response: bytes) -> tuple[str, bytes] | None:
    fields = parse_fields_leniently(response)
    message_id, content = parse_json(fields.get("id")), bytes(fields.get("content") or b"")
    blocks = parse_json(content)
    if not isinstance(message_id, str) or not message_id or not isinstance(blocks, list):
        return None
    if any(map(_is_blank, blocks)):
        raws = (span.read(content) for span in find_items(content, value_span(content)))
        visible_blocks = [raw for raw, block in zip(raws, blocks, strict=True) if not _is_blank(block)]
        content = b"[" + b",".join(visible_blocks) + b"]" if visible_blocks else b""
    return message_id, _assistant_message(content) if blocks and content else b""


def _is_blank(block: object) -> bool:
    """Return whether a block is blank text, which the provider rejects in a request."""
    fields = as_dict(block)
    return fields.get("type") == "text" and not as_text(fields.get("text")).strip()


def _read_streamed_message(response: bytes) -> tuple[str, bytes] | None:
    message_id, blocks, inputs = "", list[dict[str, Any]](), dict[int, list[str]]()
    for event in _parse_events(response):
        match event.get("type"):
            case "message_start":
                message_id = as_text(as_dict(event.get("message")).get("id"))
            case "content_block_start":
                if event.get("index") != len(blocks):
                    return None
                blocks.append(as_dict(event.get("content_block")))
            case "content_block_delta":
                at = event.get("index")
                if not isinstance(at, int) or not 0 <= at < len(blocks):
                    return None
                if not _add_delta(blocks[at], as_dict(event.get("delta")), inputs.setdefault(at, [])):
                    return None
    if not message_id:
        return None
    for at, pieces in inputs.items():
        if input_json := "".join(pieces):
            blocks[at]["input"] = msgspec.Raw(_validate_json(input_json))
    visible_blocks = [block for block in blocks if not _is_blank(block)]
    return message_id, _assistant_message(msgspec.json.encode(visible_blocks)) if visible_blocks else b""


def _add_delta(block: dict[str, Any], delta: dict[str, Any], input_pieces: list[str]) -> bool:
    kind = as_text(delta.get("type"))
    if kind in _APPENDED_FIELDS:
        name = _APPENDED_FIELDS[kind]
        block[name] = as_text(block.get(name)) + as_text(delta.get(name))
    elif kind in _REPLACED_FIELDS:
        block.update({name: delta[name] for name in _REPLACED_FIELDS[kind] if name in delta})
    elif kind == "input_json_delta":
        input_pieces.append(as_text(delta.get("partial_json")))
    elif kind == "citations_delta":
        block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
    else:
        return False
    return True


def _parse_events(response: bytes) -> Iterator[dict[str, Any]]:
    splitter = SseSplitter()
    for piece in (*splitter.feed(response), *splitter.end()):
        if piece.data:
            yield as_dict(msgspec.json.decode(piece.data))


def _validate_json(text: str) -> bytes:
    raw = text.encode()
    msgspec.json.decode(raw)
    return raw


def _assistant_message(content: bytes) -> bytes:
    return b'{"role":"assistant","content":' + content + b"}"


def _has_message_list(body: bytes, root: ObjectMembers) -> bool:
    span = root.values.get("messages")
    return span is not None and body[span.start : span.start + 1] == b"["


def _locate_new_messages(request: ThreadRequest) -> tuple[int, int, bytes]:
    """Return start and end of the inside of the message list, and its content."""
    span = request.root.values["messages"]
    start, end = span.start + 1, span.end - 1
    return start, end, request.body[start:end].strip()


def _member_range(data: bytes, owner: ObjectMembers, name: str) -> tuple[int, int]:
    """Return the bytes to cut so that an object no longer has a member."""
    span = owner.values[name]
    ordered = sorted(owner.values.values())
    at = ordered.index(span)
    if at:
        return ordered[at - 1].end, span.end
    if len(ordered) == 1:
        return owner.span.start + 1, span.end
    return owner.span.start + 1, data.index(b",", span.end) + 1


def _drop_member(owner: ObjectMembers, name: str) -> ObjectMembers:
    """Return an object without a member, for members that are then added at its end."""
    return owner._replace(values={key: span for key, span in owner.values.items() if key != name})


def _remove_breakpoints(request: ThreadRequest) -> bytes:
    _, _, new = _locate_new_messages(request)
    if not contains(new, _QUOTED_BREAKPOINT):
        return new
    message_list = b"[" + new + b"]"
    patch = Patch()
    for span in find_items(message_list, ByteSpan(0, len(message_list))):
        _cut_breakpoints(message_list, span, patch)
    return patch.apply(message_list)[1:-1]


def _cut_breakpoints(data: bytes, span: ByteSpan, patch: Patch) -> None:
    if data.startswith(b"[", span.start):
        for item in find_items(data, span):
            _cut_breakpoints(data, item, patch)
    elif data.startswith(b"{", span.start) and _QUOTED_BREAKPOINT in span.read(data):
        owner = find_members(data, span)
        if _BREAKPOINT_FIELD in owner.values:
            patch.replace(*_member_range(data, owner, _BREAKPOINT_FIELD), b"")
        for name in _BLOCK_KEYS:
            if name in owner.values:
                _cut_breakpoints(data, owner.values[name], patch)


def remove_threads_beta(header: str) -> str:
    """Return an `anthropic-beta` header without the values that turn threads on."""
    values = [value.strip() for value in header.split(",")]
    return ",".join(value for value in values if value and not value.startswith(BETA_PREFIX))


def continues_thread(thread: object) -> bool:
    """Return whether the value of `thread` omits messages that the provider has."""
    return thread is not None and as_dict(thread).get("type") != "create"
