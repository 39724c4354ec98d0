"""Share of the text needed for a task in a memory view, compared with BM25, embedding and newest-first.

Four sets: the manuals of a bank with 97 tasks, headings of notes queried one at a time and four at once, and
dialogues. The figures are the share of characters of the required lines that are in the text, ignoring
whitespace and heading markers. All methods have the same limits, in gpt-4o tokens as tiktoken counts them.
"""

import math
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import memory_peers
from benchmarks.harness import Cell, Report
from benchmarks.memory_peers import TokenWindow
from benchmarks.memory_sets import NoteSet, Piece, Task, note_sets
from foveate import ViewFormatName
from foveate.memory.memory import Memory

_OURS = "org"
_FORMATS: tuple[ViewFormatName, ...] = ("org", "markdown")
_PEERS = ("bm25", "bm25_stemmed", "embedding", "newest")
# A shorter line is ambiguous: it counts only as a complete line.
_DISTINCTIVE_CHARS = 12
_BEFORE = re.compile(r"^\\?[*#]+ ")
_AFTER = re.compile(r"(?: <<[^<>]*>>| \{#[^{}]*\})?(?: :[\w@:]+:)?(?: \{#[^{}]*\})?$")

Fill = Callable[[Task, int], str]
"""A text for a task that keeps to a limit."""


