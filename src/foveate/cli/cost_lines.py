"""What calls cost and how caps stand, in lines for people and as objects for programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal

from rich.cells import cell_len, set_cell_size

from foveate.cli.cost_asked import SessionFamily
from foveate.cli.ids import short_ids
from foveate.cli.screen import Look
from foveate.cost.caps import Cap, Scope
from foveate.cost.held import Held, Level, Use, about, nearness
from foveate.cost.ledger import By
from foveate.cost.money import in_words
from foveate.cost.report import Report, Row
from foveate.session.rate_limits import SeenLimit

_GAP = "  "
_INDENT = "  "
_UNKNOWN = "unknown"
# Of so many sessions or agents one is told how near they are to a cap; JSON has them all.
_MOST_USES = 20
_LONGEST_NAME = 24
_BOLD, _DIM, _RED, _YELLOW = "1", "2", "31", "33"
_COLOURS = {Level.FINE: "", Level.NEAR: _YELLOW, Level.FULL: _RED}
_NUMBERS = (
    "calls",
    "uncached",
    "read",
    "written",
    "output",
    "cost",
    "inherited",
    "list price",
    "at most",
    "without Foveate",
    "saved",
    "by breakpoints",
    "by compaction",
    "by injected context",
    "by keep-alive",
    "simulation error",
    "would not fit",
)
_CAP_HEADINGS = ("cap", "limit", "spent", "reserved", "left", "")


def report_object(report: Report, families: Mapping[str, SessionFamily] | None = None) -> dict[str, object]:
    """A report as JSON can say it: money as a string, so that nothing of it is lost; null where unknown."""
    rows = [
        dict(zip(report.by, row.group, strict=True)) | _row_object(row)  # what it is by, then its numbers
        for row in report.rows
    ]
    sessions = [
        {
            "session": id_,
            "title": one.title,
            "started_sessions": one.descendants.sessions,
            "started_dollars": _jsonable(one.descendants.dollars),
        }
        for id_, one in (families or {}).items()
    ]
    return {"by": list(report.by), "rows": rows, "total": _row_object(report.total), "sessions": sessions}


def family_lines(families: Mapping[str, SessionFamily]) -> Iterator[str]:
    """Say what the sessions that a session started have cost beside it."""
    ids = short_ids(list(families))
    for id_, one in families.items():
        if (more := one.descendants).sessions:
            cost = in_words(more.dollars) + (f", and {more.unpriced:,} calls unpriced" if more.unpriced else "")
            count = f"{more.sessions:,} session{'s' * (more.sessions != 1)}"
            yield f"{ids[id_]} started {count}, not in its row: {cost}"


def marked_lines(row: Row) -> Iterator[str]:
    """Say which of the dollars are not what somebody is billed, and which calls may have been billed."""
    if row.inherited_calls:
        calls = _calls(row.inherited_calls)
        yield (
            f"of it {in_words(row.inherited_dollars)} inherited: {calls} to models without a price of their"
            " own, at the most expensive of their family"
        )
    if row.subscription_calls:
        dollars, calls = in_words(row.subscription_dollars), _calls(row.subscription_calls)
        yield f"of it {dollars} list-price equivalents: {calls} that a subscription pays for"
    if row.possibly_charged_calls:
        calls, dollars = _calls(row.possibly_charged_calls), in_words(row.possibly_charged_dollars)
        yield f"{calls} possibly charged, at most {dollars}: under way when the gateway's process ended"


def limit_object(seen: SeenLimit, now: float) -> dict[str, object]:
    """A limit of a subscription as JSON can say it."""
    return {
        "agent": seen.agent,
        "provider": seen.provider,
        "limit": seen.limit.name,
        "used": seen.used_at(now),
        "resets_at": seen.limit.resets_at,
        "status": seen.limit.status,
        "at": seen.at,
    }


def limit_lines(limits: Sequence[SeenLimit], now: float) -> Iterator[str]:
    """Say how much of each subscription is used, and when its limits are reset."""
    for seen in limits:
        used, resets_at = seen.used_at(now), seen.limit.resets_at
        share = "an unknown part" if used is None else f"{used:.0%}"
        until = ""
        if resets_at is not None and resets_at > now:
            until = f", reset {datetime.fromtimestamp(resets_at, UTC):%Y-%m-%d %H:%M} UTC"
        whose = f"subscription of {seen.agent} at {seen.provider}"
        yield f"{whose}: {share} of its {seen.limit.name} limit used{until}"


def _row_object(row: Row) -> dict[str, object]:
    numbers = {name: _jsonable(value) for name, value in asdict(row).items() if name not in ("group", "saved")}
    savings = row.saved
    saved = {
        "total": savings.total,
        "breakpoints": savings.breakpoints,
        "compaction": savings.compaction,
        "context": savings.context,
        "keep_alive": savings.keep_alive,
    }
    return numbers | {
        "without_dollars": _jsonable(savings.without),
        "saved": {name: _jsonable(value) for name, value in saved.items()},
        "simulation_error": _jsonable(savings.simulation_error),
    }


def cap_object(held: Held) -> dict[str, object]:
    """A cap as JSON can say it, and by whom how much of it is used."""
    said = {name: _jsonable(value) for name, value in asdict(held.cap).items()}
    return said | {"uses": [_use_object(use) for use in held.uses]}


def _use_object(use: Use) -> dict[str, object]:
    return {
        "agent": use.agent,
        "session_id": use.session_id,
        "day": use.day,
        "spent": _jsonable(use.standing.spent),
        "reserved": _jsonable(use.standing.reserved),
        "left": _jsonable(use.left),
        "unknown_calls": use.unknown_calls,
        "level": use.level,
    }


def _jsonable(value: object) -> object:
    return f"{value:f}" if isinstance(value, Decimal) else value


class _Writing:
    """Writes for a terminal or a file, as far as that can show it."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._more = "…" if look.can_show("…") else ".."

    def _name(self, name: str) -> str:
        """A name that is no longer than a column."""
        text = self._look.plain(name) or '""'
        if cell_len(text) <= _LONGEST_NAME:
            return text
        return set_cell_size(text, _LONGEST_NAME - len(self._more)).rstrip() + self._more

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and colour and self._look.colours else text

    def _fits(self, widths: Sequence[int]) -> bool:
        return sum(widths) + len(_GAP) * (len(widths) - 1) <= self._look.columns


