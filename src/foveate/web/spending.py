"""Totals of requests, costs and savings over the time ranges of pages, and the usage of spending caps.

Cap usage is computed from totals, so that it does not depend on the number of calls.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from foveate.cost.caps import (
    DAY_SECONDS,
    RECENT_SECONDS,
    CallerSummary,
    Cap,
    CapLevel,
    CapScope,
    CapStatus,
    CapUse,
    describe_cap,
    describe_cap_use,
    read_cap_status,
)
from foveate.cost.ledger import Category
from foveate.prompt_cache.hit_ratio import HitRatio, HitRatioLevel
from foveate.session.rollups import SessionOrder, Totals, TotalsGroup
from foveate.store import Store
from foveate.web.formatting import format_count, format_money, shorten_name

TODAY, WEEK, MONTH = "today", "7d", "30d"
TIME_RANGES: Mapping[str, str] = {TODAY: "Today", WEEK: "7 days", MONTH: "30 days"}
"""Names and titles of the ranges to choose from."""
_DAYS = {WEEK: 7, MONTH: 30}
_ZERO = Decimal(0)
_NO_HITS = HitRatio(0, 0)
_COUNT_FIELDS = (
    *("planned_rewrites", "rewritten_tokens", "compared", "would_not_fit", "inherited", "subscription"),
    "possibly_charged",
)
_AMOUNT_FIELDS = (
    *("without", "saved_by_compaction", "saved_by_context", "saved_by_breakpoints", "saved_by_keep_alive"),
    *("simulation_error", "would_not_fit_dollars", "inherited_dollars", "subscription_dollars"),
    "possibly_charged_dollars",
)
MAX_USES = 5
"""Rows per cap."""
_MAX_SESSIONS = 20
_MAX_AGENTS = 200
_SHARED_SCOPES = (CapScope.DAY, CapScope.TOTAL)
_MAX_NAME_CHARS, _MAX_ID_CHARS = 40, 12
TotalsRows = Sequence[tuple[tuple[str, ...], Totals]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRange:
    """A time range in units: `groups` are their keys in totals, `labels` are for people.

    `title` fits into a sentence (`today`, `in the last 7 days`). `unit` is an hour or a day, and `started` of
    them have started.
    """

    name: str
    title: str
    unit: str
    since: float
    per: TotalsGroup
    groups: tuple[str, ...]
    labels: tuple[str, ...]
    started: int

    @property
    def is_today(self) -> bool:
        return self.per is TotalsGroup.HOUR


def resolve_time_range(name: str, now: float) -> TimeRange:
    """Return one of `TIME_RANGES` up to `now`."""
    moment = datetime.fromtimestamp(now, UTC)
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if name == TODAY:
        hours = [midnight + timedelta(hours=hour) for hour in range(24)]
        return TimeRange(
            name=name,
            title="today",
            unit="hour",
            since=midnight.timestamp(),
            per=TotalsGroup.HOUR,
            groups=tuple(hour.strftime("%Y-%m-%dT%H") for hour in hours),
            labels=tuple(hour.strftime("%H:00") for hour in hours),
            started=moment.hour + 1,
        )
    count = _DAYS[name]
    days = [midnight - timedelta(days=ago) for ago in reversed(range(count))]
    return TimeRange(
        name=name,
        title=f"in the last {count} days",
        unit="day",
        since=days[0].timestamp(),
        per=TotalsGroup.DAY,
        groups=tuple(format_day(day.timestamp()) for day in days),
        labels=tuple(f"{day.day} {day:%b}" for day in days),
        started=count,
    )


def format_day(at: float) -> str:
    """Return the key of a day in totals."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingTotals:
    """Totals of requests and calls.

    `dollars` is the cost of calls with a known price; `unpriced` calls come on top. `compared` calls would have
    cost `without` without Foveate. Of `dollars`, some are `inherited` (an upper bound by the model's family),
    and some are list-price equivalents of calls that a `subscription` pays for. The hit ratio covers main
    requests, as the metrics do, without summaries and keep-alive requests.
    """

    requests: int = 0
    failed: int = 0
    cache_misses: int = 0
    lost_tokens: int = 0
    lost_dollars: Decimal = _ZERO
    calls: int = 0
    unpriced: int = 0
    dollars: Decimal = _ZERO
    input_tokens: int = 0
    output_tokens: int = 0
    hits: HitRatio = _NO_HITS
    planned_rewrites: int = 0
    rewritten_tokens: int = 0
    compared: int = 0
    without: Decimal = _ZERO
    saved_by_compaction: Decimal = _ZERO
    saved_by_context: Decimal = _ZERO
    saved_by_breakpoints: Decimal = _ZERO
    saved_by_keep_alive: Decimal = _ZERO
    simulation_error: Decimal = _ZERO
    would_not_fit: int = 0
    would_not_fit_dollars: Decimal = _ZERO
    inherited: int = 0
    inherited_dollars: Decimal = _ZERO
    subscription: int = 0
    subscription_dollars: Decimal = _ZERO
    possibly_charged: int = 0
    possibly_charged_dollars: Decimal = _ZERO

    @property
    def is_empty(self) -> bool:
        return not self.requests and not self.calls

    @property
    def paid(self) -> Decimal | None:
        """None if no call has a known price."""
        return None if self.calls and self.unpriced >= self.calls else self.dollars

    @property
    def saved(self) -> Decimal:
        """Savings of all mechanisms on the compared calls; a loss is negative."""
        edits = self.saved_by_compaction + self.saved_by_context
        return edits + self.saved_by_breakpoints + self.saved_by_keep_alive

    @property
    def ratio(self) -> float | None:
        return self.hits.ratio

    @property
    def level(self) -> HitRatioLevel:
        return self.hits.level()

    @property
    def failed_share(self) -> float | None:
        return self.failed / self.requests if self.requests else None


