"""Blocks that Foveate puts into a request, most stable first: a change leaves all before it in the cache."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from foveate.errors import BadOption


class Layer(StrEnum):
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
        return self.stability != "turn" and self is not Layer.HISTORY


_STABILITIES = {
    Layer.TOOLS: "static",
    Layer.WORKSPACE: "static",
    Layer.SKILLS: "static",
    Layer.BINDING: "session",
    Layer.HISTORY: "session",
    Layer.TURN: "turn",
}
_PLACES = {layer: place for place, layer in enumerate(Layer)}

# The layers that texts can be part of, and the texts that are known by name, in the order they have there: what
# changes least comes first, and what is not known last.
NAMES = {
    Layer.WORKSPACE: ("identity", "soul", "user", "agents", "memory", "mandates", "tools"),
    Layer.SKILLS: ("skills",),
    Layer.BINDING: ("peers", "channel_prompt", "language", "feedback"),
    Layer.TURN: ("awareness", "context", "logs", "budget", "channel", "sender", "time"),
}
_LAYER_OF = {name: layer for layer, names in NAMES.items() for name in names}
_RANKS = {(layer, name): rank for layer, names in NAMES.items() for rank, name in enumerate(names)}
_BY_STABILITY = {"static": Layer.WORKSPACE, "session": Layer.BINDING, "turn": Layer.TURN}
_WORKSPACE_FILES = "workspace/"
_BETWEEN = "\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedBlock:
    """A text that Foveate puts into a request."""

    name: str
    layer: Layer
    text: str = field(repr=False)  # it can be megabytes

    def __post_init__(self) -> None:
        """Refuse what no text can be part of.

        Raises:
            BadOption: its layer is that of the tools' definitions, or the history, which is the client's own.
        """
        if self.layer not in NAMES:
            known = ", ".join(NAMES)
            raise BadOption(
                f"block {self.name!r}: the layer of a text is one of {known}, not {self.layer}",
                path=(self.name, "layer"),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Flattened:
    """Blocks as one text before the history and one behind it; `note` says so, where blocks were lost by it.

    It is to be told once in a process.
    """

    before: str
    after: str
    note: str = ""


def layer_of(name: str, stability: str) -> Layer:
    """Where a section belongs that stays the same for so long: by its name among the layers that do, if known.

    How long it stays the same is believed, whatever its name.

    Raises:
        BadOption: a stability that is none of `static`, `session`, `turn`.
    """
    if stability not in _BY_STABILITY:
        known = ", ".join(_BY_STABILITY)
        raise BadOption(f"{name}.stability is one of {known}, not {stability!r}", path=(name, "stability"))
    by_name = _LAYER_OF.get(name)
    return by_name if by_name and by_name.stability == stability else _BY_STABILITY[stability]


def ordered(blocks: Iterable[InjectedBlock]) -> tuple[InjectedBlock, ...]:
    """The blocks, most stable first; those of which nothing is known stay in the order they have."""
    return tuple(sorted(blocks, key=_place))


def around_history(
    blocks: Iterable[InjectedBlock],
) -> tuple[tuple[InjectedBlock, ...], tuple[InjectedBlock, ...]]:
    """The blocks in their order: those that stand before the history, and those behind it."""
    found = ordered(blocks)
    first = sum(1 for block in found if _PLACES[block.layer] < _PLACES[Layer.HISTORY])
    return found[:first], found[first:]


def flattened(blocks: Iterable[InjectedBlock], *, provider: str) -> Flattened:
    """The blocks for a provider that takes none, as texts with a blank line between them.

    What changes with each turn still stands behind the history, which such a provider caches by itself.
    """
    sides = [[block.text for block in side if block.text.strip()] for side in around_history(blocks)]
    before, after = map(_BETWEEN.join, sides)
    if all(len(side) < 2 for side in sides):
        return Flattened(before=before, after=after)
    note = (
        f"{provider} takes no blocks: what Foveate adds is sent as one text, and cannot be marked for its cache"
    )
    return Flattened(before=before, after=after, note=note)


def _place(block: InjectedBlock) -> tuple[int, int]:
    return _PLACES[block.layer], _RANKS.get((block.layer, _stem(block.name)), len(NAMES[block.layer]))


def _stem(name: str) -> str:
    """A name as the table has it: `workspace/IDENTITY.md` is `identity`."""
    return name.removeprefix(_WORKSPACE_FILES).removesuffix(".md").lower()