class ReportWriting(_Writing):
    """Writes reports."""

    def __init__(self, look: Look, families: Mapping[str, SessionFamily] | None = None) -> None:
        super().__init__(look)
        self._families = families or {}

    def lines(self, report: Report) -> Iterator[str]:
        """A line for each row below a heading, and the total; a few lines each where one is too narrow."""
        if not report.rows:
            return
        names = self._groups(report)
        rows = list(zip(names, report.rows, strict=True))
        if len(rows) > 1:
            rows.append((("total", *("" for _ in report.by[1:])), report.total))
        whole = [(*report.by, *_NUMBERS), *((*name, *_cells(row)) for name, row in rows)]
        columns = [
            column
            for number, column in enumerate(zip(*whole, strict=True))
            if number < len(report.by) or any(said not in ("", _UNKNOWN) for said in column[1:])
        ]
        headings, *table = zip(*columns, strict=True)
        widths = [max(map(cell_len, column)) for column in columns]
        last = len(rows) - 1 if rows[-1][1] is report.total else None
        if not self._fits(widths):
            for number, (name, row) in enumerate(rows):
                yield from self._block(_GAP.join(filter(None, name)), row, is_total=number == last)
            return
        yield self._painted(_in_columns(headings, widths, len(report.by)), _DIM)
        for number, cells in enumerate(table):
            line = _in_columns(cells, widths, len(report.by))
            yield self._painted(line, _BOLD) if number == last else line

    def _groups(self, report: Report) -> list[tuple[str, ...]]:
        """What each row is of, with ids of sessions as short as they can be."""
        if By.SESSION not in report.by:
            return [tuple(map(self._name, row.group)) for row in report.rows]
        place = report.by.index(By.SESSION)
        ids = short_ids([row.group[place] for row in report.rows])
        return [
            tuple(
                self._session(said, ids[said]) if number == place else self._name(said)
                for number, said in enumerate(row.group)
            )
            for row in report.rows
        ]

    def _session(self, id_: str, short: str) -> str:
        if not id_:
            return "(no session)"
        family = self._families.get(id_)
        return f"{self._name(short)} {self._look.plain(family.title)}" if family else self._name(short)

    def _block(self, name: str, row: Row, *, is_total: bool) -> Iterator[str]:
        calls = f"{row.calls:,} call{'s' * (row.calls != 1)}"
        yield self._painted(f"{name}{_GAP}{calls}", _BOLD if is_total else "")
        written = row.written_5m + row.written_1h
        yield (
            f"{_INDENT}in {row.uncached:,} uncached, {row.read:,} read, {written:,} written; "
            f"out {row.output_tokens:,}"
        )
        at_most = "" if row.estimated_dollars is None else f" (at most {in_words(row.estimated_dollars)})"
        yield f"{_INDENT}{_cost(row)}{at_most}"
        yield from (f"{_INDENT}{said}" for said in marked_lines(row))
        compared = _compared(row)
        told = [
            ""
            if said in ("", _UNKNOWN)
            else said
            if (what, said[:4]) == ("saved", "cost")
            else f"{what} {said}"
            for what, said in zip(_NUMBERS[-len(compared) :], compared, strict=True)
        ]
        for some in (told[:2], told[2:6], told[6:]):  # the whole, its parts, and what is in neither
            if any(some):
                yield _INDENT + "; ".join(filter(None, some))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row.calls:,}",
        f"{row.uncached:,}",
        f"{row.read:,}",
        f"{row.written_5m + row.written_1h:,}",
        f"{row.output_tokens:,}",
        _cost(row),
        in_words(row.inherited_dollars) if row.inherited_calls else "",
        in_words(row.subscription_dollars) if row.subscription_calls else "",
        "" if row.estimated_dollars is None else in_words(row.estimated_dollars),
        *_compared(row),
    )


