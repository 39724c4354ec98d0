"""A database on a PostgreSQL server, by psycopg: a few threads, each with a connection of its own.

A connection that is lost is made anew, for as long as there is patience; what had not been committed is then
done once more, and what may have been is done once more where that is no harm.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

from foveate.errors import NothingKept, StoreUnavailable
from foveate.store.database import TABLES, OfOneProcess, T, Work
from foveate.store.migrating import FIND_VERSION, VERSION_TABLE, is_behind, migrate
from foveate.store.postgres_urls import shown_url
from foveate.store.threads import Threads

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

# Reads have connections of their own, so that no request that reads waits for writes that wait for a lock.
_WRITERS, _READERS = 6, 4
_MIGRATION_WAIT_SECONDS = 60.0
_MIGRATION_LOCK = 0x666F7665617465
"""Any number that nobody else in the same database would take."""
_FIRST_PAUSE_SECONDS = 0.05
_PAUSE_BEFORE_AGAIN_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 1.0
_HANGING_UP_SECONDS = 2.0
_PING_SECONDS = 2
_FIND_SIZE = f"""
SELECT CAST(coalesce(sum(pg_total_relation_size(to_regclass(name))), 0) AS BIGINT)
FROM (VALUES {", ".join(f"('{table}')" for table in TABLES)}) AS kept(name)
"""


class PostgresRows:
    """The inside of a transaction on a connection."""

    def __init__(self, connection: "Connection") -> None:
        self._cursor = connection.cursor()

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Every row that a statement gives."""
        return self._cursor.execute(_spelled(statement), values).fetchall()

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows a statement has changed."""
        return self._cursor.execute(_spelled(statement), values).rowcount

    def change_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """How many rows a statement has changed, run with each of `rows`."""
        if len(rows) == 1:  # the usual turn: half of what a pipeline of one takes
            return self.change(statement, rows[0])
        self._cursor.executemany(_spelled(statement), rows)
        return self._cursor.rowcount


@lru_cache(maxsize=256)
def _spelled(statement: str) -> str:
    """A statement with values where psycopg looks for them; Foveate's own never say `?` otherwise."""
    return statement.replace("?", "%s")


