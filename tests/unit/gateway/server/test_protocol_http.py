"""The HTTP protocol, wherever the network splits data, and whatever a client leaves out or adds."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import uvicorn
from uvicorn.server import ServerState

from foveate.gateway.request import Receive, Scope, Send
from foveate.gateway.server.protocol import MAX_HEAD_BYTES, HttpProtocol

POST = b"POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n"
BODY = b"upgrade:"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
TRAILED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"


class Eager(HttpProtocol):
    """A protocol that reports received data at once."""

    notify_seconds = 0.0


class Hurried(HttpProtocol):
    """A protocol with short timeouts."""

    head_seconds = 0.1


@dataclass
class Served:
    """A served app, and what it received: bodies, the number of their parts, and header names."""

    port: int = 0
    bodies: list[bytes] = field(default_factory=list)
    parts: int = 0
    names: list[bytes] = field(default_factory=list)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body: bytes = message.get("body", b"")
        self.parts += 1
        while message.get("more_body"):
            message = await receive()
            self.parts += 1
            body += message.get("body", b"")
        if message["type"] == "http.disconnect":
            return
        self.bodies.append(body)
        self.names += [name for name, _ in scope["headers"]]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served(protocol: type[HttpProtocol] = HttpProtocol) -> AsyncIterator[Served]:
    here = Served()
    config = uvicorn.Config(here.app, interface="asgi3", lifespan="off", log_config=None, ws="none")
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    here.port = server.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        server.close()


async def said(here: Served, *pieces: bytes, answers: int = 1) -> bytes:
    """Return the response to pieces sent one by one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.003)
        found = b""
        async with asyncio.timeout(3):
            while found.count(b"\r\n\r\nok") < answers and (piece := await reader.read(4096)):
                found += piece
        return found
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


CUTS = [range(len(POST), len(POST + UPGRADE), 3), (len(POST) + 24,), (len(POST + UPGRADE) - 1,), ()]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("apart", [True, False])
async def test_the_body_of_an_upgrade_request_is_read_wherever_the_head_is_split(
    cuts: tuple[int, ...], apart: bool
) -> None:
    """Regression: if the header name was split, the body was lost or read as the next request."""
    head = POST + UPGRADE
    ends = [*cuts, len(head)]
    pieces = [head[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    after = [BODY] if apart else []
    if not apart:
        pieces[-1] += BODY

    async with served() as here:
        answer = await said(here, *pieces, *after, POST + b"\r\n" + BODY, answers=2)

    assert answer.count(b"200 OK") == 2
    assert here.bodies == [BODY, BODY]
    assert b"upgrade" not in here.names


async def test_a_late_upgrade_request_is_rejected_and_not_served() -> None:
    async with served() as here:
        answer = await said(here, POST + b"\r\n" + BODY + POST + UPGRADE + BODY)

    assert b"400 Bad Request" in answer
    assert here.bodies in ([], [BODY])


async def test_invalid_http_is_rejected_at_once() -> None:
    async with served() as here:
        assert b"400 Bad Request" in await said(here, b"\x00\x03\x01\x02\x00\x01")


async def test_a_tls_handshake_is_reported_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The user only sees `Connection error.`, and finds the reason here."""
    # Other servers in this process may have raised the limit.
    caplog.set_level(logging.WARNING, logger="uvicorn.error")
    async with served() as here:
        assert b"400 Bad Request" in await said(here, b"\x16\x03\x01\x02\x00\x01")

    assert "asks by https://, and here is http://" in caplog.text


async def test_trailers_are_not_headers() -> None:
    """Regression: trailers named the agent and the key of a request."""
    async with served() as here:
        await said(here, TRAILED + b"x-foveate-agent: ana\r\nauthorization: Bearer sk\r\n\r\n")

    assert here.bodies == [b"hello"]
    assert here.names == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("line", [b"a: b\r\n", b"a"])
async def test_trailers_have_the_size_limit_of_heads(line: bytes) -> None:
    """Regression: they were read and stored without limit."""
    flood = line * (64 * 1024 // len(line))
    async with served() as here:
        try:
            answer = await said(here, TRAILED, *[flood] * (2 * MAX_HEAD_BYTES // len(flood)))
        except ConnectionError:
            answer = b""

    assert (answer, here.bodies) == (b"", [])


@pytest.mark.parametrize(
    "pieces", [[], [b"POST / HT"], [POST], [POST + b"\r\n" + BODY, b"GET / HTTP/1.1\r\nho"]]
)
async def test_a_connection_whose_head_does_not_arrive_is_closed(pieces: list[bytes]) -> None:
    """Regression: a connection without a complete head was kept open forever."""
    async with served(Hurried) as here:
        answer = await said(here, *pieces, answers=2)

    assert answer.count(b"200 OK") == len(here.bodies) == (len(pieces) == 2)


@pytest.mark.slow
async def test_a_slow_body_has_no_head_timeout() -> None:
    async with served(Hurried) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(POST + b"\r\nupgr")
        await asyncio.sleep(0.25)
        writer.write(b"ade:")
        assert b"200 OK" in await reader.read(4096)
        await asyncio.sleep(0.25)  # between two requests, the keep-alive timeout applies
        writer.write(POST + b"\r\n" + BODY)
        assert b"200 OK" in await reader.read(4096)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(("size", "most_parts"), [(300_000, 1), (5_000_000, 6)])
async def test_the_reader_is_woken_when_the_body_is_complete_or_the_buffer_is_full(
    size: int, most_parts: int
) -> None:
    body = bytes(range(256)) * (size // 256)
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    async with served() as here:
        found = await said(here, head, *pieces)

    assert b"200" in found
    assert here.bodies == [body]
    assert here.parts <= most_parts


async def test_a_slow_body_wakes_the_reader_regularly() -> None:
    """Otherwise it would look stalled to the reader."""
    async with served(Eager) as here:
        await said(here, POST + b"\r\n", b"upg", b"rade", b":")

    assert here.bodies == [BODY]
    assert here.parts > 1
