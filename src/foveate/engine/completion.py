"""The queue of work after responses: records charges, stores sessions and runs background hooks."""

import asyncio
import logging
import math
from collections.abc import Coroutine, Sequence

from foveate.engine.exchange import Exchange
from foveate.engine.spending.charges import ChargeRecorder
from foveate.engine.steps.names import RECORD_CHARGES, STORE_WRITES
from foveate.errors import StoreUnavailable
from foveate.session.store import PendingWrite, SessionStore, SessionWrite

_LOG = logging.getLogger(__name__)

# A transaction costs the store more than the rows in it. Sessions are stored at this interval if the next
# request may reach another process.
_INTERVAL_SECONDS = 0.05
# The ledger has most of the rows, and nobody waits for a charge without a reservation. With many workers, each
# would have a transaction of its own for almost every call.
_CHARGES_SPACING_SECONDS = 0.25
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
        charges_spacing_seconds: float = _CHARGES_SPACING_SECONDS,
        has_other_processes: bool = True,
    ) -> None:
        """`charges` persists the charges; pending writes go to `session_store`.

        A batch waits for `interval_seconds`. Charges wait until `charges_spacing_seconds` after the last ones;
        so do sessions, unless other processes need them.
        """
        self._charges = charges
        self._session_store = session_store
        self._interval_seconds = interval_seconds
        self._charges_spacing_seconds = charges_spacing_seconds
        self._has_other_processes = has_other_processes
        self._finished: list[Exchange] = []
        self._unstored: list[Exchange] = []
        self._timer: asyncio.TimerHandle | None = None
        self._store_timer: asyncio.TimerHandle | None = None
        self._flushed_at = -math.inf
        self._completions: set[asyncio.Task[None]] = set()
        self._writes: set[asyncio.Task[None]] = set()

    def enqueue(self, exchange: Exchange) -> None:
        self._finished.append(exchange)
        self._unstored.append(exchange)
        loop = asyncio.get_running_loop()
        now = loop.time()
        due_at = max(now + self._interval_seconds, self._flushed_at + self._charges_spacing_seconds)
        if exchange.cost.reservation is not None and exchange.cost.reservation.is_reserved:
            due_at = min(due_at, now + _RESERVED_INTERVAL_SECONDS)
        if self._timer is None or due_at < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due_at, self._flush)
        if self._has_other_processes and self._store_timer is None:
            self._store_timer = loop.call_at(now + self._interval_seconds, self._store_unstored)

    def store_writes(self, exchanges: Sequence[Exchange]) -> None:
        writes = [
            (exchange, write)
            for exchange in exchanges
            if exchange.context is not None
            for write in exchange.context.pending_writes
        ]
        if writes:
            _start_task(self._writes, self._store(writes))

    async def drain(self) -> None:
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
        if self._writes:
            await asyncio.wait(set(self._writes), timeout=_MAX_WAIT_SECONDS)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._store_unstored()  # together with the charges, in one transaction
        if self._finished:
            finished, self._finished = self._finished, []
            self._flushed_at = asyncio.get_running_loop().time()
            _start_task(self._completions, self._complete(finished))

    def _store_unstored(self) -> None:
        if self._store_timer is not None:
            self._store_timer.cancel()
            self._store_timer = None
        unstored, self._unstored = self._unstored, []
        self.store_writes(unstored)

    async def _complete(self, finished: Sequence[Exchange]) -> None:
        if self._charges is not None:
            try:
                await self._charges.persist(finished)
            except Exception as error:  # noqa: BLE001 - the hooks run nevertheless
                for exchange in finished:
                    exchange.report_failure(RECORD_CHARGES, error)
        for exchange in finished:
            exchange.run_background_hooks()

    async def _store(self, writes: Sequence[tuple[Exchange, PendingWrite]]) -> None:
        """Store what can be stored together in one transaction, then everything else one by one."""
        rows = [_rows_or_none(write) for _, write in writes]
        batched = [item for item, row in zip(writes, rows, strict=True) if row is not None]
        separate = [item for item, row in zip(writes, rows, strict=True) if row is None]
        failed: dict[Exchange, Exception] = {}  # each request is reported once
        try:
            is_stored = await self._store_together([row for row in rows if row is not None])
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
