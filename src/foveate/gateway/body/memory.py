"""Limits the memory of all request bodies of a process."""

import asyncio
import ctypes
from collections import deque
from contextlib import suppress
from threading import Lock

from foveate.gateway.body.errors import NoRoom

SMALL_BODY_BYTES = 1024 * 1024
"""Bodies up to this size have a reserved share, so that they do not wait for large ones."""

# The reserved share of the limit.
_RESERVED_SHARE = 1 / 8
# A compressed body is in memory twice while it is decompressed.
MIN_BODIES = 3
# Each waiting request has a few hundred KiB in its socket's buffers, which are not counted here.
_MAX_WAITING = 256
_TRIM_SECONDS = 1.0


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
        self._is_trim_due = False

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

    def _has_room(self, size_bytes: int, *, instead_of: int = 0) -> bool:
        large, small = self._large_bytes, self._small_bytes
        if instead_of > SMALL_BODY_BYTES:
            large -= instead_of
        else:
            small -= instead_of
        if large + small + size_bytes > self._limit_bytes:
            return False
        if size_bytes > SMALL_BODY_BYTES:
            return large + size_bytes <= self._limit_bytes - self._reserved_bytes
        return bool(instead_of) or not self._waiting_large or small + size_bytes <= self._reserved_bytes

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
            if size_bytes > held_bytes and not self._has_room(size_bytes, instead_of=held_bytes):
                raise NoRoom
            self._count(held_bytes, -1)
            self._count(size_bytes, 1)
        if size_bytes < held_bytes:
            self._admit_waiting()
            if held_bytes > SMALL_BODY_BYTES and not self._is_trim_due:
                self._is_trim_due = True
                asyncio.get_running_loop().call_later(_TRIM_SECONDS, self._trim)

    def _trim(self) -> None:
        self._is_trim_due = False
        asyncio.get_running_loop().run_in_executor(None, _return_free_memory)

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
    """Memory for one body, until it is released."""

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
        """Release the memory, and admit waiting requests."""
        self.resize(0)
