"""Hosts with several addresses: the first that connects is used (RFC 8305)."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import pytest

from foveate.errors import UpstreamTimeout, UpstreamUnreachable
from foveate.http.pool import ConnectionPool, Timeouts, parse_url
from tests.support.servers.scripted_http import HELLO, fetch, reply_with, serve_script

HOST = "both.test"


class ResolvingLoop(asyncio.SelectorEventLoop):
    """An event loop that knows the addresses of one host."""

    addresses: tuple[tuple[str, int], ...] = ()

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        if host != HOST:
            return await super().getaddrinfo(host, port, **options)
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, at))
            for address, at in self.addresses
        ]


@contextmanager
def hanging_port() -> Iterator[int]:
    """A port on which connections are neither accepted nor refused."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@asynccontextmanager
async def ipv6_server() -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(HELLO)
        writer.close()

    try:
        listener = await asyncio.start_server(serve, "::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with listener:
        yield listener.sockets[0].getsockname()[1]


def run_with_addresses(main: Any) -> Any:
    with asyncio.Runner(loop_factory=ResolvingLoop) as runner:
        return runner.run(main)


async def fetch_from(*addresses: tuple[str, int], connect_seconds: float = 20) -> tuple[bytes, float]:
    """Return the response of the host, and the time it took."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ResolvingLoop)
    loop.addresses = addresses
    started = time.monotonic()
    async with ConnectionPool(timeouts=Timeouts(connect_seconds=connect_seconds)) as pool:
        return await fetch(pool, parse_url(f"http://{HOST}/")), time.monotonic() - started


def test_an_address_that_refuses_is_skipped() -> None:
    async def run() -> None:
        async with serve_script(reply_with(HELLO)) as upstream:
            body, _ = await fetch_from(("127.0.0.2", 1), ("127.0.0.1", upstream.target.port))
            assert body == b"hello"

    run_with_addresses(run())


def test_an_address_that_hangs_delays_a_connection_by_a_quarter_of_a_second() -> None:
    async def run() -> None:
        with hanging_port() as port:
            async with serve_script(reply_with(HELLO)) as upstream:
                body, seconds = await fetch_from(("127.0.0.1", port), ("127.0.0.1", upstream.target.port))
                assert body == b"hello"
                assert 0.2 < seconds < 10  # far less than the timeout

    run_with_addresses(run())


def test_ipv6_and_ipv4_are_tried_in_turn() -> None:
    async def run() -> None:
        with hanging_port() as port:
            async with serve_script(reply_with(HELLO)) as upstream:
                hanging = ("127.0.0.1", port)
                body, _ = await fetch_from(("::1", 1), hanging, ("127.0.0.1", upstream.target.port))
                assert body == b"hello"
            async with ipv6_server() as ipv6_port:
                body, seconds = await fetch_from(*[hanging] * 40, ("::1", ipv6_port))
                assert body == b"hello"
                assert seconds < 5  # the second address, not the last, which is tried after 10 seconds

    run_with_addresses(run())


@pytest.mark.slow
def test_the_connect_timeout_is_that_of_all_addresses_together() -> None:
    async def run() -> None:
        with hanging_port() as port, pytest.raises(UpstreamTimeout, match=r"within 0\.6 s"):
            await fetch_from(*[("127.0.0.1", port)] * 5, connect_seconds=0.6)
        with pytest.raises(UpstreamUnreachable, match=r"connection failed \(Connection refused\)"):
            await fetch_from(("127.0.0.1", 1), ("127.0.0.2", 1))

    run_with_addresses(run())


async def test_an_ipv6_address_can_be_the_host() -> None:
    async with ipv6_server() as port, ConnectionPool() as pool:
        assert await fetch(pool, parse_url(f"http://[::1]:{port}/")) == b"hello"
