"""The store: opened by a URL, with one name for what each room keeps in it.

What is kept, read session by session, and nothing is changed: no table is made, migrated or locked.

Folds and sessions found by the beginning of their ids, since nobody types all of one.
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
from foveate.session.request_archive import ArchivedRequest
from foveate.store.dashboard import CacheMissRecord, DashboardQueries, find_latest_cache_misses
from foveate.store.database import Database, LowPriorityReader, Transaction, check_storable_names
from foveate.store.postgres import PostgresDatabase, PostgresTransaction, parse_server_url
from foveate.store.repositories.calibration import SqlCalibrationStore
from foveate.store.repositories.compactions import SqlCompactionStore
from foveate.store.repositories.corrections import SqlCorrections
from foveate.store.repositories.ledger import SqlLedger
from foveate.store.repositories.ledger_rows import LEDGER_COLUMNS as ENTRY_COLUMNS
from foveate.store.repositories.ledger_rows import from_ledger_row
from foveate.store.repositories.prefix_reuse import SqlReuseStore
from foveate.store.repositories.rate_limits import SqlRateLimitStore
from foveate.store.repositories.request_archive import REQUEST_COLUMNS as REQUEST_COLUMNS
from foveate.store.repositories.request_archive import SqlRequestArchive, from_request_row
from foveate.store.repositories.rollups import SqlRollupStore
from foveate.store.repositories.sessions import SessionTree, SqlSessionStore
from foveate.store.repositories.traces import SqlTraceStore
from foveate.store.retention import PrunePreview, PruneResult, StoreSizes, measure_sizes, preview_prune, prune
from foveate.store.sqlite import SQLiteDatabase, SQLiteTransaction

# Not LIKE, to which some letters mean something else, nor a range, which PostgreSQL sorts by its language.
_FIND_COMPACTION_IDS = "SELECT id FROM compactions_v1 WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT ?"
_FIND_COMPACTED_SESSION_IDS = """
SELECT DISTINCT session_id FROM compactions_v1 WHERE substr(session_id, 1, ?) = ? ORDER BY session_id LIMIT ?
"""


_FIND_ARCHIVED_IDS = """
SELECT id, 1 FROM requests_v1 WHERE substr(id, 1, ?) = ?
UNION SELECT DISTINCT session_id, 0 FROM requests_v1 WHERE substr(session_id, 1, ?) = ?
ORDER BY 1 LIMIT ?
"""


async def find_archived_ids(database: Database, prefix: str, *, limit: int) -> tuple[list[str], list[str]]:
    """The ids, of those that begin so, of sessions with kept requests, and of such requests."""
    check_storable_names(id=prefix)
    values = (len(prefix), prefix, len(prefix), prefix, limit)
    found = await database.read(lambda transaction: transaction.fetch_all(_FIND_ARCHIVED_IDS, values))
    sessions, requests = ([id_ for id_, kind in found if kind == wanted] for wanted in (0, 1))
    return sessions, requests


async def find_compaction_ids(database: Database, prefix: str, *, limit: int) -> list[str]:
    """The ids of folds that begin so."""
    return await _find_ids(database, _FIND_COMPACTION_IDS, prefix, limit)


async def find_compacted_session_ids(database: Database, prefix: str, *, limit: int) -> list[str]:
    """The ids, of those that begin so, of sessions with a row on a fold, whatever became of it."""
    return await _find_ids(database, _FIND_COMPACTED_SESSION_IDS, prefix, limit)


async def _find_ids(database: Database, statement: str, prefix: str, limit: int) -> list[str]:
    check_storable_names(id=prefix)
    found = await database.read(
        lambda transaction: transaction.fetch_all(statement, (len(prefix), prefix, limit))
    )
    return [id_ for (id_,) in found]


URL_VARIABLE = "FOVEATE_STORE"
WAIT_SECONDS = 5.0
"""For a lock of somebody else, a statement, or a server that is gone for a moment."""

_SQLITE_PREFIX = "sqlite:///"
_POSTGRES_PREFIXES = ("postgresql://", "postgres://")
_NAME_CHARS = 16


class Store:
    """What is kept: `turns` of sessions, `journal` of folds, `ledger` of calls, whole `requests` if wanted.

    `traces` say what was done to each request, `totals` what all of it adds up to, and `lessons` how far counts
    were off from bills. `corrections` of the ledger are made by hand. `reuse` is which prefixes agents ask for
    again.

    `glances` are light looks at sessions, for pages; `families` has their titles and their children.

    Closed by `close`, or where its `async with` ends.

    It belongs to one process, which may use it from any thread and event loop; a child opens its own.
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

    @property
    def location(self) -> str:
        """The file, or the server and the database's name, without a password."""
        return self._database.location

    async def sizes(self) -> StoreSizes:
        """How much is kept."""
        return await measure_sizes(self._database)

    async def find_compaction_ids(self, prefix: str, *, limit: int) -> list[str]:
        """The ids of folds that begin so."""
        return await find_compaction_ids(self._database, prefix, limit=limit)

    async def find_compacted_session_ids(self, prefix: str, *, limit: int) -> list[str]:
        """The ids, of those that begin so, of sessions with a row on a fold, whatever became of it."""
        return await find_compacted_session_ids(self._database, prefix, limit=limit)

    async def find_archived_ids(self, prefix: str, *, limit: int) -> tuple[list[str], list[str]]:
        """The ids, of those that begin so, of sessions with kept requests, and of such requests."""
        return await find_archived_ids(self._database, prefix, limit=limit)

    async def find_latest_cache_misses(
        self, *, limit: int, since: float | None = None, agent: str | None = None
    ) -> list[CacheMissRecord]:
        """The requests whose cache broke, the newest first, of those since a time, of an agent."""
        return await find_latest_cache_misses(self._low_priority_reader, limit=limit, since=since, agent=agent)

    async def preview_prune(self, *, keep_days: float, now: float) -> PrunePreview:
        """What `forget` would forget."""
        return await preview_prune(self._database, keep_days=keep_days, now=now)

    async def prune(self, *, keep_days: float, now: float) -> PruneResult:
        """Forget sessions that were not seen for `keep_days`, and all that is kept only for them."""
        return await prune(self._database, keep_days=keep_days, now=now)

    async def vacuum(self) -> None:
        """Give back the room of what was forgotten."""
        await self._database.vacuum()

    async def close(self) -> None:
        """Wait for what is under way, and let go of the database."""
        await self.compactions.wait_for_releases()
        await self._database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def open_store(
    url: str | None = None, *, wait_seconds: float = WAIT_SECONDS, create: bool = True
) -> Store:
    """The store at `url`, its tables brought up to date; made where there is none, unless `make` is false.

    `url` is `sqlite:///relative/path`, `sqlite:////absolute/path` or `postgresql://user@host/name`. Default:
    what `FOVEATE_STORE` says, or a file in Foveate's data folder. `wait_seconds` is how long is waited for
    others who are using the database, for a statement, and for a server that is away for a moment.

    Raises:
        BadOption: `url` is none of these.
        StoreUnavailable: the database cannot be opened, or its tables cannot be made.
        StoreTooNew: a newer Foveate has changed its tables.
        NothingKept: there is none, and it is not to be made.
    """
    return Store(await asyncio.to_thread(_open_database, url or default_url(), wait_seconds, create))


