"""Run with Foveate's own breakpoints and keep-alive requests, from call to call.

Simulated keep-alive requests follow the plan of the gateway, but never include a response: a recording does not
show how the next request would have continued it.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.engine.steps.cache import with_one_ttl
from foveate.model import CacheUsage, Ttl
from foveate.prompt_cache.keepalive import KeepAlive, plan_keepalive
from foveate.prompt_cache.placement.arrival_times import (
    NO_GAPS,
    ArrivalForecast,
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
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, token_ends
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.prompt_cache.simulator import ServedRequest, SimulatedCache
from foveate.replay.simulator.prompts import (
    AbbreviatedPrompts,
    HistoryNode,
    iterate_full_nodes,
    with_breakpoints,
)
from foveate.replay.simulator.reconstruct import ReconstructedCall, recorded_breakpoints, serve_call


class SimulatedKeepAlive(NamedTuple):
    call: ReconstructedCall
    usage: CacheUsage


class _WarmConversation(NamedTuple):
    call: ReconstructedCall
    prompt: CachedPrompt
    breakpoints: Mapping[int, Ttl]
    forecast: ArrivalForecast
    now: float
    sent_count: int = 0


class KeepAliveSimulator:
    """Sends the keep-alive requests of all conversations of a session. `sent` are those so far."""

    def __init__(self, options: KeepAliveOptions) -> None:
        self.sent: list[SimulatedKeepAlive] = []
        self._options = options
        self._warm: dict[str, _WarmConversation] = {}

    def fork(self) -> "KeepAliveSimulator":
        other = KeepAliveSimulator(self._options)
        other.sent, other._warm = list(self.sent), dict(self._warm)
        return other

    def record_call(
        self,
        call: ReconstructedCall,
        prompt: CachedPrompt,
        breakpoints: Mapping[int, Ttl],
        forecast: ArrivalForecast,
    ) -> None:
        """Remember the last call of a conversation, if the gateway could repeat it."""
        name = call.call.conversation
        self._warm.pop(name, None)
        # As in the gateway: without output, a request must not ask for thinking.
        if call.rules.caching is CachingMode.BREAKPOINTS and not call.call.has_thinking:
            now = max(call.call.at, call.call.response_at)
            self._warm[name] = _WarmConversation(call, prompt, breakpoints, forecast, now)

    def planned_tokens(self, conversation: str, cache: SimulatedCache) -> float:
        """What the next request for a conversation is expected to save; 0 if none is planned."""
        warm = self._warm.get(conversation)
        keep_alive = self._plan(warm, cache) if warm is not None else None
        return keep_alive.saved_tokens if keep_alive is not None else 0.0

    def forget(self, conversation: str) -> None:
        """Send nothing for a conversation until its next call."""
        self._warm.pop(conversation, None)

    def send_due(self, cache: SimulatedCache, *, until: float) -> SimulatedCache:
        """Send what is due before `until`, in order of time, and return the cache then."""
        while True:
            due = [
                (keep_alive.at, name)
                for name, warm in self._warm.items()
                if (keep_alive := self._plan(warm, cache)) is not None and keep_alive.at < until
            ]
            if not due:
                return cache
            at, name = min(due)
            warm = self._warm[name]
            served = cache.serve_with_breakpoints(warm.prompt, warm.breakpoints, warm.call.rules, at=at)
            cache = served.cache
            self.sent.append(SimulatedKeepAlive(warm.call, served.usage))
            self._warm[name] = warm._replace(now=at, sent_count=warm.sent_count + 1)

    def _plan(self, warm: _WarmConversation, cache: SimulatedCache) -> KeepAlive | None:
        rules = warm.call.rules
        keep_alive = plan_keepalive(
            warm.prompt,
            dataclasses.replace(rules, ttls=rules.ttls[:1]),
            cache,
            warm.forecast,
            response_tokens=0,
            last_at=warm.call.call.at,
            now=warm.now,
            sent_keepalives=warm.sent_count,
            max_keepalives=self._options.max_in_a_row,
        )
        if keep_alive is None:
            return None
        ends = token_ends(warm.prompt)
        tail_tokens = ends[-1] - ends[keep_alive.pieces - 1]  # sent and charged too
        saved_tokens = keep_alive.saved_tokens - tail_tokens
        return dataclasses.replace(keep_alive, saved_tokens=saved_tokens) if saved_tokens > 0 else None


DEFAULT_GATEWAY = AgentOptions()
# Number of positions with long-TTL entries that are considered again.
_MAX_ANCHORS = 4

# The served call, its prompt, and its breakpoints by piece.
ServedPrompt = tuple[ServedRequest, CachedPrompt, dict[int, Ttl]]


def keeps_client_breakpoints(options: AgentOptions) -> bool:
    """Return whether the gateway adds its breakpoints to the client's instead of replacing them."""
    return not options.prompt_cache or not options.replace_breakpoints


