"""Read the body of a request within limits of size and time, and of the memory of all bodies in a process.

Bodies are decompressed, so that they can be parsed and counted.
"""

import asyncio
import ctypes
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from threading import Lock

from foveate.formats.response.errors import ErrorResponse, make_body_too_large_error, make_status_error
from foveate.gateway.forwarded_headers import Headers
from foveate.gateway.request import Receive
from foveate.gateway.server.protocol import RequestConnection
from foveate.model import Format
from foveate.tokens.worker_threads import run_in_thread

_RETRY_AFTER_SECONDS = 5


class BodyRejected(Exception):
    """A body that is not read completely. `code` names the reason in logs and metrics."""

    code = ""
    may_retry = True
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def response(self, api_format: Format) -> ErrorResponse:
        raise NotImplementedError


class TooLarge(BodyRejected):
    code = "too_large"
    may_retry = False

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"more than {limit_bytes:,} bytes")
        self._limit_bytes = limit_bytes

    def response(self, api_format: Format) -> ErrorResponse:
        return make_body_too_large_error(api_format, self._limit_bytes)


class Stalled(BodyRejected):
    """A body of which nothing arrived for `idle_seconds`."""

    code = "stalled"

    def __init__(self, idle_seconds: float) -> None:
        super().__init__("the client stopped sending the body")
        self._idle_seconds = idle_seconds

    def response(self, api_format: Format) -> ErrorResponse:
        return make_status_error(
            api_format, 408, f"no more of the request body arrived for {self._idle_seconds:g} seconds"
        )


class TooSlow(BodyRejected):
    """A body that was not complete after `limit_seconds`."""

    code = "body_timeout"

    def __init__(self, limit_seconds: float) -> None:
        super().__init__(f"the body was not complete after {limit_seconds:g} seconds")
        self._limit_seconds = limit_seconds

    def response(self, api_format: Format) -> ErrorResponse:
        message = f"the request body was not complete after {self._limit_seconds:g} seconds"
        return make_status_error(api_format, 408, message)


class NoRoom(BodyRejected):
    code = "no_memory"
    headers = ((b"retry-after", b"%d" % _RETRY_AFTER_SECONDS),)

    def __init__(self) -> None:
        super().__init__("no memory left for the body")

    def response(self, api_format: Format) -> ErrorResponse:
        message = "the gateway is handling too many large requests; try again in a few seconds"
        return make_status_error(api_format, 503, message)


_CONTENT_ENCODING = b"content-encoding"
# No honest client uses more encodings or members.
_MAX_ENCODINGS, _MAX_MEMBERS = 4, 1024
_PIECE_BYTES = 64 * 1024
_OUTPUT_PIECE_BYTES = 1024 * 1024
# Smaller bodies are decompressed faster than a thread starts; but a few bytes of Brotli or zstd can be
# megabytes.
_SMALL_BODY_BYTES = 1024
# One call decompresses all of its input, and four bytes of it can be a block of 128 KB.
_ZSTD_PIECE_BYTES = 256
# RFC 9659: the largest window of this content encoding.
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS

ReserveMemory = Callable[[int], None]


def _reserve_nothing(_: int) -> None: ...


def parse_content_encodings(headers: Headers) -> tuple[str, ...]:
    """Return the content encodings in the order in which they were applied (RFC 9110, 8.4)."""
    values = [value.decode("latin-1") for name, value in headers if name == _CONTENT_ENCODING]
    if not values:
        return ()
    words = (word.strip().lower() for value in values for word in value.split(","))
    return tuple(word for word in words if word not in ("", "identity"))


def strip_content_encoding(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name != _CONTENT_ENCODING]


async def decompress_in_thread(
    body: bytes, encodings: tuple[str, ...], *, limit_bytes: int, grow: ReserveMemory = _reserve_nothing
) -> bytes | None:
    if not encodings:
        return body
    if len(body) <= _SMALL_BODY_BYTES and _DENSE_ENCODINGS.isdisjoint(encodings):
        return decompress(body, encodings, limit_bytes=limit_bytes, grow=grow)
    return await asyncio.to_thread(decompress, body, encodings, limit_bytes=limit_bytes, grow=grow)


def decompress(
    body: bytes, encodings: tuple[str, ...], *, limit_bytes: int, grow: ReserveMemory = _reserve_nothing
) -> bytes | None:
    """Decompress a body; None if an encoding is unknown or the data is corrupt.

    `grow` is called with the size of each decompressed piece.

    Raises:
        TooLarge: it has more than `limit_bytes`; the rest is not decompressed.
        NoRoom: `grow` has no memory for it.
    """
    if len(encodings) > _MAX_ENCODINGS:
        return None
    for encoding in reversed(encodings):
        decoder = _DECODERS.get(encoding)
        if decoder is None:
            return None
        try:
            body = decoder(body, _DecompressedBody(limit_bytes, grow))
        except (zlib.error, EOFError):
            return None
    return body


