"""Read the body of a request within limits of size and time, and of the memory of all bodies in a process."""

import asyncio
import ctypes
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock

from foveate.gateway.body.errors import NoRoom, Stalled, TooLarge, TooSlow
from foveate.gateway.request import Receive
from foveate.gateway.server.protocol import RequestConnection
from foveate.tokens.worker_threads import run_in_thread

SMALL_BODY_BYTES = 1024 * 1024
"""Bodies up to this size have a reserved share, so that they do not wait for large ones."""

# The reserved share of the limit.
_RESERVED_SHARE = 1 / 8
# A compressed body is in memory twice while it is decompressed.
MIN_BODIES = 3
# Each waiting request has a few hundred KiB in its socket's buffers, which are not counted here.
_MAX_WAITING = 256
# Work after the response still uses a body for seconds.
_TRIM_SECONDS, _TRIMS = 2.0, 3


class BodyMemory:
    """Counts the bytes of request bodies in memory, and admits new bodies while there is room.

    Only a request that holds no memory waits. A body that turns out larger than announced (chunked or
    compressed) gets more memory at once or not at all, so requests never deadlock. While a large body waits,
    small ones use only their reserved share, so neither kind starves the other.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # bodies are decompressed in threads
        self._limit_bytes = self._reserved_bytes = 0
        self._large_bytes = self._small_bytes = 0
        self._waiting_small: deque[_WaitingRequest] = deque()
        self._waiting_large: deque[_WaitingRequest] = deque()
        self._remaining_trims = 0

    @property
    def used_bytes(self) -> int:
        return self._large_bytes + self._small_bytes

    def resize(self, limit_bytes: int, *, max_body_bytes: int) -> None:
        """Set the limit, but never below what the largest body needs to be read and decompressed."""
        self._limit_bytes = max(limit_bytes, MIN_BODIES * max_body_bytes)
        self._reserved_bytes = int(self._limit_bytes * _RESERVED_SHARE)

    async def admit(self, size_bytes: int, *, wait_seconds: float) -> "BodyReservation":
        """Reserve memory for a body; wait for other requests if there is not enough.

        Raises:
            NoRoom: nothing was released in time, or too many requests wait.
        """
        queue = self._waiting_large if size_bytes > SMALL_BODY_BYTES else self._waiting_small
        with self._lock:
            if not queue and self._has_room(size_bytes):
                return self._reserve(size_bytes)
            if len(self._waiting_large) + len(self._waiting_small) >= _MAX_WAITING:
                raise NoRoom
            waiting_request = _WaitingRequest(size_bytes)
            queue.append(waiting_request)
        try:
            async with asyncio.timeout(wait_seconds):
                await waiting_request.is_admitted.wait()
        except TimeoutError:
            pass  # it may have been admitted at the last moment
        except asyncio.CancelledError:
            if waiting_request.reservation is not None:
                waiting_request.reservation.release()
            raise
        finally:
            if waiting_request.reservation is None:
                queue.remove(waiting_request)
                self._admit_waiting()
        if waiting_request.reservation is None:
            raise NoRoom
        return waiting_request.reservation

    def _reserve(self, size_bytes: int) -> "BodyReservation":
        self._count(size_bytes, 1)
        return BodyReservation(self, size_bytes)

    def _has_room(self, size_bytes: int, *, replaced_bytes: int = 0) -> bool:
        large, small = self._large_bytes, self._small_bytes
        if replaced_bytes > SMALL_BODY_BYTES:
            large -= replaced_bytes
        else:
            small -= replaced_bytes
        if large + small + size_bytes > self._limit_bytes:
            return False
        if size_bytes > SMALL_BODY_BYTES:
            return large + size_bytes <= self._limit_bytes - self._reserved_bytes
        return bool(replaced_bytes) or not self._waiting_large or small + size_bytes <= self._reserved_bytes

    def _count(self, size_bytes: int, sign: int) -> None:
        if size_bytes > SMALL_BODY_BYTES:
            self._large_bytes += sign * size_bytes
        else:
            self._small_bytes += sign * size_bytes

    def resize_reservation(self, held_bytes: int, size_bytes: int) -> None:
        """Change the size of a reservation; only the event loop may shrink it.

        Raises:
            NoRoom: there is no memory for the larger size.
        """
        with self._lock:
            if size_bytes > held_bytes and not self._has_room(size_bytes, replaced_bytes=held_bytes):
                raise NoRoom
            self._count(held_bytes, -1)
            self._count(size_bytes, 1)
        if size_bytes < held_bytes:
            self._admit_waiting()
            if held_bytes > SMALL_BODY_BYTES:
                if not self._remaining_trims:
                    asyncio.get_running_loop().call_later(_TRIM_SECONDS, self._trim)
                self._remaining_trims = _TRIMS

    def _trim(self) -> None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, _return_free_memory)
        self._remaining_trims -= 1
        if self._remaining_trims:
            loop.call_later(_TRIM_SECONDS, self._trim)

    def _admit_waiting(self) -> None:
        """Admit waiting requests that fit, each kind in order."""
        with self._lock:
            for queue in (self._waiting_large, self._waiting_small):
                while queue and self._has_room(queue[0].size_bytes):
                    first = queue.popleft()
                    first.reservation = self._reserve(first.size_bytes)
                    first.is_admitted.set()


def _return_free_memory() -> None:
    """Make the C library return memory to the system; it keeps hundreds of MB after a few large bodies."""
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


class _WaitingRequest:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_admitted = asyncio.Event()
        self.reservation: BodyReservation | None = None


class BodyReservation:
    __slots__ = ("_memory", "size_bytes")

    def __init__(self, memory: BodyMemory, size_bytes: int) -> None:
        self._memory = memory
        self.size_bytes = size_bytes

    def grow(self, added_bytes: int) -> None:
        """Reserve more bytes. Thread-safe.

        Raises:
            NoRoom: there is no memory for them.
        """
        self.resize(self.size_bytes + added_bytes)

    def resize(self, size_bytes: int) -> None:
        """Change the reserved size.

        Raises:
            NoRoom: there is no memory for the larger size.
        """
        self._memory.resize_reservation(self.size_bytes, size_bytes)
        self.size_bytes = size_bytes

    def release(self) -> None:
        self.resize(0)


# Memory reserved at first for a body of unknown length.
_INITIAL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Limits for request bodies.

    `max_bytes` is for one body and `memory_bytes` for all together. `idle_seconds` may pass without a byte,
    `total_seconds` until a body is complete, and `memory_seconds` until there is memory for it.
    """

    max_bytes: int = 64 * 1024 * 1024
    memory_bytes: int = 512 * 1024 * 1024
    idle_seconds: float = 60.0
    total_seconds: float = 300.0
    memory_seconds: float = 30.0


