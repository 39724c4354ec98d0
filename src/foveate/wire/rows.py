"""Edits of the blocks in one row: the system prompt, or what a message says."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from foveate.errors import BadEdit
from foveate.values import BreakpointStyle, CacheBreakpoint, Part, RemoveBreakpoint
from foveate.wire import marks, writing
from foveate.wire.body import as_dict, as_text, parse_json, to_json
from foveate.wire.outline import BlockList, ListForm, RequestOutline
from foveate.wire.spans import ByteSpan, ObjectMembers, find_items, find_members
from foveate.wire.splice import Patch
from foveate.wire.wanted import BlockListEdits

ErrorPath = tuple[str | int, ...]
AddedEntries = Mapping[int, Sequence[bytes]]


class BlockListWriter:
    """Writes what is asked of rows and blocks into a patch."""

    def __init__(self, outline: RequestOutline, patch: Patch, style: BreakpointStyle) -> None:
        self._outline = outline
        self._data = outline.data
        self._layout = outline.layout
        self._patch = patch
        self._style = style

    def write_blocks(self, block_list: BlockList, edits: BlockListEdits, role: str) -> None:
        """All that is asked of a row of blocks.

        Raises:
            BadEdit: a block is not there, or cannot be edited so.
        """
        edits.check(len(block_list.blocks))
        added = {
            block_list.blocks[block] if block < len(block_list.blocks) else len(block_list.entries): [
                writing.block_json(part, role, self._layout) for part in parts
            ]
            for block, parts in edits.inserts.items()
        }
        if (
            block_list.form is ListForm.STRING
            and edits.join_texts
            and not edits.breakpoints
            and edits.inserts.keys() == {1}
        ):
            self._append_to_string(block_list.entries[0], edits.texts.get(0), edits.inserts[1])
            return
        if block_list.form is ListForm.STRING:
            self._write_string(block_list, edits, added)
            return
        for block in sorted({*edits.texts, *edits.breakpoints}):
            number, path = block_list.blocks[block], (*edits.path, block)
            if block in edits.texts:
                self._write_text(block_list.entries[number], edits.texts[block], path)
            if block in edits.breakpoints:
                self.write_breakpoint(block_list.entries, number, edits.breakpoints[block], path)
        self.write_entries(block_list, added)

    def write_entries(
        self, block_list: BlockList, added: AddedEntries, dropped: AbstractSet[int] = frozenset()
    ) -> None:
        """New entries in a row, each before the one whose number it has, and others dropped from it.

        Raises:
            BadEdit: there is something else where a list should be.
        """
        if not added and not dropped:
            return
        if block_list.form is ListForm.OTHER:
            raise BadEdit("there is something else where a list should be", path=(block_list.name,))
        if block_list.span is not None and block_list.form is ListForm.LIST:
            self._patch.set_items(block_list.span, block_list.entries, dropped=dropped, added=added)
        elif block_list.entries and not dropped:
            self.wrap_in_list(block_list, added, b"", b"")
        else:
            everything = b",".join(entry for number in sorted(added) for entry in added[number])
            self._patch.set_member(
                block_list.owner, block_list.name, block_list.opening + everything + block_list.closing
            )

    def wrap_in_list(self, block_list: BlockList, added: AddedEntries, before: bytes, after: bytes) -> None:
        """A list around the one entry that stood without, with others beside it."""
        (entry,) = block_list.entries
        first = b"".join(item + b"," for item in added.get(0, ()))
        last = b"".join(b"," + item for item in added.get(1, ()))
        self._patch.replace(entry.start, entry.start, block_list.opening + first + before)
        self._patch.replace(entry.end, entry.end, after + last + block_list.closing)

    def write_breakpoint(
        self,
        entries: Sequence[ByteSpan],
        number: int,
        cache_breakpoint: CacheBreakpoint | RemoveBreakpoint,
        path: ErrorPath,
    ) -> None:
        """A mark on one of `entries`, in the place of the one that it bears.

        Raises:
            BadEdit: it is something that bears no marks.
        """
        span = entries[number]
        if self._style is BreakpointStyle.CACHE_POINT:
            if isinstance(cache_breakpoint, RemoveBreakpoint):
                raise BadEdit("a mark that is a block of its own is not removed", path=path)
            self._write_cache_point(span, entries[number + 1 : number + 2], cache_breakpoint)
        elif not self._data.startswith(b"{", span.start):
            raise BadEdit("is no block that could bear a mark", path=path)
        else:
            self.set_breakpoint(self._outline.members(span), cache_breakpoint)

    def set_breakpoint(
        self, owner: ObjectMembers, cache_breakpoint: CacheBreakpoint | RemoveBreakpoint
    ) -> None:
        """A mark as a member of what it marks."""
        self._patch.set_member(owner, self._style.value, marks.breakpoint_json(cache_breakpoint, self._style))

    def write_result(
        self,
        message: ObjectMembers,
        name: str,
        text: str | None,
        cache_breakpoint: CacheBreakpoint | RemoveBreakpoint | None,
        path: ErrorPath,
    ) -> None:
        """For a message that is a tool's result: another text, a mark on the last of what it holds, or both.

        Raises:
            BadEdit: it holds nothing that could be marked.
        """
        span = message.values.get(name)
        if text is not None:
            self._write_result_text(message, name, text, cache_breakpoint)
            return
        content = None if span is None else parse_json(span.read(self._data))
        if span is not None and isinstance(content, str):
            self._patch.replace(span.start, span.start, b"[" + self._layout.text_block_prefix(""))
            self._patch.replace(span.end, span.end, self._text_block_suffix(cache_breakpoint) + b"]")
        elif span is not None and isinstance(content, list) and content and cache_breakpoint is not None:
            parts = find_items(self._data, span)
            self.write_breakpoint(parts, len(parts) - 1, cache_breakpoint, path)
        else:
            raise BadEdit("holds nothing that could bear a mark", path=path)

    def _write_string(self, block_list: BlockList, edits: BlockListEdits, added: AddedEntries) -> None:
        """One text, which becomes a block where a string cannot say what it should."""
        (literal,) = block_list.entries
        text = edits.texts.get(0)
        if added and not edits.breakpoints and self._is_blank(literal, text):
            everything = b",".join(entry for number in sorted(added) for entry in added[number])
            self._patch.replace(
                literal.start, literal.end, block_list.opening + everything + block_list.closing
            )
            return
        if text is not None:
            self._patch.replace(literal.start, literal.end, to_json(text))
        if added or edits.breakpoints:
            self.wrap_in_list(
                block_list,
                added,
                block_list.text_block_prefix,
                self._text_block_suffix(edits.breakpoints.get(0)),
            )

    def _append_to_string(self, literal: ByteSpan, text: str | None, parts: Sequence[Part]) -> None:
        """A string with texts behind it, each after a blank line."""
        more = writing.join_texts(parts)
        if text is not None or self._is_blank(literal, None):
            joined = writing.BLANK_LINE.join(filter(None, (text, more)))
            self._patch.replace(literal.start, literal.end, to_json(joined))
        elif more:
            end = literal.end - 1
            self._patch.replace(end, end, to_json(writing.BLANK_LINE + more)[1:-1])

    def _is_blank(self, literal: ByteSpan, text: str | None) -> bool:
        """Whether a string says nothing, with which it is taken, where a block is refused."""
        effective_text = as_text(parse_json(literal.read(self._data))) if text is None else text
        return not effective_text.strip()

    def _text_block_suffix(
        self,
        cache_breakpoint: CacheBreakpoint | RemoveBreakpoint | None,
        kept: Mapping[str, bytes] | None = None,
    ) -> bytes:
        """What stands behind the string of a text block that bears `mark` and the client's own in `kept`."""
        if cache_breakpoint is not None and self._style is BreakpointStyle.CACHE_POINT:
            return b"}," + marks.breakpoint_json(cache_breakpoint, self._style)
        members = dict(kept or {})
        if cache_breakpoint is not None:
            members[self._style.value] = marks.breakpoint_json(cache_breakpoint, self._style)
        return b"".join(b"," + to_json(name) + b":" + raw for name, raw in members.items()) + b"}"

    def _write_cache_point(
        self,
        span: ByteSpan,
        following: Sequence[ByteSpan],
        cache_breakpoint: CacheBreakpoint | RemoveBreakpoint,
    ) -> None:
        """Bedrock's mark, a block behind the one that it marks."""
        new = marks.breakpoint_json(cache_breakpoint, self._style)
        if following and self._outline.is_cache_point(following[0]):
            self._patch.replace(following[0].start, following[0].end, new)
        else:
            self._patch.replace(span.end, span.end, b"," + new)

    def _write_text(self, span: ByteSpan, text: str, path: ErrorPath) -> None:
        block = parse_json(span.read(self._data))
        kind = self._layout.block_kind(block)
        if not isinstance(block, dict) or not (
            kind in self._layout.result_paths or self._layout.is_text(block)
        ):
            raise BadEdit(f"a block of the kind `{kind}` has no text that could be another", path=path)
        owner = find_members(self._data, span)
        if kind not in self._layout.result_paths:
            self._patch.set_member(owner, "text", to_json(text))
            return
        *outer, name = self._layout.result_paths[kind]
        for step in outer:
            inner = owner.values[step]
            if not self._data.startswith(b"{", inner.start):
                raise BadEdit("holds nothing that could be another text", path=path)
            owner = find_members(self._data, inner)
        self._write_result_text(owner, name, text)

    def _write_result_text(
        self,
        owner: ObjectMembers,
        name: str,
        text: str,
        cache_breakpoint: CacheBreakpoint | RemoveBreakpoint | None = None,
    ) -> None:
        """A text for all that a tool's result holds, in the shape that this had, with the last mark in it."""
        new = to_json(text)
        span = owner.values.get(name)
        is_list = span is not None and self._data.startswith(b"[", span.start)
        if self._layout.result_is_object:
            new = b'{"result":' + new + b"}"
        elif not self._layout.text_kind or is_list or cache_breakpoint is not None:
            kept = self._find_last_breakpoints(span) if is_list and span is not None else {}
            new = (
                b"["
                + self._layout.text_block_prefix("")
                + new
                + self._text_block_suffix(cache_breakpoint, kept)
                + b"]"
            )
        self._patch.set_member(owner, name, new)

    def _find_last_breakpoints(self, span: ByteSpan) -> dict[str, bytes]:
        """The marks on the last part of a result that bears any, as they came."""
        if not self._layout.breakpoints_inside_results:
            return {}
        for part in reversed(find_items(self._data, span)):
            if self.has_breakpoint(part):
                values = find_members(self._data, part).values
                return {
                    name: values[name].read(self._data) for name in marks.BREAKPOINT_FIELDS if name in values
                }
        return {}

    def has_breakpoint(self, span: ByteSpan) -> bool:
        """Whether a block bears a mark of its own."""
        block = as_dict(parse_json(span.read(self._data)))
        return any(block.get(name) is not None for name in marks.BREAKPOINT_FIELDS)