class PostgresDatabase:
    """Implements `Database` on a server."""

    def __init__(self, url: str, where: str, *, wait_seconds: float) -> None:
        self._url = url
        self._where = where
        self._wait_seconds = wait_seconds
        self._own = threading.local()
        self._connections: set[Connection] = set()
        self._process = OfOneProcess(where)
        self._writers = Threads(_WRITERS, "foveate-store-writer")
        self._readers = Threads(_READERS, "foveate-store-reader")
        self._most_seconds = 3 * wait_seconds
        self._closed = False
        self._hung_up = False

    @classmethod
    def open(cls, url: str, *, wait_seconds: float, make: bool = True) -> Self:
        """The database at `url` with its tables up to date, made where there are none and `make` says so.

        Raises:
            BadOption: `url` is none.
            NothingKept: there are no tables in it, and they are not to be made.
            StoreUnavailable: there is no such database, or it cannot be used.
        """
        import psycopg

        where = shown_url(url)
        try:
            with _connected(url, wait_seconds) as connection:
                version = _version(connection)
            if version is None and not make:
                raise NothingKept(where)
            if is_behind(version, where=where):
                _migrate(url, where, wait_seconds)
        except psycopg.Error as error:
            raise StoreUnavailable(where, _line(error)) from error
        return cls(url, where, wait_seconds=wait_seconds)

    @property
    def where(self) -> str:
        """The server and the database's name."""
        return self._where

    async def read(self, work: Work[T]) -> T:
        """What `work` finds."""
        return await self._done(work, again=True, reads=True)

    async def write(self, work: Work[T], *, again: bool) -> T:
        """What `work` gives, once what it wrote is kept."""
        return await self._done(work, again=again, reads=False)

    async def size_bytes(self) -> int:
        """How much room the tables and their indexes take."""
        ((size,),) = await self.read(lambda rows: rows.all(_FIND_SIZE))
        return int(size)

    async def vacuum(self) -> None:
        """Give back the room of what was deleted; nobody waits for it."""
        await asyncio.to_thread(self._vacuum)

    async def close(self) -> None:
        """Wait for what is under way, and let go of the server, also of one that has gone dead."""
        self._process.check()
        self._closed = True
        if not await self._have_ended(self._most_seconds):
            self._hung_up = True
            for connection in list(self._connections):
                _hang_up(connection)
            await self._have_ended(_HANGING_UP_SECONDS)
        while self._connections:
            self._connections.pop().close()

    async def _have_ended(self, seconds: float) -> bool:
        """Wait until all threads have ended; false if they have not within so many seconds."""
        ending = (asyncio.to_thread(threads.end, seconds) for threads in (self._writers, self._readers))
        return all(await asyncio.gather(*ending))

    async def _done(self, work: Work[T], *, again: bool, reads: bool) -> T:
        self._process.check()
        if self._closed:
            raise StoreUnavailable(self._where, "is closed")
        # A server that neither answers nor goes away keeps its thread, but not whoever asked.
        try:
            async with asyncio.timeout(self._most_seconds):
                threads = self._readers if reads else self._writers
                return await threads.run(lambda: self._do(work, again, reads))
        except TimeoutError:
            raise StoreUnavailable(
                self._where,
                f"no answer within {self._most_seconds:g} s; what was written may or may not be kept",
            ) from None

    def _do(self, work: Work[T], again: bool, reads: bool) -> T:
        """Do it, again while it may be done again: once more in any case, and for as long as there is patience.

        A server that comes back may go once more before it was asked.
        """
        import psycopg

        deadline = time.monotonic() + self._wait_seconds
        pause_seconds = _PAUSE_BEFORE_AGAIN_SECONDS
        is_last = False
        while True:
            try:
                return self._do_once(work, again=again, reads=reads)
            except _LostInTime as lost:
                if is_last:
                    raise _translated(self._where, lost.cause) from lost
                is_last = time.monotonic() + pause_seconds > deadline
                # Whoever it was in deadlock with goes first: at once, the two would meet again.
                time.sleep(_PAUSE_BEFORE_AGAIN_SECONDS if is_last else pause_seconds)
                pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)
            except psycopg.Error as error:
                raise _translated(self._where, error) from error

    def _do_once(self, work: Work[T], *, again: bool, reads: bool) -> T:
        """Do it in one transaction, or, where it only reads, without: that is two ways to the server less.

        Raises:
            _LostInTime: it may be done again, on another connection where this one is lost.
        """
        import psycopg

        connection = self._connection()
        connection.autocommit = reads
        committing = False
        try:
            result = work(PostgresRows(connection))
            committing = True
            connection.commit()
        except BaseException as error:  # whatever ends it, nothing half done stays on the connection
            self._let_go(connection)
            passing = connection.closed or isinstance(
                error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure
            )
            if isinstance(error, psycopg.Error) and passing and (again or not committing):
                raise _LostInTime(error) from error
            if isinstance(error, psycopg.OperationalError) and committing and connection.closed:
                raise StoreUnavailable(
                    self._where, "the connection was lost; what was written may or may not be kept"
                ) from error
            raise
        return result

    def _connection(self) -> "Connection":
        """This thread's own, made anew where it was lost; a server that is starting is waited for."""
        connection: Connection | None = getattr(self._own, "connection", None)
        if connection is not None:
            return connection
        if self._hung_up:
            raise StoreUnavailable(self._where, "is closed")
        connection = _connected(self._url, self._wait_seconds, goes_on=lambda: not self._closed)
        self._own.connection = connection
        self._connections.add(connection)
        return connection

    def _let_go(self, connection: "Connection") -> None:
        """Undo what is under way on a connection, and forget it where that cannot be said to it."""
        import psycopg

        try:
            connection.rollback()
        except psycopg.Error:
            connection.close()
        if connection.closed:
            self._own.connection = None
            self._connections.discard(connection)

    def _vacuum(self) -> None:
        import psycopg

        try:
            with _connected(self._url, self._wait_seconds) as connection:
                connection.autocommit = True
                connection.execute("SET statement_timeout = 0")
                connection.execute(f"VACUUM (ANALYZE) {', '.join(TABLES)}")
        except psycopg.Error as error:
            raise _translated(self._where, error) from error


