"""Rulers over offline vocabularies: the model's own, or another's that stands in for it."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat

from foveate.tokens.bpe import Bpe
from foveate.tokens.estimate import estimate_for
from foveate.tokens.rendering import Counts, Length, Yardstick, text_count
from foveate.tokens.steps import token_steps
from foveate.tokens.vocabulary import bundled
from foveate.values import TokenCount

# A smaller vocabulary spells other scripts almost byte by byte, so a stand-in's bound has room for that.
_FOREIGN_TOKENS_PER_BYTE = 0.7
_KEPT_COUNTS = 4096


class BpeRuler:
    """Counts with a vocabulary; exact where it is the model's own."""

    def __init__(self, vocabulary: Bpe, *, exact: bool = True, spread: float = 0.0) -> None:
        """`spread`: how much longer, relative, texts can be for the model that this stands in for."""
        self.name = vocabulary.name
        self.exact = exact
        self.seam = vocabulary.seam
        self._vocabulary = vocabulary
        self._spread = spread

    def length(self, text: str) -> Length:
        """The length of a text."""
        tokens = self._vocabulary.count(text)
        return Length(tokens, 0.0) if self.exact and not self._spread else self._length(text, tokens)

    def lengths(self, texts: Sequence[str]) -> list[Length]:
        """The length of each text."""
        return list(map(self._length, texts, self._vocabulary.count_many(texts)))

    def counts(self, texts: Sequence[str]) -> list[Counts]:
        """Tokens, and bytes that another vocabulary might spell one by one."""
        tokens = self._vocabulary.count_many(texts)
        if self.exact:
            return list(zip(tokens, repeat(0)))
        return list(zip(tokens, map(_beyond_ascii, texts), strict=True))

    def weighed(self, counts: Counts) -> Length:
        """The length of the text in which so much was counted."""
        tokens, beyond_ascii = counts
        return Length(tokens, tokens * self._spread + _FOREIGN_TOKENS_PER_BYTE * beyond_ascii)

    def total(self, counts: Counts) -> TokenCount:
        """The count of a text in which so much was counted."""
        return _exact(counts[0]) if self.exact else text_count(self.weighed(counts), exact=False)

    def steps(self, text: str, step_chars: int) -> list[tuple[int, Counts]] | None:
        """Steps that end where tokens do."""
        steps = token_steps(self._vocabulary, text, step_chars)
        if steps is None:
            return None
        return [
            (end, (len(ids), 0 if self.exact else _beyond_ascii(text[start:end]))) for start, end, ids in steps
        ]

    def _length(self, text: str, tokens: int) -> Length:
        return self.weighed((tokens, 0 if self.exact else _beyond_ascii(text)))


@lru_cache(_KEPT_COUNTS)
def _exact(tokens: int) -> TokenCount:
    """An exact count. Prompts of many sections ask for thousands of them, mostly the same small ones."""
    return TokenCount(max(tokens, 1), True, max(tokens, 1))


def _beyond_ascii(text: str) -> int:
    return 0 if text.isascii() else len(text.encode("utf-8", "replace")) - len(text)


def bundled_ruler(vocabulary: str, *, exact: bool = True, spread: float = 0.0) -> Yardstick:
    """A ruler over a bundled vocabulary; where its engine does not run here, the estimate fitted for it."""
    try:
        return BpeRuler(bundled(vocabulary), exact=exact, spread=spread)
    except ImportError:
        return estimate_for(vocabulary)
