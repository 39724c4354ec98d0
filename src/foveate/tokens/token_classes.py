"""What kind of text each token of o200k is: a table with a byte a token, shipped as data.

Models whose tokenizer is not public cut text about where o200k does, but not equally often everywhere: rare
words more, blanks less. So a text is described by how many of its o200k tokens are of which class.
"""

import zlib
from functools import cache
from pathlib import Path

CLASSES = (
    "word_common", "word_usual", "word_less", "word_rare",  # letters after a blank, by o200k's rank
    "glued_usual", "glued_rare",  # lower-case letters without a blank before
    "hump_usual", "hump_rare",  # a capital and letters without a blank before
    "capitals", "mark", "marks", "mark_line", "blanks", "lines", "digit", "digits_2", "digits_3",
    "mixed", "accented", "cjk", "other_script", "symbols",
)  # fmt: skip

_TABLE = Path(__file__).parent / "data" / "o200k_classes.z"
_RANKS = (3_000, 20_000, 60_000)
_CJK_RANGES = (
    (0x1100, 0x1200), (0x2E80, 0xA000), (0xAC00, 0xD7B0), (0xF900, 0xFB00), (0xFF00, 0xFFF0),
    (0x20000, 0x40000),
)  # fmt: skip


@cache
def class_table() -> bytes:
    """The class of each o200k token, as its position in `CLASSES`."""
    return zlib.decompress(_TABLE.read_bytes())


def class_of(rank: int, token: bytes) -> str:
    """The class of one token; what the table is made by."""
    try:
        text = token.decode()
    except UnicodeDecodeError:
        return "symbols"
    if not text.isascii():
        return _class_of_unicode(text)
    if text.isdigit():
        return ("digit", "digits_2", "digits_3")[min(len(text), 3) - 1]
    if text.isspace():
        return "lines" if "\n" in text or "\r" in text else "blanks"
    bare = text.removeprefix(" ")
    if bare.isalpha():
        return _class_of_word(rank, bare, begins=bare != text)
    if any(char.isalnum() for char in bare):
        return "mixed"
    if "\n" in bare or "\r" in bare:
        return "mark_line"
    return "mark" if len(bare) == 1 else "marks"


def _class_of_word(rank: int, word: str, *, begins: bool) -> str:
    if begins:
        names = ("word_common", "word_usual", "word_less", "word_rare")
        return names[sum(rank >= border for border in _RANKS)]
    if word.isupper():
        return "capitals"
    usual = "usual" if rank < _RANKS[1] else "rare"
    return f"hump_{usual}" if word[0].isupper() else f"glued_{usual}"


def _class_of_unicode(text: str) -> str:
    foreign = [ord(char) for char in text if char.isalpha() and not char.isascii()]
    if not foreign:
        return "symbols" if not any(char.isalpha() for char in text) else "accented"
    code = foreign[0]
    if code < 0x250 or 0x1E00 <= code < 0x1F00:
        return "accented"
    if any(first <= code < last for first, last in _CJK_RANGES):
        return "cjk"
    return "other_script"
