"""A database in a file, by SQLite: one thread writes, others read beside it; other processes may do the same.

What was asked for while the writer was busy is written in one transaction, each part in a savepoint of its own:
a commit costs many times what a statement does.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, cast

from foveate.errors import NothingKept, StoreUnavailable
from foveate.store.database import OfOneProcess, T, Work
from foveate.store.migrating import FIND_VERSION, VERSION_TABLE, is_behind, migrate
from foveate.store.threads import Threads
from foveate.store.writer_turns import WriterTurns

_READERS = 4
_MOST_AT_ONCE = 1_024
_SOON = 0.1
_MIGRATION_WAIT_SECONDS = 60.0
_WAL_BYTES = 64 * 1024 * 1024
_FIND_SIZE = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"

_REASONS = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_FULL: "there is no room left on the disk",
    sqlite3.SQLITE_IOERR: "the disk is full, or gives errors",
    sqlite3.SQLITE_NOTADB: "is no SQLite database, or damaged",
    sqlite3.SQLITE_READONLY: "may only be read",
}
# After these the connection is as good as before.
_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL)


class SQLiteRows:
    """The inside of a transaction on a connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Every row that a statement gives."""
        return self._connection.execute(statement, values).fetchall()

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows a statement has changed."""
        return self._connection.execute(statement, values).rowcount

    def change_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """How many rows a statement has changed, run with each of `rows`."""
        return self._connection.executemany(statement, rows).rowcount


@dataclass(slots=True, eq=False)
class _Job:
    """Some work for the writer, what came of it, and who awaits that; `alone`: outside any transaction."""

    work: Callable[[SQLiteRows], object]
    alone: bool
    awaited: "asyncio.Future[Any]"
    result: object = None
    error: Exception | None = None


