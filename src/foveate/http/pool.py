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
from foveate.http.connection import Connection, Headers

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Servers close what nobody uses, many after a minute. One that says when is believed, less a moment.
_KEEP_ALIVE_SECONDS = 50.0
_KEEP_ALIVE_MARGIN_SECONDS = 1.0
_MAX_IDLE_CONNECTIONS = 256
_CLOSE_HEADER = (b"connection", b"close")
_FORBIDDEN_BYTES = frozenset(b"\r\n\0")
_METHODS_WITHOUT_BODY = frozenset(("GET", "HEAD", "DELETE", "OPTIONS"))
# A URL that comes again and again is no longer.
_MAX_CACHED_URL_CHARS = 1024


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
    def origin(self) -> tuple[str, str, int]:
        """What a connection is to."""
        return self.scheme, self.host, self.port


def parse_url(url: str) -> Target:
    """What a URL means.

    Raises:
        UpstreamUnreachable: it is none of http or https, or has no host.
    """
    # A query is seldom the same, and may hold a key.
    return _parse_url(url) if "?" in url or len(url) > _MAX_CACHED_URL_CHARS else _parse_url_cached(url)


def _parse_url(url: str) -> Target:
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        host = parts.hostname or ""
        bracketed_host = f"[{host}]" if ":" in host else host
        port_suffix = "" if port == _DEFAULT_PORTS.get(parts.scheme) else f":{port}"
        authority = f"{bracketed_host}{port_suffix}".encode("ascii" if host.isascii() else "idna")
    except ValueError as error:
        raise UpstreamUnreachable(url, str(error)) from None
    if parts.scheme not in _DEFAULT_PORTS or not host or not host.isprintable() or " " in host:
        raise UpstreamUnreachable(url, "is no address of the kind http://host or https://host")
    path = parts.path or "/"
    path_and_query = f"{path}?{parts.query}" if parts.query else path
    if not path_and_query.isascii() or not path_and_query.isprintable() or " " in path_and_query:
        raise UpstreamUnreachable(url, "has something in it that has to be written as %XX")
    return Target(parts.scheme, host, port, path_and_query.encode("ascii"), authority, url)


_parse_url_cached = lru_cache(maxsize=1024)(_parse_url)


class HttpResponse:
    """The head of an answer, and its body piece by piece."""

    def __init__(self, connection: Connection) -> None:
        self.status = connection.status
        self.headers: Headers = connection.headers
        self.read_chunk = connection.read_chunk

    def header(self, name: bytes) -> bytes | None:
        """The first header of that name, which is in small letters."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None


class ConnectionPool:
    """Opens connections and keeps them. It belongs to the event loop that first uses it."""

    def __init__(self, *, timeouts: Timeouts | None = None, tls_context: ssl.SSLContext | None = None) -> None:
        """`trust` says which certificates are good; by default those that the system trusts."""
        self.timeouts = timeouts or Timeouts()
        self._tls_context = tls_context
        self._idle: dict[tuple[str, str, int], deque[tuple[Connection, float]]] = {}
        self._open: set[Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stream(
        self,
        method: str,
        target: Target,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes = b"",
        *,
        timeouts: Timeouts | None = None,
        reuse: bool = True,
    ) -> "PendingResponse":
        """The answer to a request that is sent once; left early, its connection is closed.

        Without `reuse` it has a connection of its own, which is closed after it.

        Host, content-length and connection are written here and must not be among `headers`.

        Raises:
            UpstreamUnreachable: no connection, one that was closed or broke off, or what came is no HTTP.
            UpstreamTimeout: no connection, no answer, or no more of it in time.
        """
        head = _format_head(method, target, headers if reuse else [*headers, _CLOSE_HEADER], len(body))
        return PendingResponse(self, method, target, head, body, timeouts, reuse=reuse)

    async def __aenter__(self) -> "ConnectionPool":
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
        self._idle.clear()

    def take_idle(self, target: Target) -> Connection | None:
        """One of the open connections that nobody uses; it is nobody else's until it is given back."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections of another loop are of no use here
            self._idle, self._open, self._loop = {}, set(), loop
        idle = self._idle.get(target.origin)
        while idle:
            connection, until = idle.pop()
            if loop.time() < until and not connection.is_stale:
                return connection
            self._close_connection(connection)
        return None

    async def open_connection(self, target: Target, timeouts: Timeouts) -> Connection:
        """A new connection; it is nobody else's until it is given back."""
        loop = asyncio.get_running_loop()
        tls_context = None
        if target.scheme == "https":
            tls_context = self._tls_context or await asyncio.to_thread(_default_tls_context)
        try:
            async with asyncio.timeout(timeouts.connect_seconds):
                transport, connection = await loop.create_connection(
                    lambda: Connection(target.url),
                    target.host,
                    target.port,
                    ssl=tls_context,
                    server_hostname=target.host if tls_context else None,
                )
        except TimeoutError:
            raise UpstreamTimeout(target.url, timeouts.connect_seconds) from None
        except (OSError, UnicodeError) as error:
            raise UpstreamUnreachable(target.url, _describe_error(error)) from None
        connected_socket = transport.get_extra_info("socket")
        if connected_socket is not None and connected_socket.family in (socket.AF_INET, socket.AF_INET6):
            connected_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._open.add(connection)
        return connection

    def release(self, target: Target, connection: Connection, *, reuse: bool = True) -> None:
        """Keep a connection for others, where it may be used again."""
        if not reuse or not connection.is_reusable:
            self._close_connection(connection)
            return
        stated_seconds = connection.keep_alive_seconds
        seconds = (
            _KEEP_ALIVE_SECONDS
            if stated_seconds is None
            else min(_KEEP_ALIVE_SECONDS, stated_seconds - _KEEP_ALIVE_MARGIN_SECONDS)
        )
        idle = self._idle.get(target.origin)
        if idle is None:
            idle = self._idle[target.origin] = deque()
        idle.append((connection, asyncio.get_running_loop().time() + seconds))
        if len(idle) > _MAX_IDLE_CONNECTIONS:
            self._close_connection(idle.popleft()[0])

    def _close_connection(self, connection: Connection) -> None:
        connection.close()
        self._open.discard(connection)


