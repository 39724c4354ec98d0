"""Positions where a text can be split so that the tokens of the pieces are the tokens of the whole.

The split patterns of GPT-2's descendants (cl100k, o200k, Llama 3, Qwen, DeepSeek, Tekken) never match across a
letter or digit followed by one of the characters below: letters are continued only by letters, marks or an
apostrophe, digits only by digits, and what follows starts a new match. None of the patterns looks back.

Gemma's vocabularies have no pattern, but no token in which a space follows a letter or digit, so no merge
crosses such a position either.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

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