@dataclass(slots=True)
class MethodResult:
    """Text that a method put into a window of one size, by task."""

    shares: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return statistics.mean(self.shares)

    def ahead_of(self, other: "MethodResult") -> list[float]:
        """Return the difference for each task."""
        return [mine - theirs for mine, theirs in zip(self.shares, other.shares, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetResult:
    """Results of one set, by method and limit."""

    notes: NoteSet
    found: Mapping[tuple[str, int], MethodResult]
    bounds: Mapping[int, float]
    """What the largest share could be at each limit."""


FIGURES = (
    "<notes>_<limit>",
    "<notes>_<limit>_markdown",
    "<notes>_<limit>_largest_possible",
    "<notes>_<limit>_over_<peer>",
    "over_the_limit",
    "load_before",
)


def run(data: Path | None) -> Report:
    """Return shares, and how they compare."""
    load = os.getloadavg()[0]
    window = TokenWindow()
    results = [_measure(notes, window) for notes in note_sets(data)]
    figures: dict[str, float] = {}
    for result in results:
        figures |= _figures(result)
    figures |= {"over_the_limit": sum(map(_count_over_limit, results)), "load_before": load}
    return Report(
        figures={name: round(value, 4) for name, value in figures.items()},
        peers={
            peer: {
                f"{result.notes.name}_{limit}": round(result.found[peer, limit].mean, 4)
                for result in results
                for limit in result.notes.limits
            }
            for peer in _PEERS
        },
        rows=[*(row for result in results for row in _rows(result)), *_aims(results)],
    )


def _measure(notes: NoteSet, window: TokenWindow) -> SetResult:
    texts = [f"# {piece.title}\n\n{piece.text}" if piece.title else piece.text for piece in notes.pieces]
    sizes = [window.count(text) for text in texts]
    required_lines = [_required_lines(notes.pieces, task) for task in notes.tasks]
    method_results: dict[tuple[str, int], MethodResult] = {}
    # Cached vectors would make the first query too fast.
    with tempfile.TemporaryDirectory() as folder:
        notes.write(Path(folder))
        memory = Memory.load(folder)
        for name, fill in {**_our_methods(memory), **_peer_methods(notes.pieces, texts, sizes, window)}.items():
            for limit in notes.limits:
                method_results[name, limit] = _fill_all(fill, notes.tasks, required_lines, limit, window)
    needed = [sum(sizes[number] for number in task.required) for task in notes.tasks]
    bounds = {
        limit: statistics.mean(min(1.0, limit / needed_tokens) for needed_tokens in needed)
        for limit in notes.limits
    }
    return SetResult(notes=notes, found=method_results, bounds=bounds)


def _our_methods(memory: Memory) -> dict[str, Fill]:
    def fill(form: ViewFormatName) -> Fill:
        return lambda task, limit: memory.render(query=task.query, limit_tokens=limit, format=form).text

    return {form: fill(form) for form in _FORMATS}


def _peer_methods(
    pieces: Sequence[Piece], texts: Sequence[str], sizes: Sequence[int], window: TokenWindow
) -> dict[str, Fill]:
    rankings = {
        "bm25": memory_peers.bm25_ranking(texts, stemmed=False),
        "bm25_stemmed": memory_peers.bm25_ranking(texts, stemmed=True),
        "embedding": memory_peers.embedding_ranking(texts),
        "newest": memory_peers.newest_ranking([piece.modified for piece in pieces]),
    }

    def fill(ranked: memory_peers.Ranking) -> Fill:
        return lambda task, limit: window.pack(texts, sizes, ranked(task.query), limit)

    return {name: fill(ranked) for name, ranked in rankings.items()}


def _fill_all(
    fill: Fill, tasks: Sequence[Task], required_lines: Sequence[Sequence[str]], limit: int, window: TokenWindow
) -> MethodResult:
    shares = MethodResult()
    for task, lines in zip(tasks, required_lines, strict=True):
        started = time.perf_counter()
        text = fill(task, limit)
        shares.seconds.append(time.perf_counter() - started)
        shares.shares.append(found_share(lines, text))
        shares.tokens.append(window.count(text))
    return shares


def _required_lines(pieces: Sequence[Piece], task: Task) -> list[str]:
    return [
        line
        for number in sorted(task.required)
        for line in bare_lines(f"{pieces[number].title}\n{pieces[number].text}")
    ]


def bare_lines(text: str) -> list[str]:
    """Return non-blank lines with normalized whitespace and without heading or list markers."""
    spaced = (" ".join(line.split()) for line in text.splitlines())
    return [bare for line in spaced if (bare := _BEFORE.sub("", line))]


def found_share(required_lines: Sequence[str], text: str) -> float:
    """Return the share of the characters of these lines that a text contains."""
    lines = bare_lines(text)
    line_set = {*lines, *(_AFTER.sub("", line) for line in lines if line.endswith((">", "}", ":")))}
    joined = "\n".join(lines)
    found_lines = [
        line
        for line in required_lines
        if line in line_set or (len(line) >= _DISTINCTIVE_CHARS and line in joined)
    ]
    return sum(map(len, found_lines)) / sum(map(len, required_lines))


def _figures(result: SetResult) -> dict[str, float]:
    figures: dict[str, float] = {}
    for limit in result.notes.limits:
        name = f"{result.notes.name}_{limit}"
        ours = result.found[_OURS, limit]
        figures[name] = ours.mean
        figures[f"{name}_markdown"] = result.found["markdown", limit].mean
        figures[f"{name}_largest_possible"] = result.bounds[limit]
        for peer in _PEERS:
            figures[f"{name}_over_{peer}"] = ours.mean / max(result.found[peer, limit].mean, 1e-4)
    return figures


def _rows(result: SetResult) -> Iterator[dict[str, Cell]]:
    """Return every method and our lead over it: in shares, in standard errors, in tasks."""
    for (method, limit), rows in result.found.items():
        ahead = result.found[_OURS, limit].ahead_of(rows)
        row: dict[str, Cell] = {
            "set": result.notes.name,
            "tasks": len(rows.shares),
            "limit": limit,
            "method": method,
            "share": round(rows.mean, 4),
            "standard_error": round(_standard_error(rows.shares), 4),
            "tokens": round(statistics.mean(rows.tokens)),
            "most_tokens": max(rows.tokens),
            "median_ms": round(statistics.median(rows.seconds) * 1000, 2),
        }
        if method != _OURS:
            row |= {
                "ours_ahead": round(statistics.mean(ahead), 4),
                "ahead_in_standard_errors": _ratio(statistics.mean(ahead), _standard_error(ahead)),
                "won": sum(lead > 0 for lead in ahead),
                "lost": sum(lead < 0 for lead in ahead),
            }
        yield row


def _aims(results: Sequence[SetResult]) -> Iterator[dict[str, Cell]]:
    for result in results:
        for limit in result.notes.limits:
            ours = result.found[_OURS, limit].mean
            for peer in _PEERS:
                yield {
                    "set": result.notes.name,
                    "limit": limit,
                    "method": peer,
                    "aim": "ours is ahead",
                    "met": ours > result.found[peer, limit].mean,
                }


def _count_over_limit(result: SetResult) -> int:
    """Count our texts that exceed the limit."""
    return sum(
        tokens > limit
        for (method, limit), found in result.found.items()
        for tokens in found.tokens
        if method in _FORMATS
    )


def _standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def _ratio(value: float, by: float) -> float | None:
    return round(value / by, 2) if by else None
