"""Plots sessions: their context call by call under each policy, and their cost so far."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from foveate.config.files import open_replacement
from foveate.errors import BadOption
from foveate.extras import install_command
from foveate.replay.outcomes import ContextPoint, Outcome, Policy, ReplayedSession
from foveate.replay.report import ReplayReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SUFFIXES = (".png", ".svg", ".html")
# Only the most expensive sessions are drawn.
_MAX_SESSIONS = 4
_PANEL_INCHES = (6.2, 3.4)
# Distinguishable for colour-blind readers (Okabe and Ito, 2008), by their dashes, and in print.
_LINE_STYLES: dict[Policy, tuple[str, tuple[float, ...]]] = {
    Policy.RECORDED: ("#000000", ()),
    Policy.GATEWAY: ("#F0E442", (3, 1)),
    Policy.GATEWAY_COMPACTION: ("#CC79A7", (3, 1, 1, 1)),
    Policy.GATEWAY_COST: ("#882255", (6, 1, 1, 1)),
    Policy.NONE: ("#999999", (1, 1.5)),
    Policy.MARKERS: ("#0072B2", (5, 2)),
    Policy.MARKERS_1H: ("#56B4E9", (5, 1.5, 1, 1.5)),
    Policy.ADAPTIVE: ("#009E73", (8, 2)),
    Policy.ADAPTIVE_COMPACTION: ("#D55E00", ()),
}
_WINDOW_COLOUR, _OVER_COLOUR = "#CC79A7", "#E69F00"
_MAX_CROSSES = 40


def check_plot(name: str) -> None:
    """Check that a plot can be drawn before any work is done.

    Raises:
        BadOption: the file type is unknown, or matplotlib is not installed.
    """
    if Path(name).suffix.lower() not in _SUFFIXES:
        raise BadOption(f"--plot takes a file name that ends with {', '.join(_SUFFIXES)}, not {name!r}")
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise BadOption(f"--plot needs matplotlib: install it with {install_command()} 'foveate[plot]'")


def write_plot(report: ReplayReport, name: str) -> None:
    """Plot the most expensive sessions of a report into a file, which is replaced atomically.

    Raises:
        UnwritableFile: it cannot be written.
    """
    figure = _draw_figure(report)
    kind = Path(name).suffix.lower()
    buffer = io.BytesIO()
    # Without a date, the same report always gives the same bytes.
    metadata = {"Date": None} if kind != ".png" else None
    figure.savefig(buffer, format="png" if kind == ".png" else "svg", dpi=144, metadata=metadata)
    data = buffer.getvalue()
    if kind == ".html":
        data = _make_page(report, data.decode("utf-8")).encode("utf-8")
    with open_replacement(Path(name)) as file:
        file.write(data)


def _draw_figure(report: ReplayReport) -> "Figure":
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "foveate"  # otherwise ids in the SVG differ each time
    sessions = report.most_expensive(_MAX_SESSIONS)
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(2 * width, height * len(sessions) + 0.4), facecolor="white", layout="constrained")
    panels = figure.subplots(len(sessions), 2, squeeze=False)
    for (context, cost), session in zip(panels, sessions, strict=True):
        _draw_context(context, session, report.policies)
        _draw_cost(cost, session, report.policies)
    return figure


@dataclass(frozen=True, slots=True)
class _ContextLine:
    policies: tuple[Policy, ...]
    points: tuple[ContextPoint, ...]

    @property
    def label(self) -> str:
        return ", ".join(self.policies)


def _group_lines(session: ReplayedSession, policies: Sequence[Policy]) -> list[_ContextLine]:
    """Group policies with the same line, so that one line with all names is drawn instead of hidden ones."""
    groups: dict[tuple[int, ...], list[Policy]] = {}
    for policy in policies:
        groups.setdefault(tuple(point.tokens for point in session.points[policy]), []).append(policy)
    return [_ContextLine(tuple(group), session.points[group[0]]) for group in groups.values()]


def _draw_context(axes: "Axes", session: ReplayedSession, policies: Sequence[Policy]) -> None:
    for line in _group_lines(session, policies):
        colour, dashes = _LINE_STYLES[line.policies[0]]
        calls = range(1, len(line.points) + 1)
        tokens = [point.tokens / 1000 for point in line.points]
        axes.plot(calls, tokens, color=colour, dashes=dashes or (None, None), linewidth=1.4, label=line.label)
        _draw_events(axes, line)
    windows = {point.window_tokens for line in _group_lines(session, policies) for point in line.points}
    for window in sorted(tokens for tokens in windows if tokens is not None):
        axes.axhline(window / 1000, color=_WINDOW_COLOUR, linestyle=":", linewidth=1.2)
        axes.annotate(
            f"window {window:,}",
            (0.01, window / 1000),
            xycoords=("axes fraction", "data"),
            va="bottom",
            fontsize=8,
            color=_WINDOW_COLOUR,
        )
    axes.set_ylim(bottom=0)
    _label_axes(axes, f"{session.name}: context", "thousand tokens")


def _draw_events(axes: "Axes", line: _ContextLine) -> None:
    """Draw compactions as triangles, and a selection of contexts that exceed the window as crosses."""
    compactions = [(at, point) for at, point in enumerate(line.points, start=1) if point.is_compacted]
    if compactions and Policy.ADAPTIVE_COMPACTION in line.policies:
        heights = [point.tokens / 1000 for _, point in compactions]
        axes.plot(
            [at for at, _ in compactions],
            heights,
            "v",
            color=_LINE_STYLES[Policy.ADAPTIVE_COMPACTION][0],
            markersize=7,
            label="compaction",
        )
    over = [(at, point) for at, point in enumerate(line.points, start=1) if point.is_over]
    if over:
        crosses = over[:: max(len(over) // _MAX_CROSSES, 1)]
        heights = [point.tokens / 1000 for _, point in crosses]
        axes.plot(
            [at for at, _ in crosses],
            heights,
            "x",
            color=_OVER_COLOUR,
            markersize=5,
            label=f"over the window ({len(over):,} calls)",
        )


def _draw_cost(axes: "Axes", session: ReplayedSession, policies: Sequence[Policy]) -> None:
    highest = 0.0
    for policy in policies:
        colour, dashes = _LINE_STYLES[policy]
        dollars = [float(dollars) for dollars in accumulate(point.dollars for point in session.points[policy])]
        axes.plot(
            range(1, len(dollars) + 1),
            dollars,
            color=colour,
            dashes=dashes or (None, None),
            linewidth=1.4,
            label=f"{policy} {dollars[-1]:,.2f}",
        )
        # Without any cache the cost is so high that the other lines could not be told apart, so that line may
        # leave the frame.
        if policy is not Policy.NONE or len(policies) == 1:
            highest = max(highest, dollars[-1])
    axes.set_ylim(0, 1.25 * highest or 1)
    _label_axes(axes, f"{session.name}: cumulative cost", "dollars")


def _label_axes(axes: "Axes", title: str, unit: str) -> None:
    axes.set_title(title.replace("$", r"\$"), fontsize=9, loc="left")
    axes.set_xlabel("call", fontsize=8)
    axes.set_ylabel(unit, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, color="#E5E5E5", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0.0, 0.93))


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; color: #222; }
svg { width: 100%; height: auto; }
table { border-collapse: collapse; margin: 1rem 0 2rem; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
"""
_COLUMNS = ("policy", "calls", "uncached", "read", "written 5m", "written 1h", "output", "dollars", "hit ratio",
            "largest context", "over the window", "compactions")  # fmt: skip


