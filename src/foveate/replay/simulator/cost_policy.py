"""Edit a recorded history when it is expected to pay, as the gateway does with `compaction.trigger: cost`."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from foveate.compaction.edit_timing import (
    MIN_CONTEXT_TOKENS,
    REFETCH_PROBABILITIES,
    ClearingOption,
    CompactionOption,
    EditPrices,
    EditState,
    Moment,
    is_judgement_due,
    loss_budget_dollars,
    make_decision,
    plan_edits,
    read_prices,
)
from foveate.compaction.forecast import (
    ActivityPrior,
    Forecast,
    SessionActivity,
    estimate_cold_share,
    forecast_requests,
)
from foveate.compaction.plan import estimate_compaction, paying_threshold_tokens
from foveate.compaction.staleness import find_clearable_results
from foveate.cost.pricing.rates import Rates
from foveate.engine.options import AgentOptions, Clearing
from foveate.engine.session_state import is_compacted_by_client
from foveate.model import Message, Thinking, Ttl
from foveate.prompt_cache.placement.arrival_times import forecast_next_request
from foveate.replay.recording import RecordedMessage
from foveate.replay.simulator.editing_run import (
    NO_EDITS,
    ClearedResult,
    EditingMoment,
    EditPolicy,
    HistoryEdits,
    WindowTrigger,
)
from foveate.replay.simulator.history_edits import SimulatedCompaction
from foveate.replay.simulator.reconstruct import ReconstructedCall

# JSON, paths and names have fewer characters per token than prose.
_CHARS_PER_TOKEN = 3
_TOOL_CALL = b'"tool_use"'
FindRates = Callable[[ReconstructedCall], Rates | None]
ForecastFuture = Callable[[EditingMoment, SessionActivity, Ttl | None], Forecast]


@dataclass(slots=True)
class _Session:
    """A conversation so far. `saved_dollars` is what edits have saved, less what they cost. `ttl` is that of
    its last longest entry. `compacts_itself`: the client has replaced its history by something shorter.
    """

    requests: int = 0
    last_message: RecordedMessage | None = None
    compacts_itself: bool = False
    ttl: Ttl | None = None
    last_tokens: int = 0
    grown_tokens: int = 0
    compacted_tokens: int | None = None
    judged_tokens: int = 0  # when the results were last judged
    spent_dollars: float = 0.0
    saved_dollars: float = 0.0

    def add_request(self, moment: EditingMoment, cached_tokens: int, prices: EditPrices) -> None:
        self.requests = moment.requests
        message = moment.unedited.call.last_message
        self.compacts_itself |= self.last_message is not None and _replaces_history(self.last_message, message)
        self.last_message = message
        tokens, unedited = moment.call.input_tokens, moment.unedited.input_tokens
        self.grown_tokens += max(unedited - self.last_tokens, 0) if self.last_tokens else 0
        self.last_tokens = unedited
        self.spent_dollars += prices.request(tokens, cached_tokens)
        is_warm = cached_tokens > moment.call.preamble.tokens
        self.saved_dollars += prices.request(unedited, unedited if is_warm else 0) - prices.request(
            tokens, tokens if is_warm else 0
        )


def _replaces_history(last: RecordedMessage, new: RecordedMessage) -> bool:
    if new.depth >= last.depth:
        return False
    earlier = {id(message) for message in last.history()}
    known = sum(id(message) in earlier for message in new.history())
    return is_compacted_by_client(last.depth + 1, new.depth + 1, known)


def forecast_from_prior(
    moment: EditingMoment, session: SessionActivity, ttl: Ttl | None, prior: ActivityPrior | None = None
) -> Forecast:
    return forecast_requests(
        session,
        cold_share=estimate_cold_share(forecast_next_request(moment.gaps), ttl),
        is_idle=moment.moment is Moment.EXPIRY,
        prior=prior,
    )


class CostTrigger:
    """Edits when the expected saving exceeds the cost; the window's limit holds too.

    Without `compacts_early`, only that limit decides about compactions. With `clears_cold_only`, results are
    cleared only if the cache has expired. Without `limits_losses`, edits may lose any amount.
    """

    def __init__(
        self,
        find_rates: FindRates,
        *,
        compacts: bool = True,
        compacts_early: bool = True,
        clears: bool = True,
        clears_cold_only: bool = False,
        limits_losses: bool = True,
        forecast: ForecastFuture = forecast_from_prior,
    ) -> None:
        self._find_rates = find_rates
        self._compacts = compacts
        self._compacts_early = compacts and compacts_early
        self._clears = clears
        self._clears_cold_only = clears_cold_only
        self._limits_losses = limits_losses
        self._forecast = forecast
        self._window = WindowTrigger()
        self._sessions: dict[str, _Session] = {}

    def decide(self, moment: EditingMoment) -> HistoryEdits:
        session = self._sessions.setdefault(moment.call.call.conversation, _Session())
        entry = moment.longest_entry()
        if entry is not None:
            session.ttl = entry.ttl
        elif session.ttl is None:
            session.ttl = next(iter(moment.call.rules.ttls), None)
        rates = self._find_rates(moment.call)
        prices = read_prices(rates, session.ttl or Ttl.FIVE_MINUTES) if rates is not None else None
        if prices is None:
            return self._window.decide(moment) if self._compacts else NO_EDITS
        cached_tokens = entry.tokens if entry is not None else 0
        if moment.moment is Moment.ARRIVAL:
            if moment.requests > session.requests:  # asked again after a compaction
                session.add_request(moment, cached_tokens, prices)
        elif moment.moment is Moment.RESPONSE:
            tokens, output_tokens = moment.call.input_tokens, moment.call.output_tokens
            session.spent_dollars += prices.at(tokens).output * output_tokens
        if self._compacts:
            by_window = self._window.decide(moment)
            if by_window.compaction is not None:
                option = _compaction_option(moment, by_window.compaction)
                session.compacted_tokens = option.tokens_after if option is not None else None
                return by_window
        if session.compacts_itself:
            return NO_EDITS
        activity = SessionActivity(
            requests=moment.requests,
            grown_tokens=session.grown_tokens,
            calls_tool=moment.moment is Moment.ARRIVAL or _TOOL_CALL in moment.unedited.call.response,
        )
        return self._plan(moment, session, cached_tokens, self._forecast(moment, activity, session.ttl), prices)

    def _plan(
        self,
        moment: EditingMoment,
        session: _Session,
        cached_tokens: int,
        forecast: Forecast,
        prices: EditPrices,
    ) -> HistoryEdits:
        results = self._judge_results(moment, session, cached_tokens, prices) if self._clears else []
        may_compact = (
            self._compacts_early
            and _has_cooled_down(moment)
            and _may_compact_now(moment, cached_tokens, prices)
        )
        state = EditState(
            moment=moment.moment,
            request_tokens=moment.call.input_tokens,
            preamble_tokens=moment.call.preamble.tokens,
            cached_tokens=cached_tokens,
            last_compacted_tokens=session.compacted_tokens,
            loss_budget_dollars=loss_budget_dollars(
                moment.requests, spent_dollars=session.spent_dollars, saved_dollars=session.saved_dollars
            )
            if self._limits_losses
            else math.inf,
            compaction=estimate_compaction(
                moment.call.input_tokens, moment.call.preamble.tokens, moment.options
            )
            if may_compact
            else None,
            clearable=[option for _, option in results],
        )
        plan = plan_edits(state, forecast, prices)
        keep_alive_dollars = moment.keep_alive_tokens * prices.at(moment.call.input_tokens).uncached
        if keep_alive_dollars and keep_alive_dollars > plan.net_dollars:
            return NO_EDITS
        compaction = None
        if plan.compacts:
            compaction = moment.plan_compaction(
                paying_threshold_tokens(moment.call.input_tokens, moment.options)
            )
            option = _compaction_option(moment, compaction) if compaction is not None else None
            plan = plan_edits(replace(state, compaction=option), forecast, prices)
            if plan.compacts and option is not None:
                session.compacted_tokens = option.tokens_after
        session.saved_dollars -= plan.cost_dollars
        if plan.is_empty:
            return NO_EDITS
        decision = make_decision(plan, moment.moment, forecast)
        if plan.compacts:
            return HistoryEdits(compaction, decision=decision)
        return HistoryEdits(cleared=tuple(results[index][0] for index in plan.cleared), decision=decision)

    def _judge_results(
        self, moment: EditingMoment, session: _Session, cached_tokens: int, prices: EditPrices
    ) -> list[tuple[ClearedResult, ClearingOption]]:
        tokens = moment.call.input_tokens
        is_warm = cached_tokens > moment.call.preamble.tokens
        if moment.moment is not Moment.ARRIVAL or tokens < MIN_CONTEXT_TOKENS:
            return []
        if is_warm and (self._clears_cold_only or not is_judgement_due(tokens, session.judged_tokens, prices)):
            return []
        session.judged_tokens = tokens
        return _find_clearable(moment)


def make_edit_policy(options: AgentOptions, find_rates: FindRates) -> EditPolicy:
    if not options.clears and not options.compacts_by_cost:
        return WindowTrigger()
    return CostTrigger(
        find_rates,
        compacts=options.compacts,
        compacts_early=options.compacts_by_cost,
        clears=options.clears,
        clears_cold_only=options.clearing is Clearing.COLD,
    )


def _may_compact_now(moment: EditingMoment, cached_tokens: int, prices: EditPrices) -> bool:
    """A request waits for a compaction only if its cache has expired, or if its size raises its prices."""
    if moment.moment is not Moment.ARRIVAL or cached_tokens <= moment.call.preamble.tokens:
        return True
    tokens, preamble_tokens = moment.call.input_tokens, moment.call.preamble.tokens
    after = estimate_compaction(tokens, preamble_tokens, moment.options).tokens_after
    return prices.at(after) != prices.at(tokens)


def _has_cooled_down(moment: EditingMoment) -> bool:
    responses = moment.responses_since_compaction
    return responses is None or responses >= moment.options.min_turns_between


def _compaction_option(moment: EditingMoment, compaction: SimulatedCompaction) -> CompactionOption | None:
    after = compaction.apply(moment.history)
    if after is None:
        return None
    return CompactionOption(
        tokens_after=moment.call.preamble.tokens + after.end_tokens, summary_tokens=compaction.summary_tokens
    )


def _has_thinking(messages: Sequence[Message]) -> bool:
    return any(isinstance(part, Thinking) for message in messages for part in message.parts)


def _find_clearable(moment: EditingMoment) -> list[tuple[ClearedResult, ClearingOption]]:
    results = {id(result.part): result for result in moment.results()}
    if not results:
        return []
    messages = [moment.reader.read(node) for node in moment.call.last_node.path()]
    if moment.call.rules.binds_thinking and _has_thinking(messages):
        return []
    options = []
    for clearable in find_clearable_results(messages):
        result = results.get(id(messages[clearable.message].parts[clearable.part]))
        if result is None:
            continue
        placeholder_tokens = len(clearable.placeholder) // _CHARS_PER_TOKEN
        if result.tokens > placeholder_tokens:
            option = ClearingOption(
                saved_tokens=result.tokens - placeholder_tokens,
                refetch_probability=REFETCH_PROBABILITIES[clearable.reason],
            )
            options.append((ClearedResult(result, placeholder_tokens), option))
    return options
