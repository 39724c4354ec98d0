"""Plans edits of a session's history that pay: from its requests so far, a forecast and the prices.

Forecasts also use how agents have worked so far, which is loaded from the store (`LoadActivity`).
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from foveate.compaction.edit_timing import (
    ClearingOption,
    CompactionOption,
    EditPrices,
    EditState,
    Moment,
    ScheduledEdits,
    is_judgement_due,
    loss_budget_dollars,
    make_decision,
    plan_edits,
    read_prices,
)
from foveate.compaction.forecast import (
    ActivityStore,
    Forecast,
    SessionActivity,
    estimate_cold_share,
    forecast_requests,
)
from foveate.compaction.plan import CompactionPlan, estimate_compaction
from foveate.compaction.store import CompactionOutcome, EditDecision
from foveate.engine.exchange import Exchange
from foveate.engine.options import SpendingOptions
from foveate.engine.request_context import RequestContext
from foveate.engine.session_state import SessionState, SessionStates
from foveate.errors import StoreUnavailable
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.parse import is_set, read_role
from foveate.model import Ttl
from foveate.prompt_cache.keepalive import MARGIN_SECONDS
from foveate.prompt_cache.placement.arrival_times import forecast_next_request
from foveate.prompt_cache.rules import CachingMode

_LOG = logging.getLogger(__name__)

DECISION_SECONDS = 2 * MARGIN_SECONDS
"""How long before its cache expires an idle session is decided about: before a keep-alive request is due."""

_MODEL_ROLES = frozenset(("assistant", "model"))
# The provider compacts or clears the history itself: Anthropic's and OpenAI's parameter.
_CONTEXT_MANAGEMENT = "context_management"
_EDITS = frozenset((CompactionOutcome.OK, CompactionOutcome.RESULTS_CLEARED))

# Sessions that are idle for longer have ended, as far as forecasts are concerned.
_SESSION_ENDED_SECONDS = 3600.0
_LOAD_ACTIVITY_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EditAssessment:
    state: EditState
    forecast: Forecast
    prices: EditPrices
    tokens_per_raw_token: float

    @property
    def is_cold(self) -> bool:
        """Return whether the cached prefix of the history has expired."""
        return self.state.cached_tokens <= self.state.preamble_tokens

    def is_above_price_step(self, tokens: int) -> bool:
        """Return whether a request of so many tokens would have lower prices per token."""
        return self.prices.at(tokens) != self.prices.at(self.state.request_tokens)

    def plan(
        self, *, compaction: CompactionOption | None = None, clearable: Sequence[ClearingOption] = ()
    ) -> ScheduledEdits:
        state = replace(self.state, compaction=compaction, clearable=clearable)
        return plan_edits(state, self.forecast, self.prices)

    def decide(self, plan: CompactionPlan) -> EditDecision | None:
        """Decide about a compaction once it is known what it replaces."""
        replaced = plan.summary_input.replaced_tokens - plan.limit_tokens
        option = CompactionOption(
            tokens_after=self.state.request_tokens - round(replaced * self.tokens_per_raw_token),
            summary_tokens=round(plan.limit_tokens * self.tokens_per_raw_token),
        )
        edits = self.plan(compaction=option)
        return self.make_decision(edits) if edits.compacts else None

    def make_decision(self, plan: ScheduledEdits) -> EditDecision:
        return make_decision(plan, self.state.moment, self.forecast)


class EditPlanner:
    def __init__(self, session_states: SessionStates, spending: Callable[[], SpendingOptions]) -> None:
        self._session_states = session_states
        self._spending = spending

    def assess(
        self, context: RequestContext, moment: Moment, *, now: float, calls_tool: bool = True
    ) -> EditAssessment | None:
        """Assess a session; None if nothing can be decided: sizes or prices are unknown, or the client or the
        provider edits the history.

        `calls_tool`: the last response calls a tool, so the client goes on by itself.
        """
        state = self._session_states.session(context.incoming.agent, context.session_id)
        ttl = _last_ttl(context, state)
        prices = self._read_prices(context, ttl, now)
        if prices is None or not _may_edit(context):
            return None
        progress = state.progress
        tokens = _request_tokens(context)
        arrivals = forecast_next_request(
            state.rhythm, self._session_states.agent_rhythm(context.incoming.agent)
        )
        is_arrival = moment is Moment.ARRIVAL
        requests = progress.requests + is_arrival
        forecast = forecast_requests(
            SessionActivity(
                requests=requests,
                grown_tokens=progress.grown_to(tokens) if is_arrival else progress.grown_tokens,
                calls_tool=calls_tool,
            ),
            agent=self._session_states.agent_activity(context.incoming.agent),
            cold_share=estimate_cold_share(arrivals, ttl),
            is_idle=moment is Moment.EXPIRY,
        )
        cached_tokens = min(self._cached_tokens(context, now), tokens)
        spent = progress.spent_dollars + (prices.request(tokens, cached_tokens) if is_arrival else 0.0)
        return EditAssessment(
            state=EditState(
                moment=moment,
                request_tokens=tokens,
                preamble_tokens=_preamble_tokens(context),
                cached_tokens=cached_tokens,
                last_compacted_tokens=progress.compacted_tokens,
                loss_budget_dollars=loss_budget_dollars(
                    requests, spent_dollars=spent, saved_dollars=progress.saved_dollars
                ),
            ),
            forecast=forecast,
            prices=prices,
            tokens_per_raw_token=context.tokens_per_raw_token,
        )

    def estimate_compaction(self, context: RequestContext, assessment: EditAssessment) -> CompactionOption:
        state = assessment.state
        return estimate_compaction(
            state.request_tokens, state.preamble_tokens, context.options.compaction_options
        )

    def assess_sections(self, context: RequestContext, added_tokens: int) -> EditAssessment | None:
        """Assess a session to whose sections text was added; None if it cannot be decided where that goes, also
        because another process may have moved it.
        """
        if not context.session.state.has_served_all:
            return None
        assessment = self.assess(context, Moment.ARRIVAL, now=context.received_at)
        if assessment is None:
            return None
        added_tokens = round(added_tokens * context.tokens_per_raw_token)
        return replace(assessment, state=replace(assessment.state, added_section_tokens=added_tokens))

    def decision_before_expiry(self, context: RequestContext, now: float) -> float | None:
        """When to decide again, if no request comes: before the cached prefix expires, and before a keep-alive
        request for it is sent.
        """
        state = self._session_states.session(context.incoming.agent, context.session_id)
        # Longer entries are from before a compaction.
        max_tokens = _request_tokens(context) / context.tokens_per_raw_token + 1
        live = [
            entry for entry in state.cache.entries.values() if entry.is_live(now) and entry.tokens <= max_tokens
        ]
        longest = max(live, key=lambda entry: entry.tokens, default=None)
        return None if longest is None else longest.expires_at - DECISION_SECONDS

    def is_last_request(self, context: RequestContext) -> bool:
        state = self._session_states.session(context.incoming.agent, context.session_id)
        return state.last_request_at == context.session.state.last_request_at

    def record_cost(self, context: RequestContext, dollars: float, tokens_after: int | None = None) -> None:
        """Note what an edit cost, and the size of the request after a compaction."""
        agent, session_id = context.incoming.agent, context.session_id
        state = self._session_states.session(agent, session_id)
        progress = structs.replace(state.progress, saved_dollars=state.progress.saved_dollars - dollars)
        if tokens_after is not None:
            progress = structs.replace(progress, compacted_tokens=tokens_after)
        self._session_states.put(agent, session_id, structs.replace(state, progress=progress))

    def needs_judgement(self, context: RequestContext, assessment: EditAssessment) -> bool:
        """Return whether tool results in a warm cache are judged again."""
        judged_tokens = context.session.state.progress.judged_tokens
        return is_judgement_due(assessment.state.request_tokens, judged_tokens, assessment.prices)

    def record_judgement(self, context: RequestContext, tokens: int) -> None:
        agent, session_id = context.incoming.agent, context.session_id
        state = self._session_states.session(agent, session_id)
        progress = structs.replace(state.progress, judged_tokens=tokens)
        self._session_states.put(agent, session_id, structs.replace(state, progress=progress))

    def _read_prices(self, context: RequestContext, ttl: Ttl | None, now: float) -> EditPrices | None:
        book, provider = self._spending().prices, context.incoming.provider
        rates = book.rates(context.model, provider=provider, at=now)
        prices = read_prices(rates, ttl or Ttl.FIVE_MINUTES) if rates is not None else None
        summarizer = context.options.summarizer_model
        if prices is None or not summarizer or summarizer == context.model:
            return prices
        summarizer_rates = book.rates(summarizer, provider=provider, at=now)
        summarizer_prices = read_prices(summarizer_rates) if summarizer_rates is not None else None
        return None if summarizer_prices is None else replace(prices, summarizer=summarizer_prices)

    def _cached_tokens(self, context: RequestContext, now: float) -> int:
        """The longest prefix that may be cached; 0 only if it is certainly not.

        What other processes have sent is not known here, nor what was sent before edits were allowed.
        """
        state = self._session_states.session(context.incoming.agent, context.session_id)
        is_unknown = state.progress.requests > 0 and not state.simulated_caches
        if not context.session.state.has_served_all or (
            is_unknown and context.rules.caching is not CachingMode.NONE
        ):
            return _request_tokens(context)
        live = [entry.tokens for entry in state.cache.entries.values() if entry.is_live(now)]
        tokens = round(max(live, default=0) * context.tokens_per_raw_token)
        # A new edit leaves only what precedes the history.
        return tokens if state.progress.edits >= _edit_ids(context) else min(tokens, _preamble_tokens(context))


def _last_ttl(context: RequestContext, state: SessionState) -> Ttl | None:
    """The TTL of the longest known entry, as the next one is expected to have it; None if nothing is cached."""
    longest = max(state.cache.entries.values(), key=lambda entry: entry.tokens, default=None)
    if longest is not None:
        return longest.ttl
    return context.rules.ttls[0] if context.rules.ttls else None


def _may_edit(context: RequestContext) -> bool:
    match = context.session.match
    return (
        match is not None
        and not match.is_side_request
        and context.count.total is not None
        and not context.has_unknown_size
        and not context.is_read_only
        and not context.session.state.progress.compacts_itself
        and not is_set(get_parameters(context.original).get(_CONTEXT_MANAGEMENT))
    )


def _edit_ids(context: RequestContext) -> frozenset[str]:
    """The compactions and clearings that the request is sent with."""
    return frozenset(edit.id for edit in context.compactions if edit.outcome in _EDITS and not edit.undone_at)


def _request_tokens(context: RequestContext) -> int:
    assert context.count.total is not None
    return context.count.reported_tokens or context.count.total.tokens


def _preamble_tokens(context: RequestContext) -> int:
    """The tokens of the system prompt and the tools."""
    preamble = replace(context.request, messages=())
    return round(context.counter.count_request(preamble).total.tokens * context.tokens_per_raw_token)


@dataclass(frozen=True, slots=True)
class RecordProgress:
    session_states: SessionStates

    def __call__(self, exchange: Exchange) -> None:
        context, charge = exchange.context, exchange.charge
        if context is None or charge is None or not exchange.has_complete_usage:
            return
        match, usage = context.session.match, exchange.usage
        if match is None or match.is_side_request or usage is None:
            return
        agent, session_id = context.incoming.agent, context.session_id
        state = self.session_states.session(agent, session_id)
        progress = state.progress.with_response(
            requests=0 if state.progress.requests else 1 + _count_model_messages(context.original.messages),
            tokens=usage.cache.input_tokens,
            spent_dollars=float(charge.dollars or 0),
            saved_dollars=float(exchange.savings.compaction or 0),
            edits=_edit_ids(context),
        )
        self.session_states.put(agent, session_id, structs.replace(state, progress=progress))


def _count_model_messages(messages: Sequence[bytes]) -> int:
    return sum(read_role(raw) in _MODEL_ROLES for raw in messages)


class LoadActivity:
    """Loads the activity of all agents in the background: with `start`, and later every few minutes as long as
    requests arrive. So it survives restarts, and includes what other processes serve.
    """

    def __init__(
        self, store: ActivityStore, session_states: SessionStates, *, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._session_states = session_states
        self._clock = clock
        self._loaded_at = -math.inf
        self._task: asyncio.Task[None] | None = None

    def __call__(self, exchange: Exchange) -> None:
        if self._clock() - self._loaded_at >= _LOAD_ACTIVITY_SECONDS:
            self.start()

    def start(self) -> None:
        self._loaded_at = self._clock()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._load())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _load(self) -> None:
        try:
            activities = await self._store.load(ended_before=self._clock() - _SESSION_ENDED_SECONDS)
        except StoreUnavailable as error:
            _LOG.warning("activity of agents could not be loaded, forecasts go on without it: %s", error)
        else:
            self._session_states.set_activities(activities)
