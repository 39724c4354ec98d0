"""Message threads that the gateway keeps itself, so that any upstream can serve them.

Only in memory, and only within limits: a thread that is gone is answered with Anthropic's `thread_not_found`,
after which clients send the whole conversation again. As at Anthropic, each response can be continued once.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from blake3 import blake3

from foveate.engine.exchange import Exchange
from foveate.errors import ThreadRefused
from foveate.gateway.asks import Ask
from foveate.gateway.doors import Family
from foveate.gateway.headers import KEYS
from foveate.gateway.routing import ThreadMode
from foveate.session.counting import beside
from foveate.values import Format
from foveate.wire.large_json import LARGE_BYTES
from foveate.wire.threads import (
    ALREADY_CONTINUED,
    CONTINUE_IN_FLIGHT,
    FINGERPRINT_MISMATCH,
    NOT_FOUND,
    UNSUPPORTED_REQUEST,
    ThreadHistory,
    ThreadRequest,
    answer_message,
    changed_fields,
    may_use_thread,
    next_history,
    read_thread_request,
    whole_body,
    without_threads_beta,
)

MAX_BYTES = 256 * 1024 * 1024
"""Limit for all threads of a process; the ones that were not used for longest are dropped."""
TTL_SECONDS = 3600.0
"""A thread is dropped after so long without a request."""


_BETA_HEADER = "anthropic-beta"
# An entry takes about as much memory beside its conversation.
_ENTRY_BYTES = 1024
# A stream of so many bytes takes milliseconds to rebuild.
_LARGE_ANSWER_BYTES = 64 * 1024
# So many bytes of a history are copied while one of an answer is read.
_COPIED_PER_READ = 64
_SCANNED_PER_READ = 8
# To check the keys of so many bytes takes milliseconds too.
_LONG_BYTES = 128 * 1024

_REPLAY = 'send the whole conversation with `thread: {"type": "create"}`'
_MESSAGES = {
    NOT_FOUND: f"No usable thread was found for this `previous_message_id`: {_REPLAY}.",
    ALREADY_CONTINUED: "The response that `previous_message_id` names has already been continued: continue"
    f" from the latest response of the thread, or {_REPLAY}.",
    CONTINUE_IN_FLIGHT: "Another request is still continuing from the same `previous_message_id`: wait for"
    f" it, or {_REPLAY}.",
    UNSUPPORTED_REQUEST: "This gateway does not keep message threads for this upstream (`threads: refuse`):"
    " send the whole conversation without `thread`.",
}


@dataclass(slots=True)
class _Entry:
    """A response: the conversation up to it, or the code of the error for requests that continue from it."""

    history: ThreadHistory | None
    error_code: str = NOT_FOUND
    is_in_flight: bool = False
    used_at: float = 0.0

    @property
    def size_bytes(self) -> int:
        return _ENTRY_BYTES + (0 if self.history is None else self.history.size_bytes)


class Threads:
    """The conversations of threads, each under the id of its latest response and the digest of its owner."""

    def __init__(
        self, clock: Callable[[], float], *, max_bytes: int = MAX_BYTES, ttl_seconds: float = TTL_SECONDS
    ) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._ttl_seconds = ttl_seconds
        self._entries: OrderedDict[tuple[bytes, str], _Entry] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def history(self, owner: bytes, message_id: str) -> ThreadHistory:
        """Return the conversation up to a response, and leave it to be continued.

        Raises:
            ThreadRefused: there is none, or it was continued.
        """
        self._evict()
        entry = self._entries.get((owner, message_id))
        if entry is None or entry.history is None:
            raise refused(NOT_FOUND if entry is None else entry.error_code)
        return entry.history

    def claim(self, owner: bytes, message_id: str) -> ThreadHistory:
        """Return the conversation up to a response for a request that continues it, until it is released.

        Raises:
            ThreadRefused: there is none, it was continued, or another request has claimed it.
        """
        history = self.history(owner, message_id)
        entry = self._entries[owner, message_id]
        if entry.is_in_flight:
            raise refused(CONTINUE_IN_FLIGHT)
        entry.is_in_flight = True
        self._touch((owner, message_id), entry)
        return history

    def release(self, owner: bytes, message_id: str) -> None:
        """Let others continue from a response that was claimed in vain."""
        entry = self._entries.get((owner, message_id))
        if entry is not None:
            entry.is_in_flight = False

    def mark_continued(self, owner: bytes, message_id: str) -> None:
        """Drop the conversation up to a response that was continued, and remember that it was."""
        if (owner, message_id) in self._entries:
            self._put((owner, message_id), _Entry(None, ALREADY_CONTINUED))

    def store(self, owner: bytes, message_id: str, history: ThreadHistory) -> None:
        """Keep the conversation up to a response.

        Some servers give several responses the same id. Which conversation such an id means is not known, so
        none can be continued by it.
        """
        key = (owner, message_id)
        is_ambiguous = key in self._entries
        self._put(key, _Entry(None) if is_ambiguous else _Entry(history))
        self._evict()

    def _put(self, key: tuple[bytes, str], entry: _Entry) -> None:
        before = self._entries.get(key)
        self.size_bytes += entry.size_bytes - (0 if before is None else before.size_bytes)
        self._entries[key] = entry
        self._touch(key, entry)

    def _touch(self, key: tuple[bytes, str], entry: _Entry) -> None:
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
    """One request of a thread that the gateway keeps.

    `ask` and `body` are those of the whole request. `is_kept`: the conversation with its answer is stored.
    """

    threads: Threads
    owner: bytes
    request: ThreadRequest
    history: ThreadHistory | None
    ask: Ask
    body: bytes
    is_kept: bool = field(default=False, init=False)

    async def finish(self, exchange: Exchange) -> None:
        """Keep the conversation with the answer, if that is whole. The client does not have all of it yet."""
        answer = exchange.answer
        is_broken = exchange.streams and not exchange.is_whole
        if exchange.status != 200 or is_broken or answer is None or self.request.is_compaction or self.is_kept:
            return
        held_bytes = 0 if self.history is None else self.history.size_bytes
        found = await beside(
            lambda: self._after(answer, is_stream=exchange.streams),
            len(answer) + len(self.request.body) // _SCANNED_PER_READ + held_bytes // _COPIED_PER_READ,
            least_bytes=_LARGE_ANSWER_BYTES,
        )
        if found is None:
            return
        self.is_kept = True
        previous = self.request.previous_message_id
        if previous is not None:
            self.threads.mark_continued(self.owner, previous)
        self.threads.store(self.owner, *found)

    def _after(self, answer: bytes, *, is_stream: bool) -> tuple[str, ThreadHistory] | None:
        found = answer_message(answer, is_stream=is_stream)
        return None if found is None else (found[0], next_history(self.request, self.history, found[1]))

    def close(self) -> None:
        """End the request. If no answer was kept, others may continue from the same response."""
        previous = self.request.previous_message_id
        if previous is not None and not self.is_kept:
            self.threads.release(self.owner, previous)


async def begin_turn(
    threads: Threads, mode: ThreadMode, ask: Ask, agent: str, body: bytes, *, claims: bool
) -> ThreadTurn | None:
    """Make a request of a thread whole; None for other requests, and for those that go out as they came.

    One that `claims` is the one that continues the thread, until its turn is closed.

    Raises:
        ThreadRefused: the thread cannot be continued, or not by this request, or threads are refused.
        MalformedRequest: its `thread` cannot be understood, or it has the same key twice.
    """
    if ask.spoken is not Format.ANTHROPIC or ask.door.family is not Family.ANTHROPIC or mode is ThreadMode.PASS:
        return None
    if len(body) < LARGE_BYTES and not may_use_thread(body):
        return None
    request = await beside(lambda: read_thread_request(body), len(body), least_bytes=_LONG_BYTES)
    if request is None:
        return None
    if mode is ThreadMode.REFUSE:
        raise refused(UNSUPPORTED_REQUEST)
    owner, history, previous = thread_owner(ask, agent), None, request.previous_message_id
    if previous is not None:
        history = continued = threads.history(owner, previous)
        changed = await beside(
            lambda: changed_fields(request, continued), request.fixed_bytes, least_bytes=_LONG_BYTES
        )
        if changed:
            raise refused(FINGERPRINT_MISMATCH, _mismatch(changed))
    size_bytes = len(request.body) + (0 if history is None else history.size_bytes)
    whole = await beside(lambda: whole_body(request, history), size_bytes, least_bytes=LARGE_BYTES)
    if claims and previous is not None:  # the last thing that can fail, so that every claim is released
        threads.claim(owner, previous)
    return ThreadTurn(
        threads=threads,
        owner=owner,
        request=request,
        history=history,
        ask=_without_beta(ask),
        body=whole,
    )


def thread_owner(ask: Ask, agent: str) -> bytes:
    """Return a digest of the agent and of every credential: nobody else can continue its threads.

    The same key may come as `x-api-key` or as `authorization: Bearer`.
    """
    keys = sorted({said.removeprefix(b"Bearer ") for name, said in ask.raw_headers if name in KEYS})
    return blake3(b"\0\0".join((b"thread", agent.encode("utf-8", "replace"), *keys))).digest(16)


def refused(code: str, message: str = "") -> ThreadRefused:
    """Return the error for a request that uses a thread."""
    return ThreadRefused(code, message or _MESSAGES[code])


def _mismatch(changed: list[str]) -> str:
    names = " and ".join(f"`{name}`" for name in changed)
    return f"{names} cannot change on a thread: leave them out, or {_REPLAY}."


def _without_beta(ask: Ask) -> Ask:
    name = _BETA_HEADER.encode()
    kept = without_threads_beta(
        ",".join(said.decode("latin-1") for key, said in ask.raw_headers if key == name)
    )
    others = [pair for pair in ask.raw_headers if pair[0] != name]
    headers = {key: said for key, said in ask.headers.items() if key != _BETA_HEADER}
    if kept:
        others.append((name, kept.encode("latin-1")))
        headers[_BETA_HEADER] = kept
    return msgspec.structs.replace(ask, raw_headers=others, headers=headers)
