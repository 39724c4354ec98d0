"""Compaction of sessions: after a response if a request crosses the threshold, at once if it would not fit.

Summaries are charged as compaction, under the same caps as all calls; if a cap rejects one, rules write it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Protocol
from uuid import uuid4

from foveate import formats
from foveate.compaction.clearing import make_clearing_record
from foveate.compaction.compact import CompactionResult, CompactionRunner
from foveate.compaction.edit_timing import Moment, ScheduledEdits
from foveate.compaction.plan import CompactionCandidate, candidate_threshold_tokens
from foveate.compaction.store import (
    ClearedBlock,
    Compaction,
    CompactionOutcome,
    CompactionStore,
    EditDecision,
)
from foveate.compaction.summarize.llm import LlmSummarizer
from foveate.cost.admission import Admission
from foveate.cost.ledger import Call, Category
from foveate.cost.savings import make_own_call_savings
from foveate.engine.exchange import Exchange
from foveate.engine.options import SpendingOptions
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.spending.cost_ceiling import (
    CostCeiling,
    max_breakpoint_ttl,
    max_input_tokens,
    read_cost_parameters,
)
from foveate.engine.spending.edit_planner import DECISION_SECONDS, EditAssessment, EditPlanner
from foveate.engine.spending.paid_client import PaidClient, PaymentOptions
from foveate.engine.steps.history import compaction_candidate
from foveate.errors import CallRefused, FoveateError, StoreUnavailable
from foveate.http import JsonClient
from foveate.model import ComparisonOutcome, Savings, Usage
from foveate.session.store import PendingWrite

_LOG = logging.getLogger(__name__)

# A request with the instruction to summarise is shorter than this many times its input.
_SUMMARY_INPUT_FACTOR = 2
# Several times the length of a summary.
_SUMMARY_OUTPUT_TOKENS = 16_384
# A compaction reads a whole history.
_MAX_CONCURRENT = 4
_MAX_IDLE_SESSIONS = 64
_MAX_IDLE_BYTES = 128 * 1024 * 1024
_POLL_SECONDS = 1.0


class PlannedKeepAlives(Protocol):
    def saved_tokens(self, context: RequestContext) -> float:
        """What the planned keep-alive of a session is expected to save; 0 if none is planned."""

    def forget(self, context: RequestContext) -> Callable[[], None]:
        """Send no keep-alive until the next request of the session; the result plans it again."""


class _IdleSessions:
    """Sessions about which a decision is due before their cache expires, if no request comes until then."""

    def __init__(self, on_due: Callable[[Exchange, RequestContext], None], clock: Callable[[], float]) -> None:
        self._on_due = on_due
        self._clock = clock
        self._waiting: OrderedDict[str, tuple[float, Exchange, RequestContext]] = OrderedDict()
        self._poll_task: asyncio.Task[None] | None = None

    def add(self, exchange: Exchange, context: RequestContext, *, due_at: float | None) -> None:
        self._waiting.pop(context.session_id, None)
        if due_at is None:
            return
        self._waiting[context.session_id] = due_at, exchange, context
        while len(self._waiting) > _MAX_IDLE_SESSIONS or self._size_bytes() > _MAX_IDLE_BYTES:
            self._waiting.popitem(last=False)
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.create_task(self._poll())

    def _size_bytes(self) -> int:
        """About the memory of the requests, which are kept as received and as sent."""
        return sum(2 * len(exchange.upstream_request.body) for _, exchange, _ in self._waiting.values())

    async def close(self) -> None:
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.gather(self._poll_task, return_exceptions=True)

    async def _poll(self) -> None:
        while self._waiting:
            now = self._clock()
            due = [id_ for id_, (due_at, _, _) in self._waiting.items() if due_at <= now]
            for id_ in due:
                _, exchange, context = self._waiting.pop(id_)
                try:
                    self._on_due(exchange, context)
                except Exception:  # noqa: BLE001 - nobody waits: the session goes on uncompacted
                    _LOG.exception("deciding about the idle session %s failed", id_)
            await asyncio.sleep(_POLL_SECONDS)


class SessionCompactor:
    def __init__(
        self,
        compaction_store: CompactionStore,
        client: JsonClient,
        admission: Admission,
        spending: Callable[[], SpendingOptions],
        *,
        holder: str,
        clock: Callable[[], float],
        session_states: SessionStates | None = None,
        on_result: Callable[[str, CompactionResult], None] = lambda _agent, _result: None,
    ) -> None:
        self._compaction_store = compaction_store
        self._client = client
        self._admission = admission
        self._spending = spending
        self.planner = EditPlanner(session_states or SessionStates(), spending)
        self._holder = holder
        self._clock = clock
        self._on_result = on_result
        # Called with the agent once a compaction is stored.
        self.on_stored: Callable[[str], None] = lambda _agent: None
        # Set if the gateway sends keep-alive requests.
        self.keep_alive: PlannedKeepAlives | None = None
        self._tasks: dict[str, asyncio.Task[CompactionResult | None]] = {}
        self._idle = _IdleSessions(self._on_idle, clock)
        self._semaphore = asyncio.Semaphore(_MAX_CONCURRENT)

    def __call__(self, exchange: Exchange) -> None:
        context = exchange.context
        if context is None or not context.options.compacts or not 200 <= exchange.status < 300:
            return
        if context.is_read_only:
            return
        if (
            context.session.chain is None
            or context.session.match is None
            or context.count.total is None
            or context.window_tokens is None
        ):
            return
        candidate = compaction_candidate(context, must_fit=False)
        if context.session_id in self._tasks:
            return
        if candidate.sent_tokens >= candidate_threshold_tokens(candidate, context.options.compaction_options):
            self._start(exchange, context, candidate)
        elif context.options.compacts_by_cost:
            self._compact_if_it_pays(exchange, context, Moment.RESPONSE)

    def _compact_if_it_pays(self, exchange: Exchange, context: RequestContext, moment: Moment) -> None:
        """Compact a session after a response, or when it is idle; otherwise decide again before its cache
        expires.
        """
        assessment = self.planner.assess(
            context, moment, now=self._clock(), calls_tool=bool(exchange.response_parts().tool_calls)
        )
        if assessment is None:
            return
        option = self.planner.estimate_compaction(context, assessment)
        plan = assessment.plan(compaction=option)
        if plan.compacts and not (
            moment is Moment.EXPIRY and self.keep_alive_pays_more(context, assessment, plan)
        ):
            candidate = compaction_candidate(context, must_fit=False)
            self._start(exchange, context, replace(candidate, decide=assessment.decide))
            return
        now = self._clock()
        if moment is Moment.RESPONSE:
            self._idle.add(exchange, context, due_at=self.planner.decision_before_expiry(context, now))
        elif self.keep_alive is not None:  # by then the cache has been kept alive, or has expired
            self._idle.add(exchange, context, due_at=now + DECISION_SECONDS)

    def keep_alive_pays_more(
        self, context: RequestContext, assessment: EditAssessment, plan: ScheduledEdits
    ) -> bool:
        if self.keep_alive is None:
            return False
        price = assessment.prices.at(assessment.state.request_tokens).uncached
        return self.keep_alive.saved_tokens(context) * price > plan.net_dollars

    def _start(self, exchange: Exchange, context: RequestContext, candidate: CompactionCandidate) -> None:
        # After a compaction the next request has another prefix.
        keep_alive_again = self.keep_alive.forget(context) if self.keep_alive is not None else None
        # The request as sent, with its breakpoints, so that the summary reads what is cached.
        incoming = exchange.incoming
        sent_request = formats.parse_request(
            exchange.upstream_request.body, incoming.api_format, model=incoming.served_model
        )
        task = asyncio.create_task(
            self._compact_in_background(
                context, replace(candidate, sent_request=sent_request), keep_alive_again
            )
        )
        self._add_task(context.session_id, task)

    async def compact_now(
        self, context: RequestContext, candidate: CompactionCandidate
    ) -> CompactionResult | None:
        running = self._tasks.get(context.session_id)
        if running is not None:
            await asyncio.wait([running])
        return await self._compact(context, candidate)

    async def compact_for_request(
        self, context: RequestContext, candidate: CompactionCandidate
    ) -> CompactionResult | None:
        """Compact while a request waits. If its client gives up, the compaction goes on: the next request of
        the session waits for it, instead of paying for another one.
        """
        while (running := self._tasks.get(context.session_id)) is not None:
            await asyncio.wait([running])
            if candidate.decide is not None:  # the next attempt would not be due
                return None if running.cancelled() or running.exception() else running.result()
        task = asyncio.create_task(self._compact(context, candidate))
        self._add_task(context.session_id, task)
        return await asyncio.shield(task)

    def _add_task(self, session_id: str, task: asyncio.Task[CompactionResult | None]) -> None:
        self._tasks[session_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(session_id, None))

    def _on_idle(self, exchange: Exchange, context: RequestContext) -> None:
        if not self.planner.is_last_request(context) or context.session_id in self._tasks:
            return
        now = self._clock()
        due_at = self.planner.decision_before_expiry(context, now)
        if due_at is not None and due_at > now:  # a keep-alive was sent
            self._idle.add(exchange, context, due_at=due_at)
        elif due_at is not None and context.options.compacts_by_cost:
            self._compact_if_it_pays(exchange, context, Moment.EXPIRY)

    async def wait(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Cancel running compactions; their leases are released and nothing is left half done."""
        await self._idle.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _compact_in_background(
        self,
        context: RequestContext,
        candidate: CompactionCandidate,
        keep_alive_again: Callable[[], None] | None,
    ) -> CompactionResult | None:
        result: CompactionResult | None = None
        async with self._semaphore:
            try:
                result = await self._compact(context, candidate)
            except Exception as error:  # noqa: BLE001 - nobody waits: whatever fails, the session goes on uncompacted
                reason = f"{type(error).__name__}: {error}"
                bug = None if isinstance(error, FoveateError) else error
                message = "%s: compaction of session %s failed, its history stays as it is: %s"
                _LOG.error(message, context.incoming.id, context.session_id, reason, exc_info=bug)
                self._on_result(
                    context.incoming.agent, CompactionResult(outcome=CompactionOutcome.FAILED, reason=reason)
                )
        compaction = result.compaction if result is not None else None
        is_compacted = compaction is not None and compaction.outcome is CompactionOutcome.OK
        if keep_alive_again is not None and not is_compacted and self.planner.is_last_request(context):
            keep_alive_again()
        return result

    async def _compact(
        self, context: RequestContext, candidate: CompactionCandidate
    ) -> CompactionResult | None:
        no_model_reason = ""
        try:
            client = await self._paid_client(context, candidate)
        except CallRefused as rejection:
            client, no_model_reason = None, str(rejection)
            _LOG.info("%s: summarizing without a model: %s", context.incoming.id, rejection)
        endpoint = context.endpoint
        compactor = CompactionRunner(
            self._compaction_store,
            LlmSummarizer(
                client,
                endpoint,
                model=context.options.summarizer_model,
                only_cached=candidate.decide is not None,
            )
            if client is not None and endpoint is not None
            else None,
            context.counter,
            holder=self._holder,
            clock=self._clock,
            options=context.options.compaction_options,
            price=lambda model, usage: self._price(context, model, usage),
            no_model_reason=no_model_reason,
        )
        try:
            result = await compactor.compact(candidate)
        finally:
            if client is not None:
                await asyncio.shield(asyncio.ensure_future(client.release()))
        if result is not None:
            self._record_result(context, candidate, result)
        return result

    def _record_result(
        self, context: RequestContext, candidate: CompactionCandidate, result: CompactionResult
    ) -> None:
        self.on_stored(context.incoming.agent)
        self._on_result(context.incoming.agent, result)
        compaction = result.compaction
        if compaction is None or result.outcome is CompactionOutcome.LOCK_HELD:
            return
        tokens_after = None
        if result.outcome is CompactionOutcome.OK:
            earlier = candidate.earlier_compaction
            freed = compaction.freed_tokens - (earlier.freed_tokens if earlier is not None else 0)
            tokens_after = candidate.sent_tokens - round(freed * context.tokens_per_raw_token)
        self.planner.record_cost(context, float(compaction.cost or 0), tokens_after)

    async def clear_results(
        self, context: RequestContext, blocks: Sequence[ClearedBlock], decision: EditDecision
    ) -> Compaction | None:
        """Store which tool results of a session are cleared from now on; None if another process edits it.

        Raises:
            StoreUnavailable: it cannot be stored.
        """
        chain, store = context.session.chain, self._compaction_store
        assert chain is not None
        agent, now = context.incoming.agent, self._clock()
        record = make_clearing_record(
            blocks,
            chain,
            decision,
            agent=agent,
            session_id=context.session_id,
            model=context.model,
            now=now,
        )
        positions = sorted({block.message for block in blocks})
        messages = [
            context.original.messages[chain.leading_system_messages + position] for position in positions
        ]
        lease = await store.acquire_lease(
            context.session_id,
            self._holder,
            ttl_seconds=context.options.compaction_options.lock_ttl_seconds,
            now=now,
        )
        if lease is None:
            return None
        try:
            is_stored = await store.record(record, messages, lease=lease)
        finally:
            with suppress(StoreUnavailable):
                await store.release_lease(lease)
        if not is_stored:
            return None
        self.on_stored(agent)
        self._on_result(agent, CompactionResult(outcome=record.outcome, compaction=record))
        return record

    def record_section_move(
        self, context: RequestContext, names: Sequence[str], tokens: int, decision: EditDecision
    ) -> None:
        """Record that `tokens` added to sections with these names go before the history from now on. The record
        is stored once the request is answered.
        """
        record = _make_section_move_record(context, names, tokens, decision)
        self.planner.record_cost(context, decision.cost_dollars)
        self._on_result(record.agent, CompactionResult(outcome=record.outcome, compaction=record))
        context.pending_writes.append(
            PendingWrite(partial(self._compaction_store.record, record, (), lease=None))
        )

    async def _paid_client(self, context: RequestContext, candidate: CompactionCandidate) -> PaidClient | None:
        """A client for summaries, once the caps have room for a first call; None if no model is used.

        Raises:
            CallRefused: a cap rejects it.
        """
        endpoint = context.endpoint
        if endpoint is None:
            return None
        options = self._spending()
        call = self._make_call(context)
        cost_parameters = read_cost_parameters(candidate.sent_request)
        upper = _SUMMARY_INPUT_FACTOR * max(
            candidate.sent_tokens, context.count.total.upper if context.count.total else 0
        )
        input_tokens = max_input_tokens(
            candidate.sent_request, upper, context.unexplained, window_tokens=context.max_window_tokens
        )
        cost_ceiling = CostCeiling(
            model=call.model,
            provider=call.provider,
            input_tokens=input_tokens or 0,
            output_tokens=_SUMMARY_OUTPUT_TOKENS,
            at=call.at,
            ttl=max_breakpoint_ttl(candidate.sent_request),
            tier=cost_parameters.tier,
            region=call.region or cost_parameters.region,
            searches=cost_parameters.searches,
            other_models=cost_parameters.other_models,
        )
        ceiling = cost_ceiling.dollars(options.prices) if input_tokens is not None else None
        first_reservation = await self._admission.admit(call, ceiling, options.caps)
        payment = PaymentOptions(
            admission=self._admission,
            options=self._spending,
            make_call=lambda: self._make_call(context),
            api_format=endpoint.api_format,
            compare=lambda call, dollars: _compare_summary_cost(context, candidate, call, dollars),
        )
        client = self._client.with_reuse(endpoint.reuse_connection)
        return PaidClient(client, payment, first_reservation, output_tokens=_SUMMARY_OUTPUT_TOKENS)

    def _make_call(self, context: RequestContext) -> Call:
        return Call(
            id=f"{context.incoming.id}-fold-{uuid4().hex}",
            agent=context.incoming.agent,
            session_id=context.session_id,
            provider=context.incoming.provider,
            model=context.options.summarizer_model or context.model,
            category=Category.COMPACTION,
            at=self._clock(),
            region=context.incoming.region,
            is_subscription=context.incoming.is_subscription,
        )

    def _price(self, context: RequestContext, model: str, usage: Usage) -> Decimal | None:
        incoming = context.incoming
        price = self._spending().prices.price(
            model, usage, provider=incoming.provider, at=self._clock(), region=incoming.region
        )
        return price.dollars if price is not None else None