def _compared(row: Row) -> tuple[str, ...]:
    """The cost without Foveate and the savings, as far as they are known and not zero."""
    savings = row.saved
    without = _UNKNOWN
    if savings.without is not None:
        of = "" if row.compared_calls == row.calls else f" for {_calls(row.compared_calls)}"
        without = f"{in_words(savings.without)}{of}"
    error, not_fitting = savings.simulation_error, row.would_not_fit_calls
    return (
        without,
        _saved(savings.total) or _UNKNOWN,
        _part(savings.breakpoints),
        _compaction(row),
        _part(savings.context),
        _part(savings.keep_alive),
        in_words(error) if error else "",
        f"{_calls(not_fitting)}, {in_words(row.would_not_fit_dollars)}" if not_fitting else "",
    )


def _cost(row: Row) -> str:
    """What calls cost, and how many come on top of which nobody knows it: that is never taken for nothing."""
    return _with_unknown(row.dollars, "+", row.unknown_calls)


def _with_unknown(dollars: Decimal | None, word: str, calls: int) -> str:
    """Dollars, and how many calls have no known price."""
    if not calls:
        return in_words(dollars or Decimal(0))
    unknown = f"{_calls(calls)} of unknown price"
    return f"{in_words(dollars)} {word} {unknown}" if dollars else unknown


