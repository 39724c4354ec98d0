"""Rulers over offline vocabularies: the model's own, or another's that stands in for it."""

from collections.abc import Sequence

from foveate.tokens.bpe import Bpe
from foveate.tokens.estimate import estimate_for
from foveate.tokens.rendering import Length, Ruler
from foveate.tokens.vocabulary import bundled

# A smaller vocabulary spells other scripts almost byte by byte, so a stand-in's bound has room for that.
_FOREIGN_TOKENS_PER_BYTE = 0.7


class BpeRuler:
    """Counts with a vocabulary; exact where it is the model's own."""

    def __init__(self, vocabulary: Bpe, *, exact: bool = True, spread: float = 0.0) -> None:
        """`spread`: how much longer, relative, texts can be for the model that this stands in for."""
        self.name = vocabulary.name
        self.exact = exact
        self._vocabulary = vocabulary
        self._spread = spread

    def length(self, text: str) -> Length:
        """The length of a text."""
        tokens = self._vocabulary.count(text)
        return Length(tokens, 0.0) if self.exact and not self._spread else self._length(text, tokens)

    def lengths(self, texts: Sequence[str]) -> list[Length]:
        """The length of each text."""
        return list(map(self._length, texts, self._vocabulary.count_many(texts)))

    def _length(self, text: str, tokens: int) -> Length:
        if self.exact or text.isascii():
            return Length(tokens, tokens * self._spread)
        beyond_ascii = len(text.encode("utf-8", "replace")) - len(text)
        return Length(tokens, tokens * self._spread + _FOREIGN_TOKENS_PER_BYTE * beyond_ascii)


def bundled_ruler(vocabulary: str, *, exact: bool = True, spread: float = 0.0) -> Ruler:
    """A ruler over a bundled vocabulary; where its engine does not run here, the estimate fitted for it."""
    try:
        return BpeRuler(bundled(vocabulary), exact=exact, spread=spread)
    except ImportError:
        return estimate_for(vocabulary)
