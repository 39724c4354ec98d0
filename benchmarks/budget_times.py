"""Times of assembling a prompt: Foveate, cold and warm, and its peers on the same texts."""

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
    Input,
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
# Tokens and number of rounds; every round has its own texts.
SIZES = {10_000: 5, 100_000: 3, 500_000: 2, 2_000_000: 2}
# Limit as a share of all tokens: everything fits, or a third does.
LIMITS = {"fits": 1.01, "cut": 2 / 3}
# A slower peer runs in one round only.
_SLOW_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One size and limit: seconds of each contender by round, and the share of the limit that it used.

    Foveate is `cold` if it has seen none of the texts, and `warm` if it has seen all. Contenders in `stopped`
    took longer than recorded. Contenders that were stopped at a smaller size are in `left_out`: they would take
    longer than that.
    """

    measure: str
    texts: int
    tokens: int
    limit: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)

    def median(self, contender: str) -> float:
        """Return the median seconds of a contender."""
        return statistics.median(self.seconds[contender])

    def speedup(self, over: str, *, of: str) -> float:
        """Return how many times as fast Foveate is in the median round; at least, if the peer was stopped."""
        pairs = zip(self.seconds[over], self.seconds[of], strict=False)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def measure_cells(windows: Windows, count: Count) -> list[Cell]:
    """Measure a cell for every number of texts, size and limit: as sections, and as one history."""
    cells: list[Cell] = []
    for measure, one_round in {"sections": _sections_round, "history": _history_round}.items():
        _fill(
            Cell(measure=measure, texts=10, tokens=1000, limit="cut"), one_round, 1, windows, count
        )  # warm-up
        for texts in TEXTS:
            for limit in LIMITS:
                too_slow: set[str] = set()
                for tokens, rounds in SIZES.items():
                    cell = Cell(measure=measure, texts=texts, tokens=tokens, limit=limit, left_out=too_slow)
                    _fill(cell, one_round, rounds, windows, count)
                    too_slow = too_slow | cell.stopped
                    cells.append(cell)
    return cells


def time_assembly(cell: Cell, contender: str, sections: Sequence[Section], limit_tokens: int) -> None:
    """Record how long Foveate takes."""
    budget = Budget(total_tokens=limit_tokens)
    started = time.perf_counter()
    prompt = foveate.assemble(sections, budget, model=MODEL)
    cell.seconds.setdefault(contender, []).append(time.perf_counter() - started)
    cell.used[contender] = prompt.tokens / limit_tokens


def growth_exponent(cells: Sequence[Cell], contender: str) -> float:
    """Return the exponent with which time grows with size: the slope of a line through the logarithms."""
    sizes = [math.log(cell.tokens) for cell in cells]
    times = [math.log(cell.median(contender)) for cell in cells]
    return statistics.linear_regression(sizes, times).slope


def _fill(
    cell: Cell, one_round: Callable[[Cell, Case, Count], None], rounds: int, windows: Windows, count: Count
) -> None:
    share = LIMITS[cell.limit]
    new_cases = cases(windows, texts=cell.texts, tokens=cell.tokens, share=share, count=count)
    for case in islice(new_cases, rounds):
        one_round(cell, case, count)


def _sections_round(cell: Cell, case: Case, count: Count) -> None:
    time_assembly(cell, "cold", case.sections(), case.limit_tokens)
    time_assembly(cell, "warm", case.sections(), case.limit_tokens - 1)  # another prompt with the same texts
    for peer in (cutoff_search, popping_lines):
        _time_contender(cell, peer, case.sections(), case.limit_tokens, count)


def _history_round(cell: Cell, case: Case, count: Count) -> None:
    time_assembly(cell, "cold", case.history(), case.limit_tokens)
    time_assembly(cell, "warm", case.history(), case.limit_tokens - 1)
    _time_contender(cell, trim_messages, messages(case.texts), case.limit_tokens, count)


def _time_contender(cell: Cell, peer: Peer[Input], value: Input, limit_tokens: int, count: Count) -> None:
    contender = peer.__name__
    seconds = cell.seconds.setdefault(contender, [])
    if contender in cell.left_out:
        seconds.append(TIMEOUT_SECONDS)
    elif max(seconds, default=0) < _SLOW_SECONDS:
        finish = time_peer(peer, value, limit_tokens, count)
        seconds.append(finish.seconds)
        if finish.retained is None:
            cell.stopped.add(contender)
        elif len(seconds) == 1:
            cell.used[contender] = sum(map(count, finish.retained)) / limit_tokens
