"""What a provider makes of a part of a request before it is tokenised: which texts, and what goes around them.

Rules (`tokens.rules`) decide a `Rendering`; a ruler (`Ruler`) then says how long its texts are. Every message
makes a few of these values, so they are msgspec's structs, which are made ten times as fast as dataclasses.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from foveate.tokens.pieces import Seam
from foveate.values import Format, Message, Request, TokenCount, Tool

_STEPS_PER_TOKEN = 1024


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """A part as its provider renders it.

    `thoughts` are texts that count only until the next turn opens, `opens_turn` says that this part opens one.
    `certain` says that the rule is known and not fitted. `loads` names deferred tools whose definition is
    written out here. `unexplained` names what will be billed but cannot be seen from here.

    The results of `parallel_calls` can be entries of one list. `list_entry` is what a result is shown as there:
    its text, and its two ends as the first, another and the last entry. `entry_margin_tokens` makes it a guess.
    """

    texts: tuple[str, ...] = ()
    fixed_tokens: float = 0.0
    margin_tokens: float = 0.0
    image_tokens: int = 0
    image_margin_tokens: int = 0
    thoughts: tuple[str, ...] = ()
    thought_tokens: float = 0.0
    thought_margin_tokens: float = 0.0
    opens_turn: bool = False
    certain: bool = True
    loads: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    parallel_calls: int = 0
    list_entry: tuple[str, ...] = ()
    entry_margin_tokens: float = 0.0


class Length(msgspec.Struct, frozen=True):
    """How long a text is in tokens, and how much longer it might be."""

    tokens: float
    margin_tokens: float


class Ruler(Protocol):
    """Says how many tokens texts are for one family of models."""

    name: str
    exact: bool

    def length(self, text: str) -> Length:
        """The length of a text; an empty one is 0."""

    def lengths(self, texts: Sequence[str]) -> list[Length]:
        """The length of each text, measured side by side where that is quicker."""


Counts = tuple[int, ...]
"""What was counted in a text, before it is weighed: whole numbers, so that sums are exact."""


class Scale(Protocol):
    """Says how long parts of a text are, and texts that are joined."""

    @property
    def seam(self) -> Seam | None:
        """Where a text can be cut so that what is counted in its pieces adds up to the whole; None: nowhere."""

    def counts(self, texts: Sequence[str]) -> list[Counts]:
        """What `total` makes the count of each text from."""

    def total(self, counts: Counts) -> TokenCount:
        """The count of a text that is not empty, in which so much was counted."""

    def steps(self, text: str, step_chars: int) -> list[tuple[int, Counts]] | None:
        """Where each step of about `step_chars` through a text without seams ends, and what is counted in it.

        All steps add up to the whole, and the first ones nearly always to the beginning that they are. None
        where such steps cannot be told.
        """


class Yardstick(Ruler, Scale, Protocol):
    """Both in one, as every family of models has it."""


def text_count(length: Length, *, exact: bool) -> TokenCount:
    """The count of a text of that length, which is not empty."""
    tokens = max(round(length.tokens), 1)
    # A spread is of what goes around texts, so an exact one has none.
    return TokenCount(tokens, exact, tokens if exact else tokens + math.ceil(length.margin_tokens))


class Rules(Protocol):
    """How one family of models renders a request. Pure: decides, and counts nothing."""

    vendor: str
    """Whose rules these are."""

    family: str
    """The models that these rules render alike, as the evidence names them."""

    generation: str
    """Those of them that also have the same prices of images."""

    speaks: frozenset[Format]
    """The formats that these models take as they are. Any other is translated by somebody on the way."""

    keeps_thoughts: bool
    """Reasoning of earlier turns is billed again, not only that of the turn under way."""

    def frame(self, request: Request, first: Message | None, last: Message | None) -> Rendering:
        """What goes around it all: the reply's opening, the answer's schema."""

    def system(self, request: Request) -> Rendering:
        """The system prompt that stands outside the messages."""

    def toolbox(self, request: Request, first: Message | None, loads: Sequence[str]) -> Rendering:
        """What goes around the tools, where there are any: a preamble, a namespace.

        `loads` are the deferred tools that the conversation has loaded, each as often as it did.
        """

    def tool(self, tool: Tool, position: int) -> Rendering:
        """One tool."""

    def message(self, message: Message) -> Rendering:
        """One message."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A rendering whose texts have been measured. Only totals are rounded, so that nothing is rounded twice.

    `entry_tokens` are those of a result as the first, another and the last entry of a list.
    """

    tokens: float = 0.0
    upper: float = 0.0
    image_tokens: int = 0
    image_upper: int = 0
    thought_tokens: float = 0.0
    thought_upper: float = 0.0
    opens_turn: bool = False
    certain: bool = True
    loads: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    features: int = 0
    parallel_calls: int = 0
    entry_tokens: tuple[float, ...] = ()
    entry_margin_tokens: float = 0.0


def measure(renderings: Sequence[Rendering], ruler: Ruler, features: Sequence[int] = ()) -> list[Measured]:
    """Each rendering measured, with all their texts handed to the ruler at once.

    `features` are those of the messages that were rendered.
    """
    texts: list[str] = []
    for rendering in renderings:
        texts += rendering.texts
        texts += rendering.thoughts
        texts += rendering.list_entry
    lengths = iter(ruler.lengths(texts))
    if not features:
        return [_measured(rendering, lengths, 0) for rendering in renderings]
    return [_measured(rendering, lengths, bits) for rendering, bits in zip(renderings, features, strict=True)]


def _measured(rendering: Rendering, lengths: Iterator[Length], features: int) -> Measured:
    tokens, margin = rendering.fixed_tokens, rendering.margin_tokens
    for length in islice(lengths, len(rendering.texts)):
        tokens += length.tokens
        margin += length.margin_tokens
    thought_tokens, thought_margin = rendering.thought_tokens, rendering.thought_margin_tokens
    for length in islice(lengths, len(rendering.thoughts)):
        thought_tokens += length.tokens
        thought_margin += length.margin_tokens
    entry_tokens: tuple[float, ...] = ()
    if rendering.list_entry:
        inner, *ends = [
            round(length.tokens * _STEPS_PER_TOKEN) / _STEPS_PER_TOKEN
            for length in islice(lengths, len(rendering.list_entry))
        ]
        entry_tokens = tuple(inner + ends[at] + ends[at + 1] for at in range(0, len(ends), 2))
    # In steps that add up exactly, so that no sum depends on the order in which it is made.
    tokens = round(tokens * _STEPS_PER_TOKEN) / _STEPS_PER_TOKEN
    margin = math.ceil(margin * _STEPS_PER_TOKEN) / _STEPS_PER_TOKEN
    thought_tokens = round(thought_tokens * _STEPS_PER_TOKEN) / _STEPS_PER_TOKEN
    thought_margin = math.ceil(thought_margin * _STEPS_PER_TOKEN) / _STEPS_PER_TOKEN
    return Measured(
        tokens=tokens,
        upper=tokens + margin,
        image_tokens=rendering.image_tokens,
        image_upper=rendering.image_tokens + rendering.image_margin_tokens,
        thought_tokens=thought_tokens,
        thought_upper=thought_tokens + thought_margin,
        opens_turn=rendering.opens_turn,
        certain=rendering.certain,
        loads=rendering.loads,
        unexplained=rendering.unexplained,
        features=features,
        parallel_calls=rendering.parallel_calls,
        entry_tokens=entry_tokens,
        entry_margin_tokens=rendering.entry_margin_tokens,
    )
