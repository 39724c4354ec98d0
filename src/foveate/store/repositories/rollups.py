"""Totals of requests and charges per hour, day, session and for all time.

Requests and charges are added in the transaction that stores them, and only once. Reading any period then takes
a few rows. Rows are locked in one order, after those of accounts: totals by key, then sessions by id. A sum is
clamped to the largest value that can still be added to.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from foveate.cost.ledger import Category
from foveate.cost.money import MAX_PICODOLLARS, to_dollars, to_picodollars
from foveate.model import CacheUsage, ComparisonOutcome
from foveate.session.rollups import SessionOrder, SessionTotals, Totals, TotalsGroup
from foveate.session.traces import CacheMiss
from foveate.store.database import (
    Reader,
    Transaction,
    build_where_clause,
    check_storable_names,
    enqueue_inserts,
)
from foveate.store.repositories.ledger_rows import to_storable_name

REQUEST_SUMS = (
    *("requests", "failed", "added_microseconds", "breaks", "lost_tokens", "lost_picodollars"),
    *("planned_rewrites", "rewritten_tokens"),
)
"""Columns that requests add to."""
CHARGE_SUMS = (
    *("calls", "unpriced", "uncached", "read", "written_5m", "written_1h", "output_tokens"),
    *("picodollars", "compared", "without_picodollars", "saved_by_compaction", "saved_by_context"),
    *("saved_by_breakpoints", "saved_by_keep_alive", "simulation_error"),
    *("would_not_fit", "would_not_fit_picodollars"),
    *("inherited", "inherited_picodollars", "subscription", "subscription_picodollars"),
    *("possibly_charged", "possibly_charged_picodollars"),
)
"""Columns that charges add to."""
LEGACY_SUMS = ("saved_by_cache", "saved_by_folds", "saved_by_cuts")
"""Savings of earlier versions. Nothing is added to them any more."""
SUMS = (*REQUEST_SUMS, *CHARGE_SUMS)
COUNT_COLUMNS = (
    *("requests", "failed", "breaks", "planned_rewrites", "calls", "unpriced", "compared", "would_not_fit"),
    *("inherited", "subscription", "possibly_charged"),
)
"""Columns that change by one and cannot overflow."""
AMOUNT_COLUMNS = tuple(name for name in SUMS if name not in COUNT_COLUMNS)

HOUR, DAY, ALL_TIME = "hour", "day", "ever"
HOURS_PER_DAY = 24
_HOUR_SECONDS = 3_600
_LAST_HOUR = 70_389_527
"""The end of the year 9999, the last that `datetime` supports."""
# Two of them are in one index, and PostgreSQL's index entries have at most 2,700 bytes.
_MAX_KEY_CHARS = 250

_MAX_SUM = MAX_PICODOLLARS
_TOTALS_KEY = "span, start, agent, model, category"
_TotalsKey = tuple[str, int, str, str, str]


def _format_sum_assignment(table: str, column: str) -> str:
    added = f"{table}.{column} + excluded.{column}"
    if column in COUNT_COLUMNS:
        return f"{column} = {added}"
    ends = f"WHEN {added} > {_MAX_SUM} THEN {_MAX_SUM} WHEN {added} < -{_MAX_SUM} THEN -{_MAX_SUM}"
    return f"{column} = CASE {ends} ELSE {added} END"


def _format_totals_upsert(sums: Sequence[str]) -> str:
    added = ", ".join(_format_sum_assignment("totals_v1", column) for column in sums)
    return f"""
INSERT INTO totals_v1 ({_TOTALS_KEY}, {", ".join(sums)}) VALUES {{}}
ON CONFLICT ({_TOTALS_KEY}) DO UPDATE SET {added}
"""


def _format_session_totals_upsert(sums: Sequence[str], window: Sequence[str] = ()) -> str:
    table = "session_totals_v1"
    newest = dict.fromkeys(("agent", "model", "model_at"), "model_at") | dict.fromkeys(window, "window_at")
    assignments = [
        f"{column} = CASE WHEN excluded.{at} > {table}.{at} THEN excluded.{column} ELSE {table}.{column} END"
        for column, at in newest.items()
    ]
    assignments += [
        f"{at} = CASE WHEN excluded.{at} {is_beyond} {table}.{at} THEN excluded.{at} ELSE {table}.{at} END"
        for at, is_beyond in (("first_at", "<"), ("last_at", ">"))
    ]
    columns = ("session_id", "agent", "model", "model_at", "first_at", "last_at", *window, *sums)
    added = ", ".join([*assignments, *(_format_sum_assignment(table, column) for column in sums)])
    return f"""
