"""The list of sessions, and the page of one: its context window over time, requests, compactions and forks."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from math import isfinite, nan
from urllib.parse import urlencode

from foveate.compaction.store import Compaction
from foveate.cost.ledger import Category, ChargeTotal, GroupBy
from foveate.cost.money import MAX_DOLLARS
from foveate.errors import BadOption
from foveate.prompt_cache.misses.causes import describe_cause
from foveate.session.rollups import SessionOrder, SessionTotals, Totals
from foveate.session.traces import ChargedTrace, Trace, describe_cache_miss
from foveate.store import Store
from foveate.store.dashboard import CompactionCounts, WindowContents, WindowSample
from foveate.store.repositories.sessions import DescendantTotals, SessionLabel
from foveate.web.charts import OTHER_COLOUR, Chart, ChartEvent, Series, Shape, Unit
from foveate.web.formatting import format_count, format_money, format_percent, format_tokens, shorten_name
from foveate.web.page import GatewayData, PageNotFound, PageRequest, Viewer, WebPage
from foveate.web.pages.compactions import MAX_CALLS, load_compactions

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
REQUESTS_PER_PAGE = 50
COMPACTIONS_PER_PAGE = 10
_MAX_LOADED_POINTS = 2_000
"""Number of latest requests in the chart."""
_MAX_COMPACTIONS = 60
_MAX_CHILDREN = 20
MAX_POINTS = 150
"""Points of a chart; each is the fullest of a stretch of requests."""
MAX_MISSES = 100
"""Number of latest cache misses in a chart."""

_KIND_COLOURS = {
    "tools": "six",
    "system": "one",
    "injected": "seven",
    "summary": "four",
    "user": "three",
    "assistant": "two",
    "thinking": "five",
    "tool results": "nine",
    "images and files": "ten",
}
"""Kinds of sections in the order of the prompt."""
_OTHER_KIND = "other"
_INJECTED_KIND = "injected"
# The limit of a much larger window would flatten the chart.
_MAX_WINDOW_FACTOR = 8


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPart:
    """`colour` is that of the part's kind."""

    name: str
    tokens: int
    share: float
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentWindow:
    parts: Sequence[WindowPart]
    tokens: int
    window_tokens: int | None
    exact: bool
    reserved_tokens: int

    @property
    def share(self) -> float | None:
        return self.tokens / self.window_tokens if self.window_tokens else None


def choose_points(points: Sequence[WindowSample], max_points: int = MAX_POINTS) -> list[int]:
    """Return the indexes of the points to show: the fullest of each stretch, and the last."""
    stretches = min(len(points), max_points)
    indexes = [
        max(
            range(_stretch_start(at, points, stretches), _stretch_start(at + 1, points, stretches)),
            key=lambda place: _token_count(points[place]),
        )
        for at in range(stretches)
    ]
    return [*indexes[:-1], len(points) - 1] if indexes else []


def list_required_requests(points: Sequence[WindowSample]) -> list[str]:
    """Return the ids of requests whose window contents or cache misses the chart needs."""
    misses = [point.id for point in points if point.is_cache_miss][-MAX_MISSES:]
    last = [point.id for point in points if point.tokens is not None][-1:]
    return list(dict.fromkeys([*(points[at].id for at in choose_points(points)), *misses, *last]))


def describe_current_window(
    points: Sequence[WindowSample], fillings: Mapping[str, WindowContents]
) -> CurrentWindow | None:
    last = points[-1] if points else None
    filling = fillings.get(last.id) if last is not None else None
    if last is None or last.tokens is None or filling is None:
        return None
    sizes = {section.name: section.tokens for section in filling.sections}
    if rest := last.tokens - sum(sizes.values()):
        sizes[_OTHER_KIND] = sizes.get(_OTHER_KIND, 0) + rest
    return CurrentWindow(
        parts=[
            WindowPart(name=name, tokens=size, share=size / max(1, last.tokens), colour=_colour(name))
            for name, size in sizes.items()
        ],
        tokens=last.tokens,
        window_tokens=last.window_tokens,
        exact=filling.exact,
        reserved_tokens=filling.reserved_tokens,
    )


