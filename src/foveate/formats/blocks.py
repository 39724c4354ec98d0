"""Blocks of a request, as a provider's cache compares them.

Blocks of a message are cached on its node in the history tree, blocks of a tool by the bytes of the tool. A
long session therefore costs only its new turns.
"""

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from foveate.caching import LruCache, register
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.incremental.history import MessageHistory, MessageNode, find_history
from foveate.formats.json_text.parse import (
    Fields,
    as_dict,
    as_list,
    as_text,
    parse_inner_fields,
    parse_items,
    parse_json,
    parse_object,
    to_json,
)
from foveate.formats.layout import (
    BREAKPOINT_FIELDS,
    FormatLayout,
    is_cache_point,
    read_breakpoint,
    read_ttl,
    remove_breakpoints,
)
from foveate.model import Area, Block, Format, Place, Request, Ttl

# Enough for the tools and system messages of some hundred agents, and their blocks.
_MAX_CACHE_BYTES = 16 * 1024 * 1024
_BLOCKS_KEY = object()
# Fields of a chat message that has nothing but its content.
_CONTENT_FIELDS = frozenset(("role", "content"))

BlockCacheKey = tuple[Format, Area, int, Ttl, bytes]


def estimate_size(key: BlockCacheKey, blocks: tuple[Block, ...]) -> int:
    return len(key[-1]) + sum(len(block.canonical_json) + 512 for block in blocks) + 512


# Blocks of tools and leading system messages. Saves 21% of the CPU of a session's first request with 500 tools
# that other sessions have sent.
BLOCK_CACHE: LruCache[tuple[Block, ...]] = LruCache(_MAX_CACHE_BYTES, weigh=estimate_size)
register(BLOCK_CACHE)
INSTRUCTIONS = "instructions"
"""Kind of a system prompt that can only be a plain string, without cache breakpoints."""


def read_request_blocks(request: Request, layout: FormatLayout) -> tuple[Block, ...]:
    """Return all blocks: tools, system prompt, messages.

    Raises:
        MalformedRequest: a part cannot be parsed.
    """
    history = find_history(request)
    reader = _BlockReader(request.format, layout, _read_breakpoint_ttl(_root_fields(request, layout)))
    nodes = enumerate(history.nodes, start=history.leading_system_messages)
    return (
        *read_preamble_blocks(request, layout, history),
        *(block for index, node in nodes for block in reader.read_node(index, node)),
    )


def read_preamble_blocks(request: Request, layout: FormatLayout, history: MessageHistory) -> tuple[Block, ...]:
    """Return the blocks before the messages of `history`: tools, system prompt, leading system messages.

    Raises:
        MalformedRequest: a part cannot be parsed.
    """
    fields = _root_fields(request, layout)
    reader = _BlockReader(request.format, layout, _read_breakpoint_ttl(fields))
    head = enumerate(request.messages[: history.leading_system_messages])
    return (
        *reader.read_tools(request, fields),
        *reader.read_system(fields),
        *(block for index, raw in head for block in reader.read_message(index, raw)),
    )


def read_history_blocks(
    request: Request, layout: FormatLayout, history: MessageHistory, position: int, message: Any = None
) -> tuple[Block, ...]:
    """Return the blocks of the message at `position` in `history`; `message` is the message if it was parsed.

    Raises:
        MalformedRequest: it cannot be parsed.
    """
    reader = _BlockReader(request.format, layout, _read_breakpoint_ttl(_root_fields(request, layout)))
    return reader.read_node(history.leading_system_messages + position, history.nodes[position], message)


def read_message_blocks(api_format: Format, layout: FormatLayout, raw: bytes, index: int) -> tuple[Block, ...]:
    """Return the blocks of one message outside of a request.

    Raises:
        MalformedRequest: it cannot be parsed.
    """
    return tuple(_BlockReader(api_format, layout, Ttl.THIRTY_MINUTES)._parse_message(index, parse_json(raw)))


def get_cached_blocks(node: MessageNode) -> tuple[Block, ...] | None:
    cached = node.memo.get(_BLOCKS_KEY)
    return None if cached is None else cached[2]


