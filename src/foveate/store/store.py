"""The store: opened by URL, with one attribute for each repository.

`read_sessions` reads a store without changing it: nothing is created, migrated or locked.
"""

import asyncio
import hashlib
import os
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from foveate.cost.ledger import Charge
from foveate.errors import BadOption, NothingKept, StoreUnavailable
from foveate.paths import SQLITE_PREFIX, data_folder, sqlite_path
from foveate.session.store import ArchivedRequest
from foveate.store.dashboard import CacheMissRecord, DashboardQueries
from foveate.store.database import Database, LowPriorityReader, Transaction
from foveate.store.postgres import PostgresDatabase, PostgresTransaction, parse_server_url, redact_server_url
from foveate.store.repositories.compactions import SqlCompactionStore
from foveate.store.repositories.learning import SqlActivityStore, SqlCalibrationStore, SqlReuseStore
from foveate.store.repositories.ledger import SqlCorrections, SqlLedger
from foveate.store.repositories.ledger_rows import LEDGER_COLUMNS, from_ledger_row
from foveate.store.repositories.rate_limits import SqlRateLimitStore
from foveate.store.repositories.request_archive import REQUEST_COLUMNS, SqlRequestArchive, from_request_row
from foveate.store.repositories.rollups import SqlRollupStore
from foveate.store.repositories.sessions import SessionTree, SqlSessionStore
from foveate.store.repositories.traces import SqlTraceStore
from foveate.store.retention import PrunePreview, PruneResult, StoreSizes, measure_sizes, preview_prune, prune
from foveate.store.sqlite import SQLiteDatabase, SQLiteTransaction

URL_VARIABLE = "FOVEATE_STORE"
WAIT_SECONDS = 5.0
"""Timeout for locks of other processes, for statements, and for an unreachable server."""

_POSTGRES_PREFIXES = ("postgresql://", "postgres://")
_NAME_CHARS = 16
_FIND_ARCHIVED_SESSIONS = "SELECT session_id, min(at) FROM requests_v1 GROUP BY session_id"
_FIND_CHARGED_SESSIONS = "SELECT session_id, min(at) FROM ledger_v1 WHERE category = 'main' GROUP BY session_id"
_FIND_TABLE = "SELECT 1 FROM sqlite_schema WHERE name = 'ledger_v1'"
_FIND_REQUESTS = f"SELECT {REQUEST_COLUMNS} FROM requests_v1 WHERE session_id = ? ORDER BY at, id"
_FIND_CHARGES = f"""
SELECT {LEDGER_COLUMNS} FROM ledger_v1 WHERE session_id = ? AND category = 'main' ORDER BY at, call_id
"""


class Store:
    """All repositories on one database.

    `calibrations` store how far token counts were off from reported usage, `prefix_reuse` which prefixes agents
    request again, and `activity` derives how they work. `dashboard` and `session_tree` have cheap read-only
    queries.

    Close it with `close` or `async with`. A store belongs to one process, which may use it from any thread and
    event loop; a child process opens its own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.sessions = SqlSessionStore(database)
        self.compactions = SqlCompactionStore(database)
        self.ledger = SqlLedger(database)
        self.corrections = SqlCorrections(database)
        self.request_archive = SqlRequestArchive(database)
        self.traces = SqlTraceStore(database)
        self.calibrations = SqlCalibrationStore(database)
        self.prefix_reuse = SqlReuseStore(database)
        self.rate_limits = SqlRateLimitStore(database)
        self._low_priority_reader = LowPriorityReader(database)
        self.dashboard = DashboardQueries(self._low_priority_reader)
        self.session_tree = SessionTree(self._low_priority_reader)
        self.totals = SqlRollupStore(self._low_priority_reader)
        self.activity = SqlActivityStore(self._low_priority_reader)

    @property
    def location(self) -> str:
        """The file, or the server and the database's name, without a password."""
        return self._database.location

    async def sizes(self) -> StoreSizes:
        return await measure_sizes(self._database)

    async def find_compaction_ids(self, prefix: str, *, limit: int) -> list[str]:
        return await self.compactions.find_ids(prefix, limit=limit)

    async def find_compacted_session_ids(self, prefix: str, *, limit: int) -> list[str]:
        return await self.compactions.find_session_ids(prefix, limit=limit)

    async def find_archived_ids(self, prefix: str, *, limit: int) -> tuple[list[str], list[str]]:
        return await self.request_archive.find_ids(prefix, limit=limit)

    async def find_latest_cache_misses(
        self, *, limit: int, since: float | None = None, agent: str | None = None
    ) -> list[CacheMissRecord]:
        return await self.dashboard.find_latest_cache_misses(limit=limit, since=since, agent=agent)

    async def preview_prune(self, *, keep_days: float, now: float) -> PrunePreview:
        return await preview_prune(self._database, keep_days=keep_days, now=now)

    async def prune(self, *, keep_days: float, now: float) -> PruneResult:
        """Delete sessions that were not seen for `keep_days`, and everything stored only for them."""
        return await prune(self._database, keep_days=keep_days, now=now)

    async def has_other_gateways(self) -> bool:
        return await self._database.has_other_gateways()

    async def vacuum(self) -> None:
        await self._database.vacuum()

    async def close(self) -> None:
        """Wait for running transactions, then close the database."""
        await self.compactions.wait_for_releases()
        await self._database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def open_store(
    url: str | None = None, *, wait_seconds: float = WAIT_SECONDS, create: bool = True, gateway_id: str = ""
) -> Store:
    """Open the store at `url` and migrate its tables; create it if it does not exist and `create` is true.

    Args:
        url: `sqlite:///relative/path`, `sqlite:////absolute/path` or `postgresql://user@host/name`. Default:
            the value of `FOVEATE_STORE`, or a file in Foveate's data folder.
        wait_seconds: how long to wait for locks of other processes, for a statement, and for an unreachable
            server.
        create: whether to create a store that does not exist.
        gateway_id: of the gateway that opens the store; its workers have the same. Others see it at the server.

    Raises:
        BadOption: `url` is not a valid URL.
        StoreUnavailable: the database cannot be opened, or its tables cannot be created.
        StoreTooNew: a newer version of Foveate has migrated the tables.
        NothingKept: the store does not exist, and `create` is false.
    """
    return Store(
        await asyncio.to_thread(_open_database, url or default_url(), wait_seconds, create, gateway_id)
    )


