"""Work after responses: the queue that records charges and stores sessions, and hooks for sessions."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from foveate.compaction.applied_compactions import invalidate_history
from foveate.compaction.store import CompactionStore
from foveate.cost.admission import Admission
from foveate.engine.counting.stored_conversations import StoredConversationSizes
from foveate.engine.exchange import Exchange
from foveate.engine.session_state import SessionStates
from foveate.engine.steps.cache import RejectionMemory
from foveate.errors import StoreUnavailable
from foveate.session.matching import SessionMatcher, make_answer_records
from foveate.session.store import AnswerUpdate, PendingWrite, SessionStore, SessionWrite, make_pending_write

_LOG = logging.getLogger(__name__)

_INTERVAL_SECONDS = 0.02
# By then the other processes have flushed their batches.
_OTHER_PROCESSES_SECONDS = 0.05
_MAX_WAIT_SECONDS = 5.0


class CompletionQueue:
    """Records charges, stores writes and runs hooks of finished exchanges, in batches. For one event loop."""

    def __init__(
        self,
        admission: Admission | None = None,
        session_store: SessionStore | None = None,
        *,
        interval_seconds: float = _INTERVAL_SECONDS,
    ) -> None:
        """`admission` records the charges; pending writes go to `session_store`."""
        self._admission = admission
        self._session_store = session_store
        self._interval_seconds = interval_seconds
        self._finished: list[Exchange] = []
        self._timer: asyncio.TimerHandle | None = None
        self._completions: set[asyncio.Task[None]] = set()
        self._writes: set[asyncio.Task[None]] = set()

    def enqueue(self, exchange: Exchange) -> None:
        """Complete an exchange with the next batch."""
        self._finished.append(exchange)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval_seconds, self._flush)

    def store_writes(self, exchanges: Sequence[Exchange]) -> None:
        """Start to store the pending writes of requests."""
        writes = [
            (exchange, write)
            for exchange in exchanges
            if exchange.context is not None
            for write in exchange.context.pending_writes
        ]
        if writes:
            _start_task(self._writes, self._store(writes))

    async def drain(self) -> None:
        """Complete all exchanges that are finished by now."""
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
        if self._finished:
            finished, self._finished = self._finished, []
            _start_task(self._completions, self._complete(finished))

    async def _complete(self, finished: Sequence[Exchange]) -> None:
        self.store_writes(finished)  # together with the charges, in one transaction
        if self._admission is not None:
            for action in (_record_charges, _release_reservations):
                try:
                    await action(finished, self._admission)
                except Exception as error:  # noqa: BLE001 - the hooks run nevertheless
                    for exchange in finished:
                        exchange.report_failure("book", error)
        for exchange in finished:
            exchange.run_background_hooks()

    async def _store(self, writes: Sequence[tuple[Exchange, PendingWrite]]) -> None:
        """Store what can be stored together in one transaction, then everything else one by one."""
        rows = [_rows_or_none(write) for _, write in writes]
        together = [item for item, row in zip(writes, rows, strict=True) if row is not None]
        alone = [item for item, row in zip(writes, rows, strict=True) if row is None]
        failed: dict[Exchange, Exception] = {}  # each request is reported once
        try:
            is_stored = await self._store_together([row for row in rows if row is not None])
            alone += () if is_stored else together
            for _, write in together:
                write.on_saved(is_stored)
        except StoreUnavailable as error:  # storing them one by one would only block the store
            failed = {exchange: error for exchange, _ in together}
        outcomes = await asyncio.gather(*(write.write_alone() for _, write in alone), return_exceptions=True)
        for (exchange, _), outcome in zip(alone, outcomes, strict=True):
            if isinstance(outcome, Exception):
                failed.setdefault(exchange, outcome)
        for exchange, problem in failed.items():
            exchange.report_failure("keep", problem)

    async def _store_together(self, rows: Sequence[SessionWrite]) -> bool:
        try:
            if self._session_store is not None:
                await self._session_store.save(rows)
            return self._session_store is not None
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one invalid row must not keep the others from being stored
            _LOG.info("what requests have told is kept one by one: %s", error)
            return False


def _rows_or_none(write: PendingWrite) -> SessionWrite | None:
    try:
        return write.make_rows()
    except Exception as error:  # noqa: BLE001 - stored alone, it reports its own error
        _LOG.info("what a request has told is kept alone: %s", error)
        return None


def _start_task(tasks: set[asyncio.Task[None]], coroutine: Coroutine[object, object, None]) -> None:
    task = asyncio.create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _record_charges(finished: Sequence[Exchange], admission: Admission) -> None:
    charges = [exchange.charge for exchange in finished if exchange.charge is not None]
    if charges:
        await admission.settle_all(charges)


async def _release_reservations(finished: Sequence[Exchange], admission: Admission) -> None:
    """Release reservations of calls that cost nothing."""
    reservations = [
        reservation for exchange in finished if (reservation := exchange.unused_reservation) is not None
    ]
    if reservations:
        await asyncio.gather(*(admission.release(reservation) for reservation in reservations))


@dataclass(frozen=True, slots=True)
class RecordResponse:
    """Stores digests of each response, so that the next request of the session is recognised."""

    sessions: SessionMatcher
    session_store: SessionStore
    stored_conversations: StoredConversationSizes

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if context is None or context.session_match is None or context.in_flight is None:
            return
        session, api_format = context.session_match.session, exchange.incoming.api_format
        is_success = 200 <= exchange.status < 300
        rows = []
        if is_success:
            parts, scope = exchange.response_parts(), exchange.incoming.session_scope
            rows = make_answer_records(
                session, api_format, parts, exchange.ended_at, scope=scope, is_stored=context.uses_thread
            )
            if exchange.has_complete_usage and exchange.is_complete and exchange.usage is not None:
                self.stored_conversations.record(exchange.incoming, context.original, parts.id, exchange.usage)
        self.sessions.end(session, context.in_flight, rows, is_answered=is_success)
        context.in_flight = None
        if rows:
            context.pending_writes.append(make_pending_write(AnswerUpdate(rows=rows), self.session_store))


@dataclass(frozen=True, slots=True)
class DistrustThinking:
    """Has thinking blocks after a summary left out from now on, also by other gateways, once rejected."""

    compaction_store: CompactionStore

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if (
            context is not None
            and exchange.has_invalid_thinking
            and context.compaction is not None
            and context.chain is not None
        ):
            context.pending_writes.append(
                PendingWrite(
                    partial(invalidate_history, context.chain, context.compaction, self.compaction_store)
                )
            )


@dataclass(frozen=True, slots=True)
class RecordInvalidThinking:
    """Remembers sessions whose thinking blocks were rejected, since what precedes them has changed.

    The client has received the error. From its next request on, the provider is asked to drop the blocks.
    """

    session_states: SessionStates

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if context is None or not exchange.has_invalid_thinking:
            return
        state = self.session_states.session(context.incoming.agent, context.session_id)
        self.session_states.put(context.incoming.agent, context.session_id, state.with_invalid_thinking())


@dataclass(frozen=True, slots=True)
class RecordRejections:
    """Remembers who rejects our breakpoints or parameters, once the same request was accepted without them."""

    rejections: RejectionMemory

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if context is None or not 200 <= exchange.status < 300:
            return
        known, upstream, at = self.rejections.known, context.incoming.upstream, exchange.response_started_at
        for name in exchange.rejected_parameters:
            known = known.with_rejected_parameter(name, upstream, context.model, at=at)
        if exchange.breakpoint_rejection is not None:
            known = known.with_rejection(
                exchange.breakpoint_rejection, upstream, context.model, session=context.session_id, at=at
            )
        self.rejections.known = known
