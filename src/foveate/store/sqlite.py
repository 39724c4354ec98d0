"""A database in an SQLite file: one thread writes while others read. Other processes may use the file at the
same time.

Jobs that arrive while the writer is busy are written in one transaction, each in its own savepoint, because a
commit costs far more than a statement.

SQLite makes waiting writers poll with growing pauses, so a process that writes often starves the others.
`WriterQueue` prevents that: the first writer in line holds the lock `next` while it waits for the lock `turn`,
and a process that has just written queues behind it. These locks only order the writers. SQLite's own lock
keeps them apart, so writing without a turn is safe. It happens if the lock files cannot be used, or if another
process holds one for too long.
"""

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, cast

from foveate.errors import NothingKept, StoreUnavailable
from foveate.store.database import ProcessGuard, T, TransactionCallback
from foveate.store.migrate import FIND_VERSION, VERSION_TABLE, migrate, needs_migration
from foveate.store.thread_pool import DaemonThreadPool

_TURN_POLL_SECONDS = 0.001
_MAX_TURN_WAIT_SECONDS = 1.0
_READERS = 4
_MAX_JOBS_PER_TRANSACTION = 1_024
_SHORT_WAIT_SHARE = 0.1
_MIGRATION_WAIT_SECONDS = 60.0
_WAL_BYTES = 64 * 1024 * 1024
_FIND_SIZE = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
_ERROR_REASONS = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk is full or fails",
    sqlite3.SQLITE_NOTADB: "is not an SQLite database, or is damaged",
    sqlite3.SQLITE_READONLY: "is read-only",
}
# Errors after which the connection can still be used.
_TRANSIENT_ERRORS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL)


class WriterQueue:
    """The lock files of one process, for use by one thread."""

    def __init__(self, database: Path) -> None:
        self._paths = [Path(f"{database}-{name}") for name in ("next", "turn")]
        self._files: list[int] | None = None

    @contextmanager
    def hold_turn(self) -> Iterator[None]:
        """Wait for this process's turn, and pass it on afterwards."""
        next_file, turn_file = self._open_files()
        deadline = time.monotonic() + _MAX_TURN_WAIT_SECONDS
        is_next = _lock_file(next_file, deadline)
        has_turn = _lock_file(turn_file, deadline)
        if is_next:
            _unlock_file(next_file)
        try:
            yield
        finally:
            if has_turn:
                _unlock_file(turn_file)

    def close(self) -> None:
        """Close the lock files without deleting them: another process may hold them."""
        for file in self._files or ():
            with suppress(OSError):
                os.close(file)
        self._files = None

    def _open_files(self) -> list[int]:
        """Return the descriptors of the two lock files; -1 for one that cannot be opened."""
        if self._files is None:
            self._files = [_open_lock_file(path) for path in self._paths]
        return self._files


def _open_lock_file(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return -1


def _lock_file(file: int, deadline: float) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows, where the gateway does not run
        return False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_TURN_POLL_SECONDS)
        except (OSError, ValueError):  # no support for locks, or no lock file
            return False
        else:
            return True


def _unlock_file(file: int) -> None:
    import fcntl

    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)


