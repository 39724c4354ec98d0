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

from foveate.memory.words import STOP_WORDS, segments, stem, words

K1 = 1.2
B = 0.75
UNKNOWN = -1
"""The term of all words that stand in no text."""
# A text that has so many of a segment's rarest words, once each, is all that can be expected.
_EXPECTED_TERMS = 4
MOST_HITS = 4_000_000
"""So many are kept from one question to the next, of 12 bytes each."""

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
class Run:
    """The texts that a term stands in, no text twice, and what it adds to the score of each."""

    idf: float
    """What the term is worth at all."""
    places: NDArray[np.intp]
    parts: Floats


class Field:
    """The texts of several postings, the places of one after those of the other.

    Of each it says which texts are still there, or None where all are.
    """

    def __init__(
        self, pieces: Sequence[tuple[Postings, NDArray[np.bool_] | None]], *, most_hits: int = MOST_HITS
    ) -> None:
        self._pieces = pieces
        self._most_hits = most_hits
        kept = [piece.lengths if there is None else piece.lengths * there for piece, there in pieces]
        self.lengths: Floats = np.concatenate(kept) if kept else np.zeros(0, np.float32)
        self.count = sum(
            len(piece.lengths) if there is None else int(np.count_nonzero(there)) for piece, there in pieces
        )
        self._average = np.float32(float(self.lengths.sum(dtype=np.float64)) / max(1, self.count) or 1.0)
        # Never changed, only replaced: threads share it.
        self._runs: dict[int, Run] = {}

    def runs(self, terms: Iterable[int]) -> dict[int, Run]:
        """The run of each term. They are kept, for a question has many words of the one before it."""
        known = self._runs
        new = self._made([term for term in dict.fromkeys(terms) if term not in known])
        if not new:
            return known
        whole = known | new
        self._runs = next((some for some in (whole, new) if _hits(some) <= self._most_hits), {})
        return whole

    def _made(self, terms: Sequence[int]) -> dict[int, Run]:
        from bm25s.scoring import _select_idf_scorer, _select_tfc_scorer

        sizes, places, amounts = self._found(terms)
        parts = _select_tfc_scorer("lucene")(
            amounts, self.lengths.take(places), self._average, np.float32(K1), np.float32(B)
        )
        idf_of = _select_idf_scorer("lucene")
        made: dict[int, Run] = {}
        last = 0
        for term, size in zip(terms, sizes, strict=True):
            first, last = last, last + size
            idf = float(idf_of(size, N=self.count))
            parts[first:last] *= np.float32(idf)
            made[term] = Run(idf, places[first:last], parts[first:last])
        return made

    def _found(self, terms: Sequence[int]) -> tuple[list[int], NDArray[np.intp], Floats]:
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
                    texts, some = piece.texts[start:end], piece.amounts[start:end]
                    if there is not None:
                        kept = there.take(texts)
                        texts, some = texts[kept], some[kept]
                    places.append(texts + np.int32(shift) if shift else texts)
                    amounts.append(some)
                    sizes[number] += len(texts)
                shift += len(piece.lengths)
        return sizes, np.concatenate(places, dtype=np.intp), np.concatenate(amounts)


def _hits(runs: dict[int, Run]) -> int:
    return sum(len(run.places) for run in runs.values())


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
    runs = texts.runs(chain.from_iterable(query))
    squares, scores = np.zeros((2, len(texts.lengths)), np.float32)
    ideal = 0.0
    for terms in query:
        own = [runs[term] for term in terms]
        ideal = max(ideal, sum(sorted(run.idf for run in own)[-_EXPECTED_TERMS:]) / (1 + K1))
        for run in own:
            np.add.at(scores, run.places, run.parts)
        squares += np.square(scores, out=scores)
        scores.fill(0)
    return Match(np.sqrt(squares, out=squares), ideal)


def asked(vocabulary: Vocabulary, query: str) -> list[list[int]]:
    """The terms of every segment of a query that has any."""
    return [terms for segment in segments(query) if (terms := vocabulary.terms(segment))]
