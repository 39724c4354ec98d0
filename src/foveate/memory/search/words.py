"""Split texts into words and queries into segments, and stem words."""

import re
import threading
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from foveate.unicode_normalization import normalize_unicode

if TYPE_CHECKING:
    import regex

STOP_WORDS = (
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no",
    "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to",
    "was", "will", "with", "i", "you", "your", "my", "me", "we", "our", "he", "she", "his", "her", "its",
    "from", "have", "has", "had", "do", "does", "did", "what", "which", "who", "when", "where", "how", "can",
    "could", "would", "should", "may", "might", "must", "shall", "am", "been", "being", "so", "than", "too",
    "very", "just", "about", "also", "only", "any", "all", "some", "more", "most", "other", "own", "same",
    "up", "down", "out", "over", "under", "again", "once", "here", "both", "each", "few", "nor", "s", "t",
    "don", "now"
)  # fmt: skip
"""English words without meaning for search; they count only in a query without others."""

# Longer words are data (base64, hashes), which differ at their start.
_MAX_WORD_CHARS = 64
# Replaces everything else by spaces: splitting at these is three times as fast as searching for words.
_ASCII_WORDS = str.maketrans({sign: sign.lower() if sign.isalnum() else " " for sign in map(chr, range(128))})
# Of a longer query, only half of this from its start and half from its end is read.
MAX_QUERY_CHARS = 16_000
# A shorter sentence is joined with its neighbor.
_MIN_SEGMENT_WORDS = 8
_MAX_SEGMENTS = 48
_SENTENCE_ENDS = re.compile(r"""\n+|(?<=[.!?])["”*]*\s+|(?<=[。！？])""")

_local = threading.local()


def split_words(text: str) -> list[str]:
    """The words of a text in order, in lower case.

    In scripts without spaces, each character and each pair of characters is a word.
    """
    if text.isascii():
        words = text.translate(_ASCII_WORDS).split()
    else:
        words = _split_any_script(normalize_unicode(text, "NFKC").casefold())
    is_long = max(map(len, words), default=0) > _MAX_WORD_CHARS
    return [word[:_MAX_WORD_CHARS] for word in words] if is_long else words


def stem(word: str) -> str:
    """The stem of an English word; other words mostly stay unchanged."""
    if not hasattr(_local, "stemmer"):  # a stemmer must not be shared between threads
        import Stemmer

        _local.stemmer = Stemmer.Stemmer("english", 0)
    stemmed: str = _local.stemmer.stemWord(word)
    return stemmed


def split_segments(query: str) -> list[str]:
    """Split a query into sentences, joining short ones and dropping the middle of a long query."""
    if len(query) > MAX_QUERY_CHARS:
        half = MAX_QUERY_CHARS // 2
        query = query[:half] + "\n" + query[-half:]
    joined: list[str] = []
    last = _MIN_SEGMENT_WORDS
    for sentence in filter(None, map(str.strip, _SENTENCE_ENDS.split(query))):
        size = len(split_words(sentence))
        if joined and (size < _MIN_SEGMENT_WORDS or last < _MIN_SEGMENT_WORDS):
            joined[-1] += " " + sentence
            last += size
        else:
            joined.append(sentence)
            last = size
    group_size = -(-len(joined) // _MAX_SEGMENTS)
    return [" ".join(joined[start : start + group_size]) for start in range(0, len(joined), group_size or 1)]


def _split_any_script(text: str) -> list[str]:
    spaced, unspaced, either = _patterns()
    if not unspaced.search(text):
        return list(spaced.findall(text))
    words: list[str] = []
    for word in either.findall(text):
        if unspaced.match(word):
            words += word
            words += map("".join, pairwise(word))
        else:
            words.append(word)
    return words


@cache
def _patterns() -> "tuple[regex.Pattern[str], ...]":
    """Words between spaces, runs of a script without spaces, and either."""
    import regex

    scripts = "".join(
        rf"\p{{{script}}}"
        for script in ("Han", "Hiragana", "Katakana", "Hangul", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
    )
    spaced = rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{scripts}ー]]+"
    unspaced = rf"[[{scripts}ー]&&[\p{{L}}\p{{M}}\p{{N}}]]+"
    return tuple(regex.compile(f"(?V1){pattern}") for pattern in (spaced, unspaced, f"{unspaced}|{spaced}"))