@dataclass(slots=True)
class BufferedBody:
    data: bytes
    reservation: BodyReservation


async def read_body(
    connection: RequestConnection | None,
    receive: Receive,
    headers: Mapping[str, str],
    *,
    limits: BodyLimits,
    memory: BodyMemory,
) -> BufferedBody | None:
    """Read a body once there is memory for it; None if the client disconnects before it is complete.

    The caller releases the memory. Header names are lower case.

    Raises:
        TooLarge: the body has or announces more than `max_bytes`; the rest is not read.
        Stalled: nothing arrived for `idle_seconds`.
        TooSlow: it was not complete after `total_seconds`.
        NoRoom: there was no memory for it.
    """
    memory.resize(limits.memory_bytes, max_body_bytes=limits.max_bytes)
    announced_bytes = _announced_bytes(headers)
    if announced_bytes > limits.max_bytes:
        raise TooLarge(limits.max_bytes)
    data = connection.take_complete_body() if connection is not None else None
    if data is not None and len(data) > limits.max_bytes:
        raise TooLarge(limits.max_bytes)
    size_bytes = announced_bytes if data is None else len(data)
    reservation = await memory.admit(size_bytes, wait_seconds=limits.memory_seconds)
    try:
        if data is None:
            data = await _receive_body(receive, limits, reservation)
    finally:
        if data is None:
            reservation.release()
    return None if data is None else BufferedBody(data, reservation)


def _announced_bytes(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length", "")
    if length.isdecimal():
        return int(length)
    return _INITIAL_BYTES if "transfer-encoding" in headers else 0


async def _receive_body(receive: Receive, limits: BodyLimits, reservation: BodyReservation) -> bytes | None:
    loop = asyncio.get_running_loop()
    end = loop.time() + limits.total_seconds
    # A growing buffer would be copied again and again, on the event loop.
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async with asyncio.timeout(None) as timeout:
            while True:
                timeout.reschedule(min(loop.time() + limits.idle_seconds, end))
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                parts.append(message.get("body", b""))
                size_bytes += len(parts[-1])
                if size_bytes > limits.max_bytes:
                    raise TooLarge(limits.max_bytes)
                if size_bytes > reservation.size_bytes:
                    reservation.resize(min(max(size_bytes, 2 * reservation.size_bytes), limits.max_bytes))
                if not message.get("more_body"):
                    reservation.resize(size_bytes)
                    break
    except TimeoutError:
        raise TooSlow(limits.total_seconds) if loop.time() >= end else Stalled(limits.idle_seconds) from None
    if size_bytes <= SMALL_BODY_BYTES:
        return b"".join(parts)
    # `join` copies large parts without the interpreter lock.
    return await run_in_thread(partial(b"".join, parts), size_bytes)
