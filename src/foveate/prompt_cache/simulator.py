"""The provider's cache as a value: what a request would read, write and be billed, and the cache after it.

Three kinds are known. Where a provider keeps what is marked (Anthropic), each mark looks for an entry at itself
and at some positions before it, and what lies between the longest that is found and the last mark is written.
Where it keeps everything (OpenAI before GPT-5.6), the longest prefix of whole pieces that was sent before is
read, in steps. From GPT-5.6 on OpenAI puts a mark of its own at the end, and takes others on top.

What a provider keeps, as a value that can be changed a little at the price of a little.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from foveate.model import CacheUsage, Ttl
from foveate.prompt_cache.prompt.cached_prompt import (
    CachedPrompt,
    is_same_run,
    prefix_keys,
    prompt_layout,
    token_ends,
)
from foveate.prompt_cache.rules import CacheRules, CachingMode

_TTL_SECONDS = {ttl: ttl.seconds for ttl in Ttl}  # a look, where each would be read from its name again


class CacheEntry(NamedTuple):
    """A prefix that the provider keeps: `tokens` long, until `expires_at`, readable from `readable_at` on.

    `ttl` is for how long each use keeps it. A tuple, since every use makes another one.
    """

    tokens: int
    ttl: Ttl
    expires_at: float
    readable_at: float

    def is_live(self, at: float) -> bool:
        """Whether it is kept at that time."""
        return at <= self.expires_at

    def is_readable(self, at: float) -> bool:
        """Whether it is kept then, and the answer to the request that wrote it has begun."""
        return self.readable_at <= at <= self.expires_at

    def refresh(self, at: float) -> "CacheEntry":
        """The same after a use, which keeps it for its time again."""
        tokens, ttl, expires_at, readable_at = self
        return CacheEntry(tokens, ttl, max(expires_at, at + _TTL_SECONDS[ttl]), readable_at)

    def rewrite(self, ttl: Ttl, *, at: float, readable_at: float) -> "CacheEntry":
        """The same, written once more: for the longer time, and readable as soon as one of both is."""
        return CacheEntry(
            tokens=self.tokens,
            ttl=max(self.ttl, ttl, key=_TTL_SECONDS.__getitem__),
            expires_at=max(self.expires_at, at + _TTL_SECONDS[ttl]),
            readable_at=min(self.readable_at, readable_at),
        )

    def merge(self, other: "CacheEntry") -> "CacheEntry":
        """The same entry, of which two requests know different parts."""
        if self == other:
            return self
        return CacheEntry(
            tokens=self.tokens,
            ttl=max(self.ttl, other.ttl, key=_TTL_SECONDS.__getitem__),
            expires_at=max(self.expires_at, other.expires_at),
            readable_at=min(self.readable_at, other.readable_at),
        )


def write_entry(tokens: int, ttl: Ttl, *, at: float, readable_at: float) -> CacheEntry:
    """A prefix that is written for the first time."""
    return CacheEntry(tokens, ttl, at + _TTL_SECONDS[ttl], readable_at)


# So many changes are put in before all is gone through once, and what is dead dropped.
_MAX_RECENT = 128


class CacheEntries(Mapping[bytes, CacheEntry]):
    """Entries by prefix (`prompts.prefixes`).

    What was changed last lies before the others, which are shared: a change copies only that little, so that a
    cache of an account's last hour is not copied for each request. Now and then both are put together, without
    what is dead, so that it does not grow without end.
    """

    __slots__ = ("_older", "_recent")

    def __init__(self, entries: Mapping[bytes, CacheEntry] | None = None) -> None:
        self._older: dict[bytes, CacheEntry] = dict(entries or {})
        self._recent: dict[bytes, CacheEntry] = {}

    def __getitem__(self, prefix: bytes) -> CacheEntry:
        found = self.find(prefix)
        if found is None:
            raise KeyError(prefix)
        return found

    def find(self, prefix: bytes) -> CacheEntry | None:
        """The one of a prefix; None where there is none."""
        return self._recent.get(prefix) or self._older.get(prefix)

    def find_readable(self, prefixes: Sequence[bytes], at: float) -> dict[int, CacheEntry]:
        """Those of `prefixes` that can be read at that time, by their places."""
        found: dict[int, CacheEntry] = {}
        for entries in (self._older, self._recent):
            if entries:
                entries_at = map(entries.get, prefixes)
                found |= {place: entry for place, entry in enumerate(entries_at) if entry is not None}
        return {place: entry for place, entry in found.items() if entry.is_readable(at)}

    def last_readable(self, prefixes: Sequence[bytes], before: int, at: float, ttl: Ttl | None = None) -> int:
        """The last of the first `before` prefixes that can be read at that time, or -1.

        Of those that are kept for `ttl`, where that is said.
        """
        recent, older = self._recent.get, self._older.get
        if ttl is not None and not any(
            entry.ttl is ttl for entries in (self._recent, self._older) for entry in entries.values()
        ):
            return -1
        for place in range(before - 1, -1, -1):
            prefix = prefixes[place]
            entry = recent(prefix) or older(prefix)
            if entry is not None and entry.is_readable(at) and (ttl is None or entry.ttl is ttl):
                return place
        return -1

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._older | self._recent)

    def __bool__(self) -> bool:
        return bool(self._recent or self._older)

    def __len__(self) -> int:
        return len(self._older | self._recent)

    @property
    def max_size(self) -> int:
        """How many there are at most; counted faster than by `len`."""
        return len(self._older) + len(self._recent)

    def __repr__(self) -> str:
        return f"Entries({dict(self)!r})"

    def with_changes(self, changes: Mapping[bytes, CacheEntry], *, at: float) -> "CacheEntries":
        """These with `changes` put in."""
        after = CacheEntries()
        after._older, after._recent = self._older, {**self._recent, **changes}
        if len(after._recent) > _MAX_RECENT:
            merged = self._older | after._recent
            after._older = {prefix: entry for prefix, entry in merged.items() if entry.is_live(at)}
            after._recent = {}
        return after


_LONG_TTLS = frozenset((Ttl.ONE_HOUR, Ttl.TWELVE_HOURS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """One request as it would be billed, and the cache that it leaves behind.

    `read_pieces` is how many pieces were read from the cache.
    """

    usage: CacheUsage
    read_pieces: int
    cache: "SimulatedCache"


@dataclass(frozen=True, slots=True)
class SimulatedCache:
    """Everything that is kept, by prefix (`prompts.prefixes`)."""

    entries: CacheEntries = field(default_factory=CacheEntries)

    def serve(
        self, prompt: CachedPrompt, rules: CacheRules, *, at: float, response_at: float | None = None
    ) -> ServedRequest:
        """`prompt` sent at `at`, its answer beginning at `answers_at` (at once where it is not said)."""
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
        """The same of a prompt whose marks are told beside it, by the pieces that they stand on.

        `shared` are entries that the provider may read besides these.
        """
        ends, keys, min_tokens = token_ends(prompt), prefix_keys(prompt), rules.minimum_tokens
        requested = {
            place: ttl
            for place, ttl in _requested_entries(prompt, breakpoints, rules).items()
            if ends[place] >= min_tokens
        }
        if not requested:  # then nothing is read either
            return ServedRequest(usage=CacheUsage(uncached=ends[-1] if ends else 0), read_pieces=0, cache=self)
        hit = next(
            (
                place
                for place in _lookup_order(prompt, breakpoints, rules, requested)
                if (entry := self._find_entry(keys[place], shared, at)) is not None and entry.is_readable(at)
            ),
            -1,
        )
        return self.apply_hit(
            keys, ends, requested, rules, hit=hit, at=at, response_at=response_at, shared=shared
        )

    def apply_hit(
        self,
        keys: Sequence[bytes],
        ends: Sequence[int],
        requested: Mapping[int, Ttl],
        rules: CacheRules,
        *,
        hit: int,
        at: float,
        response_at: float | None = None,
        shared: Mapping[bytes, CacheEntry] | None = None,
    ) -> ServedRequest:
        """The same where what is read is found already: up to the place `hit`, nothing where that is -1.

        `asked` are the places that something is kept up to. Others than these, the hit and the last need not be
        told; `read_pieces` then counts those that are.
        """
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
        """The entry of a prefix: one of the shared ones if only that can be read."""
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
        """What this request uses or writes.

        Up to the hit nothing is billed as written, so nothing is: an entry there keeps the time that it was
        written for, also under a mark that asks for a longer one, and a mark without an entry leaves none.
        Behind it each mark leaves one, which is kept for the mark's time whole, though only what lies behind
        the hit was paid for at that time's price. Documentation settles none of these; the formula of the bill
        does.
        """
        changes = {}
        for place in requested.keys() | ({hit} if hit >= 0 else set()):
            entry = self._find_entry(keys[place], shared, at)
            if entry is not None and not entry.is_live(at):
                entry = None
            if place <= hit:
                if entry is not None:
                    changes[keys[place]] = entry.refresh(at)
            elif entry is not None:  # in flight, or out of a mark's sight
                changes[keys[place]] = entry.rewrite(requested[place], at=at, readable_at=readable_at)
            else:
                changes[keys[place]] = write_entry(
                    ends[place], requested[place], at=at, readable_at=readable_at
                )
        return changes


def _requested_entries(
    prompt: CachedPrompt, breakpoints: Mapping[int, Ttl], rules: CacheRules
) -> Mapping[int, Ttl]:
    """The pieces up to which something is to be kept, and for how long."""
    last = len(prompt.pieces) - 1
    match rules.caching:
        case CachingMode.BREAKPOINTS:
            return breakpoints
        case CachingMode.AUTOMATIC:
            return dict.fromkeys(range(last + 1), rules.ttls[0])
        case CachingMode.BOTH if prompt.explicit_only:
            return dict(sorted(breakpoints.items())[-rules.max_breakpoints :])
        case CachingMode.BOTH:
            # The provider's own mark at the end is one of those that it writes.
            latest = sorted(breakpoints.items())[1 - rules.max_breakpoints :]
            return dict(latest) | ({last: prompt.ttl or rules.ttls[0]} if last >= 0 else {})
        case CachingMode.NONE:
            return {}


def _lookup_order(
    prompt: CachedPrompt, breakpoints: Mapping[int, Ttl], rules: CacheRules, requested: Mapping[int, Ttl]
) -> Iterator[int]:
    """Where an entry would be found, the longest prefix first."""
    last, lookback = max(requested, default=-1), rules.lookback_positions
    if prompt.explicit_only and rules.caching is CachingMode.BOTH:
        # "Matched exactly at a breakpoint": at any of the request's own, also those too many to be written.
        yield from (at for at in range(last, -1, -1) if at in breakpoints)
        return
    if not lookback:
        yield from range(last, -1, -1)
        return
    pieces, runs = prompt.pieces, rules.runs_are_one_position
    for at, stop in pairwise((*sorted(requested, reverse=True), -1)):
        positions_left = lookback  # positions that the mark here still looks at, up to the next one
        while positions_left and at > stop:
            yield at
            at -= 1
            if not (runs and at > stop and is_same_run(pieces[at], pieces[at + 1])):
                positions_left -= 1


def _compute_usage(
    read: int, ends: Sequence[int], requested: Mapping[int, Ttl], *, writes_are_free: bool
) -> CacheUsage:
    """With a hit to A, the last long mark at B and the last short one at C: A read, B−A and C−B written."""
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