class AdaptiveRun:
    """Foveate's own breakpoints, with the TTL that pays for the conversation's gaps.

    With `gateway` it follows that configuration, and keeps the client's breakpoints as the gateway does. With
    `keep_alive` it sends keep-alive requests.
    """

    def __init__(
        self,
        abbreviated: AbbreviatedPrompts,
        gateway: AgentOptions | None = None,
        keep_alive: KeepAliveOptions = DEFAULT_GATEWAY.keep_alive,
    ) -> None:
        self.cache = SimulatedCache()
        self._keep_alives = KeepAliveSimulator(keep_alive) if keep_alive.enabled else None
        self._gateway = gateway
        self._options = gateway or DEFAULT_GATEWAY
        self._keeps_client_breakpoints = gateway is not None and keeps_client_breakpoints(gateway)
        self._abbreviated = abbreviated  # shared by runs that send the same
        self._log = PrefixLog()
        self._gaps: dict[str, tuple[GapHistogram, float]] = {}
        self._anchors: dict[str, list[HistoryNode]] = {}
        self._latest: tuple[ReconstructedCall, ServedPrompt] | None = None

    def fork(self) -> "AdaptiveRun":
        other = AdaptiveRun(self._abbreviated.fork(), self._gateway)
        other.cache = self.cache
        other._keep_alives = self._keep_alives.fork() if self._keep_alives is not None else None
        other._log = PrefixLog(self._log.reuse)
        other._gaps, other._anchors = dict(self._gaps), dict(self._anchors)
        return other

    def finish(self) -> Sequence[SimulatedKeepAlive]:
        self.send_keep_alives(until=math.inf)
        return self._keep_alives.sent if self._keep_alives is not None else ()

    def send_keep_alives(self, *, until: float) -> None:
        if self._keep_alives is not None:
            self.cache = self._keep_alives.send_due(self.cache, until=until)

    def planned_keep_alive_tokens(self, conversation: str) -> float:
        if self._keep_alives is None:
            return 0.0
        return self._keep_alives.planned_tokens(conversation, self.cache)

    def forget_keep_alive(self, conversation: str) -> None:
        if self._keep_alives is not None:
            self._keep_alives.forget(conversation)

    def serve(self, sent_call: ReconstructedCall) -> ServedPrompt:
        """Asking again for the same call returns the same result."""
        if self._latest is None or self._latest[0] is not sent_call:
            self._latest = sent_call, self._serve(sent_call)
        return self._latest[1]

    def _serve(self, sent_call: ReconstructedCall) -> ServedPrompt:
        name, rules, now = sent_call.call.conversation, sent_call.rules, sent_call.call.at
        self.send_keep_alives(until=now)
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
        all_breakpoints = (
            {**recorded_breakpoints(sent_call, prompt), **breakpoints}
            if self._keeps_client_breakpoints
            else breakpoints
        )
        served = serve_call(self.cache, sent_call, prompt, all_breakpoints)
        self.cache = served.cache
        if self._keep_alives is not None:
            self._keep_alives.record_call(sent_call, prompt, all_breakpoints, forecast_next_request(gaps))
        if observed is not None:
            self._log.record_response(observed, served.cache)
        self._abbreviated.record_sent(sent_call)
        return served, prompt, breakpoints

    def gaps(self, conversation: str) -> GapHistogram:
        return self._gaps.get(conversation, (NO_GAPS, 0.0))[0]

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
