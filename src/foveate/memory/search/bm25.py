"""Score texts by the words of a query: BM25.

Term frequencies, text lengths and document frequencies are stored separately and combined per query. So texts
can be added and removed, and scores depend only on the current texts; the index of a library such as bm25s
would have to be rebuilt. Scores are those of Lucene, whose idf is never negative.
"""

import math
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
"""Stands for all words that occur in no text."""
# A text with this many of a segment's rarest words, once each, is an ideal match.
_EXPECTED_TERMS = 4
MAX_CACHED_HITS = 4_000_000
"""Limit for hits cached between queries, of 12 bytes each."""

Floats = NDArray[np.float32]
TextNumbers = NDArray[np.int32]


class Vocabulary:
    """Maps words to the numbers of their stems; stop words come first."""

    def __init__(self) -> None:
        self._terms: dict[str, int] = {word: number for number, word in enumerate(STOP_WORDS)}
        self._numbers = _TermNumbers(self._terms)

    def __len__(self) -> int:
        return len(self._terms)

    def learn_terms(self, text: str) -> list[int]:
        return list(map(self._numbers.__getitem__, split_words(text)))

    def query_terms(self, text: str) -> list[int]:
        """The distinct terms of a query, -1 for unknown words; stop words only if there is nothing else."""
        numbers_by_stem: dict[int | str, int] = {}
        for word in dict.fromkeys(split_words(text)):
            number = self._terms.get(word) if word in _STOP_WORD_SET else self._terms.get(stem(word))
            numbers_by_stem[stem(word) if number is None else number] = (
                UNKNOWN_TERM if number is None else number
            )
        numbers = list(numbers_by_stem.values())
        return [number for number in numbers if not 0 <= number < len(STOP_WORDS)] or numbers


_STOP_WORD_SET = frozenset(STOP_WORDS)


class _TermNumbers(dict[str, int]):
    """The number of each word; a new word gets the number of its stem."""

    def __init__(self, terms: dict[str, int]) -> None:
        super().__init__(terms)
        self._terms = terms

    def __missing__(self, word: str) -> int:
        number = self._terms.setdefault(stem(word), len(self._terms))
        self[word] = number
        return number


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """For each term, the texts that contain it, with its weight.

    Those of term `t` are at `starts[t]` to `starts[t + 1]`.
    """

    starts: NDArray[np.int64]
    texts: TextNumbers
    weights: Floats
    lengths: Floats
    """The length of each text, in words without stop words."""


def build_postings(texts: Iterable[Sequence[tuple[float, list[int]]]], vocabulary: Vocabulary) -> Postings:
    """Build the postings of texts, each given as parts with weights and terms."""
    numbers, sizes, parts = array("i"), array("i"), array("i")
    weights = array("f")
    for text in texts:
        for weight, terms in text:
            numbers.fromlist(terms)
            sizes.append(len(terms))
            weights.append(weight)
        parts.append(len(text))
    # A key combines term and text number. There may be millions, so intermediate arrays are freed early.
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
    text_numbers = (keys & 0xFFFFFFFF).astype(np.int32)
    starts = np.searchsorted(keys, np.arange(len(vocabulary) + 1) << 32)
    significant = slice(int(starts[len(STOP_WORDS)]), None)
    lengths = np.bincount(text_numbers[significant], term_weights[significant], minlength=len(parts))
    return Postings(starts, text_numbers, term_weights, lengths.astype(np.float32))


def group_postings(postings: Postings, group_numbers: TextNumbers, count: int) -> Postings:
    """Combine the postings of groups of texts, such as those of a file, as if each were one text.

    The texts of a group are adjacent, and those of a term in order.
    """
    groups = group_numbers[postings.texts]
    is_first = np.diff(groups, prepend=-1) != 0
    is_first[postings.starts[:-1][np.diff(postings.starts) > 0]] = True
    firsts = np.flatnonzero(is_first)
    return Postings(
        starts=np.append(0, np.cumsum(is_first))[postings.starts],
        texts=groups[firsts],
        weights=np.add.reduceat(postings.weights, firsts) if len(firsts) else postings.weights,
        lengths=np.bincount(group_numbers, postings.lengths, minlength=count).astype(np.float32),
    )


def merge_postings(pieces: Sequence[tuple[Postings, TextNumbers]], terms: int) -> Postings:
    """`pieces` pairs postings with the new number of each text; texts with negative numbers are dropped."""
    lengths = np.zeros(1 + max((int(to.max(initial=-1)) for _, to in pieces), default=-1), np.float32)
    masks = [to[piece.texts] >= 0 for piece, to in pieces]
    sizes = [_kept_sizes(piece, is_kept, terms) for (piece, _), is_kept in zip(pieces, masks, strict=True)]
    starts = np.zeros(terms + 1, np.int64)
    np.cumsum(np.sum(sizes, axis=0), out=starts[1:])
    texts, amounts = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.float32)
    free = starts[:-1].copy()
    for (piece, to), is_kept, size in zip(pieces, masks, sizes, strict=True):
        # Postings of a term are adjacent and keep their order.
        new_places = np.arange(size.sum()) + np.repeat(free - (np.cumsum(size) - size), size)
        texts[new_places] = to[piece.texts[is_kept]]
        amounts[new_places] = piece.weights[is_kept]
        free += size
        lengths[to[to >= 0]] = piece.lengths[to >= 0]
    return Postings(starts, texts, amounts, lengths)


