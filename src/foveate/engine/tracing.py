"""What was done to requests, kept behind their answers: a few times a second, all that came since together."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from foveate import errors
from foveate.engine.calls import AppliedEdit, RoutedRequest, StepFailure, UpstreamRequest
from foveate.engine.exchange import Exchange
from foveate.engine.filling import break_down_window
from foveate.engine.redacting import redact_keys
from foveate.engine.soon import Debouncer
from foveate.engine.watch import SessionCacheMiss
from foveate.engine.work import RequestContext
from foveate.errors import FoveateError, StoreUnavailable
from foveate.session.traces import CacheMiss, Trace, TracedEdit, TraceStore, WindowSection
from foveate.values import (
    CacheBreakpoint,
    Edit,
    InsertParts,
    Place,
    RemoveBreakpoint,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    SetParameter,
)

_LOG = logging.getLogger(__name__)

SAVE_INTERVAL_SECONDS = 0.25
MAX_WAITING, MAX_WAITING_BYTES = 4_096, 64 * 1024 * 1024
"""So many wait for a slow store, with bodies of so many bytes; what comes beyond is not kept."""
MAX_EDITS = 60
"""So many edits of a request are kept; of further ones how many there were."""


class FinishedRequest(NamedTuple):
    """A request that is over, as far as it is traced: without its answer, which may be long."""

    incoming: RoutedRequest
    context: RequestContext
    upstream_request: UpstreamRequest
    status: int
    received_at: float
    sent_at: float


class SaveTraces:
    """Keeps what was done to the requests of a process. Closed by `close`. For one event loop."""

    def __init__(
        self,
        traces: TraceStore,
        *,
        interval_seconds: float = SAVE_INTERVAL_SECONDS,
        max_waiting: int = MAX_WAITING,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self._traces = traces
        self._max_waiting_bytes = max_waiting_bytes
        self._waiting_bytes = 0
        self._max_waiting = max_waiting
        self._waiting: list[FinishedRequest] = []
        self._misses: list[SessionCacheMiss] = []
        self._dropped = 0
        self._debouncer = Debouncer(self._write, interval_seconds)

    @property
    def dropped(self) -> int:
        """How many could not be kept: the store was away, or too slow."""
        return self._dropped

    def __call__(self, exchange: Exchange) -> None:
        """Have it kept what was done to a request that has come to its end."""
        finished = finished_request(exchange)
        if finished is None:
            return
        size = self._waiting_bytes + len(exchange.incoming.body)
        if self._waiting and (len(self._waiting) >= self._max_waiting or size > self._max_waiting_bytes):
            self._dropped += 1
            return
        self._waiting.append(finished)
        self._waiting_bytes = size
        self._debouncer.request()

    def add_cache_miss(self, miss: SessionCacheMiss) -> None:
        """Have it kept with its request that the cache broke there."""
        if len(self._misses) < self._max_waiting:
            self._misses.append(miss)
            self._debouncer.request()

    async def close(self) -> None:
        """Wait until what came so far is kept."""
        await self._debouncer.close()

    async def _write(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        misses, self._misses = self._misses, []
        if not waiting and not misses:
            return
        try:
            traces = await asyncio.to_thread(_make_traces, waiting)
            await self._traces.save(traces, [(miss.request_id, trace_cache_miss(miss)) for miss in misses])
        except StoreUnavailable as error:
            self._dropped += len(waiting)
            _LOG.warning("what was done to %d requests could not be kept: %s", len(waiting), error)
        except Exception:  # noqa: BLE001 - nobody waits for it: whatever fails, requests go their way
            self._dropped += len(waiting)
            _LOG.exception("what was done to requests could not be kept")


def finished_request(exchange: Exchange) -> FinishedRequest | None:
    """What is traced of an exchange that is over; nothing of one that was not understood, or not sent."""
    if exchange.context is None or exchange.is_unsent:
        return None
    return FinishedRequest(
        incoming=exchange.incoming,
        context=exchange.context,
        upstream_request=exchange.upstream_request,
        status=exchange.status,
        received_at=exchange.received_at,
        sent_at=exchange.sent_at,
    )


def _make_traces(waiting: Sequence[FinishedRequest]) -> list[Trace]:
    return [make_trace(finished) for finished in waiting]


def make_trace(finished: FinishedRequest) -> Trace:
    """What was done to a request that is over, without a word of what it says."""
    incoming, context, upstream_request = finished.incoming, finished.context, finished.upstream_request
    applied_edits = upstream_request.applied_edits
    count = context.token_count
    return Trace(
        id=incoming.id,
        agent=incoming.agent,
        session_id=context.session_id,
        provider=incoming.provider,
        model=context.model,
        at=finished.sent_at,
        status=finished.status,
        tokens=None if count is None else count.tokens,
        exact=count is not None and count.exact,
        window_tokens=context.window_tokens,
        reserved_tokens=context.output_reserve_tokens,
        added_seconds=max(0.0, finished.sent_at - finished.received_at),
        sections=_window_sections(context),
        edits=tuple(trace_edits(applied_edits[:MAX_EDITS])),
        edits_left_out=max(0, len(applied_edits) - MAX_EDITS),
        problems=tuple(_redact_problem(problem) for problem in upstream_request.problems[:MAX_EDITS]),
        fold_id=context.compaction.id if context.compaction is not None else None,
    )


def _window_sections(context: RequestContext) -> tuple[WindowSection, ...]:
    try:
        return break_down_window(context)
    except FoveateError:  # what cannot be read was sent as it came, and nobody knows what is in it
        return ()


def trace_edits(applied_edits: Iterable[AppliedEdit]) -> Iterable[TracedEdit]:
    """Edits as they are told: what each does and where, never what it writes."""
    for applied in applied_edits:
        action, place = _describe_edit(applied.edit)
        yield TracedEdit(
            step=applied.step,
            does=action,
            place=place,
            reason=applied.edit.reason,
            saved_tokens=applied.edit.saved_tokens,
        )


def trace_cache_miss(miss: SessionCacheMiss) -> CacheMiss:
    """A break in words."""
    verdict = miss.verdict
    return CacheMiss(
        cause=str(verdict.cause),
        where="" if verdict.place is None else _describe_place(verdict.place),
        lost_tokens=verdict.lost_tokens,
        lost_dollars=verdict.lost_dollars,
        is_planned=miss.is_planned,
    )


def _describe_edit(edit: Edit) -> tuple[str, str]:
    match edit:
        case CacheBreakpoint():
            return f"mark {edit.ttl}" if edit.ttl is not None else "mark", _describe_place(edit.place)
        case RemoveBreakpoint():
            return "unmark", _describe_place(edit.place)
        case ReplaceText():
            return "cut", _describe_place(edit.place)
        case ReplaceMessages():
            last = edit.end - 1
            action = "drop" if not edit.messages else "replace" if last >= edit.start else "insert"
            return action, f"messages[{edit.start}]" if last <= edit.start else f"messages[{edit.start}-{last}]"
        case InsertParts():
            return "insert", _describe_place(edit.place)
        case ReorderTools():
            return "reorder", "tools"
        case SetParameter():
            return "set", ".".join(edit.path)


def _describe_place(place: Place) -> str:
    block = "" if place.block is None else f" block {place.block}"
    return f"{place.area}[{place.index}]{block}"


def _redact_problem(problem: StepFailure) -> tuple[str, str]:
    """A problem as it is told; an error that is not ours may say the words that it stumbled over."""
    kind, colon, _ = problem.reason.partition(": ")
    is_error = bool(colon) and kind.isidentifier() and kind[0].isupper()
    return problem.step, kind if is_error and not hasattr(errors, kind) else redact_keys(problem.reason)
