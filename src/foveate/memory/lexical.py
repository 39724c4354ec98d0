"""How well texts match a query by their words: BM25.

What it is made of is kept apart (how often a word stands in a text, how long the text is, in how many it
stands) and put together when a query asks, with the functions of bm25s. So texts can come and go, and a score
depends on the texts that are there, not on how they came; bm25s's own index would have to be made anew.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

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
        return list(map(self._numbers.__getitem__, words(text)))

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


def postings(texts: Iterable[Sequence[tuple[float, list[int]]]], vocabulary: Vocabulary) -> Postings:
    """Those of texts, each of which is some parts with their weights and terms."""
    numbers, sizes, parts = array("i"), array("i"), array("i")
    weights = array("f")
    for text in texts:
        for weight, found in text:
            numbers.fromlist(found)
            sizes.append(len(found))
            weights.append(weight)
        parts.append(len(text))
    # A key is a term and the number of a text. There may be millions: what is not needed any more goes at once.
    keys = np.asarray(numbers, np.int64) << 32
    keys |= np.repeat(np.repeat(np.arange(len(parts), dtype=np.int32), parts), sizes)
    del numbers
    order = np.argsort(keys, kind="stable")
    amounts = np.repeat(np.asarray(weights, np.float32), sizes)[order]
    keys = keys[order]
    del order
    firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    if len(firsts):
        amounts = np.add.reduceat(amounts, firsts)
    keys = keys[firsts]
    places = (keys & 0xFFFFFFFF).astype(np.int32)
    starts = np.searchsorted(keys, np.arange(len(vocabulary) + 1) << 32)
    telling = slice(int(starts[len(STOP_WORDS)]), None)
    lengths = np.bincount(places[telling], amounts[telling], minlength=len(parts))
    return Postings(starts, places, amounts, lengths.astype(np.float32))


def grouped(piece: Postings, group_of: Places, count: int) -> Postings:
    """Those of texts taken together, such as all of a file: each group as if it were one text.

    The texts of a group stand side by side, and those of a term in their order.
    """
    groups = group_of[piece.texts]
    is_first = np.diff(groups, prepend=-1) != 0
    is_first[piece.starts[:-1][np.diff(piece.starts) > 0]] = True
    firsts = np.flatnonzero(is_first)
    return Postings(
        starts=np.append(0, np.cumsum(is_first))[piece.starts],
        texts=groups[firsts],
        amounts=np.add.reduceat(piece.amounts, firsts) if len(firsts) else piece.amounts,
        lengths=np.bincount(group_of, piece.lengths, minlength=count).astype(np.float32),
    )


def merged(pieces: Sequence[tuple[Postings, Places]], terms: int) -> Postings:
    """One of several: a text goes to the number it is given, or away where that is negative."""
    lengths = np.zeros(1 + max((int(to.max(initial=-1)) for _, to in pieces), default=-1), np.float32)
    kept = [to[piece.texts] >= 0 for piece, to in pieces]
    sizes = [_sizes(piece, stays, terms) for (piece, _), stays in zip(pieces, kept, strict=True)]
    starts = np.zeros(terms + 1, np.int64)
    np.cumsum(np.sum(sizes, axis=0), out=starts[1:])
    texts, amounts = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    free = starts[:-1].copy()
    for (piece, to), stays, size in zip(pieces, kept, sizes, strict=True):
        # Those of a term stand together in their old order, and so they will in the new place.
        places = np.arange(size.sum()) + np.repeat(free - (np.cumsum(size) - size), size)
        texts[places] = to[piece.texts[stays]]
        amounts[places] = piece.amounts[stays]
        free += size
        lengths[to[to >= 0]] = piece.lengths[to >= 0]
    return Postings(starts, texts, amounts, lengths)


def _sizes(piece: Postings, stays: NDArray[np.bool_], terms: int) -> NDArray[np.int64]:
    """Of each term, how many of its postings stay."""
    before = np.append(0, np.cumsum(stays))
    sizes = np.zeros(terms, np.int64)
    sizes[: len(piece.starts) - 1] = np.diff(before[piece.starts])
    return sizes


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """Where a few terms stand: runs of texts, each run of one term; no text is in two runs of a term."""

    terms: NDArray[np.int64]
    """Of each run, which of them it is of; a term that no text has is of none."""
    sizes: NDArray[np.int64]
    """Of each run, how many texts it has."""
    places: Places
    amounts: Floats


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

    def find(self, query: Sequence[Sequence[int]]) -> Iterator[Hits]:
        """Where the terms of each segment stand, and how much of each."""
        terms = np.fromiter(chain.from_iterable(query), np.int64)
        starts = [piece.starts.take(terms, mode="clip").tolist() for piece, _ in self._pieces]
        ends = [piece.starts.take(terms + 1, mode="clip").tolist() for piece, _ in self._pieces]
        last = 0
        for segment in query:
            first, last = last, last + len(segment)
            runs: list[int] = []
            shifts: list[int] = []
            places, amounts = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
            shift = 0
            for (piece, there), froms, tos in zip(self._pieces, starts, ends, strict=True):
                for run, start, end in zip(
                    range(len(segment)), froms[first:last], tos[first:last], strict=True
                ):
                    if start == end:
                        continue
                    texts, some = piece.texts[start:end], piece.amounts[start:end]
                    if there is not None:
                        kept = there.take(texts)
                        texts, some = texts[kept], some[kept]
                    runs.append(run)
                    shifts.append(shift)
                    places.append(texts)
                    amounts.append(some)
                shift += len(piece.lengths)
            sizes = np.fromiter(map(len, places[1:]), np.int64, len(runs))
            found = np.concatenate(places)
            found += np.repeat(np.asarray(shifts, np.int32), sizes)
            yield Hits(np.asarray(runs, np.int64), sizes, found, np.concatenate(amounts))


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """How well each text matches, and the score of one that matches as well as can be expected."""

    scores: Floats
    ideal: float

    def shares(self, full: float) -> Floats:
        """The scores as shares of the best, or of `full` of the ideal where not even the best reaches that."""
        best = max(float(self.scores.max(initial=0.0)), full * self.ideal)
        return self.scores / np.float32(best) if best else self.scores


def match(texts: Field, query: Sequence[Sequence[int]]) -> Match:
    """The scores of texts for a query of some segments, each a few terms: the root of the sum of their squares.

    A long query has many thoughts, and a text is about one of them; a plain sum would prefer the texts that
    have something of each. As for the ideal, who asks in many words does not expect all of them.
    """
    average = np.float32(float(texts.lengths.sum(dtype=np.float64)) / max(1, texts.count) or 1.0)
    squares = np.zeros(len(texts.lengths))
    ideal = 0.0
    for terms, hits in zip(query, texts.find(query), strict=True):
        idfs, scores = _scored(texts, len(terms), hits, average)
        ideal = max(ideal, sum(sorted(idfs)[-_EXPECTED_TERMS:]) / (1 + K1))
        squares += np.square(scores, out=scores)
    return Match(np.sqrt(squares, out=squares).astype(np.float32), ideal)


def _scored(
    texts: Field, terms: int, hits: Hits, average: np.float32
) -> tuple[list[float], NDArray[np.float64]]:
    """What each term is worth, and the sum of what they add to each text."""
    from bm25s.scoring import _select_idf_scorer, _select_tfc_scorer

    often = np.bincount(hits.terms, hits.sizes, minlength=terms).astype(int).tolist()
    idf_of = _select_idf_scorer("lucene")
    idfs = [idf_of(times, N=texts.count) for times in often]
    parts = _select_tfc_scorer("lucene")(
        hits.amounts, texts.lengths.take(hits.places), average, np.float32(K1), np.float32(B)
    )
    parts *= np.repeat(np.asarray(idfs, np.float32)[hits.terms], hits.sizes)
    scores = np.bincount(hits.places, parts, minlength=len(texts.lengths))
    return idfs, scores.astype(np.float64, copy=False)


def asked(vocabulary: Vocabulary, query: str) -> list[list[int]]:
    """The terms of every segment of a query that has any."""
    return [terms for segment in segments(query) if (terms := vocabulary.terms(segment))]
