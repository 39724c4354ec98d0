"""Totals over hours and over sessions, read as `foveate.session` asks for them; `adding.py` adds to them.

There are rows of an hour, of a day and of all that ever was: whatever time is asked for, few are added up.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from foveate.cost.money import dollars, picodollars
from foveate.session.totals import Order, Per, SessionTotals, Totals
from foveate.store.adding import AMOUNTS, COUNTS, DAY, EVER, HOUR, HOURS_A_DAY, day_of_hour, hour_of, key_of
from foveate.store.aside import Reads
from foveate.store.database import Rows, check_names, where_of
from foveate.store.ledger_rows import name_of
from foveate.values import CacheUsage

# Beyond 64 bits SQLite's sums end with an error: the high bits are added apart from the low ones.
_BITS = 32
_LOW = 2**_BITS - 1
_ADDED = ", ".join(
    f"coalesce(CAST(sum({added}) AS BIGINT), 0)"
    for added in (
        *COUNTS,
        *(f"{name} >> {_BITS}" for name in AMOUNTS),
        *(f"{name} & {_LOW}" for name in AMOUNTS),
    )
)
_GROUP_OF = {
    Per.HOUR: "start",
    Per.DAY: f"start / {HOURS_A_DAY}",
    Per.AGENT: "agent",
    Per.MODEL: "model",
    Per.CATEGORY: "category",
}
_COLUMNS = ", ".join(
    ["session_id", "agent", "model", "first_at", "last_at", "tokens", "window_tokens", *COUNTS, *AMOUNTS]
)
_ORDER_OF = {Order.NEWEST: "last_at", Order.DEAREST: "picodollars"}
_FIND_SESSION = f"SELECT {_COLUMNS} FROM session_totals_v1 WHERE session_id = ?"
_FIND_AGENTS = f"SELECT DISTINCT agent FROM totals_v1 WHERE span = '{EVER}'"
_PULSE = f"SELECT sum(requests), sum(calls), sum(breaks) FROM totals_v1 WHERE span = '{EVER}'"
_PULSE_OF_SESSION = "SELECT requests, calls, breaks FROM session_totals_v1 WHERE session_id = ?"
_PULSE_OF_FOLDS = "SELECT count(*), count(undone_at) FROM compactions_v1 WHERE session_id = ?"

_HOUR_SECONDS = 3_600

_Span = tuple[str, int, int | None]
"""Rows of an hour, of a day or of all, that begin from the first hour up to, not with, the other."""


class KeptTotals:
    """Implements `foveate.session.totals.Added` on a database."""

    def __init__(self, database: Reads) -> None:
        self._database = database

    async def totals(
        self,
        per: Sequence[Per] = (),
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
    ) -> Sequence[tuple[tuple[str, ...], Totals]]:
        """Totals by their groups, in the order of these; whole hours, from that of `since` to that of `until`.

        An `until` on the hour ends with the one before. Without `per` it is one group, `()`, also where nothing
        was asked.
        """
        statement, values = _adding_up(per, _spans(per, since, until), agent)
        groups = len(per)

        # Not where others wait for the event loop: of thousands of agents it takes long.
        def find(rows: Rows) -> list[tuple[tuple[str, ...], Totals]]:
            found = rows.all(statement, values)
            named = ((_named(per, row[:groups]), _totals(*_whole(row[groups:]))) for row in found)
            return sorted(named, key=lambda one: one[0])

        return await self._database.read(find)

    async def sessions(
        self,
        *,
        limit: int,
        order: Order = Order.NEWEST,
        after: SessionTotals | None = None,
        before: SessionTotals | None = None,
        since: float | None = None,
        agent: str | None = None,
        beginning: str = "",
    ) -> Sequence[SessionTotals]:
        """A page of sessions asked `since`, of an agent, by an id.

        The next page is `after` the last of it, the one that comes first is `before` the first of it.
        """
        by = _ORDER_OF[order]
        places = {
            f"({by}, session_id) < (?, ?)": None if after is None else _place(order, after),
            f"({by}, session_id) > (?, ?)": None if before is None else _place(order, before),
        }
        condition, values = _condition(since, agent, beginning, places)
        # Those that are nearest before another come last.
        way = "DESC" if before is None else "ASC"
        statement = f"""
            SELECT {_COLUMNS} FROM session_totals_v1 {condition} ORDER BY {by} {way}, session_id {way} LIMIT ?
        """
        found = [_session(*row) for row in await self._read(statement, [*values, limit])]
        return found if before is None else found[::-1]

    async def count(self, *, since: float | None = None, agent: str | None = None, beginning: str = "") -> int:
        """How many sessions those pages have in all."""
        condition, values = _condition(since, agent, beginning)
        ((number,),) = await self._read(f"SELECT count(*) FROM session_totals_v1 {condition}", values)
        return int(number)

    async def session(self, session_id: str) -> SessionTotals | None:
        """One session."""
        found = await self._read(_FIND_SESSION, (key_of(name_of(session_id)),))
        return _session(*found[0]) if found else None

    async def agents(self) -> Sequence[str]:
        """The agents that have asked anything, by their names."""
        return sorted(agent for (agent,) in await self._read(_FIND_AGENTS))

    async def pulse(self, session_id: str | None = None, *, agent: str | None = None) -> str:
        """What is another as soon as anything was added, or of one session: also a fold or its undo.

        Without a session, `agent` is whose additions count; None: those of all.
        """

        def find(rows: Rows) -> list[tuple[Any, ...]]:
            if session_id is None and agent is not None:
                return rows.all(f"{_PULSE} AND agent = ?", (_name(agent),))
            if session_id is None:
                return rows.all(_PULSE)
            name = (key_of(name_of(session_id)),)
            return rows.all(_PULSE_OF_SESSION, name) + rows.all(_PULSE_OF_FOLDS, name)

        return " ".join(str(number or 0) for row in await self._database.read(find) for number in row)

    async def _read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return await self._database.read(lambda rows: rows.all(statement, values))


def _spans(per: Sequence[Per], since: float | None, until: float | None) -> Iterator[_Span]:
    """Which rows together are the time that is asked for, the longest that do."""
    first = 0 if since is None else hour_of(since)
    end = None if until is None else _end_of(until)
    if Per.HOUR in per:
        yield HOUR, first, end
    elif since is None and until is None and Per.DAY not in per:
        yield EVER, 0, None
    else:
        first_day = day_of_hour(first + HOURS_A_DAY - 1)
        end_day = None if end is None else day_of_hour(end)
        if end_day is not None and end_day <= first_day:
            yield HOUR, first, end
            return
        yield HOUR, first, first_day
        yield DAY, first_day, end_day
        if end is not None and end_day is not None:
            yield HOUR, end_day, end


def _end_of(until: float) -> int:
    """The hour before which all is from before that time."""
    hour = hour_of(until)
    return hour + (hour * _HOUR_SECONDS < until)


def _adding_up(per: Sequence[Per], spans: Iterable[_Span], agent: str | None) -> tuple[str, list[str | int]]:
    parts: list[str] = []
    values: list[str | int] = []
    for span, first, end in spans:
        conditions: dict[str, str | int | None] = {
            "span = ?": span,
            "start >= ?": first,
            "start < ?": end,
            "agent = ?": _name(agent),
        }
        asked: dict[str, str | int] = {one: value for one, value in conditions.items() if value is not None}
        parts.append(f"SELECT * FROM totals_v1 WHERE {' AND '.join(asked)}")
        values += asked.values()
    groups = [_GROUP_OF[one] for one in per]
    grouped = f"GROUP BY {', '.join(groups)}" if groups else ""
    source = " UNION ALL ".join(parts)
    return f"SELECT {', '.join([*groups, _ADDED])} FROM ({source}) AS asked {grouped}", values


def _condition(
    since: float | None,
    agent: str | None,
    beginning: str,
    places: Mapping[str, Sequence[Any] | None] | None = None,
) -> tuple[str, list[Any]]:
    check_names(id=beginning)
    conditions: dict[str, Sequence[Any] | None] = {
        "last_at >= ?": None if since is None else (since,),
        "agent = ?": None if agent is None else (key_of(name_of(agent)),),
        # Not LIKE, to which some letters mean something else; the same as in `finding`.
        "substr(session_id, 1, ?) = ?": (len(beginning), beginning) if beginning else None,
        **(places or {}),
    }
    return where_of(conditions)


def _place(order: Order, after: SessionTotals) -> tuple[float | int, str]:
    check_names(session_id=after.session_id)
    by = after.last_at if order is Order.NEWEST else picodollars(after.totals.dollars)
    return by, after.session_id


def _name(agent: str | None) -> str | None:
    return None if agent is None else key_of(name_of(agent))


def _named(per: Sequence[Per], group: Sequence[str | int]) -> tuple[str, ...]:
    return tuple(
        value if isinstance(value, str) else _time_name(one, value)
        for one, value in zip(per, group, strict=True)
    )


@lru_cache(maxsize=1_024)
def _time_name(per: Per, number: int) -> str:
    """An hour or a day by its number, as calendars have it."""
    seconds, spelled = (
        (_HOUR_SECONDS, "%Y-%m-%dT%H") if per is Per.HOUR else (_HOUR_SECONDS * HOURS_A_DAY, "%Y-%m-%d")
    )
    return datetime.fromtimestamp(number * seconds, UTC).strftime(spelled)


def _whole(added: Sequence[int]) -> list[int]:
    """The sums of a row of the statement above, each in one."""
    counts, high, low = len(COUNTS), len(COUNTS) + len(AMOUNTS), len(COUNTS) + 2 * len(AMOUNTS)
    parts = zip(added[counts:high], added[high:low], strict=True)
    return [*added[:counts], *((more << _BITS) + less for more, less in parts)]


def _session(
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
        totals=_totals(*sums),
    )


def _totals(
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
    lost: int,
    rewritten_tokens: int,
    uncached: int,
    read: int,
    written_5m: int,
    written_1h: int,
    output_tokens: int,
    spent: int,
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
        lost_dollars=dollars(lost),
        calls=calls,
        unpriced=unpriced,
        cache=CacheUsage(uncached=uncached, read=read, written_5m=written_5m, written_1h=written_1h),
        output_tokens=output_tokens,
        dollars=dollars(spent),
        planned_rewrites=planned_rewrites,
        rewritten_tokens=rewritten_tokens,
        compared=compared,
        without=dollars(without),
        saved_by_compaction=dollars(by_compaction),
        saved_by_context=dollars(by_context),
        saved_by_breakpoints=dollars(by_breakpoints),
        saved_by_keep_alive=dollars(by_keep_alive),
        simulation_error=dollars(simulation_error),
        would_not_fit=would_not_fit,
        would_not_fit_dollars=dollars(not_fitting),
        inherited=inherited,
        inherited_dollars=dollars(inherited_spent),
        subscription=subscription,
        subscription_dollars=dollars(subscription_spent),
        possibly_charged=possibly_charged,
        possibly_charged_dollars=dollars(possible_charges),
    )
