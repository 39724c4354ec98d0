"""The HTTP protocol, however data is split into packets, and with incomplete or unusual requests."""

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
WITH_TRAILERS = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"


class EagerProtocol(HttpProtocol):
    """A protocol that reports received data at once."""

    notify_seconds = 0.0


class HurriedProtocol(HttpProtocol):
    """A protocol with short timeouts."""

    head_seconds = 0.1


@dataclass
class RunningApp:
    """A served app that records bodies, the number of their parts, and header names."""

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
async def run_app(protocol: type[HttpProtocol] = HttpProtocol) -> AsyncIterator[RunningApp]:
    app = RunningApp()
    config = uvicorn.Config(app.app, interface="asgi3", lifespan="off", log_config=None, ws="none")
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    app.port = server.sockets[0].getsockname()[1]
    try:
        yield app
    finally:
        server.close()


async def send_and_read(app: RunningApp, *chunks: bytes, responses: int = 1) -> bytes:
    """Return the response to chunks that are sent one after another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
    try:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(0.003)
        response = b""
        async with asyncio.timeout(3):
            while response.count(b"\r\n\r\nok") < responses and (chunk := await reader.read(4096)):
                response += chunk
        return response
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


CUTS = [range(len(POST), len(POST + UPGRADE), 3), (len(POST) + 24,), (len(POST + UPGRADE) - 1,), ()]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("is_body_separate", [True, False])
async def test_the_body_of_an_upgrade_request_is_read_wherever_the_head_is_split(
    cuts: tuple[int, ...], is_body_separate: bool
) -> None:
    """Regression: if the header name was split, the body was lost or read as the next request."""
    head = POST + UPGRADE
    ends = [*cuts, len(head)]
    chunks = [head[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    body_chunks = [BODY] if is_body_separate else []
    if not is_body_separate:
        chunks[-1] += BODY

    async with run_app() as app:
        response = await send_and_read(app, *chunks, *body_chunks, POST + b"\r\n" + BODY, responses=2)

    assert response.count(b"200 OK") == 2
    assert app.bodies == [BODY, BODY]
    assert b"upgrade" not in app.names


async def test_a_late_upgrade_request_is_rejected_and_not_served() -> None:
    async with run_app() as app:
        response = await send_and_read(app, POST + b"\r\n" + BODY + POST + UPGRADE + BODY)

    assert b"400 Bad Request" in response
    assert app.bodies in ([], [BODY])


async def test_invalid_http_is_rejected_at_once() -> None:
    async with run_app() as app:
        assert b"400 Bad Request" in await send_and_read(app, b"\x00\x03\x01\x02\x00\x01")


async def test_a_tls_handshake_is_reported_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The user only sees `Connection error.`, and finds the reason here."""
    # Other servers in this process may have raised the limit.
    caplog.set_level(logging.WARNING, logger="uvicorn.error")
    async with run_app() as app:
        assert b"400 Bad Request" in await send_and_read(app, b"\x16\x03\x01\x02\x00\x01")

    assert "used https://, but this port only serves http://" in caplog.text


async def test_trailers_are_not_headers() -> None:
    """Regression: trailers named the agent and the key of a request."""
    async with run_app() as app:
        await send_and_read(app, WITH_TRAILERS + b"x-foveate-agent: ana\r\nauthorization: Bearer sk\r\n\r\n")

    assert app.bodies == [b"hello"]
    assert app.names == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("line", [b"a: b\r\n", b"a"])
async def test_trailers_have_the_size_limit_of_heads(line: bytes) -> None:
    """Regression: they were read and stored without limit."""
    flood = line * (64 * 1024 // len(line))
    async with run_app() as app:
        try:
            response = await send_and_read(app, WITH_TRAILERS, *[flood] * (2 * MAX_HEAD_BYTES // len(flood)))
        except ConnectionError:
            response = b""

    assert (response, app.bodies) == (b"", [])


@pytest.mark.parametrize(
    "chunks", [[], [b"POST / HT"], [POST], [POST + b"\r\n" + BODY, b"GET / HTTP/1.1\r\nho"]]
)
async def test_a_connection_whose_head_does_not_arrive_is_closed(chunks: list[bytes]) -> None:
    """Regression: a connection without a complete head was kept open forever."""
    async with run_app(HurriedProtocol) as app:
        response = await send_and_read(app, *chunks, responses=2)

    assert response.count(b"200 OK") == len(app.bodies) == (len(chunks) == 2)


@pytest.mark.slow
async def test_a_slow_body_has_no_head_timeout() -> None:
    async with run_app(HurriedProtocol) as app:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(POST + b"\r\nupgr")
        await asyncio.sleep(0.25)
        writer.write(b"ade:")
        assert b"200 OK" in await reader.read(4096)
        await asyncio.sleep(0.25)  # between two requests, the keep-alive timeout applies
        writer.write(POST + b"\r\n" + BODY)
        assert b"200 OK" in await reader.read(4096)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(("size", "max_parts"), [(250_000, 1), (5_000_000, 20)])
async def test_the_reader_is_woken_when_the_body_is_complete_or_the_buffer_is_full(
    size: int, max_parts: int
) -> None:
    body = bytes(range(256)) * (size // 256)
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    chunks = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    async with run_app() as app:
        response = await send_and_read(app, head, *chunks)

    assert b"200" in response
    assert app.bodies == [body]
    assert app.parts <= max_parts


async def test_a_slow_body_wakes_the_reader_regularly() -> None:
    """Otherwise it would look stalled to the reader."""
    async with run_app(EagerProtocol) as app:
        await send_and_read(app, POST + b"\r\n", b"upg", b"rade", b":")

    assert app.bodies == [BODY]
    assert app.parts > 1