NO_SPENDING = SpendingTotals()


def group_by_first(rows: TotalsRows) -> Mapping[str, SpendingTotals]:
    """Sum by the first group of each row; the last group is the category."""
    return _group_by(rows, 0)


def group_by_category(rows: TotalsRows) -> Mapping[str, SpendingTotals]:
    """Sum by the last group of each row."""
    return _group_by(rows, -1)


def sum_spending(parts: Iterable[SpendingTotals]) -> SpendingTotals:
    return _sum_parts(list(parts))


def _group_by(rows: TotalsRows, position: int) -> Mapping[str, SpendingTotals]:
    parts_by_name: dict[str, list[SpendingTotals]] = {}
    for group, totals in rows:
        parts_by_name.setdefault(group[position], []).append(_to_spending(group[-1], totals))
    return {name: _sum_parts(parts) for name, parts in parts_by_name.items()}


def _to_spending(category: str, totals: Totals) -> SpendingTotals:
    is_main = category == Category.MAIN
    return SpendingTotals(
        requests=totals.requests,
        failed=totals.failed,
        cache_misses=totals.cache_misses,
        lost_tokens=totals.lost_tokens,
        lost_dollars=totals.lost_dollars,
        calls=totals.calls,
        unpriced=totals.unpriced,
        dollars=totals.dollars,
        input_tokens=totals.cache.input_tokens,
        output_tokens=totals.output_tokens,
        hits=HitRatio(totals.cache.read, totals.cache.input_tokens) if is_main else _NO_HITS,
        **{name: getattr(totals, name) for name in (*_COUNT_FIELDS, *_AMOUNT_FIELDS)},
    )