def default_url() -> str:
    """What `FOVEATE_STORE` says, or the URL of the file in Foveate's data folder (`FOVEATE_HOME`)."""
    if configured := os.environ.get(URL_VARIABLE):
        return configured
    from foveate.paths import data_folder

    return f"{_SQLITE_PREFIX}{data_folder(os.environ, sys.platform).absolute() / 'foveate.sqlite'}"


def is_server(url: str | None) -> bool:
    """Return whether a URL is that of a database server, which several machines may use."""
    return url is not None and url.startswith(_POSTGRES_PREFIXES)


def store_name(url: str | None = None) -> str:
    """A name for what is kept beside the store at `url`: no two stores have the same.

    A password is not in it, and may change.

    Raises:
        BadOption: `url` is none of a PostgreSQL database.
    """
    url = url or default_url()
    if url.startswith(_POSTGRES_PREFIXES):
        parts = parse_server_url(url)
        identity = "".join(f"{name}={parts[name]}\n" for name in sorted(parts) if "password" not in name)
    else:
        identity = str(Path(url.removeprefix(_SQLITE_PREFIX)).expanduser().resolve())
    return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()[:_NAME_CHARS]


def _open_database(url: str, wait_seconds: float, create: bool) -> Database:
    if url.startswith(_POSTGRES_PREFIXES):
        return PostgresDatabase.open(url, wait_seconds=wait_seconds, create=create)
    path = url.removeprefix(_SQLITE_PREFIX)
    if not url.startswith(_SQLITE_PREFIX) or path in ("", ":memory:"):
        scheme = url.partition(":")[0]  # not more of it: it may hold a password
        raise BadOption(
            f"store: {scheme}: is no URL of a database; try sqlite:///path or postgresql://user@host/name"
        )
    return SQLiteDatabase.open(Path(path).expanduser(), wait_seconds=wait_seconds, create=create)


