"""The step that makes a request fit into the window of its model."""

from collections.abc import Awaitable, Callable

from foveate import wire
from foveate.budget.eviction import Kind, kind_of
from foveate.engine.steps.count import Count
from foveate.engine.steps.history import LimitTurns, ReplaceHistory
from foveate.engine.steps.names import ROOM
from foveate.engine.work import Work
from foveate.errors import DoesNotFit
from foveate.fold.cuts import Subject
from foveate.fold.folding import Folded
from foveate.fold.journal import Outcome
from foveate.fold.overflow import Plan, lower_end, plan_for
from foveate.fold.overflow import Step as Room
from foveate.session.counting import beside
from foveate.values import NOTHING, TokenCount
from foveate.wire.large_json import LARGE_BYTES

# By so much a message may be counted too high.
_SURELY = 0.8

FoldNow = Callable[[Work, Subject], Awaitable[Folded | None]]


class MakeRoom:
    """A request that does not fit is folded, cleared, shortened, refused or passed, as its agent wishes."""

    name = ROOM

    def __init__(self, history: ReplaceHistory, count: Count, fold_now: FoldNow) -> None:
        self._history = history
        self._count = count
        self._turns = LimitTurns()
        self._fold_now = fold_now

    async def take(self, work: Work, beside_it: TokenCount = NOTHING) -> None:
        """Make it fit, with so many raw tokens of required sections beside it.

        Raises:
            DoesNotFit: it does not, and no more may be done.
        """
        window_tokens = work.window_tokens
        if work.count is None or window_tokens is None or work.request.continues_stored:
            return
        sections = round(beside_it.tokens * work.rate)
        size_bytes = len(work.request.body)
        reserve = await beside(lambda: work.output_reserve, size_bytes, least_bytes=LARGE_BYTES)
        limit = window_tokens - reserve - sections
        if work.count.tokens > limit:
            await self._count.surely(work)
        if work.count.tokens <= limit:
            return
        if await self._history.found_anew(work):
            await self._turns.take(work)
            await self._count.take(work)
            if work.count.tokens <= limit:
                return
        if await _can_fold(work, limit) and await self._folded(work) and work.count.tokens <= limit:
            return
        plan = await beside(lambda: _plan(work, limit), len(work.request.body))
        if plan.ends_with is Room.REFUSE:
            raise DoesNotFit(
                tokens=lower_end(work.count),
                limit_tokens=limit,
                window_tokens=window_tokens,
                reason=f"{plan.reason}; required sections take {sections:,} more" if sections else plan.reason,
            )
        if plan.edits:
            await work.edit(self.name, plan.edits)
            await self._count.take(work)

    async def _folded(self, work: Work) -> bool:
        """Whether a fold was made, or found, that reaches farther than what the request was made with."""
        if work.chain is None or work.found is None or work.count is None or work.window_tokens is None:
            return False
        folded = await self._fold_now(work, subject_of(work, must_fit=True))
        if folded is None or folded.fold is None or folded.fold.outcome is not Outcome.OK:
            return False
        work.folds = [folded.fold, *work.folds]
        await self._history.replace(work)
        await self._turns.take(work)
        await self._count.take(work)
        return True


async def _can_fold(work: Work, limit_tokens: int) -> bool:
    """Whether a fold may make room. Where it cannot, each would be paid for in vain.

    It cannot where the answer alone takes the whole window, or what is asked last alone is too long for it.
    """
    if not work.options.compaction or limit_tokens <= 0 or not work.request.messages:
        return False
    raw = work.request.messages[-1]
    last = await beside(lambda: wire.message(work.request.format, raw), len(raw))
    if kind_of(last) is Kind.RESULTS:  # these can be shortened
        return True
    counted = await beside(lambda: work.counter.message(last).tokens, len(raw))
    return _SURELY * counted * work.rate <= limit_tokens


def _plan(work: Work, limit_tokens: int) -> Plan:
    """How a request that does not fit can be made to."""
    assert work.count is not None
    messages = [wire.message(work.request.format, raw) for raw in work.request.messages]
    tokens = [round(work.counter.message(message).tokens * work.rate) for message in messages]
    return plan_for(
        work.request,
        messages,
        tokens,
        work.count,
        limit_tokens=limit_tokens,
        options=work.options.overflow,
        can_fold=False,
        model=work.model,
    )


def subject_of(work: Work, *, must_fit: bool) -> Subject:
    """What a fold of this request has to know."""
    assert work.chain is not None
    assert work.count is not None
    assert work.window_tokens is not None
    return Subject(
        agent=work.incoming.agent,
        session_id=work.session_id,
        request=work.came,
        chain=work.chain,
        sent=work.request,
        sent_tokens=work.billed_tokens or work.count.tokens,
        window_tokens=work.window_tokens,
        output_reserve=work.output_reserve,
        earlier=work.fold,
        must_fit=must_fit,
    )
