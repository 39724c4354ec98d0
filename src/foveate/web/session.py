"""The page of one session: its window over time, its requests with their edits, its folds and forks."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan

from foveate.cache.cause_words import describe_cause
from foveate.cost.ledger import Category, ChargeTotal, GroupBy
from foveate.errors import BadOption
from foveate.fold.journal import Compaction
from foveate.session.telling import describe_cache_break
from foveate.session.totals import SessionTotals
from foveate.session.traces import ChargedTrace, Trace
from foveate.store import Store
from foveate.store.families import DescendantTotals
from foveate.store.glances import CompactionCounts, WindowSample
from foveate.web.asking import PageNotFound, PageRequest, WebPage
from foveate.web.folds import load_compactions
from foveate.web.inside import GatewayData
from foveate.web.windows import build_window_chart, describe_current_window, list_required_requests
from foveate.web.words import format_money, shorten

REQUESTS_PER_PAGE = 50
COMPACTIONS_PER_PAGE = 10
_MAX_POINTS = 2_000
"""So many requests, the last ones, are on the chart."""
_MAX_CALLS = 5_000
"""Of a session with more, calls are not told apart: adding them up would take longer than all else."""
_MAX_COMPACTIONS = 60
_MAX_CHILDREN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """A request as the table shows it, and its number in the session: the first is 1."""

    number: int
    traced: ChargedTrace
    is_folded_anew: bool

    @property
    def trace(self) -> Trace:
        """What was done to it."""
        return self.traced.trace

    @property
    def share(self) -> float | None:
        """How full its window was."""
        trace = self.trace
        return trace.tokens / trace.window_tokens if trace.tokens is not None and trace.window_tokens else None

    @property
    def is_failed(self) -> bool:
        """Whether it was not answered as it should."""
        return not 200 <= self.trace.status < 300

    @property
    def edits(self) -> int:
        """How many edits there were."""
        return len(self.trace.edits) + self.trace.edits_left_out

    @property
    def has_more(self) -> bool:
        """Whether there is more to tell than numbers."""
        return bool(self.edits or self.trace.problems or self.trace.broke)

    @property
    def broke(self) -> str:
        """Why its cache broke, where, and what that cost; empty where it did not."""
        broke = self.trace.broke
        if broke is None:
            return ""
        lost = "" if broke.lost_dollars is None else format_money(broke.lost_dollars)
        return describe_cache_break(broke, describe_cause(broke.cause), lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestPage:
    """A page of requests, the newest first, of so many; `newer` and `older` ones stand before these ids."""

    requests: Sequence[RequestRow]
    count: int
    is_first: bool
    older: str | None
    newer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFamily:
    """A session's title and folder, its parent and children with their titles, and what descendants cost."""

    title: str
    folder: str | None
    parent_id: str | None
    children: Sequence[str]
    has_more: bool
    titles: Mapping[str, str]
    descendants: DescendantTotals | None


