"""One request and its response on a connection."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from foveate.gateway.request import Receive, Scope, Send
from foveate.gateway.server.protocol import CYCLE_SCOPE_KEY, HttpProtocol, RequestConnection

App = Callable[[Scope, Receive, Send], Awaitable[None]]

POST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello"
OK = [(b"content-length", b"2")]


@asynccontextmanager
async def connect(app: App) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to an app, and disconnect at the end of the block."""
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
    server = await loop.create_server(lambda: HttpProtocol(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        async with asyncio.timeout(5):
            yield reader, writer
    finally:
        writer.close()
        server.close()


async def exchange(app: App, request: bytes = POST) -> bytes:
    """Return everything that the client receives until the connection is closed."""
    async with connect(app) as (reader, writer):
        writer.write(request)
        return await reader.read()


def make_app(*messages: dict[str, object], then: Exception | None = None) -> App:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
        if then is not None:
            raise then

    return app


def start_message(*headers: tuple[bytes, bytes]) -> dict[str, object]:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body_message(body: bytes, *, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}


@pytest.mark.parametrize("behind", [b"", POST])
async def test_a_disconnect_is_noticed_at_once_even_if_another_request_waits(behind: bytes) -> None:
    """Regression: of two pipelined requests, only the last noticed, and the first ran on for nobody."""
    is_asked, has_gone = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        served: RequestConnection = scope[CYCLE_SCOPE_KEY]
        served.on_disconnect(has_gone.set)
        is_asked.set()
        await has_gone.wait()

    async with connect(app) as (_, writer):
        writer.write(POST + behind)
        await is_asked.wait()
        writer.transport.abort()
        await has_gone.wait()


async def test_a_complete_body_is_returned_once_and_followed_by_the_disconnect() -> None:
    received: list[object] = []
    is_over = asyncio.Event()

    async def app(scope: Scope, receive: Receive, _: Send) -> None:
        received.append(scope[CYCLE_SCOPE_KEY].take_complete_body())
        received.append((await receive())["type"])
        is_over.set()

    async with connect(app) as (_, writer):
        writer.write(POST)
        await asyncio.sleep(0.02)
        writer.transport.abort()
        await is_over.wait()

    assert received == [b"hello", "http.disconnect"]


async def test_an_incomplete_body_is_not_returned() -> None:
    result: list[bytes | None] = []

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        result.append(scope[CYCLE_SCOPE_KEY].take_complete_body())

    assert await exchange(app, POST[:-1]) != b""
    assert result == [None]


async def test_a_head_does_not_wait_for_its_body() -> None:
    goes_on = asyncio.Event()

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send(start_message(*OK))
        await goes_on.wait()
        await send(body_message(b"ok"))

    async with connect(app) as (reader, writer):
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
        (make_app(start_message(CLOSE, *OK), body_message(b"ok")), POST, HEAD + b"content-length: 2\r\n\r\nok"),
        (
            make_app(
                start_message(CLOSE),
                body_message(b"o", more=True),
                body_message(b"", more=True),
                body_message(b"k"),
            ),
            POST,
            HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        ),
        (
            make_app(start_message(CLOSE, *OK), body_message(b"ok")),
            POST.replace(b"POST", b"HEAD"),
            HEAD + b"content-length: 2\r\n\r\n",
        ),
        (
            make_app(start_message(*OK), body_message(b"ok")),
            POST.replace(b"1.1\r", b"1.0\r"),
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        ),
    ],
)
async def test_a_response_is_sent_as_the_app_sends_it(app: App, request_: bytes, got: bytes) -> None:
    assert await exchange(app, request_) == got


async def test_a_response_without_a_body_is_complete_whatever_its_length_header() -> None:
    """Regression: a 304 with a length was treated as cut off, and its connection was closed."""
    unchanged = b"HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n"
    async with connect(make_app({**start_message(*OK), "status": 304}, body_message(b""))) as (reader, writer):
        for _ in range(2):
            writer.write(POST)
            assert await reader.readexactly(len(unchanged)) == unchanged


@pytest.mark.parametrize(
    "app",
    [
        make_app(start_message(*OK), then=ValueError()),
        make_app(start_message(*OK)),
        make_app(start_message(*OK), body_message(b"okay")),
        make_app(start_message(*OK), body_message(b"o")),
        make_app(start_message(*OK), start_message(*OK)),
    ],
)
async def test_an_interrupted_response_has_its_head_and_is_cut_off(app: App) -> None:
    assert (await exchange(app)).startswith(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")


@pytest.mark.parametrize("value", [b"b\r\nc: d", b"b\n", b"b\r", b"b\0", b"b\x7f"])
async def test_a_header_with_a_line_break_is_not_sent(value: bytes) -> None:
    assert await exchange(make_app(start_message((b"a", value)), body_message(b"ok"))) == b""


@pytest.mark.parametrize("app", [make_app(), make_app(then=ValueError()), make_app(body_message(b"ok"))])
async def test_an_app_without_a_response_has_failed(app: App) -> None:
    assert (await exchange(app)).startswith(b"HTTP/1.1 500 ")
