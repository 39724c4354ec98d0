"""HTTP as the gateway reads it: whatever the network cuts, and whatever a client leaves out or adds."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import uvicorn
from uvicorn.server import ServerState

from foveate.gateway.request import Receive, Scope, Send
from foveate.gateway.server.protocol import MAX_HEAD_BYTES, PlainHttp

POST = b"POST /v1/messages HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n"
BODY = b"upgrade:"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
TRAILED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n"


class Eager(PlainHttp):
    """One that tells at once what has come of a body."""

    notify_seconds = 0.0


class Hurried(PlainHttp):
    """One that waits a moment only."""

    head_seconds = 0.1


@dataclass
class Served:
    """Where an app is, and what it heard: bodies, in how many parts they came, and the names of headers."""

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
async def served(protocol: type[PlainHttp] = PlainHttp) -> AsyncIterator[Served]:
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
    """What is answered to pieces that come one by one."""
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
async def test_a_body_is_read_whose_head_asks_for_an_upgrade_wherever_it_is_cut(
    cuts: tuple[int, ...], apart: bool
) -> None:
    """Defect: where a cut went through the word, the body was lost, or taken for the next request."""
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


async def test_an_upgrade_that_is_seen_too_late_is_refused_and_nothing_of_it_is_served() -> None:
    async with served() as here:
        answer = await said(here, POST + b"\r\n" + BODY + POST + UPGRADE + BODY)

    assert b"400 Bad Request" in answer
    assert here.bodies in ([], [BODY])


async def test_what_is_no_http_is_told_so_at_once() -> None:
    async with served() as here:
        assert b"400 Bad Request" in await said(here, b"\x00\x03\x01\x02\x00\x01")


async def test_a_client_that_asks_by_https_is_told_of_in_words(caplog: pytest.LogCaptureFixture) -> None:
    """Its user sees `Connection error.`, and finds here what to change."""
    # Other servers in this process may have raised it.
    caplog.set_level(logging.WARNING, logger="uvicorn.error")
    async with served() as here:
        assert b"400 Bad Request" in await said(here, b"\x16\x03\x01\x02\x00\x01")

    assert "asks by https://, and here is http://" in caplog.text


async def test_trailers_are_no_headers() -> None:
    """Defect: what stood behind a body named the agent, and brought the key, of a request."""
    async with served() as here:
        await said(here, TRAILED + b"x-foveate-agent: ana\r\nauthorization: Bearer sk\r\n\r\n")

    assert here.bodies == [b"hello"]
    assert here.names == [b"host", b"transfer-encoding"]


@pytest.mark.parametrize("line", [b"a: b\r\n", b"a"])
async def test_trailers_have_the_limit_of_heads(line: bytes) -> None:
    """Defect: they were read and kept without an end."""
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
async def test_a_connection_whose_head_does_not_come_is_closed(pieces: list[bytes]) -> None:
    """Defect: one that sent nothing, or half a head, was kept for ever."""
    async with served(Hurried) as here:
        answer = await said(here, *pieces, answers=2)

    assert answer.count(b"200 OK") == len(here.bodies) == (len(pieces) == 2)


@pytest.mark.slow
async def test_a_body_that_takes_its_time_is_waited_for() -> None:
    async with served(Hurried) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(POST + b"\r\nupgr")
        await asyncio.sleep(0.25)
        writer.write(b"ade:")
        assert b"200 OK" in await reader.read(4096)
        await asyncio.sleep(0.25)  # between two requests, other clocks count
        writer.write(POST + b"\r\n" + BODY)
        assert b"200 OK" in await reader.read(4096)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(("size", "most_parts"), [(300_000, 1), (5_000_000, 6)])
async def test_a_body_is_told_once_it_is_there_or_once_there_is_much_of_it(size: int, most_parts: int) -> None:
    body = bytes(range(256)) * (size // 256)
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    async with served() as here:
        found = await said(here, head, *pieces)

    assert b"200" in found
    assert here.bodies == [body]
    assert here.parts <= most_parts


async def test_a_body_that_comes_slowly_is_told_as_it_comes() -> None:
    """Otherwise whoever reads it would take it for one that stalls."""
    async with served(Eager) as here:
        await said(here, POST + b"\r\n", b"upg", b"rade", b":")

    assert here.bodies == [BODY]
    assert here.parts > 1
