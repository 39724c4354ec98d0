"""Simulator of a provider's cache: what a request reads and writes, its usage, and the cache afterwards.

If a provider caches up to breakpoints (Anthropic), each breakpoint looks for an entry at its own position and
some positions before it, and everything between the longest hit and the last breakpoint is written. If it
caches everything (OpenAI before GPT-5.6), the longest prefix of whole pieces that was sent before is read, in
steps. From GPT-5.6 on, OpenAI places a breakpoint of its own at the end and accepts others in addition.

`AgentStates` simulates the caches as they would be without some of Foveate's changes. Only states that differ
are stored: a state is simulated from an agent's first request on which it differs from the next state.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from foveate.model import CacheUsage, SimulatedState, Ttl
from foveate.prompt_cache.prompt.cached_prompt import (
    CachedPrompt,
    is_same_run,
    prefix_keys,
    prompt_layout,
    token_ends,
)
from foveate.prompt_cache.rules import CacheRules, CachingMode

_TTL_SECONDS = {ttl: ttl.seconds for ttl in Ttl}  # `Ttl.seconds` parses the name each time
_LONG_TTLS = frozenset((Ttl.ONE_HOUR, Ttl.TWELVE_HOURS))


class CacheEntry(NamedTuple):
    """A cached prefix of `tokens` tokens, kept until `expires_at` and readable from `readable_at` on.

    Each use extends it by `ttl`. A named tuple, since every use creates a new one.
    """

    tokens: int
    ttl: Ttl
    expires_at: float
    readable_at: float

    def is_live(self, at: float) -> bool:
        return at <= self.expires_at

    def is_readable(self, at: float) -> bool:
        """Return whether it has not expired, and the response to the request that wrote it has begun."""
        return self.readable_at <= at <= self.expires_at

    def refresh(self, at: float) -> "CacheEntry":
        """The entry after a use, which restarts its TTL."""
        tokens, ttl, expires_at, readable_at = self
        return CacheEntry(tokens, ttl, max(expires_at, at + _TTL_SECONDS[ttl]), readable_at)

    def rewrite(self, ttl: Ttl, *, at: float, readable_at: float) -> "CacheEntry":
        """The entry after another write: with the longer TTL, and readable as soon as either write is."""
        return CacheEntry(
            tokens=self.tokens,
            ttl=max(self.ttl, ttl, key=_TTL_SECONDS.__getitem__),
            expires_at=max(self.expires_at, at + _TTL_SECONDS[ttl]),
            readable_at=min(self.readable_at, readable_at),
        )

    def merge(self, other: "CacheEntry") -> "CacheEntry":
        """Combine what two requests know about the same entry."""
        if self == other:
            return self
        return CacheEntry(
            tokens=self.tokens,
            ttl=max(self.ttl, other.ttl, key=_TTL_SECONDS.__getitem__),
            expires_at=max(self.expires_at, other.expires_at),
            readable_at=min(self.readable_at, other.readable_at),
        )


def write_entry(tokens: int, ttl: Ttl, *, at: float, readable_at: float) -> CacheEntry:
    return CacheEntry(tokens, ttl, at + _TTL_SECONDS[ttl], readable_at)


class CacheEntries(Mapping[bytes, CacheEntry]):
    """Immutable mapping from prefix keys to entries."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[bytes, CacheEntry] | None = None) -> None:
        self._entries: dict[bytes, CacheEntry] = dict(entries or {})

    def __getitem__(self, prefix: bytes) -> CacheEntry:
        return self._entries[prefix]

    def find(self, prefix: bytes) -> CacheEntry | None:
        return self._entries.get(prefix)

    def find_readable(self, prefixes: Sequence[bytes], at: float) -> dict[int, CacheEntry]:
        """The entries of `prefixes` that are readable at that time, by position."""
        entries_at = enumerate(map(self._entries.get, prefixes))
        return {place: entry for place, entry in entries_at if entry is not None and entry.is_readable(at)}

    def last_readable(self, prefixes: Sequence[bytes], before: int, at: float, ttl: Ttl | None = None) -> int:
        """The last of the first `before` prefixes that is readable at that time, or -1; with this `ttl` if
        given.
        """
        if ttl is not None and not any(entry.ttl is ttl for entry in self._entries.values()):
            return -1
        for place in range(before - 1, -1, -1):
            entry = self._entries.get(prefixes[place])
            if entry is not None and entry.is_readable(at) and (ttl is None or entry.ttl is ttl):
                return place
        return -1

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Entries({self._entries!r})"

    def with_changes(self, changes: Mapping[bytes, CacheEntry], *, at: float) -> "CacheEntries":
        """Return the entries after `changes`, without those that have expired."""
        changed = {**self._entries, **changes}
        return CacheEntries({prefix: entry for prefix, entry in changed.items() if entry.is_live(at)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """The usage of one request, and the cache after it. `read_pieces` counts the pieces read from the cache."""

    usage: CacheUsage
    read_pieces: int
    cache: "SimulatedCache"


@dataclass(frozen=True, slots=True)
class SimulatedCache:
    """All cached prefixes of an account."""

    entries: CacheEntries = field(default_factory=CacheEntries)

    def serve(
        self, prompt: CachedPrompt, rules: CacheRules, *, at: float, response_at: float | None = None
    ) -> ServedRequest:
        """Serve `prompt`, sent at `at`. The response begins at `response_at`, or at once."""
        return self.serve_with_breakpoints(
            prompt, prompt_layout(prompt).breakpoints, rules, at=at, response_at=response_at
        )

    def serve_with_breakpoints(
        self,
        prompt: CachedPrompt,
        breakpoints: Mapping[int, Ttl],
        rules: CacheRules,
        *,
        at: float,
        response_at: float | None = None,
        shared: Mapping[bytes, CacheEntry] | None = None,
    ) -> ServedRequest:
        """Serve a prompt with these breakpoints, given by piece, instead of its own.

        `shared` are further entries that the provider may read.
        """
        ends, keys, min_tokens = token_ends(prompt), prefix_keys(prompt), rules.minimum_tokens
        requested = {
            place: ttl
            for place, ttl in _requested_entries(prompt, breakpoints, rules).items()
            if ends[place] >= min_tokens
        }
        if not requested:  # without a breakpoint, nothing is read either
            return ServedRequest(usage=CacheUsage(uncached=ends[-1] if ends else 0), read_pieces=0, cache=self)
        hit = next(
            (
                place
                for place in _lookup_order(prompt, breakpoints, rules, requested)
                if (entry := self._find_entry(keys[place], shared, at)) is not None and entry.is_readable(at)
            ),
            -1,
        )
        read = ends[hit] // rules.step_tokens * rules.step_tokens if hit >= 0 else 0
        readable_at = at if response_at is None else max(at, response_at)
        changes = self._collect_changes(keys, ends, requested, shared, hit=hit, at=at, readable_at=readable_at)
        return ServedRequest(
            usage=_compute_usage(read, ends, requested, writes_are_free=rules.caching is CachingMode.AUTOMATIC),
            read_pieces=hit + 1,
            cache=SimulatedCache(self.entries.with_changes(changes, at=at)) if changes else self,
        )

    def _find_entry(
        self, key: bytes, shared: Mapping[bytes, CacheEntry] | None, at: float
    ) -> CacheEntry | None:
        """A shared entry is used only if the own one is not readable."""
        entry = self.entries.find(key)
        if shared and (entry is None or not entry.is_readable(at)):
            other = shared.get(key)
            if other is not None and other.is_readable(at):
                return other
        return entry

    def _collect_changes(
        self,
        keys: Sequence[bytes],
        ends: Sequence[int],
        requested: Mapping[int, Ttl],
        shared: Mapping[bytes, CacheEntry] | None,
        *,
        hit: int,
        at: float,
        readable_at: float,
    ) -> dict[bytes, CacheEntry]:
        """The entries that this request uses or writes.

        Nothing up to the hit is charged as a write, so nothing is written there: an entry keeps its TTL even
        under a breakpoint with a longer one, and a breakpoint without an entry creates none. After the hit,
        each breakpoint creates an entry with its own TTL, although only the tokens after the hit are charged
        at that TTL's price. The documentation does not specify this; it follows from the formula of the
        usage.
        """
        changes = {}
        for place in requested.keys() | ({hit} if hit >= 0 else set()):
            entry = self._find_entry(keys[place], shared, at)
            if entry is not None and not entry.is_live(at):
                entry = None
            if place <= hit:
                if entry is not None:
                    changes[keys[place]] = entry.refresh(at)
            elif entry is not None:  # in flight, or out of the lookback's reach
                changes[keys[place]] = entry.rewrite(requested[place], at=at, readable_at=readable_at)
            else:
                changes[keys[place]] = write_entry(
                    ends[place], requested[place], at=at, readable_at=readable_at
                )
        return changes


def _requested_entries(
    prompt: CachedPrompt, breakpoints: Mapping[int, Ttl], rules: CacheRules
) -> Mapping[int, Ttl]:
    """The pieces up to which a prefix is to be cached, with their TTLs."""
    last = len(prompt.pieces) - 1
    match rules.caching:
        case CachingMode.BREAKPOINTS:
            return breakpoints
        case CachingMode.AUTOMATIC:
            return dict.fromkeys(range(last + 1), rules.ttls[0])
        case CachingMode.BOTH if prompt.explicit_only:
            return dict(sorted(breakpoints.items())[-rules.max_breakpoints :])
        case CachingMode.BOTH:
            # The provider's own breakpoint at the end counts towards the limit.
            latest = sorted(breakpoints.items())[1 - rules.max_breakpoints :]
            return dict(latest) | ({last: prompt.ttl or rules.ttls[0]} if last >= 0 else {})
        case CachingMode.NONE:
            return {}


def _lookup_order(
    prompt: CachedPrompt, breakpoints: Mapping[int, Ttl], rules: CacheRules, requested: Mapping[int, Ttl]
) -> Iterator[int]:
    """The positions at which the provider looks for an entry, longest prefix first."""
    last, lookback = max(requested, default=-1), rules.lookback_positions
    if prompt.explicit_only and rules.caching is CachingMode.BOTH:
        # "Matched exactly at a breakpoint": at any of the request's own, including those beyond the write
        # limit.
        yield from (at for at in range(last, -1, -1) if at in breakpoints)
        return
    if not lookback:
        yield from range(last, -1, -1)
        return
    pieces, runs = prompt.pieces, rules.runs_are_one_position
    for at, stop in pairwise((*sorted(requested, reverse=True), -1)):
        positions_left = lookback  # positions that this breakpoint still looks at, up to the next one
        while positions_left and at > stop:
            yield at
            at -= 1
            if not (runs and at > stop and is_same_run(pieces[at], pieces[at + 1])):
                positions_left -= 1


def _compute_usage(
    read: int, ends: Sequence[int], requested: Mapping[int, Ttl], *, writes_are_free: bool
) -> CacheUsage:
    """With a hit to A, the last long-TTL breakpoint at B and the last short one at C: A read, B−A and C−B
    written.
    """
    total = ends[-1] if ends else 0
    if writes_are_free:
        return CacheUsage(read=read, uncached=total - read)
    to_long = to_short = 0
    for at, ttl in requested.items():
        if ttl in _LONG_TTLS:
            to_long = max(to_long, ends[at])
        else:
            to_short = max(to_short, ends[at])
    written_1h = max(0, to_long - read)
    written_5m = max(0, to_short - max(read, to_long))
    return CacheUsage(
        uncached=total - read - written_1h - written_5m, read=read, written_5m=written_5m, written_1h=written_1h
    )


_ACTUAL = SimulatedState.KEEP_ALIVE
_STATE_PAIRS = tuple(pairwise(reversed(SimulatedState)))  # last state first
_MAX_SHARED = 512
# A provider that caches without breakpoints caches every prefix. Each request shares its last ones, so that
# the requests of a conversation share most of them.
_SHARED_TAIL_PIECES = 32


class RequestVersion(NamedTuple):
    prompt: CachedPrompt
    breakpoints: Mapping[int, Ttl]

    def is_same_as(self, other: "RequestVersion") -> bool:
        """Return whether the provider would receive the same request."""
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
    tools_end, system_end, _, _ = prompt_layout(version.prompt)
    keys = prefix_keys(version.prompt)
    places = {tools_end - 1, system_end - 1, served.read_pieces - 1, *version.breakpoints}
    if rules.caching is not CachingMode.BREAKPOINTS:
        places.update(range(len(keys) - _SHARED_TAIL_PIECES, len(keys)))
    return [*(keys[at] for at in sorted(places) if 0 <= at < len(keys)), *more]