def build_window_chart(
    points: Sequence[WindowSample],
    fillings: Mapping[str, WindowContents],
    compactions: Mapping[str, Compaction],
    *,
    first_number: int = 1,
) -> Chart | None:
    """Chart the window at each request; None if no request was counted.

    `first_number` is the number of the first point in the session.
    """
    counts = [point.tokens for point in points if point.tokens is not None]
    if not counts:
        return None
    places = choose_points(points)
    shown_points = [points[at] for at in places]
    tokens_by_kind = [_group_by_kind(point, fillings.get(point.id)) for point in shown_points]
    names = [kind for kind in (*_KIND_COLOURS, _OTHER_KIND) if any(kind in parts for parts in tokens_by_kind)]
    series = [
        Series(
            name=name,
            values=[
                None if point.tokens is None else parts.get(name, 0)
                for point, parts in zip(shown_points, tokens_by_kind, strict=True)
            ],
            colour=_colour(name),
        )
        for name in names
    ]
    limits = [point.window_tokens for point in shown_points]
    known_limits = [limit for limit in limits if limit is not None]
    title = "Context window over time"
    if known_limits and min(known_limits) <= _MAX_WINDOW_FACTOR * max(counts):
        series.append(Series(name="limit", values=limits, colour="limit", shape=Shape.LIMIT))
    elif known_limits:
        title += f" (limit {format_tokens(min(known_limits))} tokens, not shown)"
    events = _list_events(points, fillings, compactions, is_whole=first_number == 1)
    return Chart(
        id="window",
        title=title,
        description=_describe_chart(points, counts, events),
        labels=_format_labels([(first_number + at, points[at].at) for at in places]),
        series=series,
        unit=Unit.TOKENS,
        stacked=True,
        events=events,
    )


def _stretch_start(stretch: int, points: Sequence[WindowSample], stretches: int) -> int:
    return stretch * len(points) // stretches


def _token_count(point: WindowSample) -> int:
    return -1 if point.tokens is None else point.tokens


def _kind(name: str) -> str:
    """All injected sections are one kind."""
    if name.startswith(_INJECTED_KIND):
        return _INJECTED_KIND
    return name if name in _KIND_COLOURS else _OTHER_KIND


def _colour(name: str) -> str:
    return _KIND_COLOURS.get(_kind(name), OTHER_COLOUR)


def _group_by_kind(point: WindowSample, filling: WindowContents | None) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for section in filling.sections if filling is not None else ():
        kind = _kind(section.name)
        sizes[kind] = sizes.get(kind, 0) + section.tokens
    if rest := (point.tokens or 0) - sum(sizes.values()):
        sizes[_OTHER_KIND] = sizes.get(_OTHER_KIND, 0) + rest
    return sizes


def _list_events(
    points: Sequence[WindowSample],
    fillings: Mapping[str, WindowContents],
    compactions: Mapping[str, Compaction],
    *,
    is_whole: bool,
) -> list[ChartEvent]:
    """List compactions and cache misses; those of one stretch are merged."""
    stretches = min(len(points), MAX_POINTS)
    texts_by_event: dict[tuple[int, str], list[str]] = {}
    stretch = 0
    # Whether the first point is newly compacted is known only if it is the session's first request.
    compaction_id = None if is_whole else points[0].compaction_id
    for at, point in enumerate(points):
        while at >= _stretch_start(stretch + 1, points, stretches):
            stretch += 1
        is_newly_compacted, compaction_id = point.compaction_id != compaction_id, point.compaction_id
        if is_newly_compacted:
            texts_by_event.setdefault((stretch, "compaction"), []).append(
                _describe_compaction(point.compaction_id, compactions)
            )
        if not point.is_cache_miss:
            continue
        filling = fillings.get(point.id)
        if filling is None or filling.cache_miss is None or not filling.cache_miss.is_planned:
            texts_by_event.setdefault((stretch, "miss"), []).append(_describe_cache_miss(filling))
        elif not is_newly_compacted:
            texts_by_event.setdefault((stretch, "compaction"), []).append(_describe_cache_miss(filling))
    return [
        ChartEvent(
            label=label,
            kind=kind,
            description=says[-1] + (f" (and {len(says) - 1:,} more)" if says[1:] else ""),
        )
        for (label, kind), says in texts_by_event.items()
    ]


def _describe_compaction(compaction_id: str | None, compactions: Mapping[str, Compaction]) -> str:
    if compaction_id is None:
        return "Compaction undone"
    compaction = compactions.get(compaction_id)
    if compaction is None:
        return "Compacted"
    before, after = format_tokens(compaction.tokens_before), format_tokens(compaction.tokens_after)
    return f"Compacted from {before} to {after} tokens"


def _describe_cache_miss(filling: WindowContents | None) -> str:
    cache_miss = filling.cache_miss if filling is not None else None
    if cache_miss is None:
        return "Cache miss"
    lost = "" if cache_miss.lost_dollars is None else format_money(cache_miss.lost_dollars)
    text = describe_cache_miss(cache_miss, describe_cause(cache_miss.cause), lost)
    return text[:1].upper() + text[1:]


