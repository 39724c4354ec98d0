"""Run a compaction: take the lease, get a summary, verify it and store the result.

A compaction is stored completely or not at all. If it fails, requests go out unchanged.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from uuid import uuid4

from foveate.compaction.apply import find_active_compaction, summary_text
from foveate.compaction.boundary import is_compaction_due
from foveate.compaction.plan import (
    CompactionCandidate,
    CompactionOptions,
    CompactionPlan,
    candidate_threshold_tokens,
    count_model_turns_since,
    plan_compaction,
)
from foveate.compaction.store import Compaction, CompactionLease, CompactionOutcome, CompactionStore
from foveate.compaction.summarize.summarizer import (
    ExtractiveSummarizer,
    Summarizer,
    Summary,
    SummaryFailure,
    UsageLog,
    Usages,
)
from foveate.compaction.summarize.verify import check_relevance, find_problem
from foveate.errors import StoreUnavailable
from foveate.model import Usage
from foveate.tokens import RequestCounter

_RENEWALS_PER_TTL = 3
# Share of the time limit reserved for a redraft.
_REDRAFT_SHARE = 0.25
# How many records of a session to search for its last compaction.
_MAX_RECENT_RECORDS = 32
# Waits for another holder of the lease, if the request does not fit without a compaction.
_LEASE_WAITS_SECONDS = (0.05, 0.1, 0.2, 0.4, 0.8)
_OUTCOMES_WITH_COOLDOWN = frozenset(
    (CompactionOutcome.OK, CompactionOutcome.FAILED, CompactionOutcome.NO_BOUNDARY)
)
_LEASE_LOST = "the compaction lock was lost before the summary was complete"
TOO_SOON = "a model wrote a summary of this session only recently"
"""Reason of an extractive summary that is not a failure: a model is not asked at every step."""
# How many omitted facts a request for a redraft names.
_MAX_NAMED_FACTS = 64

_LOG = logging.getLogger(__name__)

Clock = Callable[[], float]
PriceModelUsage = Callable[[str, Usage], Decimal | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """Outcome of a compaction. `compaction` is the stored record, None if none was stored.

    With the outcome `lock_held`, the record may be one that another process has just stored. `reason` explains
    a failure or a fallback.
    """

    outcome: CompactionOutcome
    compaction: Compaction | None = None
    reason: str = ""
    usages: Usages = ()

    @property
    def has_failed(self) -> bool:
        """Return whether there is no summary, or an extractive one instead of the model's."""
        if self.outcome is CompactionOutcome.OK:
            return self.reason not in ("", TOO_SOON)
        return self.outcome is CompactionOutcome.FAILED


