"""Estimates without a tokenizer: characters are counted by class, and each class has a fitted weight.

A table gives the class of each byte (one `bytes.translate`). The features are counts of classes and of pairs: a
space before a letter starts a word, a lower-case letter before a capital is a hump. So prose, code, JSON and
CJK get different estimates, in linear time.
"""

from collections.abc import Sequence
from functools import cache
from operator import mul
from pathlib import Path

import msgspec

from foveate.model import TokenCount
from foveate.tokens.tokenizers.tokenizer import AFTER_WORDS, AdditiveCounts, TextLength, length_to_count

_CONSTANTS = Path(__file__).parents[1] / "data" / "estimate.json"

_LOWER, _UPPER, _DIGIT, _PUNCT, _BLANK, _LINE, _CJK, _NEAR, _FAR, _FARTHEST, _TAIL = b"lUdpsnkxyzc"


def _classify_byte(byte: int) -> int:
    if byte >= 0xF0:  # first byte of emoji and rare Han characters
        return _FARTHEST
    if byte >= 0xE0:  # kana, han and hangul, or the scripts of India and South-East Asia and most symbols
        return _CJK if 0xE3 <= byte <= 0xED else _FAR
    if byte >= 0xC0:  # accents, Greek, Cyrillic, Hebrew, Arabic
        return _NEAR
    if byte >= 0x80:
        return _TAIL
    char = chr(byte)
    if char.isalpha():
        return _LOWER if char.islower() else _UPPER
    if char.isdigit():
        return _DIGIT
    if char in "\r\n":
        return _LINE
    return _BLANK if char in " \t" else _PUNCT


_BYTE_CLASSES = bytes(map(_classify_byte, range(256)))

TEXT_FEATURES = (
    "words", "lower", "humps", "upper", "digits", "digit_runs", "marks", "mark_runs", "lines", "blanks", "cjk",
    "near", "far", "farthest", "glued",
)  # fmt: skip


def count_text_features(text: str) -> tuple[int, ...]:
    classes = text.encode("utf-8", "replace").translate(_BYTE_CLASSES)
    digits, marks, lines = classes.count(b"dd"), classes.count(b"pp"), classes.count(b"nn")
    return (
        classes.count(b"sl") + classes.count(b"sU"),
        classes.count(b"l"),
        classes.count(b"lU"),
        classes.count(b"U"),
        classes.count(b"d") - digits,
        digits,
        classes.count(b"p") - marks,
        marks,
        classes.count(b"n") - lines,
        classes.count(b"ss"),
        classes.count(b"k"),
        classes.count(b"x"),
        classes.count(b"y"),
        classes.count(b"z"),
        classes.count(b"pl") + classes.count(b"pU") + classes.count(b"nl") + classes.count(b"nU"),
    )


class CharacterClassEstimator:
    exact = False
    # No pair that is counted as a feature crosses such a boundary.
    safe_boundary = AFTER_WORDS

    def __init__(self, name: str, weights: Sequence[float], spread: float) -> None:
        """`spread`: how much longer, relatively, texts were found to be."""
        self.name = name
        self._weights = (*weights, 0.0)
        self._spread = spread

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        """Estimate the length of each text, at least 1 unless it is empty."""
        return [self.measure(text) for text in texts]

    def measure(self, text: str) -> TextLength:
        return self.weigh((*count_text_features(text), len(text)))

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        """The features of each text, and its number of characters."""
        return [(*count_text_features(text), len(text)) for text in texts]

    def weigh(self, counts: AdditiveCounts) -> TextLength:
        if not counts[-1]:
            return TextLength(0.0, 0.0)
        tokens = max(1.0, sum(map(mul, counts, self._weights)))
        return TextLength(tokens, tokens * self._spread + 2)

    def to_token_count(self, counts: AdditiveCounts) -> TokenCount:
        return length_to_count(self.weigh(counts), exact=False)

    def count_steps(self, text: str, step_chars: int) -> list[tuple[int, AdditiveCounts]] | None:
        """Return None: no position is better than another."""
        del text, step_chars
        return None


class CharacterCountEstimator:
    """The last resort: a quarter of the characters, at least 1. Rare characters can be four tokens each."""

    name = "characters"
    exact = False
    safe_boundary = AFTER_WORDS

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        return [self.measure(text) for text in texts]

    def measure(self, text: str) -> TextLength:
        return self.weigh((len(text),))

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        return [(len(text),) for text in texts]

    def weigh(self, counts: AdditiveCounts) -> TextLength:
        (chars,) = counts
        if not chars:
            return TextLength(0.0, 0.0)
        tokens = max(1.0, chars / 4)
        return TextLength(tokens, 4.0 * chars - tokens)

    def to_token_count(self, counts: AdditiveCounts) -> TokenCount:
        return length_to_count(self.weigh(counts), exact=False)

    def count_steps(self, text: str, step_chars: int) -> list[tuple[int, AdditiveCounts]] | None:
        """Return None: no position is better than another."""
        del text, step_chars
        return None


class _EstimateConstants(msgspec.Struct):
    fitted: str
    features: list[str]
    weights: dict[str, list[float]]
    spread: dict[str, float]


@cache
def _load_constants() -> _EstimateConstants:
    return msgspec.json.decode(_CONSTANTS.read_bytes(), type=_EstimateConstants)


def build_estimator(vocabulary: str) -> CharacterClassEstimator | CharacterCountEstimator:
    constants = _load_constants()
    if vocabulary not in constants.weights:
        return CharacterCountEstimator()
    return CharacterClassEstimator(vocabulary, constants.weights[vocabulary], constants.spread[vocabulary])
