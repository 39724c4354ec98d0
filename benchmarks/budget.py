"""Putting a prompt together under a limit: time beside others, growth, what counted texts save, budget used.

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
        rows=[*(row for cell in cells for row in _rows(cell)), *_aims(figures)],
    )


def _speedups(cells: Sequence[Cell]) -> dict[str, float]:
    """Return the minimum over all sizes; if a peer was stopped, the ratio is a lower bound."""
    found = {}
    for peer in _PEERS:
        for of in ("cold", "warm"):
            ratios = [cell.speedup(peer, of=of) for cell in cells if peer in cell.seconds]
            found[f"least_speedup_over_{peer}_{of}"] = min(ratios)
            found[f"median_speedup_over_{peer}_{of}"] = statistics.median(ratios)
    return found


def _growth(cells: Sequence[Cell]) -> dict[str, float]:
    """Measure how time grows from the smallest to the largest size; the worst of 10, 100 and 1,000 texts."""
    smallest, largest = min(SIZES), max(SIZES)
    exponents: dict[str, list[float]] = {}
    ratios: dict[str, list[float]] = {}
    for measure, limit, texts in dict.fromkeys((cell.measure, cell.limit, cell.texts) for cell in cells):
        line = [cell for cell in cells if (cell.measure, cell.limit, cell.texts) == (measure, limit, texts)]
        for who in ("cold", "warm"):
            each = {cell.tokens: cell.median(who) / cell.tokens for cell in line}
            name = f"{measure}_{limit}_{who}"
            exponents.setdefault(name, []).append(budget_times.growth_exponent(line, who))
            ratios.setdefault(name, []).append(each[largest] / each[smallest])
    return {
        "worst_growth_exponent": max(map(max, exponents.values())),
        **{f"growth_exponent_{name}": max(found) for name, found in exponents.items()},
        **{f"time_per_token_2m_over_10k_{name}": max(found) for name, found in ratios.items()},
    }


def _reuse_of_counts(windows: Windows, count: Count) -> dict[str, float]:
    """Compare assembling texts that were counted before with tokenizing as many new ones.

    The texts are copies, as if they had been read again; `kept` are the identical objects. The result is the
    median round, since other load affects both.
    """
    ways: Mapping[str, Callable[[str], object]] = {
        "tokenising": lambda text: foveate.count(text, MODEL),
        "tiktoken": count,
    }
    taken = Cell(measure="counted before", texts=_COUNTED_TEXTS, tokens=_COUNTED_TOKENS, limit="")
    made = cases(windows, texts=_COUNTED_TEXTS, tokens=_COUNTED_TOKENS, share=1, count=count)
    for _ in range(_COUNTED_ROUNDS):
        fresh, known = next(made), next(made)
        kept = known.sections()
        foveate.assemble(kept, Budget(total_tokens=2 * known.tokens), model=MODEL)
        for limit, share in LIMITS.items():
            budget_times.time_assembly(taken, limit, known.sections(), int(known.tokens * share))
            budget_times.time_assembly(taken, f"{limit}_kept", kept, int(known.tokens * share))
        for name, way in ways.items():
            started = time.perf_counter()
            for text in fresh.texts:
                way(text)
            taken.seconds.setdefault(name, []).append(time.perf_counter() - started)
    return {
        **{
            f"counted_before_{limit}_over_{name}": 1 / taken.speedup(name, of=limit)
            for limit in (*LIMITS, *(f"{limit}_kept" for limit in LIMITS))
            for name in ways
        },
        **{f"{name}_100k_ms": taken.median(name) * 1000 for name in ways},
    }


def _use_figures(uses: Mapping[str, Use]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, use in uses.items():
        found |= {
            f"used_mean_{name}": statistics.mean(use.used),
            f"used_p5_{name}": statistics.quantiles(use.used, n=20)[0],
            f"used_min_{name}": min(use.used),
            f"used_cases_{name}": len(use.used),
        }
    return {"right_by_tiktoken_share": min(use.right for use in uses.values()), **found}


def _join_figures(windows: Windows, count: Count) -> dict[str, float]:
    found = {}
    for kind in ("prose", "code", "json"):
        three, two = budget_use.nonadditive_join_share(windows, kind, count)
        found[f"joins_not_additive_{kind}"] = three
        found[f"joins_not_additive_{kind}_blank_line_with_what_is_before"] = two
    return found


def _aims(figures: Mapping[str, float]) -> list[dict[str, harness.Cell]]:
    """Return each target and the measured value."""
    at_most = {
        "worst_growth_exponent": _LINEAR_EXPONENT,
        **{f"counted_before_{limit}_over_tokenising": 0.05 for limit in (*LIMITS, "fits_kept", "cut_kept")},
    }
    at_least = {
        **{f"least_speedup_over_{peer}_cold": 1.0 for peer in _PEERS},
        "used_mean_cut_anywhere": 0.99,
        "right_by_tiktoken_share": 1.0,
    }
    return [
        *(_aim(name, figures[name] <= most, f"at most {most}") for name, most in at_most.items()),
        *(_aim(name, figures[name] >= least, f"at least {least}") for name, least in at_least.items()),
    ]


def _aim(name: str, met: bool, bound: str) -> dict[str, harness.Cell]:
    return {"measure": "aim", "met": met, "note": f"{name} {bound}"}


def _peers(cells: Sequence[Cell]) -> dict[str, dict[str, object]]:
    """Return milliseconds of each peer; a lower bound for peers that were stopped."""
    found: dict[str, dict[str, object]] = {"priompt": {"not_run": budget_peers.PRIOMPT_NOT_RUN}}
    for peer in _PEERS:
        found[peer] = {"stopped_after_seconds": budget_peers.TIMEOUT_SECONDS}
        for cell in cells:
            if peer in cell.seconds and peer not in cell.left_out:
                found[peer][f"ms_{cell.measure}_{cell.texts}_{cell.tokens}_{cell.limit}"] = _ms(cell, peer)
    return found


def _ms(cell: Cell, who: str) -> float:
    return round(cell.median(who) * 1000, 3)


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
