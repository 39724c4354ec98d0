"""Decide when to edit the history: a change of cached bytes must pay for itself.

Editing saves tokens in the remaining requests, and costs a summary (if it compacts) and writing the rest of the
prompt again. What that costs depends on the moment. On arrival of a request whose cached prefix has expired,
everything is written anyway. After a response, or while the session is idle and the cache about to expire, a
summary reads the prompt from the cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from foveate.compaction.forecast import Forecast, FutureRequests
from foveate.compaction.staleness import ClearingReason
from foveate.cost.pricing.rates import Rate, Rates, TokenKind

MIN_CONTEXT_TOKENS = 20_000
_INSTRUCTION_TOKENS = 400
_FACTS_SHARE = 0.25
# The expected gain must exceed the cost by this share of it.
_MARGIN = 0.5
LOSS_SHARE = 0.1
"""Share of a session's cost that edits may lose, beyond what they have saved, if the session ends at once."""
# Requests between two compactions that are compared to find the cheapest cycle.
_CYCLES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Without at least this growth since the last compaction, another one could free nothing new.
_MIN_GROWTH_SHARE = 0.2


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


def read_prices(rates: Rates) -> EditPrices | None:
    """The prices of `rates`; None if input or output has no known price."""
    uncached, output = rates.by_kind.get(TokenKind.UNCACHED), rates.by_kind.get(TokenKind.OUTPUT)
    if uncached is None or output is None:
        return None
    kinds = (
        uncached,
        rates.by_kind.get(TokenKind.READ, uncached),
        rates.by_kind.get(TokenKind.WRITTEN_5M, uncached),
        output,
    )
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
    what an edit may lose if the session ends at once.
    """

    moment: Moment
    request_tokens: int
    preamble_tokens: int
    cached_tokens: int
    compaction: CompactionOption | None = None
    clearable: Sequence[ClearingOption] = ()
    last_compacted_tokens: int | None = None
    loss_budget_dollars: float = math.inf
    min_context_tokens: int = MIN_CONTEXT_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class EditPlan:
    """The edits to make now, and the dollars that decided: what they are expected to save, and to cost.

    `cleared` are indexes of the state's options.
    """

    compacts: bool = False
    cleared: tuple[int, ...] = ()
    gain_dollars: float = 0.0
    cost_dollars: float = 0.0
    expected_requests: float = 0.0

    @property
    def net_dollars(self) -> float:
        return self.gain_dollars - self.cost_dollars

    @property
    def is_empty(self) -> bool:
        return not self.compacts and not self.cleared


def plan_edits(state: EditState, forecast: Forecast, prices: EditPrices) -> EditPlan:
    """Decide which edits pay now; an empty plan if none does, or if waiting is expected to be cheaper."""
    nothing = EditPlan(expected_requests=forecast.expected_requests)
    if state.request_tokens < state.min_context_tokens:
        return nothing
    compaction = _plan_compaction(state, forecast, prices) if state.compaction is not None else nothing
    clearing = _plan_clearing(state, forecast, prices) if state.moment is Moment.ARRIVAL else nothing
    return max((nothing, compaction, clearing), key=lambda plan: plan.net_dollars)


def _plan_compaction(state: EditState, forecast: Forecast, prices: EditPrices) -> EditPlan:
    option = state.compaction
    nothing = EditPlan(expected_requests=forecast.expected_requests)
    assert option is not None
    last_tokens = state.last_compacted_tokens
    if last_tokens is not None and state.request_tokens < (1 + _MIN_GROWTH_SHARE) * last_tokens:
        return nothing
    if option.tokens_after >= state.request_tokens:
        return nothing
    costs = _CompactionCosts(state, option, forecast, prices)
    plan = EditPlan(
        compacts=True,
        gain_dollars=costs.later_gain(),
        cost_dollars=costs.summary_now + costs.rewriting(),
        expected_requests=forecast.expected_requests,
    )
    if not _pays(plan, state) or costs.compact_now() > costs.wait():
        return nothing
    return plan


def _pays(plan: EditPlan, state: EditState) -> bool:
    return plan.net_dollars > _MARGIN * plan.cost_dollars and plan.cost_dollars <= state.loss_budget_dollars


class _CompactionCosts:
    """Expected dollars of a compaction now, of one later, and of none."""

    def __init__(
        self, state: EditState, option: CompactionOption, forecast: Forecast, prices: EditPrices
    ) -> None:
        self._state = state
        self._option = option
        self._forecast = forecast
        self._prices = prices
        self._is_arrival = state.moment is Moment.ARRIVAL
        self._growth = forecast.growth_tokens
        self.summary_now = prices.summary(state.request_tokens, state.cached_tokens, option.summary_tokens)

    def rewriting(self) -> float:
        """The price of writing what follows the preamble again instead of reading it."""
        before, after = self._next_request()
        steady_before = self._steady(self._state.request_tokens, self._next_group())
        steady_after = self._steady(self._option.tokens_after, self._next_group())
        return after - before - self._weight_now() * (steady_after - steady_before)

    def later_gain(self) -> float:
        """What the remaining requests save, up to one that finds the cache expired: then editing is cheaper."""
        state, option = self._state, self._option
        groups = self._forecast.requests
        steady = self._next_group()
        gain = self._weight_now() * (
            self._steady(state.request_tokens, steady) - self._steady(option.tokens_after, steady)
        )
        warm_probability = 1.0 if steady is None else 1 - steady.cold_share
        for group in groups if self._is_arrival else groups[1:]:
            saved = self._request(state.request_tokens, group) - self._request(option.tokens_after, group)
            gain += warm_probability * group.expected * saved
            warm_probability *= (1 - group.cold_share) ** group.expected
        return gain

    def compact_now(self) -> float:
        """The cost up to the next request of compacting now, and of the cycle that begins."""
        weight = self._weight_now()
        _, after = self._next_request()
        extra = after - weight * self._steady(self._option.tokens_after, self._next_group())
        return self.summary_now + extra + weight * self._cycle_cost()

    def wait(self) -> float:
        """The cost up to the next request without an edit, and of the compaction that follows."""
        before, _ = self._next_request()
        later = before + self._weight(0 if self._is_arrival else 1) * self._warm_cost()
        if self._state.moment is not Moment.EXPIRY:
            return later
        # It can also be compacted when the next request arrives.
        option, tokens = self._option, self._state.request_tokens + self._growth
        cold = self._prices.summary(tokens, 0, option.summary_tokens) + self._cycle_cost()
        cold += self._prices.request(option.tokens_after, 0) - self._steady(option.tokens_after, None)
        return min(later, self._weight(0) * cold)

    def _weight_now(self) -> float:
        """The probability of the request that an edit changes first: the current or the next one."""
        return 1.0 if self._is_arrival else self._weight(0)

    def _weight(self, group: int) -> float:
        groups = self._forecast.requests
        return min(groups[group].expected, 1.0) if group < len(groups) else 0.0

    def _next_group(self) -> FutureRequests | None:
        """The next request's group; None on arrival, when it is the current one."""
        groups = self._forecast.requests
        return groups[0] if groups and not self._is_arrival else None

    def _next_request(self) -> tuple[float, float]:
        """The expected price of the next request, without and with the compaction."""
        state, option = self._state, self._option
        if self._is_arrival:
            return (
                self._prices.request(state.request_tokens, state.cached_tokens),
                self._prices.request(option.tokens_after, min(state.cached_tokens, state.preamble_tokens)),
            )
        group = self._forecast.requests[0] if self._forecast.requests else None
        if group is None:
            return 0.0, 0.0
        prices = []
        for tokens, cached in (
            (state.request_tokens, state.request_tokens),
            (option.tokens_after, state.preamble_tokens),
        ):
            size = tokens + group.grown_tokens
            warm, cold = self._prices.request(size, cached), self._prices.request(size, 0)
            prices.append(group.expected * ((1 - group.cold_share) * warm + group.cold_share * cold))
        return prices[0], prices[1]

    def _steady(self, tokens: float, group: FutureRequests | None) -> float:
        """The price of a request of this size whose prefix was sent before."""
        if group is None:
            return self._prices.request(tokens, tokens)
        return self._request(tokens, group)

    def _request(self, tokens: float, group: FutureRequests) -> float:
        size = tokens + group.grown_tokens
        warm = self._prices.request(size, size - self._growth)
        return (1 - group.cold_share) * warm + group.cold_share * self._prices.request(size, 0)

    def _warm_cost(self) -> float:
        """The price of a compaction after the next response."""
        state, option = self._state, self._option
        tokens = state.request_tokens + self._growth
        rewritten = self._prices.request(option.tokens_after, state.preamble_tokens) - self._prices.request(
            option.tokens_after, option.tokens_after
        )
        return self._prices.summary(tokens, tokens, option.summary_tokens) + rewritten

    def _cycle_cost(self) -> float:
        """The average price of a request if the history is compacted at the best intervals."""
        option, state, growth = self._option, self._state, self._growth
        cold_share = self._forecast.requests[-1].cold_share if self._forecast.requests else 0.0
        rewritten = self._prices.request(option.tokens_after, state.preamble_tokens) - self._prices.request(
            option.tokens_after, option.tokens_after
        )
        costs = []
        for requests in _CYCLES:
            largest = option.tokens_after + requests * growth
            middle = FutureRequests(expected=1.0, grown_tokens=requests * growth / 2, cold_share=cold_share)
            summary = self._prices.summary(largest, largest, option.summary_tokens)
            costs.append((summary + rewritten) / requests + self._request(option.tokens_after, middle))
        return min(costs)


