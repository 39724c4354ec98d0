"""The provider's cache as a value: what a request would read, write and be billed, and the cache after it.

Three kinds are known. Where a provider keeps what is marked (Anthropic), each mark looks for an entry at itself
and at some positions before it, and what lies between the longest that is found and the last mark is written.
Where it keeps everything (OpenAI before GPT-5.6), the longest prefix of whole pieces that was sent before is
read, in steps. From GPT-5.6 on OpenAI puts a mark of its own at the end, and takes others on top.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from foveate.cache.entries import Entries, Entry, written
from foveate.cache.prompts import CachedPrompt, ends_of, goes_on, landmarks_of, prefixes
from foveate.cache.rules import Caching, Rules
from foveate.values import CacheUsage, Ttl

__all__ = ["Cache", "Entry", "Served"]

_LONG = frozenset((Ttl.ONE_HOUR, Ttl.TWELVE_HOURS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One request as it would be billed, and the cache that it leaves behind.

    `read_pieces` is how many pieces were read from the cache.
    """

    usage: CacheUsage
    read_pieces: int
    cache: "Cache"


@dataclass(frozen=True, slots=True)
class Cache:
    """Everything that is kept, by prefix (`prompts.prefixes`)."""

    entries: Entries = field(default_factory=Entries)

    def serve(
        self, prompt: CachedPrompt, rules: Rules, *, at: float, answers_at: float | None = None
    ) -> Served:
        """`prompt` sent at `at`, its answer beginning at `answers_at` (at once where it is not said)."""
        return self.serve_marked(prompt, landmarks_of(prompt).marks, rules, at=at, answers_at=answers_at)

    def serve_marked(
        self,
        prompt: CachedPrompt,
        marks: Mapping[int, Ttl],
        rules: Rules,
        *,
        at: float,
        answers_at: float | None = None,
        shared: Mapping[bytes, Entry] | None = None,
    ) -> Served:
        """The same of a prompt whose marks are told beside it, by the pieces that they stand on.

        `shared` are entries that the provider may read besides these.
        """
        ends, keys, least = ends_of(prompt), prefixes(prompt), rules.minimum_tokens
        asked = {place: ttl for place, ttl in _asked(prompt, marks, rules).items() if ends[place] >= least}
        if not asked:  # then nothing is read either
            return Served(usage=CacheUsage(uncached=ends[-1] if ends else 0), read_pieces=0, cache=self)
        hit = next(
            (
                place
                for place in _places(prompt, marks, rules, asked)
                if (entry := self._find(keys[place], shared, at)) is not None and entry.reads(at)
            ),
            -1,
        )
        return self.settled(keys, ends, asked, rules, hit=hit, at=at, answers_at=answers_at, shared=shared)

    def settled(
        self,
        keys: Sequence[bytes],
        ends: Sequence[int],
        asked: Mapping[int, Ttl],
        rules: Rules,
        *,
        hit: int,
        at: float,
        answers_at: float | None = None,
        shared: Mapping[bytes, Entry] | None = None,
    ) -> Served:
        """The same where what is read is found already: up to the place `hit`, nothing where that is -1.

        `asked` are the places that something is kept up to. Others than these, the hit and the last need not be
        told; `read_pieces` then counts those that are.
        """
        read = ends[hit] // rules.step_tokens * rules.step_tokens if hit >= 0 else 0
        readable_at = at if answers_at is None else max(at, answers_at)
        changes = self._changes(keys, ends, asked, shared, hit=hit, at=at, readable_at=readable_at)
        return Served(
            usage=_bill(read, ends, asked, free=rules.caching is Caching.AUTOMATIC),
            read_pieces=hit + 1,
            cache=Cache(self.entries.changed(changes, at=at)) if changes else self,
        )

    def _find(self, key: bytes, shared: Mapping[bytes, Entry] | None, at: float) -> Entry | None:
        """The entry of a prefix: one of the shared ones if only that can be read."""
        entry = self.entries.found(key)
        if shared and (entry is None or not entry.reads(at)):
            other = shared.get(key)
            if other is not None and other.reads(at):
                return other
        return entry

    def _changes(
        self,
        keys: Sequence[bytes],
        ends: Sequence[int],
        asked: Mapping[int, Ttl],
        shared: Mapping[bytes, Entry] | None,
        *,
        hit: int,
        at: float,
        readable_at: float,
    ) -> dict[bytes, Entry]:
        """What this request uses or writes.

        Up to the hit nothing is billed as written, so nothing is: an entry there keeps the time that it was
        written for, also under a mark that asks for a longer one, and a mark without an entry leaves none.
        Behind it each mark leaves one, which is kept for the mark's time whole, though only what lies behind
        the hit was paid for at that time's price. Documentation settles none of these; the formula of the bill
        does.
        """
        changes = {}
        for place in asked.keys() | ({hit} if hit >= 0 else set()):
            entry = self._find(keys[place], shared, at)
            if entry is not None and not entry.lives(at):
                entry = None
            if place <= hit:
                if entry is not None:
                    changes[keys[place]] = entry.used(at)
            elif entry is not None:  # in flight, or out of a mark's sight
                changes[keys[place]] = entry.kept(asked[place], at=at, readable_at=readable_at)
            else:
                changes[keys[place]] = written(ends[place], asked[place], at=at, readable_at=readable_at)
        return changes