class SQLiteDatabase:
    """Implements `Database` on a file."""

    def __init__(self, path: Path, *, wait_seconds: float) -> None:
        self._path = path
        self._file_id = _file_id(path)
        self._wait_seconds = wait_seconds
        self._own = threading.local()
        self._connections: set[sqlite3.Connection] = set()
        self._process = OfOneProcess(str(path))
        self._readers = Threads(_READERS, "foveate-store-reader")
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._asking = threading.Lock()
        self._closed = False
        self._turns = WriterTurns(path)
        # A daemon: a program that ends without closing the store is not kept from ending.
        self._writer = threading.Thread(target=self._keep_writing, name="foveate-store-writer", daemon=True)
        self._writer.start()

    @classmethod
    def open(cls, path: Path, *, wait_seconds: float, make: bool = True) -> Self:
        """The database at `path` with its tables up to date, made where there is none and `make` says so.

        Raises:
            NothingKept: there is none, and it is not to be made.
            StoreUnavailable: it cannot be made, read or written.
        """
        try:
            if make:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # It holds what people said: others may not read it. SQLite's files beside it get the same mode.
            os.close(os.open(path, os.O_RDWR | (os.O_CREAT if make else 0), 0o600))
        except OSError as error:
            if not make and isinstance(error, FileNotFoundError | NotADirectoryError):
                raise NothingKept(str(path)) from None
            raise StoreUnavailable(str(path), error.strerror or str(error)) from None
        try:
            _prepare(path, wait_seconds, make=make)
        except sqlite3.DatabaseError as error:
            raise _translated(path, error) from error
        return cls(path, wait_seconds=wait_seconds)

    @property
    def where(self) -> str:
        """The file's path."""
        return str(self._path)

    async def read(self, work: Work[T]) -> T:
        """What `work` finds; it does not wait for the writer."""
        self._process.check()
        if self._closed:
            raise StoreUnavailable(str(self._path), "is closed")
        asked = time.monotonic()
        return await self._readers.run(lambda: self._read(work, asked))

    async def write(self, work: Work[T], *, again: bool) -> T:
        """What `work` gives, once what it wrote is kept."""
        return cast("T", await self._written(work, alone=False))

    async def size_bytes(self) -> int:
        """How large the file is, with all that was written to it."""
        ((size,),) = await self.read(lambda rows: rows.all(_FIND_SIZE))
        return int(size)

    async def vacuum(self) -> None:
        """Give back the room of what was deleted; who writes meanwhile waits."""
        await self._written(_vacuum, alone=True)

    async def close(self) -> None:
        """Wait for what is under way, and let go of the file."""
        self._process.check()
        with self._asking:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._writer.join)
        await asyncio.to_thread(self._readers.end)
        while self._connections:
            self._connections.pop().close()
        self._turns.close()

    async def _written(self, work: Callable[[SQLiteRows], object], *, alone: bool) -> object:
        self._process.check()
        job = _Job(work, alone, asyncio.get_running_loop().create_future())
        with self._asking:
            if self._closed:
                raise StoreUnavailable(str(self._path), "is closed")
            self._jobs.put(job)
        return await job.awaited

    def _read(self, work: Work[T], asked: float) -> T:
        self._check_file()
        try:
            waited_seconds = time.monotonic() - asked
            if waited_seconds < _SOON * self._wait_seconds:
                return work(SQLiteRows(self._connection(self._wait_seconds)))
            # Others were waited for already, as by those who asked before it: not as long once more.
            left_seconds = max(0.0, self._wait_seconds - waited_seconds)
            connection = self._connection(left_seconds)
            _wait_at_most(connection, left_seconds)
            try:
                return work(SQLiteRows(connection))
            finally:
                _wait_at_most(connection, self._wait_seconds)
        except sqlite3.DatabaseError as error:
            self._let_go(error)
            raise _translated(self._path, error) from error

    def _check_file(self) -> None:
        """Make sure that the file is still there: SQLite goes on with one that was deleted or replaced.

        Raises:
            StoreUnavailable: it is not.
        """
        if _file_id(self._path) != self._file_id:
            raise StoreUnavailable(
                str(self._path), "was deleted or replaced while in use: put it back, or restart Foveate"
            )

    def _connection(self, wait_seconds: float) -> sqlite3.Connection:
        """This thread's own; `wait_seconds` where it has to be made."""
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = _connect(self._path, wait_seconds)
            self._connections.add(connection)
        return connection

    def _let_go(self, error: Exception) -> None:
        """Undo what is under way, and connect anew next time where `error` may have been the connection's."""
        connection: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            return
        if _primary(error) in _PASSING or not isinstance(error, sqlite3.DatabaseError):
            if connection.in_transaction:
                connection.rollback()
        else:
            self._own.connection = None
            self._connections.discard(connection)
            connection.close()

    def _keep_writing(self) -> None:
        while jobs := self._next():
            together = [job for job in jobs if not job.alone]
            if together:
                self._write(together)
            for job in jobs:
                if job.alone:
                    self._do_alone(job)

    def _next(self) -> list[_Job]:
        """The jobs that wait, once there are any; none only once the database is closed."""
        taken: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            taken.append(job)
            if len(taken) == _MOST_AT_ONCE or self._jobs.empty():
                return taken
            job = self._jobs.get()
        if taken:
            self._jobs.put(None)  # for the next time
        return taken

    def _write(self, jobs: list[_Job]) -> None:
        """Do jobs in one transaction, and tell those who await them."""
        jobs = [job for job in jobs if not job.awaited.cancelled()]
        if not jobs:
            return
        try:
            self._check_file()
            connection = self._connection(self._wait_seconds)
            with self._turns.turn():
                connection.execute("BEGIN IMMEDIATE")
                if len(jobs) == 1:
                    jobs[0].result = jobs[0].work(SQLiteRows(connection))
                else:
                    for job in jobs:
                        _do(job, connection)
                connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - this thread's border: it is raised where the jobs are awaited
            self._let_go(error)
            for job in jobs:
                job.error = error
        for job in jobs:
            if job.error is not None:
                job.error = _translated(self._path, job.error)
        _tell(jobs)

    def _do_alone(self, job: _Job) -> None:
        try:
            self._check_file()
            job.work(SQLiteRows(self._connection(self._wait_seconds)))
        except Exception as error:  # noqa: BLE001 - as above
            self._let_go(error)
            job.error = _translated(self._path, error)
        _tell([job])


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _do(job: _Job, connection: sqlite3.Connection) -> None:
    """Do one job of several in a transaction; where it fails, all that the others did stays.

    What it raises itself has ended the whole transaction.
    """
    connection.execute("SAVEPOINT job")
    try:
        job.result = job.work(SQLiteRows(connection))
    except Exception as error:  # this thread's border: it is raised where the job is awaited
        if not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO job")
        job.error = error
    connection.execute("RELEASE job")


