"""Replayed sessions in lines for people."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from rich.cells import cell_len, set_cell_size

from foveate.cli.screen import Look
from foveate.cost.money import in_words
from foveate.replay.conclusions import Saving, reachable_policies, saving_of
from foveate.replay.outcomes import Check, Outcome, Replayed
from foveate.replay.policies import Policy
from foveate.replay.recordings import Lacking
from foveate.replay.reports import Report, is_billed

_GAP = "  "
_INDENT = "  "
_BOLD, _DIM = "1", "2"
# So many sessions are shown one by one unasked; of more, the dearest in a line each.
_FEW_SESSIONS = 3
_DEAREST = 10
_DEFAULTS, _CONFIG_NAME = "Foveate's defaults", "foveate.yaml"
_CENT = Decimal("0.01")
_NAME_CELLS, _LEAST_NAME_CELLS = 40, 8
# What goes first where a terminal is narrow: it is in no sum, or the same in all rows.
_GIVE_WAY = ("output", "for 1h", "", "uncached", "largest")
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


class ReplayWriting:
    """Writes reports for a terminal or a file, as far as that can show them."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._more = "…" if look.can_show("…") else ".."

    def lines(self, report: Report, *, each: bool = False) -> Iterator[str]:
        """The sessions one by one where they are few, and all together."""
        sessions = report.sessions
        if each or len(sessions) <= _FEW_SESSIONS:
            for session in sessions:
                yield from self._session(session, report.policies)
                yield ""
        if len(sessions) > 1:
            calls = f"{len(sessions):,} sessions, {report.calls:,} calls"
            yield self._painted(calls, _BOLD)
            yield from self._table(report.total, report.policies)
            yield from self._check(report.check)
            yield ""
        if len(sessions) > _FEW_SESSIONS:
            yield from self._by_model(report)
            if not each:
                yield from self._dearest(report)
        yield from self._wrapped([f"{policy}: {policy.meaning}" for policy in report.policies])
        yield ""
        yield from self._wrapped([self._look.plain(line) for line in _said(report)])
        yield from self._conclusion(report)

    def _conclusion(self, report: Report) -> Iterator[str]:
        """Say what the gateway would save, and the settings that would save more."""
        conclusion = report.conclusion
        if conclusion is None:
            return
        yield ""
        file = self._look.plain(Path(report.configuration).name)
        yield self._painted(f"With {file or _DEFAULTS}: {_difference(conclusion.configured)}.", _BOLD)
        suggested = conclusion.suggestion
        if suggested is None:
            return
        changes = " and ".join(suggested.changes)
        yield self._painted(f"With {changes}: {_difference(suggested.saving)}.", _BOLD)
        yield f"To apply it, put this into {file or _CONFIG_NAME}:"
        yield ""
        yield from (_INDENT + line for line in suggested.yaml.splitlines())

    def _session(self, session: Replayed, policies: Sequence[Policy]) -> Iterator[str]:
        models = ", ".join(self._look.plain(model) for model in session.models)
        calls = f"{session.calls:,} call{'s' * (session.calls != 1)}"
        when = _day(session.began_at)
        told = _GAP.join(filter(None, (self._name(session.name), when, calls, models)))
        yield self._painted(told, _BOLD)
        yield from self._table(session.outcomes, policies)
        yield from self._check(session.check if is_billed(session.check) else None)

    def _table(self, outcomes: Mapping[Policy, Outcome], policies: Sequence[Policy]) -> Iterator[str]:
        recorded = outcomes.get(Policy.RECORDED)
        rows = [_cells(outcomes[policy], recorded) for policy in policies]
        columns = {
            heading: (heading, *cells)
            for heading, *cells in zip(_HEADINGS, *rows, strict=True)
            if heading == _HEADINGS[0] or any(cell not in ("", "0") for cell in cells)
        }
        for heading in _GIVE_WAY:
            if self._fits(columns):
                break
            columns.pop(heading, None)
        if not self._fits(columns):
            for policy in policies:
                yield from self._block(outcomes[policy], recorded)
            return
        widths = [max(map(cell_len, column)) for column in columns.values()]
        for number, cells in enumerate(zip(*columns.values(), strict=True)):
            line = _GAP.join(
                f"{cell:<{width}}" if not place else f"{cell:>{width}}"
                for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ).rstrip()
            yield self._painted(line, _DIM) if not number else line

    def _fits(self, columns: Mapping[str, Sequence[str]]) -> bool:
        widths = [max(map(cell_len, column)) for column in columns.values()]
        return sum(widths) + len(_GAP) * (len(widths) - 1) <= self._look.columns

    def _block(self, outcome: Outcome, recorded: Outcome | None) -> Iterator[str]:
        """One policy in a few short lines."""
        cells = dict(zip(_HEADINGS, _cells(outcome, recorded), strict=True))
        saved = f", saves {cells['saves']} {cells['']}".rstrip() if cells["saves"] else ""
        yield f"{outcome.policy}{_GAP}{cells['cost']}{saved}"
        long = f", {cells['for 1h']} of it for 1h" if outcome.written_1h else ""
        told = [
            f"in {cells['uncached']} uncached, {cells['read']} read, {cells['written']} written{long}; "
            f"out {cells['output']}",
            f"hit {cells['hit'] or '-'}, largest {cells['largest']}, {outcome.overflows:,} over the window, "
            f"{outcome.folds:,} fold{'s' * (outcome.folds != 1)}",
        ]
        for line in told:
            yield from (_INDENT + part for part in self._wrapped([line], len(_INDENT)))

    def _check(self, check: Check | None) -> Iterator[str]:
        if check is None or check.off is None:
            if check is not None and check.said is not None:
                told = f"the recording itself says {_dollars(check.said)}, and not of which model"
                yield from self._wrapped([told])
            return
        line = (
            f"logged {_dollars(check.logged)}, simulated {_dollars(check.simulated)} "
            f"(off by {check.off:+.2%}), "
            + (f"{check.calls:,} bill{'s' * (check.calls != 1)}" if check.calls else "by the sum of the run")
        )
        if check.said is not None and check.calls:
            line += f"; the recording itself says {_dollars(check.said)}"
        lines = [line]
        if check.changed or check.kept:
            lines.append(
                f"{check.changed:,} bill{'s' * (check.changed != 1)} read less than the recording explains, "
                f"{check.kept:,} more: taken as billed; without them off by {check.expected_off:+.1%}"
            )
        yield from self._wrapped(lines)

    def _by_model(self, report: Report) -> Iterator[str]:
        groups = report.by_model
        if len(groups) < 2:
            return
        rows = [
            (self._name(group.model), f"{group.sessions:,}", f"{group.calls:,}", *_best(group.outcomes, report))
            for group in groups
        ]
        yield from self._rows(("by model", "sessions", "calls", "recorded", "best", "", "saves"), rows)
        yield ""

    def _dearest(self, report: Report) -> Iterator[str]:
        rows = [
            (
                self._name(session.name),
                _day(session.began_at),
                f"{session.calls:,}",
                *_best(session.outcomes, report),
            )
            for session in report.dearest(_DEAREST)
        ]
        heading = "the dearest" if len(report.sessions) > _DEAREST else "sessions"
        yield from self._rows((heading, "", "calls", "recorded", "best", "", "saves"), rows)
        yield ""

    def _rows(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
        """A table of which the names give way where it is too wide, and then what stands beside them."""
        columns = list(zip(headings, *rows, strict=True))
        while True:
            widths = [max(map(cell_len, column)) for column in columns]
            over = sum(widths) + len(_GAP) * (len(widths) - 1) - self._look.columns
            if over <= widths[0] - _LEAST_NAME_CELLS or len(columns) == 2:
                break
            del columns[1]
        widths[0] = max(widths[0] - max(over, 0), _LEAST_NAME_CELLS)
        for number, cells in enumerate(zip(*columns, strict=True)):
            name = self._fitted(cells[0], widths[0])
            rest = (f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True))
            line = _GAP.join((name, *rest)).rstrip()
            yield self._painted(line, _DIM) if not number else line

    def _name(self, name: str) -> str:
        text = self._look.plain(name) or '""'
        return text if cell_len(text) <= _NAME_CELLS else self._fitted(text, _NAME_CELLS).rstrip()

    def _fitted(self, text: str, cells: int) -> str:
        """`text` in exactly so many cells."""
        if cell_len(text) <= cells:
            return set_cell_size(text, cells)
        return set_cell_size(set_cell_size(text, cells - len(self._more)).rstrip() + self._more, cells)

    def _wrapped(self, lines: Sequence[str], indent: int = 0) -> Iterator[str]:
        for line in lines:
            found = ""
            for word in line.split():
                if found and cell_len(f"{found} {word}") > self._look.columns - indent:
                    yield self._painted(found, _DIM)
                    found = word
                else:
                    found = f"{found} {word}".lstrip()
            yield self._painted(found, _DIM)

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and self._look.colours else text


