"""Load traced requests of sessions, and compute what each edit saved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from foveate.cli.shared.options import MAX_LISTED_IDS, resolve_prefix, shorten_ids
from foveate.cost.money import format_dollars
from foveate.errors import BadOption
from foveate.model import Savings

if TYPE_CHECKING:
    from foveate.compaction.inspection import EditGain
    from foveate.cost.ledger import Correction
    from foveate.session.traces import ChargedTrace, TracedEdit, TracedSession
    from foveate.store import Store
    from foveate.store.repositories.sessions import DescendantTotals, SessionLabel

_PAGE = 500
_MAX_SESSION_REQUESTS = 20_000
_MAX_RECENT_SESSIONS = 10_000  # the most recent ones
_COMPACTION_STEP, _OVERFLOW_STEP = "fold", "room"
_MICRODOLLAR = Decimal("0.000001")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedEdit:
    """An edit and the dollars that it saved on its request: negative if it cost more, None if unknown."""

    edit: "TracedEdit"
    dollars: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """A request of a session, its number (the first is 1), and its priced edits."""

    number: int
    charged_trace: "ChargedTrace"
    edits: Sequence[PricedEdit] = ()
    corrections: Sequence["Correction"] = ()


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
    requests: Sequence["ChargedTrace"]
    background_calls: Sequence["BackgroundCalls"] = ()
    label: "SessionLabel | None" = None
    descendants: "DescendantTotals | None" = None
    possibly_charged_calls: int = 0
    possibly_charged_dollars: Decimal = Decimal(0)
    corrections: Sequence["Correction"] = ()
    gains: "Mapping[str, EditGain]" = field(default_factory=dict)


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


async def list_sessions(store: "Store", *, limit: int) -> "Sequence[TracedSession]":
    found = await store.traces.list_sessions(limit=limit)
    labels = await store.session_tree.labels([session.session_id for session in found])
    return [
        replace(session, title=label.title, parent_id=label.parent_id)
        if (label := labels.get(session.session_id)) is not None
        else session
        for session in found
    ]


async def _load_history(store: "Store", session_id: str) -> SessionHistory:
    from foveate.compaction.inspection import load_gains

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
    from foveate.cost.ledger import Category, GroupBy

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


def _make_request(history: SessionHistory, number: int, found: "ChargedTrace") -> TracedRequest:
    corrections = [correction for correction in history.corrections if correction.call_id == found.trace.id]
    return TracedRequest(number=number, charged_trace=found, edits=price_edits(found), corrections=corrections)


def price_edits(charged_trace: "ChargedTrace") -> list[PricedEdit]:
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


def _edit_kind(edit: "TracedEdit") -> str:
    if edit.does.startswith("mark"):
        return "breakpoints"
    if edit.step in (_COMPACTION_STEP, _OVERFLOW_STEP):
        return "compaction"
    return "context" if edit.saved_tokens < 0 else ""
