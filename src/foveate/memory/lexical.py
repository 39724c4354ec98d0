"""How well texts match a query by their words: BM25.

What it is made of is kept apart (how often a word stands in a text, how long the text is, in how many it
stands) and put together when a query asks, with the functions of bm25s. So texts can come and go, and a score
depends on the texts that are there, not on how they came; bm25s's own index would have to be made anew.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from foveate.memory.words import STOP_WORDS, segments, stem, words

K1 = 1.2
B = 0.75
UNKNOWN = -1
"""The term of all words that stand in no text."""
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
            found[stem(word) if number is None else number] = UNKNOWN if number is None else number
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


def postings(texts: Iterable[Sequence[tuple[float, Sequence[int]]]], vocabulary: Vocabulary) -> Postings:
    """Those of texts, each of which is some parts with their weights and terms."""
    numbers, sizes, parts = array("i"), array("i"), array("i")
    weights = array("f")
    for text in texts:
        for weight, found in text:
            numbers.extend(found)
            sizes.append(len(found))
            weights.append(weight)
        parts.append(len(text))
    of_part = np.repeat(np.arange(len(parts), dtype=np.int32), parts)
    places = np.repeat(of_part, sizes)
    amounts = np.repeat(np.asarray(weights, np.float32), sizes)
    return _sorted(np.asarray(numbers, np.int32), places, amounts, len(parts), len(vocabulary))


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


class Texts(Protocol):
    """What can be scored: each text has a place."""

    lengths: Floats
    count: int
    """How many there are; some places may be empty."""

    def find(self, term: int) -> tuple[Places, Floats]:
        """The places of the texts with a term, and how much of it they have."""


class Field:
    """The texts of several postings, the places of one after those of the other.

    Of each it says which texts are still there, or None where all are.
    """

    def __init__(self, pieces: Sequence[tuple[Postings, NDArray[np.bool_] | None]]) -> None:
        self._pieces = pieces
        kept = [piece.lengths if there is None else piece.lengths * there for piece, there in pieces]
        self.lengths: Floats = np.concatenate(kept) if kept else np.zeros(0, np.float32)
        self.count = sum(
            len(piece.lengths) if there is None else int(np.count_nonzero(there)) for piece, there in pieces
        )

    def find(self, term: int) -> tuple[Places, Floats]:
        """The places of the texts with a term, and how much of it they have."""
        found: list[tuple[Places, Floats]] = []
        first = 0
        for piece, there in self._pieces if term != UNKNOWN else ():
            texts, amounts = piece.of(term)
            if there is not None and len(texts):
                kept = there[texts]
                texts, amounts = texts[kept], amounts[kept]
            if len(texts):
                found.append((texts + np.int32(first) if first else texts, amounts))
            first += len(piece.lengths)
        if len(found) == 1:
            return found[0]
        if not found:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        places, amounts_found = zip(*found, strict=True)
        return np.concatenate(places), np.concatenate(amounts_found)


class Groups:
    """Texts taken together, such as those of a file, each group as if it were one text."""

    def __init__(self, field: Field, group_of: Places, count: int) -> None:
        self._field = field
        self._group_of = group_of
        self.count = count
        self.lengths = self._summed(group_of, field.lengths)

    def find(self, term: int) -> tuple[Places, Floats]:
        """The places of the groups with a term, and how much of it they have."""
        places, amounts = self._field.find(term)
        of_groups = self._summed(self._group_of[places], amounts)
        having = np.flatnonzero(of_groups).astype(np.int32)
        return having, of_groups[having]

    def _summed(self, groups: Places, amounts: Floats) -> Floats:
        return np.bincount(groups, amounts, minlength=self.count).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """How well each text matches, and the score of one that matches as well as can be expected."""

    scores: Floats
    ideal: float

    def shares(self, full: float) -> Floats:
        """The scores as shares of the best, or of `full` of the ideal where not even the best reaches that."""
        best = max(float(self.scores.max(initial=0.0)), full * self.ideal)
        return self.scores / np.float32(best) if best else self.scores


def match(texts: Texts, query: Sequence[Sequence[int]]) -> Match:
    """The scores of texts for a query of some segments, each a few terms: the root of the sum of their squares.

    A long query has many thoughts, and a text is about one of them; a plain sum would prefer the texts that
    have something of each. As for the ideal, who asks in many words does not expect all of them.
    """
    known: dict[int, tuple[float, Places, Floats]] = {}
    average = np.float32(float(texts.lengths.sum(dtype=np.float64)) / max(1, texts.count) or 1.0)
    squares = np.zeros_like(texts.lengths)
    ideal = 0.0
    for terms in query:
        scores = np.zeros_like(squares)
        idfs = []
        for term in terms:
            if term not in known:
                known[term] = _scored(texts, term, average)
            idf, places, parts = known[term]
            idfs.append(idf)
            scores[places] += parts
        ideal = max(ideal, sum(sorted(idfs)[-_EXPECTED_TERMS:]) / (1 + K1))
        if len(query) == 1:
            return Match(scores, ideal)
        squares += np.square(scores, out=scores)
    return Match(np.sqrt(squares, out=squares), ideal)


def _scored(texts: Texts, term: int, average: np.float32) -> tuple[float, Places, Floats]:
    """What a term is worth, where it stands, and what it adds there."""
    from bm25s.scoring import _select_idf_scorer, _select_tfc_scorer

    places, amounts = texts.find(term)
    idf = _select_idf_scorer("lucene")(len(places), N=texts.count)
    shares = _select_tfc_scorer("lucene")(
        amounts, texts.lengths[places], average, np.float32(K1), np.float32(B)
    )
    return idf, places, np.float32(idf) * shares


def asked(vocabulary: Vocabulary, query: str) -> list[list[int]]:
    """The terms of every segment of a query that has any."""
    return [terms for segment in segments(query) if (terms := vocabulary.terms(segment))]
