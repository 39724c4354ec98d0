"""How well texts match a query by their words: BM25.

What it is made of is kept apart (how often a word stands in a text, how long the text is, in how many it
stands) and put together when a query asks, with the functions of bm25s. So texts can come and go, and a score
depends on the texts that are there, not on how they came; bm25s's own index would have to be made anew.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foveate.memory.words import STOP_WORDS, segments, stem, words

K1 = 1.2
B = 0.75
_UNKNOWN = -1
# A text that has so many of a segment's rarest words, once each, is all that can be expected.
_EXPECTED_TERMS = 4

Floats = NDArray[np.float32]
Places = NDArray[np.int32]


class Vocabulary:
    """Words and the numbers of their stems; stop words have the first ones."""

    def __init__(self) -> None:
        self._terms: dict[str, int] = {word: number for number, word in enumerate(STOP_WORDS)}
        self._numbers = _Numbers(self._terms)

    def __len__(self) -> int:
        """How many stems there are."""
        return len(self._terms)

    def learn(self, text: str) -> list[int]:
        """The terms of a text of the memory, word by word."""
        return [self._numbers[word] for word in words(text)]

    def terms(self, text: str) -> list[int]:
        """The terms of a query, each once, -1 for a word of no text; stop words where there is nothing else."""
        found: dict[int | str, int] = {}
        for word in dict.fromkeys(words(text)):
            number = self._terms.get(word) if word in _STOPS else self._terms.get(stem(word))
            found[stem(word) if number is None else number] = _UNKNOWN if number is None else number
        numbers = list(found.values())
        return [number for number in numbers if not 0 <= number < len(STOP_WORDS)] or numbers


_STOPS = frozenset(STOP_WORDS)


class _Numbers(dict[str, int]):
    """A word's number; that of a new one is that of its stem, which may be new as well."""

    def __init__(self, terms: dict[str, int]) -> None:
        super().__init__(terms)
        self._terms = terms

    def __missing__(self, word: str) -> int:
        number = self._terms.setdefault(stem(word), len(self._terms))
        self[word] = number
        return number


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """For every term the texts it stands in, and how much of it.

    Those of term `t` are at `starts[t]` up to `starts[t + 1]`.
    """

    starts: NDArray[np.int64]
    texts: Places
    amounts: Floats
    lengths: Floats
    """Of each text, in words that are no stop words."""

    def of(self, term: int) -> tuple[Places, Floats]:
        """The texts with a term and its amounts in them."""
        if term + 1 >= len(self.starts):
            return self.texts[:0], self.amounts[:0]
        here = slice(int(self.starts[term]), int(self.starts[term + 1]))
        return self.texts[here], self.amounts[here]


def postings(texts: Iterable[Sequence[tuple[float, Sequence[int]]]], terms: int) -> Postings:
    """Those of texts, each of which is some parts with their weights and terms."""
    numbers: list[int] = []
    sizes: list[int] = []
    weights: list[float] = []
    parts: list[int] = []
    for text in texts:
        for weight, found in text:
            numbers.extend(found)
            sizes.append(len(found))
            weights.append(weight)
        parts.append(len(text))
    of_part = np.repeat(np.arange(len(parts), dtype=np.int32), parts)
    places = np.repeat(of_part, sizes)
    amounts = np.repeat(np.asarray(weights, np.float32), sizes)
    return _sorted(np.asarray(numbers, np.int32), places, amounts, len(parts), terms)


def merged(pieces: Sequence[tuple[Postings, Places]], terms: int) -> Postings:
    """One of several: a text goes to the number it is given, or away where that is negative."""
    numbers, places, amounts = [], [], []
    count = 1 + max((int(to.max(initial=-1)) for _, to in pieces), default=-1)
    lengths = np.zeros(count, np.float32)
    for piece, to in pieces:
        stays = to >= 0
        lengths[to[stays]] = piece.lengths[stays]
        moved = to[piece.texts]
        kept = moved >= 0
        of_term = np.repeat(np.arange(len(piece.starts) - 1, dtype=np.int32), np.diff(piece.starts))
        numbers.append(of_term[kept])
        places.append(moved[kept])
        amounts.append(piece.amounts[kept])
    whole = _sorted(np.concatenate(numbers), np.concatenate(places), np.concatenate(amounts), count, terms)
    return Postings(whole.starts, whole.texts, whole.amounts, lengths)


