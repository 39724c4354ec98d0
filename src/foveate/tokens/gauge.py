"""How long a text is that is joined from parts of measured ones: known before it is joined.

What lies between seams was counted when each text was measured. What is tokenised again is what meets where two
parts meet, from the last seam of the one to the first seam of the other, and that is remembered as well.
"""

import math
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import sub
from threading import Lock
from typing import NamedTuple, Protocol

from foveate.errors import BadOption
from foveate.tokens.courtesy import courtesy
from foveate.tokens.rendering import Counts, Scale
from foveate.tokens.tape import PIECE_CHARS, Run, Tape, measured, summed
from foveate.values import NOTHING, TokenCount

# Texts that come with every prompt are measured once; together they are not more than this.
_KEPT_CHARS = 16 * 1024 * 1024
_KEPT_TEXTS = 16 * 1024
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

    @property
    def has_seams(self) -> bool:
        """Whether anything but the count of a whole text can be relied on."""
        return self._scale.seam is not None

    def tape(self, text: str) -> Tape:
        """`text` measured, or remembered from when it was."""
        return self.tapes((text,))[0]

    def tapes(self, texts: Sequence[str]) -> list[Tape]:
        """Each text measured, or remembered from when it was; those that are new side by side."""
        with self._lock:
            kept = self._tapes
            found = list(map(kept.get, texts))
            for text, tape in zip(texts, found, strict=True):
                if tape is not None:
                    kept.move_to_end(text)
        new = list(dict.fromkeys(text for text, tape in zip(texts, found, strict=True) if tape is None))
        if not new:
            return [tape for tape in found if tape is not None]
        with courtesy(sum(map(len, new))):
            fresh = dict(zip(new, measured(new, self._scale), strict=True))
        self._keep(fresh, kept)
        return [fresh[text] if tape is None else tape for text, tape in zip(texts, found, strict=True)]

    def _keep(self, fresh: Mapping[str, Tape], kept: OrderedDict[str, Tape]) -> None:
        with self._lock:
            if kept is not self._tapes:
                return  # all was dropped while these were measured
            for text, tape in fresh.items():
                if text not in kept:
                    kept[text] = tape
                    self._kept_chars += len(text)
            while self._kept_chars > _KEPT_CHARS or len(kept) > _KEPT_TEXTS:
                self._kept_chars -= len(kept.popitem(last=False)[0])

    def drop(self) -> None:
        """Forget every text, also those that are being measured now; who measures them is not disturbed."""
        with self._lock:
            # New ones, and not emptied ones: whoever is counting goes on with what it has.
            self._tapes, self._kept_chars, self._joins = OrderedDict(), 0, {}

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
            # Most parts are whole texts, and there can be thousands: no call for those.
            run = part.whole if isinstance(part, Tape) and not guess else _closed(part, guess=guess)
            waiting.append(run.head)
            if run.counts is not None:
                if head is None:
                    head = "".join(waiting)
                else:
                    joins.append("".join(waiting))
                counted.append(run.counts)
                waiting = [run.tail]
        if head is None:
            return Run("".join(waiting))
        return Run(head, summed(counted + self._counts(joins)), "".join(waiting))

    def closed(self, parts: Iterable[Part]) -> Run:
        """`parts` joined to a run that will be asked for often: little of it stays open, if there are seams."""
        run = self.run(parts)
        if not self.has_seams or len(run.head) + len(run.tail) <= PIECE_CHARS:
            return run
        head, tail = measured((run.head, run.tail), self._scale)
        return self.run((head, tail) if run.counts is None else (head, Run("", run.counts), tail))

    def count_joined(self, tapes: Sequence[Tape], separator: str) -> TokenCount:
        """How many tokens whole texts are, joined by `separator`: the most frequent case of `count`."""
        runs = [tape.whole for tape in tapes]
        counted = [run.counts for run in runs if run.counts is not None]
        if not counted:
            return self.count([separator.join([run.head for run in runs])])
        if len(counted) < len(runs):
            return self.count([part for tape in tapes for part in (separator, tape)][1:])
        joins = [before.tail + separator + after.head for before, after in pairwise(runs)]
        ends = [end for end in (runs[0].head, runs[-1].tail) if end]
        return self._scale.total(summed(counted + self._counts(joins + ends)))

    def count(self, parts: Iterable[Part], *, guess: bool = False) -> TokenCount:
        """How many tokens `parts` are, joined and counted whole."""
        run = self.run(parts, guess=guess)
        counts = self._counts([text for text in (run.head, run.tail) if text])
        if run.counts is not None:
            counts.append(run.counts)
        return self._scale.total(summed(counts)) if counts else NOTHING

    def reach(self, span: Span, room_tokens: int, *, from_right: bool = False) -> int:
        """About how many characters of `span` take up that room, from one end; a place to begin looking."""
        places, sums = span.tape.steps
        first, last = bisect_left(places, span.start), bisect_right(places, span.end) - 1
        size = span.end - span.start
        room_tokens = max(room_tokens, 0)
        if first >= last:
            return size // 2
        origin = last if from_right else first

        def tokens(steps: int) -> int:
            at = last - steps if from_right else first + steps
            return self._scale.total(tuple(map(abs, map(sub, sums[at], sums[origin])))).upper if steps else 0

        full = bisect_right(range(last - first + 1), room_tokens, key=tokens) - 1
        at, beyond = (last - full, last - full - 1) if from_right else (first + full, first + full + 1)
        chars = abs(places[at] - places[origin])
        if full < last - first:
            step_tokens = max(tokens(full + 1) - tokens(full), 1)
            chars += abs(places[beyond] - places[at]) * (room_tokens - tokens(full)) // step_tokens
        return min(max(chars, 0), size)

    def _counts(self, joins: Sequence[str]) -> list[Counts]:
        """What is counted in each of `joins`, which are tokenised together where they are new."""
        known = self._joins
        try:
            return [known[join] for join in joins]
        except KeyError:
            new = [join for join in joins if join not in known]
        fresh = dict(zip(new, self._scale.counts(new), strict=True))
        found = [known[join] if join in known else fresh[join] for join in joins]
        if len(known) + len(fresh) > _KEPT_JOINS:
            with self._lock:
                if known is self._joins:
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
    """What measures with `counter`: its own gauge where it has one, which remembers.

    Raises:
        BadOption: it cannot count texts.
    """
    if not callable(getattr(counter, "text", None)):
        raise BadOption(f"a counter has a method text(text) that gives a TokenCount; {counter!r} has none")
    own = getattr(counter, "gauge", None)
    return own if isinstance(own, Gauge) else Gauge(_Asking(counter))


class _Asking:
    """A scale that knows nothing of a counter but its answers, so that only whole texts can be relied on."""

    seam = None

    def __init__(self, counter: TextCounter) -> None:
        self._counter = counter

    def counts(self, texts: Sequence[str]) -> list[Counts]:
        """Tokens, the bound, and whether it was an estimate."""
        return [_answer(self._counter.text(text)) for text in texts]

    def total(self, counts: Counts) -> TokenCount:
        """The count of a text of which this was answered."""
        tokens, upper, estimates = counts
        return TokenCount(tokens, not estimates, max(upper, tokens))

    def steps(self, text: str, step_chars: int) -> list[tuple[int, Counts]] | None:
        """None: a counter does not show where tokens end."""
        del text, step_chars
        return None


def _answer(count: object) -> Counts:
    if not isinstance(count, TokenCount):
        raise BadOption(f"a counter's text(text) gives a TokenCount, not {type(count).__name__}")
    return math.ceil(count.tokens), math.ceil(count.upper), int(not count.exact)
