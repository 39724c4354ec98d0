"""Simulated provider caches as they would be without some of Foveate's changes, updated request by request.

Only states that differ are stored: a state is simulated from an agent's first request on which it differs
from the next state. Until then both are the same.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from foveate.model import CacheUsage, SimulatedState, Ttl
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, prefix_keys, prompt_layout
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.prompt_cache.simulator import CacheEntry, ServedRequest, SimulatedCache

_ACTUAL = SimulatedState.KEEP_ALIVE
_STATE_PAIRS = tuple(pairwise(reversed(SimulatedState)))  # last state first
_MAX_SHARED = 512
# A provider that caches without breakpoints caches every prefix. Each request shares its last ones, so that
# the requests of a conversation share most of them.
_SHARED_TAIL_PIECES = 32


class RequestVersion(NamedTuple):
    """A request in one state: its prompt, and its breakpoints by piece."""

    prompt: CachedPrompt
    breakpoints: Mapping[int, Ttl]

    def is_same_as(self, other: "RequestVersion") -> bool:
        """Whether the provider would receive the same request."""
        return self.prompt is other.prompt and self.breakpoints == other.breakpoints


class SimulatedStates(NamedTuple):
    """The usage of one request in every state, and the session's caches of the states that are stored."""

    usage: Mapping[SimulatedState, CacheUsage]
    caches: Mapping[SimulatedState, SimulatedCache]


class AgentStates:
    """The cache states of one agent, with the entries that its sessions share in each state."""

    def __init__(self) -> None:
        self._shared: dict[SimulatedState, dict[bytes, CacheEntry]] = {_ACTUAL: {}}

    def serve_actual(
        self,
        version: RequestVersion,
        cache: SimulatedCache,
        rules: CacheRules,
        *,
        at: float,
        response_at: float,
    ) -> ServedRequest:
        """Simulate the request as it was sent. `cache` is its session's cache; entries of other sessions are
        readable too.
        """
        return self._serve(_ACTUAL, version, cache, rules, at=at, response_at=response_at)

    def serve(
        self,
        versions: Mapping[SimulatedState, RequestVersion],
        caches: Mapping[SimulatedState, SimulatedCache],
        actual: ServedRequest,
        rules: CacheRules,
        *,
        keys: Iterable[bytes] = (),
        at: float,
        response_at: float,
    ) -> SimulatedStates:
        """Simulate a request in all states.

        `caches` are the session's caches before the request, including the actual one; `actual` is the result
        of the actual request. `keys` are prefixes that other requests of the agent may share, in addition to
        breakpoints, the hit, and the ends of tools and system prompt.
        """
        self._split(versions, caches)
        usage, after = {_ACTUAL: actual.usage}, dict[SimulatedState, SimulatedCache]()
        before = caches[_ACTUAL]
        self._share(_ACTUAL, versions[_ACTUAL], actual, rules, keys, at)
        for following, state in _STATE_PAIRS:
            if state not in self._shared:
                usage[state] = usage[following]
                continue
            version, before = versions[state], caches.get(state, before)
            served = self._serve(state, version, before, rules, at=at, response_at=response_at)
            self._share(state, version, served, rules, keys, at)
            usage[state], after[state] = served.usage, served.cache
        return SimulatedStates(usage, after)

    def _split(
        self, versions: Mapping[SimulatedState, RequestVersion], caches: Mapping[SimulatedState, SimulatedCache]
    ) -> None:
        """Start storing the states that begin to differ from the next one."""
        entries = self._shared[_ACTUAL]
        for following, state in _STATE_PAIRS:
            differs = state in caches or not versions[state].is_same_as(versions[following])
            if state not in self._shared and differs:
                self._shared[state] = dict(entries)
            entries = self._shared.get(state, entries)

    def _serve(
        self,
        state: SimulatedState,
        version: RequestVersion,
        cache: SimulatedCache,
        rules: CacheRules,
        *,
        at: float,
        response_at: float,
    ) -> ServedRequest:
        return cache.serve_with_breakpoints(
            version.prompt,
            version.breakpoints,
            rules,
            at=at,
            response_at=response_at,
            shared=self._shared[state],
        )

    def _share(
        self,
        state: SimulatedState,
        version: RequestVersion,
        served: ServedRequest,
        rules: CacheRules,
        keys: Iterable[bytes],
        at: float,
    ) -> None:
        entries, shared = served.cache.entries, self._shared[state]
        if not entries:
            return
        for key in _find_shared_keys(version, served, rules, keys):
            entry, other = entries.find(key), shared.get(key)
            if entry is None or not entry.is_live(at):
                continue
            if other is not None and other.is_live(at):
                entry = entry.merge(other)
            shared.pop(key, None)  # so that the oldest comes first
            shared[key] = entry
        while len(shared) > _MAX_SHARED:
            del shared[next(iter(shared))]


def _find_shared_keys(
    version: RequestVersion, served: ServedRequest, rules: CacheRules, more: Iterable[bytes]
) -> list[bytes]:
    """The prefixes of a request that other sessions may share."""
    tools_end, system_end, _, _ = prompt_layout(version.prompt)
    keys = prefix_keys(version.prompt)
    places = {tools_end - 1, system_end - 1, served.read_pieces - 1, *version.breakpoints}
    if rules.caching is not CachingMode.BREAKPOINTS:
        places.update(range(len(keys) - _SHARED_TAIL_PIECES, len(keys)))
    return [*(keys[at] for at in sorted(places) if 0 <= at < len(keys)), *more]
