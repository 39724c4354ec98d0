"""The blocks of a request, as far as a provider's cache looks at them.

What was made of a message is noted on its link in the tree of conversations, what was made of a tool is
remembered by its bytes: so a long session costs only its new turns.
"""

from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock
from typing import Any

from msgspec.structs import replace

from foveate.values import Area, Block, Format, Place, Request, Ttl
from foveate.wire.around import parameters_of
from foveate.wire.body import (
    Fields,
    as_list,
    as_record,
    as_text,
    compact,
    inner_fields,
    items,
    record,
    value,
)
from foveate.wire.marks import MEMBERS, is_point, mark_of, ttl_of, without_marks
from foveate.wire.shapes import Shape
from foveate.wire.trails import Link, Trail, trail_of

# Bytes of tools and system messages, and of what was made of them: those of some hundred agents.
_KEPT_BYTES = 16 * 1024 * 1024
_BLOCKS = object()
# Of a chat message that says nothing beside its content.
_CONTENT_FIELDS = frozenset(("role", "content"))

Key = tuple[Format, Area, int, Ttl, bytes]


class KeptBlocks:
    """The blocks of tools and system messages seen before, the least recently used forgotten first."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._held_bytes = 0
        self._kept: OrderedDict[Key, tuple[Block, ...]] = OrderedDict()
        self._lock = Lock()

    @property
    def held_bytes(self) -> int:
        """How much is held, about."""
        return self._held_bytes

    def get(self, key: Key) -> tuple[Block, ...] | None:
        """What was kept under `key`, which is now the most recently used."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def put(self, key: Key, blocks: tuple[Block, ...]) -> None:
        """Keep `blocks`, and forget the oldest where they would be too many bytes."""
        with self._lock:
            if key not in self._kept:
                self._held_bytes += _size(key, blocks)
            self._kept[key] = blocks
            while self._held_bytes > self._capacity_bytes:
                self._held_bytes -= _size(*self._kept.popitem(last=False))

    def drop(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._kept.clear()
            self._held_bytes = 0


def _size(key: Key, blocks: tuple[Block, ...]) -> int:
    return len(key[-1]) + sum(len(block.said) + 512 for block in blocks) + 512


SEEN = KeptBlocks(_KEPT_BYTES)
INSTRUCTIONS = "instructions"
"""The kind of a system prompt that can only be a plain string. It bears no cache breakpoint."""


def blocks_of(request: Request, shape: Shape) -> tuple[Block, ...]:
    """Every block: the tools, the system prompt, the messages.

    Raises:
        MalformedRequest: a part of it cannot be read.
    """
    trail = trail_of(request)
    reader = _Reader(request.format, shape, _breakpoint_ttl(_root_fields(request, shape)))
    links = enumerate(trail.links, start=trail.head)
    return (
        *front_of(request, shape, trail),
        *(block for index, link in links for block in reader.linked(index, link)),
    )


def front_of(request: Request, shape: Shape, trail: Trail) -> tuple[Block, ...]:
    """The blocks of all that stands before the messages of a trail.

    Raises:
        MalformedRequest: a part of it cannot be read.
    """
    found = _root_fields(request, shape)
    reader = _Reader(request.format, shape, _breakpoint_ttl(found))
    head = enumerate(request.messages[: trail.head])
    return (
        *reader.tools(request, found),
        *reader.system(found),
        *(block for index, raw in head for block in reader.message(index, raw)),
    )


def link_blocks(request: Request, shape: Shape, trail: Trail, position: int) -> tuple[Block, ...]:
    """The blocks of one message of a trail.

    Raises:
        MalformedRequest: it cannot be read.
    """
    reader = _Reader(request.format, shape, _breakpoint_ttl(_root_fields(request, shape)))
    return reader.linked(trail.head + position, trail.links[position])


def message_blocks_of(spoken: Format, shape: Shape, raw: bytes, index: int) -> tuple[Block, ...]:
    """The blocks of one message that stands in no request.

    Raises:
        MalformedRequest: it cannot be read.
    """
    return tuple(_Reader(spoken, shape, Ttl.THIRTY_MINUTES)._message(index, value(raw)))


def noted_blocks(link: Link) -> tuple[Block, ...] | None:
    """The blocks of a message as they were last read; None where nobody has."""
    noted = link.known.get(_BLOCKS)
    return None if noted is None else noted[2]


def _root_fields(request: Request, shape: Shape) -> Fields:
    """The fields of a request, also where it stands inside another object; its messages may be missing."""
    found = parameters_of(request)
    return inner_fields(found[shape.wrapper]) if shape.wrapper in found else found


def _breakpoint_ttl(found: Fields) -> Ttl:
    asked = found.get("prompt_cache_options")
    return Ttl.THIRTY_MINUTES if asked is None else ttl_of(value(asked), usual=Ttl.THIRTY_MINUTES)


class _Reader:
    """Reads the blocks of one request."""

    def __init__(self, spoken: Format, shape: Shape, breakpoint_ttl: Ttl) -> None:
        self._spoken = spoken
        self._shape = shape
        self._breakpoint_ttl = breakpoint_ttl

    def tools(self, request: Request, found: Fields) -> Iterable[Block]:
        """One block a tool."""
        marks = self._marks_behind_tools(found)
        for index, raw in enumerate(request.tools):
            (block,) = self._remembered(Area.TOOLS, index, raw)
            yield replace(block, mark=marks[index]) if index in marks else block

    def system(self, found: Fields) -> list[Block]:
        """The blocks of the system prompt."""
        given = value(next((found[name] for name in self._shape.system if name in found), None))
        if self._shape.system_content and isinstance(given, dict):
            given = given.get(self._shape.system_content)
        is_text = self._shape.system_is_text and isinstance(given, str)
        return [
            replace(block, place=Place(Area.SYSTEM, position), kind=INSTRUCTIONS if is_text else block.kind)
            for position, block in enumerate(self._content(given, "", Area.SYSTEM, 0))
        ]

    def message(self, index: int, raw: bytes) -> tuple[Block, ...]:
        """The blocks of one message."""
        return self._remembered(Area.MESSAGES, index, raw)

    def linked(self, index: int, link: Link) -> tuple[Block, ...]:
        """The blocks of a message whose place in the conversation is known."""
        noted = link.known.get(_BLOCKS)
        if noted is not None and noted[0] == index and noted[1] is self._breakpoint_ttl:
            blocks: tuple[Block, ...] = noted[2]
            return blocks
        blocks = tuple(self._message(index, value(link.raw)))
        link.known[_BLOCKS] = index, self._breakpoint_ttl, blocks
        return blocks

    def _remembered(self, area: Area, index: int, raw: bytes) -> tuple[Block, ...]:
        key = (self._spoken, area, index, self._breakpoint_ttl, raw)
        known = SEEN.get(key)
        if known is None:
            read = self._tool if area is Area.TOOLS else self._message
            known = tuple(read(index, value(raw)))
            SEEN.put(key, known)
        return known

    def _tool(self, index: int, found: Any) -> list[Block]:
        return [self._block(Place(Area.TOOLS, index), "tool", found)]

    def _message(self, index: int, found: Any) -> list[Block]:
        message = as_record(found)
        role = as_text(message.get("role"))
        if kind := self._shape.whole_kind(message):
            return [self._result(Place(Area.MESSAGES, index, 0), kind, message, role)]
        made = self._content(message.get(self._shape.content), role, Area.MESSAGES, index)
        own_mark = mark_of(message, self._breakpoint_ttl)
        if own_mark and made:  # some clients mark the message, and mean its last block
            made[-1] = replace(made[-1], mark=made[-1].mark or own_mark)
        if self._shape.calls and not message.keys() <= _CONTENT_FIELDS:
            made += self._beside_content(message, role, index, len(made))
        return made

    def _content(self, given: Any, role: str, area: Area, index: int) -> list[Block]:
        """The blocks of a content field; a string is the one text block that means the same."""
        if given is None:
            return []
        if isinstance(given, str):
            given = self._shape.text_block(given, role)
        made: list[Block] = []
        for entry in given if isinstance(given, list) else [given]:
            if not self._shape.text_kind and is_point(entry):
                if made and made[-1].mark is None:
                    made[-1] = replace(made[-1], mark=ttl_of(entry["cachePoint"]))
                continue
            kind = self._shape.block_kind(entry)
            made.append(self._block(Place(area, index, len(made)), kind, entry, role))
        return made

    def _beside_content(self, message: dict[str, Any], role: str, index: int, first: int) -> list[Block]:
        """What a chat message says outside of its content: calls of tools, reasoning, a refusal, a name."""
        beside = [("tool_call", call) for call in as_list(message.get(self._shape.calls))]
        for name, inner in message.items():
            is_list_of_calls = name == self._shape.calls and isinstance(inner, list)
            if inner and name not in ("role", self._shape.content, *MEMBERS) and not is_list_of_calls:
                beside.append((name, {name: inner}))
        return [
            self._block(Place(Area.MESSAGES, index, position), kind, entry, role)
            for position, (kind, entry) in enumerate(beside, start=first)
        ]

    def _result(self, place: Place, kind: str, message: dict[str, Any], role: str) -> Block:
        """A message that is one block; a mark on a part of what it holds is its own."""
        path = self._shape.results.get(kind, ())
        if not path:
            return self._block(place, kind, message, role)
        (name,) = path
        held = message.get(name)
        parts = [self._shape.text_block(held, role)] if isinstance(held, str) else as_list(held)
        said = without_marks({**message, name: [without_marks(part) for part in parts]})
        marks = [mark_of(as_record(part), self._breakpoint_ttl) for part in (*parts, message)]
        return Block(
            place=place,
            kind=kind,
            said=compact(said),
            role=role,
            mark=next(filter(None, reversed(marks)), None),
            is_empty=not parts or self._is_blank(parts[-1]),
        )

    def _block(self, place: Place, kind: str, entry: Any, role: str = "") -> Block:
        return Block(
            place=place,
            kind=kind,
            said=compact(without_marks(entry)),
            role=role,
            mark=mark_of(as_record(entry), self._breakpoint_ttl),
            is_empty=self._is_blank(entry),
        )

    def _is_blank(self, entry: object) -> bool:
        """Whether it is a text block that says nothing, which providers refuse to mark."""
        text = as_text(as_record(entry).get("text"))
        return (not text or text.isspace()) and self._shape.is_text(entry)

    def _marks_behind_tools(self, found: Fields) -> dict[int, Ttl]:
        """Bedrock's marks, which stand between the tools."""
        marks: dict[int, Ttl] = {}
        if self._spoken is not Format.BEDROCK:
            return marks
        before = -1
        for entry in map(record, items(inner_fields(found.get("toolConfig")).get("tools"))):
            if is_point(entry):
                marks.setdefault(before, ttl_of(entry["cachePoint"]))
            else:
                before += 1
        return marks


def automatic_mark_of(request: Request) -> Ttl | None:
    """The time to live that a top-level `cache_control` asks for: Anthropic marks the last block by itself."""
    if request.format is not Format.ANTHROPIC:
        return None
    return mark_of({"cache_control": value(parameters_of(request).get("cache_control"))}, Ttl.FIVE_MINUTES)
