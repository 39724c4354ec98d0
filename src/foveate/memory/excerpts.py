"""Which stretches of a long text are shown for a query."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from foveate.budget import graphemes
from foveate.memory.words import split_words

# Of a longer line, at most so many characters are one stretch: it may be all that there is room for.
MAX_PASSAGE_CHARS = 500
_SENTENCE_ENDS = (". ", "! ", "? ", "。")
# A stretch beside one that matches is of some use too.
_NEIGHBOUR_WEIGHT = 0.3

Passage = tuple[int, int]
"""Where a part of a text begins and ends."""


def split_passages(text: str) -> Iterator[Passage]:
    """The lines of a text without their ends, long ones in parts: where one ends the next begins."""
    start = 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        while end - start > MAX_PASSAGE_CHARS:
            after = _passage_end(text, start, start + MAX_PASSAGE_CHARS)
            yield start, after
            start = after
        yield start, end
        start = end + 1


def _passage_end(text: str, start: int, max_end: int) -> int:
    """Where the part of a long line ends that begins at `start`: with a sentence, a word, or a character."""
    for ends in (_SENTENCE_ENDS, (" ",)):
        found = max(text.rfind(end, start + 1, max_end) + len(end) for end in ends)
        if found > start + 1:
            return graphemes.boundary_at_or_after(text, found)
    end = graphemes.boundary_at_or_before(text, max_end)
    return end if end > start else graphemes.boundary_at_or_after(text, max_end)


def rank_passages(text: str, wanted: frozenset[str]) -> Sequence[Passage]:
    """The stretches of a text that are not blank, the best first: those with the words, rare ones most."""
    passages = list(split_passages(text))
    found = [wanted.intersection(split_words(text[start:end])) for start, end in passages]
    word_counts = Counter(word for each in found for word in each)
    own_scores = [sum(math.log1p(len(passages) / word_counts[word]) for word in each) for each in found]
    padded_scores = [0.0, *own_scores, 0.0]
    scores = [
        score + _NEIGHBOUR_WEIGHT * (padded_scores[number] + padded_scores[number + 2])
        for number, score in enumerate(own_scores)
    ]
    non_blank = [number for number, (start, end) in enumerate(passages) if text[start:end].strip()]
    return [passages[number] for number in sorted(non_blank, key=lambda number: -scores[number])]
