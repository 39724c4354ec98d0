"""A server that sends scripted bytes and records requests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from foveate.http.pool import ConnectionPool, Target, parse_url, read_body

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


@dataclass
class Server:
    """A scripted server, and its requests: a list for each connection."""

    url: str = ""
    heard: list[list[bytes]] = field(default_factory=list)
    gone: list[bool] = field(default_factory=list)

    @property
    def target(self) -> Target:
        return parse_url(self.url)


@asynccontextmanager
async def server(talk: Talk) -> AsyncIterator[Server]:
    made = Server()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(made.heard)
        made.heard.append([])
        made.gone.append(False)
        try:
            while request := await _request(reader):
                made.heard[number].append(request)
                await talk(reader, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            made.gone[number] = True
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/x?y=1"
    try:
        yield made
    finally:
        listening.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    _, _, rest = head.lower().partition(b"content-length: ")
    return head + await reader.readexactly(int(rest.split(b"\r\n")[0])) if rest else head


def saying(*pieces: bytes) -> Talk:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return talk


def closing(*pieces: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await saying(*pieces)(reader, writer)
        writer.close()

    return talk


async def got(pool: ConnectionPool, where: Target, body: bytes = b"{}") -> bytes:
    async with pool.stream("POST", where, [(b"x-a", b"b")], body) as answer:
        return await read_body(answer, max_bytes=10**9, url=where.url)


async def eventually(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110 - it is the other side that has to see it
            await asyncio.sleep(0.005)
