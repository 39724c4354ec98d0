"""Bytes put in the place of others, everything else staying as it is."""

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from foveate.errors import BadEdit
from foveate.wire.body import compact
from foveate.wire.spans import Members, Span


class Splice(NamedTuple):
    """`put` in the place of what lies from `start` up to `end`."""

    start: int
    end: int
    put: bytes


class Patch:
    """Splices that are being gathered; those for the same place are written in the order they came in."""

    def __init__(self) -> None:
        self._splices: list[Splice] = []
        self._added: dict[int, tuple[Members, list[bytes]]] = {}

    def put(self, start: int, end: int, new: bytes) -> None:
        """`new` in the place of what lies from `start` up to `end`."""
        self._splices.append(Splice(start, end, new))

    def set_member(self, owner: Members, name: str, new: bytes) -> None:
        """`new` as the value under `name`, in the place of the present one or behind the last member."""
        present = owner.values.get(name)
        if present is not None:
            self.put(present.start, present.end, new)
        else:
            self._added.setdefault(owner.span.start, (owner, []))[1].append(compact(name) + b":" + new)

    def set_items(
        self, span: Span, items: Sequence[Span], *, dropped: Set[int], added: Mapping[int, Sequence[bytes]]
    ) -> None:
        """A list at `span` without the items in `dropped`, and with `added` before those it names."""
        kept = [position for position in range(len(items)) if position not in dropped]
        for before, after in zip([-1, *kept], [*kept, len(items)], strict=True):
            gone = items[before + 1 : after]
            new = b",".join(one for place in range(before + 1, after + 1) for one in added.get(place, ()))
            if gone and new:
                self.put(gone[0].start, gone[-1].end, new)
            elif gone and after < len(items):
                self.put(gone[0].start, items[after].start, b"")
            elif gone:
                self.put(items[before].end if before >= 0 else gone[0].start, gone[-1].end, b"")
            elif new and after < len(items):
                self.put(items[after].start, items[after].start, new + b",")
            elif new and items:
                self.put(items[-1].end, items[-1].end, b"," + new)
            elif new:
                self.put(span.start + 1, span.start + 1, new)

    def include(self, other: "Patch") -> None:
        """The splices of `other` too."""
        self._splices.extend(other._all())

    def applied(self, data: bytes, span: Span | None = None) -> bytes:
        """`data`, or what lies at `span` of it, with all splices.

        Raises:
            BadEdit: two of them are for the same bytes.
        """
        at, end = (span.start, span.end) if span else (0, len(data))
        pieces: list[bytes | memoryview] = []
        view = memoryview(data)
        for splice in sorted(self._all(), key=lambda one: (one.start, one.end)):
            if splice.start < at:
                raise BadEdit("two edits are for the same place")
            pieces += (view[at : splice.start], splice.put)
            at = splice.end
        return b"".join((*pieces, view[at:end]))

    def _all(self) -> list[Splice]:
        added = [
            Splice(owner.last_end, owner.last_end, (b"," if owner.values else b"") + b",".join(new))
            for owner, new in self._added.values()
        ]
        return self._splices + added
