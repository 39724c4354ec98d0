"""A ruler for Claude, whose tokenizers are not public: o200k's tokens, each class worth what was fitted for it.

Fitted on recorded requests and their bills, and on the growth of recorded sessions; `benchmarks/fit_claude.py`
makes the constants. See `docs/counting.md` for what they rest on.
"""

import re
from collections.abc import Sequence
from functools import cache
from operator import mul
from pathlib import Path

import msgspec

from foveate.tokens.bpe import Bpe
from foveate.tokens.estimate import estimate_for
from foveate.tokens.rendering import Length, Ruler
from foveate.tokens.token_classes import CLASSES, class_table
from foveate.tokens.vocabulary import bundled

_CONSTANTS = Path(__file__).parent / "data" / "claude.json"

# A name that is not in here yet inherits its family's constants with a wider margin.
_KNOWN = re.compile(
    r"claude-(2|v2|instant)|claude-3|(opus|sonnet|haiku)-4(-\d)?(?!\d)|(opus|sonnet|fable|mythos|haiku)-5(-[15])?(?!\d)"
)
_OLDEST = re.compile(r"claude-(2|v2|instant)")
_FIRST_TOKENIZER = re.compile(r"claude-3|(opus|sonnet|haiku)-4(?!-?[789])(?!\d)")
_UNKNOWN_MARGIN = 0.2


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


def family_of(model: str) -> str:
    """Which of the tokenizers a model has: `claude-2`, `claude-3` (3 to 4.6) or `claude-4.7` (and later)."""
    name = spelled(model)
    if _OLDEST.search(name):
        return "claude-2"
    return "claude-3" if _FIRST_TOKENIZER.search(name) else "claude-4.7"


def extra_margin(model: str) -> float:
    """How much wider the margin of a model is that nothing is known of yet."""
    return 0.0 if _KNOWN.search(spelled(model)) else _UNKNOWN_MARGIN


@cache
def fitted() -> Fitted:
    """The constants as they are shipped."""
    return msgspec.json.decode(_CONSTANTS.read_bytes(), type=Fitted)


def claude_ruler(model: str) -> Ruler:
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
        self._vocabulary = vocabulary
        self._weights = [constants.text[name] for name in CLASSES]
        self._margins = [constants.text[name] * (constants.text_spread[name] + extra) for name in CLASSES]

    def lengths(self, texts: Sequence[str]) -> list[Length]:
        """The length of each text."""
        return [self.length(text) for text in texts]

    def length(self, text: str) -> Length:
        """The length of a text."""
        if not text:
            return Length(0.0, 0.0)
        counts = class_counts(self._vocabulary, text)
        return Length(sum(map(mul, counts, self._weights)), sum(map(mul, counts, self._margins)))


def class_counts(vocabulary: Bpe, text: str) -> list[int]:
    """How many tokens of each class `text` has."""
    table = class_table()
    counts = [0] * len(CLASSES)
    for ids in vocabulary.ids(text):
        classes = bytes(map(table.__getitem__, ids))
        for number in set(classes):
            counts[number] += classes.count(number)
    return counts
