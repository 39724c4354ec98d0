"""Replay reports as text and as JSON objects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from rich.cells import cell_len, set_cell_size

from foveate.cli.console import Display
from foveate.cost.money import format_dollars
from foveate.replay.outcomes import CostCheck, Outcome, Placeholders, ReplayedSession
from foveate.replay.policies import Policy
from foveate.replay.recording import MissingPart, UnreadableLine
from foveate.replay.report import (
    Conclusion,
    ModelGroup,
    PolicySaving,
    ReplayReport,
    compare_to_recorded,
    find_reachable_policies,
    has_recorded_cost,
)

_GAP = "  "
_INDENT = "  "
_BOLD, _DIM = "1", "2"
# Up to three sessions are shown in full; of more, the most expensive in one line each.
_MAX_DETAILED_SESSIONS = 3
_MAX_LISTED_SESSIONS = 10
_DEFAULTS, _CONFIG_NAME = "Foveate's defaults", "foveate.yaml"
_CENT = Decimal("0.01")
# Keys in JSON that differ from the names of fields.
_CHECK_KEYS = {"lower_read_calls": "changed", "higher_read_calls": "kept", "reported": "said"}
_NAME_CELLS, _MIN_NAME_CELLS = 40, 8
# Columns to drop first on narrow displays: not part of a sum, or the same in all rows.
_EXPENDABLE_COLUMNS = ("output", "for 1h", "", "uncached", "largest")
_HEADINGS = (
    "policy",
    "uncached",
    "read",
    "written",
    "for 1h",
    "output",
    "cost",
    "saves",
    "",
    "hit",
    "largest",
    "over",
    "folds",
)


class ReplayFormatter:
    def __init__(self, display: Display) -> None:
        self._display = display
        self._ellipsis = "…" if display.can_show("…") else ".."

    def lines(self, report: ReplayReport, *, each: bool = False) -> Iterator[str]:
        sessions = report.sessions
        if each or len(sessions) <= _MAX_DETAILED_SESSIONS:
            for session in sessions:
                yield from self._session_lines(session, report.policies)
                yield ""
        if len(sessions) > 1:
            calls = f"{len(sessions):,} sessions, {report.calls:,} calls"
            yield self._paint(calls, _BOLD)
            yield from self._outcome_table(report.total, report.policies)
            yield from self._check_lines(report.check)
            yield ""
        if len(sessions) > _MAX_DETAILED_SESSIONS:
            yield from self._model_table(report)
            if not each:
                yield from self._session_table(report)
        yield from self._wrap([f"{policy}: {policy.meaning}" for policy in report.policies])
        yield ""
        yield from self._wrap([self._display.escape(line) for line in _caveats(report)])
        yield from self._conclusion_lines(report)

    def _conclusion_lines(self, report: ReplayReport) -> Iterator[str]:
        conclusion = report.conclusion
        if conclusion is None:
            return
        yield ""
        file = self._display.escape(Path(report.configuration).name)
        yield self._paint(f"With {file or _DEFAULTS}: {_describe_difference(conclusion.configured)}.", _BOLD)
        suggestion = conclusion.suggestion
        if suggestion is None:
            return
        changes = " and ".join(suggestion.changes)
        yield self._paint(f"With {changes}: {_describe_difference(suggestion.saving)}.", _BOLD)
        yield f"To apply it, put this into {file or _CONFIG_NAME}:"
        yield ""
        yield from (_INDENT + line for line in suggestion.yaml.splitlines())

    def _session_lines(self, session: ReplayedSession, policies: Sequence[Policy]) -> Iterator[str]:
        models = ", ".join(self._display.escape(model) for model in session.models)
        calls = f"{session.calls:,} call{'s' * (session.calls != 1)}"
        day = _format_day(session.began_at)
        heading = _GAP.join(filter(None, (self._shorten_name(session.name), day, calls, models)))
        yield self._paint(heading, _BOLD)
        yield from self._outcome_table(session.outcomes, policies)
        yield from self._check_lines(session.check if has_recorded_cost(session.check) else None)

    def _outcome_table(self, outcomes: Mapping[Policy, Outcome], policies: Sequence[Policy]) -> Iterator[str]:
        recorded = outcomes.get(Policy.RECORDED)
        rows = [_outcome_cells(outcomes[policy], recorded) for policy in policies]
        columns = {
            heading: (heading, *cells)
            for heading, *cells in zip(_HEADINGS, *rows, strict=True)
            if heading == _HEADINGS[0] or any(cell not in ("", "0") for cell in cells)
        }
        for heading in _EXPENDABLE_COLUMNS:
            if self._fits(columns):
                break
            columns.pop(heading, None)
        if not self._fits(columns):
            for policy in policies:
                yield from self._narrow_lines(outcomes[policy], recorded)
            return
        widths = [max(map(cell_len, column)) for column in columns.values()]
        for number, cells in enumerate(zip(*columns.values(), strict=True)):
            line = _GAP.join(
                f"{cell:<{width}}" if not column_number else f"{cell:>{width}}"
                for column_number, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
            yield self._paint(line, _DIM) if not number else line

    def _fits(self, columns: Mapping[str, Sequence[str]]) -> bool:
        widths = [max(map(cell_len, column)) for column in columns.values()]
        return sum(widths) + len(_GAP) * (len(widths) - 1) <= self._display.columns

    def _narrow_lines(self, outcome: Outcome, recorded: Outcome | None) -> Iterator[str]:
        cells = dict(zip(_HEADINGS, _outcome_cells(outcome, recorded), strict=True))
        saving = f", saves {cells['saves']} {cells['']}".rstrip() if cells["saves"] else ""
        yield f"{outcome.policy}{_GAP}{cells['cost']}{saving}"
        one_hour_part = f", {cells['for 1h']} of it for 1h" if outcome.written_1h else ""
        details = [
            f"in {cells['uncached']} uncached, {cells['read']} read, {cells['written']} written{one_hour_part};"
            f" out {cells['output']}",
            f"hit {cells['hit'] or '-'}, largest {cells['largest']}, {outcome.overflows:,} over the window, "
            f"{outcome.folds:,} fold{'s' * (outcome.folds != 1)}",
        ]
        for line in details:
            yield from (_INDENT + part for part in self._wrap([line], len(_INDENT)))

    def _check_lines(self, check: CostCheck | None) -> Iterator[str]:
        if check is None or check.relative_error is None:
            if check is not None and check.reported is not None:
                text = f"the recording itself says {_format_dollars(check.reported)}, and not of which model"
                yield from self._wrap([text])
            return
        line = (
            f"logged {_format_dollars(check.logged)}, simulated {_format_dollars(check.simulated)} "
            f"(off by {check.relative_error:+.2%}), "
            + (f"{check.calls:,} bill{'s' * (check.calls != 1)}" if check.calls else "by the sum of the run")
        )
        if check.reported is not None and check.calls:
            line += f"; the recording itself says {_format_dollars(check.reported)}"
        lines = [line]
        lower, higher = check.lower_read_calls, check.higher_read_calls
        if lower or higher:
            lines.append(
                f"{lower:,} bill{'s' * (lower != 1)} read less than the recording explains, "
                f"{higher:,} more: taken as billed; without them off by {check.expected_error:+.1%}"
            )
        yield from self._wrap(lines)

    def _model_table(self, report: ReplayReport) -> Iterator[str]:
        groups = report.by_model
        if len(groups) < 2:
            return
        rows = [
            (
                self._shorten_name(group.model),
                f"{group.sessions:,}",
                f"{group.calls:,}",
                *_best_policy_cells(group.outcomes, report),
            )
            for group in groups
        ]
        yield from self._table(("by model", "sessions", "calls", "recorded", "best", "", "saves"), rows)
        yield ""

    def _session_table(self, report: ReplayReport) -> Iterator[str]:
        rows = [
            (
                self._shorten_name(session.name),
                _format_day(session.began_at),
                f"{session.calls:,}",
                *_best_policy_cells(session.outcomes, report),
            )
            for session in report.most_expensive(_MAX_LISTED_SESSIONS)
        ]
        heading = "the dearest" if len(report.sessions) > _MAX_LISTED_SESSIONS else "sessions"
        yield from self._table((heading, "", "calls", "recorded", "best", "", "saves"), rows)
        yield ""

    def _table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
        """Format a table; on narrow displays shorten the names first, then drop columns."""
        columns = list(zip(headings, *rows, strict=True))
        while True:
            widths = [max(map(cell_len, column)) for column in columns]
            excess_cells = sum(widths) + len(_GAP) * (len(widths) - 1) - self._display.columns
            if excess_cells <= widths[0] - _MIN_NAME_CELLS or len(columns) == 2:
                break
            del columns[1]
        widths[0] = max(widths[0] - max(excess_cells, 0), _MIN_NAME_CELLS)
        for number, cells in enumerate(zip(*columns, strict=True)):
            name = self._fit(cells[0], widths[0])
            rest = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
            line = _GAP.join((name, *rest)).rstrip()
            yield self._paint(line, _DIM) if not number else line

    def _shorten_name(self, name: str) -> str:
        text = self._display.escape(name) or '""'
        return text if cell_len(text) <= _NAME_CELLS else self._fit(text, _NAME_CELLS).rstrip()

    def _fit(self, text: str, cells: int) -> str:
        if cell_len(text) <= cells:
            return set_cell_size(text, cells)
        return set_cell_size(set_cell_size(text, cells - len(self._ellipsis)).rstrip() + self._ellipsis, cells)

    def _wrap(self, lines: Sequence[str], indent: int = 0) -> Iterator[str]:
        for line in lines:
            wrapped = ""
            for word in line.split():
                if wrapped and cell_len(f"{wrapped} {word}") > self._display.columns - indent:
                    yield self._paint(wrapped, _DIM)
                    wrapped = word
                else:
                    wrapped = f"{wrapped} {word}".lstrip()
            yield self._paint(wrapped, _DIM)

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and self._display.colours else text


def _outcome_cells(outcome: Outcome, recorded: Outcome | None) -> tuple[str, ...]:
    # No client sends without a cache, so the extra cost of that policy is not a loss.
    is_compared = outcome.policy not in (Policy.RECORDED, Policy.NONE)
    saving = compare_to_recorded(outcome, recorded) if is_compared else None
    return (
        str(outcome.policy),
        _format_tokens(outcome.uncached),
        _format_tokens(outcome.read),
        _format_tokens(outcome.written_5m + outcome.written_1h),
        _format_tokens(outcome.written_1h),
        _format_tokens(outcome.output),
        _format_dollars(outcome.dollars) if outcome.dollars is not None else "unknown",
        _format_dollars(saving.dollars) if saving is not None else "",
        _format_share(saving),
        f"{outcome.hit_ratio:.0%}" if outcome.hit_ratio is not None else "",
        _format_tokens(outcome.largest_context),
        f"{outcome.overflows:,}",
        f"{outcome.folds:,}",
    )


def _best_policy_cells(outcomes: Mapping[Policy, Outcome], report: ReplayReport) -> tuple[str, str, str, str]:
    """Return the recorded cost, the lowest cost, its policy, and the saving.

    Consider only policies that the gateway can apply, unless others alone were requested.
    """
    recorded = outcomes[Policy.RECORDED]
    reachable = find_reachable_policies(report.gateway)
    policies = [policy for policy in report.policies if policy in reachable]
    if set(policies) <= {Policy.RECORDED}:  # only other policies were requested
        policies = list(report.policies)
    dollars_by_policy = [(outcomes[policy].dollars, policy) for policy in policies]
    priced = [(dollars, policy) for dollars, policy in dollars_by_policy if dollars is not None]
    if not priced or recorded.dollars is None:
        return "unknown", "", "", ""
    min_dollars, policy = min(priced, key=lambda item: (item[0], report.policies.index(item[1])))
    saving = compare_to_recorded(outcomes[policy], recorded)
    return _format_dollars(recorded.dollars), _format_dollars(min_dollars), str(policy), _format_share(saving)


def _describe_difference(saving: PolicySaving) -> str:
    percent = round(100 * abs(saving.share)) if saving.share is not None else 0
    if not saving.dollars or (not percent and abs(saving.dollars) < _CENT):
        return "the same cost"
    return f"{_format_dollars(abs(saving.dollars))} ({percent}%) {'less' if saving.dollars > 0 else 'more'}"


def _format_share(saving: PolicySaving | None) -> str:
    """Format the saved share in whole percent, without a negative zero."""
    return "" if saving is None or saving.share is None else f"{round(100 * saving.share) or 0}%"


def _caveats(report: ReplayReport) -> list[str]:
    sessions = report.sessions
    caveats = []
    if report.model is not None:
        caveats.append(
            f"asked of {report.model}: at its prices, by the rules of its cache, and each message as many "
            "times as long as its offline counter finds it"
        )
    hidden = [
        session
        for session in sessions
        if MissingPart.SYSTEM in session.missing or MissingPart.TOOLS in session.missing
    ]
    hidden_tokens_charged = [session.hidden_tokens for session in hidden if session.check.calls]
    if hidden_tokens_charged:
        caveats.append(
            "the system prompt and the tools are not in the recording: taken from the first bill "
            f"({_format_max(hidden_tokens_charged)} tokens)"
        )
    uncharged = [session for session in hidden if not session.check.calls]
    hidden_tokens_by_run = [session.hidden_tokens for session in uncharged if session.hidden_tokens]
    if hidden_tokens_by_run:
        caveats.append(
            "the tools are not in the recording: taken from what the run is said to have cost beyond its "
            f"messages ({_format_max(hidden_tokens_by_run)} tokens)"
        )
    if len(hidden_tokens_by_run) < len(uncharged):
        caveats.append(
            "neither the system prompt and the tools nor a bill are recorded: they are not in the sums"
        )
    if any(MissingPart.USAGE in session.missing for session in sessions):
        caveats.append(
            "calls without a bill are counted offline: an estimate; marks are assumed where any are seen"
        )
    if any(MissingPart.TIME in session.missing for session in sessions):
        caveats.append("calls without a time follow each other at once: what is kept does not run out")
    if any(MissingPart.TIER_PRICE in session.missing for session in sessions):
        caveats.append("calls of a tier without a known price (priority, flex, fast) are priced as usual ones")
    placeholders = report.placeholders
    if placeholders.calls:
        caveats.append(
            f"{placeholders.calls:,} answers are logged with the size that a stream begins with: by their text "
            f"about {placeholders.tokens:,} output tokens ({_format_dollars(placeholders.dollars)}) come on "
            "top, in every row"
        )
    with_agents = [session for session in sessions if session.sub_agents]
    if with_agents:
        agents, count = sum(session.sub_agents for session in with_agents), len(with_agents)
        caveats.append(
            f"the calls of {agents:,} sub-agent{'s' * (agents != 1)} are counted in the "
            f"{f'{count:,} sessions' if count != 1 else 'session'} that started them"
        )
    if report.repeated:
        caveats.append(f"{report.repeated:,} calls stand in two files: counted once")
    return caveats


def _format_max(tokens: Sequence[int]) -> str:
    return f"{'up to ' * (len(tokens) > 1)}{max(tokens):,}"


def _format_dollars(dollars: Decimal) -> str:
    """Format dollars to the cent, or with four decimals below one dollar."""
    digits = Decimal("0.01") if abs(dollars) >= 1 else Decimal("0.0001")
    return format_dollars(dollars.quantize(digits))


def _format_tokens(tokens: int) -> str:
    if tokens < 10_000:
        return f"{tokens:,}"
    return f"{tokens / 1_000:.0f}k" if tokens < 999_500 else f"{tokens / 1_000_000:.1f}M"


def _format_day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" if at else ""


def report_object(report: ReplayReport) -> dict[str, object]:
    """Return a report as JSON: money as strings, null if unknown."""
    check = report.check
    return {
        "policies": list(report.policies),
        "meanings": {policy: policy.meaning for policy in report.policies},
        "configuration": report.configuration or None,
        "conclusion": _conclusion_object(report.conclusion),
        "model": report.model,
        "sessions": [_session_object(session, report.policies) for session in report.sessions],
        "by_model": [_group_object(group, report.policies) for group in report.by_model],
        "total": _outcomes_object(report.total, report.policies),
        "check": _check_object(check) if check is not None else None,
        "placeholders": _placeholders_object(report.placeholders),
        "repeated_calls": report.repeated,
        "unpriced_calls": report.unpriced,
        "unread": [{"files": files, "why": reason} for files, reason in report.unread],
        "broken": [_broken_object(line) for line in report.unreadable],
    }


def _session_object(session: ReplayedSession, policies: Sequence[Policy]) -> dict[str, object]:
    return {
        "name": session.name,
        "source": session.source,
        "began_at": session.began_at,
        "calls": session.calls,
        "models": dict(session.models),
        "outcomes": _outcomes_object(session.outcomes, policies),
        "check": _check_object(session.check) if has_recorded_cost(session.check) else None,
        "placeholders": _placeholders_object(session.placeholders),
        "lacks": sorted(session.missing),
        "hidden_tokens": session.hidden_tokens,
        "sub_agents": session.sub_agents,
        "unpriced_calls": dict(session.unpriced),
        "broken": [_broken_object(line) for line in session.unreadable],
        "size_bytes": session.size_bytes,
    }


def _group_object(group: ModelGroup, policies: Sequence[Policy]) -> dict[str, object]:
    return {
        "model": group.model,
        "sessions": group.sessions,
        "calls": group.calls,
        "outcomes": _outcomes_object(group.outcomes, policies),
    }


def _outcomes_object(outcomes: Mapping[Policy, Outcome], policies: Sequence[Policy]) -> list[dict[str, object]]:
    recorded = outcomes.get(Policy.RECORDED)
    objects = []
    for policy in policies:
        outcome = outcomes[policy]
        saving = compare_to_recorded(outcome, recorded)
        fields = {name: _to_json(value) for name, value in asdict(outcome).items()}
        objects.append(
            fields
            | {
                "input_tokens": outcome.input_tokens,
                "hit_ratio": outcome.hit_ratio,
                "saved_dollars": _to_json(saving.dollars) if saving is not None else None,
                "saved_share": saving.share if saving is not None else None,
            }
        )
    return objects


def _check_object(check: CostCheck) -> dict[str, object]:
    fields = {_CHECK_KEYS.get(name, name): _to_json(value) for name, value in asdict(check).items()}
    return fields | {"off": check.relative_error, "expected_off": check.expected_error}


def _placeholders_object(placeholders: Placeholders) -> dict[str, object]:
    return {name: _to_json(value) for name, value in asdict(placeholders).items()}


def _broken_object(line: UnreadableLine) -> dict[str, object]:
    return {"file": line.file, "line": line.line, "why": line.reason}


def _to_json(value: object) -> object:
    return f"{value:f}" if isinstance(value, Decimal) else value


def _conclusion_object(conclusion: Conclusion | None) -> dict[str, object] | None:
    if conclusion is None:
        return None
    suggestion = conclusion.suggestion
    return {
        **_saving_object(conclusion.configured),
        "suggestion": None
        if suggestion is None
        else {
            **_saving_object(suggestion.saving),
            "changes": list(suggestion.changes),
            "yaml": suggestion.yaml,
        },
    }


def _saving_object(saving: PolicySaving) -> dict[str, object]:
    return {
        "policy": saving.policy,
        "saved_dollars": _to_json(saving.dollars),
        "saved_share": saving.share,
    }
