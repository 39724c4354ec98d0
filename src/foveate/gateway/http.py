"""HTTP as the gateway reads it: uvicorn's own protocol, that stays with HTTP/1.1 and has limits for heads."""

import asyncio
import re
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from foveate.gateway.cycle import CYCLE_SCOPE_KEY, GatewayCycle
from foveate.gateway.headers import FOVEATE_PREFIX

MAX_HEAD_BYTES = 256 * 1024
_HEAD_TOO_LONG = f"The head of the request has more than {MAX_HEAD_BYTES} bytes."
HEAD_TIMEOUT_SECONDS = 30.0
DISCARD_BYTES = 64 * 1024 * 1024
"""How much of a body is received and dropped after its request was answered.

A connection that is closed while its client sends is reset, and the client may lose the answer."""
DISCARD_SECONDS = 30.0
# However little has come of a body, it is told that something has.
_NOTIFY_SECONDS = 1.0

# A request to go on in another protocol may be overlooked (RFC 9110, 7.8), but the parser drops the body of one
# that asks for it. Java's own client asks with every request to an http address.
_UPGRADE_LINE = re.compile(rb"^(?=upgrade[ \t]*:)", re.IGNORECASE | re.MULTILINE)
_HEAD_END = re.compile(rb"\n\r?\n")
_BLANK_LINES = (b"\r\n", b"\n")
# What else comes first is no HTTP, and told so at once.
_VALID_FIRST_BYTES = tuple(bytes((letter,)) for letter in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r\n")
# A handshake of TLS (RFC 8446, 5.1). Its client tells its user no more than that there is no connection.
_TLS_HANDSHAKE = b"\x16\x03"
_TLS_ON_PLAIN_PORT = "A client asks by https://, and here is http://: its base URL has to begin with that."


class PlainHttp(HttpToolsProtocol):
    """Reads requests from one connection.

    Heads are given to the parser by whole lines, wherever the network cuts them. What comes behind a body as if
    it were of the head (trailers) is dropped: whoever decides by headers has decided by then.
    """

    head_seconds = HEAD_TIMEOUT_SECONDS
    discard_bytes = DISCARD_BYTES
    discard_seconds = DISCARD_SECONDS
    notify_seconds = _NOTIFY_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As uvicorn makes it."""
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._has_line = False  # of the head that it is in
        self._head_bytes = 0
        self._partial_line = bytearray()  # the beginning of a line
        self._trailer_bytes = 0  # of what comes in a body and is none of it
        self._head_started_at = self._notified_at = self.loop.time()
        self._is_new = True
        self._problem = ""  # with the head of a request
        self._head_timer: asyncio.TimerHandle | None = None
        self._active_cycle: GatewayCycle | None = None
        self._left_to_discard_bytes = 0  # how much more is dropped of the body of a request that is answered
        self._discard_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection begins, with a head."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_seconds, self._check_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        if self._head_timer is not None:
            self._head_timer.cancel()
        if self._discard_timer is not None:
            self._discard_timer.cancel()
        super().connection_lost(exc)
        if self._active_cycle is not None:
            self._active_cycle.handle_disconnect()

    def _check_head_timeout(self) -> None:
        """Close a connection whose head does not come; one between two requests is not kept for long anyway."""
        now = self.loop.time()
        end = self._head_started_at + self.head_seconds
        is_expecting_head = self._is_in_head and (self._head_bytes or self._has_line or self._is_new)
        if is_expecting_head and now >= end and (self._is_new or self.cycle.response_complete):
            self.transport.close()
            return
        next_check_at = end if is_expecting_head and now < end else now + self.head_seconds
        self._head_timer = self.loop.call_at(next_check_at, self._check_head_timeout)

    def data_received(self, data: bytes) -> None:
        """Some bytes have come."""
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
            self._unset_keepalive_if_required()
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
            return lines  # the head is over
        found = _HEAD_END.search(lines)
        end = len(lines) if found is None else found.start() + 1
        head = lines[:end]
        return _UPGRADE_LINE.sub(FOVEATE_PREFIX, head) + lines[end:] if b"upgrade" in head.lower() else lines

    def on_message_begin(self) -> None:
        """A head has begun."""
        self._has_line = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is here, or a trailer."""
        if self._is_in_head:
            name = name.lower()
            if name == b"expect":
                self.expect_100_continue = value.lower() == b"100-continue"
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The body comes next.

        Raises:
            ValueError: that would be dropped, since it was not seen in time that an upgrade is asked for (in a
                request that came behind another before that was answered); or the head is not valid. The
                parser then answers 400.
        """
        parser = self.parser
        if parser.should_upgrade():
            raise ValueError("an upgrade")
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
        previous_cycle = self.cycle
        self.cycle = scope[CYCLE_SCOPE_KEY] = GatewayCycle(
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
        else:  # it came behind another that is not answered yet, and waits for its turn
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def _find_head_problem(self, version: str) -> str:
        hosts = sum([name == b"host" for name, _ in self.headers])
        if hosts > 1 or (not hosts and version == "1.1"):  # RFC 9112, 3.2
            return f"A request needs one Host header, and this one has {hosts or 'none'}."
        size = len(self.url) + sum([len(name) + len(value) + 4 for name, value in self.headers])
        return _HEAD_TOO_LONG if size > MAX_HEAD_BYTES else ""

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is no valid HTTP, with what is wrong if that is known."""
        super().send_400_response(self._problem or msg)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active_cycle = cast("GatewayCycle", cycle)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """A piece of the body is here; whoever waits for it is told once there is all of it, or much."""
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
        """The next head comes next."""
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
        """A request is answered. If its body is not complete, the rest is received and dropped first."""
        cycle = self._active_cycle
        if cycle is None or not cycle.more_body or self.transport.is_closing():
            super().on_response_complete()
            return
        cycle.body = bytearray()
        self._left_to_discard_bytes = self.discard_bytes
        self._discard_timer = self.loop.call_later(self.discard_seconds, self.transport.close)
        self.flow.resume_reading()
        if not cycle.keep_alive and self.transport.can_write_eof():
            self.transport.write_eof()
