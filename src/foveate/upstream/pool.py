"""Connections to servers: opened when they are needed, kept for the next request, never used when stale.

A request is sent once. Where a kept connection turns out to be closed, that is seen before a byte is sent, and
another one is opened; a connection that closes later is an error, since nobody can know what the server did.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from urllib.parse import SplitResult, urlsplit

from foveate.errors import UpstreamGarbled, UpstreamTimeout, UpstreamUnreachable
from foveate.upstream.connection import Connection, Headers

_PORTS = {"http": 80, "https": 443}
# Servers close what nobody uses, many after a minute. One that says when is believed, less a moment.
_KEEP_SECONDS = 50.0
_MOMENT_SECONDS = 1.0
_MOST_KEPT = 256
_FORBIDDEN = frozenset(b"\r\n\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait: for a connection, for the next piece of an answer, and for all of it."""

    connect_seconds: float = 10.0
    idle_seconds: float = 600.0
    total_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is, and what is asked of it there."""

    scheme: str
    host: str
    port: int
    path: bytes
    url: str

    @property
    def authority(self) -> bytes:
        """The host as requests name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = _PORTS[self.scheme] == self.port
        return (host if usual else f"{host}:{self.port}").encode("idna" if not host.isascii() else "ascii")


def target(url: str) -> Target:
    """What a URL means.

    Raises:
        UpstreamUnreachable: it is none of http or https, or has no host.
    """
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
        host = parts.hostname or ""
    except ValueError as error:
        raise UpstreamUnreachable(url, str(error)) from None
    if parts.scheme not in _PORTS or not host:
        raise UpstreamUnreachable(url, "is no address of the kind http://host or https://host")
    path = parts.path or "/"
    asked = f"{path}?{parts.query}" if parts.query else path
    if not asked.isascii() or not asked.isprintable() or " " in asked:
        raise UpstreamUnreachable(url, "has something in it that has to be written as %XX")
    return Target(parts.scheme, host, port, asked.encode("ascii"), url)


class Answer:
    """The head of an answer, and its body piece by piece."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status = connection.status
        self.headers: Headers = connection.headers

    async def piece(self) -> bytes:
        """What has come of the body since; nothing at its end.

        Raises:
            UpstreamTimeout: nothing came in time.
            UpstreamBroken: it broke off.
        """
        return await self._connection.piece()

    def header(self, name: bytes) -> bytes | None:
        """The first header of that name, which is in small letters."""
        return next((value for key, value in self.headers if key.lower() == name), None)


class Pool:
    """Opens connections and keeps them. It belongs to the event loop that first uses it."""

    def __init__(self, *, timeouts: Timeouts | None = None, trust: ssl.SSLContext | None = None) -> None:
        """`trust` says which certificates are good; by default those that the system trusts."""
        self.timeouts = timeouts or Timeouts()
        self._trust = trust
        self._kept: dict[tuple[str, str, int], deque[tuple[Connection, float]]] = {}
        self._open: set[Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def asked(
        self,
        method: str,
        where: Target,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes = b"",
        *,
        timeouts: Timeouts | None = None,
    ) -> AsyncIterator[Answer]:
        """The answer to a request that is sent once; left early, its connection is closed.

        Host, content-length and connection are written here and must not be among `headers`.

        Raises:
            UpstreamUnreachable: no connection, one that was closed or broke off, or what came is no HTTP.
            UpstreamTimeout: no connection, no answer, or no more of it in time.
        """
        waits = timeouts or self.timeouts
        head = _head(method, where, headers, len(body))
        connection = await self._connected(where, waits)
        try:
            connection.ask(
                head,
                body,
                idle_seconds=waits.idle_seconds,
                total_seconds=waits.total_seconds,
                no_body=method == "HEAD",
            )
            await connection.begun()
            yield Answer(connection)
        finally:
            self._give_back(where, connection)

    async def __aenter__(self) -> "Pool":
        """The pool itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        await self.close()

    async def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._kept.clear()

    async def _connected(self, where: Target, waits: Timeouts) -> Connection:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections of another loop are of no use here
            self._kept, self._open, self._loop = {}, set(), loop
        kept = self._kept.get((where.scheme, where.host, where.port))
        while kept:
            connection, until = kept.pop()
            if loop.time() < until and not connection.is_stale:
                return connection
            self._drop(connection)
        return await self._opened(where, waits)

    async def _opened(self, where: Target, waits: Timeouts) -> Connection:
        loop = asyncio.get_running_loop()
        secure = None
        if where.scheme == "https":
            secure = self._trust or await asyncio.to_thread(_usual_trust)
        try:
            async with asyncio.timeout(waits.connect_seconds):
                transport, connection = await loop.create_connection(
                    lambda: Connection(where.url),
                    where.host,
                    where.port,
                    ssl=secure,
                    server_hostname=where.host if secure else None,
                )
        except TimeoutError:
            raise UpstreamTimeout(where.url, waits.connect_seconds) from None
        except (OSError, UnicodeError) as error:
            raise UpstreamUnreachable(where.url, _reason(error)) from None
        found = transport.get_extra_info("socket")
        if found is not None and found.family in (socket.AF_INET, socket.AF_INET6):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._open.add(connection)
        return connection

    def _give_back(self, where: Target, connection: Connection) -> None:
        if not connection.is_reusable:
            self._drop(connection)
            return
        said = connection.keep_seconds
        seconds = _KEEP_SECONDS if said is None else min(_KEEP_SECONDS, said - _MOMENT_SECONDS)
        kept = self._kept.setdefault((where.scheme, where.host, where.port), deque())
        kept.append((connection, asyncio.get_running_loop().time() + seconds))
        if len(kept) > _MOST_KEPT:
            self._drop(kept.popleft()[0])

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._open.discard(connection)


