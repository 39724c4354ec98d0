"""The store: opened by a URL, with one name for what each room keeps in it."""

import asyncio
import hashlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from foveate.errors import BadOption
from foveate.store.aside import LowPriorityReader
from foveate.store.breaks import CacheMissRecord, find_latest_cache_misses
from foveate.store.corrections import SqlCorrections
from foveate.store.database import Database
from foveate.store.families import SessionTree
from foveate.store.finding import find_archived_ids, find_compacted_session_ids, find_compaction_ids
from foveate.store.glances import DashboardQueries
from foveate.store.journal import SqlCompactionStore
from foveate.store.ledger import SqlLedger
from foveate.store.lessons import SqlCalibrationStore
from foveate.store.postgres import PostgresDatabase
from foveate.store.postgres_urls import parse_server_url
from foveate.store.rate_limits import SqlRateLimitStore
from foveate.store.requests import SqlRequestArchive
from foveate.store.retention import PruneResult, prune
from foveate.store.reuse import SqlReuseStore
from foveate.store.sizes import PrunePreview, StoreSizes, measure_sizes, preview_prune
from foveate.store.sqlite import SQLiteDatabase
from foveate.store.totals import SqlRollupStore
from foveate.store.traces import SqlTraceStore
from foveate.store.turns import SqlSessionStore

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
    from foveate.memory.paths import data_folder

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