def _cells(outcome: Outcome, recorded: Outcome | None) -> tuple[str, ...]:
    # Nobody sends without a cache: what that would cost more is no loss of anybody's.
    is_compared = outcome.policy not in (Policy.RECORDED, Policy.NONE)
    saved = saving_of(outcome, recorded) if is_compared else None
    return (
        str(outcome.policy),
        _short(outcome.uncached),
        _short(outcome.read),
        _short(outcome.written_5m + outcome.written_1h),
        _short(outcome.written_1h),
        _short(outcome.output),
        _dollars(outcome.dollars) if outcome.dollars is not None else "unknown",
        _dollars(saved.dollars) if saved is not None else "",
        _share(saved),
        f"{outcome.hit_ratio:.0%}" if outcome.hit_ratio is not None else "",
        _short(outcome.largest_context),
        f"{outcome.overflows:,}",
        f"{outcome.folds:,}",
    )


def _best(outcomes: Mapping[Policy, Outcome], report: Report) -> tuple[str, str, str, str]:
    """What it cost, what it would have cost at the least, by which policy, and what that saves.

    Only what the gateway can be told to do counts, unless other policies alone were asked for.
    """
    recorded = outcomes[Policy.RECORDED]
    reachable = reachable_policies(report.gateway)
    compared = [policy for policy in report.policies if policy in reachable]
    if set(compared) <= {Policy.RECORDED}:  # only others were asked for
        compared = list(report.policies)
    known = [(outcomes[policy].dollars, policy) for policy in compared]
    priced = [(dollars, policy) for dollars, policy in known if dollars is not None]
    if not priced or recorded.dollars is None:
        return "unknown", "", "", ""
    least, policy = min(priced, key=lambda one: (one[0], report.policies.index(one[1])))
    saved = saving_of(outcomes[policy], recorded)
    return _dollars(recorded.dollars), _dollars(least), str(policy), _share(saved)


