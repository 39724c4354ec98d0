"""Clients get the response even if it is sent before the request body is complete."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import uvicorn
from uvicorn.server import ServerState

from foveate.gateway.request import Receive, Scope, Send
from foveate.gateway.server.protocol import HttpProtocol

MEGABYTE = 1024 * 1024


class ImpatientProtocol(HttpProtocol):
    """A server that discards little, and not for long."""

    discard_bytes = 2 * MEGABYTE
    discard_seconds = 0.2


async def reject_all(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


@asynccontextmanager
async def connect(
    protocol: type[HttpProtocol] = HttpProtocol,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    config = uvicorn.Config(reject_all, interface="asgi3", lifespan="off", log_config=None, ws="none")
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(20):
            yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        while state.connections:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
        server.close()


def make_head(size: int, *other_headers: str) -> bytes:
    lines = ["POST / HTTP/1.1", "host: a", f"content-length: {size}", *other_headers]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


async def read_response(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\nno")


async def test_a_request_is_answered_before_its_body_arrives() -> None:
    async with connect() as (reader, writer):
        writer.write(make_head(60 * MEGABYTE))

        response = await read_response(reader)

        assert b" 401 " in response
        assert b"connection: close" in response


async def test_a_client_that_sends_a_large_body_first_still_gets_the_response() -> None:
    async with connect() as (reader, writer):
        writer.write(make_head(20 * MEGABYTE))
        for _ in range(20):
            writer.write(bytes(MEGABYTE))
            await writer.drain()

        assert b" 401 " in await read_response(reader)
        assert await reader.read() == b""


async def test_the_connection_is_reused_after_a_small_body() -> None:
    async with connect() as (reader, writer):
        for _ in range(3):
            writer.write(make_head(100_000))
            response = await read_response(reader)
            assert b"connection: close" not in response
            writer.write(bytes(100_000))


async def test_a_client_that_waits_for_100_continue_does_not_get_it() -> None:
    async with connect() as (reader, writer):
        writer.write(make_head(100, "expect: 100-continue"))

        response = await read_response(reader)

        assert response.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in response


async def test_only_a_limited_part_of_a_body_is_discarded() -> None:
    async with connect(ImpatientProtocol) as (reader, writer):
        writer.write(make_head(50 * MEGABYTE))
        await read_response(reader)

        assert await send_until_closed(writer, bytes(MEGABYTE)) < 50


@pytest.mark.parametrize("size", [1_000, 50 * MEGABYTE])
async def test_a_body_that_does_not_arrive_is_not_awaited_for_long(size: int) -> None:
    async with connect(ImpatientProtocol) as (reader, writer):
        writer.write(make_head(size))
        await read_response(reader)

        assert await reader.read() == b""
        await send_until_closed(writer, b"x", pause_seconds=0.01)


async def send_until_closed(writer: asyncio.StreamWriter, chunk: bytes, *, pause_seconds: float = 0.0) -> int:
    """Return the number of chunks that were sent before the connection was closed."""
    for number in range(10_000):
        try:
            writer.write(chunk)
            await writer.drain()
        except ConnectionError:
            return number
        await asyncio.sleep(pause_seconds)
    raise AssertionError("the connection stays open")
