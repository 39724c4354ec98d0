"""Edits written into the bytes of a request: what no edit means stays as it came, byte for byte.

Every place is one of the request as it came, whatever the other edits do.
"""

from collections.abc import Mapping, Sequence

from foveate.errors import BadEdit
from foveate.values import Edit, Mark, MarkStyle, Message, RemoveMark, Request
from foveate.wire import writing
from foveate.wire.body import as_list, as_record, as_text, compact, value
from foveate.wire.marks import written as written_mark
from foveate.wire.outline import Outline, Row, Slot, Written
from foveate.wire.rows import RowWriter
from foveate.wire.shapes import Path, Shape
from foveate.wire.spans import Members, Span
from foveate.wire.splice import Patch
from foveate.wire.wanted import RowEdits, Tree, Wanted, sorted_by_place


def written(request: Request, edits: Sequence[Edit], shape: Shape, style: MarkStyle | None) -> bytes:
    """The body of `request` with all `edits`; the same object where there are none.

    Raises:
        BadEdit: an edit names what is not there, cannot be written in this format, or contradicts another.
    """
    if not edits:
        return request.body
    wanted = sorted_by_place(edits, len(request.messages))
    writer = _Writer(Outline(request, shape), _style(wanted, shape, style))
    writer.tools(wanted)
    if wanted.system:
        writer.system(wanted.system)
    if wanted.messages or wanted.inserted or wanted.dropped:
        writer.messages(wanted)
    if wanted.parameters:
        writer.parameters(writer.outline.root, wanted.parameters)
    return writer.patch.applied(request.body)


def _style(wanted: Wanted, shape: Shape, style: MarkStyle | None) -> MarkStyle:
    """How marks are to be written, if there are any."""
    if not shape.mark_styles and wanted.marks:
        raise BadEdit("this format has no cache marks")
    if style is not None and style not in shape.mark_styles and wanted.marks:
        raise BadEdit(f"this format has no marks of the style `{style}`")
    return style or next(iter(shape.mark_styles), MarkStyle.CACHE_CONTROL)


