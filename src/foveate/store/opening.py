"""The store: opened by a URL, with one name for what each room keeps in it."""

import asyncio
import hashlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from foveate.errors import BadOption
from foveate.store.aside import Aside
from foveate.store.breaks import BrokenAt, latest_breaks
from foveate.store.corrections import Corrections
from foveate.store.database import Database
from foveate.store.families import Families
from foveate.store.finding import fold_ids, folded_sessions, kept_ids
from foveate.store.glances import Glances
from foveate.store.journal import KeptFolds
from foveate.store.ledger import KeptLedger
from foveate.store.lessons import KeptLessons
from foveate.store.postgres import PostgresDatabase
from foveate.store.postgres_urls import server_parts
from foveate.store.rate_limits import KeptRateLimits
from foveate.store.requests import KeptRequests
from foveate.store.retention import Forgotten, forget
from foveate.store.reuse import KeptReuse
from foveate.store.sizes import Forgettable, Sizes, sizes_of, would_forget
from foveate.store.sqlite import SQLiteDatabase
from foveate.store.totals import KeptTotals
from foveate.store.traces import KeptTraces
from foveate.store.turns import KeptTurns

VARIABLE = "FOVEATE_STORE"
WAIT_SECONDS = 5.0
"""For a lock of somebody else, a statement, or a server that is gone for a moment."""

_FILE = "sqlite:///"
_SERVERS = ("postgresql://", "postgres://")
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
        self.turns = KeptTurns(database)
        self.journal = KeptFolds(database)
        self.ledger = KeptLedger(database)
        self.corrections = Corrections(database)
        self.requests = KeptRequests(database)
        self.traces = KeptTraces(database)
        self.lessons = KeptLessons(database)
        self.reuse = KeptReuse(database)
        self.rate_limits = KeptRateLimits(database)
        self._aside = Aside(database)
        self.glances = Glances(self._aside)
        self.families = Families(self._aside)
        self.totals = KeptTotals(self._aside)

    @property
    def where(self) -> str:
        """The file, or the server and the database's name, without a password."""
        return self._database.where

    async def sizes(self) -> Sizes:
        """How much is kept."""
        return await sizes_of(self._database)

    async def fold_ids(self, beginning: str, *, limit: int) -> list[str]:
        """The ids of folds that begin so."""
        return await fold_ids(self._database, beginning, limit=limit)

    async def folded_sessions(self, beginning: str, *, limit: int) -> list[str]:
        """The ids, of those that begin so, of sessions with a row on a fold, whatever became of it."""
        return await folded_sessions(self._database, beginning, limit=limit)

    async def kept_ids(self, beginning: str, *, limit: int) -> tuple[list[str], list[str]]:
        """The ids, of those that begin so, of sessions with kept requests, and of such requests."""
        return await kept_ids(self._database, beginning, limit=limit)

    async def latest_breaks(
        self, *, limit: int, since: float | None = None, agent: str | None = None
    ) -> list[BrokenAt]:
        """The requests whose cache broke, the newest first, of those since a time, of an agent."""
        return await latest_breaks(self._aside, limit=limit, since=since, agent=agent)

    async def would_forget(self, *, keep_days: float, now: float) -> Forgettable:
        """What `forget` would forget."""
        return await would_forget(self._database, keep_days=keep_days, now=now)

    async def forget(self, *, keep_days: float, now: float) -> Forgotten:
        """Forget sessions that were not seen for `keep_days`, and all that is kept only for them."""
        return await forget(self._database, keep_days=keep_days, now=now)

    async def vacuum(self) -> None:
        """Give back the room of what was forgotten."""
        await self._database.vacuum()

    async def close(self) -> None:
        """Wait for what is under way, and let go of the database."""
        await self.journal.settled()
        await self._database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def open_store(url: str | None = None, *, wait_seconds: float = WAIT_SECONDS, make: bool = True) -> Store:
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
    return Store(await asyncio.to_thread(_open, url or default_url(), wait_seconds, make))


def default_url() -> str:
    """What `FOVEATE_STORE` says, or the URL of the file in Foveate's data folder (`FOVEATE_HOME`)."""
    if said := os.environ.get(VARIABLE):
        return said
    from foveate.memory.paths import data_folder

    return f"{_FILE}{data_folder(os.environ, sys.platform).absolute() / 'foveate.sqlite'}"


def is_server(url: str | None) -> bool:
    """Return whether a URL is that of a database server, which several machines may use."""
    return url is not None and url.startswith(_SERVERS)


def store_name(url: str | None = None) -> str:
    """A name for what is kept beside the store at `url`: no two stores have the same.

    A password is not in it, and may change.

    Raises:
        BadOption: `url` is none of a PostgreSQL database.
    """
    url = url or default_url()
    if url.startswith(_SERVERS):
        parts = server_parts(url)
        leads = "".join(f"{name}={parts[name]}\n" for name in sorted(parts) if "password" not in name)
    else:
        leads = str(Path(url.removeprefix(_FILE)).expanduser().resolve())
    return hashlib.sha256(leads.encode("utf-8", "surrogateescape")).hexdigest()[:_NAME_CHARS]


def _open(url: str, wait_seconds: float, make: bool) -> Database:
    if url.startswith(_SERVERS):
        return PostgresDatabase.open(url, wait_seconds=wait_seconds, make=make)
    path = url.removeprefix(_FILE)
    if not url.startswith(_FILE) or path in ("", ":memory:"):
        scheme = url.partition(":")[0]  # not more of it: it may hold a password
        raise BadOption(
            f"store: {scheme}: is no URL of a database; try sqlite:///path or postgresql://user@host/name"
        )
    return SQLiteDatabase.open(Path(path).expanduser(), wait_seconds=wait_seconds, make=make)
