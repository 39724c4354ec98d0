"""Order of the blocks that Foveate adds to a request: most stable first, so that a change keeps everything
before it cached.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from foveate.errors import BadOption


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
