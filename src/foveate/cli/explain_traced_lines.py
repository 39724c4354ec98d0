"""What `foveate explain` shows of sessions and requests: lines for people, objects for programs."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal

import msgspec
from rich.cells import cell_len, set_cell_size

from foveate.cache.cause_words import cause_in_words
from foveate.cli.cost_correct import correction_lines, correction_object
from foveate.cli.explain_traced import PricedEdit, SessionStory, TracedRequest, priced
from foveate.cli.ids import short_ids
from foveate.cli.screen import Look, number
from foveate.cli.window_bars import Window, window_lines
from foveate.cost.corrections import Correction
from foveate.cost.savings import add_savings
from foveate.session.telling import broke_in_words
from foveate.session.traces import Bill, Trace, Traced, TracedSession
from foveate.values import Comparison, Savings

_GAP = "  "
_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"
_HEADINGS = ("#", "time", "model", "context", "read", "written", "out", "dollars", "edits", "")
# The columns that go first where there is no room for all of them.
_EXPENDABLE = (6, 2, 5, 4, 1)
_LEFT = frozenset((1, 2, 9))
_SHORT_MODEL = 24
_LEAST_COLUMNS = 20


def session_object(story: SessionStory, *, last: int | None = None) -> dict[str, object]:
    """A session with its `last` requests, or all, as JSON can say it; money is a string, to the digit."""
    first = 0 if last is None else max(0, len(story.requests) - last)
    requests = [
        request_object(
            at, one, priced(one), [made for made in story.corrections if made.call_id == one.trace.id]
        )
        for at, one in enumerate(story.requests[first:], first + 1)
    ]
    beside = [
        {
            "category": one.category,
            "calls": one.calls,
            "dollars": f"{one.dollars:f}",
            "unknown_calls": one.unknown_calls,
        }
        for one in story.beside
    ]
    return {
        "session_id": story.session_id,
        "agent": story.agent,
        "title": story.label.title if story.label is not None else "",
        "parent_id": story.label.parent_id if story.label is not None else None,
        "started_sessions": story.descendants.sessions if story.descendants is not None else 0,
        "started_dollars": f"{story.descendants.dollars:f}" if story.descendants is not None else "0",
        "requests": requests,
        "beside": beside,
        "possibly_charged_calls": story.possibly_charged_calls,
        "possibly_charged_dollars": f"{story.possibly_charged_dollars:f}",
        "corrections": [correction_object(one) for one in story.corrections],
    }


def request_object(
    at: int, traced: Traced, edits: Sequence[PricedEdit], corrections: Sequence[Correction] = ()
) -> dict[str, object]:
    """A request as JSON can say it."""
    trace: dict[str, object] = msgspec.to_builtins(traced.trace, builtin_types=(Decimal,))
    if edits:
        trace["edits"] = [{**msgspec.to_builtins(one.edit), "dollars": one.dollars} for one in edits]
    bill = None if traced.bill is None else msgspec.to_builtins(traced.bill, builtin_types=(Decimal,))
    return {
        "number": at,
        **{name: _jsonable(said) for name, said in trace.items()},
        "bill": _jsonable(bill),
        "corrections": [correction_object(one) for one in corrections],
    }


def _jsonable(said: object) -> object:
    if isinstance(said, dict):
        return {name: _jsonable(inner) for name, inner in said.items()}
    if isinstance(said, list | tuple):
        return [_jsonable(inner) for inner in said]
    return f"{said:f}" if isinstance(said, Decimal) else said


def sessions_object(sessions: Sequence[TracedSession]) -> dict[str, object]:
    """Sessions as JSON can say them."""
    return {"sessions": [msgspec.to_builtins(one) for one in sessions]}


class TraceWriting:
    """Writes for a terminal or a file, as far as that can show it."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._columns = max(look.columns, _LEAST_COLUMNS)
        self._more = "…" if look.can_show("…") else ".."

    def sessions(self, sessions: Sequence[TracedSession]) -> Iterator[str]:
        """The sessions that were asked last, a line each."""
        short = short_ids([one.session_id for one in sessions])
        rows = [
            (
                self._look.plain(short[one.session_id]),
                _when(one.last_at),
                f"{one.requests:,}",
                self._look.plain(one.title or one.agent),
            )
            for one in sessions
        ]
        yield from self._table(("session", "last asked", "requests", "title"), rows, left=frozenset((0, 1, 3)))
        yield from self._wrapped("foveate explain SESSION shows its requests and what fills its window", _DIM)

    def session(self, story: SessionStory, *, last: int) -> Iterator[str]:
        """A line for each request, the `last` ones, and the window of the last."""
        requests = story.requests
        about = f": {story.label.title}" if story.label is not None else f", agent {story.agent}"
        yield from self._wrapped(f"session {story.session_id}{about}", _BOLD)
        first = max(0, len(requests) - last)
        if first:
            yield from self._wrapped(f"{first:,} earlier requests are not shown: --last {len(requests)}", _DIM)
        clock = _clock if _are_of_one_day(requests[first:]) else _when
        rows = [
            self._request_row(at + 1, requests[at], requests[at - 1] if at else None, clock)
            for at in range(first, len(requests))
        ]
        same = len({one.trace.model for one in requests}) == 1
        yield from self._table(_HEADINGS, rows, left=_LEFT, without=(2,) if same else ())
        yield from self._wrapped(_total(requests), _BOLD)
        for line in _compared(story):
            yield from self._wrapped(line)
        for one in story.beside:
            paid = _paid(one.dollars, unknown=one.unknown_calls, calls=one.calls)
            yield from self._wrapped(f"beside them {_counted(one.calls, f'{one.category} call')}, {paid}")
        if (more := story.descendants) is not None:
            paid = _paid(more.dollars, unknown=more.unpriced, calls=more.calls)
            yield from self._wrapped(f"{_counted(more.sessions, 'session')} that it started, {paid}")
        if story.possibly_charged_calls:
            calls, at_most = _counted(story.possibly_charged_calls, "call"), story.possibly_charged_dollars
            yield from self._wrapped(
                f"{calls} possibly charged, at most {_dollars(at_most)}: under way when the process ended"
            )
        yield from self._corrected(story.corrections)
        if requests:
            yield ""
            yield from self._window(requests[-1].trace)
            yield from self._wrapped(
                f"foveate explain {story.session_id[:12]} --request N shows one of them", _DIM
            )

    def _corrected(self, corrections: Sequence[Correction]) -> Iterator[str]:
        for one in corrections:
            for line in correction_lines(one):
                yield from self._wrapped(f"corrected {line.strip()}")

    def request(self, told: TracedRequest) -> Iterator[str]:
        """A request: its bill, its window, and every edit with its reason, tokens and dollars."""
        trace, bill = told.traced.trace, told.traced.bill
        heading = f"request {trace.id}, number {told.number} of session {trace.session_id}"
        yield from self._wrapped(heading, _BOLD)
        about = (
            f"{_when(trace.at)}, agent {trace.agent}, {trace.model} at {trace.provider}, status {trace.status}"
        )
        yield from self._wrapped(f"{about}; {trace.added_seconds * 1000:.1f} ms were added", _DIM)
        yield from self._wrapped(_billed(bill))
        yield from self._corrected(told.corrections)
        if trace.broke is not None:
            lost = trace.broke.lost_dollars
            why = cause_in_words(trace.broke.cause)
            told_of_it = broke_in_words(trace.broke, why, "" if lost is None else _dollars(lost))
            yield from self._wrapped(told_of_it, _DIM if trace.broke.is_planned else _RED)
        yield ""
        yield from self._window(trace)
        yield ""
        yield from self._edits(told.edits, trace.edits_left_out)
        for step, reason in trace.problems:
            yield from self._wrapped(f"without {step}: {reason}", _YELLOW)

    def _request_row(
        self, at: int, one: Traced, before: Traced | None, clock: Callable[[float], str]
    ) -> tuple[str, ...]:
        trace, bill = one.trace, one.bill
        context = "unknown" if trace.tokens is None else number(trace.tokens, trace.exact)
        if trace.tokens is not None and trace.window_tokens:
            context += f" {round(100 * trace.tokens / trace.window_tokens):>3}%"
        numbers = ("", "", "", "")
        if bill is not None:
            written = bill.cache.written_5m + bill.cache.written_1h
            numbers = (
                f"{bill.cache.read:,}",
                f"{written:,}",
                f"{bill.output_tokens:,}",
                _dollars(bill.dollars),
            )
        edits = len(trace.edits) + trace.edits_left_out
        notes = []
        if trace.fold_id is not None:
            is_new = before is None or before.trace.fold_id != trace.fold_id
            notes.append("folded" if is_new else "fold")
        if trace.broke is not None:
            what = "planned rewrite" if trace.broke.is_planned else "broke"
            notes.append(f"{what}: {trace.broke.cause.replace('_', ' ')}")
        if not 200 <= trace.status < 300:
            notes.append(f"status {trace.status or 'none'}")
        if trace.problems:
            notes.append(f"without {', '.join(step for step, _ in trace.problems)}")
        model = self._look.plain(trace.model)[:_SHORT_MODEL]
        return (f"{at}", clock(trace.at), model, context, *numbers, f"{edits}", "; ".join(notes))

    def _window(self, trace: Trace) -> Iterator[str]:
        if trace.tokens is None:
            yield "window: unknown (not counted, or the provider stores earlier messages)"
            return
        window = Window(
            sections=[(section.name, section.tokens) for section in trace.sections],
            tokens=trace.tokens,
            exact=trace.exact,
            window_tokens=trace.window_tokens,
            reserved_tokens=trace.reserved_tokens,
        )
        yield from window_lines(window, self._look)

    def _edits(self, edits: Sequence[PricedEdit], left_out: int) -> Iterator[str]:
        if not edits:
            yield "it went out as it came: nothing was edited"
            return
        yield self._painted(_counted(len(edits) + left_out, "edit"), _BOLD)
        rows = [
            (one.edit.step, one.edit.does, one.edit.place, _tokens(one.edit.saved_tokens), _worth(one.dollars))
            for one in edits
        ]
        shown = [tuple(self._look.plain(cell) for cell in row) for row in rows]
        widths = [max(cell_len(row[at]) for row in shown) for at in range(5)]
        lead = sum(widths) + len(_GAP) * len([width for width in widths if width])
        for row, one in zip(shown, edits, strict=True):
            if lead - len(_GAP) > self._columns:  # a narrow terminal: what it was worth stands below
                yield from self._wrapped(" ".join(row[:3]))
                worth = [f"{row[3]} tokens" if row[3] else "", row[4]]
                yield from self._wrapped(", ".join(filter(None, worth)), indent=4)
                yield from self._wrapped(one.edit.reason, _DIM, indent=4)
                continue
            cells = [
                f"{cell:>{width}}" if at > 2 else set_cell_size(cell, width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
                if width
            ]
            line = _GAP.join(cells).rstrip()
            reason = self._look.plain(one.edit.reason)
            if lead + cell_len(reason) <= self._columns:
                yield f"{line}{' ' * (lead - cell_len(line))}{self._painted(reason, _DIM)}"
            else:
                yield line
                yield from self._wrapped(one.edit.reason, _DIM, indent=4)
        if left_out:
            yield self._painted(f"and {left_out:,} more", _DIM)
        yield from self._wrapped(
            "tokens and dollars are what each edit saved on this request, and + what it added; the tokens of a"
            " mark are what the next request can read",
            _DIM,
        )

    def _table(
        self,
        headings: tuple[str, ...],
        rows: Sequence[tuple[str, ...]],
        *,
        left: frozenset[int],
        without: tuple[int, ...] = (),
    ) -> Iterator[str]:
        shown = [at for at in range(len(headings)) if at not in without]
        widths = [max(cell_len(row[at]) for row in (headings, *rows)) for at in range(len(headings))]
        notes = len(headings) - 1
        for at in _EXPENDABLE if headings is _HEADINGS else ():
            fixed = sum(widths[one] + len(_GAP) for one in shown if one != notes)
            if at in shown and fixed > self._columns:
                shown.remove(at)
        for row_at, row in enumerate((headings, *rows)):
            cells = [
                set_cell_size(row[at], widths[at]) if at in left else f"{row[at]:>{widths[at]}}"
                for at in shown
                if at != notes
            ]
            line, note = _GAP.join(cells), row[notes]
            if cell_len(line) + len(_GAP) + cell_len(note) > self._columns:  # it stands below
                yield self._cut(line)
                yield from self._wrapped(note, _DIM, indent=len(_GAP) * 2)
            else:
                whole = f"{line}{_GAP}{note}".rstrip()
                yield self._painted(whole, _DIM) if not row_at else whole

    def _cut(self, line: str) -> str:
        """A line that fits."""
        line = line.rstrip()
        if cell_len(line) <= self._columns:
            return line
        return set_cell_size(line, self._columns - len(self._more)).rstrip() + self._more

    def _wrapped(self, text: str, colour: str = "", *, indent: int = 0) -> Iterator[str]:
        if not text:
            return
        line = ""
        for word in self._look.plain(text).split(" "):
            if line and indent + cell_len(f"{line} {word}") > self._columns:
                yield self._painted(" " * indent + line, colour)
                line = word
            else:
                line = f"{line} {word}" if line else word
        yield self._painted(" " * indent + line, colour)

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if text and colour and self._look.colours else text


def _total(requests: Sequence[Traced]) -> str:
    bills = [one.bill for one in requests if one.bill is not None]
    read = sum(bill.cache.read for bill in bills)
    all_input = sum(bill.cache.input_tokens for bill in bills)
    known = [bill.dollars for bill in bills if bill.dollars is not None]
    dollars = _paid(sum(known, Decimal(0)), unknown=len(bills) - len(known), calls=len(bills))
    ratio = f"{read / all_input:.2f}" if all_input else "unknown"
    breaks = sum(one.trace.broke is not None and not one.trace.broke.is_planned for one in requests)
    planned = sum(one.trace.broke is not None and one.trace.broke.is_planned for one in requests)
    folds = len({one.trace.fold_id for one in requests} - {None})
    told = (_counted(len(requests), "request"), dollars, f"hit ratio {ratio}")
    rewrites = [_counted(planned, "planned rewrite")] if planned else []
    return ", ".join((*told, _counted(folds, "fold"), _counted(breaks, "cache break"), *rewrites))


def _compared(story: SessionStory) -> Iterator[str]:
    """The cost of a session with and without Foveate, calls that were made beside its requests included."""
    bills = [one.bill for one in story.requests if one.bill is not None]
    simulated = [bill.savings for bill in bills if bill.savings.without is not None]
    savings = add_savings(
        [*simulated, *(one.savings for one in story.beside if one.savings.without is not None)]
    )
    if simulated and savings.without is not None and savings.total is not None:
        of = (
            ""
            if len(simulated) == len(bills)
            else f" ({_counted(len(simulated), 'request')} of {len(bills):,})"
        )
        yield (
            f"without Foveate {_dollars(savings.without)}{of}, with it"
            f" {_dollars(savings.without - savings.total)}: {_parts(savings) or 'no difference'}"
        )
        if savings.simulation_error:
            yield f"simulation error {_signed(savings.simulation_error)}: charged less simulated"
    not_fitting = [bill for bill in bills if bill.savings.comparison is Comparison.WOULD_NOT_FIT]
    if not_fitting:
        spent = sum((bill.dollars or Decimal(0) for bill in not_fitting), Decimal(0))
        yield (
            f"{_counted(len(not_fitting), 'request')}, {_dollars(spent)}: without Foveate the session would not"
            " fit the model's window any more, so no saving is credited"
        )


def _paid(dollars: Decimal, *, unknown: int, calls: int) -> str:
    """Dollars of calls of which some may have no known price: what is unknown is not zero."""
    if unknown >= calls:
        return "dollars unknown"
    return _dollars(dollars) + (f" and {_counted(unknown, 'call')} of unknown price" if unknown else "")


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _billed(bill: Bill | None) -> str:
    if bill is None:
        return "no bill was booked for it"
    cache = bill.cache
    written = cache.written_5m + cache.written_1h
    tokens = (
        f"{cache.uncached:,} uncached, {cache.read:,} read, {written:,} written, {bill.output_tokens:,} out"
    )
    marks = " (inherited: at most, by the model's family)" * bill.is_inherited
    marks += " (list-price equivalent: a subscription pays)" * bill.is_subscription
    told = [f"billed {_dollars(bill.dollars)}{marks}: {tokens}"]
    savings = bill.savings
    if savings.comparison is Comparison.WOULD_NOT_FIT:
        told.append("without Foveate the session would not fit the model's window any more")
    elif savings.without is not None:
        told.append(f"without Foveate {_dollars(savings.without)}")
        told += filter(None, [_parts(savings)])
        if savings.simulation_error:
            told.append(f"simulation error {_signed(savings.simulation_error)}")
    return "; ".join(told)


def _parts(savings: Savings) -> str:
    """What each mechanism saved or cost, if it did."""
    parts = {
        "breakpoints": savings.breakpoints,
        "compaction and trimming": savings.compaction,
        "injected context": savings.context,
        "keep-alive": savings.keep_alive,
    }
    return ", ".join(
        f"{what} saved {_dollars(amount)}" if amount > 0 else f"{what} cost {_dollars(-amount)} more"
        for what, amount in parts.items()
        if amount
    )


def _signed(amount: Decimal) -> str:
    return f"{'-' if amount < 0 else '+'}{_dollars(abs(amount))}"


def _tokens(saved: int) -> str:
    return f"-{saved:,}" if saved > 0 else f"+{-saved:,}" if saved else ""


def _worth(dollars: Decimal | None) -> str:
    """Dollars that were saved, below zero; what cost more has a plus."""
    if not dollars:
        return ""
    return f"-{_dollars(dollars)}" if dollars > 0 else f"+{_dollars(-dollars)}"


def _dollars(dollars: Decimal | None) -> str:
    return "$?" if dollars is None else f"${dollars:.6f}" if dollars < 1 else f"${dollars:,.2f}"


def _when(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _are_of_one_day(requests: Sequence[Traced]) -> bool:
    return len({_when(one.trace.at)[:10] for one in requests}) <= 1


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
