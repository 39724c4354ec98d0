"""Where the rows of a request lie in its bytes: its messages, its system prompt, a message's blocks, its tools.

Only what is asked for is looked into.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from foveate.errors import BadEdit
from foveate.values import MarkStyle, Request
from foveate.wire.body import value
from foveate.wire.heads import Head, Laid
from foveate.wire.marks import is_point
from foveate.wire.shapes import Path, Shape
from foveate.wire.spans import Members, Span, items, members, members_around, whole


class Written(Enum):
    """How a row of blocks or messages is written."""

    LIST = auto()
    STRING = auto()  # one text
    SINGLE = auto()  # one, without a list around it
    NOTHING = auto()  # null, or not there
    OTHER = auto()


class Row(NamedTuple):
    """A row of blocks or messages, under `name` of `owner`; `span` is None where it is not there at all.

    `entries` are all that stand in it, `blocks` the numbers of those that are no marks of Bedrock's. Between
    `opening` and `closing` it would stand as a list; `text_opening` and a brace make a block of a string.
    """

    owner: Members
    name: str
    span: Span | None
    written: Written
    entries: Sequence[Span]
    blocks: Sequence[int]
    text_opening: bytes
    opening: bytes = b"["
    closing: bytes = b"]"


class Slot(NamedTuple):
    """The place of a tool: its number in the list that it stands in."""

    row: Sequence[Span]
    number: int

    @property
    def span(self) -> Span:
        """Where the tool lies."""
        return self.row[self.number]


class Outline:
    """Finds the rows of one request."""

    def __init__(self, request: Request, shape: Shape) -> None:
        self.data = request.body
        self.shape = shape
        self._has_points = MarkStyle.CACHE_POINT in shape.mark_styles
        self._head: Head | None = None
        laid = request.laid
        if isinstance(laid, Laid) and laid.holds(request.body, request.messages):
            self._head = laid.head
            self.root = laid.head.root(self.data, laid.spans[-1])
            self._walked: Mapping[Span, Sequence[Span]] = {self.root.values[shape.messages[0]]: laid.spans}
            return
        known = {shape.messages[0]: request.messages, shape.tools[0][0]: request.tools}
        self.root, self._walked = members_around(self.data, whole(self.data), known)
        if shape.wrapper in self.root.values:
            self.root, self._walked = members_around(self.data, self.root.values[shape.wrapper], known)

    def members(self, span: Span) -> Members:
        """The members of the object that lies there."""
        head = self._head
        return head.members(span) if head is not None and head.holds(span) else members(self.data, span)

    def items(self, span: Span) -> tuple[Span, ...]:
        """The items of the list that lies there."""
        head = self._head
        return head.items(span) if head is not None and head.holds(span) else items(self.data, span)

    def messages(self) -> Row:
        """The messages; a plain string is one that the user says."""
        opening = b'{"role":"user","' + self.shape.content.encode() + b'":'
        return self._row(self.root, self.shape.messages[0], opening)

    def system(self) -> Row:
        """The system prompt.

        Raises:
            BadEdit: this format has no field for it.
        """
        shape = self.shape
        if not shape.system:
            reason = "this format has no field for it: insert a message with the role `system`"
            raise BadEdit(reason, path=("system",))
        name = next((name for name in shape.system if name in self.root.values), shape.system[0])
        if not shape.system_content:
            return self._row(self.root, name, shape.text_opening(""))
        span = self.root.values.get(name)
        if span is not None and self.data.startswith(b"{", span.start):
            return self._row(self.members(span), shape.system_content, shape.text_opening(""))
        around = b'{"' + shape.system_content.encode() + b'":['
        row = self._row(self.root, name, shape.text_opening(""))
        return row._replace(opening=around, closing=b"]}")

    def content(self, message: Members, role: str) -> Row:
        """The blocks of a message."""
        return self._row(message, self.shape.content, self.shape.text_opening(role))

    def content_of_string(self, messages: Row) -> Row:
        """The one block of the one message, where the messages are written as a string."""
        return messages._replace(text_opening=self.shape.text_opening("user"))

    def head(self, message: Members) -> dict[str, Any]:
        """What a message says of itself: who speaks, and what it is."""
        names = [name for name in ("role", "type") if name in message.values]
        return {name: value(message.values[name].of(self.data)) for name in names}

    def tools(self) -> list[Slot]:
        """The places of all tools, in the order of `Request.tools`."""
        slots: list[Slot] = []
        for path in self.shape.tools:
            listed = self._at(path)
            if listed is None:
                continue
            for row in self._declarations(listed) if self.shape.declarations else [self._entries(listed)]:
                slots += [Slot(row, number) for number in self._blocks(row)]
        return slots

    def is_point(self, span: Span) -> bool:
        """Whether what lies there is Bedrock's mark on what stands before it."""
        return self._has_points and is_point(value(span.of(self.data)))

    def with_points(self, slot: Slot) -> Span:
        """Where a tool lies, and Bedrock's marks on it."""
        end = slot.span.end
        for span in slot.row[slot.number + 1 :]:
            if not self.is_point(span):
                break
            end = span.end
        return Span(slot.span.start, end)

    def _declarations(self, listed: Span) -> Iterator[Sequence[Span]]:
        """Gemini's tools: lists of functions, and tools of Google's that are members of an entry."""
        is_list = self.data.startswith(b"[", listed.start)
        for entry in self.items(listed) if is_list else (listed,):
            if not self.data.startswith(b"{", entry.start):
                continue
            for name, span in self.members(entry).values.items():
                yield self._entries(span) if name in self.shape.declarations else (span,)

    def _entries(self, span: Span) -> Sequence[Span]:
        if not self.data.startswith(b"[", span.start):
            return ()
        return self._walked.get(span) or self.items(span)

    def _blocks(self, entries: Sequence[Span]) -> Sequence[int]:
        """The numbers of those that are no marks of Bedrock's."""
        numbers = range(len(entries))
        return [at for at in numbers if not self.is_point(entries[at])] if self._has_points else numbers

    def _at(self, path: Path) -> Span | None:
        owner = self.root
        for name in path[:-1]:
            span = owner.values.get(name)
            if span is None or not self.data.startswith(b"{", span.start):
                return None
            owner = self.members(span)
        return owner.values.get(path[-1])

    def _row(self, owner: Members, name: str, text_opening: bytes) -> Row:
        span = owner.values.get(name)
        entries: Sequence[Span] = ()
        if span is None or self.data.startswith(b"n", span.start):
            written = Written.NOTHING
        elif self.data.startswith(b"[", span.start):
            written, entries = Written.LIST, self._entries(span)
        elif self.data.startswith(b'"', span.start):
            written, entries = Written.STRING, (span,)
        elif self.shape.takes_single and self.data.startswith(b"{", span.start):
            written, entries = Written.SINGLE, (span,)
        else:
            written = Written.OTHER
        return Row(
            owner=owner,
            name=name,
            span=span,
            written=written,
            entries=entries,
            blocks=range(len(entries)) if name in self.shape.messages else self._blocks(entries),
            text_opening=text_opening,
        )
