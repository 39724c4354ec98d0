"""Connection pool: connections are opened on demand, kept for later requests, and never used when stale.

A request is sent once. A kept connection that was closed is detected before any byte is sent, and replaced. If
a connection closes later, that is an error, because the server may have processed the request.
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
# Many servers close idle connections after a minute. A timeout that they announce is used, minus a margin.
_KEEP_ALIVE_SECONDS = 50.0
_KEEP_ALIVE_MARGIN_SECONDS = 1.0
_MAX_IDLE_CONNECTIONS = 256
_CLOSE_HEADER = (b"connection", b"close")
_FORBIDDEN_BYTES = frozenset(b"\r\n\0")
_METHODS_WITHOUT_BODY = frozenset(("GET", "HEAD", "DELETE", "OPTIONS"))
# URLs that are used repeatedly are not longer.
_MAX_CACHED_URL_CHARS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts for connecting, for the next chunk of a response, and for the whole response.

    If a server closes a connection silently within `work_seconds`, it has not processed the request. Later it
    may have: some networks drop idle connections while a model is thinking.
    """

    connect_seconds: float = 10.0
    idle_seconds: float = 600.0
    total_seconds: float = 3600.0
    work_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    scheme: str
    host: str
    port: int
    path: bytes
    authority: bytes
    """Value of the host header."""
    url: str

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port


def parse_url(url: str) -> Target:
    """Parse a URL.

    Raises:
        UpstreamUnreachable: not http or https, or without a host.
    """
    # A query is rarely repeated, and may contain a key.
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
        raise UpstreamUnreachable(url, "is not a URL such as http://host or https://host")
    path = parts.path or "/"
    path_and_query = f"{path}?{parts.query}" if parts.query else path
    if not path_and_query.isascii() or not path_and_query.isprintable() or " " in path_and_query:
        raise UpstreamUnreachable(url, "contains a character that must be written as %XX")
    return Target(parts.scheme, host, port, path_and_query.encode("ascii"), authority, url)


_parse_url_cached = lru_cache(maxsize=1024)(_parse_url)


class HttpResponse:
    """Status and headers of a response. `read_chunk` streams its body."""

    def __init__(self, connection: Connection) -> None:
        self.status = connection.status
        self.headers: Headers = connection.headers
        self.read_chunk = connection.read_chunk

    def header(self, name: bytes) -> bytes | None:
        """Return the first header with this lowercase name."""
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return None


class ConnectionPool:
    """Connection pool for the event loop that first uses it."""

    def __init__(self, *, timeouts: Timeouts | None = None, tls_context: ssl.SSLContext | None = None) -> None:
        """Create a pool. `tls_context` defines the trusted certificates; by default those of the system."""
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
        """Send a request once, and stream its response. If the block is left early, the connection is closed.

        Without `reuse`, the request has its own connection, which is closed afterwards. The pool writes the
        headers host, content-length and connection, which must not be in `headers`.

        Raises:
            UpstreamUnreachable: no connection, a connection that was closed, or an invalid response.
            UpstreamTimeout: no connection, no response, or no more of it in time.
        """
        head = _format_head(method, target, headers if reuse else [*headers, _CLOSE_HEADER], len(body))
        return PendingResponse(self, method, target, head, body, timeouts, reuse=reuse)

    async def __aenter__(self) -> "ConnectionPool":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. The next request opens new ones."""
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()

    def take_idle(self, target: Target) -> Connection | None:
        """Take an idle connection, which belongs to the caller until it is released."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections of another loop cannot be used
            self._idle, self._open, self._loop = {}, set(), loop
        idle = self._idle.get(target.origin)
        while idle:
            connection, until = idle.pop()
            if loop.time() < until and not connection.is_stale:
                return connection
            self._close_connection(connection)
        return None

    async def open_connection(self, target: Target, timeouts: Timeouts) -> Connection:
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
        """Return a connection to the pool, or close it if it cannot be reused."""
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
    """Sends a request when its block starts, and releases the connection when it ends."""

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
        assert self._connection is not None
        self._pool.release(self._target, self._connection, reuse=self._reuse)


@cache
def _default_tls_context() -> ssl.SSLContext:
    """Create the default TLS context once, because loading all certificates takes milliseconds."""
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
        invalid_name = next(name for name, value in headers if not _FORBIDDEN_BYTES.isdisjoint(name + value))
        raise UpstreamUnreachable(
            target.url, f"the header {invalid_name.decode('latin-1')!r} contains a line break"
        )
    return head


def _describe_error(error: Exception) -> str:
    """Describe why there is no connection, in the words of the system if possible."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS connection failed ({error.reason or error})"
    if isinstance(error, OSError) and error.errno is not None:
        message = os.strerror(error.errno) if error.errno > 0 else error.strerror
        return f"connection failed ({message})"
    return f"connection failed ({' '.join(str(error).split()) or type(error).__name__})"


async def read_body(response: HttpResponse, *, max_bytes: int, url: str) -> bytes:
    """Read the whole body of a response.

    Raises:
        UpstreamGarbled: it is longer than `max_bytes`.
        UpstreamBroken: it was cut off.
        UpstreamTimeout: no data in time.
    """
    content_length = response.header(b"content-length") or b""
    if content_length.isdigit() and int(content_length) > max_bytes:
        raise UpstreamGarbled(url, f"the response is larger than {max_bytes:,} bytes")
    chunks: list[bytes] = []
    size = 0
    while chunk := await response.read_chunk():
        size += len(chunk)
        if size > max_bytes:
            raise UpstreamGarbled(url, f"the response is larger than {max_bytes:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)
