"""What kind of text each token of o200k is: a table with a byte a token, shipped as data.

Models whose tokenizer is not public cut text about where o200k does, but not equally often everywhere: rare
words more, blanks less. So a text is described by how many of its o200k tokens are of which class.
"""

import zlib
from functools import cache
from pathlib import Path

TOKEN_CLASSES = (
    "word_common", "word_usual", "word_less", "word_rare",  # letters after a blank, by o200k's rank
    "glued_usual", "glued_rare",  # lower-case letters without a blank before
    "hump_usual", "hump_rare",  # a capital and letters without a blank before
    "capitals", "mark", "marks", "mark_line", "blanks", "lines", "digit", "digits_2", "digits_3",
    "mixed", "accented", "cjk", "other_script", "symbols",
)  # fmt: skip

_CLASS_TABLE = Path(__file__).parent / "data" / "o200k_classes.z"
_RANK_LIMITS = (3_000, 20_000, 60_000)
_CJK_RANGES = (
    (0x1100, 0x1200), (0x2E80, 0xA000), (0xAC00, 0xD7B0), (0xF900, 0xFB00), (0xFF00, 0xFFF0),
    (0x20000, 0x40000),
)  # fmt: skip


@cache
def load_class_table() -> bytes:
    """The class of each o200k token, as its position in `CLASSES`."""
    return zlib.decompress(_CLASS_TABLE.read_bytes())


def classify_token(rank: int, token: bytes) -> str:
    """The class of one token; what the table is made by."""
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
