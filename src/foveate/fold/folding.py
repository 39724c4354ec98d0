"""The fold itself: who may, its summary, and the row that says what became of it.

Whatever goes wrong, nothing is lost: a fold is kept whole or not at all, and a request without one goes out as
it came.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from uuid import uuid4

from foveate.errors import StoreUnavailable
from foveate.fold.boundary import triggers
from foveate.fold.cuts import Cut, FoldOptions, Subject, answers_since, cut_of, trigger_of
from foveate.fold.journal import Fold, Journal, Lease, Outcome
from foveate.fold.replacing import fold_of, summary_text
from foveate.fold.summariser import Bills, Extractive, NoSummary, Summariser, Summary, Usages
from foveate.fold.verifying import hollow, problem_of
from foveate.tokens import RequestCounter
from foveate.values import Usage

# A lease is renewed so often while a summary is under way.
_RENEWALS = 3
# Of the time for a summary, so much is for having it written once more.
_REDRAFT_SHARE = 0.25
# How many of the last rows of a session are looked at for when it was last folded.
_LAST_ROWS = 32
# So many seconds are waited, one after the other, for who folds a session that cannot be sent otherwise.
_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
# After these a fold is not tried again at once.
_RESTING = frozenset((Outcome.OK, Outcome.FAILED, Outcome.NO_BOUNDARY))
_LOST = "the right to fold it was lost meanwhile"
TOO_SOON = "a model was asked for a summary just before"
"""The reason of a summary by rules that is no failure: models are not asked at each step."""
# So many of the facts that a summary leaves out are named when it is asked for once more.
_MOST_NAMED = 64

_LOG = logging.getLogger(__name__)

Clock = Callable[[], float]
Price = Callable[[str, Usage], Decimal | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What became of a fold; `fold` is its row, None where none was kept. `reason` says why it did not go well.

    With the outcome `lock_held` the row may be one that somebody else has just made.
    """

    outcome: Outcome
    fold: Fold | None = None
    reason: str = ""
    usages: Usages = ()

    @property
    def has_failed(self) -> bool:
        """Whether there is no summary, or only one by rules in the place of a model's."""
        if self.outcome is Outcome.OK:
            return self.reason not in ("", TOO_SOON)
        return self.outcome is Outcome.FAILED


