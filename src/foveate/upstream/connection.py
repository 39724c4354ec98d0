"""One connection to a server, HTTP/1.1: a request at a time, its answer piece by piece as it comes.

Written on httptools, as servers are: with a general client a small request costs more time than all else that
is done with it.
"""

import asyncio
import select
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import httptools

from foveate.errors import UpstreamBroken, UpstreamError, UpstreamTimeout, UpstreamUnreachable

Headers = list[tuple[bytes, bytes]]

# Who reads slowly keeps the server waiting, rather than us its answer.
_MOST_WAITING_BYTES = 256 * 1024
_MOST_HEADER_BYTES = 256 * 1024
_BODILESS = frozenset((204, 304))


class Connection(asyncio.Protocol):
    """A connection that is open. Whoever has it asks, reads the answer to its end, and may then ask again."""

    def __init__(self, url: str) -> None:
        """`url` is what errors call the other side."""
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._asked = False
        self._head: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append  # a stream has many small ones, and several come at once
        self._waiting_bytes = 0
        self._header_bytes = 0
        self._is_whole = False
        self._has_begun = False
        self._is_paused = False
        self._no_body = False
        self._error: UpstreamError | None = None
        self._news: Callable[[], object] = list
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        self._idle_seconds = self._total_seconds = self._work_seconds = 0.0
        self._asked_at = self._heard_at = 0.0
        self.status = 0
        self.headers: Headers = []
        self.keeps_alive = False
        self.keep_seconds: float | None = None

    def ask(
        self,
        head: bytes,
        body: bytes,
        *,
        idle_seconds: float,
        total_seconds: float,
        work_seconds: float,
        no_body: bool = False,
    ) -> "asyncio.Future[None]":
        """Send a request, whose head ends with its empty line. What it gives is done once the answer begins.

        There are `status` and `headers` then. It fails after `idle_seconds` in which nothing came, and after
        `total_seconds` in all. `no_body`: the answer has none, whatever its head says.

        Raises, to whoever waits for it:
            UpstreamUnreachable: the other side closed the connection without a word.
            UpstreamBroken: it did so after `work_seconds`, or what it sent is not valid HTTP.
            UpstreamTimeout: nothing came in time.
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._asked = True
        self._is_whole = self._has_begun = False
        self._no_body = no_body
        self._header_bytes = 0
        self.status, self.headers, self.keeps_alive, self.keep_seconds = 0, [], False, None
        begun = self._head = self._loop.create_future()
        self._idle_seconds, self._total_seconds = idle_seconds, total_seconds
        self._work_seconds = work_seconds
        self._asked_at = self._heard_at = now = self._loop.time()
        self._ring_at(now + min(idle_seconds, total_seconds))
        self._transport.writelines((head, body))
        return begun

    async def piece(self) -> bytes:
        """All of the answer's body that has come since; nothing at its end.

        Raises:
            UpstreamTimeout: nothing came in time.
            UpstreamBroken: it broke off.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._is_whole:
                return b""
            self._waiter = self._loop.create_future()
            await self._waiter
        found = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._waiting_bytes = 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return found

    @property
    def is_reusable(self) -> bool:
        """Whether the last answer is whole, read, and not the last one."""
        return self._is_whole and not self._pieces and self.keeps_alive and self._error is None

    @property
    def is_stale(self) -> bool:
        """Whether the other side has closed it meanwhile, or said something unasked: then nothing is sent."""
        transport = self._transport
        return transport is None or transport.is_closing() or bool(self._news())

    def close(self) -> None:
        """Let go of it, whatever it is doing; nobody may wait for it any more.

        What it has failed with is forgotten: an error knows who was told of it, and they know this connection.
        All that they hold, with the request, would be there until garbage is looked for.
        """
        self._end()
        self._error = self._head = None
        self._pieces.clear()

    # What the event loop says.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._news = _news_of(transport.get_extra_info("socket").fileno())

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        if not self._asked:  # unasked: nothing that comes from now on can be trusted to be an answer
            self.close()
            return
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(UpstreamBroken(self._url, "it wants another protocol than HTTP/1.1"))
        except httptools.HttpParserError as error:
            if self._is_whole:  # what comes behind an answer is none of it
                self.keeps_alive = False
            else:
                self._fail(self._error or UpstreamBroken(self._url, f"the answer is no HTTP ({error})"))
        if self._pieces and self._error is None:
            self._hold(len(data))

    def _hold(self, new_bytes: int) -> None:
        """Have somebody take what has come of the body; while they do not, no more is read than a little."""
        self._waiting_bytes += new_bytes
        if self._waiting_bytes > _MOST_WAITING_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        if self._asked and not self._is_whole and self.status and not self._has_length():
            self.keeps_alive = False
            self.on_message_complete()  # an answer may end with its connection
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self._asked or self._is_whole:
            return
        if self.status:
            self._fail(UpstreamBroken(self._url, "the answer broke off"))
        else:
            has_worked = self._has_begun or self._loop.time() - self._asked_at >= self._work_seconds
            kind = UpstreamBroken if has_worked else UpstreamUnreachable
            self._fail(kind(self._url, "the connection was closed before an answer came"))

    # What the parser says.

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise httptools.HttpParserCallbackError("nobody asked for it")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _MOST_HEADER_BYTES:
            self._error = UpstreamBroken(self._url, f"its headers are longer than {_MOST_HEADER_BYTES} bytes")
            raise httptools.HttpParserCallbackError("too long")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if not 100 <= status <= 599:
            self._error = UpstreamBroken(self._url, f"the status {status} does not exist")
            raise httptools.HttpParserCallbackError("no such status")
        if status < 200:  # 100 Continue and the like: the answer comes after it
            self.headers = []
            return
        self.status = status
        self.keeps_alive = self._parser.should_keep_alive()
        self.keep_seconds = _keep_seconds(self.headers)
        if self._head is not None and not self._head.done():
            self._head.set_result(None)
        if self._no_body:
            self.keeps_alive = False  # the parser waits for one
            self.on_message_complete()

    def on_message_complete(self) -> None:
        if self.status < 200:
            return
        self._is_whole = True
        self._asked = False
        self._wake()

    def _has_length(self) -> bool:
        if self.status in _BODILESS:
            return True
        return any(name.lower() in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def _ring_at(self, at: float) -> None:
        """Look at the time by then; a timer that rings before, if only one of an earlier call, sees to it."""
        if self._timer is None or at < self._rings_at:
            self._stop_timer()
            self._rings_at = at
            self._timer = self._loop.call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if not self._asked:
            return
        now = self._loop.time()
        if self._is_paused:  # it is we who let it wait
            self._heard_at = now
        total_end = self._asked_at + self._total_seconds
        end = min(self._heard_at + self._idle_seconds, total_end)
        if end > now:
            self._ring_at(end)
            return
        is_total = total_end <= now
        self._fail(UpstreamTimeout(self._url, self._total_seconds if is_total else self._idle_seconds))

    def _end(self) -> None:
        self._asked = False
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: UpstreamError) -> None:
        self._error = error
        self._end()
        if self._head is not None and not self._head.done():
            self._head.set_exception(error)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _keep_seconds(headers: Headers) -> float | None:
    """For how long the other side says that it keeps a connection that nobody uses."""
    for name, value in headers:
        if name.lower() == b"keep-alive":
            for part in value.lower().split(b","):
                key, _, number = part.strip().partition(b"=")
                if key == b"timeout" and number.isdigit():
                    return float(number)
    return None


def _news_of(descriptor: int) -> Callable[[], object]:
    """What says, whenever it is asked, whether something is to be read there: nothing where there is not."""
    if not hasattr(select, "poll"):  # on Windows
        return lambda: select.select((descriptor,), (), (), 0)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return partial(poll.poll, 0)
