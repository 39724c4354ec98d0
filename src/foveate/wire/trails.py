"""Conversations seen before, as a tree: each message a link that hangs on what was said before it.

A client sends its whole past with every request. A past that was seen before is found here by its bytes, one
look a message, and with it whatever was found out about it: nothing of it is read, hashed or counted again.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from foveate.values import Format, Request
from foveate.wire.body import role_of

# Of each of two generations: a few hundred sessions of a coding agent.
_KEPT_BYTES = 48 * 1024 * 1024
# What a link takes beside its bytes and its blocks, and what a note does, about.
_LINK_BYTES = 512
_NOTE_BYTES = 384
# Each block is kept as several objects.
_OBJECT_BYTES = 1024
# Its blocks, hash and role, and what a few counters and caches have made of it.
_MOST_CARRIED = 24
# Conversations of which something is held whole, and how many messages a turn may bring.
_KEPT_LATEST = 128
_LOOKED_BACK = 16
# So many are walked through as quickly as they are compared with those that were.
_FEW_MESSAGES = 16

Made = TypeVar("Made")
Key = TypeVar("Key")
Held = TypeVar("Held")

_SYSTEM_ROLES = frozenset(("system", "developer"))


class _Made:
    """How many notes were made. No attribute of their class: changing one costs all that looks anything up."""

    __slots__ = ("notes",)

    def __init__(self) -> None:
        self.notes = 0


_MADE = _Made()


class Notes(dict[object, Any]):
    """What was found out about a message, each thing under a key of its own; how many there are is known."""

    __slots__ = ()

    def __setitem__(self, key: object, note: Any) -> None:
        """Note something."""
        _MADE.notes += 1
        super().__setitem__(key, note)


class Link:
    """A message with all that stands before it; `raw` are its bytes.

    Under keys of their own, rooms note in `known` what they have found out about it. A note may depend on the
    messages before it, never on those after it.
    """

    __slots__ = ("_role", "after", "carries", "is_remembered", "known", "raw")

    def __init__(
        self, raw: bytes, known: dict[object, Any], *, carries: bool = True, is_remembered: bool = True
    ) -> None:
        """Where it `carries`, what follows it may bring notes along from an older generation.

        One that is not remembered is gone with its request: nothing may hold it for the next.
        """
        self.raw = raw
        self.known = known
        self.carries = carries
        self.is_remembered = is_remembered
        self.after: dict[bytes, Link] = {}
        self._role: str | None = None

    @property
    def role(self) -> str:
        """Who speaks; nobody where the message does not say."""
        if self._role is None:
            self._role = role_of(self.raw)
        return self._role


class Trail(msgspec.Struct, frozen=True):
    """The messages of one request as links, without the `head` system messages with which it begins.

    Those hold the time of day, and would make every conversation a new one.
    """

    head: int
    links: Sequence[Link]


class Alone(NamedTuple):
    """The trail of a request that is too large to be remembered."""

    raws: tuple[bytes, ...]
    trail: Trail

    @classmethod
    def of(cls, raws: tuple[bytes, ...]) -> "Alone":
        """The trail of these messages, which nobody else finds."""
        head = next((at for at, raw in enumerate(raws) if role_of(raw) not in _SYSTEM_ROLES), len(raws))
        return cls(raws, Trail(head, [Link(raw, {}, is_remembered=False) for raw in raws[head:]]))


class _Asked(NamedTuple):
    """A trail that was asked for, with its messages."""

    spoken: Format | None
    raws: Sequence[bytes]
    trail: Trail


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
        self._notes_before = _MADE.notes
        # The last two: a request is asked for by turns as it came and as it goes out.
        self._last = self._before_last = _Asked(None, (), Trail(0, ()))
        # Under the first message of a long conversation, how it was last walked through.
        self._walked: dict[Link, tuple[tuple[bytes, ...], list[Link]]] = {}

    @property
    def held_bytes(self) -> int:
        """How much the younger generation holds, about."""
        return self._young_bytes + _NOTE_BYTES * (_MADE.notes - self._notes_before)

    def of(self, spoken: Format, raws: tuple[bytes, ...]) -> Trail:
        """The trail of these messages."""
        for asked in (self._last, self._before_last):
            if raws is asked.raws and spoken is asked.spoken:
                return asked.trail
        if self.held_bytes > self._most_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
            self._notes_before = _MADE.notes
            self._walked = {}
        begun = self._young.get(spoken)
        if begun is None:
            begun = self._young[spoken] = Link(b"", Notes())
        head = _head(begun, raws)
        said = raws[head:] if head else raws
        trail = Trail(head, self._links(begun, self._old.get(spoken), said))
        self._before_last, self._last = self._last, _Asked(spoken, raws, trail)
        return trail

    def twin(self, trail: Trail, position: int) -> Link | None:
        """The same message in the other of the last two trails, if that ends as this one does.

        So a request that came with a long history and goes out with a short one has its new messages read once.
        """
        last, before = self._last, self._before_last
        if last.trail is not trail:
            last, before = before, last
        from_end, others = position - len(trail.links), before.trail.links
        if last.trail is not trail or last.spoken is not before.spoken or len(others) < -from_end:
            return None
        twin = others[from_end]
        return twin if twin.raw == trail.links[position].raw else None

    def _links(self, link: Link, old: Link | None, raws: tuple[bytes, ...]) -> list[Link]:
        """The links of these messages, from the first ones on; `old` are those of the older generation."""
        found: list[Link] = []
        known: tuple[bytes, ...] = ()
        is_long = len(raws) > _FEW_MESSAGES
        if is_long and (walked := self._walked.get(link.after.get(raws[0], link))) is not None:
            size = _common(walked[0], raws)
            # What the older generation knows of the rest is not looked for, so nothing may come from there.
            known, found, link, old = walked[0][:size], walked[1][:size], walked[1][size - 1], None
        carries = not found
        for raw in raws[len(found) :]:
            after = link.after.get(raw)
            old = old.after.get(raw) if old is not None else None
            if after is None:
                # Notes come with models and agents that clients name, and there is no end of these. What hangs
                # on a link without its notes has none either, so that nothing is noted after what is not.
                if old is not None and link.carries and len(old.known) <= _MOST_CARRIED:
                    after = Link(old.raw, old.known)
                else:
                    after = Link(raw, Notes(), carries=carries and link.carries and old is None)
                link.after[after.raw] = after
                self._young_bytes += 2 * len(raw) + _LINK_BYTES + _OBJECT_BYTES * raw.count(b"{")
            found.append(after)
            link = after
        if is_long:
            # With the bytes that the links hold already: those that came may be others that say the same.
            own = known + tuple([link.raw for link in found[len(known) :]])
            _held(self._walked, found[0], (own, found), _KEPT_LATEST)
        return found


def _head(begun: Link, raws: tuple[bytes, ...]) -> int:
    """How many system messages stand first. Later ones are part of the conversation."""
    for number, raw in enumerate(raws):
        if raw in begun.after or role_of(raw) not in _SYSTEM_ROLES:
            return number
    return len(raws)


def _common(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> int:
    """How many messages two conversations that begin with the same one have in common."""
    low, high = 1, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _held(held: dict[Key, Held], key: Key, one: Held, most: int) -> None:
    """Hold one more, and forget the one that has been held the longest where they are too many."""
    held[key] = one
    if len(held) > most:
        with suppress(StopIteration, KeyError, RuntimeError):  # another thread was quicker
            del held[next(iter(held))]


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
        if not links or not links[-1].is_remembered:
            return
        _held(self._held, (links[-1], key), made, self._most)


def noted(links: Sequence[Link], key: object) -> int:
    """How many of these have a note under `key`; notes are made from the first on."""
    for size in range(len(links), 0, -1):
        if key in links[size - 1].known:
            return size
    return 0


TRAILS = Trails()


def trail_of(request: Request) -> Trail:
    """The messages of a request, each with what is known of it.

    Raises:
        MalformedRequest: a message cannot be read.
    """
    alone = request.trail
    if isinstance(alone, Alone) and alone.raws is request.messages:
        return alone.trail
    return TRAILS.of(request.format, request.messages)
