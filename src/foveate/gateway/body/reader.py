"""Reads the body of a request within limits of size, time and memory."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO

from foveate.gateway.body.errors import Stalled, TooLarge, TooSlow
from foveate.gateway.body.memory import BodyMemory, BodyReservation
from foveate.gateway.request import Receive
from foveate.gateway.server.protocol import RequestConnection

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
    """A body and its memory reservation."""

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
    announced = _announced_bytes(headers)
    if announced > limits.max_bytes:
        raise TooLarge(limits.max_bytes)
    data = connection.take_complete_body() if connection is not None else None
    if data is not None and len(data) > limits.max_bytes:
        raise TooLarge(limits.max_bytes)
    size_bytes = announced if data is None else len(data)
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
    # Unlike joining pieces at the end, this does not copy a large body again.
    body = BytesIO()
    try:
        async with asyncio.timeout(None) as timeout:
            while True:
                timeout.reschedule(min(loop.time() + limits.idle_seconds, end))
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                size_bytes = body.tell() + len(message.get("body", b""))
                if size_bytes > limits.max_bytes:
                    raise TooLarge(limits.max_bytes)
                if size_bytes > reservation.size_bytes:
                    reservation.resize(min(max(size_bytes, 2 * reservation.size_bytes), limits.max_bytes))
                body.write(message.get("body", b""))
                if not message.get("more_body"):
                    reservation.resize(size_bytes)
                    return body.getvalue()
    except TimeoutError:
        raise TooSlow(limits.total_seconds) if loop.time() >= end else Stalled(limits.idle_seconds) from None
