"""Edits written into the bytes of a request: what no edit means stays as it came, byte for byte.

Every place is one of the request as it came, whatever the other edits do.
"""

from collections.abc import Mapping, Sequence

from foveate.errors import BadEdit
from foveate.values import BreakpointStyle, CacheBreakpoint, Edit, Message, RemoveBreakpoint, Request
from foveate.wire import writing
from foveate.wire.body import as_dict, as_list, as_text, parse_json, to_json
from foveate.wire.marks import breakpoint_json as written_mark
from foveate.wire.outline import BlockList, ListForm, RequestOutline, ToolSlot
from foveate.wire.rows import BlockListWriter
from foveate.wire.shapes import FieldPath, FormatLayout
from foveate.wire.spans import ByteSpan, ObjectMembers
from foveate.wire.splice import Patch
from foveate.wire.wanted import BlockListEdits, EditPlan, ParameterTree, plan_edits


def write_edits(
    request: Request, edits: Sequence[Edit], layout: FormatLayout, style: BreakpointStyle | None
) -> bytes:
    """The body of `request` with all `edits`; the same object where there are none.

    Raises:
        BadEdit: an edit names what is not there, cannot be written in this format, or contradicts another.
    """
    if not edits:
        return request.body
    plan = plan_edits(edits, len(request.messages))
    writer = _EditWriter(RequestOutline(request, layout), _choose_style(plan, layout, style))
    writer.write_tools(plan)
    if plan.system:
        writer.write_system(plan.system)
    if plan.messages or plan.inserted_messages or plan.dropped_messages:
        writer.write_messages(plan)
    if plan.parameters:
        writer.write_parameters(writer.outline.root, plan.parameters)
    return writer.patch.apply(request.body)


def _choose_style(plan: EditPlan, layout: FormatLayout, style: BreakpointStyle | None) -> BreakpointStyle:
    """How marks are to be written, if there are any."""
    if not layout.breakpoint_styles and plan.has_breakpoints:
        raise BadEdit("this format has no cache marks")
    if style is not None and style not in layout.breakpoint_styles and plan.has_breakpoints:
        raise BadEdit(f"this format has no marks of the style `{style}`")
    return style or next(iter(layout.breakpoint_styles), BreakpointStyle.CACHE_CONTROL)


