"""The list of sessions, in pages, with filters and two orders."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from urllib.parse import urlencode

from foveate.cost.money import MAX_DOLLARS
from foveate.errors import BadOption
from foveate.session.rollups import SessionOrder, SessionTotals, Totals
from foveate.store import Store
from foveate.store.dashboard import CompactionCounts
from foveate.store.repositories.sessions import DescendantTotals, SessionLabel
from foveate.web.formatting import shorten_name
from foveate.web.gateway_data import GatewayData
from foveate.web.page import PageRequest, WebPage
from foveate.web.viewer import Viewer

SESSIONS_PER_PAGE = 50
_PLACE_SEPARATOR = "~"
_MAX_TIMESTAMP = 1e12
_MAX_AGENTS = 200
_HOUR_SECONDS = 3_600.0
_PERIODS: Mapping[str, float | None] = {
    "hour": _HOUR_SECONDS,
    "day": 24 * _HOUR_SECONDS,
    "week": 7 * 24 * _HOUR_SECONDS,
    "all": None,
}
_PERIOD_LABELS = {
    "all": "Any time",
    "hour": "Last hour",
    "day": "Last 24 hours",
    "week": "Last 7 days",
}
_ORDER_LABELS = {SessionOrder.NEWEST.value: "Newest first", SessionOrder.DEAREST.value: "Most expensive first"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    session: SessionTotals
    compactions: CompactionCounts
    label: SessionLabel | None
    descendants: DescendantTotals | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SessionFilter:
    order: str
    since: str
    agent: str
    id_prefix: str

    @classmethod
    def from_request(cls, page_request: PageRequest) -> "_SessionFilter":
        return cls(
            order=page_request.choice("order", SessionOrder.NEWEST.value, _ORDER_LABELS),
            since=page_request.choice("since", "all", _PERIODS),
            agent=page_request.agent(),
            id_prefix=page_request.text("id"),
        )

    @property
    def is_active(self) -> bool:
        return bool(self.agent or self.id_prefix) or self.since != "all"

    def build_link(self, **more: str) -> str:
        parameters = {"order": self.order, "since": self.since, "agent": self.agent, "id": self.id_prefix}
        defaults = {"order": SessionOrder.NEWEST.value, "since": "all"}
        query = {
            name: value for name, value in (parameters | more).items() if value and defaults.get(name) != value
        }
        return f"?{urlencode(query)}" if query else "/-/sessions"


async def load_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    store = data.store
    session_filter = _SessionFilter.from_request(page_request)
    seconds = _PERIODS[session_filter.since]
    since = None if seconds is None else data.clock() - seconds
    agent = session_filter.agent or None
    after, before = (
        _parse_place(page_request, "after", session_filter.order),
        _parse_place(page_request, "before", session_filter.order),
    )
    sessions, count, agents = await asyncio.gather(
        store.totals.list_sessions(
            limit=SESSIONS_PER_PAGE + 1,
            order=SessionOrder(session_filter.order),
            after=after,
            before=before,
            since=since,
            agent=agent,
            id_prefix=session_filter.id_prefix,
        ),
        store.totals.count_sessions(since=since, agent=agent, id_prefix=session_filter.id_prefix),
        _list_agents(store, page_request.viewer),
    )
    # Going backward, the extra row comes first.
    has_more = len(sessions) > SESSIONS_PER_PAGE
    page = sessions[-SESSIONS_PER_PAGE:] if before is not None else sessions[:SESSIONS_PER_PAGE]
    ids = [session.session_id for session in page]
    compaction_counts, labels, descendants = await asyncio.gather(
        store.dashboard.count_compactions(ids),
        store.session_tree.labels(ids),
        store.session_tree.descendants(ids),
    )
    has_before = has_more if before is not None else after is not None
    has_after = bool(page) if before is not None else has_more
    context = {
        "rows": [
            SessionRow(
                session=session,
                compactions=compaction_counts.get(session.session_id, CompactionCounts()),
                label=labels.get(session.session_id),
                descendants=descendants.get(session.session_id),
            )
            for session in page
        ],
        "count": count,
        "page_size": SESSIONS_PER_PAGE,
        "session_filter": session_filter,
        "agents": agents[:_MAX_AGENTS],
        "orders": _ORDER_LABELS,
        "periods": _PERIOD_LABELS,
        "previous": session_filter.build_link(before=_format_place(page[0], session_filter.order))
        if page and has_before
        else None,
        "next": session_filter.build_link(after=_format_place(page[-1], session_filter.order))
        if page and has_after
        else None,
        "first": session_filter.build_link() if after is not None or before is not None else None,
    }
    return WebPage(template="sessions.html", title="Sessions", context=context)


async def _list_agents(store: Store, viewer: Viewer) -> Sequence[str]:
    return await store.totals.list_agents() if viewer.agent is None else [viewer.agent]


def _format_place(session: SessionTotals, order: str) -> str:
    """Return a session's place in the list as text, so that pages stay stable while sessions change."""
    sort_value = repr(session.last_at) if order == SessionOrder.NEWEST else f"{session.totals.dollars:f}"
    return f"{sort_value}{_PLACE_SEPARATOR}{session.session_id}"


def _parse_place(page_request: PageRequest, name: str, order: str) -> SessionTotals | None:
    """Parse the place that a page starts after, or ends before."""
    text = page_request.text(name)
    if not text:
        return None
    sort_value, _, session_id = text.partition(_PLACE_SEPARATOR)
    try:
        amount = Decimal(sort_value)
    except InvalidOperation:
        amount = Decimal("NaN")
    max_amount = _MAX_TIMESTAMP if order == SessionOrder.NEWEST else MAX_DOLLARS
    if not session_id or not amount.is_finite() or abs(amount) > max_amount:
        raise BadOption(
            f"{name}: {shorten_name(text, 80)!r} is not a position in the list; start from the first page"
        )
    return SessionTotals(
        session_id=session_id,
        agent="",
        model="",
        first_at=float(amount),
        last_at=float(amount),
        totals=Totals(dollars=amount),  # only the sort key of the order is read
    )