def _compaction(row: Row) -> str:
    unknown = f"{_calls(row.unknown_compactions)} of unknown price" if row.unknown_compactions else ""
    return " less ".join(filter(None, (_part(row.saved.compaction), unknown)))


def _part(dollars: Decimal | None) -> str:
    """What a mechanism saved or cost; nothing if that is zero or not known."""
    return _saved(dollars) if dollars else ""


def _saved(dollars: Decimal | None) -> str:
    """What was saved, and where it was less than nothing, what it cost; empty where that is not known."""
    if dollars is None:
        return ""
    return f"cost {in_words(-dollars)} more" if dollars < 0 else in_words(dollars)


def _calls(number: int) -> str:
    return f"{number:,} call{'s' * (number != 1)}"


def _in_columns(cells: Sequence[str], widths: Sequence[int], left: int) -> str:
    """Cells below each other: `left` of them names, the others numbers."""
    parts = []
    for number, (text, width) in enumerate(zip(cells, widths, strict=True)):
        blanks = " " * (width - cell_len(text))
        parts.append(text + blanks if number < left else blanks + text)
    return _GAP.join(parts).rstrip()


class CapWriting(_Writing):
    """Writes how caps stand."""

    def lines(self, caps: Sequence[Held]) -> Iterator[str]:
        """A line for each use of a cap below a heading; two lines each where one is too narrow."""
        if not caps:
            return
        ids = short_ids([use.session_id or "" for held in caps for use in held.uses])
        rows = [row for held in caps for row in self._rows(held, ids)]
        widths = [
            max(map(cell_len, column)) for column in zip(_CAP_HEADINGS, *(row[0] for row in rows), strict=True)
        ]
        if not self._fits(widths):
            for cells, level in rows:
                yield from self._narrow(cells, level)
            return
        yield self._painted(self._in_line(_CAP_HEADINGS, widths), _DIM)
        for cells, level in rows:
            line = self._in_line(cells, widths)
            yield line.removesuffix(cells[-1]) + self._painted(cells[-1], _COLOURS[level])

    def _rows(self, held: Held, ids: dict[str, str]) -> Iterator[tuple[tuple[str, ...], Level]]:
        cap = held.cap
        if not held.uses:
            none = "" if cap.scope is Scope.CALL else "nobody has called of late"
            yield (self._about(cap), in_words(cap.dollars), "", "", "", none), Level.FINE
        for use in held.uses[:_MOST_USES]:
            cells = (
                self._about(cap, use, ids),
                in_words(cap.dollars),
                _with_unknown(use.standing.spent, "with", use.unknown_calls),
                in_words(use.standing.reserved),
                in_words(use.left) if use.left > 0 else in_words(Decimal(0)),
                nearness(use),
            )
            yield cells, use.level
        more = len(held.uses) - _MOST_USES
        if more > 0:
            said = f"{more:,} more {cap.scope}{'s' * (more != 1)}, farther from it; --json has them all"
            yield (self._more, "", "", "", "", said), Level.FINE

    def _about(self, cap: Cap, use: Use | None = None, ids: dict[str, str] | None = None) -> str:
        agent = cap.agent if use is None else use.agent
        session = None if use is None or ids is None or use.session_id is None else ids[use.session_id]
        return about(
            cap,
            None if agent is None else self._name(agent),
            None if session is None else self._name(session),
            None if use is None else use.day,
        )

    def _narrow(self, cells: tuple[str, ...], level: Level) -> Iterator[str]:
        about, limit, spent, reserved, left, said = cells
        yield _GAP.join(filter(None, (about, limit, self._painted(said, _COLOURS[level]))))
        if spent:
            yield f"{_INDENT}{spent} spent, {reserved} reserved, {left} left"

    def _in_line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        *numbers, said = cells
        return (
            f"{_in_columns(numbers, widths[:-1], 1)}{_GAP}{said}".rstrip()
            if said
            else _in_columns(numbers, widths[:-1], 1)
        )