class _EditWriter:
    """Gathers the splices of one request."""

    def __init__(self, outline: RequestOutline, style: BreakpointStyle) -> None:
        self.outline = outline
        self.patch = Patch()
        self._data = outline.data
        self._layout = outline.layout
        self._style = style
        self._blocks = BlockListWriter(outline, self.patch, style)

    def write_parameters(self, owner: ObjectMembers, tree: ParameterTree, path: FieldPath = ()) -> None:
        """Sets parameters, and those inside of them."""
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
                raise BadEdit("is no parameter, but part of the conversation", path=parameter_path)
            span = owner.values.get(name)
            present = b"null" if span is None else span.read(self._data)
            if not isinstance(new, dict) or present == b"null":
                self.patch.set_member(owner, name, to_json(new))
            elif span is not None and present.startswith(b"{"):
                self.write_parameters(self.outline.members(span), new, parameter_path)
            else:
                raise BadEdit("is no object, so that nothing can be set in it", path=parameter_path)

    def write_tools(self, plan: EditPlan) -> None:
        """Marks tools, and puts them in another order; a mark travels with its tool."""
        if plan.tools.texts or plan.tools.inserts:
            raise BadEdit("tools are only marked and put in another order", path=("tools",))
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
        slots: Sequence[ToolSlot],
        order: Sequence[int],
        breakpoints: Mapping[int, CacheBreakpoint | RemoveBreakpoint],
    ) -> None:
        if sorted(order) != list(range(len(slots))):
            raise BadEdit(f"the order does not name each of {len(slots)} tools once", path=("tools",))
        for slot, index in zip(slots, order, strict=True):
            tool, cache_breakpoint = slots[index], breakpoints.get(index)
            if tool.tools is not slot.tools:
                raise BadEdit("cannot stand in the place of a tool of another list", path=("tools", index))
            tool_patch = Patch()
            if cache_breakpoint is not None:
                tool_writer = BlockListWriter(self.outline, tool_patch, self._style)
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
        """Edits the system prompt."""
        block_list = self.outline.system()
        if self._layout.system_is_text and block_list.form in (ListForm.STRING, ListForm.ABSENT):
            self._write_plain_system_prompt(block_list, edits)
        else:
            self._blocks.write_blocks(block_list, edits, "")

    def write_messages(self, plan: EditPlan) -> None:
        """Edits, replaces, drops and inserts messages."""
        block_list = self.outline.messages()
        added = {index: self._new_messages_json(new) for index, new in plan.inserted_messages.items() if new}
        if block_list.form is ListForm.STRING and not plan.dropped_messages:
            self._write_string_message(block_list, plan.messages.get(0, BlockListEdits(("messages", 0))), added)
            return
        for index, edits in sorted(plan.messages.items()):
            self._write_message(block_list.entries[index], edits)
        self._blocks.write_entries(block_list, added, plan.dropped_messages)

    def _new_messages_json(self, messages: Sequence[Message]) -> list[bytes]:
        return [writing.message_json(message, self._layout) for message in messages]

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
            raise BadEdit(f"a `{kind}` has no blocks of its own", path=edits.path)
        if kind not in self._layout.result_paths:
            raise BadEdit(f"a `{kind}` can be neither marked nor given another text", path=path)
        if edits.breakpoints and self._has_breakpoint(message):
            self._blocks.set_breakpoint(message, edits.breakpoints.pop(0))
        (result_field,) = self._layout.result_paths[kind]
        if edits.texts or edits.breakpoints:
            self._blocks.write_result(message, result_field, edits.texts.get(0), edits.breakpoints.get(0), path)

    def _write_breakpoints_in_compact_message(
        self, span: ByteSpan, breakpoints: Mapping[int, CacheBreakpoint | RemoveBreakpoint]
    ) -> bool:
        """Marks blocks of a message that is spelled as it would be here: so it is known where they lie.

        False, and nothing done, where one bears a mark or cannot, and where it has to be looked at otherwise.
        """
        raw, name = span.read(self._data), self._style.value
        message = as_dict(parse_json(raw))
        blocks = as_list(message.get(self._layout.content_field))
        if self._style is BreakpointStyle.CACHE_POINT or not blocks or self._layout.single_block_kind(message):
            return False
        if name in message or next(reversed(message)) != self._layout.content_field or to_json(message) != raw:
            return False
        is_markable = [bool(block) and isinstance(block, dict) and name not in block for block in blocks]
        if not all(0 <= at < len(is_markable) and is_markable[at] for at in breakpoints):
            return False
        sizes = [len(to_json(block)) for block in blocks]
        first = span.end - len(b"]}") - sum(sizes) - len(b",") * (len(sizes) - 1)
        for at, cache_breakpoint in breakpoints.items():
            end = first + sum(sizes[: at + 1]) + at - len(b"}")
            self.patch.replace(
                end, end, b"," + to_json(name) + b":" + written_mark(cache_breakpoint, self._style)
            )
        return True

    def _has_breakpoint(self, message: ObjectMembers) -> bool:
        """Whether a message bears a mark itself, which counts as long as its last block bears none."""
        span = message.values.get(self._style.value)
        return span is not None and span.read(self._data) != b"null"

    def _write_string_message(
        self, block_list: BlockList, edits: BlockListEdits, added: dict[int, list[bytes]]
    ) -> None:
        """The one message of the user that a plain string is; a list around it only where there must be."""
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

    def _write_plain_system_prompt(self, block_list: BlockList, edits: BlockListEdits) -> None:
        """A system prompt that is one string: what is inserted stands before or behind, after a blank line."""
        edits.check(len(block_list.blocks))
        if edits.breakpoints:
            raise BadEdit("a plain string bears no mark in this format", path=("system", 0))
        size = len(block_list.blocks)
        before = writing.join_texts(edits.inserts.get(0, []) if size else [])
        after = writing.join_texts(edits.inserts.get(size, []))
        is_empty = block_list.span is None or block_list.span.read(self._data) in (b"null", b'""')
        if block_list.span is None or is_empty or edits.texts:
            paragraphs = (before, edits.texts.get(0, ""), after)
            new = to_json(writing.BLANK_LINE.join(filter(None, paragraphs)))
            self.patch.set_member(block_list.owner, block_list.name, new)
            return
        if before:
            start = block_list.span.start + 1
            self.patch.replace(start, start, to_json(before + writing.BLANK_LINE)[1:-1])
        if after:
            end = block_list.span.end - 1
            self.patch.replace(end, end, to_json(writing.BLANK_LINE + after)[1:-1])
