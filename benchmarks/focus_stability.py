"""Share of a view that changes when the focus moves to the next heading, and position of the first change.

Notes are the real ones of worg, views have 8,000 tokens. Both headings have under 500 tokens of their own.
"""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import Cell, Report
from benchmarks.memory_peers import TokenWindow
from benchmarks.memory_sets import WORG, read_archive
from benchmarks.recorded import DATA
from foveate import ViewFormatName
from foveate.memory.memory import Memory
from foveate.memory.nodes import Node

_SEED = 20261115
_PAIRS = 120
_LIMIT_TOKENS = 8000
_MAX_FOCUS_TOKENS = 500
# One query for all, as in a conversation on one subject while the focus moves.
_QUERY = "how do I schedule a repeating task and see it in the agenda?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Change from the view of one focus to that of the next, in bytes."""

    size: int
    changed_share: float
    """Share of the bytes of both views in lines that only one of them has."""
    outside_share: float
    """Share of the new view outside the common prefix and the common suffix."""
    first_share: float
    """Position of the first changed byte as a share of the new view; 1 if nothing changes."""
    new: int
    """Bytes in lines that the previous view does not have."""
    new_late: float
    """Number of these bytes in the last half of the new view."""
    same_file: bool
    seconds: float


FIGURES = (
    "pairs",
    "changed_mean",
    "changed_median",
    "changed_p90",
    "changed_most",
    "changed_under_15_percent_share",
    "outside_prefix_and_suffix_mean",
    "outside_prefix_and_suffix_median",
    "first_changed_byte_mean",
    "first_changed_byte_median",
    "first_changed_byte_in_last_half_share",
    "changed_bytes_in_last_half_share",
    "render_ms_median",
    "same_file_pairs",
    "same_file_changed_mean",
    "same_file_changed_median",
    "same_file_changed_p90",
    "same_file_changed_most",
    "same_file_changed_under_15_percent_share",
    "same_file_outside_prefix_and_suffix_mean",
    "same_file_outside_prefix_and_suffix_median",
    "same_file_first_changed_byte_mean",
    "same_file_first_changed_byte_median",
    "same_file_first_changed_byte_in_last_half_share",
    "same_file_changed_bytes_in_last_half_share",
    "same_file_render_ms_median",
    "next_file_pairs",
    "next_file_changed_mean",
    "next_file_changed_median",
    "next_file_changed_p90",
    "next_file_changed_most",
    "next_file_changed_under_15_percent_share",
    "next_file_outside_prefix_and_suffix_mean",
    "next_file_outside_prefix_and_suffix_median",
    "next_file_first_changed_byte_mean",
    "next_file_first_changed_byte_median",
    "next_file_first_changed_byte_in_last_half_share",
    "next_file_changed_bytes_in_last_half_share",
    "next_file_render_ms_median",
    "markdown_pairs",
    "markdown_changed_mean",
    "markdown_changed_median",
    "markdown_changed_p90",
    "markdown_changed_most",
    "markdown_changed_under_15_percent_share",
    "markdown_outside_prefix_and_suffix_mean",
    "markdown_outside_prefix_and_suffix_median",
    "markdown_first_changed_byte_mean",
    "markdown_first_changed_byte_median",
    "markdown_first_changed_byte_in_last_half_share",
    "markdown_changed_bytes_in_last_half_share",
    "markdown_render_ms_median",
    "with_query_pairs",
    "with_query_changed_mean",
    "with_query_changed_median",
    "with_query_changed_p90",
    "with_query_changed_most",
    "with_query_changed_under_15_percent_share",
    "with_query_outside_prefix_and_suffix_mean",
    "with_query_outside_prefix_and_suffix_median",
    "with_query_first_changed_byte_mean",
    "with_query_first_changed_byte_median",
    "with_query_first_changed_byte_in_last_half_share",
    "with_query_changed_bytes_in_last_half_share",
    "with_query_render_ms_median",
    "load_before",
)


