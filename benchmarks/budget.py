"""Time to assemble a prompt under a limit, compared with peers; growth, savings by cached counts, budget use.

Every text is new, and the same for all contenders. Foveate is `cold` if it has not counted the texts before,
and `warm` if it has. Peers have no cache, so there is one time of each.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import foveate
from benchmarks import budget_peers, budget_times, budget_use, harness
from benchmarks.budget_cases import Count, Windows, cases
from benchmarks.budget_times import LIMITS, MODEL, SIZES, Cell
from benchmarks.budget_use import Use
from benchmarks.corpus import sources
from benchmarks.harness import Report
from benchmarks.tiktoken_peer import o200k
from foveate.budget import Budget

_PEERS = ("cutoff_search", "popping_lines", "trim_messages")
# Exponent that still counts as linear: 8 MB of text do not fit into the CPU caches, 40 KB do.
_LINEAR_EXPONENT = 1.1
_COUNTED_TEXTS, _COUNTED_TOKENS, _COUNTED_ROUNDS = 100, 100_000, 15


FIGURES = (
    "least_speedup_over_<peer>_<state>",
    "median_speedup_over_<peer>_<state>",
    "worst_growth_exponent",
    "growth_exponent_<case>",
    "time_per_token_2m_over_10k_<case>",
    "counted_before_<limit>_over_<peer>",
    "<peer>_100k_ms",
    "right_by_tiktoken_share",
    "used_mean_<cut>",
    "used_p5_<cut>",
    "used_min_<cut>",
    "used_cases_<cut>",
    "joins_not_additive_<kind>",
    "joins_not_additive_<kind>_blank_line_with_what_is_before",
    "cores",
    "load_before",
)


def run(data: Path | None) -> Report:
    """Return ratios, exponents and shares; the targets are rows."""
    load = os.getloadavg()[0]
    encode = o200k()

    def count(text: str) -> int:
        return len(encode(text))

    windows = Windows(sources(data), count)
    cells = budget_times.measure_cells(windows, count)
    uses = {
        "cut_anywhere": budget_use.budget_use(windows, count, lines=False),
        "cut_at_lines": budget_use.budget_use(windows, count, lines=True),
    }
    figures = {
        **_speedups(cells),
        **_growth(cells),
        **_reuse_of_counts(windows, count),
        **_use_figures(uses),
        **_join_figures(windows, count),
        "cores": os.cpu_count() or 1,
        "load_before": load,
    }
    figures = {name: round(value, 4) for name, value in figures.items()}
    return Report(
        figures=figures,
        peers=_peers(cells),
        rows=[*(row for cell in cells for row in _rows(cell)), *_targets(figures)],
    )


def _speedups(cells: Sequence[Cell]) -> dict[str, float]:
    """Return the minimum over all sizes; if a peer was stopped, the ratio is a lower bound."""
    figures = {}
    for peer in _PEERS:
        for state in ("cold", "warm"):
            ratios = [cell.speedup(peer, of=state) for cell in cells if peer in cell.seconds]
            figures[f"least_speedup_over_{peer}_{state}"] = min(ratios)
            figures[f"median_speedup_over_{peer}_{state}"] = statistics.median(ratios)
    return figures


def _growth(cells: Sequence[Cell]) -> dict[str, float]:
    """Measure how time grows from the smallest to the largest size; the worst of 10, 100 and 1,000 texts."""
    smallest, largest = min(SIZES), max(SIZES)
    exponents: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    for measure, limit, texts in dict.fromkeys((cell.measure, cell.limit, cell.texts) for cell in cells):
        line = [cell for cell in cells if (cell.measure, cell.limit, cell.texts) == (measure, limit, texts)]
        for state in ("cold", "warm"):
            seconds_per_token = {cell.tokens: cell.median(state) / cell.tokens for cell in line}
            name = f"{measure}_{limit}_{state}"
            exponents.setdefault(name, []).append(budget_times.growth_exponent(line, state))
            ratios.setdefault(name, []).append(seconds_per_token[largest] / seconds_per_token[smallest])
    return {
        "worst_growth_exponent": max(map(max, exponents.values())),
        **{f"growth_exponent_{name}": max(values) for name, values in exponents.items()},
        **{f"time_per_token_2m_over_10k_{name}": max(values) for name, values in ratios.items()},
    }


def _reuse_of_counts(windows: Windows, count: Count) -> dict[str, float]:
    """Compare assembling texts that were counted before with tokenizing as many new ones.

    The texts are copies, as if they had been read again; `kept` are the identical objects. The result is the
    median round, since other load affects both.
    """
    counters: Mapping[str, Callable[[str], object]] = {
        "tokenising": lambda text: foveate.count(text, MODEL),
        "tiktoken": count,
    }
    cell = Cell(measure="counted before", texts=_COUNTED_TEXTS, tokens=_COUNTED_TOKENS, limit="")
    new_cases = cases(windows, texts=_COUNTED_TEXTS, tokens=_COUNTED_TOKENS, share=1, count=count)
    for _ in range(_COUNTED_ROUNDS):
        new_case, counted_case = next(new_cases), next(new_cases)
        same_sections = counted_case.sections()
        foveate.assemble(same_sections, Budget(total_tokens=2 * counted_case.tokens), model=MODEL)
        for limit, share in LIMITS.items():
            budget_times.time_assembly(cell, limit, counted_case.sections(), int(counted_case.tokens * share))
            budget_times.time_assembly(cell, f"{limit}_kept", same_sections, int(counted_case.tokens * share))
        for name, counter in counters.items():
            started = time.perf_counter()
            for text in new_case.texts:
                counter(text)
            cell.seconds.setdefault(name, []).append(time.perf_counter() - started)
    return {
        **{
            f"counted_before_{limit}_over_{name}": 1 / cell.speedup(name, of=limit)
            for limit in (*LIMITS, *(f"{limit}_kept" for limit in LIMITS))
            for name in counters
        },
        **{f"{name}_100k_ms": cell.median(name) * 1000 for name in counters},
    }


def _use_figures(uses: Mapping[str, Use]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, use in uses.items():
        figures |= {
            f"used_mean_{name}": statistics.mean(use.used),
            f"used_p5_{name}": statistics.quantiles(use.used, n=20)[0],
            f"used_min_{name}": min(use.used),
            f"used_cases_{name}": len(use.used),
        }
    return {"right_by_tiktoken_share": min(use.right for use in uses.values()), **figures}


def _join_figures(windows: Windows, count: Count) -> dict[str, float]:
    figures = {}
    for kind in ("prose", "code", "json"):
        separate, with_preceding = budget_use.nonadditive_join_share(windows, kind, count)
        figures[f"joins_not_additive_{kind}"] = separate
        figures[f"joins_not_additive_{kind}_blank_line_with_what_is_before"] = with_preceding
    return figures


def _targets(figures: Mapping[str, float]) -> list[dict[str, harness.Cell]]:
    """Return each target and the measured value."""
    maximums = {
        "worst_growth_exponent": _LINEAR_EXPONENT,
        **{f"counted_before_{limit}_over_tokenising": 0.05 for limit in (*LIMITS, "fits_kept", "cut_kept")},
    }
    minimums = {
        **{f"least_speedup_over_{peer}_cold": 1.0 for peer in _PEERS},
        "used_mean_cut_anywhere": 0.99,
        "right_by_tiktoken_share": 1.0,
    }
    return [
        *(_target(name, figures[name] <= maximum, f"at most {maximum}") for name, maximum in maximums.items()),
        *(_target(name, figures[name] >= minimum, f"at least {minimum}") for name, minimum in minimums.items()),
    ]


def _target(name: str, met: bool, bound: str) -> dict[str, harness.Cell]:
    return {"measure": "aim", "met": met, "note": f"{name} {bound}"}


def _peers(cells: Sequence[Cell]) -> dict[str, dict[str, object]]:
    """Return milliseconds of each peer; a lower bound for peers that were stopped."""
    peers: dict[str, dict[str, object]] = {"priompt": {"not_run": budget_peers.PRIOMPT_NOT_RUN}}
    for peer in _PEERS:
        peers[peer] = {"stopped_after_seconds": budget_peers.TIMEOUT_SECONDS}
        for cell in cells:
            if peer in cell.seconds and peer not in cell.left_out:
                peers[peer][f"ms_{cell.measure}_{cell.texts}_{cell.tokens}_{cell.limit}"] = _ms(cell, peer)
    return peers


def _ms(cell: Cell, contender: str) -> float:
    return round(cell.median(contender) * 1000, 3)


def _rows(cell: Cell) -> Iterator[dict[str, harness.Cell]]:
    """Return a row for each peer: milliseconds, speed-up of a cold run, and share of the limit used."""
    for peer in (peer for peer in _PEERS if peer in cell.seconds):
        left_out, stopped = peer in cell.left_out, peer in cell.stopped
        used = cell.used.get(peer)
        yield {
            "measure": cell.measure,
            "texts": cell.texts,
            "tokens": cell.tokens,
            "limit": cell.limit,
            "cold_ms": _ms(cell, "cold"),
            "warm_ms": _ms(cell, "warm"),
            "used": round(cell.used["cold"], 4),
            "peer": peer,
            "peer_ms": None if left_out else _ms(cell, peer),
            "peer_used": used if used is None else round(used, 4),
            "speedup": round(cell.speedup(peer, of="cold"), 1),
            "note": "left out: too slow before" if left_out else "stopped" if stopped else "",
        }
