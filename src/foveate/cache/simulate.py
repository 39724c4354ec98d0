"""The provider's cache as a value: what a request would read, write and be billed, and the cache after it.

Three kinds are known. Where a provider keeps what is marked (Anthropic), each mark looks for an entry at itself
and at some positions before it, and what lies between the longest that is found and the last mark is written.
Where it keeps everything (OpenAI before GPT-5.6), the longest prefix of whole pieces that was sent before is
read, in steps. From GPT-5.6 on OpenAI puts a mark of its own at the end, and takes others on top.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from foveate.cache.entries import CacheEntries, CacheEntry, write_entry
from foveate.cache.prompts import CachedPrompt, is_same_run, prefix_keys, prompt_layout, token_ends
from foveate.cache.rules import CacheRules, CachingMode
from foveate.values import CacheUsage, Ttl

__all__ = ["CacheEntry", "ServedRequest", "SimulatedCache"]

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
