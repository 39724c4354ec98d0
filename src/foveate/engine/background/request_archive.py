"""Archive of whole requests as sent, if enabled: written after the response, limited by days and bytes."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from foveate.engine.exchange import Exchange
from foveate.engine.request_context import RequestContext
from foveate.errors import StoreUnavailable
from foveate.session.store import ArchivedRequest, RequestArchive

_LOG = logging.getLogger(__name__)

_DAY_SECONDS = 86_400.0
# Limit of bodies that wait for a slow store; beyond it, requests are dropped.
MAX_WAITING_BYTES = 64 * 1024 * 1024
# How often the oldest requests are deleted; also whenever this fraction of the limit is new.
_TRIM_SECONDS = 600.0
_TRIM_FRACTION = 100


class ArchiveOptions(Protocol):
    """Archive at most `days` days and `most_bytes` compressed bytes of requests."""

    @property
    def enabled(self) -> bool: ...

    @property
    def days(self) -> float:
        """Applies also to requests from before it was turned off."""

    @property
    def most_bytes(self) -> int: ...


class RequestArchiver:
    """Archives the requests of a process, one by one."""

    def __init__(
        self,
        requests: RequestArchive,
        options: Callable[[], ArchiveOptions],
        *,
        clock: Callable[[], float],
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        """`options` is called for each request, so that a change applies from the next one on."""
        self._requests = requests
        self._options = options
        self._clock = clock
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting: deque[ArchivedRequest] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._new_bytes = 0
        self._trimmed_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    @property
    def dropped_count(self) -> int:
        """The number of requests that could not be stored: the store was unavailable or too slow."""
        return self._dropped

    def __call__(self, exchange: Exchange) -> None:
        options = self._options()
        is_archived = options.enabled and exchange.context is not None and not exchange.is_unsent
        if is_archived and exchange.context is not None:
            self._enqueue(_archived_request(exchange, exchange.context))
        if (self._waiting or self._should_trim(options)) and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._write())

    async def close(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task])

    def _enqueue(self, request: ArchivedRequest) -> None:
        size = len(request.request_body) + len(request.original_body or b"")
        if self._waiting and self._waiting_bytes + size > self._max_waiting_bytes:
            self._dropped += 1
            return
        self._waiting.append(request)
        self._waiting_bytes += size

    def _should_trim(self, options: ArchiveOptions) -> bool:
        """The oldest requests are deleted even if archiving is off now."""
        is_full = self._new_bytes * _TRIM_FRACTION > options.most_bytes
        return is_full or not 0 <= self._clock() - self._trimmed_at < _TRIM_SECONDS

    async def _write(self) -> None:
        try:
            while self._waiting:
                await self._store(self._waiting.popleft())
                if self._should_trim(self._options()):
                    await self._trim()
            if self._should_trim(self._options()):
                await self._trim()
        except Exception:  # noqa: BLE001 - nobody waits for it: whatever fails, requests go on
            _LOG.exception("requests could not be archived")

    async def _store(self, request: ArchivedRequest) -> None:
        self._waiting_bytes -= len(request.request_body) + len(request.original_body or b"")
        try:
            self._new_bytes += await self._requests.save(request)
        except StoreUnavailable as error:
            self._dropped += 1
            _LOG.warning("%s could not be archived: %s", request.id, error)

    async def _trim(self) -> None:
        options, now = self._options(), self._clock()
        self._trimmed_at, self._new_bytes = now, 0
        try:
            await self._requests.trim(before=now - options.days * _DAY_SECONDS, max_bytes=options.most_bytes)
        except StoreUnavailable as error:
            _LOG.warning("the oldest archived requests could not be deleted: %s", error)


def _archived_request(exchange: Exchange, context: RequestContext) -> ArchivedRequest:
    incoming, body = exchange.incoming, exchange.upstream_request.body
    return ArchivedRequest(
        id=incoming.id,
        agent=incoming.agent,
        session_id=context.session_id,
        format=incoming.api_format,
        provider=incoming.provider,
        model=context.model,
        at=exchange.sent_at,
        status=exchange.status,
        usage=exchange.usage,
        request_body=body,
        original_body=None if body == incoming.body else incoming.body,
    )
