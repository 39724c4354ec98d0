"""Anthropic's message threads in the sandbox: conversations that it keeps between requests, and five errors.

After the official Python SDK 2.8: `lib/threads/_thread_state.py` and the types of `thread` and its errors
(November 2026). Which fields threads do not support is only listed there by name; `thinking` and the two
organization settings are left out here, because nothing says which requests they concern.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from foveate.wire.body import as_record
from foveate.wire.refusals import Refusal

BETA = "message-threads-2026-08-12"
TTL_SECONDS = 300
"""How long a thread is kept after its last request."""

_FIXED = ("system", "tools")
_UNSUPPORTED = ("cache_control", "context_management", "fallbacks")
_HOLDS_BLOCKS = ("content", "source", "tool", "definition", "tool_references")
_MAX_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class _Stored:
    """A conversation up to a response. `data` is JSON: system, tools and messages."""

    data: bytes
    used_at: float
    is_in_flight: bool = False
    is_continued: bool = False


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """The thread of a request: the response that it continues, None if it creates one, and all it says."""

    previous_message_id: str | None
    whole: dict[str, Any]


class MessageThreads:
    """The threads of all owners."""

    def __init__(self) -> None:
        self._stored: OrderedDict[tuple[bytes, str], _Stored] = OrderedDict()
        self._bytes = 0

    def resolve(
        self, asked: dict[str, Any], owner: bytes, betas: Collection[str], *, now: float
    ) -> ThreadUse | Refusal | None:
        """Return the whole conversation of a request, or why it is refused; None for one without a `thread`."""
        thread = asked.get("thread")
        if thread is None:
            return None
        if BETA not in betas:
            return Refusal(message="thread: Extra inputs are not permitted")
        if not isinstance(thread, dict) or thread.get("type") not in ("create", "continue"):
            return Refusal(message="thread: Input tag does not match any of: 'create', 'continue'")
        own = {name: said for name, said in asked.items() if name != "thread"}
        found = [name for name in _UNSUPPORTED if asked.get(name) is not None]
        if found:
            return _refusal(
                "thread_unsupported_request", f"Threads do not support {', '.join(found)}.", unsupported=found
            )
        if thread["type"] == "create":
            return ThreadUse(None, own)
        previous = thread.get("previous_message_id")
        if not isinstance(previous, str):
            return Refusal(message="thread.continue.previous_message_id: Field required")
        return self._continued(own, owner, previous, now)

    def _continued(self, own: dict[str, Any], owner: bytes, previous: str, now: float) -> ThreadUse | Refusal:
        stored = self._usable(owner, previous, now)
        if isinstance(stored, Refusal):
            return stored
        held = msgspec.json.decode(stored.data)
        repeated = [name for name in _FIXED if name in own]
        changed = [name for name in repeated if own[name] != held.get(name)]
        if changed:
            return _refusal(
                "thread_fingerprint_mismatch",
                f"{', '.join(changed)}: differs from the value stored with the thread.",
            )
        if repeated:
            return Refusal(message=f"{repeated[0]}: Not permitted when a thread is continued")
        if not isinstance(own.get("messages"), list):
            return Refusal(message="messages: Input should be a valid list")
        messages = [*held["messages"], *own["messages"]]
        return ThreadUse(previous, held | own | {"messages": messages})

    def claim(self, owner: bytes, use: ThreadUse, *, now: float) -> Refusal | None:
        """Have a request be the one that continues its thread, or say why it is not."""
        if use.previous_message_id is None:
            return None
        stored = self._usable(owner, use.previous_message_id, now)
        if isinstance(stored, Refusal):
            return stored
        stored.is_in_flight, stored.used_at = True, now
        return None

    def release(self, owner: bytes, use: ThreadUse) -> None:
        """Let the thread be continued again, if it was not."""
        stored = self._stored.get((owner, use.previous_message_id or ""))
        if stored is not None:
            stored.is_in_flight = False

    def store(self, owner: bytes, use: ThreadUse, message_id: str, content: Any, *, now: float) -> None:
        """Keep the conversation up to a response, which has been sent."""
        previous = self._stored.get((owner, use.previous_message_id or ""))
        if previous is not None:
            previous.is_continued = True
        kept = {name: use.whole[name] for name in _FIXED if name in use.whole}
        messages = [_unmarked(message) for message in use.whole["messages"]]
        messages += [{"role": "assistant", "content": content}] if content else []
        data = msgspec.json.encode(kept | {"messages": messages})
        self._stored[owner, message_id] = _Stored(data, now)
        self._bytes += len(data)
        while self._bytes > _MAX_BYTES:
            _, oldest = self._stored.popitem(last=False)
            self._bytes -= len(oldest.data)

    def _usable(self, owner: bytes, previous: str, now: float) -> _Stored | Refusal:
        stored = self._stored.get((owner, previous))
        if stored is None or now - stored.used_at > TTL_SECONDS:
            return _refusal("thread_not_found", f"No usable thread was found for '{previous}'.", status=404)
        if stored.is_continued:
            return _refusal("thread_already_continued", f"'{previous}' has already been continued.")
        if stored.is_in_flight:
            return _refusal("thread_continue_in_flight", f"Another request is continuing from '{previous}'.")
        return stored


def _refusal(code: str, message: str, *, status: int = 400, unsupported: Collection[str] = ()) -> Refusal:
    details: dict[str, object] = {"error_code": code}
    if unsupported:
        details["unsupported"] = list(unsupported)
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    return Refusal(message=message, status=status, kind=kind, details=details)


def _unmarked(value: Any) -> Any:
    """Return a message or block without breakpoints: each belongs to the request that carries it."""
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _unmarked(item) if name in _HOLDS_BLOCKS else item
        for name, item in as_record(value).items()
        if name != "cache_control"
    }
