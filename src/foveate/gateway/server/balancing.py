"""Accepts connections so that all workers at one socket have about the same number of them.

The kernel wakes all workers for a connection, and the first one takes it. That was often the same one: of 64
agents, one of eight workers had up to 30, and others hardly any (November 2026). Agents keep their
connections, so that worker limited all of them together. Therefore a worker with more connections than another
one lets that one go first, for a few milliseconds.
"""

import asyncio
import logging
import mmap
import os
import socket
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress

_LOG = logging.getLogger(__name__)

_COUNT_BYTES = 4
_NOT_SERVING = 2 ** (8 * _COUNT_BYTES) - 1
# A worker that is too busy to accept a connection within this time leaves it to others.
_YIELD_SECONDS = 0.005
_OPENING_SECONDS = 1.0
# There may be no descriptors left.
_RETRY_SECONDS = 1.0


class ConnectionCounts:
    """The number of connections of each worker, in a file that all of them have mapped."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._counts = memoryview(mmap.mmap(descriptor, 0)).cast("I")

    @classmethod
    def create(cls, workers: int) -> "ConnectionCounts":
        """Create the counts for workers that do not serve yet."""
        with tempfile.TemporaryFile() as file:
            os.pwrite(file.fileno(), _NOT_SERVING.to_bytes(_COUNT_BYTES, "little") * workers, 0)
            return cls(os.dup(file.fileno()))

    def update(self, worker: int, count: int) -> None:
        self._counts[worker] = count

    def mark_ended(self, worker: int) -> None:
        self._counts[worker] = _NOT_SERVING

    def has_fewer(self, than: int) -> bool:
        return min(self._counts) < than

    def close(self) -> None:
        os.close(self.descriptor)


class BalancedServer:
    """Accepts connections at a shared socket. Has the methods of `asyncio.Server` that uvicorn needs."""

    def __init__(
        self,
        listener: socket.socket,
        counts: ConnectionCounts,
        worker: int,
        *,
        make_protocol: Callable[[], asyncio.Protocol],
        count_connections: Callable[[], int],
        tls_context: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener.dup()
        self._listener.setblocking(False)
        self._counts = counts
        self._worker = worker
        self._make_protocol = make_protocol
        self._count_connections = count_connections
        self._tls_context = tls_context
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._report()
        self._loop.add_reader(self._listener, self._on_connection)

    def close(self) -> None:
        """Accept no more connections."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._counts.mark_ended(self._worker)

    async def wait_closed(self) -> None:
        """Wait for connections that are being opened, but not long: a client may not finish its handshake."""
        if self._opening:
            await asyncio.wait(set(self._opening), timeout=_OPENING_SECONDS)

    def _report(self) -> int:
        count = self._count_connections() + len(self._opening)
        self._counts.update(self._worker, count)
        return count

    def _on_connection(self) -> None:
        if self._counts.has_fewer(than=self._report()):
            self._pause(_YIELD_SECONDS)
        else:
            self._accept()

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._on_connection)
        self._accept()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another worker was faster, or the client has gone
        except OSError as error:
            _LOG.error("connections cannot be accepted, trying again in %g s: %s", _RETRY_SECONDS, error)
            if self._timer is None:
                self._pause(_RETRY_SECONDS)
            return
        connection.setblocking(False)
        with suppress(OSError):  # a Unix socket
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task: asyncio.Task[object] = self._loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        self._report()

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection, ssl=self._tls_context)
        except OSError as error:  # the client has gone, or its TLS handshake has failed
            _LOG.debug("a connection failed: %s", error)
            connection.close()
