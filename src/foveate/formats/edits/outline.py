"""The outline of a request: finds its lists of blocks, messages and tools in the bytes of its body."""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple

from foveate.errors import BadEdit
from foveate.formats.incremental.body_cache import MessageOffsets
from foveate.formats.incremental.envelope import get_known_fields
from foveate.formats.json_text.offsets import (
    ByteSpan,
    ObjectMembers,
    find_items,
    find_members,
    find_members_and_lists,
    value_span,
)
from foveate.formats.json_text.parse import parse_json
from foveate.formats.layout import FieldPath, FormatLayout, is_cache_point
from foveate.model import BreakpointStyle, Request


class ListForm(Enum):
    LIST = auto()
    STRING = auto()  # one text block
    SINGLE = auto()  # one entry without a list
    ABSENT = auto()  # null or missing
    OTHER = auto()


class BlockList(NamedTuple):
    """A list of blocks or messages in the body, under `name` of `owner`. `span` is None if it is missing.

    `blocks` are the indexes of those `entries` that are not cache points of Bedrock. `opening` and `closing`
    enclose the entries if the list is rewritten; `text_block_prefix` and a brace turn a string into a block.
    """

    owner: ObjectMembers
    name: str
    span: ByteSpan | None
    form: ListForm
    entries: Sequence[ByteSpan]
    blocks: Sequence[int]
    text_block_prefix: bytes
    opening: bytes = b"["
    closing: bytes = b"]"


class ToolSlot(NamedTuple):
    tools: Sequence[ByteSpan]
    tool_index: int

    @property
    def span(self) -> ByteSpan:
        return self.tools[self.tool_index]


class RequestOutline:
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

    def messages(self) -> BlockList:
        """Locate the messages. A plain string is one user message."""
        opening = b'{"role":"user","' + self.layout.content_field.encode() + b'":'
        return self._find_list(self.root, self.layout.message_fields[0], opening)

    def system(self) -> BlockList:
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

    def content(self, message: ObjectMembers, role: str) -> BlockList:
        return self._find_list(message, self.layout.content_field, self.layout.text_block_prefix(role))

    def content_of_string(self, messages: BlockList) -> BlockList:
        """Locate the single block of messages that are a plain string."""
        return messages._replace(text_block_prefix=self.layout.text_block_prefix("user"))

    def role_and_type(self, message: ObjectMembers) -> dict[str, Any]:
        names = [name for name in ("role", "type") if name in message.values]
        return {name: parse_json(message.values[name].read(self.data)) for name in names}

    def tools(self) -> list[ToolSlot]:
        """Locate all tools, in the order of `Request.tools`."""
        slots: list[ToolSlot] = []
        for path in self.layout.tool_paths:
            list_span = self._find_path(path)
            if list_span is None:
                continue
            for tools in (
                self._find_declarations(list_span)
                if self.layout.declaration_fields
                else [self._find_entries(list_span)]
            ):
                slots += [ToolSlot(tools, number) for number in self._block_numbers(tools)]
        return slots

    def is_cache_point(self, span: ByteSpan) -> bool:
        return self._has_cache_points and is_cache_point(parse_json(span.read(self.data)))

    def span_with_cache_points(self, slot: ToolSlot) -> ByteSpan:
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

    def _find_list(self, owner: ObjectMembers, name: str, text_block_prefix: bytes) -> BlockList:
        span = owner.values.get(name)
        entries: Sequence[ByteSpan] = ()
        if span is None or self.data.startswith(b"n", span.start):
            form = ListForm.ABSENT
        elif self.data.startswith(b"[", span.start):
            form, entries = ListForm.LIST, self._find_entries(span)
        elif self.data.startswith(b'"', span.start):
            form, entries = ListForm.STRING, (span,)
        elif self.layout.allows_single and self.data.startswith(b"{", span.start):
            form, entries = ListForm.SINGLE, (span,)
        else:
            form = ListForm.OTHER
        return BlockList(
            owner=owner,
            name=name,
            span=span,
            form=form,
            entries=entries,
            blocks=range(len(entries)) if name in self.layout.message_fields else self._block_numbers(entries),
            text_block_prefix=text_block_prefix,
        )
