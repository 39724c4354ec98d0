"""Edits sorted by what they are for, and found out where they contradict each other."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from foveate.errors import BadEdit
from foveate.values import (
    Area,
    Edit,
    Insert,
    Mark,
    Message,
    Part,
    Place,
    RemoveMark,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    SetParameter,
    Text,
)
from foveate.wire.writing import joined

Tree = dict[str, "Tree | str | int | bool | None"]


@dataclass(slots=True)
class RowEdits:
    """What is asked of a row of blocks: texts and marks by block, and what comes before which.

    `path` is where the row is, as an error names it. `joins`: what comes behind a plain string becomes part of
    it.
    """

    path: tuple[str | int, ...]
    texts: dict[int, str] = field(default_factory=dict)
    marks: dict[int, Mark | RemoveMark] = field(default_factory=dict)
    inserts: dict[int, list[Part]] = field(default_factory=dict)
    joins: bool = False

    def __bool__(self) -> bool:
        """Whether anything is asked of it."""
        return bool(self.texts or self.marks or self.inserts)

    def check(self, size: int) -> None:
        """Whether all that is edited is there, in a row of `size` blocks.

        Raises:
            BadEdit: it is not.
        """
        for block in (*self.texts, *self.marks):
            if not 0 <= block < size:
                raise BadEdit(f"there is no such block, of {size} that can be edited", path=(*self.path, block))
        for block in self.inserts:
            if not 0 <= block <= size:
                raise BadEdit(f"nothing can stand there, among {size} blocks", path=(*self.path, block))


@dataclass(slots=True)
class Wanted:
    """All edits of a request. `inserted` are new messages by the one that they come before."""

    tools: RowEdits = field(default_factory=lambda: RowEdits(("tools",)))
    order: tuple[int, ...] | None = None
    system: RowEdits = field(default_factory=lambda: RowEdits(("system",)))
    messages: dict[int, RowEdits] = field(default_factory=dict)
    inserted: dict[int, list[Message]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    parameters: Tree = field(default_factory=dict)

    @property
    def marks(self) -> bool:
        """Whether anything is to be marked."""
        return any(row.marks for row in (self.tools, self.system, *self.messages.values()))

    def row(self, place: Place) -> tuple[RowEdits, int]:
        """The row that a place is in, and its number there."""
        if place.area is Area.MESSAGES:
            if place.block is None:
                raise BadEdit("names a message, where a block of it is meant", path=path_of(place))
            row = self.messages.setdefault(place.index, RowEdits(("messages", place.index)))
            return row, place.block
        if place.block is not None:
            raise BadEdit("has no blocks of its own", path=path_of(place))
        return (self.tools if place.area is Area.TOOLS else self.system), place.index


def path_of(place: Place) -> tuple[str | int, ...]:
    """A place as an error names it."""
    path = (place.area.value, place.index)
    return path if place.block is None else (*path, place.block)


def sorted_by_place(edits: Iterable[Edit], messages: int) -> Wanted:
    """All `edits` of a request with so many messages, by what they are for.

    Raises:
        BadEdit: two of them contradict each other, or name messages that are not there.
    """
    wanted = Wanted()
    spans: list[ReplaceMessages] = []
    for edit in edits:
        match edit:
            case Mark() | RemoveMark():
                row, block = wanted.row(edit.place)
                if block in row.marks and _ttl(row.marks[block]) != _ttl(edit):
                    raise BadEdit("two marks that differ for one block", path=path_of(edit.place))
                row.marks[block] = edit
            case ReplaceText():
                row, block = wanted.row(edit.place)
                if row.texts.setdefault(block, edit.text) != edit.text:
                    raise BadEdit("two texts for one block", path=path_of(edit.place))
            case Insert():
                _insert(wanted, edit)
            case ReplaceMessages():
                if edit not in spans:
                    spans.append(edit)
                    _replace(wanted, edit, messages)
            case ReorderTools():
                if wanted.order not in (None, edit.order):
                    raise BadEdit("two orders for the tools", path=("tools",))
                wanted.order = edit.order
            case SetParameter():
                _set(wanted.parameters, edit)
    _check(wanted, spans, messages)
    return wanted


def _ttl(edit: Mark | RemoveMark) -> object:
    return edit.ttl if isinstance(edit, Mark) else RemoveMark


def _insert(wanted: Wanted, edit: Insert) -> None:
    if not edit.parts:
        raise BadEdit("nothing is given to insert", path=path_of(edit.place))
    if edit.place.area is Area.MESSAGES and edit.place.block is None:
        message = Message(role=edit.role, parts=edit.parts)
        there = wanted.inserted.setdefault(edit.place.index, [])
        if edit.joins:
            before = there.pop().parts if there and there[-1].role == edit.role else ()
            message = Message(role=edit.role, parts=(Text(joined((*before, *edit.parts))),))
        there.append(message)
        return
    row, block = wanted.row(edit.place)
    row.joins |= edit.joins
    row.inserts.setdefault(block, []).extend(edit.parts)


def _replace(wanted: Wanted, edit: ReplaceMessages, messages: int) -> None:
    if not 0 <= edit.start <= edit.end <= messages:
        reason = f"{edit.start} to {edit.end} is no span of {messages} messages"
        raise BadEdit(reason, path=("messages", edit.start))
    span = range(edit.start, edit.end)
    if not wanted.dropped.isdisjoint(span):
        raise BadEdit("two edits replace the same messages", path=("messages", edit.start))
    wanted.dropped.update(span)
    wanted.inserted.setdefault(edit.start, []).extend(edit.messages)


def _check(wanted: Wanted, spans: list[ReplaceMessages], messages: int) -> None:
    for index in wanted.inserted:
        if not 0 <= index <= messages:
            raise BadEdit(f"nothing can stand there, among {messages} messages", path=("messages", index))
    for index in wanted.messages:
        if not 0 <= index < messages:
            raise BadEdit(f"there is no such message, of {messages}", path=("messages", index))
        if index in wanted.dropped:
            raise BadEdit("is edited and replaced at once", path=("messages", index))
    for span in spans:
        for index in wanted.inserted:
            if span.start < index < span.end:
                raise BadEdit("something is inserted into a span that is replaced", path=("messages", index))


def _set(tree: Tree, edit: SetParameter) -> None:
    if not edit.path:
        raise BadEdit("a parameter without a name")
    for name in edit.path[:-1]:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            raise BadEdit("is set to a value and to an object at once", path=edit.path)
        tree = inner
    present = tree.setdefault(edit.path[-1], edit.value)
    if present != edit.value or type(present) is not type(edit.value):
        raise BadEdit("two values for one parameter", path=edit.path)
