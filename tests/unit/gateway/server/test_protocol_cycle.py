"""One request and its answer on a connection: what the server tells of it, and what the client gets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from foveate.gateway.request import Receive, Scope, Send
from foveate.gateway.server.protocol import CYCLE_SCOPE_KEY, PlainHttp, RequestConnection

App = Callable[[Scope, Receive, Send], Awaitable[None]]

POST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello"
OK = [(b"content-length", b"2")]


@asynccontextmanager
async def connected(app: App) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's end of a connection to an app, closed at the end of the block."""
    config = uvicorn.Config(
        app,
        interface="asgi3",
        lifespan="off",
        log_config=None,
        ws="none",
        server_header=False,
        date_header=False,
    )
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: PlainHttp(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(5):
            yield reader, writer
    finally:
        writer.close()
        server.close()


async def answered(app: App, request: bytes = POST) -> bytes:
    """All that an app's client gets until its connection is closed."""
    async with connected(app) as (reader, writer):
        writer.write(request)
        return await reader.read()


def saying(*messages: dict[str, object], then: Exception | None = None) -> App:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
        if then is not None:
            raise then

    return app


def start(*headers: tuple[bytes, bytes]) -> dict[str, object]:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def piece(body: bytes, *, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}


@pytest.mark.parametrize("behind", [b"", POST])
async def test_that_a_client_has_gone_is_told_at_once_also_where_another_request_waits(behind: bytes) -> None:
    """Defect: of two requests on a connection, only the last was told, and the first went on for nobody."""
    is_asked, has_gone = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        served: RequestConnection = scope[CYCLE_SCOPE_KEY]
        served.on_disconnect(has_gone.set)
        is_asked.set()
        await has_gone.wait()

    async with connected(app) as (_, writer):
        writer.write(POST + behind)
        await is_asked.wait()
        writer.transport.abort()
        await has_gone.wait()


async def test_a_body_that_is_whole_is_given_once_and_the_next_to_be_heard_is_that_the_client_has_gone() -> (
    None
):
    heard: list[object] = []
    is_over = asyncio.Event()

    async def app(scope: Scope, receive: Receive, _: Send) -> None:
        heard.append(scope[CYCLE_SCOPE_KEY].take_complete_body())
        heard.append((await receive())["type"])
        is_over.set()

    async with connected(app) as (_, writer):
        writer.write(POST)
        await asyncio.sleep(0.02)
        writer.transport.abort()
        await is_over.wait()

    assert heard == [b"hello", "http.disconnect"]


async def test_a_body_that_is_not_whole_is_not_given() -> None:
    found: list[bytes | None] = []

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        found.append(scope[CYCLE_SCOPE_KEY].take_complete_body())

    assert await answered(app, POST[:-1]) != b""
    assert found == [None]


async def test_a_head_does_not_wait_for_its_body() -> None:
    goes_on = asyncio.Event()

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send(start(*OK))
        await goes_on.wait()
        await send(piece(b"ok"))

    async with connected(app) as (reader, writer):
        writer.write(POST)
        head = await reader.readuntil(b"\r\n\r\n")
        goes_on.set()
        assert await reader.readexactly(2) == b"ok"

    assert head == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


CLOSE = (b"connection", b"close")
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"


@pytest.mark.parametrize(
    ("app", "request_", "got"),
    [
        (saying(start(CLOSE, *OK), piece(b"ok")), POST, HEAD + b"content-length: 2\r\n\r\nok"),
        (
            saying(start(CLOSE), piece(b"o", more=True), piece(b"", more=True), piece(b"k")),
            POST,
            HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        ),
        (
            saying(start(CLOSE, *OK), piece(b"ok")),
            POST.replace(b"POST", b"HEAD"),
            HEAD + b"content-length: 2\r\n\r\n",
        ),
        (
            saying(start(*OK), piece(b"ok")),
            POST.replace(b"1.1\r", b"1.0\r"),
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        ),
    ],
)
async def test_an_answer_is_sent_as_it_is_said(app: App, request_: bytes, got: bytes) -> None:
    assert await answered(app, request_) == got


async def test_an_answer_that_can_have_no_body_is_whole_whatever_length_it_says() -> None:
    """Defect: one that says how long what is unchanged would be was taken for cut off, and its connection."""
    unchanged = b"HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n"
    async with connected(saying({**start(*OK), "status": 304}, piece(b""))) as (reader, writer):
        for _ in range(2):
            writer.write(POST)
            assert await reader.readexactly(len(unchanged)) == unchanged


@pytest.mark.parametrize(
    "app",
    [
        saying(start(*OK), then=ValueError()),
        saying(start(*OK)),
        saying(start(*OK), piece(b"okay")),
        saying(start(*OK), piece(b"o")),
        saying(start(*OK), start(*OK)),
    ],
)
async def test_an_answer_that_breaks_off_has_its_head_and_is_cut(app: App) -> None:
    assert (await answered(app)).startswith(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")


@pytest.mark.parametrize("value", [b"b\r\nc: d", b"b\n", b"b\r", b"b\0", b"b\x7f"])
async def test_a_header_that_would_be_more_than_one_is_not_sent(value: bytes) -> None:
    assert await answered(saying(start((b"a", value)), piece(b"ok"))) == b""


@pytest.mark.parametrize("app", [saying(), saying(then=ValueError()), saying(piece(b"ok"))])
async def test_who_says_nothing_has_failed(app: App) -> None:
    assert (await answered(app)).startswith(b"HTTP/1.1 500 ")