def _make_section_move_record(
    context: RequestContext, names: Sequence[str], tokens: int, decision: EditDecision
) -> Compaction:
    chain, total = context.session.chain, context.count.total
    assert chain is not None
    assert total is not None
    request_tokens = context.count.reported_tokens or total.tokens
    return Compaction(
        id=uuid4().hex,
        agent=context.incoming.agent,
        session_id=context.session_id,
        boundary=chain.hashes[-1],
        messages=len(chain),
        seen_messages=len(chain),
        summary="",
        carried=(),
        tokens_before=request_tokens,
        tokens_after=request_tokens,
        model=context.model,
        cost=Decimal(0),
        duration_seconds=0.0,
        outcome=CompactionOutcome.SECTIONS_MOVED,
        compacted_at=context.received_at,
        reason=f"{tokens:,} tokens were added to {', '.join(names)}",
        decision=decision,
    )


def _compare_summary_cost(
    context: RequestContext, candidate: CompactionCandidate, call: Call, dollars: Decimal | None
) -> Savings:
    """Compare the cost of a summary: without Foveate it would not have been needed, or not have helped."""
    window, is_too_long = context.max_window_tokens, False
    if candidate.must_fit and context.count.total is not None and window is not None:
        is_too_long = context.count.total.tokens > window - context.output_reserve_tokens
    if context.session.state.would_exceed_window or is_too_long:
        return Savings(comparison=ComparisonOutcome.WOULD_NOT_FIT)
    return make_own_call_savings(call, dollars)