def _create_private_file(path: Path) -> None:
    """Create the file, unless it exists. SQLite gives its other files the same mode.

    An existing file is not opened: closing it would release the locks that SQLite has on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _check_access(path: Path) -> None:
    if path.is_dir() or not os.access(path, os.R_OK | os.W_OK):
        os.close(os.open(path, os.O_RDWR))  # raises the reason


class SQLiteTransaction:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def fetch_all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def enqueue(self, statement: str, values: Sequence[Any] = ()) -> None:
        self._connection.execute(statement, values)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self._connection.execute(statement, values).rowcount

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        return self._connection.executemany(statement, rows).rowcount


@dataclass(slots=True, eq=False)
class _WriteJob:
    callback: Callable[[SQLiteTransaction], object]
    is_outside_transaction: bool
    future: "asyncio.Future[Any]"
    result: object = None
    error: Exception | None = None


class SQLiteDatabase:
    def __init__(self, path: Path, *, wait_seconds: float) -> None:
        self._path = path
        self._file_id = _file_id(path)
        self._wait_seconds = wait_seconds
        self._thread_local = threading.local()
        self._connections: set[sqlite3.Connection] = set()
        self._process = ProcessGuard(str(path))
        self._readers = DaemonThreadPool(_READERS, "foveate-store-reader")
        self._jobs: SimpleQueue[_WriteJob | None] = SimpleQueue()
        self._submit_lock = threading.Lock()
        self._closed = False
        self._writer_queue = WriterQueue(path)
        # A daemon thread, so that a program can end without closing the store.
        self._writer = threading.Thread(target=self._run_writer, name="foveate-store-writer", daemon=True)
        self._writer.start()

    @classmethod
    def open(cls, path: Path, *, wait_seconds: float, create: bool = True) -> Self:
        """Open the file and migrate its tables; if it does not exist, create it, unless `create` is false.

        Raises:
            NothingKept: the file does not exist, and `create` is false.
            StoreUnavailable: the file cannot be created, read or written.
        """
        try:
            if create:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _create_private_file(path)
            _check_access(path)
        except OSError as error:
            if not create and isinstance(error, FileNotFoundError | NotADirectoryError):
                raise NothingKept(str(path)) from None
            raise StoreUnavailable(str(path), error.strerror or str(error)) from None
        try:
            _prepare(path, wait_seconds, create=create)
        except sqlite3.DatabaseError as error:
            raise _translate_error(path, error) from error
        return cls(path, wait_seconds=wait_seconds)

    @property
    def location(self) -> str:
        return str(self._path)

    async def read(self, callback: TransactionCallback[T]) -> T:
        self._check_open()
        requested_at = time.monotonic()
        return await self._readers.run(lambda: self._read(callback, requested_at))

    async def look_up(self, statement: str, values: Sequence[str | bytes]) -> list[tuple[Any, ...]]:
        self._check_open()
        self._check_file()
        try:
            return self._connection(wait_seconds=0.0).execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:  # a thread can wait for a lock, and reports errors
            self._reset_connection(error)
        return await self.read(lambda transaction: transaction.fetch_all(statement, values))

    async def write(self, callback: TransactionCallback[T], *, is_idempotent: bool) -> T:
        return cast("T", await self._submit_job(callback, is_outside_transaction=False))

    async def has_other_gateways(self) -> bool:
        return False

    async def size_bytes(self) -> int:
        """Return the size of the file, including what is still in the write-ahead log."""
        ((size,),) = await self.read(lambda transaction: transaction.fetch_all(_FIND_SIZE))
        return int(size)

    async def vacuum(self) -> None:
        """Reclaim the space of deleted rows. Writers wait meanwhile."""
        await self._submit_job(_vacuum, is_outside_transaction=True)

    async def close(self) -> None:
        self._process.check()
        with self._submit_lock:
            self._closed = True
            self._jobs.put(None)
        await asyncio.to_thread(self._writer.join)
        await asyncio.to_thread(self._readers.shut_down)
        while self._connections:
            self._connections.pop().close()
        self._writer_queue.close()

    def _check_open(self) -> None:
        self._process.check()
        if self._closed:
            raise StoreUnavailable(str(self._path), "is closed")

    async def _submit_job(
        self, callback: Callable[[SQLiteTransaction], object], *, is_outside_transaction: bool
    ) -> object:
        self._process.check()
        job = _WriteJob(callback, is_outside_transaction, asyncio.get_running_loop().create_future())
        with self._submit_lock:
            if self._closed:
                raise StoreUnavailable(str(self._path), "is closed")
            self._jobs.put(job)
        return await job.future

    def _read(self, callback: TransactionCallback[T], requested_at: float) -> T:
        self._check_file()
        try:
            waited_seconds = time.monotonic() - requested_at
            if waited_seconds < _SHORT_WAIT_SHARE * self._wait_seconds:
                return callback(SQLiteTransaction(self._connection(self._wait_seconds)))
            # The time spent in the queue counts: wait only for what is left.
            left_seconds = max(0.0, self._wait_seconds - waited_seconds)
            connection = self._connection(left_seconds)
            _set_busy_timeout(connection, left_seconds)
            try:
                return callback(SQLiteTransaction(connection))
            finally:
                _set_busy_timeout(connection, self._wait_seconds)
        except sqlite3.DatabaseError as error:
            self._reset_connection(error)
            raise _translate_error(self._path, error) from error

    def _check_file(self) -> None:
        """Check that the file was not deleted or replaced: SQLite would go on with the old one.

        Raises:
            StoreUnavailable: the file was deleted or replaced.
        """
        if _file_id(self._path) != self._file_id:
            raise StoreUnavailable(
                str(self._path), "was deleted or replaced while in use: put it back, or restart Foveate"
            )

    def _connection(self, wait_seconds: float) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._thread_local, "connection", None)
        if connection is None:
            connection = self._thread_local.connection = _connect(self._path, wait_seconds)
            self._connections.add(connection)
        return connection

    def _reset_connection(self, error: Exception) -> None:
        """Roll back, or close the connection if `error` may have damaged it, or if that fails."""
        connection: sqlite3.Connection | None = getattr(self._thread_local, "connection", None)
        if connection is None:
            return
        if _primary_error_code(error) in _TRANSIENT_ERRORS or not isinstance(error, sqlite3.DatabaseError):
            with suppress(sqlite3.DatabaseError):
                if connection.in_transaction:
                    connection.rollback()
                return
        self._thread_local.connection = None
        self._connections.discard(connection)
        with suppress(sqlite3.DatabaseError):
            connection.close()

    def _run_writer(self) -> None:
        while jobs := self._take_jobs():
            transactional = [job for job in jobs if not job.is_outside_transaction]
            if transactional:
                self._write_batch(transactional)
            for job in jobs:
                if job.is_outside_transaction:
                    self._run_outside_transaction(job)

    def _take_jobs(self) -> list[_WriteJob]:
        jobs: list[_WriteJob] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == _MAX_JOBS_PER_TRANSACTION or self._jobs.empty():
                return jobs
            job = self._jobs.get()
        if jobs:
            self._jobs.put(None)  # seen again by the next call
        return jobs

    def _write_batch(self, jobs: list[_WriteJob]) -> None:
        jobs = [job for job in jobs if not job.future.cancelled()]
        if not jobs:
            return
        try:
            self._check_file()
            connection = self._connection(self._wait_seconds)
            with self._writer_queue.hold_turn():
                connection.execute("BEGIN IMMEDIATE")
                if len(jobs) == 1:
                    jobs[0].result = jobs[0].callback(SQLiteTransaction(connection))
                else:
                    for job in jobs:
                        _run_in_savepoint(job, connection)
                connection.execute("COMMIT")
        except Exception as error:  # noqa: BLE001 - outermost frame of this thread; raised to the callers
            self._reset_connection(error)
            for job in jobs:
                job.error = error
        for job in jobs:
            if job.error is not None:
                job.error = _translate_error(self._path, job.error)
        _notify_callers(jobs)

    def _run_outside_transaction(self, job: _WriteJob) -> None:
        try:
            self._check_file()
            job.callback(SQLiteTransaction(self._connection(self._wait_seconds)))
        except Exception as error:  # noqa: BLE001 - outermost frame of this thread; raised to the caller
            self._reset_connection(error)
            job.error = _translate_error(self._path, error)
        _notify_callers([job])


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _run_in_savepoint(job: _WriteJob, connection: sqlite3.Connection) -> None:
    """Run one of several jobs in a transaction; if it fails, the others are unaffected.

    If this raises, the whole transaction is lost.
    """
    connection.execute("SAVEPOINT job")
    try:
        job.result = job.callback(SQLiteTransaction(connection))
    except Exception as error:  # outermost frame of this thread; raised to the caller
        if not connection.in_transaction:
            raise
        connection.execute("ROLLBACK TO job")
        job.error = error
    connection.execute("RELEASE job")


def _notify_callers(jobs: Sequence[_WriteJob]) -> None:
    """Resolve the futures of jobs, with one wake-up for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_WriteJob]] = {}
    for job in jobs:
        by_loop.setdefault(job.future.get_loop(), []).append(job)
    for loop, loop_jobs in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(_resolve_futures, loop_jobs)


