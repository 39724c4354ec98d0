"""How well texts match a query by their words: BM25.

What it is made of is kept apart (how often a word stands in a text, how long the text is, in how many it
stands) and put together when a query asks, with the functions of bm25s. So texts can come and go, and a score
depends on the texts that are there, not on how they came; bm25s's own index would have to be made anew.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from foveate.memory.search.words import STOP_WORDS, split_segments, split_words, stem

K1 = 1.2
B = 0.75
UNKNOWN_TERM = -1
"""The term of all words that stand in no text."""
# A text that has so many of a segment's rarest words, once each, is all that can be expected.
_EXPECTED_TERMS = 4
MAX_CACHED_HITS = 4_000_000
"""So many are kept from one question to the next, of 12 bytes each."""

Floats = NDArray[np.float32]
TextNumbers = NDArray[np.int32]


class Vocabulary:
    """Words and the numbers of their stems; stop words have the first ones."""

    def __init__(self) -> None:
        self._terms: dict[str, int] = {word: number for number, word in enumerate(STOP_WORDS)}
        self._numbers = _TermNumbers(self._terms)

    def __len__(self) -> int:
        """How many stems there are."""
        return len(self._terms)

    def learn_terms(self, text: str) -> list[int]:
        """The terms of a text of the memory, word by word."""
        return list(map(self._numbers.__getitem__, split_words(text)))

    def query_terms(self, text: str) -> list[int]:
        """The terms of a query, each once, -1 for a word of no text; stop words where there is nothing else."""
        found: dict[int | str, int] = {}
        for word in dict.fromkeys(split_words(text)):
            number = self._terms.get(word) if word in _STOP_WORD_SET else self._terms.get(stem(word))
            found[stem(word) if number is None else number] = UNKNOWN_TERM if number is None else number
        numbers = list(found.values())
        return [number for number in numbers if not 0 <= number < len(STOP_WORDS)] or numbers


_STOP_WORD_SET = frozenset(STOP_WORDS)


class _TermNumbers(dict[str, int]):
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
    texts: TextNumbers
    weights: Floats
    lengths: Floats
    """Of each text, in words that are no stop words."""


def build_postings(texts: Iterable[Sequence[tuple[float, list[int]]]], vocabulary: Vocabulary) -> Postings:
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
    term_weights = np.repeat(np.asarray(weights, np.float32), sizes)[order]
    keys = keys[order]
    del order
    firsts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
    if len(firsts):
        term_weights = np.add.reduceat(term_weights, firsts)
    keys = keys[firsts]
    places = (keys & 0xFFFFFFFF).astype(np.int32)
    starts = np.searchsorted(keys, np.arange(len(vocabulary) + 1) << 32)
    telling = slice(int(starts[len(STOP_WORDS)]), None)
    lengths = np.bincount(places[telling], term_weights[telling], minlength=len(parts))
    return Postings(starts, places, term_weights, lengths.astype(np.float32))


def group_postings(piece: Postings, group_of: TextNumbers, count: int) -> Postings:
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
        weights=np.add.reduceat(piece.weights, firsts) if len(firsts) else piece.weights,
        lengths=np.bincount(group_of, piece.lengths, minlength=count).astype(np.float32),
    )


def merge_postings(pieces: Sequence[tuple[Postings, TextNumbers]], terms: int) -> Postings:
    """One of several: a text goes to the number it is given, or away where that is negative."""
    lengths = np.zeros(1 + max((int(to.max(initial=-1)) for _, to in pieces), default=-1), np.float32)
    kept = [to[piece.texts] >= 0 for piece, to in pieces]
    sizes = [_kept_sizes(piece, stays, terms) for (piece, _), stays in zip(pieces, kept, strict=True)]
    starts = np.zeros(terms + 1, np.int64)
    np.cumsum(np.sum(sizes, axis=0), out=starts[1:])
    texts, amounts = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    free = starts[:-1].copy()
    for (piece, to), stays, size in zip(pieces, kept, sizes, strict=True):
        # Those of a term stand together in their old order, and so they will in the new place.
        places = np.arange(size.sum()) + np.repeat(free - (np.cumsum(size) - size), size)
        texts[places] = to[piece.texts[stays]]
        amounts[places] = piece.weights[stays]
        free += size
        lengths[to[to >= 0]] = piece.lengths[to >= 0]
    return Postings(starts, texts, amounts, lengths)


def _kept_sizes(piece: Postings, stays: NDArray[np.bool_], terms: int) -> NDArray[np.int64]:
    """Of each term, how many of its postings stay."""
    before = np.append(0, np.cumsum(stays))
    sizes = np.zeros(terms, np.int64)
    sizes[: len(piece.starts) - 1] = np.diff(before[piece.starts])
    return sizes


@dataclass(frozen=True, slots=True, eq=False)
class TermScores:
    """The texts that a term stands in, no text twice, and what it adds to the score of each."""

    idf: float
    """What the term is worth at all."""
    texts: NDArray[np.intp]
    scores: Floats


class TextField:
    """The texts of several postings, the places of one after those of the other.

    Of each it says which texts are still there, or None where all are.
    """

    def __init__(
        self, pieces: Sequence[tuple[Postings, NDArray[np.bool_] | None]], *, max_hits: int = MAX_CACHED_HITS
    ) -> None:
        self._pieces = pieces
        self._max_hits = max_hits
        kept = [piece.lengths if there is None else piece.lengths * there for piece, there in pieces]
        self.lengths: Floats = np.concatenate(kept) if kept else np.zeros(0, np.float32)
        self.count = sum(
            len(piece.lengths) if there is None else int(np.count_nonzero(there)) for piece, there in pieces
        )
        self._average = np.float32(float(self.lengths.sum(dtype=np.float64)) / max(1, self.count) or 1.0)
        # Never changed, only replaced: threads share it.
        self._term_scores: dict[int, TermScores] = {}

    def term_scores(self, terms: Iterable[int]) -> dict[int, TermScores]:
        """The run of each term. They are kept, for a question has many words of the one before it."""
        known = self._term_scores
        new = self._compute_scores([term for term in dict.fromkeys(terms) if term not in known])
        if not new:
            return known
        all_scores = known | new
        self._term_scores = next(
            (scores for scores in (all_scores, new) if _count_hits(scores) <= self._max_hits), {}
        )
        return all_scores

    def _compute_scores(self, terms: Sequence[int]) -> dict[int, TermScores]:
        from bm25s.scoring import _select_idf_scorer, _select_tfc_scorer

        sizes, places, amounts = self._gather_postings(terms)
        parts = _select_tfc_scorer("lucene")(
            amounts, self.lengths.take(places), self._average, np.float32(K1), np.float32(B)
        )
        idf_of = _select_idf_scorer("lucene")
        computed: dict[int, TermScores] = {}
        last = 0
        for term, size in zip(terms, sizes, strict=True):
            first, last = last, last + size
            idf = float(idf_of(size, N=self.count))
            parts[first:last] *= np.float32(idf)
            computed[term] = TermScores(idf, places[first:last], parts[first:last])
        return computed

    def _gather_postings(self, terms: Sequence[int]) -> tuple[list[int], NDArray[np.intp], Floats]:
        """In how many texts each term stands; in which, one term after the other; and how much of it."""
        numbers = np.asarray(terms, np.int64)
        bounds = [
            (
                piece.starts.take(numbers, mode="clip").tolist(),
                piece.starts.take(numbers + 1, mode="clip").tolist(),
            )
            for piece, _ in self._pieces
        ]
        places, amounts = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
        sizes = [0] * len(terms)
        for number in range(len(terms)):
            shift = 0
            for (piece, there), (starts, ends) in zip(self._pieces, bounds, strict=True):
                start, end = starts[number], ends[number]
                if start < end:
                    texts, some = piece.texts[start:end], piece.weights[start:end]
                    if there is not None:
                        kept = there.take(texts)
                        texts, some = texts[kept], some[kept]
                    places.append(texts + np.int32(shift) if shift else texts)
                    amounts.append(some)
                    sizes[number] += len(texts)
                shift += len(piece.lengths)
        return sizes, np.concatenate(places, dtype=np.intp), np.concatenate(amounts)


def _count_hits(term_scores: dict[int, TermScores]) -> int:
    return sum(len(scores.texts) for scores in term_scores.values())


@dataclass(frozen=True, slots=True, eq=False)
class MatchScores:
    """How well each text matches, and the score of one that matches as well as can be expected."""

    scores: Floats
    ideal: float

    def normalize(self, full: float) -> Floats:
        """The scores as shares of the best, or of `full` of the ideal where not even the best reaches that."""
        best = max(float(self.scores.max(initial=0.0)), full * self.ideal)
        return self.scores / np.float32(best) if best else self.scores


def score_texts(texts: TextField, query: Sequence[Sequence[int]]) -> MatchScores:
    """The scores of texts for a query of some segments, each a few terms: the root of the sum of their squares.

    A long query has many thoughts, and a text is about one of them; a plain sum would prefer the texts that
    have something of each. As for the ideal, who asks in many words does not expect all of them.
    """
    term_scores = texts.term_scores(chain.from_iterable(query))
    squares, scores = np.zeros((2, len(texts.lengths)), np.float32)
    ideal = 0.0
    for terms in query:
        segment_scores = [term_scores[term] for term in terms]
        ideal = max(
            ideal, sum(sorted(term_score.idf for term_score in segment_scores)[-_EXPECTED_TERMS:]) / (1 + K1)
        )
        for term_score in segment_scores:
            np.add.at(scores, term_score.texts, term_score.scores)
        squares += np.square(scores, out=scores)
        scores.fill(0)
    return MatchScores(np.sqrt(squares, out=squares), ideal)


def split_query_terms(vocabulary: Vocabulary, query: str) -> list[list[int]]:
    """The terms of every segment of a query that has any."""
    return [terms for segment in split_segments(query) if (terms := vocabulary.query_terms(segment))]
