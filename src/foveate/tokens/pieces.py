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
_LOOK_AHEAD_CHARS = 1024

_AFTER_WORD = ' \t\r\n,.;:!?()[]{}"<>=+-*/\\|&%$#@^~`。、，！？；：（）「」『』《》…—“”'
Seam = re.Pattern[str]
AFTER_WORDS: Seam = re.compile(rf"[^\W_](?=[{re.escape(_AFTER_WORD)}])")
BEFORE_BLANKS: Seam = re.compile(r"[^\W_](?= )")


def cut(text: str, piece_chars: int = PIECE_CHARS, seam: Seam = AFTER_WORDS) -> list[str]:
    """`text` in pieces of about `piece_chars`; a stretch without a seam stays whole."""
    pieces: list[str] = []
    start, at = 0, piece_chars
    while at < len(text):
        found = seam.search(text, at - 1, at + _LOOK_AHEAD_CHARS)
        if found is not None:
            pieces.append(text[start : found.end()])
            start = at = found.end()
        at += piece_chars
    pieces.append(text[start:] if start else text)
    return pieces


def broken(text: str, words: Sequence[str], seam: Seam = AFTER_WORDS) -> list[str]:
    """`text` in pieces, cut inside every one of `words` that has a seam, so that no piece spells it."""
    inside = {word: found.end() for word in words if (found := seam.search(word)) is not None}
    seams = {at + inner for word, inner in inside.items() for at in _occurrences(text, word)}
    stretches = [text[start:end] for start, end in pairwise((0, *sorted(seams), len(text)))]
    return [piece for stretch in stretches for piece in cut(stretch, seam=seam)]


def _occurrences(text: str, word: str) -> Iterator[int]:
    at = text.find(word)
    while at >= 0:
        yield at
        at = text.find(word, at + 1)
