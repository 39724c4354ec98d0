"""Connections to servers: opened when they are needed, kept for the next request, never used when stale.

A request is sent once. Where a kept connection turns out to be closed, that is seen before a byte is sent, and
another one is opened; a connection that closes later is an error, since nobody can know what the server did.
"""

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import TracebackType
from urllib.parse import SplitResult, urlsplit

from foveate.errors import UpstreamGarbled, UpstreamTimeout, UpstreamUnreachable
from foveate.upstream.connection import Connection, Headers

_PORTS = {"http": 80, "https": 443}
# Servers close what nobody uses, many after a minute. One that says when is believed, less a moment.
_KEEP_SECONDS = 50.0
_MOMENT_SECONDS = 1.0
_MOST_KEPT = 256
_CLOSE = (b"connection", b"close")
_FORBIDDEN = frozenset(b"\r\n\0")
_BODILESS = frozenset(("GET", "HEAD", "DELETE", "OPTIONS"))
# A URL that comes again and again is no longer.
_USUAL_CHARS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait: for a connection, for the next piece of an answer, and for all of it.

    A server that closes a connection without a word has done nothing for `work_seconds`. After these it may
    have: a network that drops what is silent does so while a model thinks.
    """

    connect_seconds: float = 10.0
    idle_seconds: float = 600.0
    total_seconds: float = 3600.0
    work_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is, and what is asked of it there."""

    scheme: str
    host: str
    port: int
    path: bytes
    authority: bytes
    """The host as requests name it."""
    url: str

    @property
    def place(self) -> tuple[str, str, int]:
        """What a connection is to."""
        return self.scheme, self.host, self.port


def target(url: str) -> Target:
    """What a URL means.

    Raises:
        UpstreamUnreachable: it is none of http or https, or has no host.
    """
    # A query is seldom the same, and may hold a key.
    return _read(url) if "?" in url or len(url) > _USUAL_CHARS else _known(url)


def _read(url: str) -> Target:
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
        host = parts.hostname or ""
        named = f"[{host}]" if ":" in host else host
        own_port = "" if port == _PORTS.get(parts.scheme) else f":{port}"
        authority = f"{named}{own_port}".encode("ascii" if host.isascii() else "idna")
    except ValueError as error:
        raise UpstreamUnreachable(url, str(error)) from None
    if parts.scheme not in _PORTS or not host or not host.isprintable() or " " in host:
        raise UpstreamUnreachable(url, "is no address of the kind http://host or https://host")
    path = parts.path or "/"
    asked = f"{path}?{parts.query}" if parts.query else path
    if not asked.isascii() or not asked.isprintable() or " " in asked:
        raise UpstreamUnreachable(url, "has something in it that has to be written as %XX")
    return Target(parts.scheme, host, port, asked.encode("ascii"), authority, url)


_known = lru_cache(maxsize=1024)(_read)


