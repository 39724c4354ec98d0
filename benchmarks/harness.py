"""Shared parts of benchmarks: reports, discovery, and timing side by side."""

import ast
import importlib
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Cell = str | int | float | bool | None


class BadData(Exception):
    """The data cannot be read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of a benchmark: our figures, the peers' of the same run, and the underlying rows.

    `tables` are rows of other kinds, by title.
    """

    figures: Mapping[str, float]
    peers: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    rows: Sequence[Mapping[str, Cell]] = ()
    tables: Mapping[str, Sequence[Mapping[str, Cell]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark that can be run by name.

    `figures` are the possible figure names of its report; `<word>` stands for a part that depends on data or
    cases.
    """

    name: str
    module: str
    measures: str
    options: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()

    def run(self, data: Path | None, **options: object) -> Report:
        """Run the benchmark; output of the benchmark or its peers goes to standard error."""
        with stdout_on_stderr():
            report = importlib.import_module(self.module).run(data, **options)
        assert isinstance(report, Report)
        return report


def discover() -> dict[str, Benchmark]:
    """Return every benchmark by name, without importing any."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run"]
        for function in functions:
            name = _declared_name(tree) or path.stem.replace("_", "-")
            first_line, *_ = (ast.get_docstring(tree) or "").splitlines() or [""]
            module = f"{__package__}.{path.stem}"
            found[name] = Benchmark(
                name=name,
                module=module,
                measures=first_line,
                options=tuple(argument.arg for argument in function.args.kwonlyargs),
                figures=_declared_figures(tree),
            )
    return dict(sorted(found.items()))


def _declared_name(tree: ast.Module) -> str | None:
    """Read `NAME` of a module whose benchmark is not called like its file."""
    name: str | None = _read_constant(tree, "NAME")
    return name


def _declared_figures(tree: ast.Module) -> tuple[str, ...]:
    return tuple(_read_constant(tree, "FIGURES") or ())


def _read_constant(tree: ast.Module, name: str) -> Any:
    """Read a constant of a module without importing it; None if the module does not define it."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == name for target in node.targets):
            return ast.literal_eval(node.value)
    return None


def fixed_parts(figure: str) -> list[str]:
    """Split the declared name of a figure at its `<words>`."""
    return re.split(r"<[^>]+>", figure)


def undeclared_figures(benchmark: Benchmark, report: Report) -> list[str]:
    """List the figures of a report that its benchmark does not declare in `FIGURES`."""
    patterns = [re.compile(".+".join(map(re.escape, fixed_parts(figure)))) for figure in benchmark.figures]
    return [name for name in report.figures if not any(pattern.fullmatch(name) for pattern in patterns)]


@contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Redirect standard output to standard error, including output of native code and child processes."""
    sys.stdout.flush()
    saved_stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved_stdout, 1)
        os.close(saved_stdout)


def as_json(name: str, report: Report) -> str:
    """Format a report as one JSON object on one line."""
    content = {
        "bench": name,
        "figures": dict(report.figures),
        "peers": {peer: dict(figures) for peer, figures in report.peers.items()},
        "rows": [dict(row) for row in report.rows],
        **(
            {"tables": {title: list(map(dict, rows)) for title, rows in report.tables.items()}}
            if report.tables
            else {}
        ),
    }
    return json.dumps(content, allow_nan=False, ensure_ascii=False)


def as_text(name: str, report: Report) -> str:
    """Format a report for readers."""
    blocks = [name, table([{"figure": key, "": value} for key, value in report.figures.items()])]
    for peer, figures in report.peers.items():
        blocks.append(table([{f"peer: {peer}": k, "": _format_cell(v)} for k, v in figures.items()]))
    blocks.append(table(report.rows))
    blocks += [f"{title}\n{table(rows)}" for title, rows in report.tables.items()]
    return "\n\n".join(block for block in blocks if block)


def table(rows: Sequence[Mapping[str, Cell]]) -> str:
    """Format rows under their keys, numbers right-aligned; empty if there are no rows."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns] + [[_format_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numeric = [all(isinstance(row.get(column), int | float | None) for row in rows) for column in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in (cells if rows else [])
    )


def _format_cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case _:
            return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds per call, by contender and round; rounds of the same number ran side by side."""

    seconds: Mapping[str, Sequence[float]]

    def median_seconds(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def speedup(self, name: str, *, over: str) -> float:
        """Return how many times as fast `name` is; the median over rounds, since other load affects both."""
        pairs = zip(self.seconds[over], self.seconds[name], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    def difference_seconds(self, name: str, *, over: str) -> float:
        """Return how much longer `name` takes; the median over rounds."""
        pairs = zip(self.seconds[name], self.seconds[over], strict=True)
        return statistics.median(ours - theirs for ours, theirs in pairs)


def time_side_by_side(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int = 7, calls: int = 1
) -> Timings:
    """Measure the time of one call of each contender, in turns.

    A first round is a warm-up and is not counted. The order changes from round to round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for turn in range(rounds + 1):
        for name in order:
            call = contenders[name]
            started = time.perf_counter()
            for _ in range(calls):
                call()
            if turn:
                seconds[name].append((time.perf_counter() - started) / calls)
        order.append(order.pop(0))
    return Timings(seconds)
