"""Plan edits: group them by the part of the request that they change, and reject contradictions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from foveate.errors import BadEdit, MalformedRequest
from foveate.formats.json_text.parse import parse_json, to_json
from foveate.formats.layout import FormatLayout
from foveate.model import (
    Area,
    CacheBreakpoint,
    Edit,
    InsertParts,
    Message,
    Opaque,
    Part,
    Place,
    RemoveBreakpoint,
    ReorderTools,
    ReplaceMessages,
    ReplaceText,
    SetParameter,
    Text,
)

BLANK_LINE = "\n\n"


def block_json(part: Part, role: str, layout: FormatLayout) -> bytes:
    """Serialize a part as a block.

    Raises:
        BadEdit: it is neither text nor an opaque block.
    """
    match part:
        case Text():
            return layout.text_block_prefix(role) + to_json(part.text) + b"}"
        case Opaque():
            return _validated_json(part)
        case _:
            raise BadEdit(f"only texts and unchanged blocks can be written, not a {type(part).__name__}")


def message_json(message: Message, layout: FormatLayout) -> bytes:
    """Serialize a message. Its content is a plain string if it is one text and the format allows that.

    Raises:
        BadEdit: a part cannot be serialized.
    """
    name_member = b',"name":' + to_json(message.name) if message.name else b""
    opening = b'{"role":' + to_json(message.role) + name_member + b"," + to_json(layout.content_field) + b":"
    if layout.text_kind and len(message.parts) == 1 and isinstance(message.parts[0], Text):
        return opening + to_json(message.parts[0].text) + b"}"
    inner = b",".join(block_json(part, message.role, layout) for part in message.parts)
    return opening + b"[" + inner + b"]}"


def join_texts(parts: Sequence[Part]) -> str:
    """Join text parts by blank lines.

    Raises:
        BadEdit: a part is not text.
    """
    texts = [part.text for part in parts if isinstance(part, Text)]
    if len(texts) < len(parts):
        raise BadEdit("only texts can be inserted into a plain string", path=("system",))
    return BLANK_LINE.join(filter(None, texts))


def _validated_json(part: Opaque) -> bytes:
    try:
        parse_json(part.raw)
    except MalformedRequest:
        raise BadEdit(f"the `{part.kind}` block is not JSON") from None
    return part.raw


ParameterTree = dict[str, "ParameterTree | str | int | bool | None"]


@dataclass(slots=True)
class BlockListEdits:
    """Edits of one list of blocks: new texts, breakpoints and insertions by block number.

    `path` locates the list in error messages. If `join_texts` is set, texts inserted after a plain string
    become part of it.
    """

    path: tuple[str | int, ...]
    texts: dict[int, str] = field(default_factory=dict)
    breakpoints: dict[int, CacheBreakpoint | RemoveBreakpoint] = field(default_factory=dict)
    inserts: dict[int, list[Part]] = field(default_factory=dict)
    join_texts: bool = False

    def __bool__(self) -> bool:
        return bool(self.texts or self.breakpoints or self.inserts)

    def check(self, size: int) -> None:
        """Check that every edited block exists in a list of `size` blocks.

        Raises:
            BadEdit: one does not.
        """
        for block in (*self.texts, *self.breakpoints):
            if not 0 <= block < size:
                raise BadEdit(f"there is no such block; {size} blocks can be edited", path=(*self.path, block))
        for block in self.inserts:
            if not 0 <= block <= size:
                raise BadEdit(
                    f"nothing can be inserted there: there are {size} blocks", path=(*self.path, block)
                )


@dataclass(slots=True)
class EditPlan:
    """`inserted_messages` maps an index to the messages inserted before it."""

    tools: BlockListEdits = field(default_factory=lambda: BlockListEdits(("tools",)))
    tool_order: tuple[int, ...] | None = None
    system: BlockListEdits = field(default_factory=lambda: BlockListEdits(("system",)))
    messages: dict[int, BlockListEdits] = field(default_factory=dict)
    inserted_messages: dict[int, list[Message]] = field(default_factory=dict)
    dropped_messages: set[int] = field(default_factory=set)
    parameters: ParameterTree = field(default_factory=dict)

    @property
    def has_breakpoints(self) -> bool:
        return any(block_list.breakpoints for block_list in (self.tools, self.system, *self.messages.values()))

    def find_list(self, place: Place) -> tuple[BlockListEdits, int]:
        if place.area is Area.MESSAGES:
            if place.block is None:
                raise BadEdit("is a message, but the edit needs one of its blocks", path=error_path(place))
            block_list = self.messages.setdefault(place.index, BlockListEdits(("messages", place.index)))
            return block_list, place.block
        if place.block is not None:
            raise BadEdit("has no blocks", path=error_path(place))
        return (self.tools if place.area is Area.TOOLS else self.system), place.index


def error_path(place: Place) -> tuple[str | int, ...]:
    path = (place.area.value, place.index)
    return path if place.block is None else (*path, place.block)


def plan_edits(edits: Iterable[Edit], message_count: int) -> EditPlan:
    """Group `edits` of a request with `message_count` messages.

    Raises:
        BadEdit: two edits contradict each other, or one names a message that does not exist.
    """
    plan = EditPlan()
    replacements: list[ReplaceMessages] = []
    for edit in edits:
        match edit:
            case CacheBreakpoint() | RemoveBreakpoint():
                block_list, block = plan.find_list(edit.place)
                if block in block_list.breakpoints and _breakpoint_key(
                    block_list.breakpoints[block]
                ) != _breakpoint_key(edit):
                    raise BadEdit(
                        "two different cache breakpoints for the same block", path=error_path(edit.place)
                    )
                block_list.breakpoints[block] = edit
            case ReplaceText():
                block_list, block = plan.find_list(edit.place)
                if block_list.texts.setdefault(block, edit.text) != edit.text:
                    raise BadEdit("two texts for the same block", path=error_path(edit.place))
            case InsertParts():
                _plan_insert(plan, edit)
            case ReplaceMessages():
                if edit not in replacements:
                    replacements.append(edit)
                    _plan_replacement(plan, edit, message_count)
            case ReorderTools():
                if plan.tool_order not in (None, edit.order):
                    raise BadEdit("two orders of the tools", path=("tools",))
                plan.tool_order = edit.order
            case SetParameter():
                _plan_parameter(plan.parameters, edit)
    _check_plan(plan, replacements, message_count)
    return plan


def _breakpoint_key(edit: CacheBreakpoint | RemoveBreakpoint) -> object:
    return edit.ttl if isinstance(edit, CacheBreakpoint) else RemoveBreakpoint


def _plan_insert(plan: EditPlan, edit: InsertParts) -> None:
    if not edit.parts:
        raise BadEdit("there is nothing to insert", path=error_path(edit.place))
    if edit.place.area is Area.MESSAGES and edit.place.block is None:
        message = Message(role=edit.role, parts=edit.parts)
        inserted = plan.inserted_messages.setdefault(edit.place.index, [])
        if edit.join_texts:
            before = inserted.pop().parts if inserted and inserted[-1].role == edit.role else ()
            message = Message(role=edit.role, parts=(Text(join_texts((*before, *edit.parts))),))
        inserted.append(message)
        return
    block_list, block = plan.find_list(edit.place)
    block_list.join_texts |= edit.join_texts
    block_list.inserts.setdefault(block, []).extend(edit.parts)


def _plan_replacement(plan: EditPlan, edit: ReplaceMessages, message_count: int) -> None:
    if not 0 <= edit.start <= edit.end <= message_count:
        reason = f"{edit.start} to {edit.end} is not a range of {message_count} messages"
        raise BadEdit(reason, path=("messages", edit.start))
    span = range(edit.start, edit.end)
    if not plan.dropped_messages.isdisjoint(span):
        raise BadEdit("two edits replace the same messages", path=("messages", edit.start))
    plan.dropped_messages.update(span)
    plan.inserted_messages.setdefault(edit.start, []).extend(edit.messages)


def _check_plan(plan: EditPlan, replacements: list[ReplaceMessages], message_count: int) -> None:
    for index in plan.inserted_messages:
        if not 0 <= index <= message_count:
            raise BadEdit(
                f"nothing can be inserted there: there are {message_count} messages", path=("messages", index)
            )
    for index in plan.messages:
        if not 0 <= index < message_count:
            raise BadEdit(
                f"there is no such message; there are {message_count} messages", path=("messages", index)
            )
        if index in plan.dropped_messages:
            raise BadEdit("is both edited and replaced", path=("messages", index))
    for replacement in replacements:
        for index in plan.inserted_messages:
            if replacement.start < index < replacement.end:
                raise BadEdit("an insertion lies within replaced messages", path=("messages", index))


def _plan_parameter(tree: ParameterTree, edit: SetParameter) -> None:
    if not edit.path:
        raise BadEdit("a parameter has no name")
    for name in edit.path[:-1]:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            raise BadEdit("is set to both a value and an object", path=edit.path)
        tree = inner
    planned = tree.setdefault(edit.path[-1], edit.value)
    if planned != edit.value or type(planned) is not type(edit.value):
        raise BadEdit("two values for the same parameter", path=edit.path)
