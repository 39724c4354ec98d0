"""An estimate that needs no tokenizer: characters counted by class, each class worth what it was fitted to be.

A byte's class is looked up in a table (one `bytes.translate`), and the features are counts of classes and of
neighbours (a blank before a letter begins a word, a lower-case letter before a capital is a hump). So prose,
code, JSON and CJK weigh what they do because of what they are made of, text by text, in linear time.
"""

from collections.abc import Sequence
from functools import cache
from operator import mul
from pathlib import Path

import msgspec

from foveate.tokens.pieces import AFTER_WORDS
from foveate.tokens.rendering import Counts, Length, text_count
from foveate.values import TokenCount

_CONSTANTS = Path(__file__).parent / "data" / "estimate.json"

_LOWER, _UPPER, _DIGIT, _PUNCT, _BLANK, _LINE, _CJK, _NEAR, _FAR, _FARTHEST, _TAIL = b"lUdpsnkxyzc"


def _class_of(byte: int) -> int:
    if byte >= 0xF0:  # the first byte of a character: emoji and rare han begin with these
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


_CLASSES = bytes(map(_class_of, range(256)))

FEATURES = (
    "words", "lower", "humps", "upper", "digits", "digit_runs", "marks", "mark_runs", "lines", "blanks", "cjk",
    "near", "far", "farthest", "glued",
)  # fmt: skip


def features(text: str) -> tuple[int, ...]:
    """How often each of `FEATURES` occurs in `text`."""
    shape = text.encode("utf-8", "replace").translate(_CLASSES)
    digits, marks, lines = shape.count(b"dd"), shape.count(b"pp"), shape.count(b"nn")
    return (
        shape.count(b"sl") + shape.count(b"sU"),
        shape.count(b"l"),
        shape.count(b"lU"),
        shape.count(b"U"),
        shape.count(b"d") - digits,
        digits,
        shape.count(b"p") - marks,
        marks,
        shape.count(b"n") - lines,
        shape.count(b"ss"),
        shape.count(b"k"),
        shape.count(b"x"),
        shape.count(b"y"),
        shape.count(b"z"),
        shape.count(b"pl") + shape.count(b"pU") + shape.count(b"nl") + shape.count(b"nU"),
    )


class Estimate:
    """A ruler that weighs the classes of characters."""

    exact = False
    # No two neighbours that are counted together stand on both sides of one.
    seam = AFTER_WORDS

    def __init__(self, name: str, weights: Sequence[float], spread: float) -> None:
        """`spread`: how much longer, relative, a text has been found to be."""
        self.name = name
        self._weights = (*weights, 0.0)
        self._spread = spread

    def lengths(self, texts: Sequence[str]) -> list[Length]:
        """The estimated length of each text, at least 1 where there is any text."""
        return [self.length(text) for text in texts]

    def length(self, text: str) -> Length:
        """The length of a text."""
        return self.weighed((*features(text), len(text)))

    def counts(self, texts: Sequence[str]) -> list[Counts]:
        """The features of each text, and how many characters it has."""
        return [(*features(text), len(text)) for text in texts]

    def weighed(self, counts: Counts) -> Length:
        """The length of the text in which so much was counted."""
        if not counts[-1]:
            return Length(0.0, 0.0)
        tokens = max(1.0, sum(map(mul, counts, self._weights)))
        return Length(tokens, tokens * self._spread + 2)

    def total(self, counts: Counts) -> TokenCount:
        """The count of a text in which so much was counted."""
        return text_count(self.weighed(counts), exact=False)

    def steps(self, text: str, step_chars: int) -> list[tuple[int, Counts]] | None:
        """None: every place is as good as another."""
        del text, step_chars
        return None


class Quarter:
    """The last resort: a quarter of the characters, at least 1; rare characters can be four tokens each."""

    name = "characters"
    exact = False
    seam = AFTER_WORDS

    def lengths(self, texts: Sequence[str]) -> list[Length]:
        """The length of each text."""
        return [self.length(text) for text in texts]

    def length(self, text: str) -> Length:
        """The length of a text."""
        return self.weighed((len(text),))

    def counts(self, texts: Sequence[str]) -> list[Counts]:
        """How many characters each text has."""
        return [(len(text),) for text in texts]

    def weighed(self, counts: Counts) -> Length:
        """The length of a text of so many characters."""
        (chars,) = counts
        if not chars:
            return Length(0.0, 0.0)
        tokens = max(1.0, chars / 4)
        return Length(tokens, 4.0 * chars - tokens)

    def total(self, counts: Counts) -> TokenCount:
        """The count of a text in which so much was counted."""
        return text_count(self.weighed(counts), exact=False)

    def steps(self, text: str, step_chars: int) -> list[tuple[int, Counts]] | None:
        """None: every place is as good as another."""
        del text, step_chars
        return None


class _Constants(msgspec.Struct):
    fitted: str
    features: list[str]
    weights: dict[str, list[float]]
    spread: dict[str, float]


@cache
def _constants() -> _Constants:
    return msgspec.json.decode(_CONSTANTS.read_bytes(), type=_Constants)


def estimate_for(vocabulary: str) -> Estimate | Quarter:
    """The estimate that was fitted for a vocabulary; where there is none, the last resort."""
    constants = _constants()
    if vocabulary not in constants.weights:
        return Quarter()
    return Estimate(vocabulary, constants.weights[vocabulary], constants.spread[vocabulary])