def _format_labels(numbered: Sequence[tuple[int, float]]) -> list[str]:
    moments = [datetime.fromtimestamp(at, UTC) for _, at in numbered]
    form = "%H:%M:%S" if len({moment.date() for moment in moments}) == 1 else "%m-%d %H:%M"
    return [f"#{number} {at.strftime(form)}" for (number, _), at in zip(numbered, moments, strict=True)]


def _describe_chart(points: Sequence[WindowSample], counts: Sequence[int], events: Sequence[ChartEvent]) -> str:
    last = next(point for point in reversed(points) if point.tokens is not None)
    text = f"{format_tokens(last.tokens)} tokens at the last of {format_count(len(points), 'request')}"
    if last.window_tokens and last.tokens is not None:
        share = format_percent(last.tokens / last.window_tokens)
        text += f", {share} of a window of {format_tokens(last.window_tokens)}"
    kinds = [event.kind for event in events]
    phrases = [f"maximum {format_tokens(max(counts))}"]
    phrases += (
        [f"compactions at {format_count(kinds.count('compaction'), 'point')}"] if "compaction" in kinds else []
    )
    phrases += [f"cache misses at {format_count(kinds.count('miss'), 'point')}"] if "miss" in kinds else []
    return f"{text}; {', '.join(phrases)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """`number` is the position in the session, from 1."""

    number: int
    traced: ChargedTrace
    is_newly_compacted: bool

    @property
    def trace(self) -> Trace:
        return self.traced.trace

    @property
    def share(self) -> float | None:
        trace = self.trace
        return trace.tokens / trace.window_tokens if trace.tokens is not None and trace.window_tokens else None

    @property
    def is_failed(self) -> bool:
        return not 200 <= self.trace.status < 300

    @property
    def edits(self) -> int:
        return len(self.trace.edits) + self.trace.edits_left_out

    @property
    def dollars(self) -> Decimal | None:
        return None if self.traced.charge is None else self.traced.charge.dollars

    @property
    def has_more(self) -> bool:
        return bool(self.edits or self.trace.problems or self.trace.cache_miss)

    @property
    def cache_miss(self) -> str:
        """The cause, place and cost of a cache miss; empty if there was none."""
        miss = self.trace.cache_miss
        if miss is None:
            return ""
        lost = "" if miss.lost_dollars is None else format_money(miss.lost_dollars)
        return describe_cache_miss(miss, describe_cause(miss.cause), lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestPage:
    """A page of requests, the newest first. `newer` and `older` are the ids that other pages start before."""

    requests: Sequence[RequestRow]
    count: int
    is_first: bool
    older: str | None
    newer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRelatives:
    title: str
    folder: str | None
    parent_id: str | None
    children: Sequence[str]
    has_more: bool
    titles: Mapping[str, str]
    descendants: DescendantTotals | None


async def load_session_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    """Parent and children have the same agent, since ids are derived from its name."""
    session_id, store = page_request.path_parameters["id"], data.store
    before_id, compactions_before = page_request.text("before"), _parse_compactions_before(page_request)
    session = await store.totals.get_session(session_id)
    if session is None or not page_request.viewer.can_see(session.agent):
        raise PageNotFound(f"No session {shorten_name(session_id, 80)!r}. It may have been deleted.")
    points, page, compactions, counts, sums, family = await asyncio.gather(
        store.dashboard.window_samples(session_id, limit=_MAX_LOADED_POINTS),
        _load_requests(store, session_id, before_id),
        store.compactions.list_compactions(
            session_id=session_id, limit=_MAX_COMPACTIONS, before=compactions_before
        ),
        store.dashboard.count_compactions([session_id]),
        _load_sums(store, session),
        _load_family(store, session_id),
    )
    fillings = await store.dashboard.window_contents(list_required_requests(points))
    shown_compactions = _select_compactions(compactions)
    compaction_details = await load_compactions(store, shown_compactions)
    compactions_by_id = {compaction.id: compaction for compaction in compactions}
    first_number = max(1, page.count - len(points) + 1)
    chart = await asyncio.to_thread(
        build_window_chart, points, fillings, compactions_by_id, first_number=first_number
    )
    options = data.current_config().options(session.agent)
    context = {
        "session": session,
        "hide_paths": partial(page_request.viewer.hide_paths, options=options.sections),
        "totals": session.totals,
        "compactions": compaction_details,
        "compaction_count": counts.get(session_id, CompactionCounts()),
        "older_compactions": shown_compactions[-1].compacted_at
        if len(compactions) > len(shown_compactions)
        else None,
        "page": _link_newer_page(page, points, first_number),
        "chart": chart,
        "chart_since": first_number,
        "window": describe_current_window(points, fillings),
        "ratio": _hit_ratio(sums) if sums else session.totals.hit_ratio,
        "is_by_category": bool(sums),
        "other_sums": [entry for entry in sums if entry.group[0] != Category.MAIN],
        "family": family,
    }
    title = shorten_name(family.title, 120) if family.title else f"Session {shorten_name(session_id, 40)}"
    return WebPage(template="session.html", title=title, context=context, watched_session_id=session_id)


async def _load_requests(store: Store, session_id: str, before_id: str) -> _RequestPage:
    before: tuple[float, str] | None = None
    if before_id:
        trace = await store.traces.get(before_id)
        if trace is None or trace.trace.session_id != session_id:
            raise BadOption(f"before: this session has no request {shorten_name(before_id, 80)!r}")
        before = trace.trace.at, trace.trace.id
    listed, count, older = await asyncio.gather(
        store.traces.list_traces(limit=REQUESTS_PER_PAGE + 1, session_id=session_id, before=before),
        store.dashboard.count_requests(session_id),
        store.dashboard.count_requests(session_id, before=before),
    )
    compaction_ids = [traced.trace.compaction_id for traced in listed] + [None]
    requests = [
        RequestRow(
            number=max(1, older - place),
            traced=traced,
            is_newly_compacted=compaction_ids[place] is not None
            and compaction_ids[place] != compaction_ids[place + 1],
        )
        for place, traced in enumerate(listed[:REQUESTS_PER_PAGE])
    ]
    return _RequestPage(
        requests=requests,
        count=count,
        is_first=before is None,
        older=listed[REQUESTS_PER_PAGE - 1].trace.id if len(listed) > REQUESTS_PER_PAGE else None,
    )


def _link_newer_page(page: _RequestPage, points: Sequence[WindowSample], first_number: int) -> _RequestPage:
    """Add the start of the page with newer requests, unless that is the first page."""
    if page.is_first or not page.requests:
        return page
    place = page.requests[0].number + REQUESTS_PER_PAGE + 1 - first_number
    return replace(page, newer=points[place].id if 0 <= place < len(points) else None)


async def _load_sums(store: Store, session: SessionTotals) -> Sequence[ChargeTotal]:
    """Sum a session's calls by category; nothing if there are too many."""
    if session.totals.calls > MAX_CALLS:
        return ()
    return await store.ledger.sum_charges((GroupBy.CATEGORY,), session_id=session.session_id)


