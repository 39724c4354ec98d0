"""Runs of policies through a session: the usage of each call, and the state of the cache after it."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions, Clearing, CompactionTrigger
from foveate.model import CacheUsage, Format, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.rules import CachingMode
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.replay.policies import Policy
from foveate.replay.simulator.abbreviated_prompt import AbbreviatedPrompts
from foveate.replay.simulator.adaptive_run import DEFAULT_GATEWAY, AdaptiveRun
from foveate.replay.simulator.breakpoints import fixed_breakpoint_pieces
from foveate.replay.simulator.cost_policy import make_edit_policy
from foveate.replay.simulator.editing_run import EditingRun, SimulatedCall, SimulatedSummary
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
    def __call__(self, sent_call: ReconstructedCall, prompt: CachedPrompt, /) -> dict[int, Ttl]:
        """The breakpoints of a prompt, by piece."""


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
