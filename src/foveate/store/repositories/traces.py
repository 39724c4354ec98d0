"""Stores what was done to each request. Charges are joined from the ledger."""

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from foveate.cost.money import to_dollars
from foveate.model import CacheUsage, Savings
from foveate.session.traces import (
    CacheMiss,
    ChargedTrace,
    Trace,
    TracedCharge,
    TracedEdit,
    TracedSession,
    WindowSection,
)
from foveate.store.database import (
    Database,
    Transaction,
    batch_inserts,
    build_where_clause,
    check_storable_names,
)
from foveate.store.repositories.ledger_rows import SAVINGS_COLUMNS, to_savings, to_storable_name
from foveate.store.repositories.rollups import (
    TotalsDelta,
    WindowFill,
    add_requests,
    cache_miss_delta,
    request_delta,
)

TRACE_COLUMNS = (
    "id, agent, session_id, provider, model, at, status, tokens, window_tokens, fold_id, told, broke"
)
_ADD_TRACES = f"INSERT INTO traces_v1 ({TRACE_COLUMNS}) VALUES {{}} ON CONFLICT (id) DO NOTHING RETURNING id"
# The first cache miss of a request is stored and counted; later ones are ignored.
_SET_CACHE_MISS = """
UPDATE traces_v1 SET broke = ? WHERE id = ? AND broke IS NULL RETURNING at, agent, session_id, model
"""
_CHARGE_COLUMNS = (
    "uncached, read, written_5m, written_1h, output_tokens, picodollars, is_inherited, is_subscription, "
    + SAVINGS_COLUMNS
)
_SELECTED_COLUMNS = ", ".join(
    [f"traces_v1.{column}" for column in TRACE_COLUMNS.split(", ")]
    + [f"ledger_v1.{column}" for column in _CHARGE_COLUMNS.split(", ")]
)
_FIND_TRACES = (
    f"SELECT {_SELECTED_COLUMNS} FROM traces_v1 LEFT JOIN ledger_v1 ON ledger_v1.call_id = traces_v1.id"
)
# Not LIKE, in which some characters are wildcards.
_FIND_IDS = """
SELECT id, 1 FROM traces_v1 WHERE substr(id, 1, ?) = ?
UNION SELECT DISTINCT session_id, 0 FROM traces_v1 WHERE substr(session_id, 1, ?) = ?
ORDER BY 1 LIMIT ?
"""
# The inner query reads only an index, a tenth of the table; agents are looked up for the sessions found.
_FIND_SESSIONS = """
SELECT session_id, (
  SELECT agent FROM traces_v1 AS own WHERE own.session_id = found.session_id ORDER BY own.at DESC LIMIT 1
), requests, first_at, last_at FROM (
  SELECT session_id, count(*) AS requests, min(at) AS first_at, max(at) AS last_at FROM traces_v1 {}
  GROUP BY session_id ORDER BY max(at) DESC, session_id LIMIT ?
) AS found ORDER BY last_at DESC, session_id
"""
_MAX_TEXT_CHARS = 400
_MIN_ERROR_STATUS = 400
"""Status 0 means that the client disconnected before the response."""


class _TraceDetails(msgspec.Struct, array_like=True, frozen=True):
    """The part of a trace that is never searched, stored as JSON."""

    exact: bool
    reserved_tokens: int
    added_seconds: float
    sections: tuple[tuple[str, int], ...]
    edits: tuple[tuple[str, str, str, str, int], ...]
    edits_left_out: int
    problems: tuple[tuple[str, str], ...]


class _CacheMissDetails(msgspec.Struct, array_like=True, frozen=True):
    cause: str
    where: str
    lost_tokens: int
    lost_dollars: str | None
    is_planned: bool = False


