"""How long a text is that is joined from parts of measured ones: known before it is joined.

What lies between seams was counted when each text was measured. What is tokenised again is what meets where two
parts meet, from the last seam of the one to the first seam of the other, and that is remembered as well.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import NamedTuple, Protocol

from foveate.tokens.courtesy import courtesy
from foveate.tokens.rendering import Counts, Scale
from foveate.tokens.tape import Run, Tape, measured, summed
from foveate.values import NOTHING, TokenCount

# Texts that come with every prompt are measured once; together they are not more than this.
_KEPT_CHARS = 32 * 1024 * 1024
# What meets where two parts meet is mostly a word or two.
_KEPT_JOINS = 16 * 1024
_JOIN_CHARS = 256


class Span(NamedTuple):
    """A part of a measured text."""

    tape: Tape
    start: int
    end: int


Part = str | Span | Tape | Run
"""What a text is joined from."""


class Gauge:
    """Measures texts, and what is joined from their parts. Safe to share between threads."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._tapes: OrderedDict[str, Tape] = OrderedDict()
        self._kept_chars = 0
        self._joins: dict[str, Counts] = {}
        self._lock = Lock()

    def tape(self, text: str) -> Tape:
        """`text` measured, or remembered from when it was."""
        with self._lock:
            found = self._tapes.get(text)
            if found is not None:
                self._tapes.move_to_end(text)
                return found
        with courtesy(len(text)):
            tape = measured(text, self._scale)
        with self._lock:
            if text not in self._tapes:
                self._tapes[text] = tape
                self._kept_chars += len(text)
            while self._kept_chars > _KEPT_CHARS:
                self._kept_chars -= len(self._tapes.popitem(last=False)[0])
        return tape

    def run(self, parts: Iterable[Part], *, guess: bool = False) -> Run:
        """`parts` joined to one run; with `guess`, closed at steps as well, which is quick and nearly sure."""
        head: str | None = None
        waiting: list[str] = []
        joins: list[str] = []
        counted: list[Counts] = []
        for part in parts:
            if isinstance(part, str):
                waiting.append(part)
                continue
            run = _closed(part, guess=guess)
            waiting.append(run.head)
            if run.counts is not None:
                if head is None:
                    head = "".join(waiting)
                else:
                    joins.append("".join(waiting))
                counted.append(run.counts)
                waiting = [run.tail]
        rest = "".join(waiting)
        if head is None:
            return Run(rest)
        counted += self._counts(joins)
        return Run(head, summed(counted), rest)

    def count(self, parts: Iterable[Part], *, guess: bool = False) -> TokenCount:
        """How many tokens `parts` are, joined and counted whole."""
        run = self.run(parts, guess=guess)
        counts = self._counts([text for text in (run.head, run.tail) if text])
        if run.counts is not None:
            counts.append(run.counts)
        return self._scale.total(summed(counts)) if counts else NOTHING

    def reach(self, tape: Tape, room_tokens: int) -> int:
        """About how many of the first characters of `tape` take up that room; a place to begin looking."""
        places, sums = tape.steps
        found = bisect_right(sums, room_tokens, key=lambda counts: self._scale.total(counts).upper)
        if found == len(places):
            return len(tape.text)
        last, beyond = max(found - 1, 0), found
        used = self._scale.total(sums[last]).upper
        step_tokens = max(self._scale.total(sums[beyond]).upper - used, 1)
        return places[last] + (places[beyond] - places[last]) * max(room_tokens - used, 0) // step_tokens

    def _counts(self, joins: Sequence[str]) -> list[Counts]:
        """What is counted in each of `joins`, which are tokenised together where they are new."""
        known = self._joins
        new = [join for join in joins if join not in known]
        if not new:
            return [known[join] for join in joins]
        fresh = dict(zip(new, self._scale.counts(new), strict=True))
        found = [known[join] if join in known else fresh[join] for join in joins]
        if len(known) + len(fresh) > _KEPT_JOINS:
            known = self._joins = {}
        known.update((join, counts) for join, counts in fresh.items() if len(join) <= _JOIN_CHARS)
        return found


def _closed(part: Span | Tape | Run, *, guess: bool) -> Run:
    match part:
        case Run():
            return part
        case Tape():
            return part.steps.run(part.text, 0, len(part.text)) if guess else part.whole
        case Span(tape, start, end):
            return (tape.steps if guess else tape.seams).run(tape.text, start, end)


class TextCounter(Protocol):
    """Counts texts: all that a prompt is measured with, where nothing better is known of a counter."""

    def text(self, text: str) -> TokenCount:
        """The count of a text alone."""


def gauge_for(counter: TextCounter) -> Gauge:
    """What measures with `counter`: its own gauge where it has one, which remembers."""
    own = getattr(counter, "gauge", None)
    return own if isinstance(own, Gauge) else Gauge(_Asking(counter))


class _Asking:
    """A scale that knows nothing of a counter but its answers, so that only whole texts can be relied on."""

    seam = None

    def __init__(self, counter: TextCounter) -> None:
        self._counter = counter

    def counts(self, texts: Sequence[str]) -> list[Counts]:
        """Tokens, the bound, and whether it was an estimate."""
        counts = [self._counter.text(text) for text in texts]
        return [(count.tokens, count.upper, int(not count.exact)) for count in counts]

    def total(self, counts: Counts) -> TokenCount:
        """The count of a text of which this was answered."""
        tokens, upper, estimates = counts
        return TokenCount(tokens, not estimates, max(upper, tokens))

    def steps(self, text: str, step_chars: int) -> list[tuple[int, Counts]] | None:
        """None: a counter does not show where tokens end."""
        del text, step_chars
        return None