def _sum_parts(parts: Sequence[SpendingTotals]) -> SpendingTotals:
    counts: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in _COUNT_FIELDS}
    amounts: Any = {name: sum((getattr(part, name) for part in parts), _ZERO) for name in _AMOUNT_FIELDS}
    return SpendingTotals(
        requests=sum(part.requests for part in parts),
        failed=sum(part.failed for part in parts),
        cache_misses=sum(part.cache_misses for part in parts),
        lost_tokens=sum(part.lost_tokens for part in parts),
        lost_dollars=sum((part.lost_dollars for part in parts), _ZERO),
        calls=sum(part.calls for part in parts),
        unpriced=sum(part.unpriced for part in parts),
        dollars=sum((part.dollars for part in parts), _ZERO),
        input_tokens=sum(part.input_tokens for part in parts),
        output_tokens=sum(part.output_tokens for part in parts),
        hits=HitRatio(
            sum(part.hits.read_tokens for part in parts), sum(part.hits.input_tokens for part in parts)
        ),
        **counts,
        **amounts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CapUsageRow:
    about: str
    text: str
    limit: Decimal
    session_id: str | None = None
    use: CapUse | None = None

    @property
    def share(self) -> float:
        if self.use is None or not self.limit:
            return 0.0
        return float(min(Decimal(1), 1 - max(Decimal(0), self.use.remaining) / self.limit))

    @property
    def remaining(self) -> Decimal:
        """The unused dollars, at least zero."""
        return _ZERO if self.use is None else max(_ZERO, self.use.remaining)

    @property
    def level(self) -> CapLevel:
        return CapLevel.FINE if self.use is None else self.use.level


async def list_cap_usage(store: Store, caps: Sequence[Cap], *, now: float) -> list[CapUsageRow]:
    """List every cap with the agents or sessions that are closest to it."""
    if not caps:
        return []
    spending = await _load_spending(
        store, caps, {cap.agent for cap in caps if cap.scope is CapScope.SESSION}, now
    )
    return [
        row
        for cap_usage in await read_cap_status(store.ledger, caps, now=now, callers=spending)
        for row in _build_rows(cap_usage)
    ]


async def list_agent_cap_usage(
    store: Store, caps: Sequence[Cap], agent: str, *, now: float, shows_shared: bool = True
) -> list[CapUsageRow]:
    """List the caps that apply to an agent.

    Unless `shows_shared`, caps on all agents together show only their limits, since others use them too.
    """
    applying = [cap for cap in caps if cap.agent in (None, agent)]
    shared = (
        [] if shows_shared else [cap for cap in applying if cap.agent is None and cap.scope in _SHARED_SCOPES]
    )
    rows = [
        CapUsageRow(about=describe_cap(cap), text="shared by all agents", limit=cap.dollars) for cap in shared
    ]
    own_caps = [cap for cap in applying if cap not in shared]
    if not own_caps:
        return rows
    is_by_session = any(cap.scope is CapScope.SESSION for cap in own_caps)
    spending = await _load_spending(store, own_caps, {agent} if is_by_session else set(), now)
    usages = await read_cap_status(store.ledger, own_caps, now=now, callers=replace(spending, agents=[agent]))
    return [row for cap_usage in usages for row in _build_rows(cap_usage)] + rows


async def _load_spending(
    store: Store, caps: Sequence[Cap], session_agents: set[str | None], now: float
) -> CallerSummary:
    """Load who spends: the agents that spent most, and sessions of `session_agents` (None: of all)."""
    scopes = {cap.scope for cap in caps}
    all_time = (
        await store.totals.sum_totals([TotalsGroup.AGENT]) if scopes & {CapScope.AGENT, CapScope.TOTAL} else ()
    )
    midnight = now - now % DAY_SECONDS
    today = await store.totals.sum_totals([TotalsGroup.AGENT], since=midnight) if CapScope.DAY in scopes else ()
    recent = {
        entry.session_id: entry
        for agent in session_agents
        for entry in await store.totals.list_sessions(
            limit=_MAX_SESSIONS, order=SessionOrder.DEAREST, since=now - RECENT_SECONDS, agent=agent
        )
    }
    by_cost = sorted(all_time, key=lambda entry: -entry[1].dollars)
    return CallerSummary(
        agents=sorted(group[0] for group, _ in by_cost[:_MAX_AGENTS]),
        sessions=[(entry.agent, entry.session_id) for entry in recent.values()],
        unknown_by_agent={group[0]: totals.unpriced for group, totals in all_time if totals.unpriced},
        unknown_today={group[0]: totals.unpriced for group, totals in today if totals.unpriced},
        unknown_by_session={
            entry.session_id: entry.totals.unpriced for entry in recent.values() if entry.totals.unpriced
        },
    )


def _build_rows(cap_usage: CapStatus) -> list[CapUsageRow]:
    cap = cap_usage.cap
    if not cap_usage.uses:
        text = "applies to each call separately" if cap.scope is CapScope.CALL else "no recent calls"
        return [CapUsageRow(about=describe_cap(cap, _shorten_name(cap.agent)), text=text, limit=cap.dollars)]
    rows = [
        CapUsageRow(
            about=describe_cap(
                cap, _shorten_name(use.agent), _shorten_name(use.session_id, _MAX_ID_CHARS), use.day
            ),
            text=describe_cap_use(use, format_money),
            limit=cap.dollars,
            session_id=use.session_id,
            use=use,
        )
        for use in cap_usage.uses[:MAX_USES]
    ]
    more = len(cap_usage.uses) - MAX_USES
    if more > 0:
        are_all = len(cap_usage.uses) < (_MAX_SESSIONS if cap.scope is CapScope.SESSION else _MAX_AGENTS)
        text = f"{'' if are_all else 'at least '}{format_count(more, f'more {cap.scope}')} with lower use"
        rows.append(
            CapUsageRow(about=describe_cap(cap, _shorten_name(cap.agent)), text=text, limit=cap.dollars)
        )
    return rows


def _shorten_name(name: str | None, max_chars: int = _MAX_NAME_CHARS) -> str | None:
    return None if name is None else shorten_name(name, max_chars)
