"""What a provider makes of a part of a request before it is tokenised: which texts, and what goes around them.

Rules (`tokens.rules`) decide a `Rendering`; a ruler (`Ruler`) then says how long its texts are. Every message
makes a few of these values, so they are msgspec's structs, which are made ten times as fast as dataclasses.

Renderings side by side, as one.

What of a block that is not known a model could be shown.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from foveate.formats.json_text.parse import parse_json, to_json
from foveate.model import Format, Message, Opaque, Request, TokenCount, Tool
from foveate.tokens.tokenizers.safe_boundaries import SafeBoundary

_FRACTIONS_PER_TOKEN = 1024


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
    thinking_texts: tuple[str, ...] = ()
    thinking_tokens: float = 0.0
    thinking_margin_tokens: float = 0.0
    opens_turn: bool = False
    certain: bool = True
    loaded_tools: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    parallel_calls: int = 0
    list_entry: tuple[str, ...] = ()
    entry_margin_tokens: float = 0.0


class TextLength(msgspec.Struct, frozen=True):
    """How long a text is in tokens, and how much longer it might be."""

    tokens: float
    margin_tokens: float


class TextMeasurer(Protocol):
    """Says how many tokens texts are for one family of models."""

    name: str
    exact: bool

    def measure(self, text: str) -> TextLength:
        """The length of a text; an empty one is 0."""

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        """The length of each text, measured side by side where that is quicker."""


AdditiveCounts = tuple[int, ...]
"""What was counted in a text, before it is weighed: whole numbers, so that sums are exact."""


class SegmentCounter(Protocol):
    """Says how long parts of a text are, and texts that are joined."""

    @property
    def safe_boundary(self) -> SafeBoundary | None:
        """Where a text can be cut so that what is counted in its pieces adds up to the whole; None: nowhere."""

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        """What `total` makes the count of each text from."""

    def to_token_count(self, counts: AdditiveCounts) -> TokenCount:
        """The count of a text that is not empty, in which so much was counted."""

    def count_steps(self, text: str, step_chars: int) -> list[tuple[int, AdditiveCounts]] | None:
        """Where each step of about `step_chars` through a text without seams ends, and what is counted in it.

        All steps add up to the whole, and the first ones nearly always to the beginning that they are. None
        where such steps cannot be told.
        """


class Tokenizer(TextMeasurer, SegmentCounter, Protocol):
    """Both in one, as every family of models has it."""


def length_to_count(length: TextLength, *, exact: bool) -> TokenCount:
    """The count of a text of that length, which is not empty."""
    tokens = max(round(length.tokens), 1)
    # A spread is of what goes around texts, so an exact one has none.
    return TokenCount(tokens, exact, tokens if exact else tokens + math.ceil(length.margin_tokens))


class RenderingRules(Protocol):
    """How one family of models renders a request. Pure: decides, and counts nothing."""

    vendor: str
    """Whose rules these are."""

    family: str
    """The models that these rules render alike, as the evidence names them."""

    generation: str
    """Those of them that also have the same prices of images."""

    api_formats: frozenset[Format]
    """The formats that these models take as they are. Any other is translated by somebody on the way."""

    keeps_thinking: bool
    """Reasoning of earlier turns is billed again, not only that of the turn under way."""

    def render_frame(self, request: Request, first: Message | None, last: Message | None) -> Rendering:
        """What goes around it all: the reply's opening, the answer's schema."""

    def render_system(self, request: Request) -> Rendering:
        """The system prompt that stands outside the messages."""

    def render_tool_preamble(
        self, request: Request, first: Message | None, loaded_tools: Sequence[str]
    ) -> Rendering:
        """What goes around the tools, where there are any: a preamble, a namespace.

        `loads` are the deferred tools that the conversation has loaded, each as often as it did.
        """

    def render_tool(self, tool: Tool, position: int) -> Rendering:
        """One tool."""

    def render_message(self, message: Message) -> Rendering:
        """One message."""


_STORED_NAMES = {
    "thinking_tokens": "thought_tokens",
    "thinking_upper": "thought_upper",
    "loaded_tools": "loads",
}


class MeasuredRendering(msgspec.Struct, frozen=True, kw_only=True, rename=_STORED_NAMES):
    """A rendering whose texts have been measured. Only totals are rounded, so that nothing is rounded twice.

    `entry_tokens` are those of a result as the first, another and the last entry of a list.
    """

    tokens: float = 0.0
    upper: float = 0.0
    image_tokens: int = 0
    image_upper: int = 0
    thinking_tokens: float = 0.0
    thinking_upper: float = 0.0
    opens_turn: bool = False
    certain: bool = True
    loaded_tools: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    features: int = 0
    parallel_calls: int = 0
    entry_tokens: tuple[float, ...] = ()
    entry_margin_tokens: float = 0.0


def measure_renderings(
    renderings: Sequence[Rendering], measurer: TextMeasurer, features: Sequence[int] = ()
) -> list[MeasuredRendering]:
    """Each rendering measured, with all their texts handed to the ruler at once.

    `features` are those of the messages that were rendered.
    """
    texts: list[str] = []
    for rendering in renderings:
        texts += rendering.texts
        texts += rendering.thinking_texts
        texts += rendering.list_entry
    lengths = iter(measurer.measure_many(texts))
    if not features:
        return [_measure_rendering(rendering, lengths, 0) for rendering in renderings]
    return [
        _measure_rendering(rendering, lengths, bits)
        for rendering, bits in zip(renderings, features, strict=True)
    ]


def _measure_rendering(rendering: Rendering, lengths: Iterator[TextLength], features: int) -> MeasuredRendering:
    tokens, margin = rendering.fixed_tokens, rendering.margin_tokens
    for length in islice(lengths, len(rendering.texts)):
        tokens += length.tokens
        margin += length.margin_tokens
    thinking_tokens, thinking_margin = rendering.thinking_tokens, rendering.thinking_margin_tokens
    for length in islice(lengths, len(rendering.thinking_texts)):
        thinking_tokens += length.tokens
        thinking_margin += length.margin_tokens
    entry_tokens: tuple[float, ...] = ()
    if rendering.list_entry:
        inner, *ends = [
            round(length.tokens * _FRACTIONS_PER_TOKEN) / _FRACTIONS_PER_TOKEN
            for length in islice(lengths, len(rendering.list_entry))
        ]
        entry_tokens = tuple(inner + ends[at] + ends[at + 1] for at in range(0, len(ends), 2))
    # In steps that add up exactly, so that no sum depends on the order in which it is made.
    tokens = round(tokens * _FRACTIONS_PER_TOKEN) / _FRACTIONS_PER_TOKEN
    margin = math.ceil(margin * _FRACTIONS_PER_TOKEN) / _FRACTIONS_PER_TOKEN
    thinking_tokens = round(thinking_tokens * _FRACTIONS_PER_TOKEN) / _FRACTIONS_PER_TOKEN
    thinking_margin = math.ceil(thinking_margin * _FRACTIONS_PER_TOKEN) / _FRACTIONS_PER_TOKEN
    return MeasuredRendering(
        tokens=tokens,
        upper=tokens + margin,
        image_tokens=rendering.image_tokens,
        image_upper=rendering.image_tokens + rendering.image_margin_tokens,
        thinking_tokens=thinking_tokens,
        thinking_upper=thinking_tokens + thinking_margin,
        opens_turn=rendering.opens_turn,
        certain=rendering.certain,
        loaded_tools=rendering.loaded_tools,
        unexplained=rendering.unexplained,
        features=features,
        parallel_calls=rendering.parallel_calls,
        entry_tokens=entry_tokens,
        entry_margin_tokens=rendering.entry_margin_tokens,
    )


def join_renderings(
    renderings: Iterable[Rendering], *, certain: bool = True, opens_turn: bool = False
) -> Rendering:
    """All of `renderings` as one: certain only if each is, and opening a turn if one does."""
    # One loop over all: every message goes through here, and most have two or three of them.
    texts: list[str] = []
    thinking_texts: list[str] = []
    loaded_tools: list[str] = []
    unexplained: list[str] = []
    fixed_tokens = margin_tokens = thinking_tokens = thinking_margin_tokens = 0.0
    image_tokens = image_margin_tokens = parallel_calls = 0
    for part in renderings:
        texts += part.texts
        thinking_texts += part.thinking_texts
        loaded_tools += part.loaded_tools
        unexplained += part.unexplained
        fixed_tokens += part.fixed_tokens
        margin_tokens += part.margin_tokens
        thinking_tokens += part.thinking_tokens
        thinking_margin_tokens += part.thinking_margin_tokens
        image_tokens += part.image_tokens
        image_margin_tokens += part.image_margin_tokens
        opens_turn = opens_turn or part.opens_turn
        certain = certain and part.certain
        parallel_calls += part.parallel_calls
    return Rendering(
        texts=tuple(texts),
        fixed_tokens=fixed_tokens,
        margin_tokens=margin_tokens,
        image_tokens=image_tokens,
        image_margin_tokens=image_margin_tokens,
        thinking_texts=tuple(thinking_texts),
        thinking_tokens=thinking_tokens,
        thinking_margin_tokens=thinking_margin_tokens,
        opens_turn=opens_turn,
        certain=certain,
        loaded_tools=tuple(loaded_tools),
        unexplained=tuple(dict.fromkeys(unexplained)),
        parallel_calls=parallel_calls,
    )


def estimate_margin_tokens(text: str | bytes) -> float:
    """About how many tokens `text` is, for margins only: a token is rarely less than three bytes."""
    return len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")) / 3


# Names, marks and seals: never shown.
_HIDDEN_KEYS = frozenset(
    ("type", "id", "call_id", "tool_use_id", "cache_control", "signature", "encrypted_content")
)
# A string of this length without a blank is a picture, a sound or a seal, and no text.
_MAX_WORD_CHARS = 1024


def render_unknown_block(block: Opaque) -> Rendering:
    """An unknown block by the text in it: a guess, so that something that is sent does not count as nothing."""
    text = _visible_text(parse_json(block.raw))
    return Rendering(
        texts=(text,), margin_tokens=estimate_margin_tokens(text) / 2, certain=False, unexplained=(block.kind,)
    )


def _visible_text(content: object) -> str:
    if isinstance(content, str):
        return content
    return to_json(_without_hidden(content)).decode()


def _without_hidden(content: object) -> object:
    match content:
        case dict():
            return {name: _without_hidden(inner) for name, inner in content.items() if name not in _HIDDEN_KEYS}
        case list():
            return [_without_hidden(inner) for inner in content]
        case str() if len(content) > _MAX_WORD_CHARS and len(content.split(maxsplit=1)) == 1:
            return ""
        case _:
            return content