class SqlTraceStore:
    """`foveate.session.traces.TraceStore` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, traces: Sequence[Trace], cache_misses: Sequence[tuple[str, CacheMiss]] = ()) -> None:
        new, misses = await asyncio.to_thread(_prepare_rows, traces, cache_misses)
        await self._database.write(lambda transaction: _save_rows(transaction, new, misses), is_idempotent=True)

    async def get(self, request_id: str) -> ChargedTrace | None:
        rows = await self._read(f"{_FIND_TRACES} WHERE traces_v1.id = ?", (to_storable_name(request_id),))
        return _to_traced(*rows[0]) if rows else None

    async def list_traces(
        self,
        *,
        limit: int,
        before: tuple[float, str] | None = None,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[ChargedTrace]:
        condition, values = build_where_clause(
            {
                "traces_v1.at >= ?": None if since is None else (since,),
                "traces_v1.at < ?": None if until is None else (until,),
                "traces_v1.agent = ?": None if agent is None else (to_storable_name(agent),),
                "traces_v1.session_id = ?": None if session_id is None else (to_storable_name(session_id),),
                "(traces_v1.at, traces_v1.id) < (?, ?)": before,
            }
        )
        order = "ORDER BY traces_v1.at DESC, traces_v1.id DESC LIMIT ?"
        return [
            _to_traced(*row)
            for row in await self._read(f"{_FIND_TRACES} {condition} {order}", (*values, limit))
        ]

    async def list_sessions(
        self, *, limit: int, since: float | None = None, agent: str | None = None
    ) -> Sequence[TracedSession]:
        condition, values = build_where_clause(
            {
                "at >= ?": None if since is None else (since,),
                "agent = ?": None if agent is None else (to_storable_name(agent),),
            }
        )
        return [
            TracedSession(
                session_id=id_, agent=session_agent, requests=int(requests), first_at=first, last_at=last
            )
            for id_, session_agent, requests, first, last in await self._read(
                _FIND_SESSIONS.format(condition), (*values, limit)
            )
        ]

    async def find_ids(self, prefix: str, *, limit: int) -> tuple[list[str], list[str]]:
        check_storable_names(id=prefix)
        rows = await self._read(_FIND_IDS, (len(prefix), prefix, len(prefix), prefix, limit))
        sessions, requests = ([id_ for id_, kind in rows if kind == code] for code in (0, 1))
        return sessions, requests

    async def _read(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._database.read(lambda transaction: transaction.fetch_all(statement, values))


class _NewTrace(NamedTuple):
    row: tuple[Any, ...]
    delta: TotalsDelta


def _prepare_rows(
    traces: Sequence[Trace], cache_misses: Sequence[tuple[str, CacheMiss]]
) -> tuple[dict[str, _NewTrace], list[tuple[str, CacheMiss]]]:
    new: dict[str, _NewTrace] = {}
    for trace in traces:
        row = to_trace_row(trace)
        new.setdefault(row[0], _NewTrace(row, to_totals_delta(trace, row)))
    return new, sorted(
        ((to_storable_name(id_), cache_miss) for id_, cache_miss in cache_misses), key=lambda miss: miss[0]
    )


def _save_rows(
    transaction: Transaction, new: Mapping[str, _NewTrace], cache_misses: Sequence[tuple[str, CacheMiss]]
) -> None:
    groups = batch_inserts(_ADD_TRACES, [new[id_].row for id_ in sorted(new)])
    deltas = [
        new[id_].delta for statement, batch in groups for (id_,) in transaction.fetch_all(statement, batch)
    ]
    for id_, cache_miss in cache_misses:
        rows = transaction.fetch_all(_SET_CACHE_MISS, (_encode_cache_miss(cache_miss), id_))
        deltas += [
            cache_miss_delta(at, agent, session_id, model, cache_miss) for at, agent, session_id, model in rows
        ]
    add_requests(transaction, deltas)


def to_totals_delta(trace: Trace, row: tuple[Any, ...]) -> TotalsDelta:
    _, agent, session_id, _, model, *_ = row
    return request_delta(
        trace.at,
        agent,
        session_id,
        model,
        is_failed=trace.status >= _MIN_ERROR_STATUS,
        added_seconds=trace.added_seconds,
        window=WindowFill(trace.at, trace.tokens, trace.window_tokens),
        cache_miss=trace.cache_miss,
    )


def to_trace_row(trace: Trace) -> tuple[Any, ...]:
    details = _TraceDetails(
        trace.exact,
        trace.reserved_tokens,
        trace.added_seconds,
        tuple((_shorten_text(section.name), section.tokens) for section in trace.sections),
        tuple(
            (edit.step, edit.does, _shorten_text(edit.place), _shorten_text(edit.reason), edit.saved_tokens)
            for edit in trace.edits
        ),
        trace.edits_left_out,
        tuple((step, _shorten_text(reason)) for step, reason in trace.problems),
    )
    return (
        to_storable_name(trace.id),
        to_storable_name(trace.agent),
        to_storable_name(trace.session_id),
        to_storable_name(trace.provider),
        to_storable_name(trace.model),
        trace.at,
        trace.status,
        trace.tokens,
        trace.window_tokens,
        trace.compaction_id,
        msgspec.json.encode(details),
        None if trace.cache_miss is None else _encode_cache_miss(trace.cache_miss),
    )


def _encode_cache_miss(cache_miss: CacheMiss) -> bytes:
    lost = None if cache_miss.lost_dollars is None else str(cache_miss.lost_dollars)
    details = _CacheMissDetails(
        _shorten_text(cache_miss.cause),
        _shorten_text(cache_miss.where),
        cache_miss.lost_tokens,
        lost,
        cache_miss.is_planned,
    )
    return msgspec.json.encode(details)


def _shorten_text(text: str) -> str:
    short = text if len(text) <= _MAX_TEXT_CHARS else f"{text[:_MAX_TEXT_CHARS]}…"
    return short if short.isprintable() else short.encode("utf-8", "replace").decode()


def _to_traced(
    id_: str,
    agent: str,
    session_id: str,
    provider: str,
    model: str,
    at: float,
    status: int,
    tokens: int | None,
    window_tokens: int | None,
    compaction_id: str | None,
    encoded_details: bytes,
    encoded_miss: bytes | None,
    *charge: int | None,
) -> ChargedTrace:
    details = msgspec.json.decode(encoded_details, type=_TraceDetails)
    trace = Trace(
        id=id_,
        agent=agent,
        session_id=session_id,
        provider=provider,
        model=model,
        at=at,
        status=status,
        tokens=tokens,
        exact=details.exact,
        window_tokens=window_tokens,
        reserved_tokens=details.reserved_tokens,
        added_seconds=details.added_seconds,
        sections=tuple(WindowSection(name, size) for name, size in details.sections),
        edits=tuple(
            TracedEdit(step=step, does=does, place=place, reason=reason, saved_tokens=saved_tokens)
            for step, does, place, reason, saved_tokens in details.edits
        ),
        edits_left_out=details.edits_left_out,
        problems=details.problems,
        compaction_id=compaction_id,
        cache_miss=None if encoded_miss is None else decode_cache_miss(encoded_miss),
    )
    return ChargedTrace(trace=trace, charge=_to_charge(*charge))


def decode_cache_miss(encoded_miss: bytes) -> CacheMiss:
    details = msgspec.json.decode(encoded_miss, type=_CacheMissDetails)
    return CacheMiss(
        cause=details.cause,
        where=details.where,
        lost_tokens=details.lost_tokens,
        lost_dollars=None if details.lost_dollars is None else Decimal(details.lost_dollars),
        is_planned=details.is_planned,
    )


def _to_charge(
    uncached: int | None = None,
    read: int | None = None,
    written_5m: int | None = None,
    written_1h: int | None = None,
    output_tokens: int | None = None,
    spent: int | None = None,
    is_inherited: int | None = None,
    is_subscription: int | None = None,
    comparison: Any = None,
    *saved: int | None,
) -> TracedCharge | None:
    if uncached is None:  # not in the ledger
        return None
    return TracedCharge(
        cache=CacheUsage(
            uncached=uncached, read=read or 0, written_5m=written_5m or 0, written_1h=written_1h or 0
        ),
        output_tokens=output_tokens or 0,
        dollars=None if spent is None else to_dollars(spent),
        savings=Savings() if comparison is None else to_savings(comparison, *saved),
        is_inherited=bool(is_inherited),
        is_subscription=bool(is_subscription),
    )
