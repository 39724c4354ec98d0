"""What the requests of a session begin with, up to their first message: the same bytes from turn to turn.

Where things lie in it is found out once, and holds for every body that begins with it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from foveate.wire.begun import PrefixList
from foveate.wire.body import parse_fields
from foveate.wire.spans import ByteSpan, ObjectMembers, find_items, find_members, find_members_after, value_span


class BodyPrefix:
    """The bytes of a body before its first message, and where in them what lies.

    `fields` are those that stand in it, as they came.
    """

    __slots__ = ("_items", "_members", "_message_field", "_values", "data", "fields")

    def __init__(self, data: bytes, message_field: str) -> None:
        """`messages` is the name that these go by.

        Raises:
            MalformedRequest: a body cannot begin so.
        """
        self.data = data
        closed = data + b"0]}"
        self.fields = {name: bytes(raw) for name, raw in parse_fields(closed).items() if name != message_field}
        self._values = find_members(closed, value_span(closed)).values
        self._message_field = message_field
        self._members: dict[ByteSpan, ObjectMembers] = {}
        self._items: dict[ByteSpan, tuple[ByteSpan, ...]] = {}

    def find_root(self, data: bytes, last: ByteSpan) -> ObjectMembers:
        """The members of a body that begins with it, and whose last message lies there.

        Raises:
            MalformedRequest: what stands behind that is not the rest of an object.
        """
        return find_members_after(data, self._values, self._message_field, last.end)

    def contains(self, span: ByteSpan) -> bool:
        """Whether something lies in it."""
        return span.end <= len(self.data)

    def members(self, span: ByteSpan) -> ObjectMembers:
        """Those of an object that lies in it."""
        found = self._members.get(span)
        if found is None:
            found = self._members[span] = find_members(self.data, span)
        return found

    def items(self, span: ByteSpan) -> tuple[ByteSpan, ...]:
        """Those of a list that lies in it."""
        found = self._items.get(span)
        if found is None:
            found = self._items[span] = find_items(self.data, span)
        return found


class MessageOffsets(NamedTuple):
    """Where the messages of a body lie, behind its head."""

    prefix: BodyPrefix
    spans: PrefixList[ByteSpan]

    def matches(self, data: bytes, messages: Sequence[bytes]) -> bool:
        """Whether it is `data` that these messages lie in so."""
        has_same_shape = len(messages) == len(self.spans) and data.startswith(self.prefix.data)
        return has_same_shape and data.startswith(messages[-1], self.spans[-1].start)