INSERT INTO {table} ({", ".join(columns)}) VALUES {{}} ON CONFLICT (session_id) DO UPDATE SET {added}
"""


_WINDOW_COLUMNS = ("window_at", "tokens", "window_tokens")
_ADD_CHARGES_TO_TOTALS = _format_totals_upsert(CHARGE_SUMS)
_ADD_REQUESTS_TO_TOTALS = _format_totals_upsert(REQUEST_SUMS)
_ADD_CHARGES_TO_SESSIONS = _format_session_totals_upsert(CHARGE_SUMS)
_ADD_REQUESTS_TO_SESSIONS = _format_session_totals_upsert(REQUEST_SUMS, _WINDOW_COLUMNS)


class WindowFill(NamedTuple):
    """Fill level of the window of a request, and its time; `at` is 0 if unknown."""

    at: float = 0.0
    tokens: int | None = None
    window_tokens: int | None = None


class TotalsDelta(NamedTuple):
    """Amounts that a request or charge adds; `model_at` is 0 if the call does not name the session's model."""

    at: float
    agent: str
    session_id: str
    model: str
    category: str
    model_at: float
    sums: Sequence[int]
    window: WindowFill = WindowFill()


def truncate_key(name: str) -> str:
    return name[:_MAX_KEY_CHARS]


def to_hour(at: float) -> int:
    """Return the number of the hour since 1970."""
    return int(min(max(at, 0.0) / _HOUR_SECONDS, _LAST_HOUR))


def first_hour_of_day(hour: int) -> int:
    return hour - hour % HOURS_PER_DAY


def request_delta(
    at: float,
    agent: str,
    session_id: str,
    model: str,
    *,
    is_failed: bool,
    added_seconds: float,
    window: WindowFill,
    cache_miss: CacheMiss | None,
) -> TotalsDelta:
    added = round(added_seconds * 1e6) if math.isfinite(added_seconds) else 0
    sums = (1, int(is_failed), added, *_cache_miss_sums(cache_miss))
    return TotalsDelta(at, agent, session_id, model, Category.MAIN.value, at, sums, window)


def cache_miss_delta(at: float, agent: str, session_id: str, model: str, cache_miss: CacheMiss) -> TotalsDelta:
    """Return what a cache miss adds that was found after its request was added."""
    return TotalsDelta(
        at, agent, session_id, model, Category.MAIN.value, at, (0, 0, 0, *_cache_miss_sums(cache_miss))
    )


def add_requests(transaction: Transaction, deltas: Sequence[TotalsDelta]) -> None:
    enqueue_inserts(transaction, _ADD_REQUESTS_TO_TOTALS, _totals_rows(deltas))
    enqueue_inserts(transaction, _ADD_REQUESTS_TO_SESSIONS, _session_rows(deltas, with_window=True))


def add_charges(transaction: Transaction, charge_rows: Sequence[tuple[Any, ...]]) -> None:
    deltas = [_charge_delta(*charge_row) for charge_row in charge_rows]
    enqueue_inserts(transaction, _ADD_CHARGES_TO_TOTALS, _totals_rows(deltas))
    enqueue_inserts(transaction, _ADD_CHARGES_TO_SESSIONS, _session_rows(deltas, with_window=False))


