"""The words of a text as they are matched, and the segments of a query."""

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

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
_LONGEST_WORD = 64
_ASCII_WORD = re.compile(r"[a-z0-9]+")
# A query is read no further than this, half from its start, half from its end: a megabyte stays quick.
LONGEST_QUERY = 16_000
# A shorter sentence is no thought of its own: it goes with its neighbour.
_FEWEST_WORDS = 8
_MOST_SEGMENTS = 48
_SENTENCE_ENDS = re.compile(r"""\n+|(?<=[.!?])["”*]*\s+|(?<=[。！？])""")

_local = threading.local()


def words(text: str) -> list[str]:
    """Every word in its order, in small letters.

    Scripts that put no blanks between words give their characters one by one and in pairs.
    """
    if text.isascii():
        found = _ASCII_WORD.findall(text.lower())
    else:
        found = list(_words_of_any_script(unicodedata.normalize("NFKC", text).casefold()))
    return (
        [word[:_LONGEST_WORD] for word in found] if any(map(_LONGEST_WORD.__lt__, map(len, found))) else found
    )


def stem(word: str) -> str:
    """What is left of an English word without its endings; other words mostly stay as they are."""
    if not hasattr(_local, "stemmer"):  # one may not be used by two threads at once
        import Stemmer

        _local.stemmer = Stemmer.Stemmer("english", 0)
    stemmed: str = _local.stemmer.stemWord(word)
    return stemmed


def segments(query: str) -> list[str]:
    """The sentences of a query, short ones together with a neighbour; what is too long has no middle."""
    if len(query) > LONGEST_QUERY:
        half = LONGEST_QUERY // 2
        query = query[:half] + "\n" + query[-half:]
    joined: list[str] = []
    last = _FEWEST_WORDS
    for sentence in filter(None, map(str.strip, _SENTENCE_ENDS.split(query))):
        size = len(words(sentence))
        if joined and (size < _FEWEST_WORDS or last < _FEWEST_WORDS):
            joined[-1] += " " + sentence
            last += size
        else:
            joined.append(sentence)
            last = size
    many = -(-len(joined) // _MOST_SEGMENTS)
    return [" ".join(joined[at : at + many]) for at in range(0, len(joined), many or 1)]


def _words_of_any_script(text: str) -> Iterator[str]:
    for found in _any_word().finditer(text):
        run = found["run"]
        if run is None:
            yield found[0]
            continue
        yield from run
        yield from map("".join, pairwise(run))


@cache
def _any_word() -> "regex.Pattern[str]":
    import regex

    unspaced = "".join(
        rf"\p{{{script}}}"
        for script in ("Han", "Hiragana", "Katakana", "Hangul", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")
    )
    pattern: Any = regex.compile(
        rf"(?V1)(?P<run>[[{unspaced}ー]&&[\p{{L}}\p{{M}}\p{{N}}]]+)"
        rf"|[[\p{{L}}\p{{M}}\p{{N}}]--[{unspaced}ー]]+"
    )
    return pattern  # type: ignore[no-any-return]