class CompactionRunner:
    """Compacts sessions for one agent and model. `holder` identifies the owner of leases and must be unique."""

    def __init__(
        self,
        store: CompactionStore,
        summarizer: Summarizer | None,
        counter: RequestCounter,
        *,
        holder: str,
        clock: Clock,
        options: CompactionOptions = CompactionOptions(),  # noqa: B008 - frozen
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        price: PriceModelUsage | None = None,
        no_model_reason: str = "",
    ) -> None:
        """Without a `summarizer`, summaries are extractive; without `price`, the provider's cost counts.

        `no_model_reason` explains why there is no summarizer although there should be one.
        """
        self._store = store
        self._counter = counter
        self._extractive = ExtractiveSummarizer(self._count_tokens)
        self._summarizer = summarizer or self._extractive
        self._holder = holder
        self._clock = clock
        self._options = options
        self._sleep = sleep
        self._price = price
        self._no_model_reason = no_model_reason

    async def compact(
        self, candidate: CompactionCandidate, usage_log: UsageLog | None = None
    ) -> CompactionResult | None:
        """Compact a request; None if it is too small, was compacted or tried recently, or if it does not pay.

        A request that would not fit otherwise is always compacted, but with an extractive summary if a model
        was asked recently. If this call is cancelled, `usage_log` still has the usage until then.

        Raises:
            MalformedRequest: a message cannot be read.
        """
        threshold_tokens = 0 if candidate.must_fit else candidate_threshold_tokens(candidate, self._options)
        if candidate.sent_tokens < threshold_tokens:
            return None
        try:
            is_due = is_compaction_due(
                candidate.sent_tokens,
                threshold_tokens=threshold_tokens,
                turns_since_compaction=await self._turns_since_compaction(candidate),
                min_turns_between=self._options.min_turns_between,
            )
            if not candidate.must_fit and not is_due:
                return None
            summarizer = self._summarizer if is_due else self._extractive
            return await self._compact(
                candidate,
                _SummaryJob(summarizer=summarizer, usage_log=UsageLog() if usage_log is None else usage_log),
            )
        except StoreUnavailable as error:
            return CompactionResult(outcome=CompactionOutcome.FAILED, reason=str(error))

    async def _turns_since_compaction(self, candidate: CompactionCandidate) -> int | None:
        recent = await self._store.list_compactions(
            agent=candidate.agent, session_id=candidate.session_id, limit=_MAX_RECENT_RECORDS
        )
        attempts = (
            attempt
            for attempt in (*recent, candidate.earlier_compaction)
            if attempt is not None and attempt.outcome in _OUTCOMES_WITH_COOLDOWN
        )
        # A record that saw more messages than there are now belongs to another branch.
        seen_counts = [
            attempt.seen_messages for attempt in attempts if 0 < attempt.seen_messages <= len(candidate.chain)
        ]
        return count_model_turns_since(candidate, max(seen_counts)) if seen_counts else None

    async def _compact(self, candidate: CompactionCandidate, job: "_SummaryJob") -> CompactionResult | None:
        started = self._clock()
        plan = await asyncio.to_thread(plan_compaction, candidate, self._counter, self._options)
        record = self._new_record(candidate, plan, started, job.summarizer)
        if plan is None:
            return await self._finish(
                record,
                CompactionOutcome.NO_BOUNDARY,
                "the history has no place where it can be cut",
                lease=None,
            )
        if candidate.decide is not None:
            decision = candidate.decide(plan)
            if decision is None:
                return None
            record = replace(record, decision=decision)
        lease = await self._acquire_lease(candidate.session_id)
        for pause in _LEASE_WAITS_SECONDS if candidate.must_fit else ():
            if lease is None:  # the current holder may finish soon, and then its compaction can be used
                await self._sleep(pause)
                lease = await self._acquire_lease(candidate.session_id)
        if lease is None:
            return await self._finish(
                record, CompactionOutcome.LOCK_HELD, "another process is compacting this session", lease=None
            )
        try:
            concurrent = await self._find_concurrent_compaction(candidate)
            if concurrent is not None:
                return CompactionResult(
                    outcome=CompactionOutcome.LOCK_HELD,
                    compaction=concurrent,
                    reason="another process has just compacted this session",
                )
            return await self._compact_under_lease(lease, candidate, plan, record, job)
        finally:
            await self._release(lease)

    async def _acquire_lease(self, session_id: str) -> CompactionLease | None:
        """Acquire the lease. If cancelled while a slow store is still granting it, release it again."""
        acquiring = asyncio.ensure_future(
            self._store.acquire_lease(
                session_id, self._holder, ttl_seconds=self._options.lock_ttl_seconds, now=self._clock()
            )
        )
        try:
            return await asyncio.shield(acquiring)
        except asyncio.CancelledError:
            await asyncio.wait((acquiring,))
            lease = None if acquiring.cancelled() or acquiring.exception() else acquiring.result()
            if lease is not None:
                await self._release(lease)
            raise

    async def _find_concurrent_compaction(self, candidate: CompactionCandidate) -> Compaction | None:
        compacted_messages = (
            candidate.earlier_compaction.messages if candidate.earlier_compaction is not None else 0
        )
        compactions = await self._store.find_compactions(
            candidate.agent, candidate.chain.hashes[compacted_messages:]
        )
        return find_active_compaction(
            candidate.chain,
            [compaction for compaction in compactions if compaction.messages > compacted_messages],
        )

    async def _compact_under_lease(
        self,
        lease: CompactionLease,
        candidate: CompactionCandidate,
        plan: CompactionPlan,
        record: Compaction,
        job: "_SummaryJob",
    ) -> CompactionResult:
        """Write and store the summary while a second task renews the lease."""
        writing = asyncio.create_task(self._write_summary(candidate, plan, job))
        renewing = asyncio.create_task(self._renew_until_lost(lease))
        try:
            await asyncio.wait((writing, renewing), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                renewing.result()
                return CompactionResult(
                    outcome=CompactionOutcome.LOCK_HELD, reason=_LEASE_LOST, usages=job.usage_log.usages
                )
            verified_summary = writing.result()
        finally:
            await _cancel_tasks(writing, renewing)
        usages = job.usage_log.usages
        record = replace(record, cost=self._total_cost(record.model, usages))
        if isinstance(verified_summary, SummaryFailure):
            return await self._finish(
                record, CompactionOutcome.FAILED, verified_summary.reason, lease=lease, usages=usages
            )
        return await self._store_compaction(verified_summary, lease, candidate, plan, record, usages)

    async def _renew_until_lost(self, lease: CompactionLease) -> None:
        ttl = self._options.lock_ttl_seconds
        current_lease: CompactionLease | None = lease
        while current_lease is not None:
            await self._sleep(ttl / _RENEWALS_PER_TTL)
            # If the store is unavailable now, storing the compaction will check the lease again.
            with suppress(StoreUnavailable):
                current_lease = await self._store.renew_lease(lease, ttl_seconds=ttl, now=self._clock())

    async def _write_summary(
        self, candidate: CompactionCandidate, plan: CompactionPlan, job: "_SummaryJob"
    ) -> "_VerifiedSummary | SummaryFailure":
        """Write and verify a summary; extractive if no model gives one and that is allowed."""
        summary = await self._summarize(job.summarizer, plan, job.usage_log)
        if isinstance(summary, Summary):
            verified_summary = await self._verify(job, summary, plan)
            is_too_soon = job.summarizer is not self._summarizer
            return replace(verified_summary, reason=TOO_SOON if is_too_soon else self._no_model_reason)
        if not (self._options.extractive or candidate.must_fit) or job.summarizer is self._extractive:
            return summary
        extractive = await self._summarize(self._extractive, plan, job.usage_log)
        if isinstance(extractive, SummaryFailure):
            return summary
        extractive_job = replace(job, summarizer=self._extractive)
        return replace(await self._verify(extractive_job, extractive, plan), reason=summary.reason)

    async def _summarize(
        self, summarizer: Summarizer, plan: CompactionPlan, usage_log: UsageLog
    ) -> Summary | SummaryFailure:
        writing = summarizer.summarize(plan.summary_input, usage_log, limit_tokens=plan.limit_tokens)
        summary = await self._run_within(writing, self._options.limit_seconds * (1 - _REDRAFT_SHARE))
        problem = await self._find_problem(summarizer, summary, plan) if isinstance(summary, Summary) else None
        return summary if problem is None else SummaryFailure(reason=problem)

    async def _verify(self, job: "_SummaryJob", summary: Summary, plan: CompactionPlan) -> "_VerifiedSummary":
        """Ask for a redraft if the summary omits important facts or has outdated ones; list what is missing.

        Extractive summaries are already selected by the same ranking.
        """
        if job.summarizer is self._extractive:
            return _VerifiedSummary(summary=summary, carried_facts=())
        missing = await asyncio.to_thread(plan.find_missing_facts, summary.text, self._count_tokens)
        if missing.redraft_reasons:
            named_facts = missing.redraft_reasons[:_MAX_NAMED_FACTS]
            writing = job.summarizer.redraft(
                plan.summary_input, summary.text, named_facts, job.usage_log, limit_tokens=plan.limit_tokens
            )
            redraft = await self._run_within(writing, self._options.limit_seconds * _REDRAFT_SHARE)
            if isinstance(redraft, Summary) and not await self._find_problem(job.summarizer, redraft, plan):
                still_missing = await asyncio.to_thread(
                    plan.find_missing_facts, redraft.text, self._count_tokens
                )
                if len(still_missing.redraft_reasons) < len(missing.redraft_reasons):
                    summary, missing = replace(summary, text=redraft.text), still_missing
        return _VerifiedSummary(summary=summary, carried_facts=missing.carried_facts)

    async def _run_within(
        self, writing: Coroutine[Any, Any, Summary | SummaryFailure], limit_seconds: float
    ) -> Summary | SummaryFailure:
        """Await a summary with a time limit; every error becomes a `SummaryFailure`."""
        try:
            async with asyncio.timeout(limit_seconds):
                return await writing
        except TimeoutError:
            return SummaryFailure(reason=f"no summary within {limit_seconds:g} s")
        except Exception as error:  # noqa: BLE001 - a custom summarizer must not break requests
            _LOG.warning("a summarizer failed: %s: %s", type(error).__name__, error)
            return SummaryFailure(reason=str(error) or type(error).__name__)

    async def _find_problem(self, summarizer: Summarizer, summary: Summary, plan: CompactionPlan) -> str | None:
        problem = find_problem(
            summary.text, replaced_tokens=plan.summary_input.replaced_tokens, count=self._count_tokens
        )
        if problem is not None or summarizer is self._extractive:
            return problem
        return await asyncio.to_thread(
            check_relevance, summary.text, plan.summary_input.head, plan.summary_input.earlier_summary
        )

    async def _store_compaction(
        self,
        verified_summary: "_VerifiedSummary",
        lease: CompactionLease,
        candidate: CompactionCandidate,
        plan: CompactionPlan,
        record: Compaction,
        usages: Usages,
    ) -> CompactionResult:
        record = replace(
            record,
            summary=verified_summary.summary.text,
            carried=verified_summary.carried_facts,
            model=verified_summary.summary.model,
        )
        record = replace(record, tokens_after=self._count_tokens(summary_text(record)))
        replaced_tokens = plan.summary_input.replaced_tokens
        if record.tokens_after >= replaced_tokens:
            reason = f"the summary would not be shorter than the {replaced_tokens:,} tokens that it replaces"
            return await self._finish(record, CompactionOutcome.FAILED, reason, lease=lease, usages=usages)
        earlier = self._absorbed_compaction(candidate)
        record = replace(record, earlier_id=earlier.id if earlier is not None else None)
        start = candidate.chain.leading_system_messages
        messages = candidate.original.messages[
            start + (earlier.messages if earlier else 0) : start + record.messages
        ]
        return await self._finish(
            record, CompactionOutcome.OK, verified_summary.reason, lease=lease, usages=usages, messages=messages
        )

    def _absorbed_compaction(self, candidate: CompactionCandidate) -> Compaction | None:
        """The earlier compaction that this one extends; none of another session, which may be deleted first."""
        earlier = candidate.earlier_compaction
        return earlier if earlier is not None and earlier.session_id == candidate.session_id else None

    async def _finish(
        self,
        record: Compaction,
        outcome: CompactionOutcome,
        reason: str,
        *,
        lease: CompactionLease | None,
        usages: Usages = (),
        messages: Sequence[bytes] = (),
    ) -> CompactionResult:
        now = self._clock()
        record = replace(
            record,
            outcome=outcome,
            compacted_at=now,
            duration_seconds=max(0.0, now - record.compacted_at),
            reason=reason,
        )
        if outcome is not CompactionOutcome.OK:
            record = replace(record, summary="", carried=(), tokens_after=record.tokens_before)
        if not await self._store.record(record, messages, lease=lease):
            return CompactionResult(outcome=CompactionOutcome.LOCK_HELD, reason=_LEASE_LOST, usages=usages)
        return CompactionResult(outcome=outcome, compaction=record, reason=reason, usages=usages)

    async def _release(self, lease: CompactionLease) -> None:
        # If the store is unavailable, the lease expires.
        with suppress(StoreUnavailable):
            await self._store.release_lease(lease)

    def _new_record(
        self,
        candidate: CompactionCandidate,
        plan: CompactionPlan | None,
        started: float,
        summarizer: Summarizer,
    ) -> Compaction:
        """The record before the outcome is known; `compacted_at` is the start time."""
        messages = plan.message_count if plan is not None else 0
        tokens = plan.head_tokens if plan is not None else 0
        return Compaction(
            id=uuid4().hex,
            agent=candidate.agent,
            session_id=candidate.session_id,
            boundary=candidate.chain.hashes[messages - 1] if messages else b"",
            messages=messages,
            seen_messages=len(candidate.chain),
            summary="",
            carried=(),
            tokens_before=tokens,
            tokens_after=tokens,
            model=summarizer.model or candidate.original.model,
            cost=Decimal(0),
            duration_seconds=0.0,
            outcome=CompactionOutcome.FAILED,
            compacted_at=started,
        )

    def _total_cost(self, model: str, usages: Usages) -> Decimal | None:
        """The cost of all calls; None if one of them is unknown."""
        prices = [self._call_cost(model, usage) for usage in usages]
        known_prices = [price for price in prices if price is not None]
        return sum(known_prices, Decimal(0)) if len(known_prices) == len(prices) else None

    def _call_cost(self, model: str, usage: Usage | None) -> Decimal | None:
        if usage is None or self._price is None:
            return usage.reported_dollars if usage is not None else None
        return self._price(model, usage)

    def _count_tokens(self, text: str) -> int:
        return self._counter.text(text).tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _SummaryJob:
    summarizer: Summarizer
    usage_log: UsageLog


@dataclass(frozen=True, slots=True, kw_only=True)
class _VerifiedSummary:
    """A summary, the facts to list after it, and the reason if it is extractive instead of the model's."""

    summary: Summary
    carried_facts: tuple[str, ...]
    reason: str = ""


async def _cancel_tasks(*tasks: "asyncio.Task[object]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
