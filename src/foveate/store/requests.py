"""Whole requests, as `foveate.session` asks to have them kept: compressed, and the oldest dropped in time."""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from foveate.session.requests import KeptRequest
from foveate.store.database import Database, Rows
from foveate.store.ledger_rows import name_of
from foveate.values import CacheUsage, Format, Usage

COLUMNS = "id, agent, session_id, format, provider, model, at, status, usage, sent, came"
_ADD = f"""
INSERT INTO requests_v1 ({COLUMNS}, size_bytes) VALUES ({", ".join("?" * 12)}) ON CONFLICT (id) DO NOTHING
"""
_FIND = f"SELECT {COLUMNS} FROM requests_v1 WHERE id = ?"
_FIND_OF_SESSION = f"""
SELECT {COLUMNS} FROM requests_v1 WHERE session_id = ? AND at < ? ORDER BY at DESC, id DESC LIMIT ?
"""
_DROP_BEFORE = "DELETE FROM requests_v1 WHERE at < ?"
# The newest that there is no room for; all that are older go with it.
_FIND_BEYOND = """
SELECT at, id FROM (
    SELECT at, id, sum(size_bytes) OVER (ORDER BY at DESC, id DESC) AS total FROM requests_v1
) AS added WHERE total > ? ORDER BY at DESC, id DESC LIMIT 1
"""
_DROP_UP_TO = "DELETE FROM requests_v1 WHERE (at, id) <= (?, ?)"
# Fast rather than small: it is done for every request, and what is kept goes after some days.
_LEVEL = 1
_LATEST = 1e308


class _Bill(msgspec.Struct, array_like=True):
    """What is kept of a bill."""

    uncached: int
    read: int
    written_5m: int
    written_1h: int
    output_tokens: int
    reasoning_tokens: int
    tier: str


class KeptRequests:
    """Implements `foveate.session.requests.Requests` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, request: KeptRequest) -> int:
        """Keep a request; how many bytes that takes. One that is kept already stays as it is."""
        row = await asyncio.to_thread(_row, request)
        size_bytes: int = row[-1]
        added = await self._database.write(lambda rows: rows.change(_ADD, row), again=True)
        return size_bytes if added else 0

    async def trim(self, *, before: float, most_bytes: int) -> int:
        """Drop those from before that time, and the oldest of more than `most_bytes`; how many were dropped."""

        def drop(rows: Rows) -> int:
            dropped = rows.change(_DROP_BEFORE, (before,))
            beyond = rows.all(_FIND_BEYOND, (most_bytes,))
            return dropped + (rows.change(_DROP_UP_TO, beyond[0]) if beyond else 0)

        return await self._database.write(drop, again=True)

    async def request(self, request_id: str) -> KeptRequest | None:
        """One by its id; None where it is not kept, or no longer."""
        values = (name_of(request_id),)
        found = await self._database.read(lambda rows: rows.all(_FIND, values))
        return request_of(*found[0]) if found else None

    async def of_session(
        self, session_id: str, *, limit: int = 2, before: float | None = None
    ) -> Sequence[KeptRequest]:
        """The last ones of a session, the newest first; with `before`, the last ones before that time."""
        values = (name_of(session_id), _LATEST if before is None else before, limit)
        found = await self._database.read(lambda rows: rows.all(_FIND_OF_SESSION, values))
        return [request_of(*row) for row in found]


def _row(request: KeptRequest) -> tuple[Any, ...]:
    """A request as a row of the columns above, and how large it is."""
    sent = zlib.compress(request.sent, _LEVEL)
    came = None if request.came is None else zlib.compress(request.came, _LEVEL)
    return (
        name_of(request.id),
        name_of(request.agent),
        name_of(request.session_id),
        request.format.value,
        name_of(request.provider),
        name_of(request.model),
        request.at,
        request.status,
        None if request.usage is None else msgspec.json.encode(_bill(request.usage)),
        sent,
        came,
        len(sent) + len(came or b""),
    )


def _bill(usage: Usage) -> _Bill:
    cache = usage.cache
    return _Bill(
        cache.uncached,
        cache.read,
        cache.written_5m,
        cache.written_1h,
        usage.output_tokens,
        usage.reasoning_tokens,
        usage.tier,
    )


def request_of(
    id_: str,
    agent: str,
    session_id: str,
    spoken: str,
    provider: str,
    model: str,
    at: float,
    status: int,
    usage: bytes | None,
    sent: bytes,
    came: bytes | None,
) -> KeptRequest:
    """A request, by its row."""
    return KeptRequest(
        id=id_,
        agent=agent,
        session_id=session_id,
        format=Format(spoken),
        provider=provider,
        model=model,
        at=at,
        status=status,
        usage=None if usage is None else _usage(msgspec.json.decode(usage, type=_Bill)),
        sent=zlib.decompress(sent),
        came=None if came is None else zlib.decompress(came),
    )


def _usage(bill: _Bill) -> Usage:
    return Usage(
        cache=CacheUsage(
            uncached=bill.uncached, read=bill.read, written_5m=bill.written_5m, written_1h=bill.written_1h
        ),
        output_tokens=bill.output_tokens,
        reasoning_tokens=bill.reasoning_tokens,
        tier=bill.tier,
    )