class _DecompressedBody:
    def __init__(self, limit_bytes: int, grow: ReserveMemory) -> None:
        self._limit_bytes = limit_bytes
        self._grow = grow
        self._pieces = BytesIO()

    def inflate(self, body: bytes, at: int, wbits: int) -> int:
        """Decompress the data that starts at `at`, and return the position of its end."""
        decompressor = zlib.decompressobj(wbits)
        view = memoryview(body)
        compressed: bytes | memoryview = b""
        has_more = False
        while not decompressor.eof:
            if not compressed and not has_more:
                if at == len(body):
                    raise EOFError
                # In pieces, since zlib copies everything behind the end of the stream.
                compressed = view[at : at + _PIECE_BYTES]
                at += len(compressed)
            left_bytes = self._limit_bytes - self._pieces.tell()
            max_bytes = min(left_bytes + 1, _OUTPUT_PIECE_BYTES)
            piece = decompressor.decompress(compressed, max_bytes)
            self.add(piece)
            compressed, has_more = decompressor.unconsumed_tail, len(piece) == max_bytes
        return at - len(decompressor.unused_data)

    def add(self, piece: bytes) -> None:
        if len(piece) > self._limit_bytes - self._pieces.tell():
            raise TooLarge(self._limit_bytes)
        self._grow(len(piece))
        self._pieces.write(piece)

    def restart(self) -> None:
        self._pieces = BytesIO()

    def getvalue(self) -> bytes:
        return self._pieces.getvalue()


def _decompress_gzip(body: bytes, output: _DecompressedBody) -> bytes:
    at = 0
    for _ in range(_MAX_MEMBERS):
        if at == len(body):
            return output.getvalue()
        at = output.inflate(body, at, _GZIP)
    raise EOFError


def _decompress_deflate(body: bytes, output: _DecompressedBody) -> bytes:
    """Decompress deflate data; some clients leave out the zlib header."""
    try:
        output.inflate(body, 0, _ZLIB)
    except zlib.error:
        output.restart()
        output.inflate(body, 0, _RAW)
    return output.getvalue()


def _decompress_zstd(body: bytes, output: _DecompressedBody) -> bytes:
    """Decompress all frames of a zstd body (RFC 8878)."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    view = memoryview(body)
    at = 0
    for _ in range(_MAX_MEMBERS):
        if at == len(body):
            return output.getvalue()
        frame = decompressor.decompressobj()
        while not frame.eof:
            if at == len(body):
                raise EOFError
            piece = view[at : at + _ZSTD_PIECE_BYTES]
            at += len(piece)
            try:
                output.add(frame.decompress(piece))
            except zstandard.ZstdError as error:
                raise EOFError from error
        at -= len(frame.unused_data)
    raise EOFError


def _decompress_brotli(body: bytes, output: _DecompressedBody) -> bytes:
    """Decompress the one stream of a Brotli body (RFC 7932)."""
    import brotli

    decompressor = brotli.Decompressor()
    view = memoryview(body)
    at = 0
    while not decompressor.is_finished():
        piece = view[:0]
        if decompressor.can_accept_more_data():
            if at == len(body):
                raise EOFError
            piece = view[at : at + _PIECE_BYTES]
            at += len(piece)
        try:
            output.add(decompressor.process(piece, output_buffer_limit=_OUTPUT_PIECE_BYTES))
        except brotli.error as error:
            raise EOFError from error
    if at < len(body):
        raise EOFError
    return output.getvalue()


_DECODERS: dict[str, Callable[[bytes, _DecompressedBody], bytes]] = {
    "gzip": _decompress_gzip,
    "x-gzip": _decompress_gzip,
    "deflate": _decompress_deflate,
    "zstd": _decompress_zstd,
    "br": _decompress_brotli,
}
_DENSE_ENCODINGS = frozenset(("zstd", "br"))


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
    __slots__ = ("_is_released", "_lock", "_memory", "size_bytes")

    def __init__(self, memory: BodyMemory, size_bytes: int) -> None:
        self._memory = memory
        self._lock = Lock()
        self._is_released = False
        self.size_bytes = size_bytes

    def grow(self, added_bytes: int) -> None:
        """Reserve more bytes. Thread-safe: a thread may still decompress a body whose request was cancelled.

        Raises:
            NoRoom: there is no memory for them, or the reservation was released.
        """
        with self._lock:
            if self._is_released:
                raise NoRoom
            self._resize(self.size_bytes + added_bytes)

    def resize(self, size_bytes: int) -> None:
        """Change the reserved size.

        Raises:
            NoRoom: there is no memory for the larger size.
        """
        with self._lock:
            self._resize(size_bytes)

    def release(self) -> None:
        """Give all memory back, for good."""
        with self._lock:
            self._is_released = True
            self._resize(0)

    def _resize(self, size_bytes: int) -> None:
        self._memory.resize_reservation(self.size_bytes, size_bytes)
        self.size_bytes = size_bytes


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

    def take(self) -> bytes:
        """Return the data, and hold it no longer: a compressed body is freed once it is decompressed."""
        data, self.data = self.data, b""
        return data


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
