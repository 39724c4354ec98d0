"""Sessions and requests of `foveate explain` as text and as JSON objects."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal

import msgspec
from rich.cells import cell_len, set_cell_size

from foveate.cli.console import Display, format_tokens
from foveate.cli.cost.corrections import correction_lines, correction_object
from foveate.cli.explain.traces import PricedEdit, SessionHistory, TracedRequest, price_edits
from foveate.cli.options import shorten_ids
from foveate.cli.window_chart import WindowChartData, draw_window
from foveate.cost.ledger import Correction
from foveate.cost.savings import add_savings
from foveate.model import ComparisonOutcome, Savings
from foveate.prompt_cache.misses.causes import describe_cause
from foveate.session.traces import ChargedTrace, Trace, TracedCharge, TracedSession, describe_cache_miss

_GAP = "  "
_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"
_HEADINGS = ("#", "time", "model", "context", "read", "written", "out", "dollars", "edits", "")
# Columns to drop, in this order, on narrow displays.
_EXPENDABLE = (6, 2, 5, 4, 1)
_LEFT_ALIGNED = frozenset((1, 2, 9))
_MAX_MODEL_CHARS = 24
_MIN_COLUMNS = 20


def session_object(history: SessionHistory, *, last: int | None = None) -> dict[str, object]:
    """Return a session with its `last` requests, or all, as JSON: money as strings."""
    first = 0 if last is None else max(0, len(history.requests) - last)
    requests = [
        request_object(
            number,
            item,
            price_edits(item),
            [correction for correction in history.corrections if correction.call_id == item.trace.id],
        )
        for number, item in enumerate(history.requests[first:], first + 1)
    ]
    background_calls = [
        {
            "category": item.category,
            "calls": item.calls,
            "dollars": f"{item.dollars:f}",
            "unknown_calls": item.unknown_calls,
        }
        for item in history.background_calls
    ]
    return {
        "session_id": history.session_id,
        "agent": history.agent,
        "title": history.label.title if history.label is not None else "",
        "parent_id": history.label.parent_id if history.label is not None else None,
        "started_sessions": history.descendants.sessions if history.descendants is not None else 0,
        "started_dollars": f"{history.descendants.dollars:f}" if history.descendants is not None else "0",
        "requests": requests,
        "beside": background_calls,
        "possibly_charged_calls": history.possibly_charged_calls,
        "possibly_charged_dollars": f"{history.possibly_charged_dollars:f}",
        "corrections": [correction_object(item) for item in history.corrections],
    }


def request_object(
    number: int,
    charged_trace: ChargedTrace,
    edits: Sequence[PricedEdit],
    corrections: Sequence[Correction] = (),
) -> dict[str, object]:
    trace: dict[str, object] = msgspec.to_builtins(charged_trace.trace, builtin_types=(Decimal,))
    if edits:
        trace["edits"] = [{**msgspec.to_builtins(item.edit), "dollars": item.dollars} for item in edits]
    charge = (
        None
        if charged_trace.charge is None
        else msgspec.to_builtins(charged_trace.charge, builtin_types=(Decimal,))
    )
    return {
        "number": number,
        **{name: _to_json(value) for name, value in trace.items()},
        "bill": _to_json(charge),
        "corrections": [correction_object(item) for item in corrections],
    }


def _to_json(value: object) -> object:
    if isinstance(value, dict):
        return {name: _to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(inner) for inner in value]
    return f"{value:f}" if isinstance(value, Decimal) else value


def sessions_object(sessions: Sequence[TracedSession]) -> dict[str, object]:
    return {"sessions": [msgspec.to_builtins(session) for session in sessions]}


class TraceFormatter:
    def __init__(self, display: Display) -> None:
        self._display = display
        self._columns = max(display.columns, _MIN_COLUMNS)
        self._ellipsis = "…" if display.can_show("…") else ".."

    def session_list_lines(self, sessions: Sequence[TracedSession]) -> Iterator[str]:
        short = shorten_ids([session.session_id for session in sessions])
        rows = [
            (
                self._display.escape(short[session.session_id]),
                _format_date_time(session.last_at),
                f"{session.requests:,}",
                self._display.escape(session.title or session.agent),
            )
            for session in sessions
        ]
        yield from self._table(
            ("session", "last asked", "requests", "title"), rows, left_aligned=frozenset((0, 1, 3))
        )
        yield from self._wrap("foveate explain SESSION shows its requests and what fills its window", _DIM)

    def session_lines(self, history: SessionHistory, *, last: int) -> Iterator[str]:
        requests = history.requests
        description = f": {history.label.title}" if history.label is not None else f", agent {history.agent}"
        yield from self._wrap(f"session {history.session_id}{description}", _BOLD)
        first = max(0, len(requests) - last)
        if first:
            yield from self._wrap(f"{first:,} earlier requests are not shown: --last {len(requests)}", _DIM)
        clock = _format_time if _are_same_day(requests[first:]) else _format_date_time
        rows = [
            self._request_row(index + 1, requests[index], requests[index - 1] if index else None, clock)
            for index in range(first, len(requests))
        ]
        is_one_model = len({background.trace.model for background in requests}) == 1
        yield from self._table(
            _HEADINGS, rows, left_aligned=_LEFT_ALIGNED, hidden_columns=(2,) if is_one_model else ()
        )
        yield from self._wrap(_total_line(requests), _BOLD)
        for line in _comparison_lines(history):
            yield from self._wrap(line)
        for background in history.background_calls:
            paid = _format_paid(background.dollars, unknown=background.unknown_calls, calls=background.calls)
            yield from self._wrap(
                f"beside them {_format_count(background.calls, f'{background.category} call')}, {paid}"
            )
        if (descendants := history.descendants) is not None:
            paid = _format_paid(descendants.dollars, unknown=descendants.unpriced, calls=descendants.calls)
            yield from self._wrap(f"{_format_count(descendants.sessions, 'session')} that it started, {paid}")
        if history.possibly_charged_calls:
            calls, ceiling = (
                _format_count(history.possibly_charged_calls, "call"),
                history.possibly_charged_dollars,
            )
            yield from self._wrap(
                f"{calls} possibly charged, at most {_format_dollars(ceiling)}: "
                "under way when the process ended"
            )
        yield from self._correction_lines(history.corrections)
        if requests:
            yield ""
            yield from self._window_lines(requests[-1].trace)
            yield from self._wrap(
                f"foveate explain {history.session_id[:12]} --request N shows one of them", _DIM
            )

    def _correction_lines(self, corrections: Sequence[Correction]) -> Iterator[str]:
        for correction in corrections:
            for line in correction_lines(correction):
                yield from self._wrap(f"corrected {line.strip()}")

    def request_lines(self, request: TracedRequest) -> Iterator[str]:
        trace, charge = request.charged_trace.trace, request.charged_trace.charge
        heading = f"request {trace.id}, number {request.number} of session {trace.session_id}"
        yield from self._wrap(heading, _BOLD)
        description = (
            f"{_format_date_time(trace.at)}, agent {trace.agent}, {trace.model} at {trace.provider}, "
            f"status {trace.status}"
        )
        yield from self._wrap(f"{description}; {trace.added_seconds * 1000:.1f} ms were added", _DIM)
        yield from self._wrap(_charge_line(charge))
        yield from self._correction_lines(request.corrections)
        if trace.cache_miss is not None:
            lost = trace.cache_miss.lost_dollars
            cause = describe_cause(trace.cache_miss.cause)
            miss_text = describe_cache_miss(
                trace.cache_miss, cause, "" if lost is None else _format_dollars(lost)
            )
            yield from self._wrap(miss_text, _DIM if trace.cache_miss.is_planned else _RED)
        yield ""
        yield from self._window_lines(trace)
        yield ""
        yield from self._edit_lines(request.edits, trace.edits_left_out)
        for step, reason in trace.problems:
            yield from self._wrap(f"without {step}: {reason}", _YELLOW)

    def _request_row(
        self,
        number_in_session: int,
        charged_trace: ChargedTrace,
        before: ChargedTrace | None,
        clock: Callable[[float], str],
    ) -> tuple[str, ...]:
        trace, charge = charged_trace.trace, charged_trace.charge
        context = "unknown" if trace.tokens is None else format_tokens(trace.tokens, trace.exact)
        if trace.tokens is not None and trace.window_tokens:
            context += f" {round(100 * trace.tokens / trace.window_tokens):>3}%"
        numbers = ("", "", "", "")
        if charge is not None:
            written = charge.cache.written_5m + charge.cache.written_1h
            numbers = (
                f"{charge.cache.read:,}",
                f"{written:,}",
                f"{charge.output_tokens:,}",
                _format_dollars(charge.dollars),
            )
        edits = len(trace.edits) + trace.edits_left_out
        notes = []
        if trace.compaction_id is not None:
            is_new = before is None or before.trace.compaction_id != trace.compaction_id
            notes.append("folded" if is_new else "fold")
        if trace.cache_miss is not None:
            kind = "planned rewrite" if trace.cache_miss.is_planned else "broke"
            notes.append(f"{kind}: {trace.cache_miss.cause.replace('_', ' ')}")
        if not 200 <= trace.status < 300:
            notes.append(f"status {trace.status or 'none'}")
        if trace.problems:
            notes.append(f"without {', '.join(step for step, _ in trace.problems)}")
        model = self._display.escape(trace.model)[:_MAX_MODEL_CHARS]
        return (f"{number_in_session}", clock(trace.at), model, context, *numbers, f"{edits}", "; ".join(notes))

    def _window_lines(self, trace: Trace) -> Iterator[str]:
        if trace.tokens is None:
            yield "window: unknown (not counted, or the provider stores earlier messages)"
            return
        window = WindowChartData(
            sections=[(section.name, section.tokens) for section in trace.sections],
            tokens=trace.tokens,
            exact=trace.exact,
            window_tokens=trace.window_tokens,
            reserved_tokens=trace.reserved_tokens,
        )
        yield from draw_window(window, self._display)

    def _edit_lines(self, edits: Sequence[PricedEdit], omitted_count: int) -> Iterator[str]:
        if not edits:
            yield "it went out as it came: nothing was edited"
            return
        yield self._paint(_format_count(len(edits) + omitted_count, "edit"), _BOLD)
        rows = [
            (
                priced_edit.edit.step,
                priced_edit.edit.does,
                priced_edit.edit.place,
                _signed_tokens(priced_edit.edit.saved_tokens),
                _format_saving(priced_edit.dollars),
            )
            for priced_edit in edits
        ]
        escaped = [tuple(self._display.escape(cell) for cell in row) for row in rows]
        widths = [max(cell_len(row[column]) for row in escaped) for column in range(5)]
        reason_column = sum(widths) + len(_GAP) * len([width for width in widths if width])
        for row, priced_edit in zip(escaped, edits, strict=True):
            if reason_column - len(_GAP) > self._columns:  # narrow display: put the savings on their own line
                yield from self._wrap(" ".join(row[:3]))
                savings_texts = [f"{row[3]} tokens" if row[3] else "", row[4]]
                yield from self._wrap(", ".join(filter(None, savings_texts)), indent=4)
                yield from self._wrap(priced_edit.edit.reason, _DIM, indent=4)
                continue
            cells = [
                f"{cell:>{width}}" if column > 2 else set_cell_size(cell, width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
                if width
            ]
            line = _GAP.join(cells).rstrip()
            reason = self._display.escape(priced_edit.edit.reason)
            if reason_column + cell_len(reason) <= self._columns:
                yield f"{line}{' ' * (reason_column - cell_len(line))}{self._paint(reason, _DIM)}"
            else:
                yield line
                yield from self._wrap(priced_edit.edit.reason, _DIM, indent=4)
        if omitted_count:
            yield self._paint(f"and {omitted_count:,} more", _DIM)
        yield from self._wrap(
            "tokens and dollars are what each edit saved on this request, and + what it added; the tokens of a"
            " mark are what the next request can read",
            _DIM,
        )

    def _table(
        self,
        headings: tuple[str, ...],
        rows: Sequence[tuple[str, ...]],
        *,
        left_aligned: frozenset[int],
        hidden_columns: tuple[int, ...] = (),
    ) -> Iterator[str]:
        shown_columns = [column for column in range(len(headings)) if column not in hidden_columns]
        widths = [max(cell_len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
        notes = len(headings) - 1
        for column in _EXPENDABLE if headings is _HEADINGS else ():
            fixed = sum(widths[column] + len(_GAP) for column in shown_columns if column != notes)
            if column in shown_columns and fixed > self._columns:
                shown_columns.remove(column)
        for row_number, row in enumerate((headings, *rows)):
            cells = [
                set_cell_size(row[column], widths[column])
                if column in left_aligned
                else f"{row[column]:>{widths[column]}}"
                for column in shown_columns
                if column != notes
            ]
            line, note = _GAP.join(cells), row[notes]
            if cell_len(line) + len(_GAP) + cell_len(note) > self._columns:  # the note goes below
                yield self._truncate(line)
                yield from self._wrap(note, _DIM, indent=len(_GAP) * 2)
            else:
                whole = f"{line}{_GAP}{note}".rstrip()
                yield self._paint(whole, _DIM) if not row_number else whole

    def _truncate(self, line: str) -> str:
        line = line.rstrip()
        if cell_len(line) <= self._columns:
            return line
        return set_cell_size(line, self._columns - len(self._ellipsis)).rstrip() + self._ellipsis

    def _wrap(self, text: str, colour: str = "", *, indent: int = 0) -> Iterator[str]:
        if not text:
            return
        line = ""
        for word in self._display.escape(text).split(" "):
            if line and indent + cell_len(f"{line} {word}") > self._columns:
                yield self._paint(" " * indent + line, colour)
                line = word
            else:
                line = f"{line} {word}" if line else word
        yield self._paint(" " * indent + line, colour)

    def _paint(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and colour and self._display.colours else text


def _total_line(requests: Sequence[ChargedTrace]) -> str:
    charges = [charged_trace.charge for charged_trace in requests if charged_trace.charge is not None]
    read = sum(charge.cache.read for charge in charges)
    all_input = sum(charge.cache.input_tokens for charge in charges)
    known = [charge.dollars for charge in charges if charge.dollars is not None]
    dollars = _format_paid(sum(known, Decimal(0)), unknown=len(charges) - len(known), calls=len(charges))
    ratio = f"{read / all_input:.2f}" if all_input else "unknown"
    misses = sum(
        charged_trace.trace.cache_miss is not None and not charged_trace.trace.cache_miss.is_planned
        for charged_trace in requests
    )
    planned = sum(
        charged_trace.trace.cache_miss is not None and charged_trace.trace.cache_miss.is_planned
        for charged_trace in requests
    )
    compactions = len({charged_trace.trace.compaction_id for charged_trace in requests} - {None})
    parts = (_format_count(len(requests), "request"), dollars, f"hit ratio {ratio}")
    rewrites = [_format_count(planned, "planned rewrite")] if planned else []
    return ", ".join(
        (*parts, _format_count(compactions, "fold"), _format_count(misses, "cache break"), *rewrites)
    )


def _comparison_lines(history: SessionHistory) -> Iterator[str]:
    charges = [item.charge for item in history.requests if item.charge is not None]
    simulated = [charge.savings for charge in charges if charge.savings.without is not None]
    savings = add_savings(
        [*simulated, *(item.savings for item in history.background_calls if item.savings.without is not None)]
    )
    if simulated and savings.without is not None and savings.total is not None:
        requests_text = (
            ""
            if len(simulated) == len(charges)
            else f" ({_format_count(len(simulated), 'request')} of {len(charges):,})"
        )
        yield (
            f"without Foveate {_format_dollars(savings.without)}{requests_text}, with it"
            f" {_format_dollars(savings.without - savings.total)}: {_savings_parts(savings) or 'no difference'}"
        )
        if savings.simulation_error:
            yield f"simulation error {_signed_dollars(savings.simulation_error)}: charged less simulated"
    not_fitting = [charge for charge in charges if charge.savings.comparison is ComparisonOutcome.WOULD_NOT_FIT]
    if not_fitting:
        charged = sum((charge.dollars or Decimal(0) for charge in not_fitting), Decimal(0))
        yield (
            f"{_format_count(len(not_fitting), 'request')}, {_format_dollars(charged)}: without Foveate the"
            " session would not fit the model's window any more, so no saving is credited"
        )


def _format_paid(dollars: Decimal, *, unknown: int, calls: int) -> str:
    """Format dollars; calls of unknown price are named, not taken as zero."""
    if unknown >= calls:
        return "dollars unknown"
    return _format_dollars(dollars) + (
        f" and {_format_count(unknown, 'call')} of unknown price" if unknown else ""
    )


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _charge_line(charge: TracedCharge | None) -> str:
    if charge is None:
        return "no bill was booked for it"
    cache = charge.cache
    written = cache.written_5m + cache.written_1h
    tokens = (
        f"{cache.uncached:,} uncached, {cache.read:,} read, {written:,} written, {charge.output_tokens:,} out"
    )
    qualifiers = " (inherited: at most, by the model's family)" * charge.is_inherited
    qualifiers += " (list-price equivalent: a subscription pays)" * charge.is_subscription
    parts = [f"billed {_format_dollars(charge.dollars)}{qualifiers}: {tokens}"]
    savings = charge.savings
    if savings.comparison is ComparisonOutcome.WOULD_NOT_FIT:
        parts.append("without Foveate the session would not fit the model's window any more")
    elif savings.without is not None:
        parts.append(f"without Foveate {_format_dollars(savings.without)}")
        parts += filter(None, [_savings_parts(savings)])
        if savings.simulation_error:
            parts.append(f"simulation error {_signed_dollars(savings.simulation_error)}")
    return "; ".join(parts)


def _savings_parts(savings: Savings) -> str:
    parts = {
        "breakpoints": savings.breakpoints,
        "compaction and trimming": savings.compaction,
        "injected context": savings.context,
        "keep-alive": savings.keep_alive,
    }
    return ", ".join(
        f"{mechanism} saved {_format_dollars(amount)}"
        if amount > 0
        else f"{mechanism} cost {_format_dollars(-amount)} more"
        for mechanism, amount in parts.items()
        if amount
    )


def _signed_dollars(amount: Decimal) -> str:
    return f"{'-' if amount < 0 else '+'}{_format_dollars(abs(amount))}"


def _signed_tokens(saved: int) -> str:
    return f"-{saved:,}" if saved > 0 else f"+{-saved:,}" if saved else ""


def _format_saving(dollars: Decimal | None) -> str:
    """Format saved dollars with a minus, and added dollars with a plus."""
    if not dollars:
        return ""
    return f"-{_format_dollars(dollars)}" if dollars > 0 else f"+{_format_dollars(-dollars)}"


def _format_dollars(dollars: Decimal | None) -> str:
    return "$?" if dollars is None else f"${dollars:.6f}" if dollars < 1 else f"${dollars:,.2f}"


def _format_date_time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _are_same_day(requests: Sequence[ChargedTrace]) -> bool:
    return len({_format_date_time(charged_trace.trace.at)[:10] for charged_trace in requests}) <= 1


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