async def load_page(data: GatewayData, page_request: PageRequest) -> WebPage:
    """One session. Its parent and its children are of the same agent: their ids are made from its name."""
    session_id, store = page_request.path_parameters["id"], data.store
    before_id, compactions_before = page_request.text("before"), _parse_compactions_before(page_request)
    found = await store.totals.get_session(session_id)
    if found is None or not page_request.viewer.can_see(found.agent):
        raise PageNotFound(f"there is no session {shorten(session_id, 80)!r}, or it was forgotten")
    points, page, compactions, counts, sums, family = await asyncio.gather(
        store.dashboard.window_samples(session_id, limit=_MAX_POINTS),
        _load_requests(store, session_id, before_id),
        store.compactions.list_compactions(
            session_id=session_id, limit=_MAX_COMPACTIONS, before=compactions_before
        ),
        store.dashboard.count_compactions([session_id]),
        _load_sums(store, found),
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
    context = {
        "session": found,
        "totals": found.totals,
        "folds": compaction_details,
        "fold_count": counts.get(session_id, CompactionCounts()),
        "older_folds": shown_compactions[-1].compacted_at
        if len(compactions) > len(shown_compactions)
        else None,
        "page": _link_newer_page(page, points, first_number),
        "chart": chart,
        "chart_since": first_number,
        "full": describe_current_window(points, fillings),
        "ratio": _hit_ratio(sums) if sums else found.totals.hit_ratio,
        "is_parted": bool(sums),
        "beside": [entry for entry in sums if entry.group[0] != Category.MAIN],
        "family": family,
    }
    title = shorten(family.title, 120) if family.title else f"Session {shorten(session_id, 40)}"
    return WebPage(template="session.html", title=title, context=context, watches=session_id)


async def _load_requests(store: Store, session_id: str, before_id: str) -> _RequestPage:
    """The requests before one, or the last ones."""
    before: tuple[float, str] | None = None
    if before_id:
        found = await store.traces.get(before_id)
        if found is None or found.trace.session_id != session_id:
            raise BadOption(f"before: this session has no request {shorten(before_id, 80)!r}")
        before = found.trace.at, found.trace.id
    listed, count, older = await asyncio.gather(
        store.traces.list_traces(limit=REQUESTS_PER_PAGE + 1, session_id=session_id, before=before),
        store.dashboard.count_requests(session_id),
        store.dashboard.count_requests(session_id, before=before),
    )
    compaction_ids = [traced.trace.fold_id for traced in listed] + [None]
    requests = [
        RequestRow(
            number=max(1, older - place),
            traced=traced,
            is_folded_anew=compaction_ids[place] is not None
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
    """The page, and where the one with newer requests begins, if that is not the first."""
    if page.is_first or not page.requests:
        return page
    place = page.requests[0].number + REQUESTS_PER_PAGE + 1 - first_number
    return replace(page, newer=points[place].id if 0 <= place < len(points) else None)


async def _load_sums(store: Store, session: SessionTotals) -> Sequence[ChargeTotal]:
    """What a session's calls come to by their categories; nothing where there are too many."""
    if session.totals.calls > _MAX_CALLS:
        return ()
    return await store.ledger.sum_charges((GroupBy.CATEGORY,), session_id=session.session_id)


def _hit_ratio(sums: Sequence[ChargeTotal]) -> float | None:
    """The part of the requests' input that was read from a cache; summaries and pings have their own."""
    main = next((entry for entry in sums if entry.group[0] == Category.MAIN), None)
    if main is None:
        return None
    all_input = main.uncached + main.read + main.written_5m + main.written_1h
    return main.read / all_input if all_input else None


async def _load_family(store: Store, session_id: str) -> SessionFamily:
    """The title of a session, the one that it comes from and those that come from it, if they can be shown."""
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
    return SessionFamily(
        title=label.title if label is not None else "",
        folder=label.folder if label is not None else None,
        parent_id=parent_id if is_shown else None,
        children=children[:_MAX_CHILDREN],
        has_more=len(children) > _MAX_CHILDREN,
        titles={id_: related.title for id_, related in (await families.labels(related_ids)).items()},
        descendants=descendants.get(session_id),
    )


def _parse_compactions_before(page_request: PageRequest) -> float | None:
    text = page_request.text("folds")
    if not text:
        return None
    try:
        at = float(text)
    except ValueError:
        at = nan
    if not isfinite(at):
        raise BadOption(f"folds: the time of a fold, in seconds since 1970, not {text[:40]!r}")
    return at


def _select_compactions(compactions: Sequence[Compaction]) -> Sequence[Compaction]:
    """The newest ones; all cuts of one request are of one moment, behind which the next page begins."""
    last = compactions[:COMPACTIONS_PER_PAGE][-1:]
    return [
        *compactions[:COMPACTIONS_PER_PAGE],
        *(
            compaction
            for compaction in compactions[COMPACTIONS_PER_PAGE:]
            if compaction.compacted_at == last[0].compacted_at
        ),
    ]
