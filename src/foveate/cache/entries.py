"""What a provider keeps, as a value that can be changed a little at the price of a little."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from foveate.values import Ttl

_SECONDS = {ttl: ttl.seconds for ttl in Ttl}  # a look, where each would be read from its name again


class Entry(NamedTuple):
    """A prefix that the provider keeps: `tokens` long, until `expires_at`, readable from `readable_at` on.

    `ttl` is for how long each use keeps it. A tuple, since every use makes another one.
    """

    tokens: int
    ttl: Ttl
    expires_at: float
    readable_at: float

    def lives(self, at: float) -> bool:
        """Whether it is kept at that time."""
        return at <= self.expires_at

    def reads(self, at: float) -> bool:
        """Whether it is kept then, and the answer to the request that wrote it has begun."""
        return self.readable_at <= at <= self.expires_at

    def used(self, at: float) -> "Entry":
        """The same after a use, which keeps it for its time again."""
        tokens, ttl, expires_at, readable_at = self
        return Entry(tokens, ttl, max(expires_at, at + _SECONDS[ttl]), readable_at)

    def kept(self, ttl: Ttl, *, at: float, readable_at: float) -> "Entry":
        """The same, written once more: for the longer time, and readable as soon as one of both is."""
        return Entry(
            tokens=self.tokens,
            ttl=max(self.ttl, ttl, key=_SECONDS.__getitem__),
            expires_at=max(self.expires_at, at + _SECONDS[ttl]),
            readable_at=min(self.readable_at, readable_at),
        )

    def merged(self, other: "Entry") -> "Entry":
        """The same entry, of which two requests know different parts."""
        if self == other:
            return self
        return Entry(
            tokens=self.tokens,
            ttl=max(self.ttl, other.ttl, key=_SECONDS.__getitem__),
            expires_at=max(self.expires_at, other.expires_at),
            readable_at=min(self.readable_at, other.readable_at),
        )


def written(tokens: int, ttl: Ttl, *, at: float, readable_at: float) -> Entry:
    """A prefix that is written for the first time."""
    return Entry(tokens, ttl, at + _SECONDS[ttl], readable_at)


# So many changes are put in before all is gone through once, and what is dead dropped.
_MOST_RECENT = 128


class Entries(Mapping[bytes, Entry]):
    """Entries by prefix (`prompts.prefixes`).

    What was changed last lies before the others, which are shared: a change copies only that little, so that a
    cache of an account's last hour is not copied for each request. Now and then both are put together, without
    what is dead, so that it does not grow without end.
    """

    __slots__ = ("_others", "_recent")

    def __init__(self, entries: Mapping[bytes, Entry] | None = None) -> None:
        self._others: dict[bytes, Entry] = dict(entries or {})
        self._recent: dict[bytes, Entry] = {}

    def __getitem__(self, prefix: bytes) -> Entry:
        found = self.found(prefix)
        if found is None:
            raise KeyError(prefix)
        return found

    def found(self, prefix: bytes) -> Entry | None:
        """The one of a prefix; None where there is none."""
        return self._recent.get(prefix) or self._others.get(prefix)

    def readable(self, prefixes: Sequence[bytes], at: float) -> dict[int, Entry]:
        """Those of `prefixes` that can be read at that time, by their places."""
        there: dict[int, Entry] = {}
        for entries in (self._others, self._recent):
            if entries:
                kept = map(entries.get, prefixes)
                there |= {place: entry for place, entry in enumerate(kept) if entry is not None}
        return {place: entry for place, entry in there.items() if entry.reads(at)}

    def last(self, prefixes: Sequence[bytes], before: int, at: float, ttl: Ttl | None = None) -> int:
        """The last of the first `before` prefixes that can be read at that time, or -1.

        Of those that are kept for `ttl`, where that is said.
        """
        recent, others = self._recent.get, self._others.get
        if ttl is not None and not any(
            entry.ttl is ttl for entries in (self._recent, self._others) for entry in entries.values()
        ):
            return -1
        for place in range(before - 1, -1, -1):
            prefix = prefixes[place]
            entry = recent(prefix) or others(prefix)
            if entry is not None and entry.reads(at) and (ttl is None or entry.ttl is ttl):
                return place
        return -1

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._others | self._recent)

    def __bool__(self) -> bool:
        return bool(self._recent or self._others)

    def __len__(self) -> int:
        return len(self._others | self._recent)

    @property
    def size(self) -> int:
        """How many there are at most; counted faster than by `len`."""
        return len(self._others) + len(self._recent)

    def __repr__(self) -> str:
        return f"Entries({dict(self)!r})"

    def changed(self, changes: Mapping[bytes, Entry], *, at: float) -> "Entries":
        """These with `changes` put in."""
        after = Entries()
        after._others, after._recent = self._others, {**self._recent, **changes}
        if len(after._recent) > _MOST_RECENT:
            together = self._others | after._recent
            after._others = {prefix: entry for prefix, entry in together.items() if entry.lives(at)}
            after._recent = {}
        return after
