"""The words of a text as they are matched, and the segments of a query."""

import re
import threading
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from foveate.tokens.unicode_normalization import normalize_unicode

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
"""English words that say nothing of what a text is about; they count only in a query that has no others."""

# Longer ones are data (base64, hashes), of which the beginning tells them apart.
_MAX_WORD_CHARS = 64
# Blanks for all that is in no word: to split at these is three times as quick as to search for words.
_ASCII_WORDS = str.maketrans({sign: sign.lower() if sign.isalnum() else " " for sign in map(chr, range(128))})
# A query is read no further than this, half from its start, half from its end: a megabyte stays quick.
MAX_QUERY_CHARS = 16_000
# A shorter sentence is no thought of its own: it goes with its neighbour.
_MIN_SEGMENT_WORDS = 8
_MAX_SEGMENTS = 48
_SENTENCE_ENDS = re.compile(r"""\n+|(?<=[.!?])["”*]*\s+|(?<=[。！？])""")

_local = threading.local()


def split_words(text: str) -> list[str]:
    """Every word in its order, in small letters.

    Scripts that put no blanks between words give their characters one by one and in pairs.
    """
    if text.isascii():
        found = text.translate(_ASCII_WORDS).split()
    else:
        found = _split_any_script(normalize_unicode(text, "NFKC").casefold())
    is_long = max(map(len, found), default=0) > _MAX_WORD_CHARS
    return [word[:_MAX_WORD_CHARS] for word in found] if is_long else found


def stem(word: str) -> str:
    """What is left of an English word without its endings; other words mostly stay as they are."""
    if not hasattr(_local, "stemmer"):  # one may not be used by two threads at once
        import Stemmer

        _local.stemmer = Stemmer.Stemmer("english", 0)
    stemmed: str = _local.stemmer.stemWord(word)
    return stemmed


def split_segments(query: str) -> list[str]:
    """The sentences of a query, short ones together with a neighbour; what is too long has no middle."""
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
    return [" ".join(joined[at : at + group_size]) for at in range(0, len(joined), group_size or 1)]


def _split_any_script(text: str) -> list[str]:
    spaced, unspaced, either = _patterns()
    if not unspaced.search(text):
        return list(spaced.findall(text))
    found: list[str] = []
    for word in either.findall(text):
        if unspaced.match(word):
            found += word
            found += map("".join, pairwise(word))
        else:
            found.append(word)
    return found


@cache
def _patterns() -> "tuple[regex.Pattern[str], ...]":
    """Words between blanks, runs of a script that has none, and either."""
    import regex

    scripts = "".join(
        rf"\p{{{script}}}"
        for script in ("Han", "Hiragana", "Katakana", "Hangul", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
    )
    spaced = rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{scripts}ー]]+"
    unspaced = rf"[[{scripts}ー]&&[\p{{L}}\p{{M}}\p{{N}}]]+"
    return tuple(regex.compile(f"(?V1){pattern}") for pattern in (spaced, unspaced, f"{unspaced}|{spaced}"))
