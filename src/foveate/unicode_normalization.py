"""Unicode normalization (NFC, NFKC) in linear time.

`unicodedata.normalize` sorts a run of combining marks in quadratic time, and holds the GIL until the whole text
is done. So texts are normalized in chunks, and very long runs of them are left as they are.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import partial
from typing import Literal

_CHUNK_CHARS = 4 * 1024
# No language uses more marks on one letter. Longer runs are attacks, and stay as they are.
_MAX_COMBINING_MARKS = 64

# These characters are not combining marks and never compose with what precedes them, so a text can be split
# before them.
_STARTER_RANGES = (
    "\0-\u02ff\u0370-\u0482\u048a-\u0590\u05d0-\u05ea\u0620-\u064a\u0904-\u0939\u0e01-\u0e30\u2010-\u20cf"
    "\u2100-\u2bff\u3001-\u3029\u3041-\u3096\u309d-\u30ff\u3400-\u9fff\uac00-\ud7a3\uff01-\uff9d\uffe0-\uffef"
    "\U0001f000-\U0001faff"
)
STARTER = re.compile(f"[{_STARTER_RANGES}]")
_LONG_NON_STARTER_RUN = re.compile(f"[^{_STARTER_RANGES}]{{{_MAX_COMBINING_MARKS + 1}}}")
_LONG_MARK_RUN = re.compile(rb"[^\0]{%d,}" % (_MAX_COMBINING_MARKS + 1))
# Not combining marks by class, but they decompose into marks, or NFKC turns them into one. Each is mapped to
# such a mark.
_MARK_EQUIVALENTS = str.maketrans("\u0f73\u0f75\u0f81\uff9e\uff9f", "\u0f72\u0f74\u0f80\u3099\u309a")

NormalForm = Literal["NFC", "NFKC"]


def normalize_unicode(text: str, form: NormalForm = "NFC") -> str:
    """Normalize `text`, except runs of more than 64 combining marks."""
    if text.isascii():
        return text
    return "".join(map(partial(_normalize_chunk, form), _iter_chunks(text)))


def _iter_chunks(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        match = STARTER.search(text, start + _CHUNK_CHARS)
        end = match.start() if match is not None else len(text)
        yield text[start:end]
        start = end


def _normalize_chunk(form: NormalForm, chunk: str) -> str:
    if _LONG_NON_STARTER_RUN.search(chunk) is None:
        return unicodedata.normalize(form, chunk)
    classes = bytes(map(unicodedata.combining, chunk.translate(_MARK_EQUIVALENTS)))
    pieces, start = [], 0
    for run in _LONG_MARK_RUN.finditer(classes):
        pieces += [unicodedata.normalize(form, chunk[start : run.start()]), chunk[run.start() : run.end()]]
        start = run.end()
    return "".join((*pieces, unicodedata.normalize(form, chunk[start:])))
