"""Stable orders of what precedes a history, since reordering invalidates the cache.

Blocks that Foveate adds are ordered by stability: most stable first, so that a change keeps everything before
it cached. The same set of tools is always sent in the same order.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

from foveate.errors import BadOption
from foveate.model import ReorderTools, Ttl
from foveate.prompt_cache.prompt.cached_prompt import compute_digest


class SectionLayer(StrEnum):
    """The layers of a prompt in order, from what hardly changes to what always does."""

    TOOLS = "tools"
    WORKSPACE = "workspace"
    SKILLS = "skills"
    BINDING = "binding"
    HISTORY = "history"
    TURN = "turn"

    @property
    def stability(self) -> str:
        """The layer in the terms of sections: `static`, `session` or `turn`."""
        return _STABILITIES[self]

    @property
    def is_long_lived(self) -> bool:
        """Return whether it should be cached with a long TTL."""
        return self.stability != "turn" and self is not SectionLayer.HISTORY


_STABILITIES = {
    SectionLayer.TOOLS: "static",
    SectionLayer.WORKSPACE: "static",
    SectionLayer.SKILLS: "static",
    SectionLayer.BINDING: "session",
    SectionLayer.HISTORY: "session",
    SectionLayer.TURN: "turn",
}
_LAYER_RANKS = {layer: place for place, layer in enumerate(SectionLayer)}

# The layers that can contain texts, with the known texts in order: what changes least comes first, unknown
# texts last.
SECTION_NAMES = {
    SectionLayer.WORKSPACE: ("identity", "soul", "user", "agents", "memory", "mandates", "tools"),
    SectionLayer.SKILLS: ("skills",),
    SectionLayer.BINDING: ("peers", "channel_prompt", "language", "feedback"),
    SectionLayer.TURN: ("awareness", "context", "logs", "budget", "channel", "sender", "time"),
}
_LAYER_BY_NAME = {name: layer for layer, names in SECTION_NAMES.items() for name in names}
_NAME_RANKS = {(layer, name): rank for layer, names in SECTION_NAMES.items() for rank, name in enumerate(names)}
_LAYER_BY_STABILITY = {
    "static": SectionLayer.WORKSPACE,
    "session": SectionLayer.BINDING,
    "turn": SectionLayer.TURN,
}
_WORKSPACE_PREFIX = "workspace/"
_SEPARATOR = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedBlock:
    name: str
    layer: SectionLayer
    text: str = field(repr=False)  # it can be megabytes

    def __post_init__(self) -> None:
        """Check the layer.

        Raises:
            BadOption: the layer is that of tool definitions, or the history, which is the client's own.
        """
        if self.layer not in SECTION_NAMES:
            known = ", ".join(SECTION_NAMES)
            raise BadOption(
                f"block {self.name!r}: layer must be one of {known}, not {self.layer}",
                path=(self.name, "layer"),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlattenedBlocks:
    """Blocks joined into one text before the history and one after it.

    `note` says so if blocks were lost by it; it should be reported once per process.
    """

    before: str
    after: str
    note: str = ""


def find_layer(name: str, stability: str) -> SectionLayer:
    """The layer of a section: by its name if that is known and its layer has this stability, else by its
    stability.

    Raises:
        BadOption: a stability other than `static`, `session` and `turn`.
    """
    if stability not in _LAYER_BY_STABILITY:
        known = ", ".join(_LAYER_BY_STABILITY)
        raise BadOption(f"{name}.stability must be one of {known}, not {stability!r}", path=(name, "stability"))
    by_name = _LAYER_BY_NAME.get(name)
    return by_name if by_name and by_name.stability == stability else _LAYER_BY_STABILITY[stability]


def order_blocks(blocks: Iterable[InjectedBlock]) -> tuple[InjectedBlock, ...]:
    """Sort blocks, most stable first. Blocks of unknown name stay in their order."""
    return tuple(sorted(blocks, key=_sort_key))


def split_around_history(
    blocks: Iterable[InjectedBlock],
) -> tuple[tuple[InjectedBlock, ...], tuple[InjectedBlock, ...]]:
    ordered_blocks = order_blocks(blocks)
    first = sum(1 for block in ordered_blocks if _LAYER_RANKS[block.layer] < _LAYER_RANKS[SectionLayer.HISTORY])
    return ordered_blocks[:first], ordered_blocks[first:]


def flatten_blocks(blocks: Iterable[InjectedBlock], *, provider: str) -> FlattenedBlocks:
    """Join the blocks for a provider that does not accept blocks, separated by blank lines.

    What changes with each turn still follows the history, which such a provider caches automatically.
    """
    sides = [[block.text for block in side if block.text.strip()] for side in split_around_history(blocks)]
    before, after = map(_SEPARATOR.join, sides)
    if all(len(side) < 2 for side in sides):
        return FlattenedBlocks(before=before, after=after)
    note = (
        f"{provider} does not accept content blocks: "
        "Foveate sends its sections as one text, without cache breakpoints"
    )
    return FlattenedBlocks(before=before, after=after, note=note)


def _sort_key(block: InjectedBlock) -> tuple[int, int]:
    return _LAYER_RANKS[block.layer], _NAME_RANKS.get(
        (block.layer, _section_name(block.name)), len(SECTION_NAMES[block.layer])
    )


def _section_name(name: str) -> str:
    """A name as in the table: `workspace/IDENTITY.md` is `identity`."""
    return name.removeprefix(_WORKSPACE_PREFIX).removesuffix(".md").lower()


MAX_TOOL_SETS = 4
"""Number of tool sets whose order a session remembers: agents switch between a few (plan and edit)."""

REASON = "restores the order in which this session first sent these tools"


class NamedTool(Protocol):
    @property
    def name(self) -> str: ...


AnyTool = TypeVar("AnyTool", bound=NamedTool)


def sort_tools(tools: Iterable[AnyTool]) -> tuple[AnyTool, ...]:
    """Sort a list that Foveate builds by name, and tools of the same name by content."""
    return tuple(sorted(tools, key=lambda tool: (tool.name, repr(tool))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTool:
    """A tool in a client's list: its name (may be empty), its JSON without the breakpoint, and the
    breakpoint's TTL.
    """

    name: str
    content: bytes
    breakpoint_ttl: Ttl | None = None


class ToolList(NamedTuple):
    """A client's list of tools: a unique key and the breakpoint TTL of each."""

    keys: tuple[bytes, ...]
    breakpoint_ttls: tuple[Ttl | None, ...]

    @classmethod
    def from_tools(cls, tools: Sequence[ListedTool]) -> "ToolList":
        return cls(_tool_keys(tools), tuple([tool.breakpoint_ttl for tool in tools]))


