"""What was done to the requests of a session, or to one of them, and what each edit was worth."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TYPE_CHECKING

from foveate.cli.ids import MOST_NAMED, short_ids, the_one
from foveate.cost.money import in_words
from foveate.errors import BadOption
from foveate.values import Savings

if TYPE_CHECKING:
    from foveate.cost.corrections import Correction
    from foveate.session.traces import Traced, TracedEdit, TracedSession
    from foveate.store import Store
    from foveate.store.families import Descendants, SessionLabel

_PAGE = 500
_MOST_OF_SESSION = 20_000
_MOST_AGENTS_OF = 10_000  # sessions, the last ones
_FOLD, _ROOM = "fold", "room"
_MICRO = Decimal("0.000001")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedEdit:
    """An edit and the dollars that it saved on its request; below zero it cost, None where nobody knows."""

    edit: "TracedEdit"
    dollars: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRequest:
    """One request of a session, its number there (the first is 1), and its edits with what they were worth."""

    number: int
    traced: "Traced"
    edits: Sequence[PricedEdit] = ()
    corrections: Sequence["Correction"] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Calls of a category that were made for a session beside its requests.

    `dollars` are those of calls with a known price, and `unknown_calls` says how many have none.
    """

    category: str
    calls: int
    dollars: Decimal
    unknown_calls: int = 0
    savings: Savings = field(default_factory=Savings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStory:
    """The requests of a session in their order, and what else was called for it: summaries, pings, counts.

    `possibly_charged_calls` were under way when their process ended, and cost at most
    `possibly_charged_dollars`; `corrections` of its calls were made by hand.
    """

    session_id: str
    agent: str
    requests: Sequence["Traced"]
    beside: Sequence["Beside"] = ()
    label: "SessionLabel | None" = None
    descendants: "Descendants | None" = None
    possibly_charged_calls: int = 0
    possibly_charged_dollars: Decimal = Decimal(0)
    corrections: Sequence["Correction"] = ()


async def told_of(store: "Store", beginning: str, request_number: int | None) -> SessionStory | TracedRequest:
    """The session whose id begins so, one of its requests by its number, or the request whose id begins so.

    A session can also be told by the whole name that its client gives it.

    Raises:
        BadOption: there is nothing of the kind, or several begin so.
    """
    if not beginning:
        raise BadOption("the id of a session or of a request is expected, or how it begins")
    sessions, ids = await store.traces.ids(beginning, limit=MOST_NAMED + 1)
    session_id = the_one(sessions, beginning, "session") if sessions and beginning not in ids else None
    if session_id is None and not ids:
        session_id = await _named(store, beginning)
    if session_id is not None:
        story = await _story(store, session_id)
        return story if request_number is None else _numbered(story, request_number)
    request_id = the_one(ids, beginning, "request")
    found = await store.traces.trace(request_id) if request_id is not None else None
    if found is None:
        await _check_possible_charge(store, beginning)
        raise BadOption(
            f"nothing is known of a session or request whose id begins with {beginning!r:.80}: `foveate"
            " explain` lists the last sessions that went through a gateway with this store"
        )
    if request_number is not None:
        raise BadOption("--request is for the id of a session: this is that of a request")
    story = await _story(store, found.trace.session_id)
    number = next((at for at, one in enumerate(story.requests, 1) if one.trace.id == found.trace.id), 1)
    return _request(story, number, found)


async def _check_possible_charge(store: "Store", call_id: str) -> None:
    """Say what is known of a request that was under way when its process ended.

    Raises:
        BadOption: it is one.
    """
    entry = await store.ledger.entry(call_id)
    if entry is not None and entry.is_possibly_charged:
        at_most = "an unknown amount" if entry.charge is None else f"at most {in_words(entry.charge)}"
        raise BadOption(
            f"request {call_id!r:.80} of agent {entry.call.agent!r:.80} was under way when the gateway's"
            f" process ended: it is possibly charged, {at_most}, and nothing else is known of it"
        )


async def _named(store: "Store", name: str) -> str | None:
    """Return the id of the session that a client calls so, of agents that were seen lately.

    Raises:
        BadOption: several agents or callers have one.
    """
    from foveate.session.ids import NAME_CHARS, named_id
    from foveate.session.naming import SOURCES, client_session_id

    recent = await store.traces.sessions(limit=_MOST_AGENTS_OF)
    agents = sorted({one.agent for one in recent})
    as_sent = name.encode("utf-8", "replace").decode("latin-1")  # the letters that a header has
    unscoped = {named_id(agent, as_sent): agent for agent in agents}
    unscoped |= {client_session_id(agent, source, (name,)): agent for agent in agents for source in SOURCES}
    ends = {id_[-NAME_CHARS:] for id_ in unscoped}
    found = {one.session_id: one.agent for one in recent if one.session_id[-NAME_CHARS:] in ends}
    for id_, agent in unscoped.items():
        if id_ not in found and await store.traces.listed(limit=1, session_id=id_):
            found[id_] = agent
    if len(found) > 1:
        short = short_ids(list(found))
        listed = ", ".join(f"{short[id_]} of {agent}" for id_, agent in list(found.items())[:MOST_NAMED])
        raise BadOption(f"several sessions are called {name!r:.80}: {listed}; say the id of one")
    return next(iter(found), None)


async def sessions_of(store: "Store", *, limit: int) -> "Sequence[TracedSession]":
    """The sessions that were asked last, with their titles."""
    found = await store.traces.sessions(limit=limit)
    labels = await store.families.labels([one.session_id for one in found])
    return [
        replace(one, title=label.title, parent_id=label.parent_id)
        if (label := labels.get(one.session_id)) is not None
        else one
        for one in found
    ]


async def _story(store: "Store", session_id: str) -> SessionStory:
    found: list[Traced] = []
    before: tuple[float, str] | None = None
    while len(found) < _MOST_OF_SESSION:
        page = await store.traces.listed(limit=_PAGE, session_id=session_id, before=before)
        found += page
        if len(page) < _PAGE:
            break
        before = page[-1].trace.at, page[-1].trace.id
    found.reverse()
    (spent,) = await store.ledger.sums((), session_id=session_id)
    return SessionStory(
        session_id=session_id,
        agent=found[0].trace.agent if found else "",
        requests=found,
        beside=await _beside(store, session_id),
        label=(await store.families.labels([session_id])).get(session_id),
        descendants=(await store.families.descendants([session_id])).get(session_id),
        possibly_charged_calls=spent.possibly_charged_calls,
        possibly_charged_dollars=spent.possibly_charged_dollars,
        corrections=await store.corrections.listed(session_id=session_id),
    )


async def _beside(store: "Store", session_id: str) -> list[Beside]:
    from foveate.cost.ledger import By, Category

    sums = await store.ledger.sums((By.CATEGORY,), session_id=session_id)
    return [
        Beside(
            category=one.group[0],
            calls=one.calls,
            dollars=one.dollars,
            unknown_calls=one.unknown_calls,
            savings=one.savings,
        )
        for one in sums
        if one.group[0] != Category.MAIN
    ]


def _numbered(story: SessionStory, number: int) -> TracedRequest:
    if not 1 <= number <= len(story.requests):
        raise BadOption(f"--request takes 1 to {len(story.requests)} in this session, not {number}")
    found = story.requests[number - 1]
    return _request(story, number, found)


def _request(story: SessionStory, number: int, found: "Traced") -> TracedRequest:
    own = [one for one in story.corrections if one.call_id == found.trace.id]
    return TracedRequest(number=number, traced=found, edits=priced(found), corrections=own)


def priced(traced: "Traced") -> list[PricedEdit]:
    """Each edit with its share, by tokens, of what edits of its kind saved on the call."""
    trace, bill = traced.trace, traced.bill
    if bill is None:
        return [PricedEdit(edit=edit, dollars=None) for edit in trace.edits]
    saved = bill.savings
    pots = {"breakpoints": saved.breakpoints, "compaction": saved.compaction, "context": saved.context}
    totals = {kind: sum(edit.saved_tokens for edit in trace.edits if _kind(edit) == kind) for kind in pots}
    found: list[PricedEdit] = []
    for edit in trace.edits:
        kind = _kind(edit)
        dollars: Decimal | None = None
        pot, total = pots.get(kind), totals.get(kind)
        if pot is not None and total:
            dollars = pot * edit.saved_tokens / total
        found.append(PricedEdit(edit=edit, dollars=None if dollars is None else dollars.quantize(_MICRO)))
    return found


def _kind(edit: "TracedEdit") -> str:
    if edit.does.startswith("mark"):
        return "breakpoints"
    if edit.step in (_FOLD, _ROOM):
        return "compaction"
    return "context" if edit.saved_tokens < 0 else ""
