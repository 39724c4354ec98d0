"""Renderings: the texts and the overhead that a provider makes of a part of a request, before it is tokenised.

The rules of a family produce a `Rendering`; a tokenizer then measures its texts. Every message has several of
these values, so they are structs of msgspec, which are created ten times as fast as dataclasses.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from foveate.formats.json_text.parse import parse_json, to_json
from foveate.model import Format, Message, Opaque, Request, Tool
from foveate.tokens.tokenizers.tokenizer import TextLength, TextMeasurer

_FRACTIONS_PER_TOKEN = 1024


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a request as its provider renders it.

    `thinking_texts` count only until the next turn begins; `opens_turn`: this part begins one. `certain`: the
    rule is known and not fitted. `loaded_tools`: deferred tools whose definitions become part of the prompt
    here. `unexplained`: what is charged but not visible in the request.

    Results of `parallel_calls` can be entries of one list. `list_entry` is a result as such an entry: its text,
    and its two ends as the first, another and the last entry. With `entry_margin_tokens` it is a guess.
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


class RenderingRules(Protocol):
    """Rules by which one family of models renders a request. Pure: nothing is counted here."""

    vendor: str

    family: str
    """Models that these rules render alike, as the evidence table names them."""

    generation: str
    """Models of the family that also have the same image prices."""

    api_formats: frozenset[Format]
    """Formats that these models accept without translation."""

    keeps_thinking: bool
    """Thinking of earlier turns is charged again, not only that of the current turn."""

    def render_frame(self, request: Request, first: Message | None, last: Message | None) -> Rendering:
        """Render what belongs to the whole request: the beginning of the response, the response schema."""

    def render_system(self, request: Request) -> Rendering:
        """Render the system prompt that is not a message."""

    def render_tool_preamble(
        self, request: Request, first: Message | None, loaded_tools: Sequence[str]
    ) -> Rendering:
        """Render what is added around the tools: a preamble, a namespace.

        `loaded_tools` are deferred tools that the conversation has loaded, each as often as it was loaded.
        """

    def render_tool(self, tool: Tool, position: int) -> Rendering: ...

    def render_message(self, message: Message) -> Rendering: ...


# Stored counts (`session.counting`) keep the names that these fields had first.
_STORED_NAMES = {
    "thinking_tokens": "thought_tokens",
    "thinking_upper": "thought_upper",
    "loaded_tools": "loads",
}


class MeasuredRendering(msgspec.Struct, frozen=True, kw_only=True, rename=_STORED_NAMES):
    """A rendering with measured texts. Only totals are rounded, so nothing is rounded twice.

    `entry_tokens`: tokens of a result as the first, another and the last entry of a list.
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
    """Measure renderings; all their texts are measured in one batch.

    `features` are those of the rendered messages.
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
    # Fractions that add up exactly, so that no sum depends on the order of its terms.
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
    """Join renderings. Certain only if each is; opens a turn if any does."""
    # One loop over all, since every message goes through here, mostly with two or three renderings.
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
    """A token rarely has fewer than three bytes."""
    return len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")) / 3


# Identifiers, cache breakpoints and encrypted data are never rendered.
_HIDDEN_KEYS = frozenset(
    ("type", "id", "call_id", "tool_use_id", "cache_control", "signature", "encrypted_content")
)
# A string of this length without whitespace is an image, audio or encrypted data, not text.
_MAX_WORD_CHARS = 1024


def render_unknown_block(block: Opaque) -> Rendering:
    """Guess by the text in a block of unknown type, so that it does not count as nothing."""
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