def _plan_clearing(state: EditState, forecast: Forecast, prices: EditPrices) -> EditPlan:
    """The best number of clearable results, counted from the end of the request.

    Nothing after the preamble is assumed to be read again: the entries before an edit are out of reach of the
    breakpoints at the end of the request.
    """
    best = EditPlan(expected_requests=forecast.expected_requests)
    unedited = prices.request(state.request_tokens, state.cached_tokens)
    cached_tokens = min(state.cached_tokens, state.preamble_tokens)
    saved, refetches = 0, 0.0
    cleared: list[int] = []
    for index in range(len(state.clearable) - 1, -1, -1):
        option = state.clearable[index]
        saved += option.saved_tokens
        refetches += option.refetch_probability * prices.request(
            state.request_tokens + option.saved_tokens, state.request_tokens
        )
        cleared.append(index)
        tokens = state.request_tokens - saved
        if tokens < state.min_context_tokens:
            break
        now = prices.request(tokens, cached_tokens)
        gain = _clearing_gain(state.request_tokens, tokens, forecast, prices)
        plan = EditPlan(
            cleared=tuple(cleared),
            gain_dollars=gain + max(unedited - now, 0.0),
            cost_dollars=max(now - unedited, 0.0) + refetches,
            expected_requests=forecast.expected_requests,
        )
        if plan.net_dollars > best.net_dollars and _pays(plan, state):
            best = plan
    return best


def _clearing_gain(tokens_before: int, tokens_after: int, forecast: Forecast, prices: EditPrices) -> float:
    """What requests save until one finds the cache expired: from then on, clearing would cost nothing."""
    gain, warm_probability = 0.0, 1.0
    for group in forecast.requests:
        saved = _later_price(tokens_before, group, forecast, prices) - _later_price(
            tokens_after, group, forecast, prices
        )
        gain += warm_probability * group.expected * saved
        warm_probability *= (1 - group.cold_share) ** group.expected
    return gain


def _later_price(tokens: float, group: FutureRequests, forecast: Forecast, prices: EditPrices) -> float:
    size = tokens + group.grown_tokens
    warm = prices.request(size, size - forecast.growth_tokens)
    return (1 - group.cold_share) * warm + group.cold_share * prices.request(size, 0)
