"""Message threads that the gateway stores itself, so that any upstream can serve them.

Threads are kept only in memory and within limits. A missing thread is answered with Anthropic's
`thread_not_found`, after which clients send the whole conversation again. As at Anthropic, each response can be
continued once.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from blake3 import blake3

from foveate.engine.exchange import Exchange
from foveate.errors import MalformedRequest, ThreadRefused
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.formats.message_threads import (
    ALREADY_CONTINUED,
    CONTINUE_IN_FLIGHT,
    FINGERPRINT_MISMATCH,
    NOT_FOUND,
    UNSUPPORTED_REQUEST,
    ThreadHistory,
    ThreadRequest,
    expand_body,
    extend_history,
    find_changed_fields,
    may_use_thread,
    read_response_message,
    read_thread_request,
    remove_threads_beta,
)
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.forwarded_headers import KEY_HEADERS
from foveate.gateway.request import GATEWAY_KEY_HEADER, ClientRequest
from foveate.gateway.routing import ThreadMode
from foveate.model import Format
from foveate.session.counting import run_in_thread_if_large

MAX_BYTES = 256 * 1024 * 1024
"""Limit for all threads of a process. The least recently used ones are dropped."""
TTL_SECONDS = 3600.0
"""Threads without a request for this long are dropped."""


_BETA_HEADER = "anthropic-beta"
_ALL_KEY_HEADERS = KEY_HEADERS | {GATEWAY_KEY_HEADER.encode()}
# Approximate overhead of an entry.
_ENTRY_BYTES = 1024
# Rebuilding a stream of this size takes milliseconds.
_LARGE_RESPONSE_BYTES = 64 * 1024
# Bytes of a history copied in the time of reading one byte of a response.
_COPIED_PER_READ = 64
_SCANNED_PER_READ = 8
# Checking the keys of a body of this size takes milliseconds.
_LARGE_REQUEST_BYTES = 128 * 1024

_REPLAY_ADVICE = 'send the whole conversation with `thread: {"type": "create"}`'
_ERROR_MESSAGES = {
    NOT_FOUND: f"No thread was found for this `previous_message_id`: {_REPLAY_ADVICE}.",
    ALREADY_CONTINUED: "The response of this `previous_message_id` has already been continued: continue from"
    f" the latest response of the thread, or {_REPLAY_ADVICE}.",
    CONTINUE_IN_FLIGHT: "Another request is still continuing from the same `previous_message_id`: wait for"
    f" it, or {_REPLAY_ADVICE}.",
    UNSUPPORTED_REQUEST: "This gateway does not keep message threads for this upstream (`threads: refuse`):"
    " send the whole conversation without `thread`.",
}


@dataclass(slots=True)
class _StoredResponse:
    """The conversation up to a response, or the error code for requests that continue from it."""

    history: ThreadHistory | None
    error_code: str = NOT_FOUND
    is_in_flight: bool = False
    used_at: float = 0.0

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + (0 if self.history is None else self.history.size_bytes)


class ThreadStore:
    """Conversations of threads, by owner digest and the id of their latest response."""

    def __init__(
        self, clock: Callable[[], float], *, max_bytes: int = MAX_BYTES, ttl_seconds: float = TTL_SECONDS
    ) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        self._entries: OrderedDict[tuple[bytes, str], _StoredResponse] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def history(self, owner: bytes, message_id: str) -> ThreadHistory:
        """Return the conversation up to a response without claiming it.

        Raises:
            ThreadRefused: it does not exist or was already continued.
        """
        self._evict()
        entry = self._entries.get((owner, message_id))
        if entry is None or entry.history is None:
            raise thread_error(NOT_FOUND if entry is None else entry.error_code)
        return entry.history

    def claim(self, owner: bytes, message_id: str) -> ThreadHistory:
        """Claim a response for a request that continues it, and return the conversation up to it.

        Raises:
            ThreadRefused: it does not exist, was already continued, or is claimed by another request.
        """
        history = self.history(owner, message_id)
        entry = self._entries[owner, message_id]
        if entry.is_in_flight:
            raise thread_error(CONTINUE_IN_FLIGHT)
        entry.is_in_flight = True
        self._touch((owner, message_id), entry)
        return history

    def release(self, owner: bytes, message_id: str) -> None:
        entry = self._entries.get((owner, message_id))
        if entry is not None:
            entry.is_in_flight = False

    def mark_continued(self, owner: bytes, message_id: str) -> None:
        """Drop the conversation up to a continued response, and remember that it was continued."""
        if (owner, message_id) in self._entries:
            self._put((owner, message_id), _StoredResponse(None, ALREADY_CONTINUED))

    def store(self, owner: bytes, message_id: str, history: ThreadHistory) -> None:
        """Store the conversation up to a response.

        Some servers give several responses the same id. Such an id is ambiguous, so it can never be continued.
        """
        key = (owner, message_id)
        is_ambiguous = key in self._entries
        self._put(key, _StoredResponse(None) if is_ambiguous else _StoredResponse(history))
        self._evict()

    def _put(self, key: tuple[bytes, str], entry: _StoredResponse) -> None:
        previous = self._entries.get(key)
        self.size_bytes += entry.size_bytes - (0 if previous is None else previous.size_bytes)
        self._entries[key] = entry
        self._touch(key, entry)

    def _touch(self, key: tuple[bytes, str], entry: _StoredResponse) -> None:
        entry.used_at = self._clock()
        self._entries.move_to_end(key)

    def _evict(self) -> None:
        oldest = self._clock() - self._ttl_seconds
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.used_at > oldest and self.size_bytes <= self._max_bytes:
                return
            del self._entries[key]
            self.size_bytes -= entry.size_bytes


@dataclass(slots=True, kw_only=True)
class ThreadTurn:
    """One request of a stored thread.

    `request` and `body` are those of the complete request. `has_claim`: no other request can continue from the
    same response until this one ends. `is_stored`: the conversation with its response is stored.
    """

    threads: ThreadStore
    owner: bytes
    thread_request: ThreadRequest
    history: ThreadHistory | None
    request: ClientRequest
    body: bytes
    has_claim: bool
    is_stored: bool = field(default=False, init=False)

    async def finish(self, exchange: Exchange) -> None:
        """Store the conversation with its response if that is complete.

        The client does not have all of the response yet.
        """
        response = exchange.response_body
        is_broken = exchange.is_streaming and not exchange.is_complete
        if (
            exchange.status != 200
            or is_broken
            or response is None
            or self.thread_request.is_compaction
            or self.is_stored
        ):
            return
        held_bytes = 0 if self.history is None else self.history.size_bytes
        stored = await run_in_thread_if_large(
            lambda: self._build_history(response, is_stream=exchange.is_streaming),
            len(response) + len(self.thread_request.body) // _SCANNED_PER_READ + held_bytes // _COPIED_PER_READ,
            min_bytes=_LARGE_RESPONSE_BYTES,
        )
        if stored is None:
            return
        self.is_stored = True
        previous = self.thread_request.previous_message_id
        if previous is not None:
            self.threads.mark_continued(self.owner, previous)
        self.threads.store(self.owner, *stored)

    def _build_history(self, response: bytes, *, is_stream: bool) -> tuple[str, ThreadHistory] | None:
        message = read_response_message(response, is_stream=is_stream)
        if message is None:
            return None
        try:
            return message[0], extend_history(self.thread_request, self.history, message[1])
        except (MalformedRequest, RecursionError):  # some providers accept JSON that Foveate cannot read
            return None

    def close(self) -> None:
        """End the turn. If no response was stored, other requests can continue from the same response."""
        previous = self.thread_request.previous_message_id
        if previous is not None and self.has_claim and not self.is_stored:
            self.threads.release(self.owner, previous)


async def begin_turn(
    threads: ThreadStore, mode: ThreadMode, request: ClientRequest, agent: str, body: bytes, *, claims: bool
) -> ThreadTurn | None:
    """Expand a request of a thread; None for other requests and for those that are forwarded as they are.

    `claims`: the request continues the thread, and holds it until its turn is closed.

    Raises:
        ThreadRefused: the thread cannot be continued by this request, or threads are disabled.
        MalformedRequest: `thread` is invalid, or the body has a duplicate key.
    """
    if (
        request.api_format is not Format.ANTHROPIC
        or request.endpoint.family is not ApiFamily.ANTHROPIC
        or mode is ThreadMode.PASS
    ):
        return None
    if len(body) < LARGE_BYTES and not may_use_thread(body):
        return None
    thread_request = await run_in_thread_if_large(
        lambda: read_thread_request(body), len(body), min_bytes=_LARGE_REQUEST_BYTES
    )
    if thread_request is None:
        return None
    if mode is ThreadMode.REFUSE:
        raise thread_error(UNSUPPORTED_REQUEST)
    owner, history, previous = hash_owner(request, agent), None, thread_request.previous_message_id
    if previous is not None:
        history = continued = threads.history(owner, previous)
        changed = await run_in_thread_if_large(
            lambda: find_changed_fields(thread_request, continued),
            thread_request.fixed_bytes,
            min_bytes=_LARGE_REQUEST_BYTES,
        )
        if changed:
            raise thread_error(FINGERPRINT_MISMATCH, _mismatch_message(changed))
    size_bytes = len(thread_request.body) + (0 if history is None else history.size_bytes)
    complete_body = await run_in_thread_if_large(
        lambda: expand_body(thread_request, history), size_bytes, min_bytes=LARGE_BYTES
    )
    if claims and previous is not None:  # last, so that no later failure leaves the claim behind
        threads.claim(owner, previous)
    return ThreadTurn(
        threads=threads,
        owner=owner,
        thread_request=thread_request,
        history=history,
        request=_remove_threads_beta(request),
        body=complete_body,
        has_claim=claims,
    )


def hash_owner(request: ClientRequest, agent: str) -> bytes:
    """Return a digest of the agent and all its credentials, so that nobody else can continue its threads.

    The same key may be sent as `x-api-key` or as `authorization: Bearer`.
    """
    keys = sorted(
        {value.removeprefix(b"Bearer ") for name, value in request.raw_headers if name in _ALL_KEY_HEADERS}
    )
    return blake3(b"\0\0".join((b"thread", agent.encode("utf-8", "replace"), *keys))).digest(16)


def thread_error(code: str, message: str = "") -> ThreadRefused:
    return ThreadRefused(code, message or _ERROR_MESSAGES[code])


def _mismatch_message(changed: list[str]) -> str:
    names = " and ".join(f"`{name}`" for name in changed)
    return f"{names} cannot change on a thread: leave them out, or {_REPLAY_ADVICE}."


def _remove_threads_beta(request: ClientRequest) -> ClientRequest:
    name = _BETA_HEADER.encode()
    other_betas = remove_threads_beta(
        ",".join(value.decode("latin-1") for key, value in request.raw_headers if key == name)
    )
    others = [pair for pair in request.raw_headers if pair[0] != name]
    headers = {key: value for key, value in request.headers.items() if key != _BETA_HEADER}
    if other_betas:
        others.append((name, other_betas.encode("latin-1")))
        headers[_BETA_HEADER] = other_betas
    return msgspec.structs.replace(request, raw_headers=others, headers=headers)
