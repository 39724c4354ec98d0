"""Load generator of the gateway benchmark, a separate process that sends requests and times responses.

It reads jobs from standard input, one JSON object per line, and prints a JSON object of measurements for each.
It uses raw persistent connections, and reads only the status and the end of a response to keep its own cost
low.
"""

import asyncio
import json
import os
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from benchmarks.gateway_processes import cpu_seconds
from benchmarks.gateway_requests import KINDS, requests
from benchmarks.gateway_upstream import WRITTEN_AT

_END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadJob:
    """Request kind, target and duration: until `seconds` are over, or each connection has sent `most` requests.

    After each response a connection pauses, so that background work after a response does not delay the next
    one. Sessions of a job continue in the next job of that kind at that port, with as many connections.
    `measured` are the processes whose CPU time is reported, each with its descendants.
    """

    port: int
    kind: str
    seed: str
    connections: int
    seconds: float
    max_requests: int = 10**9
    pause_seconds: float = 0.0
    measured: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Result of a job: milliseconds to the end and to the first byte of each response, and CPU time.

    `cold_ms` are the first requests of sessions, sent before the measurement starts; `piece_ms` is the transit
    time of pieces that contain the time at which they were written.
    """

    answer_ms: list[float] = field(repr=False)
    first_byte_ms: list[float] = field(repr=False)
    cold_ms: list[float] = field(repr=False)
    piece_ms: list[float] = field(repr=False)
    elapsed_seconds: float
    answer_bytes: int
    gateway_cpu_seconds: float
    load_cpu_seconds: float


class UnexpectedResponse(Exception):
    """The response is not a successful one."""


class _Connection(asyncio.Protocol):
    """A persistent connection: sends a request and times the first byte and the end of its response."""

    def __init__(self, *, is_slow: bool = False) -> None:
        self.answer_bytes = 0
        self.piece_ms: list[float] = []
        self._is_slow = is_slow
        self._transport: asyncio.Transport | None = None
        self._response: asyncio.Future[tuple[float, float]] | None = None
        self._received = b""
        self._remaining: int | None = None
        self._first = 0.0
        self._is_chunked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(
                UnexpectedResponse(f"the connection was closed ({exc}) after {self._received[:300]!r}")
            )

    def send(self, request: bytes) -> "asyncio.Future[tuple[float, float]]":
        """Return the seconds until the response has started, and has ended."""
        assert self._transport is not None
        self._received, self._remaining, self._first, self._is_chunked = b"", None, 0.0, False
        response = self._response = asyncio.get_running_loop().create_future()
        self._sent_at = time.perf_counter()
        self._transport.write(request)
        return response

    def data_received(self, data: bytes) -> None:
        self.answer_bytes += len(data)
        if self._is_slow:
            now = time.monotonic()
            self.piece_ms += [(now - float(at)) * 1e3 for at in WRITTEN_AT.findall(data)]
        if self._remaining is None and not self._is_chunked:
            self._received += data
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self._received.startswith(b"HTTP/1.1 200 "):
                self._fail()
                return
            data = self._received[end + 4 :]
            head = self._received[: end + 2].lower()
            at = head.find(b"\r\ncontent-length:")
            self._is_chunked = at < 0
            self._remaining = None if at < 0 else int(head[at + 17 : head.index(b"\r", at + 17)])
        if data and not self._first:
            self._first = time.perf_counter()
        if self._remaining is not None:
            self._remaining -= len(data)
            is_over = self._remaining <= 0
        else:
            self._received = self._received[-4:] + data
            is_over = self._received.endswith(_END)
        if is_over and self._response is not None and not self._response.done():
            self._response.set_result((self._first - self._sent_at, time.perf_counter() - self._sent_at))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _fail(self) -> None:
        if self._response is not None and not self._response.done():
            received = self._received[:1000].decode("latin-1")
            self._response.set_exception(UnexpectedResponse(f"it answered: {received}"))


OpenSessions = dict[tuple[int, str, int], list[Iterator[bytes]]]


async def measure(job: LoadJob, open_sessions: OpenSessions) -> LoadResult:
    """Run a job; `begun` are the sessions of earlier ones."""
    cold: list[float] = []
    key = (job.port, job.kind, job.connections)
    if key in open_sessions:
        streams = open_sessions[key]
    else:
        streams = [requests(job.kind, f"{job.seed}-{number}") for number in range(job.connections)]
        if KINDS[job.kind].is_cold_first:
            cold = [await _start_session(job.port, stream) for stream in streams]
            open_sessions[key] = streams
    is_slow = KINDS[job.kind].is_slow
    connections = [await _connect(job.port, is_slow=is_slow) for _ in range(job.connections)]
    try:
        firsts: list[float] = []
        answers: list[float] = []
        before, own = sum(map(cpu_seconds, job.measured)), time.process_time()
        started = time.perf_counter()
        until = started + job.seconds
        await asyncio.gather(
            *(
                _send(job, connection, stream, until, firsts, answers)
                for connection, stream in zip(connections, streams, strict=True)
            )
        )
        elapsed = time.perf_counter() - started
        own = time.process_time() - own
        used = sum(map(cpu_seconds, job.measured)) - before
    finally:
        for connection in connections:
            connection.close()
    return LoadResult(
        answer_ms=answers,
        first_byte_ms=firsts,
        cold_ms=cold,
        piece_ms=[ms for connection in connections for ms in connection.piece_ms],
        elapsed_seconds=elapsed,
        answer_bytes=sum(connection.answer_bytes for connection in connections),
        gateway_cpu_seconds=used,
        load_cpu_seconds=own,
    )


async def _start_session(port: int, stream: Iterator[bytes]) -> float:
    """Return the milliseconds of the first request of a session."""
    connection = await _connect(port)
    try:
        _, seconds = await connection.send(next(stream))
    finally:
        connection.close()
    return seconds * 1e3


async def _connect(port: int, *, is_slow: bool = False) -> _Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: _Connection(is_slow=is_slow), "127.0.0.1", port)
    return connection


async def _send(
    job: LoadJob,
    connection: _Connection,
    stream: Iterator[bytes],
    until: float,
    firsts: list[float],
    answers: list[float],
) -> None:
    for _ in range(job.max_requests):
        first_seconds, total_seconds = await connection.send(next(stream))
        firsts.append(first_seconds * 1e3)
        answers.append(total_seconds * 1e3)
        if job.pause_seconds:
            await asyncio.sleep(job.pause_seconds)
        if time.perf_counter() >= until:
            break


def _write_line(line: bytes) -> None:
    """Write a complete line, also to a full non-blocking pipe."""
    while line:
        try:
            line = line[os.write(sys.stdout.fileno(), line) :]
        except BlockingIOError:
            select.select([], [sys.stdout], [])


def main() -> None:
    """Run jobs until standard input ends."""
    import uvloop

    open_sessions: OpenSessions = {}
    for line in sys.stdin:
        fields: dict[str, Any]
        try:
            measured = uvloop.run(measure(LoadJob(**json.loads(line)), open_sessions))
            fields = asdict(measured)
        except (UnexpectedResponse, OSError) as error:
            fields = {"error": str(error)}
        _write_line(json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    main()