@dataclass(frozen=True, slots=True)
class ToolOrders:
    """The orders in which a session sent its tools: the first order of each recent set, the latest set last.

    A tool is identified by the digest of its name, so that one whose description has changed keeps its
    position.
    """

    known_orders: tuple[tuple[bytes, ...], ...] = ()

    def stabilize(self, tools: ToolList) -> tuple[ReorderTools | None, "ToolOrders"]:
        """The edit for a client's list, if it needs one, and the orders after it is sent.

        A list is changed only if the session has sent exactly the same set in another order: it gets the
        order that the set had first. Adding or removing a tool makes another set.
        """
        listed = tools.keys
        stable_order = self._known_order(listed)
        places = {key: place for place, key in enumerate(listed)}
        order = tuple(places[key] for key in stable_order)
        # A breakpoint moves with its tool, and a short TTL must not precede a longer one.
        if not _ttls_descend([tools.breakpoint_ttls[place] for place in order]):
            stable_order, order = listed, tuple(range(len(listed)))
        edit = ReorderTools(order=order, reason=REASON) if stable_order != listed else None
        return edit, self._remember(stable_order)

    def _known_order(self, listed: tuple[bytes, ...]) -> tuple[bytes, ...]:
        present = set(listed)
        for known in reversed(self.known_orders):
            if len(known) == len(listed) and present.issuperset(known):
                return known
        return listed

    def _remember(self, order: tuple[bytes, ...]) -> "ToolOrders":
        if not order or (self.known_orders and self.known_orders[-1] == order):
            return self
        tools = set(order)
        others = [known for known in self.known_orders if set(known) != tools]
        return ToolOrders((*others, order)[-MAX_TOOL_SETS:])


def _tool_keys(tools: Sequence[ListedTool]) -> tuple[bytes, ...]:
    """A unique key for each tool: its name, or its whole content if several share the name."""
    names = Counter(tool.name for tool in tools)
    seen: Counter[tuple[str, bytes]] = Counter()
    keys = []
    for tool in tools:
        name = tool.name.encode("utf-8", "surrogatepass")
        if name and names[tool.name] == 1:
            keys.append(compute_digest(b"0\0" + name))
            continue
        seen[tool.name, tool.content] += 1
        keys.append(compute_digest(b"%d\0%b\0%b" % (seen[tool.name, tool.content], name, tool.content)))
    return tuple(keys)


def _ttls_descend(ttls: Iterable[Ttl | None]) -> bool:
    ttl_seconds = [ttl.seconds for ttl in ttls if ttl is not None]
    return all(before >= after for before, after in pairwise(ttl_seconds))