def default_url() -> str:
    """Return the value of `FOVEATE_STORE`, or the URL of the file in Foveate's data folder (`FOVEATE_HOME`)."""
    if configured := os.environ.get(URL_VARIABLE):
        return configured
    return f"{SQLITE_PREFIX}{data_folder(os.environ, sys.platform).absolute() / 'foveate.sqlite'}"


def is_server(url: str | None) -> bool:
    return url is not None and url.startswith(_POSTGRES_PREFIXES)


def is_same_store(where: str, url: str) -> bool:
    """Compare the store that a gateway reports with a URL. A relative path is not: its folder is unknown."""
    if is_server(url):
        return where == redact_server_url(url)
    return Path(where).is_absolute() and Path(where) == sqlite_path(url, os.environ).absolute()


def store_name(url: str | None = None) -> str:
    """Return a name that is unique to the store at `url`, for files stored next to it.

    The password is not part of it, so it may change.

    Raises:
        BadOption: `url` is not a valid PostgreSQL URL.
    """
    url = url or default_url()
    if url.startswith(_POSTGRES_PREFIXES):
        parts = parse_server_url(url)
        identity = "".join(f"{name}={parts[name]}\n" for name in sorted(parts) if "password" not in name)
    else:
        identity = str(sqlite_path(url, os.environ).resolve())
    return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:_NAME_CHARS]


def _open_database(url: str, wait_seconds: float, create: bool, gateway_id: str) -> Database:
    if url.startswith(_POSTGRES_PREFIXES):
        return PostgresDatabase.open(url, wait_seconds=wait_seconds, create=create, gateway_id=gateway_id)
    path = url.removeprefix(SQLITE_PREFIX)
    if not url.startswith(SQLITE_PREFIX) or path in ("", ":memory:"):
        scheme = url.partition(":")[0]  # no more of the URL: it may contain a password
        raise BadOption(
            f"store: {scheme}: is not a database URL; use sqlite:///path or postgresql://user@host/name"
        )
    return SQLiteDatabase.open(sqlite_path(url, os.environ), wait_seconds=wait_seconds, create=create)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    id: str
    requests: Sequence[ArchivedRequest]
    charges: Sequence[Charge]


def read_sessions(url: str) -> Iterator[StoredSession]:
    """Yield every session with archived requests or charges, oldest first; `url` is a store URL or a file.

    Raises:
        NothingKept: there is no store.
        StoreUnavailable: the store cannot be read.
    """
    with _open_transaction(url) as rows:
        for session_id in _find_session_ids(rows):
            yield StoredSession(
                id=session_id,
                requests=[from_request_row(*row) for row in rows.fetch_all(_FIND_REQUESTS, (session_id,))],
                charges=[from_ledger_row(*row) for row in rows.fetch_all(_FIND_CHARGES, (session_id,))],
            )


def is_store_file(path: Path) -> bool:
    try:
        with closing(_connect_read_only(path)) as connection:
            return connection.execute(_FIND_TABLE).fetchone() is not None
    except sqlite3.DatabaseError:
        return False


def _find_session_ids(transaction: Transaction) -> list[str]:
    first_seen: dict[str, float] = {}
    for statement in (_FIND_CHARGED_SESSIONS, _FIND_ARCHIVED_SESSIONS):
        for session_id, at in transaction.fetch_all(statement):
            first_seen[session_id] = min(at, first_seen.get(session_id, at))
    return sorted(first_seen, key=lambda session_id: (first_seen[session_id], session_id))


@contextmanager
def _open_transaction(url: str) -> Iterator[Transaction]:
    if url.startswith(_POSTGRES_PREFIXES):
        yield from _open_server(url)
    else:
        yield from _open_file(sqlite_path(url, os.environ))


def _open_file(path: Path) -> Iterator[Transaction]:
    if not path.is_file():
        raise NothingKept(str(path))
    try:
        with closing(_connect_read_only(path)) as connection:
            yield SQLiteTransaction(connection)
    except sqlite3.DatabaseError as error:
        raise StoreUnavailable(str(path), _describe_error(str(error))) from error


def _connect_read_only(path: Path) -> sqlite3.Connection:
    # If nobody has it open, there is no WAL file, and SQLite would create one by looking for it.
    is_unused = not path.with_name(f"{path.name}-wal").exists()
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' * is_unused}"
    return sqlite3.connect(uri, uri=True, timeout=WAIT_SECONDS)


def _open_server(url: str) -> Iterator[Transaction]:
    import psycopg

    parts = parse_server_url(url)
    location = f"postgresql://{parts.get('host', '')}/{parts.get('dbname', '')}"
    try:
        with psycopg.connect(url, connect_timeout=round(WAIT_SECONDS)) as connection:
            connection.read_only = True
            yield PostgresTransaction(connection)
    except psycopg.Error as error:
        raise StoreUnavailable(location, _describe_error(" ".join(str(error).split()))) from error


def _describe_error(message: str) -> str:
    if "no such table" in message or "no such column" in message or "does not exist" in message:
        return f"is not a store, or one of an older Foveate (`foveate store info` migrates it): {message}"
    return f"cannot be read: {message}"
