"""Workers at one socket share its connections evenly, and none waits for one that does not accept."""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from typing import Any

import pytest

from foveate.gateway.server.balancing import BalancedServer, ConnectionCounts

WORKERS = 4


class CountedProtocol(asyncio.Protocol):
    """One of the open connections of a worker."""

    def __init__(self, connections: set["CountedProtocol"]) -> None:
        self._connections = connections

    def connection_made(self, transport: Any) -> None:
        self._connections.add(self)
        transport.write(b"hello")

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)


class Worker:
    def __init__(self, listener: socket.socket, counts: ConnectionCounts, number: int) -> None:
        self.connections: set[CountedProtocol] = set()
        self.server = BalancedServer(
            listener,
            counts,
            number,
            make_protocol=lambda: CountedProtocol(self.connections),
            count_connections=lambda: len(self.connections),
        )


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as opened:
        yield opened


@pytest.fixture
def counts() -> Iterator[ConnectionCounts]:
    with closing(ConnectionCounts.create(WORKERS)) as created:
        yield created


@pytest.fixture
async def clients(listener: socket.socket) -> AsyncIterator["Clients"]:
    async with AsyncExitStack() as stack:
        yield Clients(listener.getsockname()[1], stack)


class Clients:
    def __init__(self, port: int, stack: AsyncExitStack) -> None:
        self._port = port
        self._stack = stack

    async def connect(self, number: int) -> list[asyncio.StreamWriter]:
        """Open connections, and wait until they are served."""
        writers = []
        for _ in range(number):
            reader, writer = await asyncio.wait_for(asyncio.open_connection("127.0.0.1", self._port), 30)
            self._stack.callback(writer.close)
            assert await asyncio.wait_for(reader.read(5), 30) == b"hello"
            writers.append(writer)
        return writers


async def test_workers_get_the_same_number_of_connections(
    listener: socket.socket, counts: ConnectionCounts, clients: Clients
) -> None:
    """Regression: one of eight workers had up to 30 of 64 connections."""
    workers = [Worker(listener, counts, number) for number in range(WORKERS)]
    await clients.connect(10 * WORKERS)

    assert [len(worker.connections) for worker in workers] == [10] * WORKERS
    for worker in workers:
        worker.server.close()


async def test_a_worker_that_lost_its_connections_gets_the_next_ones(
    listener: socket.socket, counts: ConnectionCounts, clients: Clients
) -> None:
    first = Worker(listener, counts, 0)
    for writer in await clients.connect(6):
        writer.close()
    second = Worker(listener, counts, 1)
    while first.connections:  # noqa: ASYNC110 - the loop has to run
        await asyncio.sleep(0.01)
    await clients.connect(6)

    assert len(first.connections) == len(second.connections) == 3
    first.server.close()
    second.server.close()


async def test_connections_do_not_wait_for_a_worker_that_hangs(
    listener: socket.socket, counts: ConnectionCounts, clients: Clients
) -> None:
    counts.update(3, 0)  # it serves, but accepts nothing
    worker = Worker(listener, counts, 0)
    await clients.connect(10)

    assert len(worker.connections) == 10
    worker.server.close()


async def test_nobody_leaves_connections_to_a_worker_that_has_ended(
    listener: socket.socket, counts: ConnectionCounts, clients: Clients
) -> None:
    ended, worker = Worker(listener, counts, 0), Worker(listener, counts, 1)
    ended.server.close()
    await ended.server.wait_closed()
    await clients.connect(3)

    assert (len(ended.connections), len(worker.connections)) == (0, 3)
    assert not counts.has_fewer(than=3)
    worker.server.close()


async def test_a_closed_server_accepts_nothing(
    listener: socket.socket, counts: ConnectionCounts, clients: Clients
) -> None:
    worker = Worker(listener, counts, 0)
    worker.server.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await clients.connect(1)

    assert worker.connections == set()


class ExhaustedListener(socket.socket):
    """A socket that cannot accept for a while, for lack of descriptors."""

    until = 0.0

    def dup(self) -> "ExhaustedListener":
        duplicate = ExhaustedListener(fileno=socket.dup(self.fileno()))
        duplicate.until = time.monotonic() + 0.1
        return duplicate

    def accept(self) -> Any:
        if time.monotonic() < self.until:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_accepting_is_tried_again_when_descriptors_were_missing(
    listener: socket.socket, counts: ConnectionCounts, clients: Clients
) -> None:
    with ExhaustedListener(fileno=socket.dup(listener.fileno())) as exhausted:
        worker = Worker(exhausted, counts, 0)
        await clients.connect(1)

    assert len(worker.connections) == 1
    worker.server.close()


def test_processes_that_map_the_same_file_see_each_others_counts(counts: ConnectionCounts) -> None:
    other = ConnectionCounts(counts.descriptor)
    other.update(1, 5)
    assert not counts.has_fewer(than=5)
    assert counts.has_fewer(than=6)
    counts.mark_ended(1)

    assert not other.has_fewer(than=1_000_000)
