"""Runs of policies, or of configurations of the gateway, through a session: the usage of each call."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from foveate.compaction.tool_results import TOOL_RESULT_MAX_PCT
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions, Clearing, CompactionTrigger
from foveate.model import CacheUsage, Format, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.rules import CachingMode
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.replay.outcomes import Policy
from foveate.replay.simulator.adaptive_run import DEFAULT_GATEWAY, AdaptiveRun, SimulatedKeepAlive
from foveate.replay.simulator.cost_policy import make_edit_policy
from foveate.replay.simulator.editing_run import (
    EditingRun,
    SimulatedCall,
    SimulatedSummary,
    context_window_tokens,
)
from foveate.replay.simulator.history_edits import ResultTruncation
from foveate.replay.simulator.prompts import AbbreviatedPrompts, fixed_breakpoint_pieces
from foveate.replay.simulator.reconstruct import (
    ReconstructedCall,
    find_rates,
    recorded_breakpoints,
    serve_call,
)


class PolicyRun(Protocol):
    def simulate(self, call: ReconstructedCall) -> SimulatedCall: ...

    def finish(self) -> Iterable[tuple[ReconstructedCall, SimulatedSummary]]:
        """The summaries that are written after the last call, with the call before each."""


def start_runs(
    policies: Iterable[Policy],
    book: PriceBook,
    *,
    api_format: Format,
    window_tokens: int | None,
    is_as_sent: bool = False,
    gateway: AgentOptions = DEFAULT_GATEWAY,
) -> dict[Policy, PolicyRun]:
    """Start policies at the beginning of a session. `window_tokens` overrides the context window of all
    models.

    The runs share work, and give the same results as each one alone if all of them receive the same calls in
    turn. `is_as_sent`: calls go to their recorded models, so the client's own usage is already known.
    `gateway` is the configuration of the gateway policies.
    """
    prompts = _SharedPrompts()
    adaptive = AdaptiveRun(prompts.abbreviated)
    served = AdaptiveRun(prompts.abbreviated, gateway)

    def start_editing(run: AdaptiveRun, options: AgentOptions) -> EditingRun:
        return EditingRun(
            run,
            make_edit_policy(options, partial(find_rates, book)),
            api_format=api_format,
            window_tokens=window_tokens,
            options=options.compaction_options,
            compares=options.compacts_by_cost or options.clears,  # their runs are not shared
        )

    runs: dict[Policy, PolicyRun] = {
        Policy.RECORDED: _RecordedRun() if is_as_sent else _FixedRun(prompts, recorded_breakpoints),
        Policy.GATEWAY: start_editing(AdaptiveRun(prompts.abbreviated, gateway), gateway)
        if gateway.compacts or gateway.clears
        else _UneditedRun(served),
        Policy.GATEWAY_COMPACTION: start_editing(served, replace(gateway, compaction=True)),
        Policy.GATEWAY_COST: start_editing(
            AdaptiveRun(prompts.abbreviated, gateway),
            replace(gateway, compaction=True, trigger=CompactionTrigger.COST, clearing=Clearing.COST),
        ),
        Policy.NONE: _UncachedRun(),
        Policy.MARKERS: _make_fixed_run(prompts, 0),
        Policy.MARKERS_1H: _make_fixed_run(prompts, -1),
        Policy.ADAPTIVE: _UneditedRun(adaptive),
        Policy.ADAPTIVE_COMPACTION: start_editing(adaptive, DEFAULT_GATEWAY),
    }
    return {policy: runs[policy] for policy in policies}


class _WithoutSummaries:
    def finish(self) -> Iterable[tuple[ReconstructedCall, SimulatedSummary]]:
        return ()


class _RecordedRun(_WithoutSummaries):
    def simulate(self, call: ReconstructedCall) -> SimulatedCall:
        return SimulatedCall(usage=call.recorded)


class _UneditedRun(_WithoutSummaries):
    def __init__(self, adaptive: AdaptiveRun) -> None:
        self._adaptive = adaptive

    def simulate(self, call: ReconstructedCall) -> SimulatedCall:
        return SimulatedCall(usage=self._adaptive.serve(call)[0].usage)


class _UncachedRun(_WithoutSummaries):
    def simulate(self, call: ReconstructedCall) -> SimulatedCall:
        return SimulatedCall(usage=CacheUsage(uncached=call.input_tokens))


class _ChooseBreakpoints(Protocol):
    def __call__(self, sent_call: ReconstructedCall, prompt: CachedPrompt, /) -> dict[int, Ttl]: ...


class _SharedPrompts:
    """The prompts of calls, built once for all policies that send them unchanged."""

    def __init__(self) -> None:
        self.abbreviated = AbbreviatedPrompts()
        self._latest: tuple[ReconstructedCall, CachedPrompt] | None = None

    def build(self, sent_call: ReconstructedCall) -> CachedPrompt:
        if self._latest is None or self._latest[0] is not sent_call:
            self._latest = sent_call, self.abbreviated.build(sent_call)
        return self._latest[1]


class _FixedRun(_WithoutSummaries):
    """Breakpoints that depend only on what is sent."""

    def __init__(self, prompts: _SharedPrompts, choose_breakpoints: _ChooseBreakpoints) -> None:
        self._prompts = prompts
        self._choose_breakpoints = choose_breakpoints
        self._cache = SimulatedCache()

    def simulate(self, call: ReconstructedCall) -> SimulatedCall:
        prompt = self._prompts.build(call)
        served = serve_call(self._cache, call, prompt, self._choose_breakpoints(call, prompt))
        self._prompts.abbreviated.record_sent(call)
        self._cache = served.cache
        return SimulatedCall(usage=served.usage)


def _make_fixed_run(prompts: _SharedPrompts, number: int) -> _FixedRun:
    """A run with fixed breakpoints and the TTL at this index of the rules."""

    def choose_breakpoints(sent_call: ReconstructedCall, prompt: CachedPrompt) -> dict[int, Ttl]:
        rules = sent_call.rules
        if rules.caching not in (CachingMode.BREAKPOINTS, CachingMode.BOTH) or not rules.ttls:
            return {}
        places = fixed_breakpoint_pieces(prompt, sent_call.preamble, minimum_tokens=rules.minimum_tokens)
        return dict.fromkeys(places, rules.ttls[number])

    return _FixedRun(prompts, choose_breakpoints)


class GatewayRun:
    """The gateway with one configuration. It may share `adaptive` with others, until the first edit."""

    def __init__(
        self,
        adaptive: AdaptiveRun,
        editing: EditingRun | None = None,
        truncation: ResultTruncation | None = None,
    ) -> None:
        self._adaptive = adaptive
        self._editing = editing
        self._truncation = truncation

    def simulate(self, call: ReconstructedCall) -> SimulatedCall:
        if self._truncation is not None:
            call = self._truncation.apply(call, context_window_tokens(call.call.model, None))
        if self._editing is not None:
            return self._editing.simulate(call)
        return SimulatedCall(usage=self._adaptive.serve(call)[0].usage)

    def last_summaries(self) -> Iterator[tuple[ReconstructedCall, SimulatedSummary]]:
        """The summaries that are written after the last call, with the call before each."""
        return self._editing.finish() if self._editing is not None else iter(())

    def finish(self) -> Sequence[SimulatedKeepAlive]:
        return (self._editing.adaptive if self._editing is not None else self._adaptive).finish()


def start_gateway_runs(
    configurations: Iterable[AgentOptions], book: PriceBook, *, api_format: Format
) -> list[GatewayRun]:
    """Start the gateway with each of these configurations at the beginning of a session.

    As in `start_runs`, they share work, and all must receive the same calls in turn. Configurations that differ
    only in compaction are the same run until the first compaction. Unlike the policies, they send keep-alive
    requests and truncate tool results.
    """
    abbreviated = AbbreviatedPrompts()
    shared: list[tuple[AgentOptions, AdaptiveRun]] = []
    runs = []
    for options in configurations:
        if options.compacts and options.tool_result_max_pct != TOOL_RESULT_MAX_PCT:
            adaptive = AdaptiveRun(AbbreviatedPrompts(), options, options.keep_alive)
            truncation = ResultTruncation(options.tool_result_max_pct)
            runs.append(GatewayRun(adaptive, _start_editing(adaptive, options, book, api_format), truncation))
            continue
        uncompacted = dataclasses.replace(
            options,
            compaction=False,
            compaction_options=DEFAULT_GATEWAY.compaction_options,
            trigger=DEFAULT_GATEWAY.trigger,
            clearing=DEFAULT_GATEWAY.clearing,
            tool_result_max_pct=TOOL_RESULT_MAX_PCT,
        )
        known = next((run for other, run in shared if other == uncompacted), None)
        if known is None:
            known = AdaptiveRun(abbreviated, uncompacted, options.keep_alive)
            shared.append((uncompacted, known))
        runs.append(
            GatewayRun(
                known,
                _start_editing(known, options, book, api_format)
                if options.compacts or options.clears
                else None,
            )
        )
    return runs


def _start_editing(
    adaptive: AdaptiveRun, options: AgentOptions, book: PriceBook, api_format: Format
) -> EditingRun:
    return EditingRun(
        adaptive,
        make_edit_policy(options, partial(find_rates, book)),
        api_format=api_format,
        window_tokens=None,
        options=options.compaction_options,
    )