def _tell(jobs: Sequence[_Job]) -> None:
    """Wake those who await these jobs, once for each of their loops."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.awaited.get_loop(), []).append(job)
    for loop, some in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody awaits them any longer
            loop.call_soon_threadsafe(_resolve, some)


def _resolve(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        awaited, error = job.awaited, job.error
        # An error knows the frames that it went through, and they the job. If that knew the error too, all that
        # those hold who are told of it, with their requests, would be there until garbage is looked for.
        del job.awaited, job.error
        if awaited.done():
            continue
        if error is None:
            awaited.set_result(job.result)
        else:
            awaited.set_exception(error)


def _connect(path: Path, wait_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",  # never an empty one in the place of one that is gone
        uri=True,
        timeout=wait_seconds,
        isolation_level=None,
        check_same_thread=False,  # they are closed together at the end
        cached_statements=256,
    )
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    return connection


def _wait_at_most(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1_000)}")


def _prepare(path: Path, wait_seconds: float, *, make: bool) -> None:
    """Have readers and a writer go side by side, and the tables up to date."""
    with closing(_connect(path, wait_seconds)) as connection:
        # Before anything is changed: the file may be somebody else's.
        if not make and _version(connection) is None:
            raise NothingKept(str(path))
        if _wal(connection, wait_seconds) != "wal":
            raise StoreUnavailable(
                str(path), "this folder does not do for SQLite's WAL: is it on a network drive?"
            )
        behind = is_behind(_version(connection), where=str(path))
    if behind:
        _migrate(path)


def _wal(connection: sqlite3.Connection, wait_seconds: float) -> str:
    """Switch to WAL. SQLite does not wait for a lock in that, and others may be about the same."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return mode


def _version(connection: sqlite3.Connection) -> str | None:
    there = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (VERSION_TABLE,)).fetchone()
    found = connection.execute(FIND_VERSION).fetchone() if there else None
    return str(found[0]) if found else None


def _migrate(path: Path) -> None:
    from sqlalchemy import Connection, NullPool, create_engine, event
    from sqlalchemy.exc import DBAPIError

    engine = create_engine(
        "sqlite://", creator=lambda: _connect(path, _MIGRATION_WAIT_SECONDS), poolclass=NullPool
    )

    @event.listens_for(engine, "begin")
    def _alone(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    try:
        with engine.begin() as connection:
            migrate(connection, where=str(path))
    except DBAPIError as error:
        if isinstance(error.orig, sqlite3.DatabaseError):
            raise _translated(path, error.orig) from error
        raise


def _vacuum(rows: SQLiteRows) -> None:
    rows.change("VACUUM")
    rows.all("PRAGMA wal_checkpoint(TRUNCATE)")
    rows.change("PRAGMA optimize")


def _primary(error: Exception) -> int:
    """SQLite's own code, without what extends it; 0 where the driver was it."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _translated(path: Path, error: Exception) -> Exception:
    """What is told of an error of the driver: one of the tree, unless the fault is Foveate's own."""
    own = sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError
    if not isinstance(error, sqlite3.DatabaseError) or isinstance(error, own):
        return error
    reason = _REASONS.get(_primary(error))
    return StoreUnavailable(str(path), f"{reason} ({error})" if reason else str(error))
