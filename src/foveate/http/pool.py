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

import aiohappyeyeballs

from foveate.errors import BadOption, UpstreamGarbled, UpstreamTimeout, UpstreamUnreachable
from foveate.http.connection import Connection, Headers
from foveate.http.proxies import Proxy, ProxyRules

_DEFAULT_PORTS = {"http": 80, "https": 443}
# A keep-alive timeout that a server announces is used, minus a margin.
_KEEP_ALIVE_MARGIN_SECONDS = 1.0
# RFC 8305, 5: when the next address of a host is tried.
_NEXT_ADDRESS_SECONDS = 0.25
_PROXY_AUTHENTICATION_REQUIRED = 407
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
    may have: some networks drop idle connections while a model is thinking. A connection that was unused for
    `keep_alive_seconds` is not used again; many servers close idle connections after a minute.
    """

    connect_seconds: float = 10.0
    idle_seconds: float = 600.0
    total_seconds: float = 3600.0
    work_seconds: float = 10.0
    keep_alive_seconds: float = 50.0


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
    """`read_chunk` streams the body."""

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

    def __init__(
        self,
        *,
        timeouts: Timeouts | None = None,
        tls_context: ssl.SSLContext | None = None,
        proxies: ProxyRules | None = None,
    ) -> None:
        """Create a pool.

        `tls_context` defines the trusted certificates; by default those of the system, or of `SSL_CERT_FILE`
        and `SSL_CERT_DIR`. `proxies` are by default those of the environment.
        """
        self.timeouts = timeouts or Timeouts()
        self._tls_context = tls_context
        self._proxy_rules = ProxyRules.from_environment(os.environ) if proxies is None else proxies
        self._proxies: dict[tuple[str, str, int], Proxy | None] = {}
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
        forwarder = self._find_proxy(target) if target.scheme == "http" else None
        head = _format_head(
            method, target, headers if reuse else [*headers, _CLOSE_HEADER], len(body), forwarder
        )
        return PendingResponse(self, method, target, head, body, timeouts, forwarder, reuse=reuse)

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
        proxy = self._find_proxy(target)
        tls_context = None
        if target.scheme == "https" or (proxy is not None and proxy.scheme == "https"):
            tls_context = self._tls_context or await asyncio.to_thread(_default_tls_context)
        try:
            async with asyncio.timeout(timeouts.connect_seconds):
                if proxy is None:
                    connection = await _connect(target, target, tls_context)
                else:
                    connection = await _connect_to_proxy(proxy, target, tls_context)
                    if target.scheme == "https":
                        assert tls_context is not None
                        await _open_tunnel(connection, proxy, target, tls_context, timeouts.connect_seconds)
        except TimeoutError:
            raise UpstreamTimeout(
                target.url, timeouts.connect_seconds, proxy_url="" if proxy is None else proxy.url
            ) from None
        self._open.add(connection)
        return connection

    def _find_proxy(self, target: Target) -> Proxy | None:
        origin = target.origin
        if origin not in self._proxies:
            try:
                self._proxies[origin] = self._proxy_rules.find_proxy(*origin)
            except BadOption as error:
                raise UpstreamUnreachable(target.url, f"its proxy cannot be used: {error}") from None
        return self._proxies[origin]

    def release(self, target: Target, connection: Connection, *, reuse: bool = True) -> None:
        """Return a connection to the pool, or close it if it cannot be reused."""
        if not reuse or not connection.is_reusable:
            self._close_connection(connection)
            return
        seconds, stated_seconds = self.timeouts.keep_alive_seconds, connection.keep_alive_seconds
        if stated_seconds is not None:
            seconds = min(seconds, stated_seconds - _KEEP_ALIVE_MARGIN_SECONDS)
        idle = self._idle.get(target.origin)
        if idle is None:
            idle = self._idle[target.origin] = deque()
        now = asyncio.get_running_loop().time()
        idle.append((connection, now + seconds))
        # The last connection is used first, so those of a burst of requests would stay open.
        while idle and (idle[0][1] <= now or len(idle) > _MAX_IDLE_CONNECTIONS):
            self._close_connection(idle.popleft()[0])

    def _close_connection(self, connection: Connection) -> None:
        connection.close()
        self._open.discard(connection)


class PendingResponse:
    """Sends a request when its block starts, and releases the connection when it ends."""

    __slots__ = (
        "_body",
        "_connection",
        "_forwarder",
        "_head",
        "_method",
        "_pool",
        "_reuse",
        "_target",
        "_timeouts",
    )

    def __init__(
        self,
        pool: ConnectionPool,
        method: str,
        target: Target,
        head: bytes,
        body: bytes,
        timeouts: Timeouts | None,
        forwarder: Proxy | None,
        *,
        reuse: bool,
    ) -> None:
        """`forwarder` is the proxy that reads the request itself and not only its bytes."""
        self._pool = pool
        self._method = method
        self._target = target
        self._head = head
        self._body = body
        self._timeouts = timeouts or pool.timeouts
        self._forwarder = forwarder
        self._reuse = reuse
        self._connection: Connection | None = None

    @property
    def is_sent(self) -> bool:
        """Return whether there was a connection, so that the server may have the request or a part of it."""
        return self._connection is not None

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
            if self._forwarder is not None and connection.status == _PROXY_AUTHENTICATION_REQUIRED:
                raise UpstreamUnreachable(
                    self._target.url, _describe_rejection(self._forwarder, connection.status)
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


async def _connect(server: "Target | Proxy", target: Target, tls_context: ssl.SSLContext | None) -> Connection:
    """Connect to a server, for requests to `target`. Its addresses are tried in parallel (RFC 8305).

    Raises:
        UpstreamUnreachable: no connection.
    """
    loop = asyncio.get_running_loop()
    is_secure = server.scheme == "https"
    try:
        addresses = await loop.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
        connected_socket = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS
        )
        connected_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        _, connection = await loop.create_connection(
            lambda: Connection(target.url),
            sock=connected_socket,
            ssl=tls_context if is_secure else None,
            server_hostname=server.host if is_secure else None,
        )
    except (OSError, UnicodeError, RuntimeError) as error:
        raise UpstreamUnreachable(target.url, _describe_error(error)) from None
    return connection


async def _connect_to_proxy(proxy: Proxy, target: Target, tls_context: ssl.SSLContext | None) -> Connection:
    try:
        return await _connect(proxy, target, tls_context)
    except UpstreamUnreachable as error:
        raise UpstreamUnreachable(target.url, f"the proxy {proxy.url} is unreachable: {error.reason}") from None


async def _open_tunnel(
    connection: Connection, proxy: Proxy, target: Target, tls_context: ssl.SSLContext, limit_seconds: float
) -> None:
    """Ask a proxy for a tunnel to `target`, and start TLS in it.

    Raises:
        UpstreamUnreachable: no tunnel, or no TLS. The server has not received the request.
    """
    authority = b"%b:%d" % (target.authority.removesuffix(b":%d" % target.port), target.port)
    lines = [b"CONNECT %b HTTP/1.1" % authority, b"host: " + authority, *_authorize(proxy), b"", b""]
    reason = ""
    try:
        await connection.send_request(
            b"\r\n".join(lines),
            b"",
            idle_seconds=limit_seconds,
            total_seconds=limit_seconds,
            work_seconds=limit_seconds,
            no_body=True,
        )
        if 200 <= connection.status < 300:
            await connection.start_tls(tls_context, target.host)
        else:
            reason = _describe_rejection(proxy, connection.status)
    except UpstreamUnreachable as error:
        reason = f"the proxy {proxy.url} opened no tunnel: {error.reason}"
    except OSError as error:
        reason = f"{_describe_error(error)}, through the proxy {proxy.url}"
    except BaseException:
        connection.close()
        raise
    if reason:
        connection.close()
        raise UpstreamUnreachable(target.url, reason)


def _authorize(proxy: Proxy) -> list[bytes]:
    return [] if proxy.authorization is None else [b"proxy-authorization: " + proxy.authorization]


def _describe_rejection(proxy: Proxy, status: int) -> str:
    if status != _PROXY_AUTHENTICATION_REQUIRED:
        return f"the proxy {proxy.url} refused the connection with status {status}"
    if proxy.authorization is None:
        return (
            f"the proxy {proxy.url} requires credentials (407): add them to its URL, as in"
            " http://user:password@host:port"
        )
    return f"the proxy {proxy.url} rejects the credentials (407): check the user and password in its URL"


def _format_head(
    method: str,
    target: Target,
    headers: Sequence[tuple[bytes, bytes]],
    body_bytes: int,
    forwarder: Proxy | None = None,
) -> bytes:
    path = target.path if forwarder is None else b"http://%b%b" % (target.authority, target.path)
    lines = [
        b"%b %b HTTP/1.1" % (method.encode("ascii"), path),
        b"host: " + target.authority,
        *map(b": ".join, headers),
    ]
    if forwarder is not None:
        lines += _authorize(forwarder)
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
