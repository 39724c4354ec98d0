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
            ttl=max(self.ttl, ttl, key=lambda ttl: ttl.seconds),
            expires_at=max(self.expires_at, at + ttl.seconds),
            readable_at=min(self.readable_at, readable_at),
        )


def written(tokens: int, ttl: Ttl, *, at: float, readable_at: float) -> Entry:
    """A prefix that is written for the first time."""
    return Entry(tokens, ttl, at + _SECONDS[ttl], readable_at)


_NONE: dict[bytes, Entry] = {}


class Entries(Mapping[bytes, Entry]):
    """Entries by prefix (`prompts.prefixes`).

    They lie in up to 256 drawers, by the last byte of the prefix. A change copies the drawers that it touches
    and shares the others, and drops what is dead in them: a cache of an account's last hour is not copied for
    each request, nor does it grow without end.
    """

    __slots__ = ("_drawers",)

    def __init__(self, entries: Mapping[bytes, Entry] | None = None) -> None:
        self._drawers: dict[bytes, dict[bytes, Entry]] = {}
        for prefix, entry in (entries or {}).items():
            self._drawers.setdefault(prefix[-1:], {})[prefix] = entry

    def __getitem__(self, prefix: bytes) -> Entry:
        return self._drawers[prefix[-1:]][prefix]

    def found(self, prefix: bytes) -> Entry | None:
        """The one of a prefix; None where there is none."""
        return self._drawers.get(prefix[-1:], _NONE).get(prefix)

    def readable(self, prefixes: Sequence[bytes], at: float) -> dict[int, Entry]:
        """Those of `prefixes` that can be read at that time, by their places."""
        if len(prefixes) < 2 * len(self._drawers):
            drawers, found = self._drawers, {}
            for place, prefix in enumerate(prefixes):
                kept = drawers.get(prefix[-1:], _NONE).get(prefix)
                if kept is not None and kept.reads(at):
                    found[place] = kept
            return found
        asked = set(prefixes)
        there = {prefix for drawer in self._drawers.values() for prefix in drawer.keys() & asked}
        if not there:
            return {}
        return {
            place: entry
            for place, prefix in enumerate(prefixes)
            if prefix in there and (entry := self[prefix]).reads(at)
        }

    def __iter__(self) -> Iterator[bytes]:
        return (prefix for drawer in self._drawers.values() for prefix in drawer)

    def __len__(self) -> int:
        return sum(map(len, self._drawers.values()))

    def __repr__(self) -> str:
        return f"Entries({dict(self)!r})"

    def changed(self, changes: Mapping[bytes, Entry], *, at: float) -> "Entries":
        """These with `changes` put in."""
        after = Entries()
        after._drawers = self._drawers.copy()
        fresh: set[bytes] = set()
        for prefix, entry in changes.items():
            name = prefix[-1:]
            if name not in fresh:
                fresh.add(name)
                drawer = after._drawers.get(name, {})
                after._drawers[name] = {key: kept for key, kept in drawer.items() if kept.lives(at)}
            after._drawers[name][prefix] = entry
        return after
