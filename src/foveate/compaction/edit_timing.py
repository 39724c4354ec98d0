"""Decide when to edit the history: a change of cached bytes must pay for itself.

Editing saves tokens in the remaining requests, and costs a summary (if it compacts) and writing the rest of the
prompt again. What that costs depends on the moment. On arrival of a request whose cached prefix has expired,
everything is written anyway. After a response, or while the session is idle and the cache about to expire, a
summary reads the prompt from the cache.

Text that was added to injected sections can wait at the end of the request for a cheap moment. The order of
tools is not decided here: restoring it (`prompt_cache.stable_order`) leaves cached bytes as they are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from foveate.compaction.forecast import Forecast, FutureRequests
from foveate.compaction.staleness import ClearingReason
from foveate.compaction.store import EditDecision
from foveate.cost.pricing.rates import Rate, Rates, TokenKind
from foveate.model import Ttl

MIN_CONTEXT_TOKENS = 20_000
_INSTRUCTION_TOKENS = 400
_FACTS_SHARE = 0.25
# Of the choices with which no recorded session, wherever it had ended, would have cost 7% more than without
# edits, these are the cheapest, whichever source of sessions is left out (November 2026).
# The expected gain must exceed the cost by this share of it.
_MARGIN = 0.05
# Edits may lose this share of a session's cost, reached after so many requests: long sessions go on longer.
_MAX_LOSS_SHARE = 0.1
_MAX_LOSS_REQUESTS = 80
# Without at least this growth since the last compaction, another one could free nothing new.
_MIN_GROWTH_SHARE = 0.3
# Tool results in a warm cache are judged again after the request has grown by this share, or by this one if it
# is above a price step: judging reads all of them.
_JUDGED_GROWTH_SHARE = 0.1
_JUDGED_GROWTH_SHARE_ABOVE_STEP = 0.02


REFETCH_PROBABILITIES = {ClearingReason.SUPERSEDED: 0.01, ClearingReason.STALE: 0.05}
"""How often a model gets a cleared result again."""


class Moment(StrEnum):
    ARRIVAL = "arrival"  # before a request is sent, which waits
    RESPONSE = "response"  # after its response, in the background
    EXPIRY = "expiry"  # the session is idle, and its cache entries are about to expire


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrices:
    """Dollars per token for requests of up to some size."""

    uncached: float
    read: float
    write: float
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EditPrices:
    """The prices of a model; `tiers` are those for requests above some size, smallest first.

    `summarizer` are those of another model that writes the summaries, without anything in its cache.
    """

    base: TokenPrices
    tiers: tuple[tuple[int, TokenPrices], ...] = ()
    summarizer: "EditPrices | None" = None

    def at(self, request_tokens: float) -> TokenPrices:
        prices = self.base
        for over_tokens, tier in self.tiers:
            if request_tokens > over_tokens:
                prices = tier
        return prices

    def request(self, tokens: float, cached_tokens: float) -> float:
        """The price of the input of a request, of which the first `cached_tokens` are read."""
        prices, read = self.at(tokens), min(cached_tokens, tokens)
        return prices.read * read + prices.write * (tokens - read)

    def summary(self, tokens: float, cached_tokens: float, summary_tokens: float) -> float:
        """The price of a summary of a request. It writes nothing to the cache."""
        if self.summarizer is not None:
            return self.summarizer.summary(tokens, 0, summary_tokens)
        prices = self.at(tokens)
        instruction = _INSTRUCTION_TOKENS + _FACTS_SHARE * summary_tokens
        read = min(cached_tokens, tokens)
        return (
            prices.read * read
            + prices.uncached * (tokens - read + instruction)
            + prices.output * summary_tokens
        )


def read_prices(rates: Rates, ttl: Ttl = Ttl.FIVE_MINUTES) -> EditPrices | None:
    """The prices of `rates` if entries are written with `ttl`; None if input or output has no known price."""
    uncached, output = rates.by_kind.get(TokenKind.UNCACHED), rates.by_kind.get(TokenKind.OUTPUT)
    if uncached is None or output is None:
        return None
    written = rates.by_kind.get(TokenKind.WRITTEN_5M, uncached)
    if ttl is Ttl.ONE_HOUR:
        written = rates.by_kind.get(TokenKind.WRITTEN_1H, written)
    kinds = (uncached, rates.by_kind.get(TokenKind.READ, uncached), written, output)
    sizes = sorted({tier.over_tokens for rate in kinds for tier in rate.tiers})
    return EditPrices(
        base=_prices_at(kinds, 0), tiers=tuple((size, _prices_at(kinds, size + 1)) for size in sizes)
    )


def _prices_at(kinds: Sequence[Rate], tokens: int) -> TokenPrices:
    uncached, read, write, output = (float(rate.at(tokens)) for rate in kinds)
    return TokenPrices(uncached=uncached, read=read, write=write, output=output)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOption:
    """A possible compaction: the size of the same request after it, and of the summary."""

    tokens_after: int
    summary_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearingOption:
    """A result that can be cleared: the tokens that it frees, and how likely the model gets it again."""

    saved_tokens: int
    refetch_probability: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EditState:
    """A session at some moment: the size of its request, and how much of it the cache holds.

    No edit changes the first `preamble_tokens`. `clearable` are in the order of the request.
    `last_compacted_tokens` is the size after the last compaction, if there was one. `loss_budget_dollars` is
    what an edit may lose if the session ends at once. `added_section_tokens` were added to the injected
    sections before the history since it was cached.
    """

    moment: Moment
    request_tokens: int
    preamble_tokens: int
    cached_tokens: int
    compaction: CompactionOption | None = None
    clearable: Sequence[ClearingOption] = ()
    added_section_tokens: int = 0
    last_compacted_tokens: int | None = None
    loss_budget_dollars: float = math.inf
    min_context_tokens: int = MIN_CONTEXT_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledEdits:
    """The edits to make now, and the dollars that decided: what they are expected to save, and to cost.

    `cleared` are indexes of the state's options. `moves_sections`: what was added to sections goes before the
    history; until then each request ends with it. Each later request whose cache is warm then saves
    `saved_per_request_dollars`.
    """

    compacts: bool = False
    cleared: tuple[int, ...] = ()
    moves_sections: bool = False
    gain_dollars: float = 0.0
    cost_dollars: float = 0.0
    expected_requests: float = 0.0
    saved_per_request_dollars: float = 0.0

    @property
    def net_dollars(self) -> float:
        return self.gain_dollars - self.cost_dollars

    @property
    def is_empty(self) -> bool:
        return not (self.compacts or self.cleared or self.moves_sections)


def is_judgement_due(tokens: int, judged_tokens: int, prices: EditPrices) -> bool:
    """Return whether tool results in a warm cache are judged again; they were last when the request had
    `judged_tokens`.
    """
    if prices.at(tokens) != prices.at(judged_tokens):
        return True
    is_above_step = prices.at(tokens) != prices.base
    growth = _JUDGED_GROWTH_SHARE_ABOVE_STEP if is_above_step else _JUDGED_GROWTH_SHARE
    return not judged_tokens <= tokens < (1 + growth) * judged_tokens


def make_decision(plan: ScheduledEdits, moment: Moment, forecast: Forecast) -> EditDecision:
    return EditDecision(
        moment=moment,
        gain_dollars=plan.gain_dollars,
        cost_dollars=plan.cost_dollars,
        expected_requests=plan.expected_requests,
        growth_tokens=forecast.growth_tokens,
        saved_per_request_dollars=plan.saved_per_request_dollars,
    )


def loss_budget_dollars(requests: int, *, spent_dollars: float, saved_dollars: float) -> float:
    """What an edit may lose if the session ends at once. `saved_dollars` is what earlier edits have saved."""
    return _MAX_LOSS_SHARE * min(requests / _MAX_LOSS_REQUESTS, 1.0) * spent_dollars + saved_dollars


def plan_edits(state: EditState, forecast: Forecast, prices: EditPrices) -> ScheduledEdits:
    """Decide which edits pay now; an empty plan if none does.

    Added sections are decided about alone, after edits of the history, whatever its size.
    """
    if state.added_section_tokens:
        return _plan_sections(state, forecast, prices)
    nothing = ScheduledEdits(expected_requests=forecast.expected_requests)
    if state.request_tokens < state.min_context_tokens:
        return nothing
    compaction = _plan_compaction(state, forecast, prices) if state.compaction is not None else nothing
    clearing = _plan_clearing(state, forecast, prices) if state.moment is Moment.ARRIVAL else nothing
    return max((nothing, compaction, clearing), key=lambda plan: plan.net_dollars)


def _plan_compaction(state: EditState, forecast: Forecast, prices: EditPrices) -> ScheduledEdits:
    option = state.compaction
    nothing = ScheduledEdits(expected_requests=forecast.expected_requests)
    assert option is not None
    last_tokens = state.last_compacted_tokens
    if last_tokens is not None and state.request_tokens < (1 + _MIN_GROWTH_SHARE) * last_tokens:
        return nothing
    if option.tokens_after >= state.request_tokens:
        return nothing
    before, after = _next_request_prices(state, option, forecast, prices)
    summary = prices.summary(state.request_tokens, state.cached_tokens, option.summary_tokens)
    saved = before - after
    if state.moment is Moment.ARRIVAL:  # this request is certain, so what it saves pays for the summary
        saved, summary = max(saved - summary, 0.0), max(summary - saved, 0.0)
    plan = ScheduledEdits(
        compacts=True,
        gain_dollars=max(saved, 0.0) + _later_gain(state, option.tokens_after, forecast, prices),
        cost_dollars=max(-saved, 0.0) + summary,
        expected_requests=forecast.expected_requests,
    )
    return plan if _pays(plan, state, loss_dollars=plan.cost_dollars) else nothing


def _pays(plan: ScheduledEdits, state: EditState, *, loss_dollars: float) -> bool:
    """Return whether the gain is large enough, and not too much is lost if the session ends at once."""
    return plan.net_dollars > _MARGIN * plan.cost_dollars and loss_dollars <= state.loss_budget_dollars


def _next_request_prices(
    state: EditState, option: CompactionOption, forecast: Forecast, prices: EditPrices
) -> tuple[float, float]:
    """The expected price of the first request that a compaction changes, without and with it."""
    if state.moment is Moment.ARRIVAL:
        return (
            prices.request(state.request_tokens, state.cached_tokens),
            prices.request(option.tokens_after, min(state.cached_tokens, state.preamble_tokens)),
        )
    if not forecast.requests:
        return 0.0, 0.0
    group = forecast.requests[0]

    def price(tokens: float, cached_tokens: float) -> float:
        size = tokens + group.grown_tokens
        warm, cold = prices.request(size, cached_tokens), prices.request(size, 0)
        return group.expected * ((1 - group.cold_share) * warm + group.cold_share * cold)

    return price(state.request_tokens, state.request_tokens), price(option.tokens_after, state.preamble_tokens)


def _plan_clearing(state: EditState, forecast: Forecast, prices: EditPrices) -> ScheduledEdits:
    """The best number of clearable results, beginning with those that are least likely to be needed again, for
    their size.

    Nothing after the preamble is assumed to be read again: the entries before an edit are out of reach of the
    breakpoints at the end of the request.
    """
    best = ScheduledEdits(expected_requests=forecast.expected_requests)
    unedited = prices.request(state.request_tokens, state.cached_tokens)
    cached_tokens = min(state.cached_tokens, state.preamble_tokens)
    is_warm = state.cached_tokens > state.preamble_tokens
    saved, refetches = 0, 0.0
    cleared: list[int] = []
    last_first = reversed(list(enumerate(state.clearable)))
    for index, option in sorted(
        last_first, key=lambda item: item[1].refetch_probability / item[1].saved_tokens
    ):
        saved += option.saved_tokens
        refetches += option.refetch_probability * prices.request(
            state.request_tokens + option.saved_tokens, state.request_tokens
        )
        cleared.append(index)
        tokens = state.request_tokens - saved
        if tokens < state.min_context_tokens:
            break
        now = prices.request(tokens, cached_tokens)
        gain = _later_gain(state, tokens, forecast, prices)
        plan = ScheduledEdits(
            cleared=tuple(sorted(cleared)),
            gain_dollars=gain + max(unedited - now, 0.0),
            cost_dollars=max(now - unedited, 0.0) + refetches,
            expected_requests=forecast.expected_requests,
        )
        loss = plan.cost_dollars if now > unedited else 0.0
        if is_warm and not _is_worth_writing(saved, now - unedited, state, forecast, prices):
            continue
        if plan.net_dollars > best.net_dollars and _pays(plan, state, loss_dollars=loss):
            best = plan
    return best


def _is_worth_writing(
    saved_tokens: int, cost_dollars: float, state: EditState, forecast: Forecast, prices: EditPrices
) -> bool:
    """Return whether reading what is cleared has cost as much as writing the rest again will.

    A later clearing frees more at the same cost. Of all rhythms, this costs least in a session that grows
    evenly, however long it is (the economic order quantity): about half of what is added becomes clearable, and
    is then read, on average, in half of the requests until the next clearing.
    """
    requests = saved_tokens / forecast.growth_tokens if forecast.growth_tokens else math.inf
    read = prices.request(state.request_tokens, state.request_tokens)
    saved = read - prices.request(state.request_tokens - saved_tokens, state.request_tokens - saved_tokens)
    return saved * requests >= cost_dollars


def _plan_sections(state: EditState, forecast: Forecast, prices: EditPrices) -> ScheduledEdits:
    """Decide whether to move added text before the history, which is then written again, or to go on sending it
    at the end, where it is never cached.

    Once the history is not cached, because that has expired or was edited, the text always moves.
    """
    added_tokens = state.added_section_tokens
    tokens = state.request_tokens + added_tokens
    current, cached_tokens = prices.at(tokens), min(state.cached_tokens, state.request_tokens)
    not_written = added_tokens * (current.uncached - current.write)
    at_end = prices.request(tokens, cached_tokens) + not_written
    moved = prices.request(tokens, min(cached_tokens, state.preamble_tokens))
    gain, warm_probability = max(at_end - moved, 0.0), 1.0
    for group in forecast.requests:
        later = prices.at(tokens + group.grown_tokens)
        warm_requests = warm_probability * group.expected * (1 - group.cold_share)
        gain += warm_requests * added_tokens * (later.uncached - later.read)
        warm_probability *= (1 - group.cold_share) ** group.expected
    plan = ScheduledEdits(
        moves_sections=True,
        gain_dollars=gain,
        cost_dollars=max(moved - at_end, 0.0),
        expected_requests=forecast.expected_requests,
        saved_per_request_dollars=added_tokens * (current.uncached - current.read),
    )
    is_history_cached = state.cached_tokens > state.preamble_tokens
    return replace(
        plan, moves_sections=not is_history_cached or _pays(plan, state, loss_dollars=plan.cost_dollars)
    )


def _later_gain(state: EditState, tokens_after: int, forecast: Forecast, prices: EditPrices) -> float:
    """What requests save after the first one that an edit changes, up to one that finds the cache expired: from
    then on, editing would cost less.
    """
    groups, warm_probability = forecast.requests, 1.0
    if state.moment is not Moment.ARRIVAL and groups:
        warm_probability, groups = 1 - groups[0].cold_share, groups[1:]
    gain = 0.0
    for group in groups:
        saved = _later_price(state.request_tokens, group, forecast, prices) - _later_price(
            tokens_after, group, forecast, prices
        )
        gain += warm_probability * group.expected * saved
        warm_probability *= (1 - group.cold_share) ** group.expected
    return gain


def _later_price(tokens: float, group: FutureRequests, forecast: Forecast, prices: EditPrices) -> float:
    size = tokens + group.grown_tokens
    warm = prices.request(size, size - forecast.growth_tokens)
    return (1 - group.cold_share) * warm + group.cold_share * prices.request(size, 0)
