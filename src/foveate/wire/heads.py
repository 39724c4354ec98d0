"""What the requests of a session begin with, up to their first message: the same bytes from turn to turn.

Where things lie in it is found out once, and holds for every body that begins with it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from foveate.wire.begun import Begun
from foveate.wire.body import fields
from foveate.wire.spans import Members, Span, items, members, members_behind, whole


class Head:
    """The bytes of a body before its first message, and where in them what lies.

    `fields` are those that stand in it, as they came.
    """

    __slots__ = ("_items", "_members", "_messages", "_values", "data", "fields")

    def __init__(self, data: bytes, messages: str) -> None:
        """`messages` is the name that these go by.

        Raises:
            MalformedRequest: a body cannot begin so.
        """
        self.data = data
        closed = data + b"0]}"
        self.fields = {name: bytes(raw) for name, raw in fields(closed).items() if name != messages}
        self._values = members(closed, whole(closed)).values
        self._messages = messages
        self._members: dict[Span, Members] = {}
        self._items: dict[Span, tuple[Span, ...]] = {}

    def root(self, data: bytes, last: Span) -> Members:
        """The members of a body that begins with it, and whose last message lies there.

        Raises:
            MalformedRequest: what stands behind that is not the rest of an object.
        """
        return members_behind(data, self._values, self._messages, last.end)

    def holds(self, span: Span) -> bool:
        """Whether something lies in it."""
        return span.end <= len(self.data)

    def members(self, span: Span) -> Members:
        """Those of an object that lies in it."""
        found = self._members.get(span)
        if found is None:
            found = self._members[span] = members(self.data, span)
        return found

    def items(self, span: Span) -> tuple[Span, ...]:
        """Those of a list that lies in it."""
        found = self._items.get(span)
        if found is None:
            found = self._items[span] = items(self.data, span)
        return found


class Laid(NamedTuple):
    """Where the messages of a body lie, behind its head."""

    head: Head
    spans: Begun[Span]

    def holds(self, data: bytes, messages: Sequence[bytes]) -> bool:
        """Whether it is `data` that these messages lie in so."""
        is_it = len(messages) == len(self.spans) and data.startswith(self.head.data)
        return is_it and data.startswith(messages[-1], self.spans[-1].start)
