"""What requests and their bills add to the totals, in the transaction that keeps them, and only once.

Each adds to its hour, to its day, to all that ever was and to its session: what is read for a page is then few
rows, whatever it asks for. Rows are locked in one order, after those of accounts: totals by their keys, then
sessions by their ids. A sum ends where it could no longer be added to.
"""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from foveate.cost.ledger import Category
from foveate.cost.money import MAX_PICODOLLARS, to_picodollars
from foveate.session.traces import CacheMiss
from foveate.store.database import Transaction, batch_inserts
from foveate.values import Comparison

REQUEST_SUMS = (
    *("requests", "failed", "added_microseconds", "breaks", "lost_tokens", "lost_picodollars"),
    *("planned_rewrites", "rewritten_tokens"),
)
"""What requests are added up to, as they are traced."""
CHARGE_SUMS = (
    *("calls", "unpriced", "uncached", "read", "written_5m", "written_1h", "output_tokens"),
    *("picodollars", "compared", "without_picodollars", "saved_by_compaction", "saved_by_context"),
    *("saved_by_breakpoints", "saved_by_keep_alive", "simulation_error"),
    *("would_not_fit", "would_not_fit_picodollars"),
    *("inherited", "inherited_picodollars", "subscription", "subscription_picodollars"),
    *("possibly_charged", "possibly_charged_picodollars"),
)
"""What bills are added up to."""
LEGACY_SUMS = ("saved_by_cache", "saved_by_folds", "saved_by_cuts")
"""Savings as earlier versions computed them. Nothing is added to them any more."""
SUMS = (*REQUEST_SUMS, *CHARGE_SUMS)
COUNT_COLUMNS = (
    *("requests", "failed", "breaks", "planned_rewrites", "calls", "unpriced", "compared", "would_not_fit"),
    *("inherited", "subscription", "possibly_charged"),
)
"""Those of them that only ever change by one, and never beyond what can be added."""
AMOUNT_COLUMNS = tuple(name for name in SUMS if name not in COUNT_COLUMNS)

HOUR, DAY, ALL_TIME = "hour", "day", "ever"
HOURS_PER_DAY = 24
_HOUR_SECONDS = 3_600
_LAST_HOUR = 70_389_527
"""Of the year 9999, with which calendars end."""
# Two of them go into one index, and PostgreSQL's take 2,700 bytes.
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
INSERT INTO totals_v1 ({_TOTALS_KEY}, {", ".join(sums)}) VALUES {{}} ON CONFLICT ({_TOTALS_KEY}) DO UPDATE SET {added}
"""


def _format_session_totals_upsert(sums: Sequence[str], window: Sequence[str] = ()) -> str:
    """The statement that adds to sessions; what is the newest one's own is replaced by what is newer."""
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


class WindowUsage(NamedTuple):
    """How full the window of a request was, and when; of none, at no time."""

    at: float = 0.0
    tokens: int | None = None
    window_tokens: int | None = None


class TotalsDelta(NamedTuple):
    """What one request or bill adds; `model_at` is when the session asked its model, 0 where it did not."""

    at: float
    agent: str
    session_id: str
    model: str
    category: str
    model_at: float
    sums: Sequence[int]
    window: WindowUsage = WindowUsage()


def truncate_key(name: str) -> str:
    """As much of a name that can be kept as is a key here."""
    return name[:_MAX_KEY_CHARS]


def to_hour(at: float) -> int:
    """The hour that a time is in, counted from 1970 on."""
    return int(min(max(at, 0.0) / _HOUR_SECONDS, _LAST_HOUR))


def first_hour_of_day(hour: int) -> int:
    """The first hour of the same day."""
    return hour - hour % HOURS_PER_DAY


