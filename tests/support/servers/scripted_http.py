"""A server that sends scripted bytes and records requests."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from foveate.http.pool import ConnectionPool, Target, parse_url, read_body

ConnectionHandler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


@dataclass
class ScriptedServer:
    """A scripted server, and its requests: a list for each connection."""

    url: str = ""
    requests_by_connection: list[list[bytes]] = field(default_factory=list)
    is_closed: list[bool] = field(default_factory=list)

    @property
    def target(self) -> Target:
        return parse_url(self.url)


@asynccontextmanager
async def serve_script(
    handler: ConnectionHandler, *, tls_context: ssl.SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(server.requests_by_connection)
        server.requests_by_connection.append([])
        server.is_closed.append(False)
        try:
            while request := await _read_request(reader):
                server.requests_by_connection[number].append(request)
                await handler(reader, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            server.is_closed[number] = True
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls_context)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1/x?y=1"
    try:
        yield server
    finally:
        listener.close()


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    _, _, rest = head.lower().partition(b"content-length: ")
    return head + await reader.readexactly(int(rest.split(b"\r\n")[0])) if rest else head


def reply_with(*pieces: bytes) -> ConnectionHandler:
    async def handler(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return handler


def reply_and_close(*pieces: bytes) -> ConnectionHandler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reply_with(*pieces)(reader, writer)
        writer.close()

    return handler


async def fetch(pool: ConnectionPool, target: Target, body: bytes = b"{}") -> bytes:
    async with pool.stream("POST", target, [(b"x-a", b"b")], body) as response:
        return await read_body(response, max_bytes=10**9, url=target.url)


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the other side changes the state
            await asyncio.sleep(0.005)