class _LostInTime(Exception):
    """The connection was lost, or the server wants it done again, and that is no harm."""

    def __init__(self, cause: "psycopg.Error") -> None:
        super().__init__(str(cause))
        self.cause = cause


def _connected(
    url: str,
    wait_seconds: float,
    *,
    statement_seconds: float | None = None,
    goes_on: Callable[[], bool] | None = None,
) -> "Connection":
    """A connection; a server that is away for a moment, or starting, is waited for.

    `goes_on` is asked by whoever was let in before, and so waits whatever the server says now. Otherwise one
    that is there and says no is believed, if it was there before it was asked: the first no may be that of a
    server which has ended its start since.
    """
    import psycopg

    deadline = time.monotonic() + wait_seconds
    pause_seconds = _FIRST_PAUSE_SECONDS
    was_there = False
    while True:
        try:
            return _connect(url, statement_seconds or wait_seconds)
        except psycopg.OperationalError:
            if goes_on:
                waits = goes_on()
            else:
                is_there = not _is_away(url)
                waits = not (is_there and was_there)
                was_there = is_there
            if not waits or time.monotonic() + pause_seconds > deadline:
                raise
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)


def _is_away(url: str) -> bool:
    """Whether there is no server, or one that lets nobody in now.

    Who one is makes no difference to a ping (libpq's PQping; PostgreSQL 18's documentation, November 2026).
    """
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import PGconn, Ping

    found = PGconn.ping(make_conninfo(url, connect_timeout=_PING_SECONDS).encode())
    return found in (Ping.REJECT, Ping.NO_RESPONSE)


def _hang_up(connection: "Connection") -> None:
    """End a connection under whoever waits on it in another thread, who is told that it was lost."""
    import psycopg

    with (
        suppress(OSError, psycopg.Error),
        socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as own,
    ):
        own.shutdown(socket.SHUT_RDWR)


def _connect(url: str, wait_seconds: float) -> "Connection":
    """A connection on which nothing takes longer than `wait_seconds`."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    seconds = max(2, round(wait_seconds))
    told = {
        "application_name": "foveate",
        "connect_timeout": seconds,
        "keepalives_idle": 30,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 1_000 * seconds,
        **conninfo_to_dict(url),
    }
    connection: Connection = psycopg.connect(**cast("dict[str, Any]", told))
    milliseconds = round(wait_seconds * 1_000)
    try:
        connection.execute(
            f"SET statement_timeout = {milliseconds};"
            f"SET lock_timeout = {milliseconds};"
            f"SET idle_in_transaction_session_timeout = {10 * milliseconds}"
        )
        connection.commit()
    except psycopg.Error:
        connection.close()
        raise
    return connection


def _version(connection: "Connection") -> str | None:
    there = connection.execute("SELECT to_regclass(%s)", (VERSION_TABLE,)).fetchone()
    found = connection.execute(FIND_VERSION).fetchone() if there and there[0] else None
    return str(found[0]) if found else None


def _migrate(url: str, where: str, wait_seconds: float) -> None:
    import psycopg
    from sqlalchemy import NullPool, create_engine
    from sqlalchemy.exc import DBAPIError

    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: _connected(url, wait_seconds, statement_seconds=_MIGRATION_WAIT_SECONDS),
        poolclass=NullPool,
    )
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            migrate(connection, where=where)
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise StoreUnavailable(where, f"its tables cannot be made: {_line(error.orig)}") from error
        raise


def _translated(where: str, error: "psycopg.Error") -> Exception:
    """What is told of an error of the driver: one of the tree, unless the fault is Foveate's own."""
    import psycopg

    if isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable):
        return StoreUnavailable(where, f"took too long ({_line(error)})")
    outside = (
        psycopg.OperationalError,
        psycopg.InternalError,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.UndefinedTable,
    )
    return StoreUnavailable(where, _line(error)) if isinstance(error, outside) else error


def _line(error: "psycopg.Error") -> str:
    return error.diag.message_primary or " ".join(str(error).split())
