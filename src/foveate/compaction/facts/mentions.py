"""Tell which facts a text mentions: names exactly, sentences perhaps with other function words.

A name is mentioned if the extraction rules find it, or if the same punctuation surrounds it; a longer name that
contains it does not count. A sentence is mentioned by one sentence with all its significant words, in order and
close together, and not more negations. Positions are indexed, so the time is linear in the text and in the
facts.
"""

import re
from collections.abc import Iterator, Sequence

from foveate.compaction.facts.extract import Fact
from foveate.compaction.facts.rules import (
    SENTENCE_KINDS,
    FactKind,
    classify_word,
    find_numbers,
    find_urls,
    find_whole,
    names_in_word,
    rules,
    split_words,
    strip_unit,
)
from foveate.compaction.facts.sentences import normalize_letters, split_sentences
from foveate.unicode_normalization import normalize_unicode

# A word with more positions is not searched further. A fact may then be listed twice, but never lost.
_MAX_POSITIONS = 64
# How many words before a sentence, in the same clause, may negate it.
_MAX_WORDS_BEFORE = 6
_END = ""
_CLAUSE = ","
_NOT = "not"
# Scripts without spaces between words: each character counts as a word.
_DENSE = "\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LETTER = rf"[^\W{_DENSE}]"
# Punctuation before a letter belongs to a name and does not end a sentence: /etc/hosts.bak, 1.2.3, 8,080.
_JOINT = r"(?:[./\\:@-]{1,3}|(?<=\d),(?=\d))"
_RUN = rf"{_LETTER}+(?:{_JOINT}{_LETTER}+)*"
_PIECE = re.compile(rf"[#/~.@$\\-]{{0,4}}{_RUN}|\S")
_WORD = re.compile(rf"[/~]{{0,2}}{_RUN}|(?=\w)[{_DENSE}]|[,、:()–—]")
_CLAUSE_MARKS = frozenset(",、:()–—")
_NOT_SHORT = re.compile(r"n't\b", re.IGNORECASE)
_CLAUSE_SPLIT = re.compile(r"[;!?]+")


class MentionIndex:
    def __init__(self, text: str) -> None:
        self._seen_words: set[str] = set()
        self._names: set[str] = set()
        self._pieces: list[str] = []
        self._piece_positions: dict[str, list[int]] = {}
        self._unread: list[str] = []
        """Texts whose sentences are not in `_words` yet: most callers only look for names."""
        self._words: list[str] = []
        self._word_positions: dict[str, list[int]] = {}
        self.add(text)

    def add(self, text: str) -> None:
        normal = _normalize(text)
        for word in set(split_words(normal)) - self._seen_words:
            self._seen_words.add(word)
            self._names.update(names_in_word(word))
            self._names.update(name for _, name in classify_word(word))
        self._names.update(find_urls(normal))
        for number in find_numbers(normal):
            self._names.update((number, strip_unit(number)))
        _index_words(_PIECE.findall(normal), self._pieces, self._piece_positions)
        self._unread.append(normal)

    def mentions(self, fact: Fact) -> bool:
        text = _normalize(fact.text)
        if fact.kind in SENTENCE_KINDS and (sentences := list(_sentence_words(text))):
            for normal in self._unread:
                for words in _sentence_words(normal):
                    _index_words(words, self._words, self._word_positions)
            self._unread.clear()
            return all(self._mentions_sentence(_significant_words(words)) for words in sentences)
        if text in self._names:
            return True
        return fact.kind is not FactKind.URL and self._mentions_pieces(_PIECE.findall(text))

    def _mentions_pieces(self, pieces: Sequence[str]) -> bool:
        if not pieces:
            return True
        offset, positions = _find_rarest(pieces, self._piece_positions)
        return any(
            position >= offset and self._pieces[position - offset : position - offset + len(pieces)] == pieces
            for position in positions
        )

    def _mentions_sentence(self, words: Sequence[str]) -> bool:
        offset, positions = _find_rarest(words, self._word_positions)
        return any(self._matches_around(position, words, offset) for position in positions)

    def _matches_around(self, position: int, words: Sequence[str], offset: int) -> bool:
        max_distance = 2 * len(words) + 2
        first = last = position
        for word in reversed(words[:offset]):
            first = self._find_next(word, first, -1, position - max_distance)
        for word in words[offset + 1 :]:
            last = self._find_next(word, last, 1, position + max_distance)
        if first < 0 or last < 0 or last - first >= max_distance:
            return False
        start = first
        while start > max(0, first - _MAX_WORDS_BEFORE) and self._words[start - 1] not in (_END, _CLAUSE):
            start -= 1
        return self._words[start : last + 1].count(_NOT) <= words.count(_NOT)

    def _find_next(self, word: str, position: int, step: int, end: int) -> int:
        """Position of the next `word` in the same sentence before `end`; -1 if there is none."""
        if position < 0:
            return -1
        position += step
        while 0 <= position < len(self._words) and position != end and self._words[position] != _END:
            if self._words[position] == word:
                return position
            position += step
        return -1


def contains_whole(name: str, text: str) -> bool:
    """Return whether `name` occurs in `text`, and not only inside a longer name."""
    return next(find_whole(name, text), None) is not None


def _normalize(text: str) -> str:
    return normalize_letters(normalize_unicode(text, "NFKC"))


def _index_words(words: Sequence[str], row: list[str], positions: dict[str, list[int]]) -> None:
    for word in words:
        word_positions = positions.setdefault(word, [])
        if len(word_positions) < _MAX_POSITIONS:
            word_positions.append(len(row))
        row.append(word)
    row.append(_END)


def _find_rarest(words: Sequence[str], positions: dict[str, list[int]]) -> tuple[int, Sequence[int]]:
    rarest = min(range(len(words)), key=lambda number: len(positions.get(words[number], ())))
    return rarest, positions.get(words[rarest], ())


def _sentence_words(normal: str) -> Iterator[list[str]]:
    """The words of each sentence, with all negations replaced by one."""
    negating = rules().negations
    for sentence in split_sentences(_NOT_SHORT.sub(" not", normal)):
        for half in _CLAUSE_SPLIT.split(sentence):
            words = [word.casefold() for word in _WORD.findall(half)]
            if not _CLAUSE_MARKS.issuperset(words):
                yield [
                    _CLAUSE if word in _CLAUSE_MARKS else _NOT if word in negating else word for word in words
                ]


def _significant_words(words: Sequence[str]) -> Sequence[str]:
    """The words without function words; all of them if fewer than two remain."""
    all_words = [word for word in words if word != _CLAUSE]
    significant = [word for word in all_words if word not in rules().small_words]
    return significant if len(significant) > 1 else all_words
