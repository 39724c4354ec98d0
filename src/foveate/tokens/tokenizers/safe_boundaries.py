"""Cuts a long text where the tokenizer would cut it anyway, so that its pieces can be counted apart.

The split patterns of GPT-2's descendants (cl100k, o200k, Llama 3, Qwen, DeepSeek, Tekken) never let a match run
from a letter or digit over one of the characters below: a run of letters goes on only with letters, marks or an
apostrophe, a run of digits only with digits, and what follows starts a match of its own. None of them looks
back. So the tokens of the whole are the tokens of the pieces, one after the other.

Gemma's vocabularies know no pattern, but hold no token in which a blank follows a letter or digit, so that no
merge runs over that seam either.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

# Small enough that all cores have work from 20 KB on, large enough that cutting costs nearly nothing.
PIECE_CHARS = 8 * 1024
# Where words are, a seam is found in much less; where none are, looking on would cost more than it brings, and
# another thread would wait for the end of it.
_SEARCH_CHARS = 1024

_WORD_ENDINGS = ' \t\r\n,.;:!?()[]{}"<>=+-*/\\|&%$#@^~`。、，！？；：（）「」『』《》…—“”'
SafeBoundary = re.Pattern[str]
AFTER_WORDS: SafeBoundary = re.compile(rf"[^\W_](?=[{re.escape(_WORD_ENDINGS)}])")
BEFORE_BLANKS: SafeBoundary = re.compile(r"[^\W_](?= )")


def split_text(
    text: str, piece_chars: int = PIECE_CHARS, safe_boundary: SafeBoundary = AFTER_WORDS
) -> list[str]:
    """`text` in pieces of about `piece_chars`; a stretch without a seam stays whole."""
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
    """`text` in pieces, cut inside every one of `words` that has a seam, so that no piece spells it."""
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