_SQLITE_PREFIX_READING = "sqlite:///"
_POSTGRES_PREFIXES_READING = ("postgresql://", "postgres://")
_FIND_ARCHIVED_SESSIONS = "SELECT session_id, min(at) FROM requests_v1 GROUP BY session_id"
_FIND_CHARGED_SESSIONS = "SELECT session_id, min(at) FROM ledger_v1 WHERE category = 'main' GROUP BY session_id"
_FIND_TABLE = "SELECT 1 FROM sqlite_schema WHERE name = 'ledger_v1'"
_FIND_REQUESTS = f"SELECT {REQUEST_COLUMNS} FROM requests_v1 WHERE session_id = ? ORDER BY at, id"
_FIND_CHARGES = f"""
SELECT {ENTRY_COLUMNS} FROM ledger_v1 WHERE session_id = ? AND category = 'main' ORDER BY at, call_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """What is kept of a session: whole requests, where that was wanted, and what its calls cost."""

    id: str
    requests: Sequence[ArchivedRequest]
    charges: Sequence[Charge]


def read_sessions(url: str) -> Iterator[StoredSession]:
    """Every session that something is kept of, the oldest first; `url` is that of a store, or a file.

    Raises:
        NothingKept: there is no store.
        StoreUnavailable: it cannot be read.
    """
    with _open_transaction(url) as rows:
        for session_id in _find_session_ids(rows):
            yield StoredSession(
                id=session_id,
                requests=[from_request_row(*row) for row in rows.fetch_all(_FIND_REQUESTS, (session_id,))],
                charges=[from_ledger_row(*row) for row in rows.fetch_all(_FIND_CHARGES, (session_id,))],
            )


def is_store_file(path: Path) -> bool:
    """Whether the database in a file has Foveate's tables; it may be somebody else's."""
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
    if url.startswith(_POSTGRES_PREFIXES_READING):
        yield from _open_server(url)
    else:
        yield from _open_file(Path(url.removeprefix(_SQLITE_PREFIX_READING)).expanduser())


def _open_file(path: Path) -> Iterator[Transaction]:
    if not path.is_file():
        raise NothingKept(str(path))
    try:
        with closing(_connect_read_only(path)) as connection:
            yield SQLiteTransaction(connection)
    except sqlite3.DatabaseError as error:
        raise StoreUnavailable(str(path), _describe_error(str(error))) from error


def _connect_read_only(path: Path) -> sqlite3.Connection:
    # Where nobody has it open, there is no log beside it, and SQLite would leave one there by looking for it.
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
        return f"is no store, or of an older Foveate (`foveate store info` brings it up to date): {message}"
    return f"cannot be read: {message}"
