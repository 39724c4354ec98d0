"""The tokenizer interface, caches of the lengths of texts, and positions where a text can be split.

Split at these positions, the tokens of the pieces are the tokens of the whole. The split patterns of GPT-2's
descendants (cl100k, o200k, Llama 3, Qwen, DeepSeek, Tekken) never match across a letter or digit followed by
one of the characters below: letters are continued only by letters, marks or an apostrophe, digits only by
digits, and what follows starts a new match. None of the patterns looks back. Gemma's vocabularies have no
pattern, but no token in which a space follows a letter or digit, so no merge crosses such a position either.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import msgspec

from foveate.caching import LruCache, hash_bytes
from foveate.model import TokenCount

# Small enough that all cores have work from 20 KB on, large enough that splitting costs almost nothing.
PIECE_CHARS = 8 * 1024
# In text with words a boundary is found much sooner. In text without words a longer search costs more than it
# gains, and delays other threads.
_SEARCH_CHARS = 1024

_WORD_ENDINGS = ' \t\r\n,.;:!?()[]{}"<>=+-*/\\|&%$#@^~`。、，！？；：（）「」『』《》…—“”'
SafeBoundary = re.Pattern[str]
AFTER_WORDS: SafeBoundary = re.compile(rf"[^\W_](?=[{re.escape(_WORD_ENDINGS)}])")
BEFORE_BLANKS: SafeBoundary = re.compile(r"[^\W_](?= )")


def split_text(
    text: str, piece_chars: int = PIECE_CHARS, safe_boundary: SafeBoundary = AFTER_WORDS
) -> list[str]:
    """Split `text` into pieces of about `piece_chars`. Parts without a safe boundary are not split."""
    pieces: list[str] = []
    start, position = 0, piece_chars
    while position < len(text):
        match = safe_boundary.search(text, position - 1, position + _SEARCH_CHARS)
        if match is not None:
            pieces.append(text[start : match.end()])
            start = position = match.end()
        position += piece_chars
    pieces.append(text[start:] if start else text)
    return pieces


def split_inside_words(text: str, words: Sequence[str], safe_boundary: SafeBoundary = AFTER_WORDS) -> list[str]:
    """Split `text` inside every one of `words` that has a safe boundary, so that no piece contains it."""
    boundary_in_word = {
        word: match.end() for word in words if (match := safe_boundary.search(word)) is not None
    }
    boundaries = {
        position + inner
        for word, inner in boundary_in_word.items()
        for position in _iter_occurrences(text, word)
    }
    stretches = [text[start:end] for start, end in pairwise((0, *sorted(boundaries), len(text)))]
    return [piece for stretch in stretches for piece in split_text(stretch, safe_boundary=safe_boundary)]


def _iter_occurrences(text: str, word: str) -> Iterator[int]:
    position = text.find(word)
    while position >= 0:
        yield position
        position = text.find(word, position + 1)


class TextLength(msgspec.Struct, frozen=True):
    tokens: float
    margin_tokens: float


class TextMeasurer(Protocol):
    name: str
    exact: bool

    def measure(self, text: str) -> TextLength:
        """The length of an empty text is 0."""

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]: ...


AdditiveCounts = tuple[int, ...]
"""Numbers counted in a text, before they are weighed. Integers, so that sums are exact."""


class SegmentCounter(Protocol):
    """Counts parts of texts in numbers that can be added."""

    @property
    def safe_boundary(self) -> SafeBoundary | None:
        """Positions where a text can be split so that the counts of the pieces add up; None if nowhere."""

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        """Return the numbers for each text, from which `to_token_count` makes its count."""

    def to_token_count(self, counts: AdditiveCounts) -> TokenCount:
        """Return the count of a text, which is not empty, from its numbers."""

    def count_steps(self, text: str, step_chars: int) -> list[tuple[int, AdditiveCounts]] | None:
        """Return the end and the numbers of each step of about `step_chars` through a text without safe
        boundaries.

        The steps add up to the whole, and the first ones nearly always to the prefix that they cover. None if
        the tokenizer cannot provide such steps.
        """


class Tokenizer(TextMeasurer, SegmentCounter, Protocol):
    pass


def length_to_count(length: TextLength, *, exact: bool) -> TokenCount:
    """Return the count of a text of that length, which is not empty."""
    tokens = max(round(length.tokens), 1)
    # The spread of an exact tokenizer only concerns the overhead around texts.
    return TokenCount(tokens, exact, tokens if exact else tokens + math.ceil(length.margin_tokens))


# Tokenising a shorter text is faster than hashing it.
_MIN_CACHED_CHARS = 2048
# Longer texts rarely repeat on their own, and hashing them costs a fifth of a count. In requests, the prefix of
# the conversation is cached anyway.
_MAX_CACHED_CHARS = 128 * 1024
# Number of recent texts that are cached, and the length from which a look-up is faster than tokenising.
_MAX_RECENT_TEXTS = 16
_MIN_RECENT_CHARS = 64


class RecentTextMeasurer:
    """Caches the texts measured last, since the blocks of a message are often measured right after it."""

    def __init__(self, measurer: TextMeasurer) -> None:
        self.name = measurer.name
        self.exact = measurer.exact
        self._measurer = measurer
        self.clear()

    def clear(self) -> None:
        self._recent_lengths: dict[str, TextLength] = {}

    def measure(self, text: str) -> TextLength:
        return self._recent_lengths.get(text) or self._measurer.measure(text)

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        lengths = self._measurer.measure_many(texts)
        recent = zip(texts[-_MAX_RECENT_TEXTS:], lengths[-_MAX_RECENT_TEXTS:], strict=True)
        self._recent_lengths = {
            text: length for text, length in recent if _MIN_RECENT_CHARS <= len(text) <= _MAX_CACHED_CHARS
        }
        return lengths


class CachingMeasurer:
    """Caches the lengths of long texts, such as system prompts. Use `recent` for texts that occur once."""

    def __init__(self, measurer: TextMeasurer, capacity: int) -> None:
        self.recent = RecentTextMeasurer(measurer)
        self.name = measurer.name
        self.exact = measurer.exact
        self._measurer = measurer
        self._lengths: LruCache[TextLength] = LruCache(capacity)

    def clear(self) -> None:
        self._lengths.clear()
        self.recent.clear()

    def measure(self, text: str) -> TextLength:
        is_cached = _MIN_CACHED_CHARS <= len(text) <= _MAX_CACHED_CHARS
        return self._measure_cached(text) if is_cached else self.recent.measure(text)

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        cached = [i for i, text in enumerate(texts) if _MIN_CACHED_CHARS <= len(text) <= _MAX_CACHED_CHARS]
        long = {i: self._measure_cached(texts[i]) for i in cached}
        if not long:
            return self._measurer.measure_many(texts)
        short = iter(self._measurer.measure_many([text for i, text in enumerate(texts) if i not in long]))
        return [long[i] if i in long else next(short) for i in range(len(texts))]

    def _measure_cached(self, text: str) -> TextLength:
        lengths = self._lengths
        key = hash_bytes(text.encode("utf-8", "surrogatepass"))
        length = lengths.get(key)
        if length is None:
            length = self.recent.measure(text)
            lengths.put(key, length)
        return length