def _sorted(numbers: Places, places: Places, amounts: Floats, count: int, terms: int) -> Postings:
    keys = (numbers.astype(np.int64) << 32) | places
    order = np.argsort(keys, kind="stable")  # quick where it is pieces that are in order already
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    summed = np.add.reduceat(amounts[order], first) if len(first) else amounts
    keys = keys[first]
    terms_found = (keys >> 32).astype(np.int64)
    starts = np.zeros(terms + 1, np.int64)
    np.cumsum(np.bincount(terms_found, minlength=terms), out=starts[1:])
    texts = (keys & 0xFFFFFFFF).astype(np.int32)
    telling = terms_found >= len(STOP_WORDS)
    lengths = np.bincount(texts[telling], summed[telling], minlength=count)
    return Postings(starts, texts, summed.astype(np.float32), lengths.astype(np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """Texts to score, from several postings, each with the places of its texts, negative for those gone."""

    pieces: Sequence[tuple[Postings, Places]]
    lengths: Floats

    @classmethod
    def of(cls, pieces: Sequence[tuple[Postings, Places]], count: int) -> "Field":
        """The `count` texts that the places are in."""
        lengths = np.zeros(count, np.float32)
        for piece, to in pieces:
            stays = to >= 0
            lengths[to[stays]] = piece.lengths[stays]
        return cls(pieces, lengths)

    def find(self, term: int) -> tuple[Places, Floats]:
        """Where a term stands, and how much of it."""
        places, amounts = [], []
        for piece, to in self.pieces if term >= 0 else ():
            texts, found = piece.of(term)
            if len(texts):
                there = to[texts]
                kept = there >= 0
                places.append(there[kept])
                amounts.append(found[kept])
        if not places:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        return np.concatenate(places), np.concatenate(amounts)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """How well each text matches, and what a text has that matches as well as can be expected."""

    scores: Floats
    ideal: float

    def shares(self, full: float) -> Floats:
        """The scores as shares of the best, or of `full` of the ideal where not even the best reaches that."""
        best = max(float(self.scores.max(initial=0.0)), full * self.ideal)
        return self.scores / np.float32(best) if best else self.scores


def match(field: Field, query: Sequence[Sequence[int]]) -> Match:
    """The scores of all texts for a query, which is some segments of terms."""
    found = _Sums(field.lengths, len(query))
    for term, numbers in _by_term(query).items():
        found.add(numbers, *field.find(term))
    return found.match()


def match_with_groups(
    field: Field, query: Sequence[Sequence[int]], groups: Places, count: int
) -> tuple[Match, Match]:
    """The scores of all texts, and those of `count` groups of them, each of which is taken for one text."""
    found = _Sums(field.lengths, len(query))
    of_groups = _Sums(_summed(groups, field.lengths, count), len(query))
    for term, numbers in _by_term(query).items():
        places, amounts = field.find(term)
        found.add(numbers, places, amounts)
        amounts = _summed(groups[places], amounts, count)
        having = np.flatnonzero(amounts).astype(np.int32)
        of_groups.add(numbers, having, amounts[having])
    return found.match(), of_groups.match()


class _Sums:
    """The scores of texts, segment by segment of a query."""

    def __init__(self, lengths: Floats, segments: int) -> None:
        from bm25s.scoring import _select_idf_scorer, _select_tfc_scorer

        self._idf_of, self._share_of = _select_idf_scorer("lucene"), _select_tfc_scorer("lucene")
        self._lengths = lengths
        self._average = np.float32(float(lengths.sum(dtype=np.float64)) / max(1, len(lengths)) or 1.0)
        self._scores = np.zeros((segments, len(lengths)), np.float32)
        self._strongest: list[list[float]] = [[] for _ in range(segments)]

    def add(self, numbers: Sequence[int], places: Places, amounts: Floats) -> None:
        """A term that stands in the segments with these numbers, and in the texts at these places."""
        idf = self._idf_of(len(places), N=len(self._lengths))
        part = np.float32(idf) * self._share_of(amounts, self._lengths[places], self._average, K1, B)
        for number in numbers:
            self._strongest[number].append(idf)
            self._scores[number, places] += part

    def match(self) -> Match:
        """All segments together: the root of the sum of their squares.

        A long query has many thoughts, and a text is about one of them; a plain sum would prefer the texts
        that have something of each. As for the ideal, who asks in many words does not expect all of them.
        """
        expected = [sum(sorted(idfs)[-_EXPECTED_TERMS:]) / (1 + K1) for idfs in self._strongest]
        if len(self._scores) == 1:
            return Match(self._scores[0], expected[0])
        return Match(np.sqrt(np.square(self._scores).sum(axis=0)), max(expected, default=0.0))


def _by_term(query: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """The numbers of the segments that a term stands in."""
    found: dict[int, list[int]] = {}
    for number, terms in enumerate(query):
        for term in terms:
            found.setdefault(term, []).append(number)
    return found


def _summed(groups: Places, amounts: Floats, count: int) -> Floats:
    return np.bincount(groups, amounts, minlength=count).astype(np.float32)


def asked(vocabulary: Vocabulary, query: str) -> list[list[int]]:
    """The terms of every segment of a query that has any."""
    return [terms for segment in segments(query) if (terms := vocabulary.terms(segment))]
