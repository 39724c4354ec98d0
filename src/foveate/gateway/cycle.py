"""One request on a connection and its answer, as the server has them and as the gateway hears and says them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

CYCLE_SCOPE_KEY = "foveate.cycle"
"""Under this name a scope has the server's side of its request, where it is ours."""

# What no line of a head may hold (RFC 9110, 5.5).
_CONTROL_BYTES = bytes(code for code in (*range(32), 127) if code != ord("\t"))
_BODILESS_STATUSES = frozenset((204, 304))
# A connection whose request is answered before its body is complete is kept open only if so little is to come.
_SMALL_REST_BYTES = 1024 * 1024
# How much of a body is buffered before anybody reads it, and how much between two reads.
_INITIAL_BUFFER_BYTES = 64 * 1024
_READ_BUFFER_BYTES = 1024 * 1024


_LOG = logging.getLogger(__name__)


def _do_nothing() -> None:
    """What is done once nobody waits for it."""


class RequestConnection(Protocol):
    """What the server tells of a request without anybody waiting for it."""

    def take_complete_body(self) -> bytes | None:
        """The body, where all of it is here already; it is given once, and not heard of again."""

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Have `leave` called as soon as the client has gone; None: nothing any more."""


class GatewayCycle(RequestResponseCycle):
    """uvicorn's, which also tells whether all of the body is here, and at once that the client has gone."""

    _disconnect_callback: Callable[[], None] | None = None
    _unsent_head = b""  # what is not sent yet of it
    buffer_bytes = _INITIAL_BUFFER_BYTES

    async def receive(self) -> Any:
        """The next part of the body; from the first one on, more of it is buffered."""
        self.buffer_bytes = _READ_BUFFER_BYTES
        return await super().receive()

    def take_complete_body(self) -> bytes | None:
        """The body, where all of it is here already."""
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        return body

    def on_disconnect(self, callback: Callable[[], None] | None) -> None:
        """Have `leave` called as soon as the client has gone."""
        self._disconnect_callback = callback
        if callback is not None:
            self.flow.resume_reading()  # who does not read does not see it

    def handle_disconnect(self) -> None:
        """The client has gone."""
        if not self.response_complete:
            self.disconnected = True
            if self._disconnect_callback is not None:
                self._disconnect_callback()
        self.message_event.set()

    async def run_asgi(self, app: Any) -> None:
        """Have an app answer it. An answer that breaks off is cut, so that nobody takes it for the whole."""
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001 - the outermost border of a request: whatever it is, others go on
            _LOG.error("a request failed", exc_info=error)
        if not self.response_complete and not self.disconnected:
            if self.response_started:
                self._send_head()
                self.transport.close()
            else:
                await self.send_500_response()
        self.on_response = _do_nothing

    async def send(self, message: Any) -> None:
        """Send the head of the answer, or a piece of its body.

        Raises:
            RuntimeError: what is said cannot be sent, or not now.
        """
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        is_head = message["type"] == "http.response.start"
        if self.response_complete or is_head is self.response_started:
            raise RuntimeError(f"{message['type']} is not what comes next")
        if is_head:
            self._start_response(message["status"], [*self.default_headers, *message["headers"]])
        else:
            self._send_body(message.get("body", b""), is_last=not message.get("more_body"))

    def _start_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        if self.more_body and (self.waiting_for_100_continue or not self._is_rest_small()):
            self.keep_alive = False  # so that the client need not send the rest
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
            self.expected_content_length = 0  # whatever length it says: what there would be otherwise
        lines = [b"%b: %b\r\n" % pair for pair in headers]
        head = b"".join((STATUS_LINE[status], *lines, b"\r\n"))
        if len(head) - len(head.translate(None, _CONTROL_BYTES)) != 2 * (len(lines) + 2):
            raise RuntimeError("a header of the answer has a line break in it, or what else no header may have")
        self._unsent_head = head
        asyncio.get_running_loop().call_soon(self._send_head)

    def _send_head(self) -> None:
        """Send the head alone, where no piece of the body was said at the same moment."""
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
            raise RuntimeError("the answer is longer than its head says")
        else:
            self.expected_content_length -= len(body)
            self._write(body)
        if not is_last:
            return
        if self.expected_content_length:
            raise RuntimeError("the answer is shorter than its head says")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive and not self.more_body:
            self.transport.close()
        self.on_response()

    def _is_rest_small(self) -> bool:
        """Whether little of the request's body is still to come."""
        length = next((value for name, value in self.scope["headers"] if name == b"content-length"), b"")
        return length.isdigit() and int(length) <= _SMALL_REST_BYTES
