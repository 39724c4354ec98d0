"""Bytes put in the place of others, everything else staying as it is."""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from foveate.errors import BadEdit
from foveate.wire.body import to_json
from foveate.wire.spans import ByteSpan, ObjectMembers


class Splice(NamedTuple):
    """`put` in the place of what lies from `start` up to `end`."""

    start: int
    end: int
    new: bytes


class Patch:
    """Splices that are being gathered; those for the same place are written in the order they came in."""

    def __init__(self) -> None:
        self._splices: list[Splice] = []
        self._added_members: dict[int, tuple[ObjectMembers, list[bytes]]] = {}

    def replace(self, start: int, end: int, new: bytes) -> None:
        """`new` in the place of what lies from `start` up to `end`."""
        self._splices.append(Splice(start, end, new))

    def set_member(self, owner: ObjectMembers, name: str, new: bytes) -> None:
        """`new` as the value under `name`, in the place of the present one or behind the last member."""
        present = owner.values.get(name)
        if present is not None:
            self.replace(present.start, present.end, new)
        else:
            self._added_members.setdefault(owner.span.start, (owner, []))[1].append(to_json(name) + b":" + new)

    def set_items(
        self,
        span: ByteSpan,
        items: Sequence[ByteSpan],
        *,
        dropped: Set[int],
        added: Mapping[int, Sequence[bytes]],
    ) -> None:
        """A list at `span` without the items in `dropped`, and with `added` before those it names."""
        kept = [position for position in range(len(items)) if position not in dropped]
        for before, after in zip([-1, *kept], [*kept, len(items)], strict=True):
            removed = items[before + 1 : after]
            new = b",".join(item for place in range(before + 1, after + 1) for item in added.get(place, ()))
            if removed and new:
                self.replace(removed[0].start, removed[-1].end, new)
            elif removed and after < len(items):
                self.replace(removed[0].start, items[after].start, b"")
            elif removed:
                self.replace(items[before].end if before >= 0 else removed[0].start, removed[-1].end, b"")
            elif new and after < len(items):
                self.replace(items[after].start, items[after].start, new + b",")
            elif new and items:
                self.replace(items[-1].end, items[-1].end, b"," + new)
            elif new:
                self.replace(span.start + 1, span.start + 1, new)

    def include(self, other: "Patch") -> None:
        """The splices of `other` too."""
        self._splices.extend(other._all_splices())

    def apply(self, data: bytes, span: ByteSpan | None = None) -> bytes:
        """`data`, or what lies at `span` of it, with all splices.

        Raises:
            BadEdit: two of them are for the same bytes.
        """
        at, end = (span.start, span.end) if span else (0, len(data))
        pieces: list[bytes | memoryview] = []
        view = memoryview(data)
        for splice in sorted(self._all_splices(), key=lambda item: (item.start, item.end)):
            if splice.start < at:
                raise BadEdit("two edits are for the same place")
            pieces += (view[at : splice.start], splice.new)
            at = splice.end
        return b"".join((*pieces, view[at:end]))

    def _all_splices(self) -> list[Splice]:
        added = [
            Splice(owner.last_end, owner.last_end, (b"," if owner.values else b"") + b",".join(new))
            for owner, new in self._added_members.values()
        ]
        return self._splices + added