class PendingResponse:
    """A request that is sent as its block begins; its connection goes back as it ends."""

    __slots__ = ("_body", "_connection", "_head", "_method", "_pool", "_reuse", "_target", "_timeouts")

    def __init__(
        self,
        pool: ConnectionPool,
        method: str,
        target: Target,
        head: bytes,
        body: bytes,
        timeouts: Timeouts | None,
        *,
        reuse: bool,
    ) -> None:
        self._pool = pool
        self._method = method
        self._target = target
        self._head = head
        self._body = body
        self._timeouts = timeouts or pool.timeouts
        self._reuse = reuse
        self._connection: Connection | None = None

    async def __aenter__(self) -> HttpResponse:
        """Send it, and wait for the head of its answer."""
        timeouts = self._timeouts
        idle = self._pool.take_idle(self._target) if self._reuse else None
        connection = idle or await self._pool.open_connection(self._target, timeouts)
        self._connection = connection
        try:
            await connection.send_request(
                self._head,
                self._body,
                idle_seconds=timeouts.idle_seconds,
                total_seconds=timeouts.total_seconds,
                work_seconds=timeouts.work_seconds,
                no_body=self._method == "HEAD",
            )
        except BaseException:
            self._pool.release(self._target, connection, reuse=self._reuse)
            raise
        return HttpResponse(connection)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of its connection."""
        assert self._connection is not None
        self._pool.release(self._target, self._connection, reuse=self._reuse)


@cache
def _default_tls_context() -> ssl.SSLContext:
    """Whom to trust; made once, since reading all certificates takes some milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _format_head(method: str, target: Target, headers: Sequence[tuple[bytes, bytes]], body_bytes: int) -> bytes:
    lines = [
        b"%b %b HTTP/1.1" % (method.encode("ascii"), target.path),
        b"host: " + target.authority,
        *map(b": ".join, headers),
    ]
    if body_bytes or method not in _METHODS_WITHOUT_BODY:
        lines.append(b"content-length: %d" % body_bytes)
    lines += (b"", b"")
    head = b"\r\n".join(lines)
    line_ends = len(lines) - 1
    if head.count(b"\n") != line_ends or head.count(b"\r") != line_ends or b"\0" in head:
        shown = next(name for name, value in headers if not _FORBIDDEN_BYTES.isdisjoint(name + value))
        raise UpstreamUnreachable(
            target.url, f"the header {shown.decode('latin-1')!r} has a line break in it and is not sent"
        )
    return head


def _describe_error(error: Exception) -> str:
    """Why there was no connection, in the system's words where they are to be had."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"no secure connection ({error.reason or error})"
    if isinstance(error, OSError) and error.errno is not None:
        message = os.strerror(error.errno) if error.errno > 0 else error.strerror
        return f"no connection ({message})"
    return f"no connection ({' '.join(str(error).split()) or type(error).__name__})"


async def read_body(response: HttpResponse, *, max_bytes: int, url: str) -> bytes:
    """All of an answer's body.

    Raises:
        UpstreamGarbled: it is longer than `most_bytes`.
        UpstreamBroken: it broke off.
        UpstreamTimeout: nothing came in time.
    """
    content_length = response.header(b"content-length") or b""
    if content_length.isdigit() and int(content_length) > max_bytes:
        raise UpstreamGarbled(url, f"the answer is longer than {max_bytes:,} bytes")
    chunks: list[bytes] = []
    size = 0
    while chunk := await response.read_chunk():
        size += len(chunk)
        if size > max_bytes:
            raise UpstreamGarbled(url, f"the answer is longer than {max_bytes:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