def _resolve_futures(jobs: Sequence[_WriteJob]) -> None:
    for job in jobs:
        future, error = job.future, job.error
        # An exception refers to its frames, and they to the job. If the job referred to the exception, this
        # cycle would keep the callers' requests in memory until the next garbage collection.
        del job.future, job.error
        if future.done():
            continue
        if error is None:
            future.set_result(job.result)
        else:
            future.set_exception(error)


def _connect(path: Path, wait_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",  # never create an empty file in place of a deleted one
        uri=True,
        timeout=wait_seconds,
        isolation_level=None,
        check_same_thread=False,  # `close` closes all connections
        cached_statements=256,
    )
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    return connection


def _set_busy_timeout(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1_000)}")


def _prepare(path: Path, wait_seconds: float, *, create: bool) -> None:
    with closing(_connect(path, wait_seconds)) as connection:
        # Before changing anything: the file may belong to another program.
        if not create and _read_version(connection) is None:
            raise NothingKept(str(path))
        if _enable_wal(connection, wait_seconds) != "wal":
            raise StoreUnavailable(
                str(path), "this folder does not support SQLite's WAL mode: is it on a network drive?"
            )
        is_outdated = needs_migration(_read_version(connection), location=str(path))
    if is_outdated:
        _migrate_file(path)


def _enable_wal(connection: sqlite3.Connection, wait_seconds: float) -> str:
    """Switch to WAL mode. SQLite does not wait for locks here, so retry while another process does the same."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            mode: str = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if _primary_error_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return mode


def _read_version(connection: sqlite3.Connection) -> str | None:
    has_table = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (VERSION_TABLE,)).fetchone()
    row = connection.execute(FIND_VERSION).fetchone() if has_table else None
    return str(row[0]) if row else None


def _migrate_file(path: Path) -> None:
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
            migrate(connection, location=str(path))
    except DBAPIError as error:
        if isinstance(error.orig, sqlite3.DatabaseError):
            raise _translate_error(path, error.orig) from error
        raise


def _vacuum(transaction: SQLiteTransaction) -> None:
    transaction.execute("VACUUM")
    transaction.fetch_all("PRAGMA wal_checkpoint(TRUNCATE)")
    transaction.execute("PRAGMA optimize")


def _primary_error_code(error: Exception) -> int:
    """Return SQLite's primary error code; 0 if the driver itself raised the error."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _translate_error(path: Path, error: Exception) -> Exception:
    """Convert a driver error to `StoreUnavailable`, unless it is a bug of ours."""
    internal_errors = sqlite3.IntegrityError | sqlite3.ProgrammingError | sqlite3.DataError
    if not isinstance(error, sqlite3.DatabaseError) or isinstance(error, internal_errors):
        return error
    reason = _ERROR_REASONS.get(_primary_error_code(error))
    return StoreUnavailable(str(path), f"{reason} ({error})" if reason else str(error))
