"""Cuts a long text where the tokenizer would cut it anyway, so that its pieces can be counted apart.

The split patterns of GPT-2's descendants (cl100k, o200k, Llama 3, Qwen, DeepSeek, Tekken) never let a match run
from a letter or digit over one of the characters below: a run of letters goes on only with letters, marks or an
apostrophe, a run of digits only with digits, and what follows starts a match of its own. None of them looks
back. So the tokens of the whole are the tokens of the pieces, one after the other.
"""

import re

PIECE_CHARS = 32 * 1024

_AFTER_WORD = ' \t\r\n,.;:!?()[]{}"<>=+-*/\\|&%$#@^~`。、，！？；：（）「」『』《》…—“”'
_SEAM = re.compile(rf"[^\W_](?=[{re.escape(_AFTER_WORD)}])")


def cut(text: str, piece_chars: int = PIECE_CHARS) -> list[str]:
    """`text` in pieces of about `piece_chars`; a stretch without a seam stays whole."""
    pieces: list[str] = []
    start = 0
    while len(text) - start > piece_chars:
        seam = _SEAM.search(text, start + piece_chars - 1)
        if seam is None:
            break
        pieces.append(text[start : seam.end()])
        start = seam.end()
    pieces.append(text[start:] if start else text)
    return pieces
