"""Provider caches as they would be without some of what Foveate does, simulated request by request.

Only states that differ are kept: a state is simulated from the first request of an agent on which it differs
from the next one. Until then both are the same.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from foveate.cache.entries import Entry
from foveate.cache.prompts import CachedPrompt, landmarks_of, prefixes
from foveate.cache.rules import Caching, Rules
from foveate.cache.simulate import Cache, Served
from foveate.values import CacheUsage, SimulatedState, Ttl

_SENT = SimulatedState.KEEP_ALIVE
_PAIRS = tuple(pairwise(reversed(SimulatedState)))  # the last state first
_MAX_SHARED = 512
# A provider that caches without breakpoints keeps every prefix. Each request shares its last ones, so that the
# requests of a conversation share most of them.
_SHARED_TAIL_PIECES = 32


class Version(NamedTuple):
    """A request in one state: its prompt, and its breakpoints by the pieces that they stand on."""

    prompt: CachedPrompt
    breakpoints: Mapping[int, Ttl]

    def is_same(self, other: "Version") -> bool:
        """Whether the provider would be sent the same."""
        return self.prompt is other.prompt and self.breakpoints == other.breakpoints


class Simulated(NamedTuple):
    """The input of one request in every state, and the session's caches of the states that are kept."""

    usage: Mapping[SimulatedState, CacheUsage]
    caches: Mapping[SimulatedState, Cache]


class AgentStates:
    """The states of one agent: what its sessions can read of each other in each of them."""

    def __init__(self) -> None:
        self._shared: dict[SimulatedState, dict[bytes, Entry]] = {_SENT: {}}

    def serve_sent(
        self, version: Version, cache: Cache, rules: Rules, *, at: float, answers_at: float
    ) -> Served:
        """Simulate what was really sent. `cache` is that of its session, which also reads what others wrote."""
        return self._serve(_SENT, version, cache, rules, at=at, answers_at=answers_at)

    def serve(
        self,
        versions: Mapping[SimulatedState, Version],
        caches: Mapping[SimulatedState, Cache],
        sent: Served,
        rules: Rules,
        *,
        keys: Iterable[bytes] = (),
        at: float,
        answers_at: float,
    ) -> Simulated:
        """Simulate a request in all states.

        `caches` are those of its session before it, with that of what was really sent; `sent` is what became of
        that. `keys` are prefixes that other requests of the agent may share, besides those that are marked or
        read and the ends of tools and system prompt.
        """
        self._split(versions, caches)
        usage, after = {_SENT: sent.usage}, dict[SimulatedState, Cache]()
        before = caches[_SENT]
        self._share(_SENT, versions[_SENT], sent, rules, keys, at)
        for following, state in _PAIRS:
            if state not in self._shared:
                usage[state] = usage[following]
                continue
            version, before = versions[state], caches.get(state, before)
            served = self._serve(state, version, before, rules, at=at, answers_at=answers_at)
            self._share(state, version, served, rules, keys, at)
            usage[state], after[state] = served.usage, served.cache
        return Simulated(usage, after)

    def _split(
        self, versions: Mapping[SimulatedState, Version], caches: Mapping[SimulatedState, Cache]
    ) -> None:
        """Keep the states that begin to differ from the next one."""
        entries = self._shared[_SENT]
        for following, state in _PAIRS:
            differs = state in caches or not versions[state].is_same(versions[following])
            if state not in self._shared and differs:
                self._shared[state] = dict(entries)
            entries = self._shared.get(state, entries)

    def _serve(
        self,
        state: SimulatedState,
        version: Version,
        cache: Cache,
        rules: Rules,
        *,
        at: float,
        answers_at: float,
    ) -> Served:
        return cache.serve_marked(
            version.prompt,
            version.breakpoints,
            rules,
            at=at,
            answers_at=answers_at,
            shared=self._shared[state],
        )

    def _share(
        self,
        state: SimulatedState,
        version: Version,
        served: Served,
        rules: Rules,
        keys: Iterable[bytes],
        at: float,
    ) -> None:
        entries, shared = served.cache.entries, self._shared[state]
        if not entries:
            return
        for key in _shared_keys(version, served, rules, keys):
            entry, other = entries.found(key), shared.get(key)
            if entry is None or not entry.lives(at):
                continue
            if other is not None and other.lives(at):
                entry = entry.merged(other)
            shared.pop(key, None)  # so that the oldest stands first
            shared[key] = entry
        while len(shared) > _MAX_SHARED:
            del shared[next(iter(shared))]


def _shared_keys(version: Version, served: Served, rules: Rules, more: Iterable[bytes]) -> list[bytes]:
    """Prefixes of a request that other sessions may share."""
    tools_end, system_end, _, _ = landmarks_of(version.prompt)
    keys = prefixes(version.prompt)
    places = {tools_end - 1, system_end - 1, served.read_pieces - 1, *version.breakpoints}
    if rules.caching is not Caching.MARKS:
        places.update(range(len(keys) - _SHARED_TAIL_PIECES, len(keys)))
    return [*(keys[at] for at in sorted(places) if 0 <= at < len(keys)), *more]
