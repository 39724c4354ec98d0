"""One HTTP/1.1 connection: one request at a time, with a streamed response.

Built on httptools like servers are, because a general client would take more time for a small request than
everything else.
"""

import asyncio
import select
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import httptools

from foveate.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable

Headers = list[tuple[bytes, bytes]]

# A slow reader makes the server wait, instead of filling our memory.
_MAX_BUFFERED_BYTES = 256 * 1024
_MAX_HEADER_BYTES = 256 * 1024
# TLS encrypts at once what it is given: a body of 28 MB would block the event loop for 300 ms.
_SENT_PIECE_BYTES = 256 * 1024
_STATUSES_WITHOUT_BODY = frozenset((204, 304))


class Connection(asyncio.Protocol):
    """An open connection. Its owner sends a request, reads the whole response, and may then send another."""

    def __init__(self, url: str) -> None:
        """`url` names the server in errors."""
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._unsent = memoryview(b"")
        self._is_writing_paused = False
        self._parser: Any = None
        self._is_awaiting_response = False
        self._response_start: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._chunks: list[bytes] = []
        self.on_body = self._chunks.append  # streams have many small chunks, of which several arrive at once
        self._buffered_bytes = 0
        self._header_bytes = 0
        self._is_complete = False
        self._has_begun = False
        self._is_paused = False
        self._no_body = False
        self._error: UpstreamError | None = None
        self._poll_readable: Callable[[], object] = list
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._idle_seconds = self._total_seconds = self._work_seconds = 0.0
        self._sent_at = self._last_data_at = 0.0
        self.status = 0
        self.headers: Headers = []
        self.keeps_alive = False
        self.keep_alive_seconds: float | None = None

    def send_request(
        self,
        head: bytes,
        body: bytes,
        *,
        idle_seconds: float,
        total_seconds: float,
        work_seconds: float,
        no_body: bool = False,
    ) -> "asyncio.Future[None]":
        """Send a request and return a future that completes when the response starts.

        `status` and `headers` are set then. The response fails after `idle_seconds` without data, and after
        `total_seconds` in all. `no_body`: the response has no body, whatever its headers say. `head` ends with
        a blank line.

        The future raises:
            UpstreamUnreachable: the server closed the connection without a response.
            UpstreamBroken: it did so after `work_seconds`, or its response is not valid HTTP.
            UpstreamTimeout: no data in time.
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._is_awaiting_response = True
        self._is_complete = self._has_begun = False
        self._no_body = no_body
        self._header_bytes = 0
        self.status, self.headers, self.keeps_alive, self.keep_alive_seconds = 0, [], False, None
        response_start = self._response_start = self._loop.create_future()
        self._idle_seconds, self._total_seconds = idle_seconds, total_seconds
        self._work_seconds = work_seconds
        self._sent_at = self._last_data_at = now = self._loop.time()
        self._set_timer(now + min(idle_seconds, total_seconds))
        self._unsent = _skip_sent(memoryview(body))
        self._transport.writelines((head, memoryview(body)[:_SENT_PIECE_BYTES] if self._unsent else body))
        if self._unsent:
            self._loop.call_soon(self._send_more)
        return response_start

    def _send_more(self) -> None:
        """Send the next piece of a large body, and the others when the server has read enough."""
        if self._is_writing_paused or self._transport is None or not self._unsent:
            return
        piece, self._unsent = self._unsent[:_SENT_PIECE_BYTES], _skip_sent(self._unsent)
        self._transport.write(piece)
        self._loop.call_soon(self._send_more)

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS with `host` in the tunnel that the last request has opened.

        Raises:
            OSError: no TLS, or the certificate is not trusted.
        """
        if self._transport is None or self._chunks:
            raise ConnectionResetError("the tunnel was closed")
        self._transport = await self._loop.start_tls(self._transport, self, context, server_hostname=host)

    async def read_chunk(self) -> bytes:
        """Return the body received since the last call; empty at its end.

        Raises:
            UpstreamTimeout: no data in time.
            UpstreamBroken: the response was cut off.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return b""
            self._waiter = self._loop.create_future()
            await self._waiter
        chunk = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered_bytes = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return chunk

    @property
    def is_reusable(self) -> bool:
        """Return whether the response was read completely and the server keeps the connection open."""
        is_read = self._is_complete and not self._chunks and self._error is None
        return is_read and self.keeps_alive and not self._unsent

    @property
    def is_stale(self) -> bool:
        """Return whether the server has closed the connection or sent unexpected data."""
        transport = self._transport
        return transport is None or transport.is_closing() or bool(self._poll_readable())

    def close(self) -> None:
        """Abort the connection. Nobody may be waiting for it.

        Its error is dropped: a traceback would keep the request in memory until the next garbage collection.
        """
        self._abort()
        self._error = self._response_start = None
        self._chunks.clear()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._poll_readable = _make_poller(transport.get_extra_info("socket").fileno())

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        self._send_more()

    def data_received(self, data: bytes) -> None:
        self._last_data_at = self._loop.time()
        if not self._is_awaiting_response:  # unexpected data: later data could not be trusted to be a response
            self.close()
            return
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(UpstreamBroken(self._url, "the server switches to a protocol other than HTTP/1.1"))
        except httptools.HttpParserError as error:
            if self._is_complete:  # data after the response is not part of it
                self.keeps_alive = False
            else:
                self._fail(
                    self._error or UpstreamBroken(self._url, f"the response is not valid HTTP ({error})")
                )
        if self._chunks and self._error is None:
            self._buffer_body(len(data))

    def _buffer_body(self, new_bytes: int) -> None:
        """Wake the reader, and pause reading while the buffer is full."""
        self._buffered_bytes += new_bytes
        if self._buffered_bytes > _MAX_BUFFERED_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        if self._is_awaiting_response and not self._is_complete and self.status and not self._has_length():
            self.keeps_alive = False
            self.on_message_complete()  # a response may end with its connection
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._unsent = memoryview(b"")
        if not self._is_awaiting_response or self._is_complete:
            return
        if self.status:
            self._fail(UpstreamBroken(self._url, "the connection was closed during the response"))
        else:
            has_worked = self._has_begun or self._loop.time() - self._sent_at >= self._work_seconds
            kind = UpstreamBroken if has_worked else UpstreamUnreachable
            self._fail(kind(self._url, "the connection was closed before a response arrived"))

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self._is_complete:
            raise httptools.HttpParserCallbackError("unexpected response")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MAX_HEADER_BYTES:
            self._error = UpstreamBroken(self._url, f"the response headers exceed {_MAX_HEADER_BYTES} bytes")
            raise httptools.HttpParserCallbackError("too long")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if not 100 <= status <= 599:
            self._error = UpstreamBroken(self._url, f"the response has an invalid status ({status})")
            raise httptools.HttpParserCallbackError("invalid status")
        if status < 200:  # 100 Continue and the like: the response follows
            self.headers = []
            return
        self.status = status
        self.keeps_alive = self._parser.should_keep_alive() and not _closes_after_stream(self.headers)
        self.keep_alive_seconds = _read_keep_alive_seconds(self.headers)
        if self._response_start is not None and not self._response_start.done():
            self._response_start.set_result(None)
        if self._no_body:
            self.keeps_alive = False  # the parser expects one
            self.on_message_complete()

    def on_message_complete(self) -> None:
        if self.status < 200:
            return
        self._is_complete = True
        self._is_awaiting_response = False
        self._wake()

    def _has_length(self) -> bool:
        if self.status in _STATUSES_WITHOUT_BODY:
            return True
        return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _set_timer(self, at: float) -> None:
        """Make sure that the timer fires by `at`. An earlier one, even of a previous call, is left running."""
        if self._timer is None or at < self._timer_at:
            self._stop_timer()
            self._timer_at = at
            self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._is_awaiting_response:
            return
        now = self._loop.time()
        if self._is_paused:  # we made the server wait
            self._last_data_at = now
        total_end = self._sent_at + self._total_seconds
        end = min(self._last_data_at + self._idle_seconds, total_end)
        if end > now:
            self._set_timer(end)
            return
        is_total = total_end <= now
        self._fail(UpstreamTimeout(self._url, self._total_seconds if is_total else self._idle_seconds))

    def _abort(self) -> None:
        self._is_awaiting_response = False
        self._unsent = memoryview(b"")
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: UpstreamError) -> None:
        self._error = error
        self._abort()
        if self._response_start is not None and not self._response_start.done():
            self._response_start.set_exception(error)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _skip_sent(body: memoryview) -> memoryview:
    """Return what follows the first piece. An empty part of a body would keep it in memory."""
    return body[_SENT_PIECE_BYTES:] if len(body) > _SENT_PIECE_BYTES else memoryview(b"")


def _closes_after_stream(headers: Headers) -> bool:
    """Return whether the server will close the connection although it announces to keep it.

    llama.cpp does so after a streamed response (November 2026), and late if it is busy: the next request on
    this connection would get no response.
    """
    names = {name.lower(): value for name, value in headers}
    return names.get(b"server") == b"llama.cpp" and b"transfer-encoding" in names


def _read_keep_alive_seconds(headers: Headers) -> float | None:
    """Read how long the server keeps the connection; 0 if it accepts no more requests (`max=0`)."""
    for name, value in headers:
        if name.lower() == b"keep-alive":
            parts = (part.strip().partition(b"=") for part in value.lower().split(b","))
            parameters = {key: text for key, _, text in parts}
            seconds = parameters.get(b"timeout", b"")
            if parameters.get(b"max") == b"0":
                return 0.0
            if seconds.isdigit():
                return float(seconds)
    return None


def _make_poller(descriptor: int) -> Callable[[], object]:
    """Return a function that tells whether data can be read from a socket."""
    if not hasattr(select, "poll"):  # on Windows
        return lambda: select.select((descriptor,), (), (), 0)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return partial(poll.poll, 0)