def _root_fields(request: Request, layout: FormatLayout) -> Fields:
    """Return the fields of a request, unwrapped if needed. Messages may be missing."""
    fields = get_parameters(request)
    return parse_inner_fields(fields[layout.wrapper_field]) if layout.wrapper_field in fields else fields


def _read_breakpoint_ttl(fields: Fields) -> Ttl:
    options = fields.get("prompt_cache_options")
    return Ttl.THIRTY_MINUTES if options is None else read_ttl(parse_json(options), default=Ttl.THIRTY_MINUTES)


class _BlockReader:
    def __init__(self, api_format: Format, layout: FormatLayout, breakpoint_ttl: Ttl) -> None:
        self._api_format = api_format
        self._layout = layout
        self._breakpoint_ttl = breakpoint_ttl

    def read_tools(self, request: Request, fields: Fields) -> Iterable[Block]:
        breakpoints = self._find_tool_breakpoints(fields)
        # The tools of a few large requests would fill the cache.
        is_cached = sum(map(len, request.tools)) <= _MAX_CACHE_BYTES // 4
        for index, raw in enumerate(request.tools):
            (block,) = (
                self._read_cached(Area.TOOLS, index, raw)
                if is_cached
                else self._parse_tool(index, parse_json(raw))
            )
            yield replace(block, breakpoint_ttl=breakpoints[index]) if index in breakpoints else block

    def read_system(self, fields: Fields) -> list[Block]:
        content = parse_json(
            next((fields[name] for name in self._layout.system_fields if name in fields), None)
        )
        if self._layout.system_blocks_field and isinstance(content, dict):
            content = content.get(self._layout.system_blocks_field)
        is_text = self._layout.system_is_text and isinstance(content, str)
        return [
            replace(block, place=Place(Area.SYSTEM, position), kind=INSTRUCTIONS if is_text else block.kind)
            for position, block in enumerate(self._parse_content(content, "", Area.SYSTEM, 0))
        ]

    def read_message(self, index: int, raw: bytes) -> tuple[Block, ...]:
        return self._read_cached(Area.MESSAGES, index, raw)

    def read_node(self, index: int, node: MessageNode, message: Any = None) -> tuple[Block, ...]:
        cached = node.memo.get(_BLOCKS_KEY)
        if cached is not None and cached[0] == index and cached[1] is self._breakpoint_ttl:
            blocks: tuple[Block, ...] = cached[2]
            return blocks
        blocks = tuple(self._parse_message(index, parse_json(node.raw) if message is None else message))
        node.memo[_BLOCKS_KEY] = index, self._breakpoint_ttl, blocks
        return blocks

    def _read_cached(self, area: Area, index: int, raw: bytes) -> tuple[Block, ...]:
        key = (self._api_format, area, index, self._breakpoint_ttl, raw)
        blocks = BLOCK_CACHE.get(key)
        if blocks is None:
            parse = self._parse_tool if area is Area.TOOLS else self._parse_message
            blocks = tuple(parse(index, parse_json(raw)))
            BLOCK_CACHE.put(key, blocks)
        return blocks

    def _parse_tool(self, index: int, tool: Any) -> list[Block]:
        return [self._make_block(Place(Area.TOOLS, index), "tool", tool)]

    def _parse_message(self, index: int, value: Any) -> list[Block]:
        message = as_dict(value)
        role = as_text(message.get("role"))
        if kind := self._layout.single_block_kind(message):
            return [self._make_result_block(Place(Area.MESSAGES, index, 0), kind, message, role)]
        blocks = self._parse_content(message.get(self._layout.content_field), role, Area.MESSAGES, index)
        message_breakpoint = read_breakpoint(message, self._breakpoint_ttl)
        if (
            message_breakpoint and blocks
        ):  # some clients set the breakpoint on the message and mean its last block
            blocks[-1] = replace(blocks[-1], breakpoint_ttl=blocks[-1].breakpoint_ttl or message_breakpoint)
        if self._layout.tool_calls_field and not message.keys() <= _CONTENT_FIELDS:
            blocks += self._parse_other_fields(message, role, index, len(blocks))
        return blocks

    def _parse_content(self, content: Any, role: str, area: Area, index: int) -> list[Block]:
        if content is None:
            return []
        if isinstance(content, str):
            content = self._layout.make_text_block(content, role)
        blocks: list[Block] = []
        for entry in content if isinstance(content, list) else [content]:
            if not self._layout.text_kind and is_cache_point(entry):
                if blocks and blocks[-1].breakpoint_ttl is None:
                    blocks[-1] = replace(blocks[-1], breakpoint_ttl=read_ttl(entry["cachePoint"]))
                continue
            kind = self._layout.block_kind(entry)
            blocks.append(self._make_block(Place(area, index, len(blocks)), kind, entry, role))
        return blocks

    def _parse_other_fields(self, message: dict[str, Any], role: str, index: int, first: int) -> list[Block]:
        """Parse what a chat message has besides its content: tool calls, reasoning, a refusal, a name."""
        entries = [("tool_call", call) for call in as_list(message.get(self._layout.tool_calls_field))]
        for name, inner in message.items():
            is_list_of_calls = name == self._layout.tool_calls_field and isinstance(inner, list)
            if (
                inner
                and name not in ("role", self._layout.content_field, *BREAKPOINT_FIELDS)
                and not is_list_of_calls
            ):
                entries.append((name, {name: inner}))
        return [
            self._make_block(Place(Area.MESSAGES, index, position), kind, entry, role)
            for position, (kind, entry) in enumerate(entries, start=first)
        ]

    def _make_result_block(self, place: Place, kind: str, message: dict[str, Any], role: str) -> Block:
        """A breakpoint on any part of a single-block message counts as its own."""
        path = self._layout.result_paths.get(kind, ())
        if not path:
            return self._make_block(place, kind, message, role)
        (name,) = path
        content = message.get(name)
        parts = [self._layout.make_text_block(content, role)] if isinstance(content, str) else as_list(content)
        canonical = remove_breakpoints({**message, name: [remove_breakpoints(part) for part in parts]})
        breakpoints = [read_breakpoint(as_dict(part), self._breakpoint_ttl) for part in (*parts, message)]
        return Block(
            place=place,
            kind=kind,
            canonical_json=to_json(canonical),
            role=role,
            breakpoint_ttl=next(filter(None, reversed(breakpoints)), None),
            is_empty=not parts or self._is_blank(parts[-1]),
        )

    def _make_block(self, place: Place, kind: str, entry: Any, role: str = "") -> Block:
        return Block(
            place=place,
            kind=kind,
            canonical_json=to_json(remove_breakpoints(entry)),
            role=role,
            breakpoint_ttl=read_breakpoint(as_dict(entry), self._breakpoint_ttl),
            is_empty=self._is_blank(entry),
        )

    def _is_blank(self, entry: object) -> bool:
        """Return whether a text block is blank. Providers reject a breakpoint on it."""
        text = as_text(as_dict(entry).get("text"))
        return (not text or text.isspace()) and self._layout.is_text(entry)

    def _find_tool_breakpoints(self, fields: Fields) -> dict[int, Ttl]:
        """Find Bedrock's cache points, which are entries between the tools."""
        breakpoints: dict[int, Ttl] = {}
        if self._api_format is not Format.BEDROCK:
            return breakpoints
        before = -1
        for entry in map(parse_object, parse_items(parse_inner_fields(fields.get("toolConfig")).get("tools"))):
            if is_cache_point(entry):
                breakpoints.setdefault(before, read_ttl(entry["cachePoint"]))
            else:
                before += 1
        return breakpoints


def read_automatic_breakpoint(request: Request) -> Ttl | None:
    """Return the TTL of a top-level `cache_control`, for which Anthropic places the breakpoint on the last
    block itself.
    """
    if request.format is not Format.ANTHROPIC:
        return None
    return read_breakpoint(
        {"cache_control": parse_json(get_parameters(request).get("cache_control"))}, Ttl.FIVE_MINUTES
    )
