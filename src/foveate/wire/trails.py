"""Conversations seen before, as a tree: each message a link that hangs on what was said before it.

A client sends its whole past with every request. A past that was seen before is found here by its bytes, one
look a message, and with it whatever was found out about it: nothing of it is read, hashed or counted again.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from foveate.values import Format
from foveate.wire.body import as_text, inner_fields, value

# Of each of two generations: a few hundred sessions of a coding agent.
_KEPT_BYTES = 48 * 1024 * 1024
# What a link takes beside its bytes and its blocks, and what a note does, about.
_LINK_BYTES = 512
_NOTE_BYTES = 384
# Its blocks, hash and role, and what a few counters and caches have made of it.
_MOST_CARRIED = 24
# Conversations of which something is held whole, and how many messages a turn may bring.
_KEPT_LATEST = 128
_LOOKED_BACK = 16

Made = TypeVar("Made")

_SYSTEM_ROLES = frozenset(("system", "developer"))


class Notes(dict[object, Any]):
    """What was found out about a message, each thing under a key of its own; how many there are is known."""

    __slots__ = ()
    made = 0

    def __setitem__(self, key: object, note: Any) -> None:
        """Note something."""
        Notes.made += 1
        super().__setitem__(key, note)


class Link:
    """A message with all that stands before it; `raw` are its bytes.

    Under keys of their own, rooms note in `known` what they have found out about it. A note may depend on the
    messages before it, never on those after it.
    """

    __slots__ = ("after", "carries", "known", "raw")

    def __init__(self, raw: bytes, known: Notes, *, carries: bool = True) -> None:
        """Where it `carries`, what follows it may bring notes along from an older generation."""
        self.raw = raw
        self.known = known
        self.carries = carries
        self.after: dict[bytes, Link] = {}


@dataclass(frozen=True, slots=True)
class Trail:
    """The messages of one request as links, without the `head` system messages with which it begins.

    Those hold the time of day, and would make every conversation a new one.
    """

    head: int
    links: Sequence[Link]


class Trails:
    """The tree, held in two generations: when the younger one is full, the older one is forgotten.

    Safe to share between threads: at worst something is found out twice.
    """

    def __init__(self, most_bytes: int = _KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self.drop()

    def drop(self) -> None:
        """Forget all of it."""
        self._young: dict[Format, Link] = {}
        self._old: dict[Format, Link] = {}
        self._young_bytes = 0
        self._notes_before = Notes.made
        self._last: tuple[Format | None, Sequence[bytes], Trail] = None, (), Trail(0, ())

    @property
    def held_bytes(self) -> int:
        """How much the younger generation holds, about."""
        return self._young_bytes + _NOTE_BYTES * (Notes.made - self._notes_before)

    def of(self, spoken: Format, raws: tuple[bytes, ...]) -> Trail:
        """The trail of these messages."""
        last_spoken, last_raws, last = self._last
        if raws is last_raws and spoken is last_spoken:  # asked for by the next who has to do with the request
            return last
        head = self._head(spoken, raws)
        if self.held_bytes > self._most_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
            self._notes_before = Notes.made
        link = self._young.setdefault(spoken, Link(b"", Notes()))
        old = self._old.get(spoken)
        found: list[Link] = []
        for raw in raws[head:] if head else raws:
            after = link.after.get(raw)
            old = old.after.get(raw) if old is not None else None
            if after is None:
                # Notes come with models and agents that clients name, and there is no end of these. What hangs
                # on a link without its notes has none either, so that nothing is noted after what is not.
                carries = link.carries and old is not None and len(old.known) <= _MOST_CARRIED
                if old is None or not carries:
                    after = Link(raw, Notes(), carries=link.carries and old is None)
                else:
                    after = Link(old.raw, old.known)
                link.after[after.raw] = after
                self._young_bytes += 2 * len(raw) + _LINK_BYTES
            found.append(after)
            link = after
        trail = Trail(head, found)
        self._last = spoken, raws, trail
        return trail

    def _head(self, spoken: Format, raws: tuple[bytes, ...]) -> int:
        """How many system messages stand first. Later ones are part of the conversation."""
        begun = self._young.get(spoken)
        if begun is not None and raws and raws[0] in begun.after:
            return 0
        for number, raw in enumerate(raws):
            if as_text(value(inner_fields(raw).get("role"))) not in _SYSTEM_ROLES:
                return number
        return len(raws)


class Latest(Generic[Made]):
    """What was made of whole conversations, under their last messages; of those that were last asked for.

    The next request of a conversation is a turn longer, so that all there is to do is to go on from there.
    """

    def __init__(self, most: int = _KEPT_LATEST) -> None:
        self._most = most
        self.drop()

    def drop(self) -> None:
        """Forget all of it."""
        self._held: dict[tuple[Link, object], Made] = {}

    def before(self, links: Sequence[Link], key: object = None) -> tuple[int, Made] | None:
        """What was made of a beginning of these, and of how many; None where that is too long ago."""
        for size in range(len(links), max(0, len(links) - _LOOKED_BACK), -1):
            found = self._held.get((links[size - 1], key))
            if found is not None:
                return size, found
        return None

    def put(self, links: Sequence[Link], made: Made, key: object = None, *, instead_of: int = 0) -> None:
        """Hold what was made of these, in the place of what was made of the first `instead_of`."""
        if instead_of:
            self._held.pop((links[instead_of - 1], key), None)
        if not links:
            return
        self._held[links[-1], key] = made
        if len(self._held) > self._most:
            with suppress(StopIteration, KeyError, RuntimeError):  # another thread was quicker
                del self._held[next(iter(self._held))]


def noted(links: Sequence[Link], key: object) -> int:
    """How many of these have a note under `key`; notes are made from the first on."""
    for size in range(len(links), 0, -1):
        if key in links[size - 1].known:
            return size
    return 0


TRAILS = Trails()