@cache
def _usual_trust() -> ssl.SSLContext:
    """Whom to trust; made once, since reading all certificates takes some milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _head(method: str, where: Target, headers: Sequence[tuple[bytes, bytes]], body_bytes: int) -> bytes:
    lines = [b"%b %b HTTP/1.1\r\nhost: %b\r\n" % (method.encode("ascii"), where.path, where.authority)]
    for name, value in headers:
        if not _FORBIDDEN.isdisjoint(name) or not _FORBIDDEN.isdisjoint(value):
            shown = name.decode("latin-1")
            raise UpstreamUnreachable(where.url, f"the header {shown!r} has a line break in it and is not sent")
        lines.append(b"%b: %b\r\n" % (name, value))
    if body_bytes or method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
        lines.append(b"content-length: %d\r\n" % body_bytes)
    lines.append(b"\r\n")
    return b"".join(lines)


def _reason(error: Exception) -> str:
    """Why there was no connection, in the system's words where they are to be had."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"no secure connection ({error.reason or error})"
    if isinstance(error, OSError) and error.errno is not None:
        said = os.strerror(error.errno) if error.errno > 0 else error.strerror
        return f"no connection ({said})"
    return f"no connection ({' '.join(str(error).split()) or type(error).__name__})"


async def whole(answer: Answer, *, most_bytes: int, url: str) -> bytes:
    """All of an answer's body.

    Raises:
        UpstreamGarbled: it is longer than `most_bytes`.
        UpstreamBroken: it broke off.
        UpstreamTimeout: nothing came in time.
    """
    announced = answer.header(b"content-length") or b""
    if announced.isdigit() and int(announced) > most_bytes:
        raise UpstreamGarbled(url, f"the answer is longer than {most_bytes:,} bytes")
    pieces: list[bytes] = []
    size = 0
    while piece := await answer.piece():
        size += len(piece)
        if size > most_bytes:
            raise UpstreamGarbled(url, f"the answer is longer than {most_bytes:,} bytes")
        pieces.append(piece)
    return b"".join(pieces)
