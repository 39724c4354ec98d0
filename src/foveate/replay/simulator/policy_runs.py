"""Runs of policies through a session: the usage of each call, and the state of the cache after it."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from foveate.budget.model_limits import find_context_window
from foveate.compaction.boundary import compaction_threshold_tokens, is_compaction_due
from foveate.compaction.plan import CompactionOptions
from foveate.engine.options import AgentOptions
from foveate.engine.steps.cache import with_one_ttl
from foveate.model import Area, CacheUsage, Format, Place, Ttl
from foveate.prompt_cache.placement.arrival_times import (
    NO_GAPS,
    GapHistogram,
    estimate_returns,
    forecast_next_request,
    short_ttl_share,
)
from foveate.prompt_cache.placement.breakpoints import (
    disable_long_ttl,
    place_breakpoints_on_pieces,
    placement_rules,
)
from foveate.prompt_cache.placement.prefix_log import PrefixLog
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece, extend_key
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.prompt_cache.simulator import ServedRequest, SimulatedCache
from foveate.replay.policies import Policy
from foveate.replay.simulator.abbreviated_prompt import AbbreviatedPrompts, build_prompt, build_tail
from foveate.replay.simulator.breakpoints import (
    fixed_breakpoint_pieces,
    iterate_full_nodes,
    with_breakpoints,
)
from foveate.replay.simulator.compactions import MessageReader, SimulatedCompaction, simulate_compaction
from foveate.replay.simulator.history import HistoryNode
from foveate.replay.simulator.reconstruct import (
    ExternalEntry,
    ReconstructedCall,
    recorded_breakpoints,
    serve_call,
)

DEFAULT_GATEWAY = AgentOptions()
# Number of positions with long-TTL entries that are considered again.
_MAX_ANCHORS = 4
_INSTRUCTION_PLACE = Place(Area.MESSAGES, -4, 0)


class SimulatedCall(NamedTuple):
    """The usage of one call, and of the summary that was made after it, if any.

    A named tuple, since one is created for every call and policy.
    """

    usage: CacheUsage
    summary_usage: CacheUsage | None = None
    summary_tokens: int = 0
    is_compacted: bool = False

    @property
    def tokens(self) -> int:
        """The size of its context."""
        return self.usage.input_tokens


class PolicyRun(Protocol):
    def simulate(self, call: ReconstructedCall) -> SimulatedCall: ...


def start_runs(
    policies: Iterable[Policy],
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
    adaptive = _AdaptiveRun(prompts.abbreviated)
    served = _AdaptiveRun(prompts.abbreviated, gateway)
    as_configured = (
        _CompactingRun(
            _AdaptiveRun(prompts.abbreviated, gateway), api_format, window_tokens, gateway.compaction_options
        )
        if gateway.compaction
        else served
    )
    runs: dict[Policy, PolicyRun] = {
        Policy.RECORDED: _RecordedRun() if is_as_sent else _FixedRun(prompts, recorded_breakpoints),
        Policy.GATEWAY: as_configured,
        Policy.GATEWAY_COMPACTION: _CompactingRun(
            served, api_format, window_tokens, gateway.compaction_options
        ),
        Policy.NONE: _UncachedRun(),
        Policy.MARKERS: _make_fixed_run(prompts, 0),
        Policy.MARKERS_1H: _make_fixed_run(prompts, -1),
        Policy.ADAPTIVE: adaptive,
        Policy.ADAPTIVE_COMPACTION: _CompactingRun(adaptive, api_format, window_tokens),
    }
    return {policy: runs[policy] for policy in policies}


def context_window_tokens(model: str, window_tokens: int | None) -> int | None:
    """The context window of a call: `window_tokens` if given, else the model's; None if unknown."""
    if window_tokens is not None:
        return window_tokens
    window = find_context_window(model)
    return window.tokens if window is not None else None


class _RecordedRun:
    def simulate(self, call: ReconstructedCall) -> SimulatedCall:
        return SimulatedCall(usage=call.recorded)


class _UncachedRun:
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


class _FixedRun:
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


# The served call, its prompt, and its breakpoints by piece.
_ServedPrompt = tuple[ServedRequest, CachedPrompt, dict[int, Ttl]]


def keeps_client_breakpoints(options: AgentOptions) -> bool:
    """Return whether the gateway adds its breakpoints to the client's instead of replacing them."""
    return not options.prompt_cache or not options.replace_breakpoints


