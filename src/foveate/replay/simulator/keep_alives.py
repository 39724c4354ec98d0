"""Simulated keep-alive requests: those that the gateway would have sent between the calls of a session.

They follow the plan of the gateway, but never include a response: a recording does not show how the next
request would have continued it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from foveate.engine.options import KeepAliveOptions
from foveate.model import CacheUsage, Ttl
from foveate.prompt_cache.keepalive import KeepAlive, plan_keepalive
from foveate.prompt_cache.placement.arrival_times import ArrivalForecast
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, token_ends
from foveate.prompt_cache.rules import CachingMode
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.replay.simulator.reconstruct import ReconstructedCall


class SimulatedKeepAlive(NamedTuple):
    """A keep-alive request: the call that it repeats, and its usage."""

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
            replace(rules, ttls=rules.ttls[:1]),
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
        return replace(keep_alive, saved_tokens=saved_tokens) if saved_tokens > 0 else None
