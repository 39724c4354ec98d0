"""Approximate tokenizer for Claude, whose tokenizers are not public.

Claude splits text about where o200k does, but not equally often everywhere: rare words more, whitespace less.
So the o200k tokens of a text are counted by class, and each class has a fitted weight. The constants are fitted
to recorded requests with their usage and to the growth of recorded sessions (`benchmarks/fit_claude.py`,
`docs/guides/counting.md`). The class of each o200k token is shipped as data, one byte a token.
"""

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from foveate.caching import register
from foveate.model import TokenCount
from foveate.tokens.model_names import normalize_claude_name
from foveate.tokens.tokenizers.bpe import BpeVocabulary, token_steps
from foveate.tokens.tokenizers.estimate import build_estimator
from foveate.tokens.tokenizers.tokenizer import AdditiveCounts, TextLength, Tokenizer, length_to_count
from foveate.tokens.tokenizers.vocabularies import bundled_vocabulary

TOKEN_CLASSES = (
    "word_common", "word_usual", "word_less", "word_rare",  # letters after a space, by o200k's rank
    "glued_usual", "glued_rare",  # lower-case letters without a space before
    "hump_usual", "hump_rare",  # a capital and letters without a space before
    "capitals", "mark", "marks", "mark_line", "blanks", "lines", "digit", "digits_2", "digits_3",
    "mixed", "accented", "cjk", "other_script", "symbols",
)  # fmt: skip

_CLASS_TABLE = Path(__file__).parents[1] / "data" / "o200k_classes.z"
_RANK_LIMITS = (3_000, 20_000, 60_000)
_CJK_RANGES = (
    (0x1100, 0x1200), (0x2E80, 0xA000), (0xAC00, 0xD7B0), (0xF900, 0xFB00), (0xFF00, 0xFFF0),
    (0x20000, 0x40000),
)  # fmt: skip


CLAUDE_VOCABULARY = "o200k_base"


@cache
def load_class_table() -> bytes:
    """Load the class of each o200k token, as an index into `TOKEN_CLASSES`."""
    return zlib.decompress(_CLASS_TABLE.read_bytes())


