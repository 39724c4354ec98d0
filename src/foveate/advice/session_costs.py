"""The cost of one recorded session: its charges, where they come from, and simulated configurations."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import NamedTuple

from foveate.advice.cost_breakdown import (
    ContextCosts,
    CostBreakdown,
    MissCosts,
    input_rates,
    output_dollars,
    price_step_excess,
)
from foveate.compaction.tool_results import TOOL_RESULT_MAX_PCT
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import EXACT, ZERO
from foveate.engine.options import AgentOptions
from foveate.model import CacheUsage, Usage
from foveate.replay.outcomes import CallRates, CallRatesCache, CostSum
from foveate.replay.recording import RecordedCall, Recording, RecordingSource
from foveate.replay.run import drop_unpriced_tiers, infer_hidden_tokens
from foveate.replay.simulator.editing_run import context_window_tokens
from foveate.replay.simulator.history_edits import ResultTruncation
from foveate.replay.simulator.policy_runs import GatewayRun, start_gateway_runs
from foveate.replay.simulator.prompts import rules_at
from foveate.replay.simulator.reconstruct import ReconstructedCall, reconstruct_calls


class Period(NamedTuple):
    """The ends are seconds since 1970. A call without a time is in every period."""

    since: float
    until: float

    def contains(self, at: float) -> bool:
        return not at or self.since <= at <= self.until


class CallCharge(NamedTuple):
    """What one recorded call cost; `dollars` is None if its price is unknown.

    `other` is what is not charged by input and output tokens, such as searches. `is_estimated`: the recording
    has no usage, and the tokens were counted.
    """

    id: str
    model: str
    at: float
    dollars: Decimal | None
    uncached: Decimal = ZERO
    read: Decimal = ZERO
    written: Decimal = ZERO
    output: Decimal = ZERO
    other: Decimal = ZERO
    is_estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingCharges:
    name: str
    source: RecordingSource
    charges: tuple[CallCharge, ...]
    unreadable_lines: int = 0


def charge_recording(recording: Recording, book: PriceBook, period: Period) -> RecordingCharges:
    recent = prepare_recording(recording, book, period)
    usages = [call.usage for call in recent.calls]
    if None in usages:
        usages = [
            call.usage
            if call.usage is not None
            else Usage(cache=reconstructed.recorded, output_tokens=reconstructed.output_tokens)
            for call, reconstructed in zip(recent.calls, reconstruct_calls(recent), strict=True)
        ]
    return RecordingCharges(
        name=recording.name,
        source=recording.source,
        charges=tuple(
            _charge_call(call, usage, book)
            for call, usage in zip(recent.calls, usages, strict=True)
            if usage is not None
        ),
        unreadable_lines=len(recording.unreadable),
    )


def prepare_recording(
    recording: Recording, book: PriceBook, period: Period, *, excluded: Collection[str] = ()
) -> Recording:
    """The recording with the calls of this period, without the `excluded` ones."""
    calls = [call for call in recording.calls if period.contains(call.at) and call.id not in excluded]
    if len(calls) < len(recording.calls):
        recording = replace(recording, calls=tuple(calls))
    return infer_hidden_tokens(drop_unpriced_tiers(recording, book), book)


def _charge_call(call: RecordedCall, usage: Usage, book: PriceBook) -> CallCharge:
    price = book.price(call.model, usage, provider=rules_at(call.model, call.at).provider, at=call.at)
    if price is None:
        return CallCharge(call.id, call.model, call.at, None, is_estimated=call.usage is None)
    written = EXACT.add(price.written_5m, price.written_1h)
    output = price.output_dollars
    by_cache = EXACT.add(EXACT.add(price.uncached, price.read), EXACT.add(written, output))
    return CallCharge(
        id=call.id,
        model=call.model,
        at=call.at,
        dollars=price.dollars,
        uncached=price.uncached,
        read=price.read,
        written=written,
        output=output,
        other=EXACT.subtract(price.dollars, by_cache),
        is_estimated=call.usage is None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCost:
    """The cost of calls under a configuration. Of it, `own_dollars` are for compactions and keep-alives."""

    dollars: Decimal = ZERO
    own_dollars: Decimal = ZERO
    compactions: int = 0
    keep_alives: int = 0

    def plus(self, other: "SimulatedCost") -> "SimulatedCost":
        return SimulatedCost(
            dollars=EXACT.add(self.dollars, other.dollars),
            own_dollars=EXACT.add(self.own_dollars, other.own_dollars),
            compactions=self.compactions + other.compactions,
            keep_alives=self.keep_alives + other.keep_alives,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSession:
    """A session as recorded, where its cost came from, and its cost under each configuration, by name.

    A cost is None if a kind of token has no known price.
    """

    recorded: SimulatedCost | None
    configurations: Mapping[str, SimulatedCost | None]
    breakdown: CostBreakdown


def simulate_recording(
    recording: Recording, book: PriceBook, configurations: Mapping[str, AgentOptions]
) -> SimulatedSession:
    """Simulate a recording as sent and under each configuration. Calls of unknown price are left out."""
    calls = reconstruct_calls(recording)
    rates_cache = CallRatesCache(book)
    context, misses = ContextCosts(recording.format), MissCosts(recording.format)
    breakdown = CostBreakdown()
    recorded = _CostTotal(book)
    effective = [_drop_unused_limit(options, calls) for options in configurations.values()]
    distinct = [options for place, options in enumerate(effective) if options not in effective[:place]]
    runs = start_gateway_runs(distinct, book, api_format=recording.format)
    totals = [_CostTotal(book) for _ in runs]
    for call in calls:
        rates = _find_rates(call, rates_cache)
        if rates is None:
            continue
        usage = call.call.usage.cache if call.call.usage is not None else call.recorded
        reasoning_tokens = call.call.usage.reasoning_tokens if call.call.usage is not None else 0
        prices = input_rates(rates, usage.input_tokens)
        output = output_dollars(rates, usage.input_tokens, call.output_tokens, reasoning_tokens)
        context.add_call(call, usage, prices, output)
        misses.add_call(call, usage, prices)
        breakdown.dollars += prices.dollars(usage) + output
        excess = price_step_excess(rates, usage, call.output_tokens, reasoning_tokens)
        if excess is not None:
            breakdown.tier_calls += 1
            breakdown.tier_dollars += excess
        recorded.add_call(rates, call.recorded, call.output_tokens, reasoning_tokens)
        for run, total in zip(runs, totals, strict=True):
            _simulate_call(run, total, call, rates, reasoning_tokens)
    for run, total in zip(runs, totals, strict=True):
        for call, summary in run.last_summaries():
            rates = _find_rates(call, rates_cache)
            if rates is not None:
                total.add_own_call(rates, summary.usage, summary.output_tokens)
        for keep_alive in run.finish():
            rates = _find_rates(keep_alive.call, rates_cache)
            if rates is not None:
                total.add_own_call(rates, keep_alive.usage, 0)
                total.keep_alives += 1
    breakdown.parts, breakdown.misses = context.costs(), misses.by_cause
    costs = [total.cost() for total in totals]
    return SimulatedSession(
        recorded=recorded.cost(),
        configurations={
            name: costs[distinct.index(options)]
            for name, options in zip(configurations, effective, strict=True)
        },
        breakdown=breakdown,
    )


def _drop_unused_limit(options: AgentOptions, calls: Sequence[ReconstructedCall]) -> AgentOptions:
    """The options without a limit of tool results that no result exceeds: they share a run with others."""
    truncation = ResultTruncation(options.tool_result_max_pct)
    if any(truncation.apply(call, context_window_tokens(call.call.model, None)) is not call for call in calls):
        return options
    return replace(options, tool_result_max_pct=TOOL_RESULT_MAX_PCT)


def _simulate_call(
    run: GatewayRun, total: "_CostTotal", call: ReconstructedCall, rates: CallRates, reasoning_tokens: int
) -> None:
    simulated = run.simulate(call)
    total.add_call(rates, simulated.usage, call.output_tokens, reasoning_tokens)
    for summary in simulated.summaries:
        total.add_own_call(rates, summary.usage, summary.output_tokens)
        total.compactions += 1


def _find_rates(call: ReconstructedCall, rates: CallRatesCache) -> CallRates | None:
    usage = call.call.usage
    tier = usage.tier if usage is not None else ""
    return rates.find(call.call.model, provider=call.rules.provider, at=call.call.at, tier=tier)


class _CostTotal:
    def __init__(self, book: PriceBook) -> None:
        self.compactions = self.keep_alives = 0
        self._calls, self._own_calls = CostSum(book), CostSum(book)

    def add_call(self, rates: CallRates, usage: CacheUsage, output_tokens: int, reasoning_tokens: int) -> None:
        self._calls.add_at_rates(rates, usage, output_tokens, reasoning_tokens)

    def add_own_call(self, rates: CallRates, usage: CacheUsage, output_tokens: int) -> None:
        self._own_calls.add_at_rates(rates, usage, output_tokens)

    def cost(self) -> SimulatedCost | None:
        dollars, own_dollars = self._calls.dollars, self._own_calls.dollars
        if dollars is None or own_dollars is None:
            return None
        return SimulatedCost(
            dollars=EXACT.add(dollars, own_dollars),
            own_dollars=own_dollars,
            compactions=self.compactions,
            keep_alives=self.keep_alives,
        )


def sum_costs(costs: Iterable[SimulatedCost | None]) -> SimulatedCost | None:
    """The sum; None if one of them is unknown."""
    total = SimulatedCost()
    for cost in costs:
        if cost is None:
            return None
        total = total.plus(cost)
    return total
