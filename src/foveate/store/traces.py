"""What was done to requests, as `foveate.session` asks to have it kept; their bills are those of the ledger."""

import asyncio
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from foveate.cost.money import dollars
from foveate.session.traces import (
    Bill,
    CacheBreak,
    Trace,
    Traced,
    TracedEdit,
    TracedSession,
    WindowSection,
)
from foveate.store.adding import Addition, Window, add_asked, asked, broken
from foveate.store.database import Database, Rows, check_names, in_rows, where_of
from foveate.store.ledger_rows import SAVINGS_COLUMNS, name_of, savings_of
from foveate.values import CacheUsage, Savings

COLUMNS = "id, agent, session_id, provider, model, at, status, tokens, window_tokens, fold_id, told, broke"
_ADD = f"INSERT INTO traces_v1 ({COLUMNS}) VALUES {{}} ON CONFLICT (id) DO NOTHING RETURNING id"
# The first one stays, and is added up once, however often it is told.
_BREAK = """
UPDATE traces_v1 SET broke = ? WHERE id = ? AND broke IS NULL RETURNING at, agent, session_id, model
"""
_BILLED = (
    "uncached, read, written_5m, written_1h, output_tokens, picodollars, is_inherited, is_subscription, "
    + SAVINGS_COLUMNS
)
_COLUMNS = ", ".join(
    [f"traces_v1.{column}" for column in COLUMNS.split(", ")]
    + [f"ledger_v1.{column}" for column in _BILLED.split(", ")]
)
_FIND = f"SELECT {_COLUMNS} FROM traces_v1 LEFT JOIN ledger_v1 ON ledger_v1.call_id = traces_v1.id"
# Not LIKE, to which some letters mean something else; the same as in `finding`.
_FIND_IDS = """
SELECT id, 1 FROM traces_v1 WHERE substr(id, 1, ?) = ?
UNION SELECT DISTINCT session_id, 0 FROM traces_v1 WHERE substr(session_id, 1, ?) = ?
ORDER BY 1 LIMIT ?
"""
# All are looked through in an index, a tenth of the table; whose they are is read only of those that are found.
_FIND_SESSIONS = """
SELECT session_id, (
  SELECT agent FROM traces_v1 AS own WHERE own.session_id = found.session_id ORDER BY own.at DESC LIMIT 1
), requests, first_at, last_at FROM (
  SELECT session_id, count(*) AS requests, min(at) AS first_at, max(at) AS last_at FROM traces_v1 {}
  GROUP BY session_id ORDER BY max(at) DESC, session_id LIMIT ?
) AS found ORDER BY last_at DESC, session_id
"""
_LONGEST_REASON = 400
_FIRST_ERROR = 400
"""Of the statuses with which a provider answers; 0 is of a client who went away before."""


class _Told(msgspec.Struct, array_like=True, frozen=True):
    """What a trace says beside what is looked for."""

    exact: bool
    reserved_tokens: int
    added_seconds: float
    sections: tuple[tuple[str, int], ...]
    edits: tuple[tuple[str, str, str, str, int], ...]
    edits_left_out: int
    problems: tuple[tuple[str, str], ...]


class _Broke(msgspec.Struct, array_like=True, frozen=True):
    cause: str
    where: str
    lost_tokens: int
    lost_dollars: str | None
    is_planned: bool = False


