"""Whole requests kept as they went out, where that is wanted: behind the answer, within days and bytes."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from foveate.engine.exchange import Exchange
from foveate.engine.work import Work
from foveate.errors import StoreUnavailable
from foveate.session.requests import KeptRequest, Requests

_LOG = logging.getLogger(__name__)

_DAY_SECONDS = 86_400.0
# So many bytes of bodies wait for a slow store; what comes beyond is not kept.
MOST_WAITING_BYTES = 64 * 1024 * 1024
# The oldest are dropped as often as this, and whenever such a part of all that may be kept is new.
_TRIM_SECONDS = 600.0
_TRIM_PART = 100


class Wanted(Protocol):
    """Whether requests are kept, for how many days, and how many bytes of them when they are compressed."""

    @property
    def enabled(self) -> bool:
        """Whether they are."""

    @property
    def days(self) -> float:
        """For how long; also those from before it was turned off."""

    @property
    def most_bytes(self) -> int:
        """How much of them."""


class KeepRequests:
    """Keeps the requests of a process, one after the other, behind their answers. Closed by `close`."""

    def __init__(
        self,
        requests: Requests,
        wanted: Callable[[], Wanted],
        *,
        clock: Callable[[], float],
        most_waiting_bytes: int = MOST_WAITING_BYTES,
    ) -> None:
        """`wanted` is asked at each request, so that a change holds from the next one on."""
        self._requests = requests
        self._wanted = wanted
        self._clock = clock
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting: deque[KeptRequest] = deque()
        self._waiting_bytes = 0
        self._left_out = 0
        self._new_bytes = 0
        self._trimmed_at = float("-inf")
        self._at_it: asyncio.Task[None] | None = None

    @property
    def left_out(self) -> int:
        """How many could not be kept: the store was away, or too slow."""
        return self._left_out

    def __call__(self, exchange: Exchange) -> None:
        """Have a request kept that has come to its end."""
        wanted = self._wanted()
        is_kept = wanted.enabled and exchange.work is not None and not exchange.is_unsent
        if is_kept and exchange.work is not None:
            self._put(_kept(exchange, exchange.work))
        if (self._waiting or self._is_time(wanted)) and (self._at_it is None or self._at_it.done()):
            self._at_it = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Wait until what came so far is kept."""
        if self._at_it is not None:
            await asyncio.wait([self._at_it])

    def _put(self, request: KeptRequest) -> None:
        size = len(request.sent) + len(request.came or b"")
        if self._waiting and self._waiting_bytes + size > self._most_waiting_bytes:
            self._left_out += 1
            return
        self._waiting.append(request)
        self._waiting_bytes += size

    def _is_time(self, wanted: Wanted) -> bool:
        """Whether the oldest are to be dropped; also where no more are kept, of those that were."""
        is_full = self._new_bytes * _TRIM_PART > wanted.most_bytes
        return is_full or not 0 <= self._clock() - self._trimmed_at < _TRIM_SECONDS

    async def _write(self) -> None:
        try:
            while self._waiting:
                await self._keep(self._waiting.popleft())
                if self._is_time(self._wanted()):
                    await self._trim()
            if self._is_time(self._wanted()):
                await self._trim()
        except Exception:  # noqa: BLE001 - nobody waits for it: whatever fails, requests go their way
            _LOG.exception("requests could not be kept")

    async def _keep(self, request: KeptRequest) -> None:
        self._waiting_bytes -= len(request.sent) + len(request.came or b"")
        try:
            self._new_bytes += await self._requests.keep(request)
        except StoreUnavailable as error:
            self._left_out += 1
            _LOG.warning("%s could not be kept: %s", request.id, error)

    async def _trim(self) -> None:
        wanted, now = self._wanted(), self._clock()
        self._trimmed_at, self._new_bytes = now, 0
        try:
            await self._requests.trim(before=now - wanted.days * _DAY_SECONDS, most_bytes=wanted.most_bytes)
        except StoreUnavailable as error:
            _LOG.warning("kept requests that are too old could not be dropped: %s", error)


def _kept(exchange: Exchange, work: Work) -> KeptRequest:
    incoming, sent = exchange.incoming, exchange.outgoing.body
    return KeptRequest(
        id=incoming.id,
        agent=incoming.agent,
        session_id=work.session_id,
        format=incoming.spoken,
        provider=incoming.provider,
        model=work.model,
        at=exchange.sent_at,
        status=exchange.status,
        usage=exchange.usage,
        sent=sent,
        came=None if sent == incoming.body else incoming.body,
    )