class Answer:
    """The head of an answer, and its body piece by piece."""

    def __init__(self, connection: Connection) -> None:
        self.status = connection.status
        self.headers: Headers = connection.headers
        self.piece = connection.piece

    def header(self, name: bytes) -> bytes | None:
        """The first header of that name, which is in small letters."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None


class Pool:
    """Opens connections and keeps them. It belongs to the event loop that first uses it."""

    def __init__(self, *, timeouts: Timeouts | None = None, trust: ssl.SSLContext | None = None) -> None:
        """`trust` says which certificates are good; by default those that the system trusts."""
        self.timeouts = timeouts or Timeouts()
        self._trust = trust
        self._kept: dict[tuple[str, str, int], deque[tuple[Connection, float]]] = {}
        self._open: set[Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def asked(
        self,
        method: str,
        where: Target,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes = b"",
        *,
        timeouts: Timeouts | None = None,
        reuse: bool = True,
    ) -> "Asked":
        """The answer to a request that is sent once; left early, its connection is closed.

        Without `reuse` it has a connection of its own, which is closed after it.

        Host, content-length and connection are written here and must not be among `headers`.

        Raises:
            UpstreamUnreachable: no connection, one that was closed or broke off, or what came is no HTTP.
            UpstreamTimeout: no connection, no answer, or no more of it in time.
        """
        head = _head(method, where, headers if reuse else [*headers, _CLOSE], len(body))
        return Asked(self, method, where, head, body, timeouts, reuse=reuse)

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

    def kept(self, where: Target) -> Connection | None:
        """One of the open connections that nobody uses; it is nobody else's until it is given back."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections of another loop are of no use here
            self._kept, self._open, self._loop = {}, set(), loop
        kept = self._kept.get(where.place)
        while kept:
            connection, until = kept.pop()
            if loop.time() < until and not connection.is_stale:
                return connection
            self._drop(connection)
        return None

    async def opened(self, where: Target, waits: Timeouts) -> Connection:
        """A new connection; it is nobody else's until it is given back."""
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

    def give_back(self, where: Target, connection: Connection, *, reuse: bool = True) -> None:
        """Keep a connection for others, where it may be used again."""
        if not reuse or not connection.is_reusable:
            self._drop(connection)
            return
        said = connection.keep_seconds
        seconds = _KEEP_SECONDS if said is None else min(_KEEP_SECONDS, said - _MOMENT_SECONDS)
        kept = self._kept.get(where.place)
        if kept is None:
            kept = self._kept[where.place] = deque()
        kept.append((connection, asyncio.get_running_loop().time() + seconds))
        if len(kept) > _MOST_KEPT:
            self._drop(kept.popleft()[0])

    def _drop(self, connection: Connection) -> None:
        connection.close()
        self._open.discard(connection)


class Asked:
    """A request that is sent as its block begins; its connection goes back as it ends."""

    __slots__ = ("_body", "_connection", "_head", "_method", "_pool", "_reuse", "_waits", "_where")

    def __init__(
        self,
        pool: Pool,
        method: str,
        where: Target,
        head: bytes,
        body: bytes,
        timeouts: Timeouts | None,
        *,
        reuse: bool,
    ) -> None:
        self._pool = pool
        self._method = method
        self._where = where
        self._head = head
        self._body = body
        self._waits = timeouts or pool.timeouts
        self._reuse = reuse
        self._connection: Connection | None = None

    async def __aenter__(self) -> Answer:
        """Send it, and wait for the head of its answer."""
        waits = self._waits
        kept = self._pool.kept(self._where) if self._reuse else None
        connection = kept or await self._pool.opened(self._where, waits)
        self._connection = connection
        try:
            await connection.ask(
                self._head,
                self._body,
                idle_seconds=waits.idle_seconds,
                total_seconds=waits.total_seconds,
                work_seconds=waits.work_seconds,
                no_body=self._method == "HEAD",
            )
        except BaseException:
            self._pool.give_back(self._where, connection, reuse=self._reuse)
            raise
        return Answer(connection)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of its connection."""
        assert self._connection is not None
        self._pool.give_back(self._where, self._connection, reuse=self._reuse)


@cache
def _usual_trust() -> ssl.SSLContext:
    """Whom to trust; made once, since reading all certificates takes some milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _head(method: str, where: Target, headers: Sequence[tuple[bytes, bytes]], body_bytes: int) -> bytes:
    lines = [
        b"%b %b HTTP/1.1" % (method.encode("ascii"), where.path),
        b"host: " + where.authority,
        *map(b": ".join, headers),
    ]
    if body_bytes or method not in _BODILESS:
        lines.append(b"content-length: %d" % body_bytes)
    lines += (b"", b"")
    head = b"\r\n".join(lines)
    ends = len(lines) - 1
    if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\0" in head:
        shown = next(name for name, value in headers if not _FORBIDDEN.isdisjoint(name + value))
        raise UpstreamUnreachable(
            where.url, f"the header {shown.decode('latin-1')!r} has a line break in it and is not sent"
        )
    return head


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
