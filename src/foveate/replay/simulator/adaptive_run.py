"""Run with Foveate's own breakpoints: the cache, the gaps and what was learnt, from call to call."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.engine.steps.cache import with_one_ttl
from foveate.model import Ttl
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
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.prompt_cache.simulator import ServedRequest, SimulatedCache
from foveate.replay.simulator.abbreviated_prompt import AbbreviatedPrompts
from foveate.replay.simulator.breakpoints import iterate_full_nodes, with_breakpoints
from foveate.replay.simulator.history import HistoryNode
from foveate.replay.simulator.keep_alives import KeepAliveSimulator, SimulatedKeepAlive
from foveate.replay.simulator.reconstruct import ReconstructedCall, recorded_breakpoints, serve_call

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
        """End the session, and return all keep-alive requests that were sent in it."""
        self.send_keep_alives(until=math.inf)
        return self._keep_alives.sent if self._keep_alives is not None else ()

    def send_keep_alives(self, *, until: float) -> None:
        if self._keep_alives is not None:
            self.cache = self._keep_alives.send_due(self.cache, until=until)

    def planned_keep_alive_tokens(self, conversation: str) -> float:
        """What the next keep-alive request of a conversation is expected to save; 0 if none is planned."""
        if self._keep_alives is None:
            return 0.0
        return self._keep_alives.planned_tokens(conversation, self.cache)

    def forget_keep_alive(self, conversation: str) -> None:
        if self._keep_alives is not None:
            self._keep_alives.forget(conversation)

    def serve(self, sent_call: ReconstructedCall) -> ServedPrompt:
        """Serve a call. Asking again for the same call returns the same result."""
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
        """The gaps between the calls of a conversation so far."""
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