def _asked(prompt: CachedPrompt, marked: Mapping[int, Ttl], rules: Rules) -> Mapping[int, Ttl]:
    """The pieces up to which something is to be kept, and for how long."""
    last = len(prompt.pieces) - 1
    match rules.caching:
        case Caching.MARKS:
            return marked
        case Caching.AUTOMATIC:
            return dict.fromkeys(range(last + 1), rules.ttls[0])
        case Caching.BOTH if prompt.only_marked:
            return dict(sorted(marked.items())[-rules.most_marks :])
        case Caching.BOTH:
            # The provider's own mark at the end is one of those that it writes.
            latest = sorted(marked.items())[1 - rules.most_marks :]
            return dict(latest) | ({last: prompt.ttl or rules.ttls[0]} if last >= 0 else {})
        case Caching.NONE:
            return {}


def _places(
    prompt: CachedPrompt, marked: Mapping[int, Ttl], rules: Rules, asked: Mapping[int, Ttl]
) -> Iterator[int]:
    """Where an entry would be found, the longest prefix first."""
    last, reach = max(asked, default=-1), rules.lookback_positions
    if prompt.only_marked and rules.caching is Caching.BOTH:
        # "Matched exactly at a breakpoint": at any of the request's own, also those too many to be written.
        yield from (at for at in range(last, -1, -1) if at in marked)
        return
    if not reach:
        yield from range(last, -1, -1)
        return
    pieces, runs = prompt.pieces, rules.runs_are_one_position
    for at, stop in pairwise((*sorted(asked, reverse=True), -1)):
        left = reach  # positions that the mark here still looks at, up to the next one
        while left and at > stop:
            yield at
            at -= 1
            if not (runs and at > stop and goes_on(pieces[at], pieces[at + 1])):
                left -= 1


def _bill(read: int, ends: Sequence[int], asked: Mapping[int, Ttl], *, free: bool) -> CacheUsage:
    """With a hit to A, the last long mark at B and the last short one at C: A read, B−A and C−B written."""
    total = ends[-1] if ends else 0
    if free:
        return CacheUsage(read=read, uncached=total - read)
    to_long = to_short = 0
    for at, ttl in asked.items():
        if ttl in _LONG:
            to_long = max(to_long, ends[at])
        else:
            to_short = max(to_short, ends[at])
    written_1h = max(0, to_long - read)
    written_5m = max(0, to_short - max(read, to_long))
    return CacheUsage(
        uncached=total - read - written_1h - written_5m, read=read, written_5m=written_5m, written_1h=written_1h
    )