class KeptTraces:
    """Implements `foveate.session.traces.Traces` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, traces: Sequence[Trace], breaks: Sequence[tuple[str, CacheBreak]] = ()) -> None:
        """Keep these; and to requests that are kept, by their ids, that their cache broke."""
        new, broke = await asyncio.to_thread(_prepared, traces, breaks)
        await self._database.write(lambda rows: _keep(rows, new, broke), again=True)

    async def trace(self, request_id: str) -> Traced | None:
        """That of one request."""
        found = await self._read(f"{_FIND} WHERE traces_v1.id = ?", (name_of(request_id),))
        return _traced(*found[0]) if found else None

    async def listed(
        self,
        *,
        limit: int,
        before: tuple[float, str] | None = None,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[Traced]:
        """Those of a time (`since` up to, not with, `until`), of an agent, of a session; `before`: (at, id)."""
        condition, values = where_of(
            {
                "traces_v1.at >= ?": None if since is None else (since,),
                "traces_v1.at < ?": None if until is None else (until,),
                "traces_v1.agent = ?": None if agent is None else (name_of(agent),),
                "traces_v1.session_id = ?": None if session_id is None else (name_of(session_id),),
                "(traces_v1.at, traces_v1.id) < (?, ?)": before,
            }
        )
        order = "ORDER BY traces_v1.at DESC, traces_v1.id DESC LIMIT ?"
        return [_traced(*row) for row in await self._read(f"{_FIND} {condition} {order}", (*values, limit))]

    async def sessions(
        self, *, limit: int, since: float | None = None, agent: str | None = None
    ) -> Sequence[TracedSession]:
        """The sessions with traces, those first that were asked last."""
        condition, values = where_of(
            {
                "at >= ?": None if since is None else (since,),
                "agent = ?": None if agent is None else (name_of(agent),),
            }
        )
        return [
            TracedSession(session_id=id_, agent=of_agent, requests=int(requests), first_at=first, last_at=last)
            for id_, of_agent, requests, first, last in await self._read(
                _FIND_SESSIONS.format(condition), (*values, limit)
            )
        ]

    async def ids(self, beginning: str, *, limit: int) -> tuple[list[str], list[str]]:
        """The ids, of those that begin so, of sessions and of requests with traces."""
        check_names(id=beginning)
        found = await self._read(_FIND_IDS, (len(beginning), beginning, len(beginning), beginning, limit))
        sessions, requests = ([id_ for id_, kind in found if kind == wanted] for wanted in (0, 1))
        return sessions, requests

    async def _read(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._database.read(lambda rows: rows.all(statement, values))


class _New(NamedTuple):
    """A trace as a row, and what it adds to the totals."""

    row: tuple[Any, ...]
    adds: Addition


def _prepared(
    traces: Sequence[Trace], breaks: Sequence[tuple[str, CacheBreak]]
) -> tuple[dict[str, _New], list[tuple[str, CacheBreak]]]:
    """Traces by their ids, of two with the same the first; and breaks in the order of theirs."""
    new: dict[str, _New] = {}
    for trace in traces:
        row = row_of(trace)
        new.setdefault(row[0], _New(row, addition_of(trace, row)))
    return new, sorted(((name_of(id_), broke) for id_, broke in breaks), key=lambda told: told[0])


def _keep(rows: Rows, new: Mapping[str, _New], breaks: Sequence[tuple[str, CacheBreak]]) -> None:
    """Keep traces and breaks, and add up those of them that were not kept before."""
    groups = in_rows(_ADD, [new[id_].row for id_ in sorted(new)])
    additions = [new[id_].adds for statement, some in groups for (id_,) in rows.all(statement, some)]
    for id_, broke in breaks:
        found = rows.all(_BREAK, (_broke(broke), id_))
        additions += [broken(at, agent, of, model, broke) for at, agent, of, model in found]
    add_asked(rows, additions)


def addition_of(trace: Trace, row: tuple[Any, ...]) -> Addition:
    """What a trace adds to the totals, with its row."""
    _, agent, session_id, _, model, *_ = row
    return asked(
        trace.at,
        agent,
        session_id,
        model,
        is_failed=trace.status >= _FIRST_ERROR,
        added_seconds=trace.added_seconds,
        window=Window(trace.at, trace.tokens, trace.window_tokens),
        broke=trace.broke,
    )


def row_of(trace: Trace) -> tuple[Any, ...]:
    """A trace as a row of the columns above."""
    told = _Told(
        trace.exact,
        trace.reserved_tokens,
        trace.added_seconds,
        tuple((_said(section.name), section.tokens) for section in trace.sections),
        tuple(
            (edit.step, edit.does, _said(edit.place), _said(edit.reason), edit.saved_tokens)
            for edit in trace.edits
        ),
        trace.edits_left_out,
        tuple((step, _said(reason)) for step, reason in trace.problems),
    )
    return (
        name_of(trace.id),
        name_of(trace.agent),
        name_of(trace.session_id),
        name_of(trace.provider),
        name_of(trace.model),
        trace.at,
        trace.status,
        trace.tokens,
        trace.window_tokens,
        trace.fold_id,
        msgspec.json.encode(told),
        None if trace.broke is None else _broke(trace.broke),
    )


def _broke(broke: CacheBreak) -> bytes:
    lost = None if broke.lost_dollars is None else str(broke.lost_dollars)
    told = _Broke(_said(broke.cause), _said(broke.where), broke.lost_tokens, lost, broke.is_planned)
    return msgspec.json.encode(told)


def _said(text: str) -> str:
    """A text in so many characters at most, each of them whole."""
    short = text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
    return short if short.isprintable() else short.encode("utf-8", "replace").decode()


def _traced(
    id_: str,
    agent: str,
    session_id: str,
    provider: str,
    model: str,
    at: float,
    status: int,
    tokens: int | None,
    window_tokens: int | None,
    fold_id: str | None,
    told: bytes,
    broke: bytes | None,
    *billed: int | None,
) -> Traced:
    said = msgspec.json.decode(told, type=_Told)
    trace = Trace(
        id=id_,
        agent=agent,
        session_id=session_id,
        provider=provider,
        model=model,
        at=at,
        status=status,
        tokens=tokens,
        exact=said.exact,
        window_tokens=window_tokens,
        reserved_tokens=said.reserved_tokens,
        added_seconds=said.added_seconds,
        sections=tuple(WindowSection(name, size) for name, size in said.sections),
        edits=tuple(
            TracedEdit(step=step, does=does, place=place, reason=reason, saved_tokens=saved)
            for step, does, place, reason, saved in said.edits
        ),
        edits_left_out=said.edits_left_out,
        problems=said.problems,
        fold_id=fold_id,
        broke=None if broke is None else break_in(broke),
    )
    return Traced(trace=trace, bill=_bill(*billed))


def break_in(broke: bytes) -> CacheBreak:
    """A cache break, as the column says it."""
    said = msgspec.json.decode(broke, type=_Broke)
    return CacheBreak(
        cause=said.cause,
        where=said.where,
        lost_tokens=said.lost_tokens,
        lost_dollars=None if said.lost_dollars is None else Decimal(said.lost_dollars),
        is_planned=said.is_planned,
    )


def _bill(
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
) -> Bill | None:
    if uncached is None:  # no row of the ledger
        return None
    return Bill(
        cache=CacheUsage(
            uncached=uncached, read=read or 0, written_5m=written_5m or 0, written_1h=written_1h or 0
        ),
        output_tokens=output_tokens or 0,
        dollars=None if spent is None else dollars(spent),
        savings=Savings() if comparison is None else savings_of(comparison, *saved),
        is_inherited=bool(is_inherited),
        is_subscription=bool(is_subscription),
    )
