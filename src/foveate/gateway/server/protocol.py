"""HTTP/1.1 on top of uvicorn's protocol: limits for request heads, no upgrades, early disconnect detection."""

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from foveate.gateway.forwarded_headers import FOVEATE_PREFIX
from foveate.gateway.request import CONNECTION_NUMBER_KEY

CONNECTION_SCOPE_KEY = "foveate.cycle"
"""Key of the `RequestConnection` in an ASGI scope."""

# Bytes that are invalid in a head (RFC 9110, 5.5).
_CONTROL_BYTES = bytes(code for code in (*range(32), 127) if code != ord("\t"))
_BODILESS_STATUSES = frozenset((204, 304))
# If a request is answered before its body is complete, the connection is kept open only if at most this is
# left.
_SMALL_REST_BYTES = 1024 * 1024
# Bytes of a body that are buffered before the first read, and between two reads.
_INITIAL_BUFFER_BYTES = 64 * 1024
_READ_BUFFER_BYTES = 256 * 1024


_LOG = logging.getLogger(__name__)


def _do_nothing() -> None: ...


class RequestConnection(Protocol):
    """Access to the connection of a request without awaiting ASGI messages."""

    def take_complete_body(self) -> bytes | None:
        """Return the body if all of it has arrived; it is returned only once."""

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Call `callback` as soon as the client disconnects, or has already; None removes it."""


class GatewayCycle(RequestResponseCycle):
    """uvicorn's request-response cycle with access to complete bodies and disconnects."""

    _disconnect_callback: Callable[[], None] | None = None
    _unsent_head = b""
    buffer_bytes = _INITIAL_BUFFER_BYTES

    async def receive(self) -> Any:
        """Return the next part of the body. From the first call on, more of it is buffered."""
        self.buffer_bytes = _READ_BUFFER_BYTES
        return await super().receive()

    def take_complete_body(self) -> bytes | None:
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        return body

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        self._disconnect_callback = callback
        if callback is not None:
            self.flow.resume_reading()  # a paused transport does not notice the disconnect
            if self.disconnected:
                asyncio.get_running_loop().call_soon(callback)

    def handle_disconnect(self) -> None:
        if not self.response_complete:
            self.disconnected = True
            if self._disconnect_callback is not None:
                self._disconnect_callback()
        self.message_event.set()

    async def run_asgi(self, app: Any) -> None:
        """Run the app. An incomplete response is cut off, so that the client notices."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001 - outermost border: a failed request must not affect others
            _LOG.error("a request failed", exc_info=error)
        if not self.response_complete and not self.disconnected:
            if self.response_started:
                self._send_head()
                self.transport.close()
            else:
                await self.send_500_response()
        self.on_response = _do_nothing

    async def send(self, message: Any) -> None:
        """Send the head of the response, or a chunk of its body.

        Raises:
            RuntimeError: the message is invalid, or out of order.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        is_head = message["type"] == "http.response.start"
        if self.response_complete or is_head is self.response_started:
            raise RuntimeError(f"unexpected ASGI message {message['type']}")
        if is_head:
            self._start_response(message["status"], [*self.default_headers, *message["headers"]])
        else:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body"))

    def _start_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        if self.more_body and (self.waiting_for_100_continue or not self._is_rest_small()):
            self.keep_alive = False  # so that the client does not have to send the rest
        self.waiting_for_100_continue = False
        has_close_header = False
        for name, value in headers:
            if name == b"content-length" and self.chunked_encoding is None:
                self.expected_content_length, self.chunked_encoding = int(value), False
            elif name == b"transfer-encoding" and value.lower() == b"chunked":
                self.expected_content_length, self.chunked_encoding = 0, True
            elif name == b"connection" and b"close" in [word.strip() for word in value.lower().split(b",")]:
                self.keep_alive, has_close_header = False, True
        if not self.keep_alive and not has_close_header:
            headers.append((b"connection", b"close"))
        if (
            self.chunked_encoding is None
            and self.scope["method"] != "HEAD"
            and status not in _BODILESS_STATUSES
        ):
            self.chunked_encoding = True
            headers.append((b"transfer-encoding", b"chunked"))
        if status in _BODILESS_STATUSES:
            self.expected_content_length = 0  # the length of a body that is not sent
        lines = [b"%b: %b\r\n" % pair for pair in headers]
        head = b"".join((STATUS_LINE[status], *lines, b"\r\n"))
        if len(head) - len(head.translate(None, _CONTROL_BYTES)) != 2 * (len(lines) + 2):
            raise RuntimeError("a response header contains a line break or another control character")
        self._unsent_head = head
        asyncio.get_running_loop().call_soon(self._send_head)

    def _send_head(self) -> None:
        """Send the head alone, unless a chunk of the body was sent with it."""
        if self._unsent_head:
            self._write(b"")

    def _write(self, chunk: bytes) -> None:
        if self._unsent_head:
            chunk, self._unsent_head = self._unsent_head + chunk, b""
        self.transport.write(chunk)

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            self._send_head()
        elif self.chunked_encoding:
            end = b"0\r\n\r\n" if is_last else b""
            self._write(b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end)
        elif len(body) > self.expected_content_length:
            raise RuntimeError("the response body is longer than its content-length")
        else:
            self.expected_content_length -= len(body)
            self._write(body)
        if not is_last:
            return
        if self.expected_content_length:
            raise RuntimeError("the response body is shorter than its content-length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive and not self.more_body:
            self.transport.close()
        self.on_response()

    def _is_rest_small(self) -> bool:
        """Return whether little of the request's body is still to come."""
        length = next((value for name, value in self.scope["headers"] if name == b"content-length"), b"")
        return length.isdigit() and int(length) <= _SMALL_REST_BYTES


MAX_HEAD_BYTES = 256 * 1024
_HEAD_TOO_LONG = f"The request line and headers have more than {MAX_HEAD_BYTES} bytes."
HEAD_TIMEOUT_SECONDS = 30.0
DISCARD_BYTES = 64 * 1024 * 1024
"""Bytes of a body that are received and dropped after the response.

Closing a connection while the client sends resets it, and the client may lose the response.
"""
DISCARD_SECONDS = 30.0
# The reader is woken up at least this often while data arrives.
_NOTIFY_SECONDS = 1.0

# An upgrade may be ignored (RFC 9110, 7.8), but the parser drops the body of a request that asks for one.
# Java's own client asks with every plain HTTP request.
_UPGRADE_LINE = re.compile(rb"^(?=upgrade[ \t]*:)", re.IGNORECASE | re.MULTILINE)
_HEAD_END = re.compile(rb"\n\r?\n")
_BLANK_LINES = (b"\r\n", b"\n")
# Anything else is not HTTP, and is rejected at once.
_VALID_FIRST_BYTES = tuple(bytes((letter,)) for letter in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r\n")
# A TLS handshake (RFC 8446, 5.1). The client only reports a failed connection, so this is logged.
_TLS_HANDSHAKE = b"\x16\x03"
_TLS_ON_PLAIN_PORT = "A client used https://, but this port only serves http://: change the client's base URL."


_CONNECTION_NUMBERS = count(1)


class HttpProtocol(HttpToolsProtocol):
    """Reads requests from one connection.

    The parser gets heads in whole lines, wherever the network splits them. Trailers are dropped, since all
    decisions based on headers are made before they arrive.
    """

    head_seconds = HEAD_TIMEOUT_SECONDS
    discard_bytes = DISCARD_BYTES
    discard_seconds = DISCARD_SECONDS
    notify_seconds = _NOTIFY_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._number = next(_CONNECTION_NUMBERS)
        self._is_in_head = True
        self._has_line = False  # whether the current head has a line
        self._head_bytes = 0
        self._partial_line = bytearray()
        self._trailer_bytes = 0  # chunk headers and trailers
        self._head_started_at = self._notified_at = self.loop.time()
        self._is_new = True
        self._problem = ""
        self._head_timer: asyncio.TimerHandle | None = None
        self._active_cycle: GatewayCycle | None = None
        self._left_to_discard_bytes = 0
        self._discard_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_seconds, self._check_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        if self._discard_timer is not None:
            self._discard_timer.cancel()
        super().connection_lost(exc)
        if self._active_cycle is not None:
            self._active_cycle.handle_disconnect()

    def _check_head_timeout(self) -> None:
        """Close a connection whose head does not arrive. Idle connections have uvicorn's own timeout."""
        now = self.loop.time()
        end = self._head_started_at + self.head_seconds
        is_expecting_head = self._is_in_head and (self._head_bytes or self._has_line or self._is_new)
        if is_expecting_head and now >= end and (self._is_new or self.cycle.response_complete):
            self.transport.close()
            return
        next_check_at = end if is_expecting_head and now < end else now + self.head_seconds
        self._head_timer = self.loop.call_at(next_check_at, self._check_head_timeout)

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._receive_head(data)
        else:
            self._trailer_bytes += len(data)
            super().data_received(data)
            if self._trailer_bytes > MAX_HEAD_BYTES:
                self.transport.close()

    def _receive_head(self, data: bytes) -> None:
        if not self._head_bytes:
            self._head_started_at = self.loop.time()
        self._head_bytes += len(data)
        is_begun = self._has_line or bool(self._partial_line)
        if not is_begun and data.startswith(_TLS_HANDSHAKE):
            self.logger.warning(_TLS_ON_PLAIN_PORT)
            self.send_400_response(_TLS_ON_PLAIN_PORT)
        elif not is_begun and (b"\r\n\r\n" in data or not data.startswith(_VALID_FIRST_BYTES)):
            super().data_received(self._rename_upgrade(data))
        else:
            self._feed_lines(data)
        if self._is_in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_HEAD_TOO_LONG)

    def _feed_lines(self, data: bytes) -> None:
        end = data.rfind(b"\n") + 1
        if not end:
            if self.timeout_keep_alive_task is not None:
                self.timeout_keep_alive_task.cancel()
                self.timeout_keep_alive_task = None
            self._partial_line += data
            return
        lines, rest = bytes(self._partial_line) + data[:end], data[end:]
        self._partial_line.clear()
        super().data_received(self._rename_upgrade(lines))
        if self.transport.is_closing() or not rest:
            return
        if self._is_in_head:
            self._partial_line += rest
            self._head_bytes = max(self._head_bytes, len(rest))
        else:
            super().data_received(rest)

    def _rename_upgrade(self, lines: bytes) -> bytes:
        if not self._has_line:
            lines = lines.lstrip(b"\r\n")
        elif lines.startswith(_BLANK_LINES):
            return lines  # the end of the head
        match = _HEAD_END.search(lines)
        end = len(lines) if match is None else match.start() + 1
        head = lines[:end]
        return _UPGRADE_LINE.sub(FOVEATE_PREFIX, head) + lines[end:] if b"upgrade" in head.lower() else lines

    def on_message_begin(self) -> None:
        self._has_line = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; ignore a trailer."""
        if self._is_in_head:
            name = name.lower()
            if name == b"expect":
                self.expect_100_continue = value.lower() == b"100-continue"
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start the request.

        Raises:
            ValueError: the head is invalid, or asks for an upgrade that was not noticed in time (in a
                pipelined request), so the parser would drop the body. The parser then responds with
                400.
        """
        parser = self.parser
        if parser.should_upgrade():
            raise ValueError("unexpected upgrade")
        version = parser.get_http_version()
        self._problem = self._find_head_problem(version)
        if self._problem:
            raise ValueError(self._problem)
        self._is_in_head = self._has_line = False
        self._head_bytes = self._trailer_bytes = 0
        self._notified_at = self.loop.time()
        address = httptools.parse_url(self.url)
        path = address.path.decode("ascii")
        scope: Any = self.scope
        scope["http_version"] = version
        scope["method"] = parser.get_method().decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"] = address.path
        scope["query_string"] = address.query or b""
        scope[CONNECTION_NUMBER_KEY] = self._number
        previous_cycle = self.cycle
        self.cycle = scope[CONNECTION_SCOPE_KEY] = GatewayCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if self._is_new or previous_cycle.response_complete:
            self._is_new = False
            self._start_asgi_task(self.cycle, self.app)
        else:  # pipelined behind a request that is not answered yet
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))  # pyrefly: ignore[bad-argument-type]

    def _find_head_problem(self, version: str) -> str:
        hosts = sum([name == b"host" for name, _ in self.headers])
        if hosts > 1 or (not hosts and version == "1.1"):  # RFC 9112, 3.2
            return f"A request must have exactly one Host header; this one has {hosts or 'none'}."
        size = len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers])
        return _HEAD_TOO_LONG if size > MAX_HEAD_BYTES else ""

    def send_400_response(self, msg: str) -> None:
        """Respond to invalid HTTP, with the reason if it is known."""
        super().send_400_response(self._problem or msg)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active_cycle = cast("GatewayCycle", cycle)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Buffer a part of the body; wake up the reader once the body is complete or the buffer is full."""
        self._trailer_bytes = 0
        if self.cycle.response_complete:
            self._left_to_discard_bytes -= len(body)
            if self._left_to_discard_bytes < 0:
                self.transport.close()
            return
        self.cycle.body += body
        is_buffer_full = len(self.cycle.body) > cast("GatewayCycle", self.cycle).buffer_bytes
        if is_buffer_full:
            self.flow.pause_reading()
        now = self.loop.time()
        if is_buffer_full or now - self._notified_at > self.notify_seconds:
            self._notified_at = now
            self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._is_in_head = True
        super().on_message_complete()
        if self._discard_timer is not None:
            self._discard_timer.cancel()
            self._discard_timer = None
            if self.cycle.keep_alive:
                super().on_response_complete()
            else:
                self.transport.close()

    def on_response_complete(self) -> None:
        """Finish a request. If its body is not complete, receive and drop the rest first."""
        cycle = self._active_cycle
        if cycle is None or not cycle.more_body or self.transport.is_closing():
            super().on_response_complete()
            return
        cycle.body = bytearray()
        self._left_to_discard_bytes = self.discard_bytes
        self._discard_timer = self.loop.call_later(self.discard_seconds, self.transport.close)
        self.flow.resume_reading()
        if not cycle.keep_alive and self.transport.can_write_eof():
            with suppress(OSError):  # the client has left already
                self.transport.write_eof()