def change_charge(transaction: Transaction, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    """Change the totals by the difference between two ledger rows of one call."""
    old, new = _charge_delta(*before), _charge_delta(*after)
    change = new._replace(sums=[new_sum - old_sum for new_sum, old_sum in zip(new.sums, old.sums, strict=True)])
    enqueue_inserts(transaction, _ADD_CHARGES_TO_TOTALS, _totals_rows([change]))
    enqueue_inserts(transaction, _ADD_CHARGES_TO_SESSIONS, _session_rows([change], with_window=False))


def _charge_delta(
    _day: str,
    _id: str,
    at: float,
    agent: str,
    session_id: str,
    _provider: str,
    model: str,
    category: str,
    uncached: int,
    read: int,
    written_5m: int,
    written_1h: int,
    output_tokens: int,
    _reasoning_tokens: int,
    spent: int | None,
    _reported: str | None,
    _tier: str,
    _estimated_tokens: int | None,
    _estimated: int | None,
    comparison: str,
    without: int | None,
    by_compaction: int | None,
    by_context: int | None,
    by_breakpoints: int | None,
    by_keep_alive: int | None,
    simulation_error: int | None,
    _is_partial: int,
    _usage: bytes,
    is_inherited: int,
    is_subscription: int,
    is_possibly_charged: int,
    charged: int | None,
) -> TotalsDelta:
    tokens = (uncached, read, written_5m, written_1h, output_tokens)
    saved = (by_compaction, by_context, by_breakpoints, by_keep_alive, simulation_error)
    fits = comparison != ComparisonOutcome.WOULD_NOT_FIT
    money = (
        *(spent or 0, int(without is not None), without or 0, *(amount or 0 for amount in saved)),
        *((0, 0) if fits else (1, spent or 0)),
        *(is_inherited, (spent or 0) * is_inherited, is_subscription, (spent or 0) * is_subscription),
        *(is_possibly_charged, (charged or 0) * is_possibly_charged),
    )
    # A compaction or keep-alive request may use another model than the session.
    model_at = at if category == Category.MAIN else 0.0
    return TotalsDelta(
        at, agent, session_id, model, category, model_at, (1, int(spent is None), *tokens, *money)
    )


def _cache_miss_sums(cache_miss: CacheMiss | None) -> tuple[int, int, int, int, int]:
    if cache_miss is None:
        return 0, 0, 0, 0, 0
    if cache_miss.is_planned:
        return 0, 0, 0, 1, cache_miss.lost_tokens
    try:
        return 1, cache_miss.lost_tokens, to_picodollars(cache_miss.lost_dollars or Decimal(0)), 0, 0
    except OverflowError:  # an impossible amount
        return 1, cache_miss.lost_tokens, 0, 0, 0


def _totals_rows(deltas: Iterable[TotalsDelta]) -> list[tuple[Any, ...]]:
    """Return the rows to add to the totals, in locking order."""
    hours: dict[_TotalsKey, Sequence[int]] = {}
    for delta in deltas:
        _add_to_key(
            hours,
            (HOUR, to_hour(delta.at), truncate_key(delta.agent), truncate_key(delta.model), delta.category),
            delta.sums,
        )
    spans = dict(hours)
    for (_, hour, *group), sums in hours.items():
        agent, model, category = group
        _add_to_key(spans, (DAY, first_hour_of_day(hour), agent, model, category), sums)
        _add_to_key(spans, (ALL_TIME, 0, agent, model, category), sums)
    return [(*key, *_clamp_sums(spans[key])) for key in sorted(spans)]


def _session_rows(deltas: Iterable[TotalsDelta], *, with_window: bool) -> list[tuple[Any, ...]]:
    """Return the rows to add to session totals, in locking order. Calls without a session are left out."""
    deltas_by_session: dict[str, list[TotalsDelta]] = {}
    for delta in deltas:
        if delta.session_id:
            deltas_by_session.setdefault(truncate_key(delta.session_id), []).append(delta)
    return [
        (session_id, *_session_row(deltas_by_session[session_id], with_window))
        for session_id in sorted(deltas_by_session)
    ]


def _session_row(deltas: Sequence[TotalsDelta], with_window: bool) -> tuple[Any, ...]:
    first, *others = deltas
    newest, began_at, ended_at, window, sums = first, first.at, first.at, first.window, first.sums
    for delta in others:
        newest = delta if delta.model_at > newest.model_at else newest
        began_at, ended_at = min(began_at, delta.at), max(ended_at, delta.at)
        window = delta.window if delta.window.at > window.at else window
        sums = _add_sums(sums, delta.sums)
    return (
        *(truncate_key(newest.agent), newest.model, newest.model_at, began_at, ended_at),
        *(window if with_window else ()),
        *_clamp_sums(sums),
    )


def _add_to_key(sums: dict[_TotalsKey, Sequence[int]], key: _TotalsKey, added: Sequence[int]) -> None:
    current = sums.get(key)
    sums[key] = added if current is None else _add_sums(current, added)


def _add_sums(sums: Sequence[int], others: Sequence[int]) -> Sequence[int]:
    return [value + other for value, other in zip(sums, others, strict=True)]


def _clamp_sums(sums: Sequence[int]) -> Sequence[int]:
    if min(sums) >= -_MAX_SUM and max(sums) <= _MAX_SUM:
        return sums
    return [max(-_MAX_SUM, min(value, _MAX_SUM)) for value in sums]


# SQLite's sums overflow at 64 bits, so high and low bits are summed separately.
_LOW_BITS = 32
_LOW_MASK = 2**_LOW_BITS - 1
_SUM_EXPRESSIONS = ", ".join(
    f"coalesce(CAST(sum({added}) AS BIGINT), 0)"
    for added in (
        *COUNT_COLUMNS,
        *(f"{name} >> {_LOW_BITS}" for name in AMOUNT_COLUMNS),
        *(f"{name} & {_LOW_MASK}" for name in AMOUNT_COLUMNS),
    )
)
_GROUP_EXPRESSIONS = {
    TotalsGroup.HOUR: "start",
    TotalsGroup.DAY: f"start / {HOURS_PER_DAY}",
    TotalsGroup.AGENT: "agent",
    TotalsGroup.MODEL: "model",
    TotalsGroup.CATEGORY: "category",
}
_SESSION_COLUMNS = ", ".join(
    [
        "session_id",
        "agent",
        "model",
        "first_at",
        "last_at",
        "tokens",
        "window_tokens",
        *COUNT_COLUMNS,
        *AMOUNT_COLUMNS,
    ]
)
_ORDER_COLUMNS = {SessionOrder.NEWEST: "last_at", SessionOrder.DEAREST: "picodollars"}
_FIND_SESSION = f"SELECT {_SESSION_COLUMNS} FROM session_totals_v1 WHERE session_id = ?"
_FIND_AGENTS = f"SELECT DISTINCT agent FROM totals_v1 WHERE span = '{ALL_TIME}'"
_FIND_CHANGE_COUNTERS = (
    f"SELECT sum(requests), sum(calls), sum(breaks) FROM totals_v1 WHERE span = '{ALL_TIME}'"
)
_FIND_SESSION_CHANGE_COUNTERS = "SELECT requests, calls, breaks FROM session_totals_v1 WHERE session_id = ?"
_FIND_COMPACTION_CHANGE_COUNTERS = "SELECT count(*), count(undone_at) FROM compactions_v1 WHERE session_id = ?"


_TimeSpan = tuple[str, int, int | None]
"""Rows of one span (hour, day or all time) that start in a range of hours; the end is exclusive."""


class SqlRollupStore:
    """`foveate.session.rollups.RollupStore` on a database."""

    def __init__(self, database: Reader) -> None:
        self._database = database

    async def sum_totals(
        self,
        group_by: Sequence[TotalsGroup] = (),
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
    ) -> Sequence[tuple[tuple[str, ...], Totals]]:
        statement, values = _build_totals_query(group_by, _choose_spans(group_by, since, until), agent)
        groups = len(group_by)

        # Convert in the thread: thousands of agents would block the event loop.
        def find(transaction: Transaction) -> list[tuple[tuple[str, ...], Totals]]:
            rows = transaction.fetch_all(statement, values)
            labelled_rows = (
                (_to_group_labels(group_by, row[:groups]), _to_totals(*_join_halves(row[groups:])))
                for row in rows
            )
            return sorted(labelled_rows, key=lambda labels_and_totals: labels_and_totals[0])

        return await self._database.read(find)

    async def list_sessions(
        self,
        *,
        limit: int,
        order: SessionOrder = SessionOrder.NEWEST,
        after: SessionTotals | None = None,
        before: SessionTotals | None = None,
        since: float | None = None,
        agent: str | None = None,
        id_prefix: str = "",
    ) -> Sequence[SessionTotals]:
        by = _ORDER_COLUMNS[order]
        places = {
            f"({by}, session_id) < (?, ?)": None if after is None else _page_position(order, after),
            f"({by}, session_id) > (?, ?)": None if before is None else _page_position(order, before),
        }
        condition, values = _build_session_condition(since, agent, id_prefix, places)
        # The sessions nearest to `before` come first; they are reversed below.
        direction = "DESC" if before is None else "ASC"
        statement = f"""
            SELECT {_SESSION_COLUMNS} FROM session_totals_v1 {condition}
            ORDER BY {by} {direction}, session_id {direction} LIMIT ?
        """
        sessions = [_to_session_totals(*row) for row in await self._read(statement, [*values, limit])]
        return sessions if before is None else sessions[::-1]

    async def count_sessions(
        self, *, since: float | None = None, agent: str | None = None, id_prefix: str = ""
    ) -> int:
        condition, values = _build_session_condition(since, agent, id_prefix)
        ((number,),) = await self._read(f"SELECT count(*) FROM session_totals_v1 {condition}", values)
        return int(number)

    async def get_session(self, session_id: str) -> SessionTotals | None:
        rows = await self._read(_FIND_SESSION, (truncate_key(to_storable_name(session_id)),))
        return _to_session_totals(*rows[0]) if rows else None

    async def list_agents(self) -> Sequence[str]:
        return sorted(agent for (agent,) in await self._read(_FIND_AGENTS))

    async def get_change_token(self, session_id: str | None = None, *, agent: str | None = None) -> str:
        def find(transaction: Transaction) -> list[tuple[Any, ...]]:
            if session_id is None and agent is not None:
                return transaction.fetch_all(f"{_FIND_CHANGE_COUNTERS} AND agent = ?", (_to_agent_key(agent),))
            if session_id is None:
                return transaction.fetch_all(_FIND_CHANGE_COUNTERS)
            name = (truncate_key(to_storable_name(session_id)),)
            return transaction.fetch_all(_FIND_SESSION_CHANGE_COUNTERS, name) + transaction.fetch_all(
                _FIND_COMPACTION_CHANGE_COUNTERS, name
            )

        return " ".join(str(number or 0) for row in await self._database.read(find) for number in row)

    async def _read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return await self._database.read(lambda transaction: transaction.fetch_all(statement, values))


def _choose_spans(per: Sequence[TotalsGroup], since: float | None, until: float | None) -> Iterator[_TimeSpan]:
    """Choose the rows that together cover the period, preferring long spans."""
    first = 0 if since is None else to_hour(since)
    end = None if until is None else _end_hour(until)
    if TotalsGroup.HOUR in per:
        yield HOUR, first, end
    elif since is None and until is None and TotalsGroup.DAY not in per:
        yield ALL_TIME, 0, None
    else:
        first_day = first_hour_of_day(first + HOURS_PER_DAY - 1)
        end_day = None if end is None else first_hour_of_day(end)
        if end_day is not None and end_day <= first_day:
            yield HOUR, first, end
            return
        yield HOUR, first, first_day
        yield DAY, first_day, end_day
        if end is not None and end_day is not None:
            yield HOUR, end_day, end


def _end_hour(until: float) -> int:
    """Return the first hour that begins at or after `until`."""
    hour = to_hour(until)
    return hour + (hour * _HOUR_SECONDS < until)


def _build_totals_query(
    per: Sequence[TotalsGroup], spans: Iterable[_TimeSpan], agent: str | None
) -> tuple[str, list[str | int]]:
    parts: list[str] = []
    values: list[str | int] = []
    for span, first, end in spans:
        conditions: dict[str, str | int | None] = {
            "span = ?": span,
            "start >= ?": first,
            "start < ?": end,
            "agent = ?": _to_agent_key(agent),
        }
        active: dict[str, str | int] = {
            condition: value for condition, value in conditions.items() if value is not None
        }
        parts.append(f"SELECT * FROM totals_v1 WHERE {' AND '.join(active)}")
        values += active.values()
    groups = [_GROUP_EXPRESSIONS[condition] for condition in per]
    group_by = f"GROUP BY {', '.join(groups)}" if groups else ""
    source = " UNION ALL ".join(parts)
    return f"SELECT {', '.join([*groups, _SUM_EXPRESSIONS])} FROM ({source}) AS asked {group_by}", values


def _build_session_condition(
    since: float | None,
    agent: str | None,
    beginning: str,
    places: Mapping[str, Sequence[Any] | None] | None = None,
) -> tuple[str, list[Any]]:
    check_storable_names(id=beginning)
    conditions: dict[str, Sequence[Any] | None] = {
        "last_at >= ?": None if since is None else (since,),
        "agent = ?": None if agent is None else (truncate_key(to_storable_name(agent)),),
        # Not LIKE, in which some characters are wildcards.
        "substr(session_id, 1, ?) = ?": (len(beginning), beginning) if beginning else None,
        **(places or {}),
    }
    return build_where_clause(conditions)


def _page_position(order: SessionOrder, session: SessionTotals) -> tuple[float | int, str]:
    check_storable_names(session_id=session.session_id)
    by = session.last_at if order is SessionOrder.NEWEST else to_picodollars(session.totals.dollars)
    return by, session.session_id


def _to_agent_key(agent: str | None) -> str | None:
    return None if agent is None else truncate_key(to_storable_name(agent))


def _to_group_labels(per: Sequence[TotalsGroup], group: Sequence[str | int]) -> tuple[str, ...]:
    return tuple(
        value if isinstance(value, str) else _format_time(dimension, value)
        for dimension, value in zip(per, group, strict=True)
    )


@lru_cache(maxsize=1_024)
def _format_time(per: TotalsGroup, number: int) -> str:
    seconds, pattern = (
        (_HOUR_SECONDS, "%Y-%m-%dT%H")
        if per is TotalsGroup.HOUR
        else (_HOUR_SECONDS * HOURS_PER_DAY, "%Y-%m-%d")
    )
    return datetime.fromtimestamp(number * seconds, UTC).strftime(pattern)


def _join_halves(added: Sequence[int]) -> list[int]:
    counts, high, low = (
        len(COUNT_COLUMNS),
        len(COUNT_COLUMNS) + len(AMOUNT_COLUMNS),
        len(COUNT_COLUMNS) + 2 * len(AMOUNT_COLUMNS),
    )
    parts = zip(added[counts:high], added[high:low], strict=True)
    return [*added[:counts], *((high_part << _LOW_BITS) + low_part for high_part, low_part in parts)]


def _to_session_totals(
    session_id: str,
    agent: str,
    model: str,
    first_at: float,
    last_at: float,
    tokens: int | None,
    window_tokens: int | None,
    *sums: int,
) -> SessionTotals:
    return SessionTotals(
        session_id=session_id,
        agent=agent,
        model=model,
        first_at=first_at,
        last_at=last_at,
        tokens=tokens,
        window_tokens=window_tokens,
        totals=_to_totals(*sums),
    )


def _to_totals(
    requests: int,
    failed: int,
    cache_misses: int,
    planned_rewrites: int,
    calls: int,
    unpriced: int,
    compared: int,
    would_not_fit: int,
    inherited: int,
    subscription: int,
    possibly_charged: int,
    added_microseconds: int,
    lost_tokens: int,
    lost_picodollars: int,
    rewritten_tokens: int,
    uncached: int,
    read: int,
    written_5m: int,
    written_1h: int,
    output_tokens: int,
    spent_picodollars: int,
    without: int,
    by_compaction: int,
    by_context: int,
    by_breakpoints: int,
    by_keep_alive: int,
    simulation_error: int,
    not_fitting: int,
    inherited_spent: int,
    subscription_spent: int,
    possible_charges: int,
) -> Totals:
    return Totals(
        requests=requests,
        failed=failed,
        added_seconds=added_microseconds / 1e6,
        cache_misses=cache_misses,
        lost_tokens=lost_tokens,
        lost_dollars=to_dollars(lost_picodollars),
        calls=calls,
        unpriced=unpriced,
        cache=CacheUsage(uncached=uncached, read=read, written_5m=written_5m, written_1h=written_1h),
        output_tokens=output_tokens,
        dollars=to_dollars(spent_picodollars),
        planned_rewrites=planned_rewrites,
        rewritten_tokens=rewritten_tokens,
        compared=compared,
        without=to_dollars(without),
        saved_by_compaction=to_dollars(by_compaction),
        saved_by_context=to_dollars(by_context),
        saved_by_breakpoints=to_dollars(by_breakpoints),
        saved_by_keep_alive=to_dollars(by_keep_alive),
        simulation_error=to_dollars(simulation_error),
        would_not_fit=would_not_fit,
        would_not_fit_dollars=to_dollars(not_fitting),
        inherited=inherited,
        inherited_dollars=to_dollars(inherited_spent),
        subscription=subscription,
        subscription_dollars=to_dollars(subscription_spent),
        possibly_charged=possibly_charged,
        possibly_charged_dollars=to_dollars(possible_charges),
    )