class _Writer:
    """Gathers the splices of one request."""

    def __init__(self, outline: Outline, style: MarkStyle) -> None:
        self.outline = outline
        self.patch = Patch()
        self._data = outline.data
        self._shape = outline.shape
        self._style = style
        self._rows = RowWriter(outline, self.patch, style)

    def parameters(self, owner: Members, tree: Tree, path: Path = ()) -> None:
        """Sets parameters, and those inside of them."""
        shape = self._shape
        taken = {(name,) for name in (*shape.messages, *shape.system, shape.wrapper)}.union(shape.tools)
        for name, new in tree.items():
            here = (*path, name)
            is_value = not isinstance(new, dict)
            if here in taken or (is_value and any(other[: len(here)] == here for other in taken)):
                raise BadEdit("is no parameter, but part of the conversation", path=here)
            span = owner.values.get(name)
            present = b"null" if span is None else span.of(self._data)
            if not isinstance(new, dict) or present == b"null":
                self.patch.set_member(owner, name, compact(new))
            elif span is not None and present.startswith(b"{"):
                self.parameters(self.outline.members(span), new, here)
            else:
                raise BadEdit("is no object, so that nothing can be set in it", path=here)

    def tools(self, wanted: Wanted) -> None:
        """Marks tools, and puts them in another order; a mark travels with its tool."""
        if wanted.tools.texts or wanted.tools.inserts:
            raise BadEdit("tools are only marked and put in another order", path=("tools",))
        if not wanted.tools.marks and wanted.order is None:
            return
        slots = self.outline.tools()
        wanted.tools.check(len(slots))
        if wanted.order is None:
            for index, mark in sorted(wanted.tools.marks.items()):
                self._rows.mark(slots[index].row, slots[index].number, mark, ("tools", index))
        else:
            self._ordered(slots, wanted.order, wanted.tools.marks)

    def _ordered(
        self, slots: Sequence[Slot], order: Sequence[int], marks: Mapping[int, Mark | RemoveMark]
    ) -> None:
        if sorted(order) != list(range(len(slots))):
            raise BadEdit(f"the order does not name each of {len(slots)} tools once", path=("tools",))
        for slot, index in zip(slots, order, strict=True):
            tool, mark = slots[index], marks.get(index)
            if tool.row is not slot.row:
                raise BadEdit("cannot stand in the place of a tool of another list", path=("tools", index))
            inside = Patch()
            if mark is not None:
                inner = RowWriter(self.outline, inside, self._style)
                inner.mark(tool.row, tool.number, mark, ("tools", index))
            if tool is slot:
                self.patch.include(inside)
            else:
                here, there = self.outline.with_points(slot), self.outline.with_points(tool)
                self.patch.put(here.start, here.end, inside.applied(self._data, there))

    def system(self, edits: RowEdits) -> None:
        """Edits the system prompt."""
        row = self.outline.system()
        if self._shape.system_is_text and row.written in (Written.STRING, Written.NOTHING):
            self._plain_text(row, edits)
        else:
            self._rows.blocks(row, edits, "")

    def messages(self, wanted: Wanted) -> None:
        """Edits, replaces, drops and inserts messages."""
        row = self.outline.messages()
        added = {index: self._new(new) for index, new in wanted.inserted.items() if new}
        if row.written is Written.STRING and not wanted.dropped:
            self._message_as_string(row, wanted.messages.get(0, RowEdits(("messages", 0))), added)
            return
        for index, edits in sorted(wanted.messages.items()):
            self._message(row.entries[index], edits)
        self._rows.entries(row, added, wanted.dropped)

    def _new(self, given: Sequence[Message]) -> list[bytes]:
        return [writing.message(one, self._shape) for one in given]

    def _message(self, span: Span, edits: RowEdits) -> None:
        if not edits.texts and not edits.inserts and self._marked(span, edits.marks):
            return
        message = self.outline.members(span)
        head = self.outline.head(message)
        kind = self._shape.whole_kind(head)
        if not kind:
            role = as_text(head.get("role"))
            row = self.outline.content(message, role)
            edits.check(len(row.blocks))
            last = len(row.blocks) - 1
            own = last in edits.marks and self._bears_mark(message)
            if own and not self._rows.bears_mark(row.entries[row.blocks[last]]):
                self._rows.mark_object(message, edits.marks.pop(last))
            self._rows.blocks(row, edits, role)
            return
        edits.check(1)
        path = (*edits.path, 0)
        if edits.inserts:
            raise BadEdit(f"a `{kind}` has no blocks of its own", path=edits.path)
        if kind not in self._shape.results:
            raise BadEdit(f"a `{kind}` can be neither marked nor given another text", path=path)
        if edits.marks and self._bears_mark(message):
            self._rows.mark_object(message, edits.marks.pop(0))
        (held,) = self._shape.results[kind]
        if edits.texts or edits.marks:
            self._rows.result(message, held, edits.texts.get(0), edits.marks.get(0), path)

    def _marked(self, span: Span, marks: Mapping[int, Mark | RemoveMark]) -> bool:
        """Marks blocks of a message that is spelled as it would be here: so it is known where they lie.

        False, and nothing done, where one bears a mark or cannot, and where it has to be looked at otherwise.
        """
        said, name = span.of(self._data), self._style.value
        message = as_record(value(said))
        blocks = as_list(message.get(self._shape.content))
        if self._style is MarkStyle.CACHE_POINT or not blocks or self._shape.whole_kind(message):
            return False
        if name in message or next(reversed(message)) != self._shape.content or compact(message) != said:
            return False
        takes = [bool(block) and isinstance(block, dict) and name not in block for block in blocks]
        if not all(0 <= at < len(takes) and takes[at] for at in marks):
            return False
        sizes = [len(compact(block)) for block in blocks]
        first = span.end - len(b"]}") - sum(sizes) - len(b",") * (len(sizes) - 1)
        for at, mark in marks.items():
            end = first + sum(sizes[: at + 1]) + at - len(b"}")
            self.patch.put(end, end, b"," + compact(name) + b":" + written_mark(mark, self._style))
        return True

    def _bears_mark(self, message: Members) -> bool:
        """Whether a message bears a mark itself, which counts as long as its last block bears none."""
        own = message.values.get(self._style.value)
        return own is not None and own.of(self._data) != b"null"

    def _message_as_string(self, row: Row, edits: RowEdits, added: dict[int, list[bytes]]) -> None:
        """The one message of the user that a plain string is; a list around it only where there must be."""
        content = self.outline.content_of_string(row)
        (literal,) = row.entries
        if not added and not edits.marks and (edits.joins or not edits.inserts):
            self._rows.blocks(content, edits, "user")
            return
        first = b"".join(one + b"," for one in added.get(0, ()))
        last = b"".join(b"," + one for one in added.get(1, ()))
        self.patch.put(literal.start, literal.start, b"[" + first + row.text_opening)
        self._rows.blocks(content, edits, "user")
        self.patch.put(literal.end, literal.end, b"}" + last + b"]")

    def _plain_text(self, row: Row, edits: RowEdits) -> None:
        """A system prompt that is one string: what is inserted stands before or behind, after a blank line."""
        edits.check(len(row.blocks))
        if edits.marks:
            raise BadEdit("a plain string bears no mark in this format", path=("system", 0))
        size = len(row.blocks)
        before = writing.joined(edits.inserts.get(0, []) if size else [])
        after = writing.joined(edits.inserts.get(size, []))
        is_empty = row.span is None or row.span.of(self._data) in (b"null", b'""')
        if row.span is None or is_empty or edits.texts:
            paragraphs = (before, edits.texts.get(0, ""), after)
            new = compact(writing.BLANK_LINE.join(filter(None, paragraphs)))
            self.patch.set_member(row.owner, row.name, new)
            return
        if before:
            start = row.span.start + 1
            self.patch.put(start, start, compact(before + writing.BLANK_LINE)[1:-1])
        if after:
            end = row.span.end - 1
            self.patch.put(end, end, compact(writing.BLANK_LINE + after)[1:-1])
