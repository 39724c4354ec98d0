"""The page of sessions: a list in pages, the newest or the dearest first, as far as one asks for it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from urllib.parse import urlencode

from foveate.cost.money import MOST_DOLLARS
from foveate.errors import BadOption
from foveate.session.totals import Order, SessionTotals, Totals
from foveate.store import Store
from foveate.store.families import Descendants, SessionLabel
from foveate.store.glances import FoldCount
from foveate.web.asking import Asked, Shown
from foveate.web.inside import Inside
from foveate.web.viewer import Viewer
from foveate.web.words import short

PAGE = 50
_THEN = "~"
_LAST_SECOND = 1e12
_MOST_AGENTS = 200
_HOUR = 3_600.0
_SINCE: Mapping[str, float | None] = {"hour": _HOUR, "day": 24 * _HOUR, "week": 7 * 24 * _HOUR, "all": None}
_SINCE_WORDS = {"all": "Ever", "hour": "In the last hour", "day": "In the last day", "week": "In the last week"}
_ORDER_WORDS = {Order.NEWEST.value: "Newest first", Order.DEAREST.value: "Dearest first"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A session as the list shows it."""

    session: SessionTotals
    folds: FoldCount
    label: SessionLabel | None
    descendants: Descendants | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filter:
    """Which sessions are asked for, as the query says it."""

    order: str
    since: str
    agent: str
    beginning: str

    @classmethod
    def of(cls, asked: Asked) -> "_Filter":
        return cls(
            order=asked.choice("order", Order.NEWEST.value, _ORDER_WORDS),
            since=asked.choice("since", "all", _SINCE),
            agent=asked.agent(),
            beginning=asked.text("id"),
        )

    @property
    def is_any(self) -> bool:
        """Whether some are left out."""
        return bool(self.agent or self.beginning) or self.since != "all"

    def address(self, **more: str) -> str:
        """The page of these, from a place on."""
        said = {"order": self.order, "since": self.since, "agent": self.agent, "id": self.beginning}
        usual = {"order": Order.NEWEST.value, "since": "all"}
        query = {name: value for name, value in (said | more).items() if value and usual.get(name) != value}
        return f"?{urlencode(query)}" if query else "/-/sessions"


async def look(inside: Inside, asked: Asked) -> Shown:
    """A page of sessions."""
    store = inside.store
    wanted = _Filter.of(asked)
    seconds = _SINCE[wanted.since]
    since = None if seconds is None else inside.clock() - seconds
    agent = wanted.agent or None
    after, before = _place(asked, "after", wanted.order), _place(asked, "before", wanted.order)
    found, count, agents = await asyncio.gather(
        store.totals.sessions(
            limit=PAGE + 1,
            order=Order(wanted.order),
            after=after,
            before=before,
            since=since,
            agent=agent,
            beginning=wanted.beginning,
        ),
        store.totals.count(since=since, agent=agent, beginning=wanted.beginning),
        _agents(store, asked.viewer),
    )
    # Of a page before another one, the one too many stands first.
    is_more = len(found) > PAGE
    page = found[-PAGE:] if before is not None else found[:PAGE]
    ids = [one.session_id for one in page]
    folds, labels, descendants = await asyncio.gather(
        store.glances.count_folds(ids), store.families.labels(ids), store.families.descendants(ids)
    )
    has_before = is_more if before is not None else after is not None
    has_after = bool(page) if before is not None else is_more
    given = {
        "rows": [
            Row(
                session=one,
                folds=folds.get(one.session_id, FoldCount()),
                label=labels.get(one.session_id),
                descendants=descendants.get(one.session_id),
            )
            for one in page
        ],
        "count": count,
        "page_size": PAGE,
        "wanted": wanted,
        "agents": agents[:_MOST_AGENTS],
        "orders": _ORDER_WORDS,
        "times": _SINCE_WORDS,
        "previous": wanted.address(before=_place_of(page[0], wanted.order)) if page and has_before else None,
        "next": wanted.address(after=_place_of(page[-1], wanted.order)) if page and has_after else None,
        "first": wanted.address() if after is not None or before is not None else None,
    }
    return Shown(template="sessions.html", title="Sessions", given=given)


async def _agents(store: Store, viewer: Viewer) -> Sequence[str]:
    """The agents that the viewer can choose from."""
    return await store.totals.agents() if viewer.agent is None else [viewer.agent]


def _place_of(session: SessionTotals, order: str) -> str:
    """Where a session stands in the list, for an address: there a page begins, wherever it goes since."""
    by = repr(session.last_at) if order == Order.NEWEST else f"{session.totals.dollars:f}"
    return f"{by}{_THEN}{session.session_id}"


def _place(asked: Asked, name: str, order: str) -> SessionTotals | None:
    """The place that a page begins behind, or ends before: of a session as it was."""
    said = asked.text(name)
    if not said:
        return None
    by, _, session_id = said.partition(_THEN)
    try:
        amount = Decimal(by)
    except InvalidOperation:
        amount = Decimal("NaN")
    most = _LAST_SECOND if order == Order.NEWEST else MOST_DOLLARS
    if not session_id or not amount.is_finite() or abs(amount) > most:
        raise BadOption(f"{name}: {short(said, 80)!r} is no place in the list: begin with the first page")
    return SessionTotals(
        session_id=session_id,
        agent="",
        model="",
        first_at=float(amount),
        last_at=float(amount),
        totals=Totals(dollars=amount),  # of the two only that is read by which the list is ordered
    )
