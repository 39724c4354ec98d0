"""A ruler for Claude, whose tokenizers are not public: o200k's tokens, each class worth what was fitted for it.

Fitted on recorded requests and their bills, and on the growth of recorded sessions; `benchmarks/fit_claude.py`
makes the constants. See `docs/counting.md` for what they rest on.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from foveate.tokens.bpe import Bpe
from foveate.tokens.caches import register
from foveate.tokens.estimate import estimate_for
from foveate.tokens.rendering import Counts, Length, Yardstick, text_count
from foveate.tokens.steps import token_steps
from foveate.tokens.token_classes import CLASSES, class_table
from foveate.tokens.vocabulary import bundled
from foveate.values import TokenCount

_CONSTANTS = Path(__file__).parent / "data" / "claude.json"

_OLDEST = re.compile(r"claude-(2|v2|instant)")
_LATER = re.compile(r"(opus|sonnet|haiku|fable|mythos)-(\d{1,2})(?:-(\d{1,2})(?!\d))?(?!\d)")
_EARLIER = re.compile(r"claude-(3)(?:-(\d)(?!\d))?-(opus|sonnet|haiku)")

# What bills or documentation were seen of. Any other inherits its family's constants with a wider margin.
_KNOWN_VERSIONS = frozenset(((4, 0), (4, 1), (4, 5), (4, 6), (4, 7), (4, 8), (5, 0), (5, 1), (5, 5)))
_SECOND_TOKENIZER = (4, 7)
_UNKNOWN_MARGIN = 0.2

# Names of tools and of their parameters come with every call, and so do many of their values.
_WORD_CHARS = 32
_KEPT_WORDS = 4096


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Which Claude: `claude-3-5-haiku` is haiku 3.5, `claude-opus-4-20250514` is opus 4.0."""

    series: str
    number: tuple[int, int]


class Constants(msgspec.Struct, frozen=True):
    """What was fitted for one tokenizer: text by class, structure by name, and the spread of both."""

    text: dict[str, float]
    text_spread: dict[str, float]
    structure: dict[str, float]
    structure_spread: dict[str, float]
    around_tokens: float


class Fitted(msgspec.Struct, frozen=True):
    """The shipped constants of all families, dated."""

    fitted: str
    families: dict[str, Constants]


def spelled(model: str) -> str:
    """A model's name as Anthropic spells it: `claude-4.5-sonnet` is `claude-sonnet-4-5`."""
    name = re.sub(r"[._@ ]", "-", model.lower())
    return re.sub(r"claude-([4-9](?:-\d)?)-(opus|sonnet|haiku|fable|mythos)\b", r"claude-\2-\1", name)


def version_of(model: str) -> Version | None:
    """The version that a name says, or None where it says none that is known."""
    name = spelled(model)
    if found := _EARLIER.search(name):
        return Version(found[3], (3, int(found[2] or 0)))
    if found := _LATER.search(name):
        return Version(found[1], (int(found[2]), int(found[3] or 0)))
    return None


def family_of(model: str) -> str:
    """Which of the tokenizers a model has: `claude-2`, `claude-3` (3 to 4.6) or `claude-4.7` (and later)."""
    if _OLDEST.search(spelled(model)):
        return "claude-2"
    version = version_of(model)
    return "claude-3" if version and version.number < _SECOND_TOKENIZER else "claude-4.7"


def extra_margin(model: str) -> float:
    """How much wider the margin of a model is that nothing is known of yet."""
    version = version_of(model)
    known = version and (version.number[0] == 3 or version.number in _KNOWN_VERSIONS)
    return 0.0 if known or family_of(model) == "claude-2" else _UNKNOWN_MARGIN


@cache
def fitted() -> Fitted:
    """The constants as they are shipped."""
    return msgspec.json.decode(_CONSTANTS.read_bytes(), type=Fitted)


def claude_ruler(model: str) -> Yardstick:
    """The ruler of a Claude model; where o200k does not run here, the estimate by characters."""
    family = family_of(model)
    try:
        vocabulary = bundled("o200k_base")
    except ImportError:
        return estimate_for(family)
    return ClaudeRuler(family, vocabulary, fitted().families[family], extra_margin(model))


class ClaudeRuler:
    """Counts o200k's tokens by class, and weighs them."""

    exact = False

    def __init__(self, family: str, vocabulary: Bpe, constants: Constants, extra: float = 0.0) -> None:
        self.name = family
        self.seam = vocabulary.seam
        self._vocabulary = vocabulary
        self._weights = [constants.text[name] for name in CLASSES]
        self._margins = [constants.text[name] * (constants.text_spread[name] + extra) for name in CLASSES]
        self.drop()
        register(self)

    def lengths(self, texts: Sequence[str]) -> list[Length]:
        """The length of each text."""
        return [self.length(text) for text in texts]

    def drop(self) -> None:
        """Forget every word."""
        self._words: dict[str, Length] = {}

    def length(self, text: str) -> Length:
        """The length of a text."""
        if len(text) > _WORD_CHARS:
            return self._length(text)
        words = self._words
        known = words.get(text)
        if known is None:
            if len(words) >= _KEPT_WORDS:
                words.clear()
            known = words[text] = self._length(text)
        return known

    def _length(self, text: str) -> Length:
        return self.weighed(class_counts(self._vocabulary.ids(text))) if text else Length(0.0, 0.0)

    def counts(self, texts: Sequence[str]) -> list[Counts]:
        """How many tokens of each class each text has."""
        return [class_counts(self._vocabulary.ids(text)) for text in texts]

    def weighed(self, counts: Counts) -> Length:
        """The length of the text in which so much was counted."""
        tokens = margin = 0.0
        for count, weight, spread in zip(counts, self._weights, self._margins, strict=True):
            if count:
                tokens += count * weight
                margin += count * spread
        return Length(tokens, margin)

    def total(self, counts: Counts) -> TokenCount:
        """The count of a text in which so much was counted."""
        return text_count(self.weighed(counts), exact=False)

    def steps(self, text: str, step_chars: int) -> list[tuple[int, Counts]] | None:
        """Steps that end where o200k's tokens do."""
        steps = token_steps(self._vocabulary, text, step_chars)
        return None if steps is None else [(end, class_counts([ids])) for _, end, ids in steps]


def class_counts(tokens: Iterable[Sequence[int]]) -> Counts:
    """How many tokens of each class there are among some thousands of ids at a time."""
    table = class_table()
    counts = [0] * len(CLASSES)
    for ids in tokens:
        for token_id in ids:
            counts[table[token_id]] += 1
    return tuple(counts)
