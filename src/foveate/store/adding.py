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
from foveate.cost.money import MOST_PICODOLLARS, picodollars
from foveate.session.traces import CacheBreak
from foveate.store.database import Rows, in_rows
from foveate.values import Comparison

ASKED = (
    *("requests", "failed", "added_microseconds", "breaks", "lost_tokens", "lost_picodollars"),
    *("planned_rewrites", "rewritten_tokens"),
)
"""What requests are added up to, as they are traced."""
BILLED = (
    *("calls", "unpriced", "uncached", "read", "written_5m", "written_1h", "output_tokens"),
    *("picodollars", "compared", "without_picodollars", "saved_by_compaction", "saved_by_context"),
    *("saved_by_breakpoints", "saved_by_keep_alive", "simulation_error"),
    *("would_not_fit", "would_not_fit_picodollars"),
    *("inherited", "inherited_picodollars", "subscription", "subscription_picodollars"),
    *("possibly_charged", "possibly_charged_picodollars"),
)
"""What bills are added up to."""
EARLIER = ("saved_by_cache", "saved_by_folds", "saved_by_cuts")
"""Savings as earlier versions computed them. Nothing is added to them any more."""
SUMS = (*ASKED, *BILLED)
COUNTS = (
    *("requests", "failed", "breaks", "planned_rewrites", "calls", "unpriced", "compared", "would_not_fit"),
    *("inherited", "subscription", "possibly_charged"),
)
"""Those of them that only ever change by one, and never beyond what can be added."""
AMOUNTS = tuple(name for name in SUMS if name not in COUNTS)

HOUR, DAY, EVER = "hour", "day", "ever"
HOURS_A_DAY = 24
_HOUR_SECONDS = 3_600
_LAST_HOUR = 70_389_527
"""Of the year 9999, with which calendars end."""
# Two of them go into one index, and PostgreSQL's take 2,700 bytes.
_LONGEST_NAME = 250

_MOST = MOST_PICODOLLARS
_KEY = "span, start, agent, model, category"
_Key = tuple[str, int, str, str, str]


def _adding(table: str, column: str) -> str:
    added = f"{table}.{column} + excluded.{column}"
    if column in COUNTS:
        return f"{column} = {added}"
    ends = f"WHEN {added} > {_MOST} THEN {_MOST} WHEN {added} < -{_MOST} THEN -{_MOST}"
    return f"{column} = CASE {ends} ELSE {added} END"


def _add_totals(sums: Sequence[str]) -> str:
    added = ", ".join(_adding("totals_v1", column) for column in sums)
    return f"""
INSERT INTO totals_v1 ({_KEY}, {", ".join(sums)}) VALUES {{}} ON CONFLICT ({_KEY}) DO UPDATE SET {added}
"""


def _add_sessions(sums: Sequence[str], window: Sequence[str] = ()) -> str:
    """The statement that adds to sessions; what is the newest one's own is replaced by what is newer."""
    table = "session_totals_v1"
    newest = dict.fromkeys(("agent", "model", "model_at"), "model_at") | dict.fromkeys(window, "window_at")
    kept = [
        f"{column} = CASE WHEN excluded.{at} > {table}.{at} THEN excluded.{column} ELSE {table}.{column} END"
        for column, at in newest.items()
    ]
    kept += [
        f"{at} = CASE WHEN excluded.{at} {is_beyond} {table}.{at} THEN excluded.{at} ELSE {table}.{at} END"
        for at, is_beyond in (("first_at", "<"), ("last_at", ">"))
    ]
    columns = ("session_id", "agent", "model", "model_at", "first_at", "last_at", *window, *sums)
    added = ", ".join([*kept, *(_adding(table, column) for column in sums)])
    return f"""
INSERT INTO {table} ({", ".join(columns)}) VALUES {{}} ON CONFLICT (session_id) DO UPDATE SET {added}
"""


_WINDOW = ("window_at", "tokens", "window_tokens")
_ADD_BILLED = _add_totals(BILLED)
_ADD_ASKED = _add_totals(ASKED)
_ADD_SESSIONS_BILLED = _add_sessions(BILLED)
_ADD_SESSIONS_ASKED = _add_sessions(ASKED, _WINDOW)


class Window(NamedTuple):
    """How full the window of a request was, and when; of none, at no time."""

    at: float = 0.0
    tokens: int | None = None
    window_tokens: int | None = None


class Addition(NamedTuple):
    """What one request or bill adds; `model_at` is when the session asked its model, 0 where it did not."""

    at: float
    agent: str
    session_id: str
    model: str
    category: str
    model_at: float
    sums: Sequence[int]
    window: Window = Window()


def key_of(name: str) -> str:
    """As much of a name that can be kept as is a key here."""
    return name[:_LONGEST_NAME]


def hour_of(at: float) -> int:
    """The hour that a time is in, counted from 1970 on."""
    return int(min(max(at, 0.0) / _HOUR_SECONDS, _LAST_HOUR))