class _AdaptiveRun:
    """Foveate's own breakpoints, with the TTL that pays for the conversation's gaps.

    With `gateway` it follows that configuration, and keeps the client's breakpoints as the gateway does.
    """

    def __init__(self, abbreviated: AbbreviatedPrompts, gateway: AgentOptions | None = None) -> None:
        self.cache = SimulatedCache()
        self._gateway = gateway
        self._options = gateway or DEFAULT_GATEWAY
        self._keeps_client_breakpoints = gateway is not None and keeps_client_breakpoints(gateway)
        self._abbreviated = abbreviated  # shared by runs that send the same
        self._log = PrefixLog()
        self._gaps: dict[str, tuple[GapHistogram, float]] = {}
        self._anchors: dict[str, list[HistoryNode]] = {}
        self._latest: tuple[ReconstructedCall, _ServedPrompt] | None = None

    def fork(self) -> "_AdaptiveRun":
        other = _AdaptiveRun(self._abbreviated.fork(), self._gateway)
        other.cache = self.cache
        other._log = PrefixLog(self._log.reuse)
        other._gaps, other._anchors = dict(self._gaps), dict(self._anchors)
        return other

    def simulate(self, call: ReconstructedCall) -> SimulatedCall:
        return SimulatedCall(usage=self.serve(call)[0].usage)

    def serve(self, sent_call: ReconstructedCall) -> _ServedPrompt:
        """Serve a call. Asking again for the same call returns the same result."""
        if self._latest is None or self._latest[0] is not sent_call:
            self._latest = sent_call, self._serve(sent_call)
        return self._latest[1]

    def _serve(self, sent_call: ReconstructedCall) -> _ServedPrompt:
        name, rules, now = sent_call.call.conversation, sent_call.rules, sent_call.call.at
        anchors = self._anchors.get(name, [])
        prompt = self._abbreviated.build(sent_call, anchors)
        gaps = self._record_gap(name, now)
        client_breakpoints = (
            recorded_breakpoints(replace(sent_call, external_entry=None), prompt)
            if self._keeps_client_breakpoints
            else {}
        )
        breakpoints = client_breakpoints
        observed = None
        if rules.caching in (CachingMode.BREAKPOINTS, CachingMode.BOTH) and self._options.prompt_cache:
            placement = self._options.placement
            if rules.provider not in self._options.long_ttl_providers:
                placement = disable_long_ttl(placement, rules)
            arrivals = forecast_next_request(gaps)
            priced = placement_rules(rules, placement)
            weighted_rules = priced if placement.ttl is None else with_one_ttl(priced, placement.ttl)
            with_client_breakpoints = (
                with_breakpoints(prompt, client_breakpoints) if client_breakpoints else prompt
            )
            observed = self._log.observe(
                with_client_breakpoints,
                weighted_rules,
                self.cache,
                now=now,
                short_ttl_share=short_ttl_share(arrivals, weighted_rules),
                long_ttl=placement.long_ttl,
            )
            added = place_breakpoints_on_pieces(
                with_client_breakpoints,
                priced,
                observed.cache,
                estimate_returns(arrivals, rules, observed.reach),
                now=now,
                options=dataclasses.replace(
                    placement, long_ttl=placement.long_ttl and observed.reach.allows_long
                ),
                max_pieces=observed.reach.pieces,
            )
            breakpoints = {**client_breakpoints, **added}
            observed = self._log.record_cost(observed, with_client_breakpoints, breakpoints, rules, now=now)
            self._anchors[name] = _find_anchors(anchors, prompt, breakpoints, sent_call.last_node, rules)
        served = serve_call(
            self.cache,
            sent_call,
            prompt,
            {**recorded_breakpoints(sent_call, prompt), **breakpoints}
            if self._keeps_client_breakpoints
            else breakpoints,
        )
        self.cache = served.cache
        if observed is not None:
            self._log.record_response(observed, served.cache)
        self._abbreviated.record_sent(sent_call)
        return served, prompt, breakpoints

    def _record_gap(self, name: str, now: float) -> GapHistogram:
        gaps, previous_at = self._gaps.get(name, (NO_GAPS, None))
        if previous_at is not None:
            gaps = gaps.with_gap(max(0.0, now - previous_at))
        self._gaps[name] = gaps, now
        return gaps


def _find_anchors(
    known: list[HistoryNode],
    prompt: CachedPrompt,
    breakpoints: Mapping[int, Ttl],
    last_node: HistoryNode,
    rules: CacheRules,
) -> list[HistoryNode]:
    """The messages with long-TTL entries: a breakpoint must be placed there again to keep them."""
    lasting = [at for at, ttl in breakpoints.items() if ttl is rules.ttls[-1] and len(rules.ttls) > 1]
    if not lasting:
        return known
    new = []
    for start, node in iterate_full_nodes(prompt, last_node):
        end = start + len(node.pieces)
        if end - 1 in breakpoints:
            break
        if any(start <= at < end for at in lasting):
            new.append(node)
    return list(dict.fromkeys((*known, *reversed(new))))[-_MAX_ANCHORS:]