def classify_token(rank: int, token: bytes) -> str:
    """Return the class of one token. The shipped table is made with this."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return "symbols"
    if not text.isascii():
        return _classify_unicode(text)
    if text.isdigit():
        return ("digit", "digits_2", "digits_3")[min(len(text), 3) - 1]
    if text.isspace():
        return "lines" if "\n" in text or "\r" in text else "blanks"
    stripped = text.removeprefix(" ")
    if stripped.isalpha():
        return _classify_word(rank, stripped, starts_word=stripped != text)
    if any(char.isalnum() for char in stripped):
        return "mixed"
    if "\n" in stripped or "\r" in stripped:
        return "mark_line"
    return "mark" if len(stripped) == 1 else "marks"


def _classify_word(rank: int, word: str, *, starts_word: bool) -> str:
    if starts_word:
        names = ("word_common", "word_usual", "word_less", "word_rare")
        return names[sum(rank >= border for border in _RANK_LIMITS)]
    if word.isupper():
        return "capitals"
    frequency = "usual" if rank < _RANK_LIMITS[1] else "rare"
    return f"hump_{frequency}" if word[0].isupper() else f"glued_{frequency}"


def _classify_unicode(text: str) -> str:
    code_points = [ord(char) for char in text if char.isalpha() and not char.isascii()]
    if not code_points:
        return "symbols" if not any(char.isalpha() for char in text) else "accented"
    code = code_points[0]
    if code < 0x250 or 0x1E00 <= code < 0x1F00:
        return "accented"
    if any(first <= code < last for first, last in _CJK_RANGES):
        return "cjk"
    return "other_script"


_CONSTANTS = Path(__file__).parents[1] / "data" / "claude.json"

_CLAUDE_2_NAME = re.compile(r"claude-(2|v2|instant)")
_SERIES_FIRST_NAME = re.compile(r"(opus|sonnet|haiku|fable|mythos)-(\d{1,2})(?:-(\d{1,2})(?!\d))?(?!\d)")
_CLAUDE_3_NAME = re.compile(r"claude-(3)(?:-(\d)(?!\d))?-(opus|sonnet|haiku)")

# Versions with recorded usage or documentation. Others use the constants of their family with a wider margin.
_KNOWN_VERSIONS = frozenset(((4, 0), (4, 1), (4, 5), (4, 6), (4, 7), (4, 8), (5, 0), (5, 1), (5, 5)))
_NEW_TOKENIZER_VERSION = (4, 7)
_UNKNOWN_VERSION_MARGIN = 0.2

# Names of tools and parameters occur in every call, and so do many values. Short texts are cached.
_MAX_WORD_CHARS = 32
_MAX_CACHED_WORDS = 4096


@dataclass(frozen=True, slots=True, order=True)
class ClaudeVersion:
    """Version of a Claude model: `claude-3-5-haiku` is haiku 3.5, `claude-opus-4-20250514` is opus 4.0."""

    series: str
    number: tuple[int, int]


class ClaudeConstants(msgspec.Struct, frozen=True):
    """Fitted constants of one tokenizer: text by class, structure by name, and the spread of both."""

    text: dict[str, float]
    text_spread: dict[str, float]
    structure: dict[str, float]
    structure_spread: dict[str, float]
    around_tokens: float


class FittedConstants(msgspec.Struct, frozen=True):
    fitted: str
    families: dict[str, ClaudeConstants]


def parse_claude_version(model: str) -> ClaudeVersion | None:
    name = normalize_claude_name(model)
    if match := _CLAUDE_3_NAME.search(name):
        return ClaudeVersion(match[3], (3, int(match[2] or 0)))
    if match := _SERIES_FIRST_NAME.search(name):
        return ClaudeVersion(match[1], (int(match[2]), int(match[3] or 0)))
    return None


def claude_family(model: str) -> str:
    """Return the tokenizer family of a model: `claude-2`, `claude-3` (3 to 4.6) or `claude-4.7` (and later)."""
    if _CLAUDE_2_NAME.search(normalize_claude_name(model)):
        return "claude-2"
    version = parse_claude_version(model)
    return "claude-3" if version and version.number < _NEW_TOKENIZER_VERSION else "claude-4.7"


def extra_margin(model: str) -> float:
    """Additional relative margin of a model without recorded usage."""
    version = parse_claude_version(model)
    known = version and (version.number[0] == 3 or version.number in _KNOWN_VERSIONS)
    return 0.0 if known or claude_family(model) == "claude-2" else _UNKNOWN_VERSION_MARGIN


@cache
def load_fitted_constants() -> FittedConstants:
    return msgspec.json.decode(_CONSTANTS.read_bytes(), type=FittedConstants)


def build_claude_tokenizer(model: str) -> Tokenizer:
    family = claude_family(model)
    try:
        vocabulary = bundled_vocabulary(CLAUDE_VOCABULARY)
    except ImportError:
        return build_estimator(family)
    return ClaudeTokenizer(family, vocabulary, load_fitted_constants().families[family], extra_margin(model))


class ClaudeTokenizer:
    """Counts o200k tokens by class and weighs them."""

    exact = False

    def __init__(
        self, family: str, vocabulary: BpeVocabulary, constants: ClaudeConstants, extra_margin: float = 0.0
    ) -> None:
        self.name = family
        self.safe_boundary = vocabulary.safe_boundary
        self._vocabulary = vocabulary
        self._weights = [constants.text[name] for name in TOKEN_CLASSES]
        self._margins = [
            constants.text[name] * (constants.text_spread[name] + extra_margin) for name in TOKEN_CLASSES
        ]
        self.clear()
        register(self)

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        return [self.measure(text) for text in texts]

    def clear(self) -> None:
        self._word_lengths: dict[str, TextLength] = {}

    def measure(self, text: str) -> TextLength:
        if len(text) > _MAX_WORD_CHARS:
            return self._measure_uncached(text)
        word_lengths = self._word_lengths
        length = word_lengths.get(text)
        if length is None:
            if len(word_lengths) >= _MAX_CACHED_WORDS:
                word_lengths.clear()
            length = word_lengths[text] = self._measure_uncached(text)
        return length

    def _measure_uncached(self, text: str) -> TextLength:
        return self.weigh(count_token_classes(self._vocabulary.encode(text))) if text else TextLength(0.0, 0.0)

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        """Numbers of tokens by class."""
        return [count_token_classes(self._vocabulary.encode(text)) for text in texts]

    def weigh(self, counts: AdditiveCounts) -> TextLength:
        tokens = margin = 0.0
        for count, weight, class_margin in zip(counts, self._weights, self._margins, strict=True):
            if count:
                tokens += count * weight
                margin += count * class_margin
        return TextLength(tokens, margin)

    def to_token_count(self, counts: AdditiveCounts) -> TokenCount:
        return length_to_count(self.weigh(counts), exact=False)

    def count_steps(self, text: str, step_chars: int) -> list[tuple[int, AdditiveCounts]] | None:
        steps = token_steps(self._vocabulary, text, step_chars)
        return None if steps is None else [(end, count_token_classes([ids])) for _, end, ids in steps]


def count_token_classes(tokens: Iterable[Sequence[int]]) -> AdditiveCounts:
    """`tokens` are ids, some thousands at a time."""
    classes = load_class_table()
    counts = [0] * len(TOKEN_CLASSES)
    for ids in tokens:
        for token_id in ids:
            counts[classes[token_id]] += 1
    return tuple(counts)