def _difference(saving: Saving) -> str:
    """Say what a policy saves in words: nothing, less, or more."""
    percent = round(100 * abs(saving.share)) if saving.share is not None else 0
    if not saving.dollars or (not percent and abs(saving.dollars) < _CENT):
        return "the same cost"
    return f"{_dollars(abs(saving.dollars))} ({percent}%) {'less' if saving.dollars > 0 else 'more'}"


def _share(saved: Saving | None) -> str:
    """Which share is saved, in whole percents, never less than nothing by less than half of one."""
    return "" if saved is None or saved.share is None else f"{round(100 * saved.share) or 0}%"


def _said(report: Report) -> list[str]:
    """What has to be known to read the numbers."""
    sessions = report.sessions
    told = []
    if report.model is not None:
        told.append(
            f"asked of {report.model}: at its prices, by the rules of its cache, and each message as many "
            "times as long as its offline counter finds it"
        )
    hidden = [
        session for session in sessions if Lacking.SYSTEM in session.lacks or Lacking.TOOLS in session.lacks
    ]
    billed = [session.hidden_tokens for session in hidden if session.check.calls]
    if billed:
        told.append(
            "the system prompt and the tools are not in the recording: taken from the first bill "
            f"({_most(billed)} tokens)"
        )
    unbilled = [session for session in hidden if not session.check.calls]
    by_run = [session.hidden_tokens for session in unbilled if session.hidden_tokens]
    if by_run:
        told.append(
            "the tools are not in the recording: taken from what the run is said to have cost beyond its "
            f"messages ({_most(by_run)} tokens)"
        )
    if len(by_run) < len(unbilled):
        told.append("neither the system prompt and the tools nor a bill are recorded: they are not in the sums")
    if any(Lacking.BILL in session.lacks for session in sessions):
        told.append(
            "calls without a bill are counted offline: an estimate; marks are assumed where any are seen"
        )
    if any(Lacking.TIME in session.lacks for session in sessions):
        told.append("calls without a time follow each other at once: what is kept does not run out")
    if any(Lacking.TIER_PRICE in session.lacks for session in sessions):
        told.append("calls of a tier without a known price (priority, flex, fast) are priced as usual ones")
    placeholders = report.placeholders
    if placeholders.calls:
        told.append(
            f"{placeholders.calls:,} answers are logged with the size that a stream begins with: by their text "
            f"about {placeholders.tokens:,} output tokens ({_dollars(placeholders.dollars)}) come on top, in "
            "every row"
        )
    with_agents = [session for session in sessions if session.sub_agents]
    if with_agents:
        agents, count = sum(session.sub_agents for session in with_agents), len(with_agents)
        told.append(
            f"the calls of {agents:,} sub-agent{'s' * (agents != 1)} are counted in the "
            f"{f'{count:,} sessions' if count != 1 else 'session'} that started them"
        )
    if report.repeated:
        told.append(f"{report.repeated:,} calls stand in two files: counted once")
    return told


def _most(tokens: Sequence[int]) -> str:
    return f"{'up to ' * (len(tokens) > 1)}{max(tokens):,}"


def _dollars(dollars: Decimal) -> str:
    """Dollars to the cent, or where that would say little, to four digits behind the point."""
    digits = Decimal("0.01") if abs(dollars) >= 1 else Decimal("0.0001")
    return in_words(dollars.quantize(digits))


def _short(tokens: int) -> str:
    """A number of tokens as one says it."""
    if tokens < 10_000:
        return f"{tokens:,}"
    return f"{tokens / 1_000:.0f}k" if tokens < 999_500 else f"{tokens / 1_000_000:.1f}M"


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" if at else ""
