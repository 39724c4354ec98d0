"""Prompts to assemble: new windows of real text, the same for all contenders."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from math import ceil

from benchmarks.corpus import Source
from foveate.budget import Priority, Section

Count = Callable[[str], int]

# Of every ten sections. A third of the whole then covers all low ones and some of the medium ones.
_PRIORITIES = (
    *(Priority.MEDIUM, Priority.HIGH, Priority.LOW, Priority.MEDIUM, Priority.REQUIRED),
    *(Priority.HIGH, Priority.MEDIUM, Priority.LOW, Priority.HIGH, Priority.MEDIUM),
)
_KINDS = ("prose", "code", "prose", "json")
# All text of the scarcest kind, and more than the largest case takes of any kind.
_POOL_BYTES = 7_000_000
_BLOCK_CHARS = 20_000
_SEED = 20261115


class Windows:
    """Cuts consecutive texts from each kind; later passes start at other offsets."""

    def __init__(self, sources: Mapping[str, Source], count: Count) -> None:
        self._chance = random.Random(_SEED)
        self._pools = {kind: sources[kind].take(_POOL_BYTES) for kind in dict.fromkeys(_KINDS)}
        self._positions = dict.fromkeys(self._pools, 0)
        # Tokens per character of each block, to get texts of the requested sizes.
        self._density = {
            kind: [
                count(pool[at : at + _BLOCK_CHARS]) / _BLOCK_CHARS for at in range(0, len(pool), _BLOCK_CHARS)
            ]
            for kind, pool in self._pools.items()
        }

    def take(self, kind: str, tokens: float) -> str:
        """Return about this many tokens of a kind."""
        start = self._positions[kind]
        end = self._end(kind, start, tokens)
        if end is None:
            start = self._chance.randrange(1, _BLOCK_CHARS)
            end = self._end(kind, start, tokens)
            assert end is not None, f"{tokens} tokens are more than there are of {kind}"
        self._positions[kind] = end
        return self._pools[kind][start:end]

    def texts(self, number: int, tokens: int) -> list[str]:
        """Return `number` texts of all kinds, together about this many tokens."""
        return [self.take(kind, tokens / number) for kind in islice(cycle(_KINDS), number)]

    def _end(self, kind: str, start: int, tokens: float) -> int | None:
        """Return the position after this many tokens; None if the kind has fewer."""
        end, remaining = start, tokens
        while remaining > 0:
            if end >= len(self._pools[kind]):
                return None
            density = self._density[kind][end // _BLOCK_CHARS]
            step = min(ceil(remaining / density), _BLOCK_CHARS - end % _BLOCK_CHARS)
            end += step
            remaining -= step * density
        return end


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Texts for one prompt, their token count when joined, and the limit."""

    texts: tuple[str, ...]
    tokens: int
    limit_tokens: int

    def sections(self) -> list[Section]:
        """Return the texts as sections of all priorities; the strings are copies, as if read again."""
        return [
            Section(f"part {number}", _copy(text), priority=priority)
            for number, (text, priority) in enumerate(zip(self.texts, cycle(_PRIORITIES), strict=False))
        ]

    def history(self) -> list[Section]:
        """Return the texts as one section that grew entry by entry."""
        return [Section("history", items=list(map(_copy, self.texts)), keep="newest")]


def cases(windows: Windows, *, texts: int, tokens: int, share: float, count: Count) -> Iterator[Case]:
    """Yield new cases of one size without end; the limit is `share` of the whole."""
    while True:
        texts_ = tuple(windows.texts(texts, tokens))
        whole_tokens = count("\n\n".join(texts_))
        yield Case(texts=texts_, tokens=whole_tokens, limit_tokens=ceil(whole_tokens * share))


def service_order(sections: Sequence[Section]) -> list[int]:
    """Return the positions of the sections, starting with the one that is cut last."""
    ranks = {priority: rank for rank, priority in enumerate(Priority)}
    return sorted(range(len(sections)), key=lambda place: ranks[sections[place].priority])


def _copy(text: str) -> str:
    return text.encode().decode()
