"""Anthropic's message threads: conversations that are stored between requests, and their five errors.

After the official Python SDK 2.8: `lib/threads/_thread_state.py` and the types of `thread` and its errors
(November 2026). It only lists by name which fields threads do not support; `thinking` and the two organization
settings are left out here, because nothing says which requests they concern.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from foveate.caching import LruCache
from foveate.formats.json_text.parse import as_dict
from foveate.formats.response.errors import ErrorResponse

BETA = "message-threads-2026-08-12"
TTL_SECONDS = 300

_FIXED_FIELDS = ("system", "tools")
_UNSUPPORTED_FIELDS = ("cache_control", "context_management", "fallbacks")
_BLOCK_FIELDS = ("content", "source", "tool", "definition", "tool_references")
_MAX_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class _StoredThread:
    """A conversation up to a response. `data` is JSON: system, tools and messages."""

    data: bytes
    used_at: float
    is_in_flight: bool = False
    is_continued: bool = False


@dataclass(frozen=True, slots=True)
class ResolvedThread:
    """A request with the whole conversation of its thread, and the response that it continues, if any."""

    previous_message_id: str | None
    body: dict[str, Any]


class MessageThreads:
    def __init__(self) -> None:
        self._stored: LruCache[_StoredThread] = LruCache(_MAX_BYTES, weigh=lambda _, stored: len(stored.data))

    def resolve(
        self, body: dict[str, Any], owner: bytes, betas: Collection[str], *, now: float
    ) -> ResolvedThread | ErrorResponse | None:
        """Return the whole conversation of a request, or an error; None for a request without a `thread`."""
        thread = body.get("thread")
        if thread is None:
            return None
        if BETA not in betas:
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
        """Mark the thread as being continued by this request, or return an error."""
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
        if stored is None or now - stored.used_at > TTL_SECONDS:
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
