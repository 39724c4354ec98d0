"""Conversations that the sandbox stores between requests: OpenAI's stored responses, which later requests can
continue, and Anthropic's message threads with their five errors.

Message threads are after the official Python SDK 2.8: `lib/threads/_thread_state.py` and the types of `thread`
and its errors (November 2026). It only lists by name which fields threads do not support; `thinking` and the
two organization settings are left out here, because nothing says which requests they concern.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from foveate.caching import LruCache
from foveate.formats.json_text.parse import as_dict, as_text, parse_json, to_json
from foveate.formats.response.errors import ErrorResponse, make_status_error
from foveate.model import Format

# A limit for a long-lived sandbox: the oldest responses, and the oldest threads, are dropped.
_MAX_STORED_BYTES = 256 * 1024 * 1024
MESSAGE_THREADS_BETA = "message-threads-2026-08-12"
THREAD_TTL_SECONDS = 300
_FIXED_FIELDS = ("system", "tools")
_UNSUPPORTED_FIELDS = ("cache_control", "context_management", "fallbacks")
_BLOCK_FIELDS = ("content", "source", "tool", "definition", "tool_references")


@dataclass(frozen=True, slots=True)
class _StoredConversation:
    data: bytes
    item_ids: tuple[str, ...]


class StoredResponses:
    """The conversation up to each stored response, at most `limit_bytes` in total."""

    def __init__(self, *, limit_bytes: int = _MAX_STORED_BYTES) -> None:
        self._conversations: LruCache[_StoredConversation] = LruCache(
            limit_bytes, weigh=lambda _, stored: len(stored.data), on_evict=self._forget_items
        )
        self._response_by_item: dict[tuple[bytes, str], str] = {}

    def store(self, owner: bytes, response_id: str, items: Sequence[dict[str, Any]]) -> None:
        stored = _StoredConversation(
            to_json(list(items)), tuple(as_text(item["id"]) for item in items if "id" in item)
        )
        self._response_by_item |= {(owner, item_id): response_id for item_id in stored.item_ids}
        self._conversations.put((owner, response_id), stored)

    def find(self, owner: bytes, response_id: str) -> list[dict[str, Any]] | None:
        stored = self._conversations.peek((owner, response_id))
        return None if stored is None else parse_json(stored.data)

    def find_item(self, owner: bytes, item_id: str) -> dict[str, Any] | None:
        items = self.find(owner, self._response_by_item.get((owner, item_id), "")) or []
        return next((item for item in items if item.get("id") == item_id), None)

    def _forget_items(self, key: tuple[bytes, str], stored: _StoredConversation) -> None:
        owner, response_id = key
        for item_id in stored.item_ids:
            if self._response_by_item.get((owner, item_id)) == response_id:
                del self._response_by_item[owner, item_id]


def resolve_references(
    body: dict[str, Any], responses: StoredResponses, owner: bytes
) -> dict[str, Any] | ErrorResponse:
    if body.get("conversation") is not None:
        return make_status_error(
            Format.RESPONSES, 404, "The sandbox does not store conversations: send `input`"
        )
    input_value = body.get("input")
    previous_id = body.get("previous_response_id")
    has_references = isinstance(input_value, list) and any(_is_reference(item) for item in input_value)
    if previous_id is None and not has_references:
        return body
    previous_items = [] if previous_id is None else responses.find(owner, as_text(previous_id))
    if previous_items is None:
        return ErrorResponse(
            message=f"Previous response with id '{previous_id}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    own_items = []
    for item in input_items(body):
        referenced = responses.find_item(owner, as_text(item.get("id"))) if _is_reference(item) else item
        if referenced is None and "id" in item:
            return ErrorResponse(message=f"Item with id '{item['id']}' not found.", status=404, param="input")
        own_items.append(item if referenced is None else referenced)
    remaining_fields = {name: value for name, value in body.items() if name != "previous_response_id"}
    return remaining_fields | {"input": [*previous_items, *own_items]}


def input_items(body: dict[str, Any]) -> tuple[Any, ...]:
    """Return the input as items; a string is a user message."""
    input_value = body.get("input")
    if isinstance(input_value, str):
        return ({"role": "user", "content": input_value},)
    return tuple(input_value) if isinstance(input_value, list) else ()


def _is_reference(item: object) -> bool:
    return as_dict(item).get("type") == "item_reference"


@dataclass(slots=True)
class _StoredThread:
    """A conversation up to a response. `data` is JSON: system, tools and messages."""

    data: bytes
    used_at: float
    is_in_flight: bool = False
    is_continued: bool = False


@dataclass(frozen=True, slots=True)
class ResolvedThread:
    previous_message_id: str | None
    body: dict[str, Any]


class MessageThreads:
    def __init__(self) -> None:
        self._stored: LruCache[_StoredThread] = LruCache(
            _MAX_STORED_BYTES, weigh=lambda _, stored: len(stored.data)
        )

    def resolve(
        self, body: dict[str, Any], owner: bytes, betas: Collection[str], *, now: float
    ) -> ResolvedThread | ErrorResponse | None:
        thread = body.get("thread")
        if thread is None:
            return None
        if MESSAGE_THREADS_BETA not in betas:
            return ErrorResponse(message="thread: Extra inputs are not permitted")
        if not isinstance(thread, dict) or thread.get("type") not in ("create", "continue"):
            return ErrorResponse(message="thread: Input tag does not match any of: 'create', 'continue'")
        own_fields = {name: value for name, value in body.items() if name != "thread"}
        unsupported_fields = [name for name in _UNSUPPORTED_FIELDS if body.get(name) is not None]
        if unsupported_fields:
            return _thread_error(
                "thread_unsupported_request",
                f"Threads do not support {', '.join(unsupported_fields)}.",
                unsupported=unsupported_fields,
            )
        if thread["type"] == "create":
            return ResolvedThread(None, own_fields)
        previous = thread.get("previous_message_id")
        if not isinstance(previous, str):
            return ErrorResponse(message="thread.continue.previous_message_id: Field required")
        return self._continue(own_fields, owner, previous, now)

    def _continue(
        self, own_fields: dict[str, Any], owner: bytes, previous: str, now: float
    ) -> ResolvedThread | ErrorResponse:
        stored = self._find_usable(owner, previous, now)
        if isinstance(stored, ErrorResponse):
            return stored
        stored_body = msgspec.json.decode(stored.data)
        repeated = [name for name in _FIXED_FIELDS if name in own_fields]
        changed = [name for name in repeated if own_fields[name] != stored_body.get(name)]
        if changed:
            return _thread_error(
                "thread_fingerprint_mismatch",
                f"{', '.join(changed)}: differs from the value stored with the thread.",
            )
        if repeated:
            return ErrorResponse(message=f"{repeated[0]}: Not permitted when a thread is continued")
        if not isinstance(own_fields.get("messages"), list):
            return ErrorResponse(message="messages: Input should be a valid list")
        messages = [*stored_body["messages"], *own_fields["messages"]]
        return ResolvedThread(previous, stored_body | own_fields | {"messages": messages})

    def claim(self, owner: bytes, thread: ResolvedThread, *, now: float) -> ErrorResponse | None:
        if thread.previous_message_id is None:
            return None
        stored = self._find_usable(owner, thread.previous_message_id, now)
        if isinstance(stored, ErrorResponse):
            return stored
        stored.is_in_flight, stored.used_at = True, now
        return None

    def release(self, owner: bytes, thread: ResolvedThread) -> None:
        """Let other requests continue the thread, unless it was continued."""
        stored = self._stored.peek((owner, thread.previous_message_id or ""))
        if stored is not None:
            stored.is_in_flight = False

    def store(self, owner: bytes, thread: ResolvedThread, message_id: str, content: Any, *, now: float) -> None:
        previous = self._stored.peek((owner, thread.previous_message_id or ""))
        if previous is not None:
            previous.is_continued = True
        fixed_fields = {name: thread.body[name] for name in _FIXED_FIELDS if name in thread.body}
        messages = [_without_breakpoints(message) for message in thread.body["messages"]]
        messages += [{"role": "assistant", "content": content}] if content else []
        data = msgspec.json.encode(fixed_fields | {"messages": messages})
        self._stored.put((owner, message_id), _StoredThread(data, now))

    def _find_usable(self, owner: bytes, previous: str, now: float) -> _StoredThread | ErrorResponse:
        stored = self._stored.peek((owner, previous))
        if stored is None or now - stored.used_at > THREAD_TTL_SECONDS:
            return _thread_error(
                "thread_not_found", f"No usable thread was found for '{previous}'.", status=404
            )
        if stored.is_continued:
            return _thread_error("thread_already_continued", f"'{previous}' has already been continued.")
        if stored.is_in_flight:
            return _thread_error(
                "thread_continue_in_flight", f"Another request is continuing from '{previous}'."
            )
        return stored


def _thread_error(
    code: str, message: str, *, status: int = 400, unsupported: Collection[str] = ()
) -> ErrorResponse:
    details: dict[str, object] = {"error_code": code}
    if unsupported:
        details["unsupported"] = list(unsupported)
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    return ErrorResponse(message=message, status=status, kind=kind, details=details)


def _without_breakpoints(value: Any) -> Any:
    """Return a message or block without breakpoints: each belongs to the request that carries it."""
    if isinstance(value, list):
        return [_without_breakpoints(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _without_breakpoints(item) if name in _BLOCK_FIELDS else item
        for name, item in as_dict(value).items()
        if name != "cache_control"
    }
