"""Conversations seen before, as a tree: each message a link that hangs on what was said before it.

A client sends its whole past with every request. A past that was seen before is found here by its bytes, one
look a message, and with it whatever was found out about it: nothing of it is read, hashed or counted again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foveate.values import Format
from foveate.wire.body import as_text, inner_fields, value

# Of each of two generations: a few hundred sessions of a coding agent.
_KEPT_BYTES = 48 * 1024 * 1024
# What is noted of a message beside its blocks, about.
_NOTED_BYTES = 2 * 1024

_SYSTEM_ROLES = frozenset(("system", "developer"))


class Link:
    """A message with all that stands before it; `raw` are its bytes.

    Under keys of their own, rooms note in `known` what they have found out about it. A note may depend on the
    messages before it, never on those after it.
    """

    __slots__ = ("after", "known", "raw")

    def __init__(self, raw: bytes, known: dict[object, Any]) -> None:
        self.raw = raw
        self.known = known
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
        self._last: tuple[Format | None, Sequence[bytes], Trail] = None, (), Trail(0, ())

    @property
    def held_bytes(self) -> int:
        """How much the younger generation holds, about."""
        return self._young_bytes

    def of(self, spoken: Format, raws: tuple[bytes, ...]) -> Trail:
        """The trail of these messages."""
        last_spoken, last_raws, last = self._last
        if raws is last_raws and spoken is last_spoken:  # asked for by the next who has to do with the request
            return last
        head = self._head(spoken, raws)
        if self._young_bytes > self._most_bytes:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        link = self._young.setdefault(spoken, Link(b"", {}))
        old = self._old.get(spoken)
        found: list[Link] = []
        for raw in raws[head:] if head else raws:
            after = link.after.get(raw)
            old = old.after.get(raw) if old is not None else None
            if after is None:
                after = Link(raw, {}) if old is None else Link(old.raw, old.known)
                link.after[after.raw] = after
                self._young_bytes += 2 * len(raw) + _NOTED_BYTES
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


TRAILS = Trails()
