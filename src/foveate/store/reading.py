"""What is kept, read session by session, and nothing is changed: no table is made, migrated or locked."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from foveate.cost.ledger import Entry
from foveate.errors import NothingKept, StoreUnavailable
from foveate.session.requests import KeptRequest
from foveate.store.database import Rows
from foveate.store.ledger_rows import COLUMNS as ENTRY_COLUMNS
from foveate.store.ledger_rows import entry_of
from foveate.store.opening import WAIT_SECONDS
from foveate.store.postgres import PostgresRows
from foveate.store.postgres_urls import server_parts
from foveate.store.requests import COLUMNS as REQUEST_COLUMNS
from foveate.store.requests import request_of
from foveate.store.sqlite import SQLiteRows

_FILE = "sqlite:///"
_SERVERS = ("postgresql://", "postgres://")
_FIND_REQUESTED = "SELECT session_id, min(at) FROM requests_v1 GROUP BY session_id"
_FIND_BILLED = "SELECT session_id, min(at) FROM ledger_v1 WHERE category = 'main' GROUP BY session_id"
_FIND_TABLE = "SELECT 1 FROM sqlite_schema WHERE name = 'ledger_v1'"
_FIND_REQUESTS = f"SELECT {REQUEST_COLUMNS} FROM requests_v1 WHERE session_id = ? ORDER BY at, id"
_FIND_ENTRIES = f"""
SELECT {ENTRY_COLUMNS} FROM ledger_v1 WHERE session_id = ? AND category = 'main' ORDER BY at, call_id
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSession:
    """What is kept of a session: whole requests, where that was wanted, and what its calls cost."""

    id: str
    requests: Sequence[KeptRequest]
    entries: Sequence[Entry]


def kept_sessions(url: str) -> Iterator[KeptSession]:
    """Every session that something is kept of, the oldest first; `url` is that of a store, or a file.

    Raises:
        NothingKept: there is no store.
        StoreUnavailable: it cannot be read.
    """
    with _rows(url) as rows:
        for session_id in _session_ids(rows):
            yield KeptSession(
                id=session_id,
                requests=[request_of(*row) for row in rows.all(_FIND_REQUESTS, (session_id,))],
                entries=[entry_of(*row) for row in rows.all(_FIND_ENTRIES, (session_id,))],
            )


def is_store(path: Path) -> bool:
    """Whether the database in a file has Foveate's tables; it may be somebody else's."""
    try:
        with closing(_connected(path)) as connection:
            return connection.execute(_FIND_TABLE).fetchone() is not None
    except sqlite3.DatabaseError:
        return False


def _session_ids(rows: Rows) -> list[str]:
    began: dict[str, float] = {}
    for statement in (_FIND_BILLED, _FIND_REQUESTED):
        for session_id, at in rows.all(statement):
            began[session_id] = min(at, began.get(session_id, at))
    return sorted(began, key=lambda session_id: (began[session_id], session_id))


@contextmanager
def _rows(url: str) -> Iterator[Rows]:
    if url.startswith(_SERVERS):
        yield from _server_rows(url)
    else:
        yield from _file_rows(Path(url.removeprefix(_FILE)).expanduser())


def _file_rows(path: Path) -> Iterator[Rows]:
    if not path.is_file():
        raise NothingKept(str(path))
    try:
        with closing(_connected(path)) as connection:
            yield SQLiteRows(connection)
    except sqlite3.DatabaseError as error:
        raise StoreUnavailable(str(path), _reason(str(error))) from error


def _connected(path: Path) -> sqlite3.Connection:
    # Where nobody has it open, there is no log beside it, and SQLite would leave one there by looking for it.
    is_alone = not path.with_name(f"{path.name}-wal").exists()
    asked = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' * is_alone}"
    return sqlite3.connect(asked, uri=True, timeout=WAIT_SECONDS)


def _server_rows(url: str) -> Iterator[Rows]:
    import psycopg

    parts = server_parts(url)
    where = f"postgresql://{parts.get('host', '')}/{parts.get('dbname', '')}"
    try:
        with psycopg.connect(url, connect_timeout=round(WAIT_SECONDS)) as connection:
            connection.read_only = True
            yield PostgresRows(connection)
    except psycopg.Error as error:
        raise StoreUnavailable(where, _reason(" ".join(str(error).split()))) from error


def _reason(said: str) -> str:
    if "no such table" in said or "no such column" in said or "does not exist" in said:
        return f"is no store, or of an older Foveate (`foveate store info` brings it up to date): {said}"
    return f"cannot be read: {said}"
