"""Which stretches of a long text are shown for a query."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from foveate.budget import graphemes
from foveate.memory.words import words

# Of a longer line, at most so many characters are one stretch: it may be all that there is room for.
STRETCH_CHARS = 500
_SENTENCE_ENDS = (". ", "! ", "? ", "。")
# A stretch beside one that matches is of some use too.
_NEIGHBOUR = 0.3

Stretch = tuple[int, int]
"""Where a part of a text begins and ends."""


def stretches(text: str) -> Iterator[Stretch]:
    """The lines of a text without their ends, long ones in parts: where one ends the next begins."""
    start = 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        while end - start > STRETCH_CHARS:
            after = _after(text, start, start + STRETCH_CHARS)
            yield start, after
            start = after
        yield start, end
        start = end + 1


def _after(text: str, start: int, most: int) -> int:
    """Where the part of a long line ends that begins at `start`: with a sentence, a word, or a character."""
    for ends in (_SENTENCE_ENDS, (" ",)):
        found = max(text.rfind(end, start + 1, most) + len(end) for end in ends)
        if found > start + 1:
            return graphemes.ceil(text, found)
    end = graphemes.floor(text, most)
    return end if end > start else graphemes.ceil(text, most)


def ranked(text: str, wanted: frozenset[str]) -> Sequence[Stretch]:
    """The stretches of a text that are not blank, the best first: those with the words, rare ones most."""
    every = list(stretches(text))
    found = [wanted.intersection(words(text[start:end])) for start, end in every]
    often = Counter(word for each in found for word in each)
    own = [sum(math.log1p(len(every) / often[word]) for word in each) for each in found]
    beside = [0.0, *own, 0.0]
    worth = [here + _NEIGHBOUR * (beside[number] + beside[number + 2]) for number, here in enumerate(own)]
    written = [number for number, (start, end) in enumerate(every) if text[start:end].strip()]
    return [every[number] for number in sorted(written, key=lambda number: -worth[number])]