def _make_page(report: ReplayReport, svg: str) -> str:
    drawn = svg[svg.index("<svg") :]
    sessions = f"{len(report.sessions):,} recorded session{'s' * (len(report.sessions) != 1)}"
    title = f"Cost of {sessions} under each policy"
    about = "Context size of each call and cumulative cost under each policy; the table has the numbers."
    tables = "\n".join(_make_tables(report))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
{drawn.replace("<svg", f'<svg role="img" aria-label="{escape(about)}"', 1)}
{tables}
</body>
</html>
"""


def _make_tables(report: ReplayReport) -> Iterator[str]:
    if len(report.sessions) > 1:
        yield _make_table(f"All {len(report.sessions):,} sessions", report.total, report.policies)
    for session in report.most_expensive(_MAX_SESSIONS):
        yield _make_table(session.name, session.outcomes, report.policies)


def _make_table(name: str, outcomes: dict[Policy, Outcome], policies: Sequence[Policy]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in _COLUMNS)
    rows = "\n".join(
        f'<tr><th scope="row" title="{escape(policy.meaning)}">{escape(policy)}</th>'
        + "".join(f"<td>{cell}</td>" for cell in _format_cells(outcomes[policy]))
        + "</tr>"
        for policy in policies
    )
    return (
        f"<h2>{escape(name)}</h2>\n<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"
    )


def _format_cells(outcome: Outcome) -> Iterator[str]:
    numbers = (
        outcome.calls,
        outcome.uncached,
        outcome.read,
        outcome.written_5m,
        outcome.written_1h,
        outcome.output,
    )
    yield from (f"{number:,}" for number in numbers)
    yield f"{outcome.dollars:,.4f}" if outcome.dollars is not None else "unknown"
    yield f"{outcome.hit_ratio:.0%}" if outcome.hit_ratio is not None else "-"
    yield from (f"{number:,}" for number in (outcome.largest_context, outcome.overflows, outcome.folds))