def _hit_ratio(sums: Sequence[ChargeTotal]) -> float | None:
    """Return the cache hit ratio of main requests, without summaries and keep-alive requests."""
    main = next((entry for entry in sums if entry.group[0] == Category.MAIN), None)
    if main is None:
        return None
    all_input = main.uncached + main.read + main.written_5m + main.written_1h
    return main.read / all_input if all_input else None


async def _load_family(store: Store, session_id: str) -> SessionRelatives:
    families = store.session_tree
    labels, children, descendants = await asyncio.gather(
        families.labels([session_id]),
        families.children(session_id, limit=_MAX_CHILDREN + 1),
        families.descendants([session_id]),
    )
    label = labels.get(session_id)
    parent_id = label.parent_id if label is not None else None
    is_shown = parent_id is not None and await store.totals.get_session(parent_id) is not None
    related_ids = [*children[:_MAX_CHILDREN], *((parent_id,) if parent_id is not None and is_shown else ())]
    return SessionRelatives(
        title=label.title if label is not None else "",
        folder=label.folder if label is not None else None,
        parent_id=parent_id if is_shown else None,
        children=children[:_MAX_CHILDREN],
        has_more=len(children) > _MAX_CHILDREN,
        titles={id_: related.title for id_, related in (await families.labels(related_ids)).items()},
        descendants=descendants.get(session_id),
    )


def _parse_compactions_before(page_request: PageRequest) -> float | None:
    text = page_request.text("compactions")
    if not text:
        return None
    try:
        at = float(text)
    except ValueError:
        at = nan
    if not isfinite(at):
        raise BadOption(
            f"compactions must be the time of a compaction in seconds since 1970, not {text[:40]!r}"
        )
    return at


def _select_compactions(compactions: Sequence[Compaction]) -> Sequence[Compaction]:
    """Return the newest ones, and all others of the same moment, so that the next page starts after it."""
    last = compactions[:COMPACTIONS_PER_PAGE][-1:]
    return [
        *compactions[:COMPACTIONS_PER_PAGE],
        *(
            compaction
            for compaction in compactions[COMPACTIONS_PER_PAGE:]
            if compaction.compacted_at == last[0].compacted_at
        ),
    ]
