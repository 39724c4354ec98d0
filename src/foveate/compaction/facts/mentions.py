"""What a text tells: which names stand in it as they are, and which sentences perhaps in other small words.

A name is told where the rules that find names find it again, or where it stands between the same marks: not by
a longer name of which it is a piece. A sentence is told by one other sentence that holds all its words but the
smallest, in their order and close together, and is not turned round by one "not" more.
Time grows with what is told and what is asked for, not with their product: places are looked up.
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
    names_in_word,
    rules,
    split_words,
    strip_unit,
)
from foveate.compaction.facts.sentences import normalize_letters, split_sentences
from foveate.tokens.unicode_normalization import normalize_unicode

# A word at more places than these is looked at no further: what it is in may then be told twice, never lost.
_MAX_POSITIONS = 64
# How many words of the same clause before a sentence may turn it round.
_MAX_WORDS_BEFORE = 6
_END = ""
_CLAUSE = ","
_NOT = "not"
# Scripts that write no spaces between words; of these each character is a word.
_DENSE = "\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_LETTER = rf"[^\W{_DENSE}]"
# A mark before a letter is inside a name, and not the end of a sentence: /etc/hosts.bak, 1.2.3, 8,080.
_JOINT = r"(?:[./\\:@-]{1,3}|(?<=\d),(?=\d))"
_RUN = rf"{_LETTER}+(?:{_JOINT}{_LETTER}+)*"
_PIECE = re.compile(rf"[#/~.@$\\-]{{0,4}}{_RUN}|\S")
_WORD = re.compile(rf"[/~]{{0,2}}{_RUN}|(?=\w)[{_DENSE}]|[,、:()–—]")
_CLAUSE_MARKS = frozenset(",、:()–—")
_NOT_SHORT = re.compile(r"n't\b", re.IGNORECASE)
_CLAUSE_SPLIT = re.compile(r"[;!?]+")
_JOINTS = frozenset("./\\:@-")


class MentionIndex:
    """What a text tells, and what is added to it."""

    def __init__(self, text: str) -> None:
        self._seen_words: set[str] = set()
        self._names: set[str] = set()
        self._pieces: list[str] = []
        self._piece_positions: dict[str, list[int]] = {}
        self._words: list[str] = []
        self._word_positions: dict[str, list[int]] = {}
        self.add(text)

    def add(self, text: str) -> None:
        """Tell this too."""
        normal = _normalize(text)
        for word in set(split_words(normal)) - self._seen_words:  # each word is looked at once
            self._seen_words.add(word)
            self._names.update(names_in_word(word))
            self._names.update(name for _, name in classify_word(word))
        self._names.update(find_urls(normal))
        for number in find_numbers(normal):
            self._names.update((number, strip_unit(number)))
        _index_words(_PIECE.findall(normal), self._pieces, self._piece_positions)
        for words in _sentence_words(normal):
            _index_words(words, self._words, self._word_positions)

    def mentions(self, fact: Fact) -> bool:
        """Whether a fact stands there: a name as it is, a sentence perhaps without its small words."""
        wanted = _normalize(fact.text)
        if fact.kind in SENTENCE_KINDS and (sentences := list(_sentence_words(wanted))):
            return all(self._mentions_sentence(_significant_words(words)) for words in sentences)
        if wanted in self._names:
            return True
        return fact.kind is not FactKind.URL and self._mentions_pieces(_PIECE.findall(wanted))

    def _mentions_pieces(self, pieces: Sequence[str]) -> bool:
        if not pieces:
            return True
        at, places = _find_rarest(pieces, self._piece_positions)
        return any(
            place >= at and self._pieces[place - at : place - at + len(pieces)] == pieces for place in places
        )

    def _mentions_sentence(self, words: Sequence[str]) -> bool:
        at, places = _find_rarest(words, self._word_positions)
        return any(self._matches_around(place, words, at) for place in places)

    def _matches_around(self, place: int, words: Sequence[str], at: int) -> bool:
        """Whether `words` stand in one sentence around the one at `place`, which is the one at `at` of them."""
        reach = 2 * len(words) + 2
        first = last = place
        for word in reversed(words[:at]):
            first = self._find_next(word, first, -1, place - reach)
        for word in words[at + 1 :]:
            last = self._find_next(word, last, 1, place + reach)
        if first < 0 or last < 0 or last - first >= reach:
            return False
        start = first
        while start > max(0, first - _MAX_WORDS_BEFORE) and self._words[start - 1] not in (_END, _CLAUSE):
            start -= 1
        return self._words[start : last + 1].count(_NOT) <= words.count(_NOT)

    def _find_next(self, word: str, place: int, step: int, end: int) -> int:
        """Where `word` stands next in the same sentence, before `end`; -1 if it does not."""
        if place < 0:
            return -1
        place += step
        while 0 <= place < len(self._words) and place != end and self._words[place] != _END:
            if self._words[place] == word:
                return place
            place += step
        return -1


def contains_whole(wanted: str, text: str) -> bool:
    """Whether `wanted` stands in `text` word for word, and not only as a piece of a longer name."""
    at = text.find(wanted)
    while at >= 0:
        end = at + len(wanted)
        if not (_continues_name(text[max(0, at - 2) : at][::-1]) or _continues_name(text[end : end + 2])):
            return True
        at = text.find(wanted, at + 1)
    return False


def _continues_name(neighbours: str) -> bool:
    """Whether a name goes on with the two characters beside it."""
    return _is_word_char(neighbours[:1]) or (neighbours[:1] in _JOINTS and _is_word_char(neighbours[1:]))


def _is_word_char(char: str) -> bool:
    return char.isalnum() or char == "_"


def _normalize(text: str) -> str:
    return normalize_letters(normalize_unicode(text, "NFKC"))


def _index_words(found: Sequence[str], row: list[str], places: dict[str, list[int]]) -> None:
    """Put words at the end of a row, with their places, and an end after them."""
    for word in found:
        at = places.setdefault(word, [])
        if len(at) < _MAX_POSITIONS:
            at.append(len(row))
        row.append(word)
    row.append(_END)


def _find_rarest(words: Sequence[str], places: dict[str, list[int]]) -> tuple[int, Sequence[int]]:
    """Which of `words` has the fewest places, and these."""
    at = min(range(len(words)), key=lambda number: len(places.get(words[number], ())))
    return at, places.get(words[at], ())


def _sentence_words(normal: str) -> Iterator[list[str]]:
    """The words of each sentence; all that say "not" as one."""
    negating = rules().negations
    for sentence in split_sentences(_NOT_SHORT.sub(" not", normal)):
        for half in _CLAUSE_SPLIT.split(sentence):
            words = [word.casefold() for word in _WORD.findall(half)]
            if not _CLAUSE_MARKS.issuperset(words):
                yield [
                    _CLAUSE if word in _CLAUSE_MARKS else _NOT if word in negating else word for word in words
                ]


def _significant_words(words: Sequence[str]) -> Sequence[str]:
    """Words without the small ones; all of them where too few would be left."""
    all_words = [word for word in words if word != _CLAUSE]
    significant = [word for word in all_words if word not in rules().small_words]
    return significant if len(significant) > 1 else all_words
