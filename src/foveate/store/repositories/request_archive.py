"""Stores whole requests, compressed, and drops the oldest."""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec

from foveate.model import CacheUsage, Format, Usage
from foveate.session.store import ArchivedRequest
from foveate.store.database import Database, Transaction, check_storable_names
from foveate.store.repositories.ledger_rows import to_storable_name

REQUEST_COLUMNS = "id, agent, session_id, format, provider, model, at, status, usage, sent, came"
_ADD_REQUEST = f"""
INSERT INTO requests_v1 ({REQUEST_COLUMNS}, size_bytes) VALUES ({", ".join("?" * 12)})
ON CONFLICT (id) DO NOTHING
"""
_FIND_REQUEST = f"SELECT {REQUEST_COLUMNS} FROM requests_v1 WHERE id = ?"
_FIND_OF_SESSION = f"""
SELECT {REQUEST_COLUMNS} FROM requests_v1 WHERE session_id = ? AND at < ? ORDER BY at DESC, id DESC LIMIT ?
"""
_DROP_BEFORE = "DELETE FROM requests_v1 WHERE at < ?"
# The newest request beyond the size limit; it is deleted with all older ones.
_FIND_BEYOND = """
SELECT at, id FROM (
    SELECT at, id, sum(size_bytes) OVER (ORDER BY at DESC, id DESC) AS total FROM requests_v1
) AS added WHERE total > ? ORDER BY at DESC, id DESC LIMIT 1
"""
_DROP_UP_TO = "DELETE FROM requests_v1 WHERE (at, id) <= (?, ?)"
# Not LIKE, in which some characters are wildcards.
_FIND_IDS = """
SELECT id, 1 FROM requests_v1 WHERE substr(id, 1, ?) = ?
UNION SELECT DISTINCT session_id, 0 FROM requests_v1 WHERE substr(session_id, 1, ?) = ?
ORDER BY 1 LIMIT ?
"""
# Fast rather than small: every request is compressed, and deleted after some days.
_COMPRESSION_LEVEL = 1
_END_OF_TIME = 1e308


class _StoredUsage(msgspec.Struct, array_like=True):
    uncached: int
    read: int
    written_5m: int
    written_1h: int
    output_tokens: int
    reasoning_tokens: int
    tier: str


class SqlRequestArchive:
    """`foveate.session.store.RequestArchive` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, request: ArchivedRequest) -> int:
        row = await asyncio.to_thread(_to_row, request)
        size_bytes: int = row[-1]
        added = await self._database.write(
            lambda transaction: transaction.execute(_ADD_REQUEST, row), is_idempotent=True
        )
        return size_bytes if added else 0

    async def trim(self, *, before: float, max_bytes: int) -> int:
        def drop(transaction: Transaction) -> int:
            dropped = transaction.execute(_DROP_BEFORE, (before,))
            beyond = transaction.fetch_all(_FIND_BEYOND, (max_bytes,))
            return dropped + (transaction.execute(_DROP_UP_TO, beyond[0]) if beyond else 0)

        return await self._database.write(drop, is_idempotent=True)

    async def get(self, request_id: str) -> ArchivedRequest | None:
        values = (to_storable_name(request_id),)
        rows = await self._database.read(lambda transaction: transaction.fetch_all(_FIND_REQUEST, values))
        return from_request_row(*rows[0]) if rows else None

    async def find_by_session(
        self, session_id: str, *, limit: int = 2, before: float | None = None
    ) -> Sequence[ArchivedRequest]:
        values = (to_storable_name(session_id), _END_OF_TIME if before is None else before, limit)
        rows = await self._database.read(lambda transaction: transaction.fetch_all(_FIND_OF_SESSION, values))
        return [from_request_row(*row) for row in rows]

    async def find_ids(self, prefix: str, *, limit: int) -> tuple[list[str], list[str]]:
        """Return ids with a prefix: those of sessions with archived requests, and those of the requests."""
        check_storable_names(id=prefix)
        values = (len(prefix), prefix, len(prefix), prefix, limit)
        rows = await self._database.read(lambda transaction: transaction.fetch_all(_FIND_IDS, values))
        sessions, requests = ([id_ for id_, kind in rows if kind == code] for code in (0, 1))
        return sessions, requests


def _to_row(request: ArchivedRequest) -> tuple[Any, ...]:
    compressed_body = zlib.compress(request.request_body, _COMPRESSION_LEVEL)
    compressed_original = (
        None if request.original_body is None else zlib.compress(request.original_body, _COMPRESSION_LEVEL)
    )
    return (
        to_storable_name(request.id),
        to_storable_name(request.agent),
        to_storable_name(request.session_id),
        request.format.value,
        to_storable_name(request.provider),
        to_storable_name(request.model),
        request.at,
        request.status,
        None if request.usage is None else msgspec.json.encode(_to_stored_usage(request.usage)),
        compressed_body,
        compressed_original,
        len(compressed_body) + len(compressed_original or b""),
    )


def _to_stored_usage(usage: Usage) -> _StoredUsage:
    cache = usage.cache
    return _StoredUsage(
        cache.uncached,
        cache.read,
        cache.written_5m,
        cache.written_1h,
        usage.output_tokens,
        usage.reasoning_tokens,
        usage.tier,
    )


def from_request_row(
    id_: str,
    agent: str,
    session_id: str,
    api_format: str,
    provider: str,
    model: str,
    at: float,
    status: int,
    usage: bytes | None,
    sent: bytes,
    compressed_original: bytes | None,
) -> ArchivedRequest:
    return ArchivedRequest(
        id=id_,
        agent=agent,
        session_id=session_id,
        format=Format(api_format),
        provider=provider,
        model=model,
        at=at,
        status=status,
        usage=None if usage is None else _to_usage(msgspec.json.decode(usage, type=_StoredUsage)),
        request_body=zlib.decompress(sent),
        original_body=None if compressed_original is None else zlib.decompress(compressed_original),
    )


def _to_usage(stored: _StoredUsage) -> Usage:
    return Usage(
        cache=CacheUsage(
            uncached=stored.uncached,
            read=stored.read,
            written_5m=stored.written_5m,
            written_1h=stored.written_1h,
        ),
        output_tokens=stored.output_tokens,
        reasoning_tokens=stored.reasoning_tokens,
        tier=stored.tier,
    )
