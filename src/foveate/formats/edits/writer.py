"""Write edits into the bytes of a request. Bytes that no edit touches stay the same.

Places in edits always refer to the original request. `_RequestOutline` finds the request's lists of blocks,
messages and tools in the bytes of its body, `_BlockListWriter` edits one list of blocks, and `_EditWriter` the
whole request.
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum, auto
from typing import Any, NamedTuple

from foveate.errors import BadEdit
from foveate.formats.edits.plan import (
    BLANK_LINE,
    BlockListEdits,
    EditPlan,
    ParameterTree,
    block_json,
    join_texts,
    message_json,
    plan_edits,
)
from foveate.formats.incremental.body_cache import MessageOffsets
from foveate.formats.incremental.envelope import get_known_fields
from foveate.formats.json_text.large_json import LARGE_BYTES
from foveate.formats.json_text.offsets import (
    ByteSpan,
    ObjectMembers,
    Patch,
    find_items,
    find_members,
    find_members_and_lists,
    value_span,
)
from foveate.formats.json_text.parse import as_dict, as_list, as_text, parse_json, parse_structure, to_json
from foveate.formats.layout import BREAKPOINT_FIELDS, FieldPath, FormatLayout, breakpoint_json, is_cache_point
from foveate.model import BreakpointStyle, CacheBreakpoint, Edit, Message, Part, RemoveBreakpoint, Request

_ErrorPath = tuple[str | int, ...]
_AddedEntries = Mapping[int, Sequence[bytes]]


class _ListForm(Enum):
    LIST = auto()
    STRING = auto()  # one text block
    SINGLE = auto()  # one entry without a list
    ABSENT = auto()  # null or missing
    OTHER = auto()


class _BlockList(NamedTuple):
    """A list of blocks or messages in the body, under `name` of `owner`. `span` is None if it is missing.

    `blocks` are the indexes of those `entries` that are not cache points of Bedrock. `opening` and `closing`
    enclose the entries if the list is rewritten; `text_block_prefix` and a brace turn a string into a block.
    """

    owner: ObjectMembers
    name: str
    span: ByteSpan | None
    form: _ListForm
    entries: Sequence[ByteSpan]
    blocks: Sequence[int]
    text_block_prefix: bytes
    opening: bytes = b"["
    closing: bytes = b"]"


class _ToolSlot(NamedTuple):
    tools: Sequence[ByteSpan]
    tool_index: int

    @property
    def span(self) -> ByteSpan:
        return self.tools[self.tool_index]


class _RequestOutline:
    def __init__(self, request: Request, layout: FormatLayout) -> None:
        self.data = request.body
        self.layout = layout
        self._has_cache_points = BreakpointStyle.CACHE_POINT in layout.breakpoint_styles
        offsets, fields = request.message_offsets, get_known_fields(request)
        if isinstance(offsets, MessageOffsets) and offsets.matches(request.body, request.messages):
            self.root = offsets.prefix.find_root(self.data, offsets.spans[-1], fields)
            self._known_items: Mapping[ByteSpan, Sequence[ByteSpan]] = {
                self.root.values[layout.message_fields[0]]: offsets.spans
            }
            return
        known = {layout.message_fields[0]: request.messages, layout.tool_paths[0][0]: request.tools}
        self.root, self._known_items = find_members_and_lists(self.data, value_span(self.data), known, fields)
        if layout.wrapper_field in self.root.values:
            self.root, self._known_items = find_members_and_lists(
                self.data, self.root.values[layout.wrapper_field], known
            )

    def members(self, span: ByteSpan) -> ObjectMembers:
        return find_members(self.data, span)

    def items(self, span: ByteSpan) -> tuple[ByteSpan, ...]:
        return find_items(self.data, span)

    def messages(self) -> _BlockList:
        """A plain string is one user message."""
        opening = b'{"role":"user","' + self.layout.content_field.encode() + b'":'
        return self._find_list(self.root, self.layout.message_fields[0], opening)

    def system(self) -> _BlockList:
        """Locate the system prompt.

        Raises:
            BadEdit: the format has no field for it.
        """
        layout = self.layout
        if not layout.system_fields:
            reason = "this format has no system field: insert a message with the role `system`"
            raise BadEdit(reason, path=("system",))
        name = next(
            (name for name in layout.system_fields if name in self.root.values), layout.system_fields[0]
        )
        if not layout.system_blocks_field:
            return self._find_list(self.root, name, layout.text_block_prefix(""))
        span = self.root.values.get(name)
        if span is not None and self.data.startswith(b"{", span.start):
            return self._find_list(self.members(span), layout.system_blocks_field, layout.text_block_prefix(""))
        opening = b'{"' + layout.system_blocks_field.encode() + b'":['
        block_list = self._find_list(self.root, name, layout.text_block_prefix(""))
        return block_list._replace(opening=opening, closing=b"]}")

    def content(self, message: ObjectMembers, role: str) -> _BlockList:
        return self._find_list(message, self.layout.content_field, self.layout.text_block_prefix(role))

    def content_of_string(self, messages: _BlockList) -> _BlockList:
        return messages._replace(text_block_prefix=self.layout.text_block_prefix("user"))

    def role_and_type(self, message: ObjectMembers) -> dict[str, Any]:
        names = [name for name in ("role", "type") if name in message.values]
        return {name: parse_json(message.values[name].read(self.data)) for name in names}

    def tools(self) -> list[_ToolSlot]:
        slots: list[_ToolSlot] = []
        for path in self.layout.tool_paths:
            list_span = self._find_path(path)
            if list_span is None:
                continue
            for tools in (
                self._find_declarations(list_span)
                if self.layout.declaration_fields
                else [self._find_entries(list_span)]
            ):
                slots += [_ToolSlot(tools, number) for number in self._block_numbers(tools)]
        return slots

    def is_cache_point(self, span: ByteSpan) -> bool:
        return self._has_cache_points and is_cache_point(parse_json(span.read(self.data)))

    def span_with_cache_points(self, slot: _ToolSlot) -> ByteSpan:
        end = slot.span.end
        for span in slot.tools[slot.tool_index + 1 :]:
            if not self.is_cache_point(span):
                break
            end = span.end
        return ByteSpan(slot.span.start, end)

    def _find_declarations(self, list_span: ByteSpan) -> Iterator[Sequence[ByteSpan]]:
        """Find Gemini's tools: lists of function declarations, and built-in tools as members."""
        is_list = self.data.startswith(b"[", list_span.start)
        for entry in self.items(list_span) if is_list else (list_span,):
            if not self.data.startswith(b"{", entry.start):
                continue
            for name, span in self.members(entry).values.items():
                yield self._find_entries(span) if name in self.layout.declaration_fields else (span,)

    def _find_entries(self, span: ByteSpan) -> Sequence[ByteSpan]:
        if not self.data.startswith(b"[", span.start):
            return ()
        return self._known_items.get(span) or self.items(span)

    def _block_numbers(self, entries: Sequence[ByteSpan]) -> Sequence[int]:
        numbers = range(len(entries))
        return (
            [at for at in numbers if not self.is_cache_point(entries[at])]
            if self._has_cache_points
            else numbers
        )

    def _find_path(self, path: FieldPath) -> ByteSpan | None:
        owner = self.root
        for name in path[:-1]:
            span = owner.values.get(name)
            if span is None or not self.data.startswith(b"{", span.start):
                return None
            owner = self.members(span)
        return owner.values.get(path[-1])

    def _find_list(self, owner: ObjectMembers, name: str, text_block_prefix: bytes) -> _BlockList:
        span = owner.values.get(name)
        entries: Sequence[ByteSpan] = ()
        if span is None or self.data.startswith(b"n", span.start):
            form = _ListForm.ABSENT
        elif self.data.startswith(b"[", span.start):
            form, entries = _ListForm.LIST, self._find_entries(span)
        elif self.data.startswith(b'"', span.start):
            form, entries = _ListForm.STRING, (span,)
        elif self.layout.allows_single and self.data.startswith(b"{", span.start):
            form, entries = _ListForm.SINGLE, (span,)
        else:
            form = _ListForm.OTHER
        return _BlockList(
            owner=owner,
            name=name,
            span=span,
            form=form,
            entries=entries,
            blocks=range(len(entries)) if name in self.layout.message_fields else self._block_numbers(entries),
            text_block_prefix=text_block_prefix,
        )


