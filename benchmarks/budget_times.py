"""Times of putting a prompt together: ours, cold and warm, and those of the peers on the same texts."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import foveate
from benchmarks.budget_cases import Case, Count, Windows, cases
from benchmarks.budget_peers import (
    TIMEOUT_SECONDS,
    Given,
    Peer,
    cutoff_search,
    messages,
    popping_lines,
    time_peer,
    trim_messages,
)
from foveate.budget import Budget, Section

MODEL = "gpt-4o"
TEXTS = (10, 100, 1000)
# How many tokens, and how many rounds; every round has texts of its own.
SIZES = {10_000: 5, 100_000: 3, 500_000: 2, 2_000_000: 2}
# The limit over the tokens of the whole: nothing has to go, or a third.
LIMITS = {"fits": 1.01, "cut": 2 / 3}
# A peer that takes longer than this runs in one round only.
_SLOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One size and limit: seconds of each contender by round, and the share of the limit that it used.

    Ours is `cold` where no text was seen before, and `warm` where all of them were. Who was `stopped` took
    longer than is told, and who was stopped at a smaller size is `left_out`: it would take longer than that.
    """

    measure: str
    texts: int
    tokens: int
    limit: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)

    def median(self, who: str) -> float:
        """The usual seconds of one."""
        return statistics.median(self.seconds[who])

    def speedup(self, over: str, *, of: str) -> float:
        """How many times as fast ours is in the median round; at least, where the other was stopped."""
        pairs = zip(self.seconds[over], self.seconds[of], strict=False)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def measure_cells(windows: Windows, count: Count) -> list[Cell]:
    """A cell for every number of texts, size and limit: as sections, and as one history."""
    found: list[Cell] = []
    for measure, one_round in {"sections": _sections_round, "history": _history_round}.items():
        _fill(
            Cell(measure=measure, texts=10, tokens=1000, limit="cut"), one_round, 1, windows, count
        )  # warms up
        for texts in TEXTS:
            for limit in LIMITS:
                too_slow: set[str] = set()
                for tokens, rounds in SIZES.items():
                    cell = Cell(measure=measure, texts=texts, tokens=tokens, limit=limit, left_out=too_slow)
                    _fill(cell, one_round, rounds, windows, count)
                    too_slow = too_slow | cell.stopped
                    found.append(cell)
    return found


def time_assembly(cell: Cell, who: str, sections: Sequence[Section], limit_tokens: int) -> None:
    """Notes how long ours takes."""
    budget = Budget(total_tokens=limit_tokens)
    started = time.perf_counter()
    prompt = foveate.assemble(sections, budget, model=MODEL)
    cell.seconds.setdefault(who, []).append(time.perf_counter() - started)
    cell.used[who] = prompt.tokens / limit_tokens


def growth_exponent(cells: Sequence[Cell], who: str) -> float:
    """The power of the size that time grows with: the slope of the line through their logarithms."""
    sizes = [math.log(cell.tokens) for cell in cells]
    times = [math.log(cell.median(who)) for cell in cells]
    return statistics.linear_regression(sizes, times).slope


def _fill(
    cell: Cell, one_round: Callable[[Cell, Case, Count], None], rounds: int, windows: Windows, count: Count
) -> None:
    share = LIMITS[cell.limit]
    made = cases(windows, texts=cell.texts, tokens=cell.tokens, share=share, count=count)
    for case in islice(made, rounds):
        one_round(cell, case, count)


def _sections_round(cell: Cell, case: Case, count: Count) -> None:
    time_assembly(cell, "cold", case.sections(), case.limit_tokens)
    time_assembly(cell, "warm", case.sections(), case.limit_tokens - 1)  # another prompt of the same texts
    for peer in (cutoff_search, popping_lines):
        _contend(cell, peer, case.sections(), case.limit_tokens, count)


def _history_round(cell: Cell, case: Case, count: Count) -> None:
    time_assembly(cell, "cold", case.history(), case.limit_tokens)
    time_assembly(cell, "warm", case.history(), case.limit_tokens - 1)
    _contend(cell, trim_messages, messages(case.texts), case.limit_tokens, count)


def _contend(cell: Cell, peer: Peer[Given], given: Given, limit_tokens: int, count: Count) -> None:
    who = peer.__name__
    taken = cell.seconds.setdefault(who, [])
    if who in cell.left_out:
        taken.append(TIMEOUT_SECONDS)
    elif max(taken, default=0) < _SLOW_SECONDS:
        finish = time_peer(peer, given, limit_tokens, count)
        taken.append(finish.seconds)
        if finish.kept is None:
            cell.stopped.add(who)
        elif len(taken) == 1:
            cell.used[who] = sum(map(count, finish.kept)) / limit_tokens
