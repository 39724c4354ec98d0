"""Rulers over offline vocabularies: the model's own, or another's that stands in for it."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat

from foveate.model import TokenCount
from foveate.tokens.rendering.rendering import AdditiveCounts, TextLength, Tokenizer, length_to_count
from foveate.tokens.tokenizers.bpe import BpeVocabulary, token_steps
from foveate.tokens.tokenizers.estimate import build_estimator
from foveate.tokens.tokenizers.vocabularies import bundled_vocabulary

# A smaller vocabulary spells other scripts almost byte by byte, so a stand-in's bound has room for that.
_NON_ASCII_TOKENS_PER_BYTE = 0.7
_MAX_CACHED_COUNTS = 4096


class BpeTokenizer:
    """Counts with a vocabulary; exact where it is the model's own."""

    def __init__(self, vocabulary: BpeVocabulary, *, exact: bool = True, spread: float = 0.0) -> None:
        """`spread`: how much longer, relative, texts can be for the model that this stands in for."""
        self.name = vocabulary.name
        self.exact = exact
        self.safe_boundary = vocabulary.safe_boundary
        self._vocabulary = vocabulary
        self._spread = spread

    def measure(self, text: str) -> TextLength:
        """The length of a text."""
        tokens = self._vocabulary.count(text)
        return TextLength(tokens, 0.0) if self.exact and not self._spread else self._length_of(text, tokens)

    def measure_many(self, texts: Sequence[str]) -> list[TextLength]:
        """The length of each text."""
        return list(map(self._length_of, texts, self._vocabulary.count_many(texts)))

    def additive_counts(self, texts: Sequence[str]) -> list[AdditiveCounts]:
        """Tokens, and bytes that another vocabulary might spell one by one."""
        tokens = self._vocabulary.count_many(texts)
        if self.exact:
            return list(zip(tokens, repeat(0)))
        return list(zip(tokens, map(_count_extra_utf8_bytes, texts), strict=True))

    def weigh(self, counts: AdditiveCounts) -> TextLength:
        """The length of the text in which so much was counted."""
        tokens, extra_bytes = counts
        return TextLength(tokens, tokens * self._spread + _NON_ASCII_TOKENS_PER_BYTE * extra_bytes)

    def to_token_count(self, counts: AdditiveCounts) -> TokenCount:
        """The count of a text in which so much was counted."""
        return _exact_count(counts[0]) if self.exact else length_to_count(self.weigh(counts), exact=False)

    def count_steps(self, text: str, step_chars: int) -> list[tuple[int, AdditiveCounts]] | None:
        """Steps that end where tokens do."""
        steps = token_steps(self._vocabulary, text, step_chars)
        if steps is None:
            return None
        return [
            (end, (len(ids), 0 if self.exact else _count_extra_utf8_bytes(text[start:end])))
            for start, end, ids in steps
        ]

    def _length_of(self, text: str, tokens: int) -> TextLength:
        return self.weigh((tokens, 0 if self.exact else _count_extra_utf8_bytes(text)))


@lru_cache(_MAX_CACHED_COUNTS)
def _exact_count(tokens: int) -> TokenCount:
    """An exact count. Prompts of many sections ask for thousands of them, mostly the same small ones."""
    return TokenCount(max(tokens, 1), True, max(tokens, 1))


def _count_extra_utf8_bytes(text: str) -> int:
    return 0 if text.isascii() else len(text.encode("utf-8", "replace")) - len(text)


def bundled_tokenizer(vocabulary: str, *, exact: bool = True, spread: float = 0.0) -> Tokenizer:
    """A ruler over a bundled vocabulary; where its engine does not run here, the estimate fitted for it."""
    try:
        return BpeTokenizer(bundled_vocabulary(vocabulary), exact=exact, spread=spread)
    except ImportError:
        return build_estimator(vocabulary)