class _BlockListWriter:
    def __init__(self, outline: _RequestOutline, patch: Patch, style: BreakpointStyle) -> None:
        self._outline = outline
        self._data = outline.data
        self._layout = outline.layout
        self._patch = patch
        self._style = style

    def write_blocks(self, block_list: _BlockList, edits: BlockListEdits, role: str) -> None:
        """Write all edits of a list of blocks.

        Raises:
            BadEdit: a block does not exist or cannot be edited this way.
        """
        edits.check(len(block_list.blocks))
        added = {
            block_list.blocks[block] if block < len(block_list.blocks) else len(block_list.entries): [
                block_json(part, role, self._layout) for part in parts
            ]
            for block, parts in edits.inserts.items()
        }
        if (
            block_list.form is _ListForm.STRING
            and edits.join_texts
            and not edits.breakpoints
            and edits.inserts.keys() == {1}
        ):
            self._append_to_string(block_list.entries[0], edits.texts.get(0), edits.inserts[1])
            return
        if block_list.form is _ListForm.STRING:
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
        self, block_list: _BlockList, added: _AddedEntries, dropped: AbstractSet[int] = frozenset()
    ) -> None:
        """Insert entries before the given indexes, and remove those in `dropped`.

        Raises:
            BadEdit: the value is not a list.
        """
        if not added and not dropped:
            return
        if block_list.form is _ListForm.OTHER:
            raise BadEdit("is not a list", path=(block_list.name,))
        if block_list.span is not None and block_list.form is _ListForm.LIST:
            self._patch.set_items(block_list.span, block_list.entries, dropped=dropped, added=added)
        elif block_list.entries and not dropped:
            self.wrap_in_list(block_list, added, b"", b"")
        else:
            joined_entries = b",".join(entry for number in sorted(added) for entry in added[number])
            self._patch.set_member(
                block_list.owner, block_list.name, block_list.opening + joined_entries + block_list.closing
            )

    def wrap_in_list(self, block_list: _BlockList, added: _AddedEntries, before: bytes, after: bytes) -> None:
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
        path: _ErrorPath,
    ) -> None:
        """Set or remove a breakpoint on one of `entries`.

        Raises:
            BadEdit: the entry cannot have a breakpoint.
        """
        span = entries[number]
        if self._style is BreakpointStyle.CACHE_POINT:
            if isinstance(cache_breakpoint, RemoveBreakpoint):
                raise BadEdit("a cache breakpoint that is a separate block cannot be removed", path=path)
            self._write_cache_point(span, entries[number + 1 : number + 2], cache_breakpoint)
        elif not self._data.startswith(b"{", span.start):
            raise BadEdit("is not a block that can have a cache breakpoint", path=path)
        else:
            self.set_breakpoint(self._outline.members(span), cache_breakpoint)

    def set_breakpoint(
        self, owner: ObjectMembers, cache_breakpoint: CacheBreakpoint | RemoveBreakpoint
    ) -> None:
        self._patch.set_member(owner, self._style.value, breakpoint_json(cache_breakpoint, self._style))

    def write_result(
        self,
        message: ObjectMembers,
        name: str,
        text: str | None,
        cache_breakpoint: CacheBreakpoint | RemoveBreakpoint | None,
        path: _ErrorPath,
    ) -> None:
        """Replace the text of a tool-result message, set a breakpoint on its last part, or both.

        Raises:
            BadEdit: it has no part that could have a breakpoint.
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
            raise BadEdit("contains nothing that can have a cache breakpoint", path=path)

    def _write_string(self, block_list: _BlockList, edits: BlockListEdits, added: _AddedEntries) -> None:
        (literal,) = block_list.entries
        text = edits.texts.get(0)
        if added and not edits.breakpoints and self._is_blank(literal, text):
            joined_entries = b",".join(entry for number in sorted(added) for entry in added[number])
            self._patch.replace(
                literal.start, literal.end, block_list.opening + joined_entries + block_list.closing
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
        more = join_texts(parts)
        if text is not None or self._is_blank(literal, None):
            joined = BLANK_LINE.join(filter(None, (text, more)))
            self._patch.replace(literal.start, literal.end, to_json(joined))
        elif more:
            end = literal.end - 1
            self._patch.replace(end, end, to_json(BLANK_LINE + more)[1:-1])

    def _is_blank(self, literal: ByteSpan, text: str | None) -> bool:
        """Providers accept a blank text as a string, but not as a block."""
        effective_text = as_text(parse_json(literal.read(self._data))) if text is None else text
        return not effective_text.strip()

    def _text_block_suffix(
        self,
        cache_breakpoint: CacheBreakpoint | RemoveBreakpoint | None,
        client_breakpoints: Mapping[str, bytes] | None = None,
    ) -> bytes:
        if cache_breakpoint is not None and self._style is BreakpointStyle.CACHE_POINT:
            return b"}," + breakpoint_json(cache_breakpoint, self._style)
        members = dict(client_breakpoints or {})
        if cache_breakpoint is not None:
            members[self._style.value] = breakpoint_json(cache_breakpoint, self._style)
        return b"".join(b"," + to_json(name) + b":" + raw for name, raw in members.items()) + b"}"

    def _write_cache_point(
        self,
        span: ByteSpan,
        following: Sequence[ByteSpan],
        cache_breakpoint: CacheBreakpoint | RemoveBreakpoint,
    ) -> None:
        new = breakpoint_json(cache_breakpoint, self._style)
        if following and self._outline.is_cache_point(following[0]):
            self._patch.replace(following[0].start, following[0].end, new)
        else:
            self._patch.replace(span.end, span.end, b"," + new)

    def _write_text(self, span: ByteSpan, text: str, path: _ErrorPath) -> None:
        block = parse_json(span.read(self._data))
        kind = self._layout.block_kind(block)
        if not isinstance(block, dict) or not (
            kind in self._layout.result_paths or self._layout.is_text(block)
        ):
            raise BadEdit(f"a `{kind}` block has no text that can be replaced", path=path)
        owner = find_members(self._data, span)
        if kind not in self._layout.result_paths:
            self._patch.set_member(owner, "text", to_json(text))
            return
        *outer, name = self._layout.result_paths[kind]
        for step in outer:
            inner = owner.values[step]
            if not self._data.startswith(b"{", inner.start):
                raise BadEdit("contains no text that can be replaced", path=path)
            owner = find_members(self._data, inner)
        self._write_result_text(owner, name, text)

    def _write_result_text(
        self,
        owner: ObjectMembers,
        name: str,
        text: str,
        cache_breakpoint: CacheBreakpoint | RemoveBreakpoint | None = None,
    ) -> None:
        """Replace the whole content of a tool result, keeping its JSON form and its last breakpoint."""
        new = to_json(text)
        span = owner.values.get(name)
        is_list = span is not None and self._data.startswith(b"[", span.start)
        if self._layout.result_is_object:
            new = b'{"result":' + new + b"}"
        elif not self._layout.text_kind or is_list or cache_breakpoint is not None:
            client_breakpoints = self._find_last_breakpoints(span) if is_list and span is not None else {}
            new = (
                b"["
                + self._layout.text_block_prefix("")
                + new
                + self._text_block_suffix(cache_breakpoint, client_breakpoints)
                + b"]"
            )
        self._patch.set_member(owner, name, new)

    def _find_last_breakpoints(self, span: ByteSpan) -> dict[str, bytes]:
        if not self._layout.breakpoints_inside_results:
            return {}
        for part in reversed(find_items(self._data, span)):
            if self.has_breakpoint(part):
                values = find_members(self._data, part).values
                return {name: values[name].read(self._data) for name in BREAKPOINT_FIELDS if name in values}
        return {}

    def has_breakpoint(self, span: ByteSpan) -> bool:
        block = as_dict(parse_structure(span.read(self._data)))
        return any(block.get(name) is not None for name in BREAKPOINT_FIELDS)


def write_edits(
    request: Request, edits: Sequence[Edit], layout: FormatLayout, style: BreakpointStyle | None
) -> bytes:
    """Return the body with all `edits`, or the same object if there are none.

    Raises:
        BadEdit: an edit names something missing, cannot be written in this format, or contradicts another.
    """
    if not edits:
        return request.body
    plan = plan_edits(edits, len(request.messages))
    writer = _EditWriter(_RequestOutline(request, layout), _choose_style(plan, layout, style))
    writer.write_tools(plan)
    if plan.system:
        writer.write_system(plan.system)
    if plan.messages or plan.inserted_messages or plan.dropped_messages:
        writer.write_messages(plan)
    if plan.parameters:
        writer.write_parameters(writer.outline.root, plan.parameters)
    return writer.patch.apply(request.body)


def _choose_style(plan: EditPlan, layout: FormatLayout, style: BreakpointStyle | None) -> BreakpointStyle:
    if not layout.breakpoint_styles and plan.has_breakpoints:
        raise BadEdit("this format has no cache breakpoints")
    if style is not None and style not in layout.breakpoint_styles and plan.has_breakpoints:
        raise BadEdit(f"this format has no cache breakpoints of the style `{style}`")
    return style or next(iter(layout.breakpoint_styles), BreakpointStyle.CACHE_CONTROL)


class _EditWriter:
    def __init__(self, outline: _RequestOutline, style: BreakpointStyle) -> None:
        self.outline = outline
        self.patch = Patch()
        self._data = outline.data
        self._layout = outline.layout
        self._style = style
        self._blocks = _BlockListWriter(outline, self.patch, style)

    def write_parameters(self, owner: ObjectMembers, tree: ParameterTree, path: FieldPath = ()) -> None:
        layout = self._layout
        reserved_paths = {
            (name,) for name in (*layout.message_fields, *layout.system_fields, layout.wrapper_field)
        }.union(layout.tool_paths)
        for name, new in tree.items():
            parameter_path = (*path, name)
            is_value = not isinstance(new, dict)
            if parameter_path in reserved_paths or (
                is_value and any(other[: len(parameter_path)] == parameter_path for other in reserved_paths)
            ):
                raise BadEdit("is part of the conversation, not a parameter", path=parameter_path)
            span = owner.values.get(name)
            present = b"null" if span is None else span.read(self._data)
            if not isinstance(new, dict) or present == b"null":
                self.patch.set_member(owner, name, to_json(new))
            elif span is not None and present.startswith(b"{"):
                self.write_parameters(self.outline.members(span), new, parameter_path)
            else:
                raise BadEdit("is not an object, so nothing can be set in it", path=parameter_path)

    def write_tools(self, plan: EditPlan) -> None:
        """Set breakpoints on tools and reorder them. A breakpoint moves with its tool."""
        if plan.tools.texts or plan.tools.inserts:
            raise BadEdit("tools can only be reordered or get cache breakpoints", path=("tools",))
        if not plan.tools.breakpoints and plan.tool_order is None:
            return
        slots = self.outline.tools()
        plan.tools.check(len(slots))
        if plan.tool_order is None:
            for index, cache_breakpoint in sorted(plan.tools.breakpoints.items()):
                self._blocks.write_breakpoint(
                    slots[index].tools, slots[index].tool_index, cache_breakpoint, ("tools", index)
                )
        else:
            self._reorder_tools(slots, plan.tool_order, plan.tools.breakpoints)

    def _reorder_tools(
        self,
        slots: Sequence[_ToolSlot],
        order: Sequence[int],
        breakpoints: Mapping[int, CacheBreakpoint | RemoveBreakpoint],
    ) -> None:
        if sorted(order) != list(range(len(slots))):
            raise BadEdit(f"the order must list each of the {len(slots)} tools once", path=("tools",))
        for slot, index in zip(slots, order, strict=True):
            tool, cache_breakpoint = slots[index], breakpoints.get(index)
            if tool.tools is not slot.tools:
                raise BadEdit("cannot take the place of a tool in another list", path=("tools", index))
            tool_patch = Patch()
            if cache_breakpoint is not None:
                tool_writer = _BlockListWriter(self.outline, tool_patch, self._style)
                tool_writer.write_breakpoint(tool.tools, tool.tool_index, cache_breakpoint, ("tools", index))
            if tool is slot:
                self.patch.include(tool_patch)
            else:
                target, source = (
                    self.outline.span_with_cache_points(slot),
                    self.outline.span_with_cache_points(tool),
                )
                self.patch.replace(target.start, target.end, tool_patch.apply(self._data, source))

    def write_system(self, edits: BlockListEdits) -> None:
        block_list = self.outline.system()
        if self._layout.system_is_text and block_list.form in (_ListForm.STRING, _ListForm.ABSENT):
            self._write_plain_system_prompt(block_list, edits)
        else:
            self._blocks.write_blocks(block_list, edits, "")

    def write_messages(self, plan: EditPlan) -> None:
        block_list = self.outline.messages()
        added = {index: self._new_messages_json(new) for index, new in plan.inserted_messages.items() if new}
        if block_list.form is _ListForm.STRING and not plan.dropped_messages:
            self._write_string_message(block_list, plan.messages.get(0, BlockListEdits(("messages", 0))), added)
            return
        for index, edits in sorted(plan.messages.items()):
            self._write_message(block_list.entries[index], edits)
        self._blocks.write_entries(block_list, added, plan.dropped_messages)

    def _new_messages_json(self, messages: Sequence[Message]) -> list[bytes]:
        return [message_json(message, self._layout) for message in messages]

    def _write_message(self, span: ByteSpan, edits: BlockListEdits) -> None:
        if (
            not edits.texts
            and not edits.inserts
            and self._write_breakpoints_in_compact_message(span, edits.breakpoints)
        ):
            return
        message = self.outline.members(span)
        attributes = self.outline.role_and_type(message)
        kind = self._layout.single_block_kind(attributes)
        if not kind:
            role = as_text(attributes.get("role"))
            block_list = self.outline.content(message, role)
            edits.check(len(block_list.blocks))
            last = len(block_list.blocks) - 1
            is_on_message = last in edits.breakpoints and self._has_breakpoint(message)
            if is_on_message and not self._blocks.has_breakpoint(block_list.entries[block_list.blocks[last]]):
                self._blocks.set_breakpoint(message, edits.breakpoints.pop(last))
            self._blocks.write_blocks(block_list, edits, role)
            return
        edits.check(1)
        path = (*edits.path, 0)
        if edits.inserts:
            raise BadEdit(f"a `{kind}` has no blocks", path=edits.path)
        if kind not in self._layout.result_paths:
            raise BadEdit(f"a `{kind}` can have neither a cache breakpoint nor another text", path=path)
        if edits.breakpoints and self._has_breakpoint(message):
            self._blocks.set_breakpoint(message, edits.breakpoints.pop(0))
        (result_field,) = self._layout.result_paths[kind]
        if edits.texts or edits.breakpoints:
            self._blocks.write_result(message, result_field, edits.texts.get(0), edits.breakpoints.get(0), path)

    def _write_breakpoints_in_compact_message(
        self, span: ByteSpan, breakpoints: Mapping[int, CacheBreakpoint | RemoveBreakpoint]
    ) -> bool:
        """Set breakpoints in a compactly serialized message, where block offsets follow from sizes.

        Return False without any change if a block has a breakpoint already or cannot have one, or if the
        message has another form.
        """
        if span.end - span.start >= LARGE_BYTES:
            return False  # comparing takes longer than searching
        raw, name = span.read(self._data), self._style.value
        message = as_dict(parse_json(raw))
        blocks = as_list(message.get(self._layout.content_field))
        if self._style is BreakpointStyle.CACHE_POINT or not blocks or self._layout.single_block_kind(message):
            return False
        if name in message or next(reversed(message)) != self._layout.content_field or to_json(message) != raw:
            return False
        accepts_breakpoint = [bool(block) and isinstance(block, dict) and name not in block for block in blocks]
        if not all(0 <= at < len(accepts_breakpoint) and accepts_breakpoint[at] for at in breakpoints):
            return False
        sizes = [len(to_json(block)) for block in blocks]
        first = span.end - len(b"]}") - sum(sizes) - len(b",") * (len(sizes) - 1)
        for at, cache_breakpoint in breakpoints.items():
            end = first + sum(sizes[: at + 1]) + at - len(b"}")
            self.patch.replace(
                end, end, b"," + to_json(name) + b":" + breakpoint_json(cache_breakpoint, self._style)
            )
        return True

    def _has_breakpoint(self, message: ObjectMembers) -> bool:
        """Return whether the message itself has a breakpoint, which counts unless its last block has one."""
        span = message.values.get(self._style.value)
        return span is not None and span.read(self._data) != b"null"

    def _write_string_message(
        self, block_list: _BlockList, edits: BlockListEdits, added: dict[int, list[bytes]]
    ) -> None:
        content = self.outline.content_of_string(block_list)
        (literal,) = block_list.entries
        if not added and not edits.breakpoints and (edits.join_texts or not edits.inserts):
            self._blocks.write_blocks(content, edits, "user")
            return
        first = b"".join(message + b"," for message in added.get(0, ()))
        last = b"".join(b"," + message for message in added.get(1, ()))
        self.patch.replace(literal.start, literal.start, b"[" + first + block_list.text_block_prefix)
        self._blocks.write_blocks(content, edits, "user")
        self.patch.replace(literal.end, literal.end, b"}" + last + b"]")

    def _write_plain_system_prompt(self, block_list: _BlockList, edits: BlockListEdits) -> None:
        """Edit a system prompt that can only be a string. Insertions are separated by blank lines."""
        edits.check(len(block_list.blocks))
        if edits.breakpoints:
            raise BadEdit("a plain string cannot have a cache breakpoint in this format", path=("system", 0))
        size = len(block_list.blocks)
        before = join_texts(edits.inserts.get(0, []) if size else [])
        after = join_texts(edits.inserts.get(size, []))
        is_empty = block_list.span is None or block_list.span.read(self._data) in (b"null", b'""')
        if block_list.span is None or is_empty or edits.texts:
            paragraphs = (before, edits.texts.get(0, ""), after)
            new = to_json(BLANK_LINE.join(filter(None, paragraphs)))
            self.patch.set_member(block_list.owner, block_list.name, new)
            return
        if before:
            start = block_list.span.start + 1
            self.patch.replace(start, start, to_json(before + BLANK_LINE)[1:-1])
        if after:
            end = block_list.span.end - 1
            self.patch.replace(end, end, to_json(BLANK_LINE + after)[1:-1])
