"""What a provider keeps, as a value that can be changed a little at the price of a little."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from foveate.values import Ttl

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