def run(data: Path | None) -> Report:
    """Return shares of the bytes, over random pairs of headings."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        for name, _, content in read_archive((data or DATA) / WORG):
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        memory = Memory.load(folder)
        pairs = _pairs(memory.nodes)
        memory.render(focus=pairs[0][0], limit_tokens=_LIMIT_TOKENS)  # the first one embeds everything
        moves = {
            "focus": [_measure_move(memory, pair, "org", None) for pair in pairs],
            "focus_markdown": [_measure_move(memory, pair, "markdown", None) for pair in pairs[: _PAIRS // 3]],
            "focus_and_query": [_measure_move(memory, pair, "org", _QUERY) for pair in pairs[: _PAIRS // 3]],
        }
    figures = {
        **_figures(moves["focus"], ""),
        **_figures([move for move in moves["focus"] if move.same_file], "same_file_"),
        **_figures([move for move in moves["focus"] if not move.same_file], "next_file_"),
        **_figures(moves["focus_markdown"], "markdown_"),
        **_figures(moves["focus_and_query"], "with_query_"),
        "load_before": load,
    }
    figures = {name: round(value, 4) for name, value in figures.items()}
    return Report(
        figures=figures, rows=[*(_row(kind, move) for kind in moves for move in moves[kind]), *_aims(figures)]
    )


def _pairs(nodes: Sequence[Node]) -> list[tuple[Node, Node]]:
    window = TokenWindow()
    small = [
        node
        for node in nodes
        if node.parent and window.count(f"{node.title}\n{node.content}") < _MAX_FOCUS_TOKENS
    ]
    both = list(pairwise(small))
    return random.Random(_SEED).sample(both, min(_PAIRS, len(both)))


def _measure_move(memory: Memory, pair: tuple[Node, Node], format: ViewFormatName, query: str | None) -> Move:  # noqa: A002
    started = time.perf_counter()
    before, after = (
        memory.render(focus=node, query=query, limit_tokens=_LIMIT_TOKENS, format=format).text.encode()
        for node in pair
    )
    seconds = (time.perf_counter() - started) / 2
    prefix = _common_prefix(before, after)
    suffix = min(_common_prefix(before[::-1], after[::-1]), min(len(before), len(after)) - prefix)
    removed, added = _changed_lines(before, after)
    half = len(after) / 2
    late = sum(max(0.0, end - max(start, half)) for start, end in added)
    new = sum(end - start for start, end in added)
    return Move(
        size=len(after),
        changed_share=(removed + new) / (len(before) + len(after)),
        outside_share=1 - (prefix + suffix) / len(after),
        first_share=prefix / len(after) if before != after else 1.0,
        new=new,
        new_late=late,
        same_file=pair[0].document is pair[1].document,
        seconds=seconds,
    )


def _common_prefix(first: bytes, second: bytes) -> int:
    """Return the length of the common prefix in bytes."""
    size = min(len(first), len(second))
    return next((at for at in range(size) if first[at] != second[at]), size)


def _changed_lines(before: bytes, after: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Return the number of bytes in removed lines, and the positions of new lines."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    starts = [0]
    for line in new:
        starts.append(starts[-1] + len(line))
    removed, added = 0, []
    for what, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what != "equal":
            removed += sum(map(len, old[i:j]))
            added.append((starts[k], starts[m]))
    return removed, added


def _figures(moves: Sequence[Move], prefix: str) -> dict[str, float]:
    if not moves:
        return {f"{prefix}pairs": 0}
    changed = [move.changed_share for move in moves]
    first = [move.first_share for move in moves]
    return {
        f"{prefix}pairs": len(moves),
        f"{prefix}changed_mean": statistics.mean(changed),
        f"{prefix}changed_median": statistics.median(changed),
        f"{prefix}changed_p90": sorted(changed)[int(len(changed) * 0.9)],
        f"{prefix}changed_most": max(changed),
        f"{prefix}changed_under_15_percent_share": statistics.mean(each < 0.15 for each in changed),
        f"{prefix}outside_prefix_and_suffix_mean": statistics.mean(move.outside_share for move in moves),
        f"{prefix}outside_prefix_and_suffix_median": statistics.median(move.outside_share for move in moves),
        f"{prefix}first_changed_byte_mean": statistics.mean(first),
        f"{prefix}first_changed_byte_median": statistics.median(first),
        f"{prefix}first_changed_byte_in_last_half_share": statistics.mean(each >= 0.5 for each in first),
        f"{prefix}changed_bytes_in_last_half_share": sum(move.new_late for move in moves)
        / max(sum(move.new for move in moves), 1),
        f"{prefix}render_ms_median": statistics.median(move.seconds for move in moves) * 1000,
    }


def _row(kind: str, move: Move) -> dict[str, Cell]:
    return {
        "view": kind,
        "bytes": move.size,
        "changed": round(move.changed_share, 4),
        "outside_prefix_and_suffix": round(move.outside_share, 4),
        "first_changed_byte": round(move.first_share, 4),
        "new_bytes": move.new,
        "new_bytes_in_last_half": round(move.new_late),
        "same_file": move.same_file,
        "ms": round(move.seconds * 1000, 2),
    }


def _aims(figures: Mapping[str, float]) -> list[dict[str, Cell]]:
    return [
        {"aim": "changed_mean under 0.15", "met": figures["changed_mean"] < 0.15},
        {
            "aim": "first_changed_byte_in_last_half_share above 0.5",
            "met": figures["first_changed_byte_in_last_half_share"] > 0.5,
        },
        {
            "aim": "changed_bytes_in_last_half_share above 0.5",
            "met": figures["changed_bytes_in_last_half_share"] > 0.5,
        },
    ]
