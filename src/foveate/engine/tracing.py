"""What was done to requests, kept behind their answers: a few times a second, all that came since together."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from foveate import errors
from foveate.engine.calls import Done, Incoming, Outgoing, Problem
from foveate.engine.exchange import Exchange
from foveate.engine.filling import filling
from foveate.engine.redacting import redacted
from foveate.engine.soon import Soon
from foveate.engine.watch import SeenBreak
from foveate.engine.work import Work
from foveate.errors import FoveateError, StoreUnavailable
from foveate.session.traces import CacheBreak, Trace, TracedEdit, Traces, WindowSection
from foveate.values import (
    Edit,
    Insert,
    Mark,
    Place,
    RemoveMark,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    SetParameter,
)

_LOG = logging.getLogger(__name__)

EVERY_SECONDS = 0.25
MOST_WAITING, MOST_WAITING_BYTES = 4_096, 64 * 1024 * 1024
"""So many wait for a slow store, with bodies of so many bytes; what comes beyond is not kept."""
MOST_EDITS = 60
"""So many edits of a request are kept; of further ones how many there were."""


class Passed(NamedTuple):
    """A request that is over, as far as it is traced: without its answer, which may be long."""

    incoming: Incoming
    work: Work
    outgoing: Outgoing
    status: int
    came_at: float
    sent_at: float


class KeepTraces:
    """Keeps what was done to the requests of a process. Closed by `close`. For one event loop."""

    def __init__(
        self,
        traces: Traces,
        *,
        every_seconds: float = EVERY_SECONDS,
        most_waiting: int = MOST_WAITING,
        most_waiting_bytes: int = MOST_WAITING_BYTES,
    ) -> None:
        self._traces = traces
        self._most_waiting_bytes = most_waiting_bytes
        self._waiting_bytes = 0
        self._most_waiting = most_waiting
        self._waiting: list[Passed] = []
        self._broke: list[SeenBreak] = []
        self._left_out = 0
        self._soon = Soon(self._write, every_seconds)

    @property
    def left_out(self) -> int:
        """How many could not be kept: the store was away, or too slow."""
        return self._left_out

    def __call__(self, exchange: Exchange) -> None:
        """Have it kept what was done to a request that has come to its end."""
        over = passed(exchange)
        if over is None:
            return
        size = self._waiting_bytes + len(exchange.incoming.body)
        if self._waiting and (len(self._waiting) >= self._most_waiting or size > self._most_waiting_bytes):
            self._left_out += 1
            return
        self._waiting.append(over)
        self._waiting_bytes = size
        self._soon.want()

    def broke(self, seen: SeenBreak) -> None:
        """Have it kept with its request that the cache broke there."""
        if len(self._broke) < self._most_waiting:
            self._broke.append(seen)
            self._soon.want()

    async def close(self) -> None:
        """Wait until what came so far is kept."""
        await self._soon.close()

    async def _write(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        broke, self._broke = self._broke, []
        if not waiting and not broke:
            return
        try:
            traces = await asyncio.to_thread(_traces_of, waiting)
            await self._traces.keep(traces, [(seen.request_id, break_of(seen)) for seen in broke])
        except StoreUnavailable as error:
            self._left_out += len(waiting)
            _LOG.warning("what was done to %d requests could not be kept: %s", len(waiting), error)
        except Exception:  # noqa: BLE001 - nobody waits for it: whatever fails, requests go their way
            self._left_out += len(waiting)
            _LOG.exception("what was done to requests could not be kept")


def passed(exchange: Exchange) -> Passed | None:
    """What is traced of an exchange that is over; nothing of one that was not understood, or not sent."""
    if exchange.work is None or exchange.is_unsent:
        return None
    return Passed(
        incoming=exchange.incoming,
        work=exchange.work,
        outgoing=exchange.outgoing,
        status=exchange.status,
        came_at=exchange.came_at,
        sent_at=exchange.sent_at,
    )


def _traces_of(waiting: Sequence[Passed]) -> list[Trace]:
    return [trace_of(one) for one in waiting]


def trace_of(over: Passed) -> Trace:
    """What was done to a request that is over, without a word of what it says."""
    incoming, work, outgoing = over.incoming, over.work, over.outgoing
    done = outgoing.done
    count = work.count
    return Trace(
        id=incoming.id,
        agent=incoming.agent,
        session_id=work.session_id,
        provider=incoming.provider,
        model=work.model,
        at=over.sent_at,
        status=over.status,
        tokens=None if count is None else count.tokens,
        exact=count is not None and count.exact,
        window_tokens=work.window_tokens,
        reserved_tokens=work.output_reserve,
        added_seconds=max(0.0, over.sent_at - over.came_at),
        sections=_sections(work),
        edits=tuple(traced(done[:MOST_EDITS])),
        edits_left_out=max(0, len(done) - MOST_EDITS),
        problems=tuple(_problem(problem) for problem in outgoing.problems[:MOST_EDITS]),
        fold_id=work.fold.id if work.fold is not None else None,
    )


def _sections(work: Work) -> tuple[WindowSection, ...]:
    try:
        return filling(work)
    except FoveateError:  # what cannot be read was sent as it came, and nobody knows what is in it
        return ()


def traced(done: Iterable[Done]) -> Iterable[TracedEdit]:
    """Edits as they are told: what each does and where, never what it writes."""
    for one in done:
        does, place = _told(one.edit)
        yield TracedEdit(
            step=one.step, does=does, place=place, reason=one.edit.reason, saved_tokens=one.edit.saved_tokens
        )


def break_of(seen: SeenBreak) -> CacheBreak:
    """A break in words."""
    verdict = seen.verdict
    return CacheBreak(
        cause=str(verdict.cause),
        where="" if verdict.place is None else _place(verdict.place),
        lost_tokens=verdict.lost_tokens,
        lost_dollars=verdict.lost_dollars,
        is_planned=seen.is_planned,
    )


def _told(edit: Edit) -> tuple[str, str]:
    match edit:
        case Mark():
            return f"mark {edit.ttl}" if edit.ttl is not None else "mark", _place(edit.place)
        case RemoveMark():
            return "unmark", _place(edit.place)
        case ReplaceText():
            return "cut", _place(edit.place)
        case ReplaceMessages():
            last = edit.end - 1
            does = "drop" if not edit.messages else "replace" if last >= edit.start else "insert"
            return does, f"messages[{edit.start}]" if last <= edit.start else f"messages[{edit.start}-{last}]"
        case Insert():
            return "insert", _place(edit.place)
        case ReorderTools():
            return "reorder", "tools"
        case SetParameter():
            return "set", ".".join(edit.path)


def _place(place: Place) -> str:
    block = "" if place.block is None else f" block {place.block}"
    return f"{place.area}[{place.index}]{block}"


def _problem(problem: Problem) -> tuple[str, str]:
    """A problem as it is told; an error that is not ours may say the words that it stumbled over."""
    kind, colon, _ = problem.reason.partition(": ")
    is_error = bool(colon) and kind.isidentifier() and kind[0].isupper()
    return problem.step, kind if is_error and not hasattr(errors, kind) else redacted(problem.reason)
