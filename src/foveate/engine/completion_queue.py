"""The queue of work after responses: records charges, stores sessions and runs background hooks."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence

from foveate.engine.exchange import Exchange
from foveate.engine.spending.charges import ChargeRecorder
from foveate.engine.steps import RECORD_CHARGES, STORE_WRITES
from foveate.errors import StoreUnavailable
from foveate.session.store import PendingWrite, SessionStore, SessionWrite

_LOG = logging.getLogger(__name__)

# A transaction costs the store more than the rows in it, so a batch waits for more exchanges.
_INTERVAL_SECONDS = 0.05
# Under load, sessions are stored at this interval if another gateway may get the next request.
_SESSIONS_SPACING_SECONDS = 0.1
# The ledger has most of the rows, and nobody waits for a charge without a reservation, or for a session, which
# the workers of this gateway have in memory. With many workers, each would have a transaction of its own for
# almost every call, and requests with a reservation would wait for these.
_CHARGES_SPACING_SECONDS = 0.5
# Requests are kept in memory until then; with more than this, nothing waits longer than the interval.
_MAX_WAITING_BYTES = 16 * 1024 * 1024
# Hooks of this many exchanges run without letting other requests run.
_HOOKS_AT_ONCE = 16
# A reservation holds up to the whole cost ceiling of its call, so it is replaced by the charge sooner.
_RESERVED_INTERVAL_SECONDS = 0.02
# By then the other processes have replaced the reservations of their finished calls.
_OTHER_PROCESSES_SECONDS = 0.05
_MAX_WAIT_SECONDS = 5.0


class CompletionQueue:
    """Records charges, stores writes and runs hooks of finished exchanges, in batches. For one event loop."""

    def __init__(
        self,
        charges: ChargeRecorder | None = None,
        session_store: SessionStore | None = None,
        *,
        interval_seconds: float = _INTERVAL_SECONDS,
        sessions_spacing_seconds: float = _SESSIONS_SPACING_SECONDS,
        charges_spacing_seconds: float = _CHARGES_SPACING_SECONDS,
        has_other_gateways: Callable[[], bool] = lambda: False,
    ) -> None:
        """`charges` persists the charges; pending writes go to `session_store`.

        A batch waits for `interval_seconds`. Charges and sessions wait until `charges_spacing_seconds` after
        the last ones; sessions until `sessions_spacing_seconds` after these if other gateways use the store.
        """
        self._charges = charges
        self._session_store = session_store
        self._interval_seconds = interval_seconds
        self._sessions_spacing_seconds = sessions_spacing_seconds
        self._charges_spacing_seconds = charges_spacing_seconds
        self._has_other_gateways = has_other_gateways
        self._finished: list[Exchange] = []
        self._unstored: list[Exchange] = []
        self._begun: list[SessionWrite] = []
        self._timer: asyncio.TimerHandle | None = None
        self._store_timer: asyncio.TimerHandle | None = None
        self._flushed_at = self._stored_at = -math.inf
        self._finished_bytes = self._unstored_bytes = 0
        self._completions: set[asyncio.Task[None]] = set()
        self._writes: set[asyncio.Task[None]] = set()

    def enqueue(self, exchange: Exchange) -> None:
        self._finished.append(exchange)
        self._unstored.append(exchange)
        self._finished_bytes += len(exchange.incoming.body)
        self._unstored_bytes += len(exchange.incoming.body)
        now = asyncio.get_running_loop().time()
        due_at = now + self._interval_seconds
        if max(self._finished_bytes, self._unstored_bytes) <= _MAX_WAITING_BYTES and not _may_compact(exchange):
            self._schedule_store()
            due_at = max(due_at, self._flushed_at + self._charges_spacing_seconds)
        else:
            self._store_timer = _call_by(self._store_timer, due_at, self._store_unstored)
        if exchange.cost.reservation is not None and exchange.cost.reservation.is_reserved:
            due_at = min(due_at, now + _RESERVED_INTERVAL_SECONDS)
        self._timer = _call_by(self._timer, due_at, self._flush)

    def store_early(self, update: SessionWrite) -> None:
        """Store a session when its request begins, if another gateway may get the next one.

        It is stored again with its response, and only a failure of that is reported.
        """
        if self._has_other_gateways():
            self._begun.append(update)
            self._schedule_store()

    def store_writes(self, exchanges: Sequence[Exchange]) -> None:
        writes = [
            (exchange, write)
            for exchange in exchanges
            if exchange.context is not None
            for write in exchange.context.pending_writes
        ]
        begun, self._begun = self._begun, []
        if writes or begun:
            _start_task(self._writes, self._store(writes, begun))

    async def drain(self) -> None:
        self._store_unstored()
        self._flush()
        if self._completions:
            await asyncio.wait(set(self._completions))

    async def drain_all_processes(self) -> None:
        """Wait until this process and the others have recorded their charges, if the store is fast enough."""
        self._flush()
        await asyncio.sleep(_OTHER_PROCESSES_SECONDS)
        if self._completions:
            await asyncio.wait(set(self._completions), timeout=_MAX_WAIT_SECONDS)

    async def close(self) -> None:
        """Complete everything; wait only briefly for writes."""
        while self._finished or self._completions:
            await self.drain()
        self._store_unstored()
        if self._writes:
            await asyncio.wait(set(self._writes), timeout=_MAX_WAIT_SECONDS)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = asyncio.get_running_loop().time()
        if self._store_timer is not None and self._store_timer.when() <= now + self._interval_seconds:
            self._store_unstored()  # together with the charges, in one transaction
        if self._finished:
            finished, self._finished, self._finished_bytes = self._finished, [], 0
            self._flushed_at = now
            _start_task(self._completions, self._complete(finished))

    def _schedule_store(self) -> None:
        spacing = (
            self._sessions_spacing_seconds if self._has_other_gateways() else self._charges_spacing_seconds
        )
        soon = asyncio.get_running_loop().time() + self._interval_seconds
        due_at = max(soon, self._stored_at + spacing)
        self._store_timer = _call_by(self._store_timer, due_at, self._store_unstored)

    def _store_unstored(self) -> None:
        if self._store_timer is not None:
            self._store_timer.cancel()
            self._store_timer = None
        self._stored_at = asyncio.get_running_loop().time()
        unstored, self._unstored, self._unstored_bytes = self._unstored, [], 0
        self.store_writes(unstored)

    async def _complete(self, finished: Sequence[Exchange]) -> None:
        if self._charges is not None:
            try:
                await self._charges.persist(finished)
            except Exception as error:  # noqa: BLE001 - the hooks run nevertheless
                for exchange in finished:
                    exchange.report_failure(RECORD_CHARGES, error)
        for number, exchange in enumerate(finished, 1):
            exchange.run_background_hooks()
            if number % _HOOKS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _store(
        self, writes: Sequence[tuple[Exchange, PendingWrite]], begun: Sequence[SessionWrite]
    ) -> None:
        """Store what can be stored together in one transaction, then everything else one by one."""
        rows = [_rows_or_none(write) for _, write in writes]
        batched = [item for item, row in zip(writes, rows, strict=True) if row is not None]
        separate = [item for item, row in zip(writes, rows, strict=True) if row is None]
        failed: dict[Exchange, Exception] = {}  # each request is reported once
        try:
            is_stored = await self._store_together([*begun, *(row for row in rows if row is not None)])
            separate += () if is_stored else batched
            for _, write in batched:
                write.on_saved(is_stored)
        except StoreUnavailable as error:  # storing them one by one would only block the store
            failed = {exchange: error for exchange, _ in batched}
        outcomes = await asyncio.gather(*(write.write_alone() for _, write in separate), return_exceptions=True)
        for (exchange, _), outcome in zip(separate, outcomes, strict=True):
            if isinstance(outcome, Exception):
                failed.setdefault(exchange, outcome)
        for exchange, problem in failed.items():
            exchange.report_failure(STORE_WRITES, problem)

    async def _store_together(self, rows: Sequence[SessionWrite]) -> bool:
        try:
            if self._session_store is not None:
                await self._session_store.save(rows)
            return self._session_store is not None
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one invalid row must not keep the others from being stored
            _LOG.info("a batch of sessions could not be saved, saving them one by one: %s", error)
            return False


def _call_by(
    timer: asyncio.TimerHandle | None, due_at: float, callback: Callable[[], None]
) -> asyncio.TimerHandle:
    """Return a timer for `due_at`, or the given one if it is due sooner."""
    if timer is not None:
        if timer.when() <= due_at:
            return timer
        timer.cancel()
    return asyncio.get_running_loop().call_at(due_at, callback)


def _may_compact(exchange: Exchange) -> bool:
    """Return whether a background hook may compact the session, best before its next request."""
    return exchange.context is not None and exchange.context.options.compacts


def _rows_or_none(write: PendingWrite) -> SessionWrite | None:
    try:
        return write.make_rows()
    except Exception as error:  # noqa: BLE001 - stored alone, it reports its own error
        _LOG.info("the session of a request cannot be saved in a batch, saving it alone: %s", error)
        return None


def _start_task(tasks: set[asyncio.Task[None]], coroutine: Coroutine[object, object, None]) -> None:
    task = asyncio.create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
