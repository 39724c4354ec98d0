"""Sessions and their traced requests: what each edit saved, shown as text and as JSON objects."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec
from rich.cells import cell_len

from foveate.cli.cost.output import correction_lines, correction_object
from foveate.cli.shared.console import Display, format_tokens
from foveate.cli.shared.options import MAX_LISTED_IDS, SHORT_ID_CHARS, resolve_prefix, shorten_ids
from foveate.cli.shared.tables import (
    GAP,
    Column,
    Fit,
    format_dollar_column,
    format_table,
    style_text,
    wrap_text,
)
from foveate.cli.shared.window_chart import WindowChartData, draw_window
from foveate.compaction.inspection import EditGain, edit_noun, load_gains
from foveate.cost.ledger import Category, Correction, GroupBy
from foveate.cost.money import format_dollars
from foveate.cost.savings import add_savings
from foveate.errors import BadOption
from foveate.model import ComparisonOutcome, Savings
from foveate.prompt_cache.misses.causes import describe_cause
from foveate.session.traces import (
    ChargedTrace,
    Trace,
    TracedCharge,
    TracedEdit,
    TracedSession,
    describe_action,
    describe_cache_miss,
    describe_step,
)

if TYPE_CHECKING:
    from foveate.store import Store
    from foveate.store.repositories.sessions import DescendantTotals, SessionLabel

_PAGE = 500
_MAX_SESSION_REQUESTS = 20_000
_MAX_RECENT_SESSIONS = 10_000  # the most recent ones
_COMPACTION_STEP, _OVERFLOW_STEP = "fold", "room"
_MICRODOLLAR = Decimal("0.000001")
_SESSION_COLUMNS = (
    Column(heading="session"),
    Column(heading="last request"),
    Column(heading="requests", align="right"),
    Column(heading="title", fit=Fit.SHORTEN),
)
_REQUEST_COLUMNS = (
    Column(heading="#", align="right"),
    Column(heading="time", drop_order=6),
    Column(heading="model", fit=Fit.SHORTEN, optional=True, drop_order=2),
    Column(heading="tokens", align="right"),
    Column(heading="window", align="right", optional=True, drop_order=5),
    Column(heading="read", align="right", drop_order=4),
    Column(heading="written", align="right", drop_order=3),
    Column(heading="output", align="right", drop_order=1),
    Column(heading="cost", align="right"),
    Column(heading="edits", align="right", drop_order=7),
)
_MODEL = 2
_CENT = Decimal("0.01")
_EDIT_COLUMNS = (
    Column(heading="step", drop_order=1),
    Column(heading="action"),
    Column(heading="place", optional=True, drop_order=2),
    Column(heading="tokens", align="right", optional=True),
    Column(heading="cost", align="right", optional=True, drop_order=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedEdit:
    """An edit and the dollars that it saved on its request: negative if it cost more, None if unknown."""

    edit: TracedEdit
    dollars: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """A request of a session, its number (the first is 1), and its priced edits."""

    number: int
    charged_trace: ChargedTrace
    edits: Sequence[PricedEdit] = ()
    corrections: Sequence[Correction] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundCalls:
    """Calls of one category that were made for a session in addition to its requests.

    `dollars` is the sum of calls with a known price; `unknown_calls` have none.
    """

    category: str
    calls: int
    dollars: Decimal
    unknown_calls: int = 0
    savings: Savings = field(default_factory=Savings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHistory:
    """The requests of a session in order, and its background calls: summaries, keep-alives, counts.

    `possibly_charged_calls` were in flight when their process ended, and cost at most
    `possibly_charged_dollars`. `corrections` were made by hand. `gains` describe what each edit of the history
    was expected to save and has saved, by id.
    """

    session_id: str
    agent: str
    requests: Sequence[ChargedTrace]
    background_calls: Sequence[BackgroundCalls] = ()
    label: "SessionLabel | None" = None
    descendants: "DescendantTotals | None" = None
    possibly_charged_calls: int = 0
    possibly_charged_dollars: Decimal = Decimal(0)
    corrections: Sequence[Correction] = ()
    gains: Mapping[str, EditGain] = field(default_factory=dict)


async def find_traces(
    store: "Store", prefix: str, request_number: int | None
) -> SessionHistory | TracedRequest:
    """Find a session or a request by the start of its id; `request_number` selects a request of a session.

    A session can also be found by the exact name that its client gave it.

    Raises:
        BadOption: nothing matches, or several ids match.
    """
    if not prefix:
        raise BadOption("the id of a session or request is missing: give it or its first characters")
    sessions, ids = await store.traces.find_ids(prefix, limit=MAX_LISTED_IDS + 1)
    session_id = resolve_prefix(sessions, prefix, "session") if sessions and prefix not in ids else None
    if session_id is None and not ids:
        session_id = await _find_named_session(store, prefix)
    if session_id is not None:
        history = await _load_history(store, session_id)
        return history if request_number is None else _select_request(history, request_number)
    request_id = resolve_prefix(ids, prefix, "request")
    found = await store.traces.get(request_id) if request_id is not None else None
    if found is None:
        await _reject_possible_charge(store, prefix)
        raise BadOption(
            f"no session or request in the store has an id that starts with {prefix!r:.80}: `foveate explain`"
            " lists the latest sessions"
        )
    if request_number is not None:
        raise BadOption(f"--request needs the id of a session, but {prefix!r:.80} is a request")
    history = await _load_history(store, found.trace.session_id)
    number = next(
        (position for position, stored in enumerate(history.requests, 1) if stored.trace.id == found.trace.id),
        1,
    )
    return _make_request(history, number, found)


async def _reject_possible_charge(store: "Store", call_id: str) -> None:
    """Report a request that was in flight when its process ended.

    Raises:
        BadOption: it was.
    """
    entry = await store.ledger.get_charge(call_id)
    if entry is not None and entry.is_possibly_charged:
        ceiling = "an unknown amount" if entry.charge is None else f"up to {format_dollars(entry.charge)}"
        raise BadOption(
            f"request {call_id!r:.80} of agent {entry.call.agent!r:.80} was in flight when the gateway's"
            f" process ended: the provider may have charged {ceiling} for it, and nothing else was recorded"
        )


async def _find_named_session(store: "Store", name: str) -> str | None:
    """Find a session by its client's name for it, among the agents seen recently.

    Raises:
        BadOption: several agents or callers have one.
    """
    from foveate.session.client_names import (
        NAME_CHARS,
        NAME_SOURCES,
        derive_client_session_id,
        derive_named_session_id,
    )

    recent = await store.traces.list_sessions(limit=_MAX_RECENT_SESSIONS)
    agents = sorted({session.agent for session in recent})
    header_text = name.encode("utf-8", "replace").decode("latin-1")  # as the header is decoded
    candidate_ids = {derive_named_session_id(agent, header_text): agent for agent in agents}
    candidate_ids |= {
        derive_client_session_id(agent, source, (name,)): agent for agent in agents for source in NAME_SOURCES
    }
    id_suffixes = {id_[-NAME_CHARS:] for id_ in candidate_ids}
    found = {
        session.session_id: session.agent
        for session in recent
        if session.session_id[-NAME_CHARS:] in id_suffixes
    }
    for id_, agent in candidate_ids.items():
        if id_ not in found and await store.traces.list_traces(limit=1, session_id=id_):
            found[id_] = agent
    if len(found) > 1:
        short = shorten_ids(list(found))
        matches = ", ".join(f"{short[id_]} of {agent}" for id_, agent in list(found.items())[:MAX_LISTED_IDS])
        raise BadOption(f"several sessions are named {name!r:.80}: {matches}; give the id of one of them")
    return next(iter(found), None)


async def list_sessions(store: "Store", *, limit: int) -> Sequence[TracedSession]:
    found = await store.traces.list_sessions(limit=limit)
    labels = await store.session_tree.labels([session.session_id for session in found])
    return [
        replace(session, title=label.title, parent_id=label.parent_id)
        if (label := labels.get(session.session_id)) is not None
        else session
        for session in found
    ]


async def _load_history(store: "Store", session_id: str) -> SessionHistory:
    found: list[ChargedTrace] = []
    before: tuple[float, str] | None = None
    while len(found) < _MAX_SESSION_REQUESTS:
        page = await store.traces.list_traces(limit=_PAGE, session_id=session_id, before=before)
        found += page
        if len(page) < _PAGE:
            break
        before = page[-1].trace.at, page[-1].trace.id
    found.reverse()
    (totals,) = await store.ledger.sum_charges((), session_id=session_id)
    return SessionHistory(
        session_id=session_id,
        agent=found[0].trace.agent if found else "",
        requests=found,
        background_calls=await _load_background_calls(store, session_id),
        label=(await store.session_tree.labels([session_id])).get(session_id),
        descendants=(await store.session_tree.descendants([session_id])).get(session_id),
        possibly_charged_calls=totals.possibly_charged_calls,
        possibly_charged_dollars=totals.possibly_charged_dollars,
        corrections=await store.corrections.find(session_id=session_id),
        gains=await load_gains(store.compactions, store.ledger, session_id),
    )


async def _load_background_calls(store: "Store", session_id: str) -> list[BackgroundCalls]:
    sums = await store.ledger.sum_charges((GroupBy.CATEGORY,), session_id=session_id)
    return [
        BackgroundCalls(
            category=row.group[0],
            calls=row.calls,
            dollars=row.dollars,
            unknown_calls=row.unknown_calls,
            savings=row.savings,
        )
        for row in sums
        if row.group[0] != Category.MAIN
    ]


def _select_request(history: SessionHistory, number: int) -> TracedRequest:
    if not 1 <= number <= len(history.requests):
        raise BadOption(f"--request takes 1 to {len(history.requests)} in this session, not {number}")
    found = history.requests[number - 1]
    return _make_request(history, number, found)


def _make_request(history: SessionHistory, number: int, found: ChargedTrace) -> TracedRequest:
    corrections = [correction for correction in history.corrections if correction.call_id == found.trace.id]
    return TracedRequest(number=number, charged_trace=found, edits=price_edits(found), corrections=corrections)


def price_edits(charged_trace: ChargedTrace) -> list[PricedEdit]:
    """Split what edits of a kind saved on a call among them, by tokens."""
    trace, charge = charged_trace.trace, charged_trace.charge
    if charge is None:
        return [PricedEdit(edit=edit, dollars=None) for edit in trace.edits]
    savings = charge.savings
    savings_by_kind = {
        "breakpoints": savings.breakpoints,
        "compaction": savings.compaction,
        "context": savings.context,
    }
    totals = {
        kind: sum(edit.saved_tokens for edit in trace.edits if _edit_kind(edit) == kind)
        for kind in savings_by_kind
    }
    found: list[PricedEdit] = []
    for edit in trace.edits:
        kind = _edit_kind(edit)
        dollars: Decimal | None = None
        kind_savings, total = savings_by_kind.get(kind), totals.get(kind)
        if kind_savings is not None and total:
            dollars = kind_savings * edit.saved_tokens / total
        found.append(PricedEdit(edit=edit, dollars=None if dollars is None else dollars.quantize(_MICRODOLLAR)))
    return found


def _edit_kind(edit: TracedEdit) -> str:
    if edit.does.startswith("mark"):
        return "breakpoints"
    if edit.step in (_COMPACTION_STEP, _OVERFLOW_STEP):
        return "compaction"
    return "context" if edit.saved_tokens < 0 else ""


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
        "edits": [_edit_object(id_, gain) for id_, gain in history.gains.items()],
    }


def _edit_object(id_: str, gain: EditGain) -> dict[str, object]:
    decision, realized = gain.decision, gain.realized
    return {
        "id": id_,
        "outcome": gain.outcome,
        "gain": " ".join(gain.sentences()),
        "expected_dollars": decision.net_dollars if decision is not None else None,
        "expected_requests": decision.expected_requests if decision is not None else None,
        "realized_dollars": f"{realized.dollars:f}" if realized is not None else None,
        "realized_requests": realized.requests if realized is not None else None,
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
    if isinstance(value, (list, tuple)):
        return [_to_json(inner) for inner in value]
    return f"{value:f}" if isinstance(value, Decimal) else value


def sessions_object(sessions: Sequence[TracedSession]) -> dict[str, object]:
    return {"sessions": [msgspec.to_builtins(session) for session in sessions]}


class TraceFormatter:
    def __init__(self, display: Display) -> None:
        self._display = display

    def session_list_lines(self, sessions: Sequence[TracedSession]) -> Iterator[str]:
        short = shorten_ids([session.session_id for session in sessions])
        rows = [
            (
                short[session.session_id],
                _format_date_time(session.last_at),
                f"{session.requests:,}",
                session.title or session.agent,
            )
            for session in sessions
        ]
        yield from format_table(_SESSION_COLUMNS, rows, self._display)
        yield from self._wrap(
            "`foveate explain SESSION` lists the requests of a session and shows its context window", "dim"
        )

    def session_lines(self, history: SessionHistory, *, last: int) -> Iterator[str]:
        requests = history.requests
        description = f": {history.label.title}" if history.label is not None else f", agent {history.agent}"
        yield from self._wrap(f"session {history.session_id}{description}", "bold")
        first = max(0, len(requests) - last)
        if first:
            text = f"{first:,} earlier requests are not shown: use --last {len(requests)}"
            yield from self._wrap(text, "dim")
        if requests:
            yield from self._request_table(requests, first)
        yield from self._wrap(_total_line(requests), "bold")
        for background in history.background_calls:
            paid = _format_paid(background.dollars, unknown=background.unknown_calls, calls=background.calls)
            calls = _format_count(background.calls, f"{background.category} call")
            yield from self._wrap(f"{calls} in the background: {paid}")
        for edit_id, gain in history.gains.items():
            if sentences := gain.sentences():
                noun = edit_noun(gain.outcome)
                yield from self._wrap(f"{noun} {edit_id[:SHORT_ID_CHARS]}: {' '.join(sentences)}")
        for line in _comparison_lines(history):
            yield from self._wrap(line)
        if (descendants := history.descendants) is not None:
            paid = _format_paid(descendants.dollars, unknown=descendants.unpriced, calls=descendants.calls)
            yield from self._wrap(
                f"{_format_count(descendants.sessions, 'session')} started by this session: {paid}"
            )
        if history.possibly_charged_calls:
            calls = _format_count(history.possibly_charged_calls, "call")
            ceiling = _format_dollars(history.possibly_charged_dollars)
            yield from self._wrap(
                f"{calls} possibly charged, up to {ceiling}: in flight when the gateway's process ended"
            )
        yield from self._correction_lines(history.corrections)
        if requests:
            yield ""
            yield from self._window_lines(requests[-1].trace)
            yield from self._wrap(
                f"`foveate explain {history.session_id[:12]} --request N` shows one request", "dim"
            )

    def _request_table(self, requests: Sequence[ChargedTrace], first: int) -> Iterator[str]:
        clock = _format_time if _are_same_day(requests[first:]) else _format_date_time
        charges = [item.charge for item in requests[first:]]
        costs = format_dollar_column([None if charge is None else charge.dollars for charge in charges])
        rows = [
            _request_row(index + 1, requests[index], clock, cost)
            for index, cost in enumerate(costs, start=first)
        ]
        if len({item.trace.model for item in requests}) == 1:
            rows = [[*row[:_MODEL], "", *row[_MODEL + 1 :]] for row in rows]
        notes = [
            _request_notes(requests[index], requests[index - 1] if index else None)
            for index in range(first, len(requests))
        ]
        yield from self._table_with_notes(_REQUEST_COLUMNS, rows, notes)

    def _table_with_notes(
        self, columns: Sequence[Column], rows: Sequence[Sequence[str]], notes: Sequence[str]
    ) -> Iterator[str]:
        """The note of a row follows in the same line, or below it if it does not fit."""
        heading, *lines = format_table(columns, rows, self._display)
        yield heading
        cells = max(map(cell_len, lines)) + GAP
        for line, note in zip(lines, notes, strict=True):
            text = self._display.escape(note)
            if text and self._display.is_terminal and cells + cell_len(text) > self._display.columns:
                yield line
                yield from self._wrap(note, "dim", indent=2 * GAP)
            elif text:
                yield line + " " * (cells - cell_len(line)) + style_text(text, "dim", self._display)
            else:
                yield line

    def _correction_lines(self, corrections: Sequence[Correction]) -> Iterator[str]:
        for correction in corrections:
            for line in correction_lines(correction):
                yield from self._wrap(f"corrected {line.strip()}")

    def request_lines(self, request: TracedRequest) -> Iterator[str]:
        trace, charge = request.charged_trace.trace, request.charged_trace.charge
        heading = f"request {trace.id}, number {request.number} of session {trace.session_id}"
        yield from self._wrap(heading, "bold")
        description = (
            f"{_format_date_time(trace.at)}, agent {trace.agent}, {trace.model} at {trace.provider}, "
            f"status {trace.status or 'none'}"
        )
        yield from self._wrap(f"{description}; Foveate added {trace.added_seconds * 1000:.1f} ms", "dim")
        for line in _charge_lines(charge):
            yield from self._wrap(line)
        yield from self._correction_lines(request.corrections)
        if trace.cache_miss is not None:
            lost = trace.cache_miss.lost_dollars
            cause = describe_cause(trace.cache_miss.cause)
            miss_text = describe_cache_miss(
                trace.cache_miss, cause, "" if lost is None else _format_dollars(lost)
            )
            yield from self._wrap(miss_text, "dim" if trace.cache_miss.is_planned else "red")
        yield ""
        yield from self._window_lines(trace)
        yield ""
        yield from self._edit_lines(request.edits, trace.edits_left_out)
        for step, reason in trace.problems:
            yield from self._wrap(f"step failed: {describe_step(step)}: {reason}", "yellow")

    def _window_lines(self, trace: Trace) -> Iterator[str]:
        if trace.tokens is None:
            yield from self._wrap(
                "context window: unknown (tokens were not counted, or the provider stores earlier messages)"
            )
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
            yield "no edits: Foveate forwarded the request unchanged"
            return
        yield style_text(_format_count(len(edits) + omitted_count, "edit"), "bold", self._display)
        costs = format_dollar_column([item.dollars for item in edits], unknown="")
        rows = [
            (
                describe_step(item.edit.step),
                describe_action(item.edit.does),
                item.edit.place,
                _signed_tokens(item.edit.saved_tokens),
                _signed_saving(item.dollars, cost),
            )
            for item, cost in zip(edits, costs, strict=True)
        ]
        yield from self._table_with_notes(_EDIT_COLUMNS, rows, [item.edit.reason for item in edits])
        if omitted_count:
            yield style_text(f"and {omitted_count:,} more", "dim", self._display)
        yield from self._wrap(
            "Tokens and cost: what the edit saves (-) or adds (+) in this request. For a breakpoint, the tokens"
            " are those that the next request can read from the cache.",
            "dim",
        )

    def _wrap(self, text: str, style: str = "", *, indent: int = 0) -> Iterator[str]:
        yield from wrap_text(text, self._display, style=style, indent=indent)


def _request_row(
    number_in_session: int, charged_trace: ChargedTrace, clock: Callable[[float], str], cost: str
) -> list[str]:
    trace, charge = charged_trace.trace, charged_trace.charge
    share = (
        f"{round(100 * trace.tokens / trace.window_tokens)}%"
        if trace.tokens is not None and trace.window_tokens
        else ""
    )
    numbers = ["", "", "", ""]
    if charge is not None:
        written = charge.cache.written_5m + charge.cache.written_1h
        numbers = [f"{charge.cache.read:,}", f"{written:,}", f"{charge.output_tokens:,}", cost]
    return [
        f"{number_in_session}",
        clock(trace.at),
        trace.model,
        "unknown" if trace.tokens is None else format_tokens(trace.tokens, trace.exact),
        share,
        *numbers,
        f"{len(trace.edits) + trace.edits_left_out}",
    ]


def _request_notes(charged_trace: ChargedTrace, before: ChargedTrace | None) -> str:
    trace = charged_trace.trace
    notes = []
    if trace.compaction_id is not None:
        is_new = before is None or before.trace.compaction_id != trace.compaction_id
        notes.append("new compaction" if is_new else "compacted")
    if trace.cache_miss is not None:
        kind = "planned rewrite" if trace.cache_miss.is_planned else "cache miss"
        notes.append(f"{kind}: {trace.cache_miss.cause.replace('_', ' ')}")
    if not 200 <= trace.status < 300:
        notes.append(f"status {trace.status or 'none'}")
    if trace.problems:
        notes.append(f"failed: {', '.join(describe_step(step) for step, _ in trace.problems)}")
    return "; ".join(notes)


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
    parts = (_format_count(len(requests), "request"), dollars, f"cache hit ratio {ratio}")
    rewrites = [_format_count(planned, "planned rewrite")] if planned else []
    return ", ".join(
        (*parts, _format_count(compactions, "compaction"), _format_count(misses, "cache miss", "es"), *rewrites)
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
            else f" (for {len(simulated):,} of {_format_count(len(charges), 'request')})"
        )
        yield (
            f"without Foveate {_format_dollars(savings.without)}{requests_text}, with Foveate"
            f" {_format_dollars(savings.without - savings.total)}: {_savings_parts(savings) or 'no difference'}"
        )
        if savings.simulation_error:
            yield f"simulation error {_signed_dollars(savings.simulation_error)} (charged minus simulated)"
    not_fitting = [charge for charge in charges if charge.savings.comparison is ComparisonOutcome.WOULD_NOT_FIT]
    if not_fitting:
        charged = sum((charge.dollars or Decimal(0) for charge in not_fitting), Decimal(0))
        yield (
            f"{_format_count(len(not_fitting), 'request')}, {_format_dollars(charged)}: without Foveate the"
            " session would no longer fit the context window, so no savings are counted"
        )


def _format_paid(dollars: Decimal, *, unknown: int, calls: int) -> str:
    """Calls of unknown price are named, not taken as zero."""
    if unknown >= calls:
        return "cost unknown"
    return _format_dollars(dollars) + (
        f" and {_format_count(unknown, 'call')} of unknown price" if unknown else ""
    )


def _format_count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural * (number != 1)}"


def _charge_lines(charge: TracedCharge | None) -> Iterator[str]:
    if charge is None:
        yield "no charge was recorded for this request"
        return
    cache = charge.cache
    written = cache.written_5m + cache.written_1h
    tokens = (
        f"{cache.uncached:,} uncached, {cache.read:,} cache read, {written:,} cache write, "
        f"{charge.output_tokens:,} output tokens"
    )
    qualifiers = " (upper bound: the price of the model's family)" * charge.is_inherited
    qualifiers += " (list price: a subscription pays for it)" * charge.is_subscription
    yield f"charged {_format_dollars(charge.dollars)}{qualifiers}: {tokens}"
    savings = charge.savings
    if savings.comparison is ComparisonOutcome.WOULD_NOT_FIT:
        yield "without Foveate the session would no longer fit the context window"
    elif savings.without is not None:
        parts = [f"without Foveate {_format_dollars(savings.without)}", _savings_parts(savings)]
        if savings.simulation_error:
            parts.append(f"simulation error {_signed_dollars(savings.simulation_error)}")
        yield "; ".join(filter(None, parts))


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
        else f"{mechanism} added {_format_dollars(-amount)}"
        for mechanism, amount in parts.items()
        if amount
    )


def _signed_dollars(amount: Decimal) -> str:
    return f"{'-' if amount < 0 else '+'}{_format_dollars(abs(amount))}"


def _signed_tokens(saved: int) -> str:
    return f"-{saved:,}" if saved > 0 else f"+{-saved:,}" if saved else ""


def _signed_saving(dollars: Decimal | None, formatted: str) -> str:
    """Mark saved dollars with a minus, and added dollars with a plus."""
    if not dollars:
        return ""
    return f"-{formatted}" if dollars > 0 else f"+{formatted.removeprefix('-')}"


def _format_dollars(dollars: Decimal | None) -> str:
    if dollars is None:
        return "an unknown amount"
    digits = 2 if dollars >= 1 else 4 if dollars >= _CENT else 6
    return f"${dollars:,.{digits}f}"


def _format_date_time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _are_same_day(requests: Sequence[ChargedTrace]) -> bool:
    return len({_format_date_time(charged_trace.trace.at)[:10] for charged_trace in requests}) <= 1


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%H:%M:%S")
