"""Edits of the blocks in one row: the system prompt, or what a message says."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from foveate.errors import BadEdit
from foveate.values import Mark, MarkStyle, Part, RemoveMark
from foveate.wire import marks, writing
from foveate.wire.body import as_record, as_text, compact, value
from foveate.wire.outline import Outline, Row, Written
from foveate.wire.spans import Members, Span, items, members
from foveate.wire.splice import Patch
from foveate.wire.wanted import RowEdits

Path = tuple[str | int, ...]
Added = Mapping[int, Sequence[bytes]]


class RowWriter:
    """Writes what is asked of rows and blocks into a patch."""

    def __init__(self, outline: Outline, patch: Patch, style: MarkStyle) -> None:
        self._outline = outline
        self._data = outline.data
        self._shape = outline.shape
        self._patch = patch
        self._style = style

    def blocks(self, row: Row, edits: RowEdits, role: str) -> None:
        """All that is asked of a row of blocks.

        Raises:
            BadEdit: a block is not there, or cannot be edited so.
        """
        edits.check(len(row.blocks))
        added = {
            row.blocks[block] if block < len(row.blocks) else len(row.entries): [
                writing.block(part, role, self._shape) for part in parts
            ]
            for block, parts in edits.inserts.items()
        }
        if row.written is Written.STRING and edits.joins and not edits.marks and edits.inserts.keys() == {1}:
            self._longer(row.entries[0], edits.texts.get(0), edits.inserts[1])
            return
        if row.written is Written.STRING:
            self._string(row, edits, added)
            return
        for block in sorted({*edits.texts, *edits.marks}):
            number, path = row.blocks[block], (*edits.path, block)
            if block in edits.texts:
                self._text(row.entries[number], edits.texts[block], path)
            if block in edits.marks:
                self.mark(row.entries, number, edits.marks[block], path)
        self.entries(row, added)

    def entries(self, row: Row, added: Added, dropped: AbstractSet[int] = frozenset()) -> None:
        """New entries in a row, each before the one whose number it has, and others dropped from it.

        Raises:
            BadEdit: there is something else where a list should be.
        """
        if not added and not dropped:
            return
        if row.written is Written.OTHER:
            raise BadEdit("there is something else where a list should be", path=(row.name,))
        if row.span is not None and row.written is Written.LIST:
            self._patch.set_items(row.span, row.entries, dropped=dropped, added=added)
        elif row.entries and not dropped:
            self.wrap(row, added, b"", b"")
        else:
            everything = b",".join(one for number in sorted(added) for one in added[number])
            self._patch.set_member(row.owner, row.name, row.opening + everything + row.closing)

    def wrap(self, row: Row, added: Added, before: bytes, after: bytes) -> None:
        """A list around the one entry that stood without, with others beside it."""
        (entry,) = row.entries
        first = b"".join(one + b"," for one in added.get(0, ()))
        last = b"".join(b"," + one for one in added.get(1, ()))
        self._patch.put(entry.start, entry.start, row.opening + first + before)
        self._patch.put(entry.end, entry.end, after + last + row.closing)

    def mark(self, entries: Sequence[Span], number: int, mark: Mark | RemoveMark, path: Path) -> None:
        """A mark on one of `entries`, in the place of the one that it bears.

        Raises:
            BadEdit: it is something that bears no marks.
        """
        span = entries[number]
        if self._style is MarkStyle.CACHE_POINT:
            if isinstance(mark, RemoveMark):
                raise BadEdit("a mark that is a block of its own is not removed", path=path)
            self._point(span, entries[number + 1 : number + 2], mark)
        elif not self._data.startswith(b"{", span.start):
            raise BadEdit("is no block that could bear a mark", path=path)
        else:
            self.mark_object(self._outline.members(span), mark)

    def mark_object(self, owner: Members, mark: Mark | RemoveMark) -> None:
        """A mark as a member of what it marks."""
        self._patch.set_member(owner, self._style.value, marks.written(mark, self._style))

    def result(
        self, message: Members, name: str, text: str | None, mark: Mark | RemoveMark | None, path: Path
    ) -> None:
        """For a message that is a tool's result: another text, a mark on the last of what it holds, or both.

        Raises:
            BadEdit: it holds nothing that could be marked.
        """
        span = message.values.get(name)
        if text is not None:
            self._result_text(message, name, text, mark)
            return
        held = None if span is None else value(span.of(self._data))
        if span is not None and isinstance(held, str):
            self._patch.put(span.start, span.start, b"[" + self._shape.text_opening(""))
            self._patch.put(span.end, span.end, self._closing(mark) + b"]")
        elif span is not None and isinstance(held, list) and held and mark is not None:
            parts = items(self._data, span)
            self.mark(parts, len(parts) - 1, mark, path)
        else:
            raise BadEdit("holds nothing that could bear a mark", path=path)

    def _string(self, row: Row, edits: RowEdits, added: Added) -> None:
        """One text, which becomes a block where a string cannot say what it should."""
        (literal,) = row.entries
        text = edits.texts.get(0)
        if added and not edits.marks and self._is_blank(literal, text):
            everything = b",".join(one for number in sorted(added) for one in added[number])
            self._patch.put(literal.start, literal.end, row.opening + everything + row.closing)
            return
        if text is not None:
            self._patch.put(literal.start, literal.end, compact(text))
        if added or edits.marks:
            self.wrap(row, added, row.text_opening, self._closing(edits.marks.get(0)))

    def _longer(self, literal: Span, text: str | None, parts: Sequence[Part]) -> None:
        """A string with texts behind it, each after a blank line."""
        more = writing.joined(parts)
        if text is not None or self._is_blank(literal, None):
            said = writing.BLANK_LINE.join(filter(None, (text, more)))
            self._patch.put(literal.start, literal.end, compact(said))
        elif more:
            end = literal.end - 1
            self._patch.put(end, end, compact(writing.BLANK_LINE + more)[1:-1])

    def _is_blank(self, literal: Span, text: str | None) -> bool:
        """Whether a string says nothing, with which it is taken, where a block is refused."""
        said = as_text(value(literal.of(self._data))) if text is None else text
        return not said.strip()

    def _closing(self, mark: Mark | RemoveMark | None, kept: Mapping[str, bytes] | None = None) -> bytes:
        """What stands behind the string of a text block that bears `mark` and the client's own in `kept`."""
        if mark is not None and self._style is MarkStyle.CACHE_POINT:
            return b"}," + marks.written(mark, self._style)
        new = dict(kept or {})
        if mark is not None:
            new[self._style.value] = marks.written(mark, self._style)
        return b"".join(b"," + compact(name) + b":" + raw for name, raw in new.items()) + b"}"

    def _point(self, span: Span, following: Sequence[Span], mark: Mark | RemoveMark) -> None:
        """Bedrock's mark, a block behind the one that it marks."""
        new = marks.written(mark, self._style)
        if following and self._outline.is_point(following[0]):
            self._patch.put(following[0].start, following[0].end, new)
        else:
            self._patch.put(span.end, span.end, b"," + new)

    def _text(self, span: Span, text: str, path: Path) -> None:
        found = value(span.of(self._data))
        kind = self._shape.block_kind(found)
        if not isinstance(found, dict) or not (kind in self._shape.results or self._shape.is_text(found)):
            raise BadEdit(f"a block of the kind `{kind}` has no text that could be another", path=path)
        owner = members(self._data, span)
        if kind not in self._shape.results:
            self._patch.set_member(owner, "text", compact(text))
            return
        *outer, name = self._shape.results[kind]
        for step in outer:
            inner = owner.values[step]
            if not self._data.startswith(b"{", inner.start):
                raise BadEdit("holds nothing that could be another text", path=path)
            owner = members(self._data, inner)
        self._result_text(owner, name, text)

    def _result_text(self, owner: Members, name: str, text: str, mark: Mark | RemoveMark | None = None) -> None:
        """A text for all that a tool's result holds, in the shape that this had, with the last mark in it."""
        new = compact(text)
        span = owner.values.get(name)
        is_list = span is not None and self._data.startswith(b"[", span.start)
        if self._shape.result_is_object:
            new = b'{"result":' + new + b"}"
        elif not self._shape.text_kind or is_list or mark is not None:
            kept = self._last_marks(span) if is_list and span is not None else {}
            new = b"[" + self._shape.text_opening("") + new + self._closing(mark, kept) + b"]"
        self._patch.set_member(owner, name, new)

    def _last_marks(self, span: Span) -> dict[str, bytes]:
        """The marks on the last part of a result that bears any, as they came."""
        if not self._shape.marks_inside_results:
            return {}
        for part in reversed(items(self._data, span)):
            if self.bears_mark(part):
                values = members(self._data, part).values
                return {name: values[name].of(self._data) for name in marks.MEMBERS if name in values}
        return {}

    def bears_mark(self, span: Span) -> bool:
        """Whether a block bears a mark of its own."""
        found = as_record(value(span.of(self._data)))
        return any(found.get(name) is not None for name in marks.MEMBERS)