class _CompactingRun:
    """The same with compaction: once a request is long, the history is compacted after the response.

    A request that exceeds the context window waits for the compaction.
    """

    def __init__(
        self,
        adaptive: _AdaptiveRun,
        api_format: Format,
        window_tokens: int | None,
        options: CompactionOptions = DEFAULT_GATEWAY.compaction_options,
    ) -> None:
        self._adaptive = adaptive  # shared until the first compaction
        self._has_compacted = False
        self._messages = MessageReader(api_format)
        self._window_tokens = window_tokens
        self._options = options
        self._compactions: dict[str, list[SimulatedCompaction]] = {}
        self._responses_since_compaction: dict[str, int] = {}  # since the last compaction

    def simulate(self, call: ReconstructedCall) -> SimulatedCall:
        name = call.call.conversation
        window = context_window_tokens(call.call.model, self._window_tokens)
        compaction, compacted = self._apply_compaction(call)
        summary: CacheUsage | None = None
        summary_tokens = 0
        if window is not None and compacted.input_tokens > window:
            new_compaction = self._compact(call, compaction, window)
            if new_compaction is not None:
                prompt = build_prompt(
                    build_tail(
                        compacted.preamble,
                        compacted.last_node,
                        lookback_positions=compacted.rules.lookback_positions,
                    ),
                    compacted.full_nodes,
                )
                summary, summary_tokens = (
                    self._serve_summary(compacted, prompt, {}, new_compaction),
                    new_compaction.summary_tokens,
                )
                compaction, compacted = self._apply_compaction(call)
        served, prompt, breakpoints = self._adaptive.serve(compacted)
        is_compacted = summary is not None
        self._responses_since_compaction[name] = self._responses_since_compaction.get(name, 0) + 1
        turns_since_compaction = self._responses_since_compaction[name] if compaction is not None else None
        trigger = self._trigger_tokens(window, call) if window is not None else None
        if trigger and is_compaction_due(
            compacted.input_tokens,
            threshold_tokens=trigger,
            turns_since_compaction=turns_since_compaction,
            min_turns_between=self._options.min_turns_between,
        ):
            new_compaction = self._compact(call, compaction, window or 0)
            if new_compaction is not None:
                summary, summary_tokens = (
                    self._serve_summary(compacted, prompt, breakpoints, new_compaction),
                    new_compaction.summary_tokens,
                )
                is_compacted = True
        return SimulatedCall(
            usage=served.usage, summary_usage=summary, summary_tokens=summary_tokens, is_compacted=is_compacted
        )

    def _trigger_tokens(self, window: int, sent_call: ReconstructedCall) -> int:
        return compaction_threshold_tokens(window, sent_call.reserve_tokens, self._options.compact_at_pct)

    def _apply_compaction(
        self, sent_call: ReconstructedCall
    ) -> tuple[SimulatedCompaction | None, ReconstructedCall]:
        """The call with the latest compaction that applies to its history."""
        for compaction in reversed(self._compactions.get(sent_call.call.conversation, [])):
            last_node = compaction.apply(sent_call.last_node)
            if last_node is not None:
                return compaction, replace(
                    sent_call, last_node=last_node, external_entry=_preamble_entry_only(sent_call)
                )
        return None, sent_call

    def _compact(
        self, sent_call: ReconstructedCall, earlier: SimulatedCompaction | None, window: int
    ) -> SimulatedCompaction | None:
        compaction = simulate_compaction(
            sent_call.last_node,
            self._messages,
            trigger_tokens=self._trigger_tokens(window, sent_call),
            options=self._options,
            earlier=earlier,
            drops_thinking=sent_call.rules.binds_thinking,
        )
        if compaction is not None:
            if not self._has_compacted:
                self._adaptive, self._has_compacted = self._adaptive.fork(), True
            self._compactions.setdefault(sent_call.call.conversation, []).append(compaction)
            self._responses_since_compaction[sent_call.call.conversation] = 0
        return compaction

    def _serve_summary(
        self,
        sent_call: ReconstructedCall,
        prompt: CachedPrompt,
        breakpoints: Mapping[int, Ttl],
        compaction: SimulatedCompaction,
    ) -> CacheUsage:
        """The usage of the summary: the request as sent, read from the cache, and an instruction."""
        piece = PromptPiece(
            digest=compaction.replacement.key,
            tokens=compaction.instruction_tokens,
            kind="text",
            area=Area.MESSAGES,
            place=_INSTRUCTION_PLACE,
        )
        key = sent_call.preamble.key + extend_key(sent_call.last_node.key, piece)
        summary_prompt = CachedPrompt(
            model=prompt.model, pieces=(*prompt.pieces, piece), keys=(*(prompt.keys or ()), key)
        )
        at = max(sent_call.call.at, sent_call.call.response_at)
        served = self._adaptive.cache.serve_with_breakpoints(
            summary_prompt, breakpoints, sent_call.rules, at=at
        )
        self._adaptive.cache = served.cache
        return served.usage


def _preamble_entry_only(sent_call: ReconstructedCall) -> ExternalEntry | None:
    """The external entry, unless it ends at a message, which now follows a summary."""
    return (
        sent_call.external_entry
        if sent_call.external_entry is not None and sent_call.external_entry.node is None
        else None
    )