def request_delta(
    at: float,
    agent: str,
    session_id: str,
    model: str,
    *,
    is_failed: bool,
    added_seconds: float,
    window: WindowUsage,
    broke: CacheMiss | None,
) -> TotalsDelta:
    """What a request adds; `broke` says why its cache broke, if it did."""
    added = round(added_seconds * 1e6) if math.isfinite(added_seconds) else 0
    sums = (1, int(is_failed), added, *_cache_miss_sums(broke))
    return TotalsDelta(at, agent, session_id, model, Category.MAIN.value, at, sums, window)


def cache_miss_delta(at: float, agent: str, session_id: str, model: str, broke: CacheMiss) -> TotalsDelta:
    """What it adds that the cache broke at a request that was added before."""
    return TotalsDelta(
        at, agent, session_id, model, Category.MAIN.value, at, (0, 0, 0, *_cache_miss_sums(broke))
    )


def add_requests(transaction: Transaction, deltas: Sequence[TotalsDelta]) -> None:
    """Add requests, and breaks of their caches."""
    _execute_inserts(transaction, _ADD_REQUESTS_TO_TOTALS, _totals_rows(deltas))
    _execute_inserts(transaction, _ADD_REQUESTS_TO_SESSIONS, _session_rows(deltas, with_window=True))


def add_charges(transaction: Transaction, charge_rows: Sequence[tuple[Any, ...]]) -> None:
    """Add bills, each a row of the ledger as `ledger_rows.row_of` gives it."""
    deltas = [_charge_delta(*charge_row) for charge_row in charge_rows]
    _execute_inserts(transaction, _ADD_CHARGES_TO_TOTALS, _totals_rows(deltas))
    _execute_inserts(transaction, _ADD_CHARGES_TO_SESSIONS, _session_rows(deltas, with_window=False))


def change_charge(transaction: Transaction, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    """Change the totals by the difference between two rows of the ledger for the same call."""
    old, new = _charge_delta(*before), _charge_delta(*after)
    change = new._replace(sums=[new_sum - old_sum for new_sum, old_sum in zip(new.sums, old.sums, strict=True)])
    _execute_inserts(transaction, _ADD_CHARGES_TO_TOTALS, _totals_rows([change]))
    _execute_inserts(transaction, _ADD_CHARGES_TO_SESSIONS, _session_rows([change], with_window=False))


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
    fits = comparison != Comparison.WOULD_NOT_FIT
    money = (
        *(spent or 0, int(without is not None), without or 0, *(amount or 0 for amount in saved)),
        *((0, 0) if fits else (1, spent or 0)),
        *(is_inherited, (spent or 0) * is_inherited, is_subscription, (spent or 0) * is_subscription),
        *(is_possibly_charged, (charged or 0) * is_possibly_charged),
    )
    # A fold or a ping may be another model's than the session's.
    model_at = at if category == Category.MAIN else 0.0
    return TotalsDelta(
        at, agent, session_id, model, category, model_at, (1, int(spent is None), *tokens, *money)
    )


def _cache_miss_sums(broke: CacheMiss | None) -> tuple[int, int, int, int, int]:
    if broke is None:
        return 0, 0, 0, 0, 0
    if broke.is_planned:
        return 0, 0, 0, 1, broke.lost_tokens
    try:
        return 1, broke.lost_tokens, to_picodollars(broke.lost_dollars or Decimal(0)), 0, 0
    except OverflowError:  # what nobody can have lost
        return 1, broke.lost_tokens, 0, 0, 0


def _execute_inserts(transaction: Transaction, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
    for insert, batch in batch_inserts(statement, values):
        transaction.execute(insert, batch)


def _totals_rows(deltas: Iterable[TotalsDelta]) -> list[tuple[Any, ...]]:
    """The rows that are added to totals, in the order in which they are locked."""
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
    """The rows that are added to sessions, in the order in which they are locked; who has none is in none."""
    found: dict[str, list[TotalsDelta]] = {}
    for delta in deltas:
        if delta.session_id:
            found.setdefault(truncate_key(delta.session_id), []).append(delta)
    return [(session_id, *_session_row(found[session_id], with_window)) for session_id in sorted(found)]


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