def _kept_sizes(postings: Postings, is_kept: NDArray[np.bool_], terms: int) -> NDArray[np.int64]:
    before = np.append(0, np.cumsum(is_kept))
    sizes = np.zeros(terms, np.int64)
    sizes[: len(postings.starts) - 1] = np.diff(before[postings.starts])
    return sizes


@dataclass(frozen=True, slots=True, eq=False)
class TermScores:
    idf: float
    """Inverse document frequency."""
    texts: NDArray[np.intp]
    scores: Floats


class TextField:
    """The texts of several postings, numbered consecutively.

    A mask tells which texts of each still exist; None means all.
    """

    def __init__(
        self, pieces: Sequence[tuple[Postings, NDArray[np.bool_] | None]], *, max_hits: int = MAX_CACHED_HITS
    ) -> None:
        self._pieces = pieces
        self._max_hits = max_hits
        lengths = [piece.lengths if mask is None else piece.lengths * mask for piece, mask in pieces]
        self.lengths: Floats = np.concatenate(lengths) if lengths else np.zeros(0, np.float32)
        self.count = sum(
            len(piece.lengths) if mask is None else int(np.count_nonzero(mask)) for piece, mask in pieces
        )
        self._average = np.float32(float(self.lengths.sum(dtype=np.float64)) / max(1, self.count) or 1.0)
        # Replaced, never modified, because threads share it.
        self._term_scores: dict[int, TermScores] = {}

    def term_scores(self, terms: Iterable[int]) -> dict[int, TermScores]:
        """The scores of each term, cached because consecutive queries share many words."""
        cached = self._term_scores
        new = self._compute_scores([term for term in dict.fromkeys(terms) if term not in cached])
        if not new:
            return cached
        all_scores = cached | new
        self._term_scores = next(
            (scores for scores in (all_scores, new) if _count_hits(scores) <= self._max_hits), {}
        )
        return all_scores

    def _compute_scores(self, terms: Sequence[int]) -> dict[int, TermScores]:
        sizes, texts, amounts = self._gather_postings(terms)
        relative_lengths = self.lengths.take(texts) / self._average
        divisors: Floats = np.float32(K1) * (np.float32(1 - B) + np.float32(B) * relative_lengths) + amounts
        parts: Floats = amounts / divisors
        computed: dict[int, TermScores] = {}
        last = 0
        for term, size in zip(terms, sizes, strict=True):
            first, last = last, last + size
            idf = math.log(1 + (self.count - size + 0.5) / (size + 0.5))
            parts[first:last] *= np.float32(idf)
            computed[term] = TermScores(idf, texts[first:last], parts[first:last])
        return computed

    def _gather_postings(self, terms: Sequence[int]) -> tuple[list[int], NDArray[np.intp], Floats]:
        """The number of texts of each term, the texts of all terms, and their weights."""
        numbers = np.asarray(terms, np.int64)
        bounds = [
            (
                piece.starts.take(numbers, mode="clip").tolist(),
                piece.starts.take(numbers + 1, mode="clip").tolist(),
            )
            for piece, _ in self._pieces
        ]
        all_texts, amounts = [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
        sizes = [0] * len(terms)
        for number in range(len(terms)):
            shift = 0
            for (piece, mask), (starts, ends) in zip(self._pieces, bounds, strict=True):
                start, end = starts[number], ends[number]
                if start < end:
                    texts, weights = piece.texts[start:end], piece.weights[start:end]
                    if mask is not None:
                        exists = mask.take(texts)
                        texts, weights = texts[exists], weights[exists]
                    all_texts.append(texts + np.int32(shift) if shift else texts)
                    amounts.append(weights)
                    sizes[number] += len(texts)
                shift += len(piece.lengths)
        return sizes, np.concatenate(all_texts, dtype=np.intp), np.concatenate(amounts)


def _count_hits(term_scores: dict[int, TermScores]) -> int:
    return sum(len(scores.texts) for scores in term_scores.values())


@dataclass(frozen=True, slots=True, eq=False)
class MatchScores:
    scores: Floats
    ideal: float

    def normalize(self, full: float) -> Floats:
        """Divide the scores by the best, or by `full` of the ideal if that is more."""
        best = max(float(self.scores.max(initial=0.0)), full * self.ideal)
        return self.scores / np.float32(best) if best else self.scores


def score_texts(texts: TextField, query: Sequence[Sequence[int]]) -> MatchScores:
    """Score texts for the segments of a query: the root of the sum of squares.

    A long query has several topics, and a text is about one of them. A plain sum would favor texts that have a
    little of each.
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
    return [terms for segment in split_segments(query) if (terms := vocabulary.query_terms(segment))]
