"""What is kept, read session by session, and nothing is changed: no table is made, migrated or locked."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from foveate.cost.ledger import Charge
from foveate.errors import NothingKept, StoreUnavailable
from foveate.session.requests import ArchivedRequest
from foveate.store.database import Transaction
from foveate.store.ledger_rows import LEDGER_COLUMNS as ENTRY_COLUMNS
from foveate.store.ledger_rows import from_ledger_row
from foveate.store.opening import WAIT_SECONDS
from foveate.store.postgres import PostgresTransaction
from foveate.store.postgres_urls import parse_server_url
from foveate.store.requests import REQUEST_COLUMNS as REQUEST_COLUMNS
from foveate.store.requests import from_request_row
from foveate.store.sqlite import SQLiteTransaction

_SQLITE_PREFIX = "sqlite:///"
_POSTGRES_PREFIXES = ("postgresql://", "postgres://")
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
    if url.startswith(_POSTGRES_PREFIXES):
        yield from _open_server(url)
    else:
        yield from _open_file(Path(url.removeprefix(_SQLITE_PREFIX)).expanduser())


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