class Folder:
    """Folds for one agent's model, as `holder`, of whom there is only one."""

    def __init__(
        self,
        journal: Journal,
        summariser: Summariser | None,
        counter: RequestCounter,
        *,
        holder: str,
        clock: Clock,
        options: FoldOptions = FoldOptions(),  # noqa: B008 - it is frozen
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        price: Price | None = None,
        no_model: str = "",
    ) -> None:
        """Without a `summariser`, rules make every summary; without a `price` it is what the provider says.

        `no_model` says why there is no `summariser` if there should be one.
        """
        self._journal = journal
        self._counter = counter
        self._by_rules = Extractive(self._count)
        self._summariser = summariser or self._by_rules
        self._holder = holder
        self._clock = clock
        self._options = options
        self._sleep = sleep
        self._price = price
        self._no_model = no_model

    async def fold(self, subject: Subject, bills: Bills | None = None) -> Folded | None:
        """What became of folding a request; None where it is not one to fold, or was tried just before.

        One that would not fit otherwise is folded all the same, but then by rules: no model is asked at each
        step. Where this is cancelled, `bills` still tell what was billed until then.

        Raises:
            MalformedRequest: a message cannot be read.
        """
        trigger_tokens = 0 if subject.must_fit else trigger_of(subject, self._options)
        if subject.sent_tokens < trigger_tokens:
            return None
        try:
            is_due = triggers(
                subject.sent_tokens,
                trigger_tokens=trigger_tokens,
                turns_since_fold=await self._turns_since_fold(subject),
                min_turns_between=self._options.min_turns_between,
            )
            if not subject.must_fit and not is_due:
                return None
            by = self._summariser if is_due else self._by_rules
            return await self._fold(subject, _Work(by=by, bills=Bills() if bills is None else bills))
        except StoreUnavailable as error:
            return Folded(outcome=Outcome.FAILED, reason=str(error))

    async def _turns_since_fold(self, subject: Subject) -> int | None:
        """How often the model has spoken since a fold was last made or tried; None where none was."""
        tried = await self._journal.listed(agent=subject.agent, session_id=subject.session_id, limit=_LAST_ROWS)
        rows = (row for row in (*tried, subject.earlier) if row is not None and row.outcome in _RESTING)
        # Beyond the end of what is sent now, something else was said then.
        seen = [row.seen_messages for row in rows if 0 < row.seen_messages <= len(subject.chain)]
        return answers_since(subject, max(seen)) if seen else None

    async def _fold(self, subject: Subject, work: "_Work") -> Folded:
        """A fold of the head, if there is one, under a lease."""
        started = self._clock()
        cut = await asyncio.to_thread(cut_of, subject, self._counter, self._options)
        row = self._row(subject, cut, started, work.by)
        if cut is None:
            return await self._ended(row, Outcome.NO_BOUNDARY, "there is no place to cut", lease=None)
        lease = await self._leased(subject.session_id)
        for pause in _PAUSES if subject.must_fit else ():
            if lease is None:  # whoever has it may be done in a moment: then there is theirs
                await self._sleep(pause)
                lease = await self._leased(subject.session_id)
        if lease is None:
            return await self._ended(row, Outcome.LOCK_HELD, "somebody else is folding it", lease=None)
        try:
            theirs = await self._made_meanwhile(subject)
            if theirs is not None:
                return Folded(outcome=Outcome.LOCK_HELD, fold=theirs, reason="somebody else has just folded it")
            return await self._under(lease, subject, cut, row, work)
        finally:
            await self._released(lease)

    async def _leased(self, session_id: str) -> Lease | None:
        """The right to fold; given back where this is cancelled while a slow store is still giving it."""
        taking = asyncio.ensure_future(
            self._journal.lease(
                session_id, self._holder, ttl_seconds=self._options.lock_ttl_seconds, now=self._clock()
            )
        )
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.wait((taking,))
            taken = None if taking.cancelled() or taking.exception() else taking.result()
            if taken is not None:
                await self._released(taken)
            raise

    async def _made_meanwhile(self, subject: Subject) -> Fold | None:
        """A fold that reaches farther than the one that the request was sent with."""
        reached = subject.earlier.messages if subject.earlier is not None else 0
        folds = await self._journal.folds(subject.agent, subject.chain.hashes[reached:])
        return fold_of(subject.chain, [fold for fold in folds if fold.messages > reached])

    async def _under(self, lease: Lease, subject: Subject, cut: Cut, row: Fold, work: "_Work") -> Folded:
        """A fold made under a lease that is kept until it is there."""
        writing = asyncio.create_task(self._written(subject, cut, work))
        keeping = asyncio.create_task(self._lost(lease))
        try:
            await asyncio.wait((writing, keeping), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                keeping.result()
                return Folded(outcome=Outcome.LOCK_HELD, reason=_LOST, usages=work.bills.usages)
            made = writing.result()
        finally:
            await _cancelled(writing, keeping)
        usages = work.bills.usages
        row = replace(row, cost=self._cost(row.model, usages))
        if isinstance(made, NoSummary):
            return await self._ended(row, Outcome.FAILED, made.reason, lease=lease, usages=usages)
        return await self._kept(made, lease, subject, cut, row, usages)

    async def _lost(self, lease: Lease) -> None:
        """Renews a lease until it is lost."""
        ttl = self._options.lock_ttl_seconds
        held: Lease | None = lease
        while held is not None:
            await self._sleep(ttl / _RENEWALS)
            # Where the store is gone for a moment, whoever writes the fold down will see whether it is lost.
            with suppress(StoreUnavailable):
                held = await self._journal.renew(lease, ttl_seconds=ttl, now=self._clock())

    async def _written(self, subject: Subject, cut: Cut, work: "_Work") -> "_Verified | NoSummary":
        """A summary of the head, verified; by rules where no model gives one and that is wanted."""
        made = await self._summarised(work.by, cut, work.bills)
        if isinstance(made, Summary):
            verified = await self._verified(work, made, cut)
            is_too_soon = work.by is not self._summariser
            return replace(verified, reason=TOO_SOON if is_too_soon else self._no_model)
        if not (self._options.extractive or subject.must_fit) or work.by is self._by_rules:
            return made
        instead = await self._summarised(self._by_rules, cut, work.bills)
        if isinstance(instead, NoSummary):
            return made
        by_rules = replace(work, by=self._by_rules)
        return replace(await self._verified(by_rules, instead, cut), reason=made.reason)

    async def _summarised(self, by: Summariser, cut: Cut, bills: Bills) -> Summary | NoSummary:
        """A summary that can be one, or why there is none."""
        writing = by.summarise(cut.span, bills, limit_tokens=cut.limit_tokens)
        made = await self._within(writing, self._options.limit_seconds * (1 - _REDRAFT_SHARE))
        problem = await self._problem(by, made, cut) if isinstance(made, Summary) else None
        return made if problem is None else NoSummary(reason=problem)

    async def _verified(self, work: "_Work", made: Summary, cut: Cut) -> "_Verified":
        """A summary with what it leaves out: asked for once more, then to be listed.

        Rules have chosen by the same ranking what there is room for.
        """
        if work.by is self._by_rules:
            return _Verified(summary=made, carried=())
        missing = await asyncio.to_thread(cut.missing, made.text, self._count)
        if missing.important:
            named = missing.important[:_MOST_NAMED]
            writing = work.by.redraft(cut.span, made.text, named, work.bills, limit_tokens=cut.limit_tokens)
            again = await self._within(writing, self._options.limit_seconds * _REDRAFT_SHARE)
            if isinstance(again, Summary) and not await self._problem(work.by, again, cut):
                still = await asyncio.to_thread(cut.missing, again.text, self._count)
                if len(still.important) < len(missing.important):
                    made, missing = replace(made, text=again.text), still
        return _Verified(summary=made, carried=missing.carried)

    async def _within(
        self, writing: Coroutine[Any, Any, Summary | NoSummary], limit_seconds: float
    ) -> Summary | NoSummary:
        """What is written in time; whatever else happens is no summary."""
        try:
            async with asyncio.timeout(limit_seconds):
                return await writing
        except TimeoutError:
            return NoSummary(reason=f"no summary within {limit_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - a border: anybody may write a summariser, and none may lose a request
            _LOG.warning("a summariser failed: %s: %s", type(error).__name__, error)
            return NoSummary(reason=str(error) or type(error).__name__)

    async def _problem(self, by: Summariser, made: Summary, cut: Cut) -> str | None:
        """Why a text cannot stand for the head; rules say only what was said there."""
        problem = problem_of(made.text, replaced_tokens=cut.span.tokens, count=self._count)
        if problem is not None or by is self._by_rules:
            return problem
        return await asyncio.to_thread(hollow, made.text, cut.span.head, cut.span.earlier)

    async def _kept(
        self, made: "_Verified", lease: Lease, subject: Subject, cut: Cut, row: Fold, usages: Usages
    ) -> Folded:
        """The fold of a summary, written down with all that it folds."""
        row = replace(row, summary=made.summary.text, carried=made.carried, model=made.summary.model)
        row = replace(row, tokens_after=self._count(summary_text(row)))
        if row.tokens_after >= cut.span.tokens:
            reason = f"the summary would be no shorter than what it replaces ({cut.span.tokens:,} tokens)"
            return await self._ended(row, Outcome.FAILED, reason, lease=lease, usages=usages)
        earlier = self._taken_in(subject)
        row = replace(row, earlier_id=earlier.id if earlier is not None else None)
        start = subject.chain.head
        turns = subject.request.messages[start + (earlier.messages if earlier else 0) : start + row.messages]
        return await self._ended(row, Outcome.OK, made.reason, lease=lease, usages=usages, turns=turns)

    def _taken_in(self, subject: Subject) -> Fold | None:
        """The fold that keeps the first turns; not one of another session, which may be forgotten first."""
        earlier = subject.earlier
        return earlier if earlier is not None and earlier.session_id == subject.session_id else None

    async def _ended(
        self,
        row: Fold,
        outcome: Outcome,
        reason: str,
        *,
        lease: Lease | None,
        usages: Usages = (),
        turns: Sequence[bytes] = (),
    ) -> Folded:
        """What became of it, written down."""
        now = self._clock()
        row = replace(
            row,
            outcome=outcome,
            compacted_at=now,
            duration_seconds=max(0.0, now - row.compacted_at),
            reason=reason,
        )
        if outcome is not Outcome.OK:
            row = replace(row, summary="", carried=(), tokens_after=row.tokens_before)
        if not await self._journal.record(row, turns, lease=lease):
            return Folded(outcome=Outcome.LOCK_HELD, reason=_LOST, usages=usages)
        return Folded(outcome=outcome, fold=row, reason=reason, usages=usages)

    async def _released(self, lease: Lease) -> None:
        # It runs out by itself where the store is gone.
        with suppress(StoreUnavailable):
            await self._journal.release(lease)

    def _row(self, subject: Subject, cut: Cut | None, started: float, by: Summariser) -> Fold:
        """The row of a fold before anything has become of it; `compacted_at` is when it began."""
        messages = cut.messages if cut is not None else 0
        tokens = cut.tokens if cut is not None else 0
        return Fold(
            id=uuid4().hex,
            agent=subject.agent,
            session_id=subject.session_id,
            boundary=subject.chain.hashes[messages - 1] if messages else b"",
            messages=messages,
            seen_messages=len(subject.chain),
            summary="",
            carried=(),
            tokens_before=tokens,
            tokens_after=tokens,
            model=by.model or subject.request.model,
            cost=Decimal(0),
            duration_seconds=0.0,
            outcome=Outcome.FAILED,
            compacted_at=started,
        )

    def _cost(self, model: str, usages: Usages) -> Decimal | None:
        """What all calls together cost; unknown where one of them is."""
        prices = [self._price_of(model, usage) for usage in usages]
        known = [price for price in prices if price is not None]
        return sum(known, Decimal(0)) if len(known) == len(prices) else None

    def _price_of(self, model: str, usage: Usage | None) -> Decimal | None:
        if usage is None or self._price is None:
            return usage.said_dollars if usage is not None else None
        return self._price(model, usage)

    def _count(self, text: str) -> int:
        return self._counter.text(text).tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Who writes a summary, and where the bills for it go."""

    by: Summariser
    bills: Bills


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verified:
    """A summary, the facts to be listed after it, and why it is not by a model where it should have been."""

    summary: Summary
    carried: tuple[str, ...]
    reason: str = ""


async def _cancelled(*tasks: "asyncio.Task[object]") -> None:
    """End what is still under way, and wait until it has."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
