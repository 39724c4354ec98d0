"""One request and its response on a connection."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from foveate.gateway.request import Receive, Scope, Send, parse_request
from foveate.gateway.server.protocol import CONNECTION_SCOPE_KEY, HttpProtocol, RequestConnection

App = Callable[[Scope, Receive, Send], Awaitable[None]]

POST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello"
LENGTH_2 = [(b"content-length", b"2")]


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


def make_app(*messages: dict[str, object], error: Exception | None = None) -> App:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        for message in messages:
            await send(message)
        if error is not None:
            raise error

    return app


def start_message(*headers: tuple[bytes, bytes]) -> dict[str, object]:
    return {"type": "http.response.start", "status": 200, "headers": headers}


def body_message(body: bytes, *, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": body, "more_body": more}


@pytest.mark.parametrize("next_request", [b"", POST])
async def test_a_disconnect_is_noticed_at_once_even_if_another_request_waits(next_request: bytes) -> None:
    """Regression: of two pipelined requests, only the last noticed, and the first went on without a client."""
    has_request, has_disconnected = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        connection: RequestConnection = scope[CONNECTION_SCOPE_KEY]
        connection.on_disconnect(has_disconnected.set)
        has_request.set()
        await has_disconnected.wait()

    async with connect(app) as (_, writer):
        writer.write(POST + next_request)
        await has_request.wait()
        writer.transport.abort()
        await has_disconnected.wait()


async def test_a_disconnect_before_anyone_waits_for_it_is_noticed() -> None:
    """Regression: a client that left while its body waited for memory was served, and its call was paid for."""
    has_request, is_gone, has_disconnected = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        connection: RequestConnection = scope[CONNECTION_SCOPE_KEY]
        connection.take_complete_body()
        has_request.set()
        await is_gone.wait()
        connection.on_disconnect(has_disconnected.set)
        await has_disconnected.wait()

    async with connect(app) as (_, writer):
        writer.write(POST)
        await has_request.wait()
        writer.transport.abort()
        await asyncio.sleep(0.02)
        is_gone.set()
        await has_disconnected.wait()


async def test_a_complete_body_is_returned_once_and_followed_by_the_disconnect() -> None:
    received: list[object] = []
    has_ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, _: Send) -> None:
        received.append(scope[CONNECTION_SCOPE_KEY].take_complete_body())
        received.append((await receive())["type"])
        has_ended.set()

    async with connect(app) as (_, writer):
        writer.write(POST)
        await asyncio.sleep(0.02)
        writer.transport.abort()
        await has_ended.wait()

    assert received == [b"hello", "http.disconnect"]


async def test_a_client_that_left_before_its_request_was_rejected_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Regression: ending the connection failed and was logged with a traceback."""
    client = socket.socket()
    has_ended = asyncio.Event()

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            client.close()
            await send(start_message(*LENGTH_2))
            await send(body_message(b"no"))
            has_ended.set()

    async with connect(app) as (_, writer):
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, writer.get_extra_info("peername"))
        await loop.sock_sendall(client, POST.replace(b"5", b"5000000"))
        await asyncio.sleep(0.05)

    assert has_ended.is_set()
    assert not caplog.records


async def test_an_incomplete_body_is_not_returned() -> None:
    bodies: list[bytes | None] = []

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        bodies.append(scope[CONNECTION_SCOPE_KEY].take_complete_body())

    assert await exchange(app, POST[:-1]) != b""
    assert bodies == [None]


async def test_requests_have_the_number_of_their_connection() -> None:
    numbers: list[int] = []

    async def app(scope: Scope, _: Receive, send: Send) -> None:
        numbers.append(parse_request(scope).connection)
        await send(start_message(*LENGTH_2))
        await send(body_message(b"ok"))

    for _ in range(2):
        async with connect(app) as (reader, writer):
            for _ in range(2):
                writer.write(POST)
                await reader.readuntil(b"ok")

    first, again, other, other_again = numbers
    assert first == again != 0
    assert other == other_again not in (0, first)


async def test_a_head_does_not_wait_for_its_body() -> None:
    may_continue = asyncio.Event()

    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send(start_message(*LENGTH_2))
        await may_continue.wait()
        await send(body_message(b"ok"))

    async with connect(app) as (reader, writer):
        writer.write(POST)
        head = await reader.readuntil(b"\r\n\r\n")
        may_continue.set()
        assert await reader.readexactly(2) == b"ok"

    assert head == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


CLOSE = (b"connection", b"close")
HEAD = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"


@pytest.mark.parametrize(
    ("app", "request_", "response"),
    [
        (
            make_app(start_message(CLOSE, *LENGTH_2), body_message(b"ok")),
            POST,
            HEAD + b"content-length: 2\r\n\r\nok",
        ),
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
            make_app(start_message(CLOSE, *LENGTH_2), body_message(b"ok")),
            POST.replace(b"POST", b"HEAD"),
            HEAD + b"content-length: 2\r\n\r\n",
        ),
        (
            make_app(start_message(*LENGTH_2), body_message(b"ok")),
            POST.replace(b"1.1\r", b"1.0\r"),
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
        ),
    ],
)
async def test_a_response_is_sent_as_the_app_sends_it(app: App, request_: bytes, response: bytes) -> None:
    assert await exchange(app, request_) == response


async def test_a_response_without_a_body_is_complete_whatever_its_length_header() -> None:
    """Regression: a 304 with a length was treated as cut off, and its connection was closed."""
    not_modified = b"HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n"
    async with connect(make_app({**start_message(*LENGTH_2), "status": 304}, body_message(b""))) as (
        reader,
        writer,
    ):
        for _ in range(2):
            writer.write(POST)
            assert await reader.readexactly(len(not_modified)) == not_modified


@pytest.mark.parametrize(
    "app",
    [
        make_app(start_message(*LENGTH_2), error=ValueError()),
        make_app(start_message(*LENGTH_2)),
        make_app(start_message(*LENGTH_2), body_message(b"okay")),
        make_app(start_message(*LENGTH_2), body_message(b"o")),
        make_app(start_message(*LENGTH_2), start_message(*LENGTH_2)),
    ],
)
async def test_an_interrupted_response_has_its_head_and_is_truncated(app: App) -> None:
    assert (await exchange(app)).startswith(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")


@pytest.mark.parametrize("value", [b"b\r\nc: d", b"b\n", b"b\r", b"b\0", b"b\x7f"])
async def test_a_header_with_a_line_break_is_not_sent(value: bytes) -> None:
    assert await exchange(make_app(start_message((b"a", value)), body_message(b"ok"))) == b""


@pytest.mark.parametrize("app", [make_app(), make_app(error=ValueError()), make_app(body_message(b"ok"))])
async def test_an_app_without_a_response_has_failed(app: App) -> None:
    assert (await exchange(app)).startswith(b"HTTP/1.1 500 ")
