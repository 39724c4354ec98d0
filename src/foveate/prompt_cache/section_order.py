"""Blocks that Foveate puts into a request, most stable first: a change leaves all before it in the cache."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from foveate.errors import BadOption


class SectionLayer(StrEnum):
    """The stretches of a prompt, in their order, which is from what hardly changes to what always does."""

    TOOLS = "tools"
    WORKSPACE = "workspace"
    SKILLS = "skills"
    BINDING = "binding"
    HISTORY = "history"
    TURN = "turn"

    @property
    def stability(self) -> str:
        """The same in the words of sections: `static`, `session` or `turn`."""
        return _STABILITIES[self]

    @property
    def is_long_lived(self) -> bool:
        """Whether a provider that can is asked to keep it for long."""
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

# The layers that texts can be part of, and the texts that are known by name, in the order they have there: what
# changes least comes first, and what is not known last.
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
    """A text that Foveate puts into a request."""

    name: str
    layer: SectionLayer
    text: str = field(repr=False)  # it can be megabytes

    def __post_init__(self) -> None:
        """Refuse what no text can be part of.

        Raises:
            BadOption: its layer is that of the tools' definitions, or the history, which is the client's own.
        """
        if self.layer not in SECTION_NAMES:
            known = ", ".join(SECTION_NAMES)
            raise BadOption(
                f"block {self.name!r}: the layer of a text is one of {known}, not {self.layer}",
                path=(self.name, "layer"),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FlattenedBlocks:
    """Blocks as one text before the history and one behind it; `note` says so, where blocks were lost by it.

    It is to be told once in a process.
    """

    before: str
    after: str
    note: str = ""


def find_layer(name: str, stability: str) -> SectionLayer:
    """Where a section belongs that stays the same for so long: by its name among the layers that do, if known.

    How long it stays the same is believed, whatever its name.

    Raises:
        BadOption: a stability that is none of `static`, `session`, `turn`.
    """
    if stability not in _LAYER_BY_STABILITY:
        known = ", ".join(_LAYER_BY_STABILITY)
        raise BadOption(f"{name}.stability is one of {known}, not {stability!r}", path=(name, "stability"))
    by_name = _LAYER_BY_NAME.get(name)
    return by_name if by_name and by_name.stability == stability else _LAYER_BY_STABILITY[stability]


def order_blocks(blocks: Iterable[InjectedBlock]) -> tuple[InjectedBlock, ...]:
    """The blocks, most stable first; those of which nothing is known stay in the order they have."""
    return tuple(sorted(blocks, key=_sort_key))


def split_around_history(
    blocks: Iterable[InjectedBlock],
) -> tuple[tuple[InjectedBlock, ...], tuple[InjectedBlock, ...]]:
    """The blocks in their order: those that stand before the history, and those behind it."""
    found = order_blocks(blocks)
    first = sum(1 for block in found if _LAYER_RANKS[block.layer] < _LAYER_RANKS[SectionLayer.HISTORY])
    return found[:first], found[first:]


def flatten_blocks(blocks: Iterable[InjectedBlock], *, provider: str) -> FlattenedBlocks:
    """The blocks for a provider that takes none, as texts with a blank line between them.

    What changes with each turn still stands behind the history, which such a provider caches by itself.
    """
    sides = [[block.text for block in side if block.text.strip()] for side in split_around_history(blocks)]
    before, after = map(_SEPARATOR.join, sides)
    if all(len(side) < 2 for side in sides):
        return FlattenedBlocks(before=before, after=after)
    note = (
        f"{provider} takes no blocks: what Foveate adds is sent as one text, and cannot be marked for its cache"
    )
    return FlattenedBlocks(before=before, after=after, note=note)


def _sort_key(block: InjectedBlock) -> tuple[int, int]:
    return _LAYER_RANKS[block.layer], _NAME_RANKS.get(
        (block.layer, _section_name(block.name)), len(SECTION_NAMES[block.layer])
    )


def _section_name(name: str) -> str:
    """A name as the table has it: `workspace/IDENTITY.md` is `identity`."""
    return name.removeprefix(_WORKSPACE_PREFIX).removesuffix(".md").lower()
