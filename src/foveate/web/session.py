"""The page of one session: its window over time, its requests with their edits, its folds and forks."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan

from foveate.cache.cause_words import cause_in_words
from foveate.cost.ledger import By, Category, Sum
from foveate.errors import BadOption
from foveate.fold.journal import Fold
from foveate.session.telling import broke_in_words
from foveate.session.totals import SessionTotals
from foveate.session.traces import Trace, Traced
from foveate.store import Store
from foveate.store.families import Descendants
from foveate.store.glances import FoldCount, WindowAt
from foveate.web.asking import Asked, NoSuchPage, Shown
from foveate.web.folds import opened_folds
from foveate.web.inside import Inside
from foveate.web.windows import full_now, needed, window_chart
from foveate.web.words import money, short

PAGE = 50
FOLDS = 10
_MOST_POINTS = 2_000
"""So many requests, the last ones, are on the chart."""
_MOST_CALLS = 5_000
"""Of a session with more, calls are not told apart: adding them up would take longer than all else."""
_MOST_FOLDS = 60
_MAX_CHILDREN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """A request as the table shows it, and its number in the session: the first is 1."""

    number: int
    traced: Traced
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
        lost = "" if broke.lost_dollars is None else money(broke.lost_dollars)
        return broke_in_words(broke, cause_in_words(broke.cause), lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """A page of requests, the newest first, of so many; `newer` and `older` ones stand before these ids."""

    requests: Sequence[Asking]
    count: int
    is_first: bool
    older: str | None
    newer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A session's title and folder, its parent and children with their titles, and what descendants cost."""

    title: str
    folder: str | None
    parent_id: str | None
    children: Sequence[str]
    has_more: bool
    titles: Mapping[str, str]
    descendants: Descendants | None


async def look(inside: Inside, asked: Asked) -> Shown:
    """One session. Its parent and its children are of the same agent: their ids are made from its name."""
    session_id, store = asked.names["id"], inside.store
    before_id, folds_before = asked.text("before"), _folds_before(asked)
    found = await store.totals.session(session_id)
    if found is None or not asked.viewer.can_see(found.agent):
        raise NoSuchPage(f"there is no session {short(session_id, 80)!r}, or it was forgotten")
    points, page, folds, counts, sums, family = await asyncio.gather(
        store.glances.windows(session_id, limit=_MOST_POINTS),
        _requests(store, session_id, before_id),
        store.journal.listed(session_id=session_id, limit=_MOST_FOLDS, before=folds_before),
        store.glances.count_folds([session_id]),
        _sums(store, found),
        _family(store, session_id),
    )
    fillings = await store.glances.fillings(needed(points))
    shown = _shown_folds(folds)
    opened = await opened_folds(store, shown)
    known = {fold.id: fold for fold in folds}
    first_number = max(1, page.count - len(points) + 1)
    chart = await asyncio.to_thread(window_chart, points, fillings, known, first_number=first_number)
    given = {
        "session": found,
        "totals": found.totals,
        "folds": opened,
        "fold_count": counts.get(session_id, FoldCount()),
        "older_folds": shown[-1].compacted_at if len(folds) > len(shown) else None,
        "page": _linked(page, points, first_number),
        "chart": chart,
        "chart_since": first_number,
        "full": full_now(points, fillings),
        "ratio": _hit_ratio(sums) if sums else found.totals.hit_ratio,
        "is_parted": bool(sums),
        "beside": [one for one in sums if one.group[0] != Category.MAIN],
        "family": family,
    }
    title = short(family.title, 120) if family.title else f"Session {short(session_id, 40)}"
    return Shown(template="session.html", title=title, given=given, watches=session_id)


async def _requests(store: Store, session_id: str, before_id: str) -> _Page:
    """The requests before one, or the last ones."""
    before: tuple[float, str] | None = None
    if before_id:
        found = await store.traces.trace(before_id)
        if found is None or found.trace.session_id != session_id:
            raise BadOption(f"before: this session has no request {short(before_id, 80)!r}")
        before = found.trace.at, found.trace.id
    listed, count, older = await asyncio.gather(
        store.traces.listed(limit=PAGE + 1, session_id=session_id, before=before),
        store.glances.count_requests(session_id),
        store.glances.count_requests(session_id, before=before),
    )
    fold_ids = [one.trace.fold_id for one in listed] + [None]
    requests = [
        Asking(
            number=max(1, older - place),
            traced=one,
            is_folded_anew=fold_ids[place] is not None and fold_ids[place] != fold_ids[place + 1],
        )
        for place, one in enumerate(listed[:PAGE])
    ]
    return _Page(
        requests=requests,
        count=count,
        is_first=before is None,
        older=listed[PAGE - 1].trace.id if len(listed) > PAGE else None,
    )


def _linked(page: _Page, points: Sequence[WindowAt], first_number: int) -> _Page:
    """The page, and where the one with newer requests begins, if that is not the first."""
    if page.is_first or not page.requests:
        return page
    place = page.requests[0].number + PAGE + 1 - first_number
    return replace(page, newer=points[place].id if 0 <= place < len(points) else None)


async def _sums(store: Store, session: SessionTotals) -> Sequence[Sum]:
    """What a session's calls come to by their categories; nothing where there are too many."""
    if session.totals.calls > _MOST_CALLS:
        return ()
    return await store.ledger.sums((By.CATEGORY,), session_id=session.session_id)


def _hit_ratio(sums: Sequence[Sum]) -> float | None:
    """The part of the requests' input that was read from a cache; summaries and pings have their own."""
    main = next((one for one in sums if one.group[0] == Category.MAIN), None)
    if main is None:
        return None
    all_input = main.uncached + main.read + main.written_5m + main.written_1h
    return main.read / all_input if all_input else None


async def _family(store: Store, session_id: str) -> Family:
    """The title of a session, the one that it comes from and those that come from it, if they can be shown."""
    families = store.families
    labels, children, descendants = await asyncio.gather(
        families.labels([session_id]),
        families.children(session_id, limit=_MAX_CHILDREN + 1),
        families.descendants([session_id]),
    )
    label = labels.get(session_id)
    parent_id = label.parent_id if label is not None else None
    is_shown = parent_id is not None and await store.totals.session(parent_id) is not None
    named = [*children[:_MAX_CHILDREN], *((parent_id,) if parent_id is not None and is_shown else ())]
    return Family(
        title=label.title if label is not None else "",
        folder=label.folder if label is not None else None,
        parent_id=parent_id if is_shown else None,
        children=children[:_MAX_CHILDREN],
        has_more=len(children) > _MAX_CHILDREN,
        titles={id_: one.title for id_, one in (await families.labels(named)).items()},
        descendants=descendants.get(session_id),
    )


def _folds_before(asked: Asked) -> float | None:
    said = asked.text("folds")
    if not said:
        return None
    try:
        at = float(said)
    except ValueError:
        at = nan
    if not isfinite(at):
        raise BadOption(f"folds: the time of a fold, in seconds since 1970, not {said[:40]!r}")
    return at


def _shown_folds(folds: Sequence[Fold]) -> Sequence[Fold]:
    """The newest ones; all cuts of one request are of one moment, behind which the next page begins."""
    last = folds[:FOLDS][-1:]
    return [*folds[:FOLDS], *(fold for fold in folds[FOLDS:] if fold.compacted_at == last[0].compacted_at)]