def day_of_hour(hour: int) -> int:
    """The first hour of the same day."""
    return hour - hour % HOURS_A_DAY


def asked(
    at: float,
    agent: str,
    session_id: str,
    model: str,
    *,
    is_failed: bool,
    added_seconds: float,
    window: Window,
    broke: CacheBreak | None,
) -> Addition:
    """What a request adds; `broke` says why its cache broke, if it did."""
    added = round(added_seconds * 1e6) if math.isfinite(added_seconds) else 0
    sums = (1, int(is_failed), added, *_lost(broke))
    return Addition(at, agent, session_id, model, Category.MAIN.value, at, sums, window)


def broken(at: float, agent: str, session_id: str, model: str, broke: CacheBreak) -> Addition:
    """What it adds that the cache broke at a request that was added before."""
    return Addition(at, agent, session_id, model, Category.MAIN.value, at, (0, 0, 0, *_lost(broke)))


def add_asked(rows: Rows, additions: Sequence[Addition]) -> None:
    """Add requests, and breaks of their caches."""
    _add(rows, _ADD_ASKED, _in_spans(additions))
    _add(rows, _ADD_SESSIONS_ASKED, _sessions(additions, with_window=True))


def add_bills(rows: Rows, bills: Sequence[tuple[Any, ...]]) -> None:
    """Add bills, each a row of the ledger as `ledger_rows.row_of` gives it."""
    additions = [_billed(*bill) for bill in bills]
    _add(rows, _ADD_BILLED, _in_spans(additions))
    _add(rows, _ADD_SESSIONS_BILLED, _sessions(additions, with_window=False))


def change_bill(rows: Rows, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    """Change the totals by the difference between two rows of the ledger for the same call."""
    was, now = _billed(*before), _billed(*after)
    change = now._replace(sums=[one - other for one, other in zip(now.sums, was.sums, strict=True)])
    _add(rows, _ADD_BILLED, _in_spans([change]))
    _add(rows, _ADD_SESSIONS_BILLED, _sessions([change], with_window=False))


def _billed(
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
    _said: str | None,
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
) -> Addition:
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
    return Addition(at, agent, session_id, model, category, model_at, (1, int(spent is None), *tokens, *money))


def _lost(broke: CacheBreak | None) -> tuple[int, int, int, int, int]:
    if broke is None:
        return 0, 0, 0, 0, 0
    if broke.is_planned:
        return 0, 0, 0, 1, broke.lost_tokens
    try:
        return 1, broke.lost_tokens, picodollars(broke.lost_dollars or Decimal(0)), 0, 0
    except OverflowError:  # what nobody can have lost
        return 1, broke.lost_tokens, 0, 0, 0


def _add(rows: Rows, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
    for inserting, some in in_rows(statement, values):
        rows.change(inserting, some)


def _in_spans(additions: Iterable[Addition]) -> list[tuple[Any, ...]]:
    """The rows that are added to totals, in the order in which they are locked."""
    hours: dict[_Key, Sequence[int]] = {}
    for one in additions:
        _put(hours, (HOUR, hour_of(one.at), key_of(one.agent), key_of(one.model), one.category), one.sums)
    spans = dict(hours)
    for (_, hour, *whose), sums in hours.items():
        agent, model, category = whose
        _put(spans, (DAY, day_of_hour(hour), agent, model, category), sums)
        _put(spans, (EVER, 0, agent, model, category), sums)
    return [(*key, *_kept(spans[key])) for key in sorted(spans)]


def _sessions(additions: Iterable[Addition], *, with_window: bool) -> list[tuple[Any, ...]]:
    """The rows that are added to sessions, in the order in which they are locked; who has none is in none."""
    found: dict[str, list[Addition]] = {}
    for one in additions:
        if one.session_id:
            found.setdefault(key_of(one.session_id), []).append(one)
    return [(session_id, *_session(found[session_id], with_window)) for session_id in sorted(found)]


def _session(additions: Sequence[Addition], with_window: bool) -> tuple[Any, ...]:
    first, *others = additions
    model, began_at, ended_at, window, sums = first, first.at, first.at, first.window, first.sums
    for one in others:
        model = one if one.model_at > model.model_at else model
        began_at, ended_at = min(began_at, one.at), max(ended_at, one.at)
        window = one.window if one.window.at > window.at else window
        sums = _plus(sums, one.sums)
    return (
        *(key_of(model.agent), model.model, model.model_at, began_at, ended_at),
        *(window if with_window else ()),
        *_kept(sums),
    )


def _put(sums: dict[_Key, Sequence[int]], key: _Key, more: Sequence[int]) -> None:
    there = sums.get(key)
    sums[key] = more if there is None else _plus(there, more)


def _plus(sums: Sequence[int], others: Sequence[int]) -> Sequence[int]:
    return [one + other for one, other in zip(sums, others, strict=True)]


def _kept(sums: Sequence[int]) -> Sequence[int]:
    if min(sums) >= -_MOST and max(sums) <= _MOST:
        return sums
    return [max(-_MOST, min(one, _MOST)) for one in sums]
