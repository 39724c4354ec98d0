"""Totals over hours and over sessions, read as `foveate.session` asks for them; `adding.py` adds to them.

There are rows of an hour, of a day and of all that ever was: whatever time is asked for, few are added up.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from foveate.cost.money import to_dollars, to_picodollars
from foveate.session.totals import SessionOrder, SessionTotals, Totals, TotalsGroup
from foveate.store.adding import (
    ALL_TIME,
    AMOUNT_COLUMNS,
    COUNT_COLUMNS,
    DAY,
    HOUR,
    HOURS_PER_DAY,
    first_hour_of_day,
    to_hour,
    truncate_key,
)
from foveate.store.aside import Reader
from foveate.store.database import Transaction, build_where_clause, check_storable_names
from foveate.store.ledger_rows import to_storable_name
from foveate.values import CacheUsage

# Beyond 64 bits SQLite's sums end with an error: the high bits are added apart from the low ones.
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

_SECONDS_PER_HOUR = 3_600

_TimeSpan = tuple[str, int, int | None]
"""Rows of an hour, of a day or of all, that begin from the first hour up to, not with, the other."""


class SqlRollupStore:
    """Implements `foveate.session.totals.Added` on a database."""

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
        """Totals by their groups, in the order of these; whole hours, from that of `since` to that of `until`.

        An `until` on the hour ends with the one before. Without `per` it is one group, `()`, also where nothing
        was asked.
        """
        statement, values = _build_totals_query(group_by, _choose_spans(group_by, since, until), agent)
        groups = len(group_by)

        # Not where others wait for the event loop: of thousands of agents it takes long.
        def find(transaction: Transaction) -> list[tuple[tuple[str, ...], Totals]]:
            found = transaction.fetch_all(statement, values)
            named = (
                (_to_group_labels(group_by, row[:groups]), _to_totals(*_join_halves(row[groups:])))
                for row in found
            )
            return sorted(named, key=lambda one: one[0])

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
        """A page of sessions asked `since`, of an agent, by an id.

        The next page is `after` the last of it, the one that comes first is `before` the first of it.
        """
        by = _ORDER_COLUMNS[order]
        places = {
            f"({by}, session_id) < (?, ?)": None if after is None else _page_position(order, after),
            f"({by}, session_id) > (?, ?)": None if before is None else _page_position(order, before),
        }
        condition, values = _build_session_condition(since, agent, id_prefix, places)
        # Those that are nearest before another come last.
        way = "DESC" if before is None else "ASC"
        statement = f"""
            SELECT {_SESSION_COLUMNS} FROM session_totals_v1 {condition} ORDER BY {by} {way}, session_id {way} LIMIT ?
        """
        found = [_to_session_totals(*row) for row in await self._read(statement, [*values, limit])]
        return found if before is None else found[::-1]

    async def count_sessions(
        self, *, since: float | None = None, agent: str | None = None, id_prefix: str = ""
    ) -> int:
        """How many sessions those pages have in all."""
        condition, values = _build_session_condition(since, agent, id_prefix)
        ((number,),) = await self._read(f"SELECT count(*) FROM session_totals_v1 {condition}", values)
        return int(number)

    async def get_session(self, session_id: str) -> SessionTotals | None:
        """One session."""
        found = await self._read(_FIND_SESSION, (truncate_key(to_storable_name(session_id)),))
        return _to_session_totals(*found[0]) if found else None

    async def list_agents(self) -> Sequence[str]:
        """The agents that have asked anything, by their names."""
        return sorted(agent for (agent,) in await self._read(_FIND_AGENTS))

    async def get_change_token(self, session_id: str | None = None, *, agent: str | None = None) -> str:
        """What is another as soon as anything was added, or of one session: also a fold or its undo.

        Without a session, `agent` is whose additions count; None: those of all.
        """

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
    """Which rows together are the time that is asked for, the longest that do."""
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
    """The hour before which all is from before that time."""
    hour = to_hour(until)
    return hour + (hour * _SECONDS_PER_HOUR < until)


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
        # Not LIKE, to which some letters mean something else; the same as in `finding`.
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
    """An hour or a day by its number, as calendars have it."""
    seconds, pattern = (
        (_SECONDS_PER_HOUR, "%Y-%m-%dT%H")
        if per is TotalsGroup.HOUR
        else (_SECONDS_PER_HOUR * HOURS_PER_DAY, "%Y-%m-%d")
    )
    return datetime.fromtimestamp(number * seconds, UTC).strftime(pattern)


def _join_halves(added: Sequence[int]) -> list[int]:
    """The sums of a row of the statement above, each in one."""
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
    breaks: int,
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
        breaks=breaks,
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
