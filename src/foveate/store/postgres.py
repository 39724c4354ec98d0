"""A database on a PostgreSQL server, through psycopg: a few threads, each with its own connection.

A lost connection is re-established within the waiting time. A transaction that was not committed is then
repeated; one that may have been committed is only repeated if it is idempotent. Lookups for requests have a
connection of their own for each event loop.
"""

import asyncio
import logging
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from foveate.errors import BadOption, NothingKept, StoreUnavailable
from foveate.store.database import TABLES, ProcessGuard, T, TransactionCallback
from foveate.store.migrate import FIND_VERSION, VERSION_TABLE, migrate, needs_migration
from foveate.store.thread_pool import DaemonThreadPool

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGresult

    Connection = psycopg.Connection[tuple[Any, ...]]

_LOG = logging.getLogger(__name__)

# Separate connections, so that reads never wait behind writes that wait for a lock.
_WRITERS, _READERS = 6, 4
_MIGRATION_WAIT_SECONDS = 60.0
_MIGRATION_LOCK = 0x666F7665617465
"""An arbitrary number that no other program should use ("foveate" in ASCII)."""
_FIRST_PAUSE_SECONDS = 0.05
_RETRY_PAUSE_SECONDS = 0.1
_MAX_PAUSE_SECONDS = 1.0
_DISCONNECT_SECONDS = 2.0
_PING_SECONDS = 2
_UNKNOWN_TYPE = 0
"""The server infers the type of a value with this OID."""
_MAX_PREPARED_STATEMENTS = 256
_APPLICATION = "foveate"
_MAX_APPLICATION_CHARS = 32
"""PostgreSQL cuts the whole name at 63 bytes."""
_GATEWAY_ID = " gateway ([0-9a-f]+)( - |$)"
"""A connection pooler may add ` - ` and the client's address (PgBouncer's application_name_add_host)."""
_FIND_OTHER_GATEWAYS = f"""
SELECT EXISTS (
    SELECT 1 FROM pg_stat_activity
    WHERE datname = current_database() AND substring(application_name FROM '{_GATEWAY_ID}')
    <> substring(current_setting('application_name') FROM '{_GATEWAY_ID}')
)
"""
_FIND_SIZE = f"""
SELECT CAST(coalesce(sum(pg_total_relation_size(to_regclass(name))), 0) AS BIGINT)
FROM (VALUES {", ".join(f"('{table}')" for table in TABLES)}) AS kept(name)
"""
_MAX_LOOKUP_STATEMENTS = 64
# Binary formats by type OID, for the types in `schema.py` (PostgreSQL's pg_type.dat).
_DECODERS: dict[int, Callable[[bytes], Any]] = {
    16: lambda value: value != b"\0",
    17: bytes,
    20: lambda value: int.from_bytes(value, "big", signed=True),
    23: lambda value: int.from_bytes(value, "big", signed=True),
    25: lambda value: value.decode(),
    701: lambda value: struct.unpack("!d", value)[0],
}


def parse_server_url(url: str) -> Mapping[str, object]:
    """Parse a server URL into libpq's parameters, including the password.

    Raises:
        BadOption: not a PostgreSQL URL.
    """
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return conninfo_to_dict(url)
    except ProgrammingError:
        # libpq's own message would contain the password.
        raise BadOption("store: not a valid PostgreSQL URL; expected postgresql://user@host/name") from None


def _name_connections(url: str, gateway_id: str) -> str:
    """Return the URL of connections by whose name gateways with the same store know of each other."""
    from psycopg.conninfo import make_conninfo

    name = str(parse_server_url(url).get("application_name", _APPLICATION))
    # The server writes other characters as up to 16, and would cut off the id.
    name = name.encode("ascii", "replace").decode()[:_MAX_APPLICATION_CHARS]
    return make_conninfo(url, application_name=f"{name} gateway {gateway_id}")


def redact_server_url(url: str) -> str:
    """Return host, port and database name of a server URL, without user and password."""
    parts = parse_server_url(url)
    host = f"{parts.get('host', '')}:{parts['port']}" if "port" in parts else parts.get("host", "")
    return f"postgresql://{host}/{parts.get('dbname', '')}"


class PostgresTransaction:
    """Executes statements. From the first `enqueue` on, `pipelines` holds a pipeline in which results wait."""

    def __init__(self, connection: "Connection", pipelines: ExitStack | None = None) -> None:
        self._connection = connection
        self._pipelines = pipelines
        self._pipeline: psycopg.Pipeline | None = None

    def fetch_all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._cursor().execute(_number_placeholders(statement), values).fetchall()

    def enqueue(self, statement: str, values: Sequence[Any] = ()) -> None:
        if self._pipeline is None and self._pipelines is not None:
            self._pipeline = self._pipelines.enter_context(self._connection.pipeline())
        self._cursor().execute(_number_placeholders(statement), values)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        return self._count_rows(self._cursor().execute(_number_placeholders(statement), values))

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        cursor = self._cursor()
        cursor.executemany(_number_placeholders(statement), rows)
        return self._count_rows(cursor)

    def _cursor(self) -> "psycopg.RawCursor[tuple[Any, ...]]":
        """Return a new cursor: in a pipeline, it gets the result of its statement later."""
        import psycopg

        # A plain cursor parses long statements for its own placeholders at each execution.
        return psycopg.RawCursor(self._connection)

    def _count_rows(self, cursor: "psycopg.Cursor[tuple[Any, ...]]") -> int:
        if self._pipeline is not None:
            self._pipeline.sync()
        return cursor.rowcount


@lru_cache(maxsize=256)
def _number_placeholders(statement: str) -> bytes:
    """Replace `?` by PostgreSQL's `$1`, `$2` and so on. Foveate's statements contain no other `?`."""
    first, *others = statement.split("?")
    return (first + "".join(f"${number}{text}" for number, text in enumerate(others, 1))).encode()


class PostgresDatabase:
    def __init__(self, url: str, location: str, *, wait_seconds: float) -> None:
        self._url = url
        self._location = location
        self._wait_seconds = wait_seconds
        self._thread_local = threading.local()
        self._connections: set[Connection] = set()
        self._process = ProcessGuard(location)
        self._writers = DaemonThreadPool(_WRITERS, "foveate-store-writer")
        self._readers = DaemonThreadPool(_READERS, "foveate-store-reader")
        self._timeout_seconds = 3 * wait_seconds
        self._closed = False
        self._is_disconnected = False
        # A store may be used from any event loop, and each reads its own connection.
        self._lookups: dict[asyncio.AbstractEventLoop, LookupConnection] = {}
        self._connecting: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    @classmethod
    def open(cls, url: str, *, wait_seconds: float, create: bool = True, gateway_id: str = "") -> Self:
        """Open the database and migrate its tables; if there are none, create them, unless `create` is false.

        Raises:
            BadOption: `url` is not a PostgreSQL URL.
            NothingKept: there are no tables, and `create` is false.
            StoreUnavailable: the database does not exist or cannot be used.
        """
        import psycopg

        location = redact_server_url(url)
        url = _name_connections(url, gateway_id) if gateway_id else url
        try:
            with _connect_with_retries(url, wait_seconds) as connection:
                version = _read_version(connection)
            if version is None and not create:
                raise NothingKept(location)
            if needs_migration(version, location=location):
                _migrate_database(url, location, wait_seconds)
        except psycopg.Error as error:
            raise StoreUnavailable(location, _error_message(error)) from error
        return cls(url, location, wait_seconds=wait_seconds)

    @property
    def location(self) -> str:
        return self._location

    async def read(self, callback: TransactionCallback[T]) -> T:
        return await self._run(callback, is_idempotent=True, is_read=True)

    async def look_up(self, statement: str, values: Sequence[str | bytes]) -> list[tuple[Any, ...]]:
        self._process.check()
        loop = asyncio.get_running_loop()
        lookups = self._lookups.get(loop)
        if lookups is not None and not self._closed:
            with suppress(LookupFailed, TimeoutError):  # a thread reconnects, and reports errors
                async with asyncio.timeout(self._wait_seconds):
                    return await lookups.fetch_all(_number_placeholders(statement), values)
            lookups.close()
            self._lookups.pop(loop, None)
        rows = await self.read(lambda transaction: transaction.fetch_all(statement, values))
        if loop not in self._lookups and loop not in self._connecting and not self._closed:
            self._connecting[loop] = asyncio.create_task(self._connect_for_lookups(loop))
        return rows

    async def write(self, callback: TransactionCallback[T], *, is_idempotent: bool) -> T:
        return await self._run(callback, is_idempotent=is_idempotent, is_read=False)

    async def has_other_gateways(self) -> bool:
        ((has_others,),) = await self.read(lambda transaction: transaction.fetch_all(_FIND_OTHER_GATEWAYS))
        return bool(has_others)

    async def size_bytes(self) -> int:
        """Return the size of all tables and indexes."""
        ((size,),) = await self.read(lambda transaction: transaction.fetch_all(_FIND_SIZE))
        return int(size)

    async def vacuum(self) -> None:
        """Reclaim the space of deleted rows, without blocking other transactions."""
        await asyncio.to_thread(self._vacuum)

    async def close(self) -> None:
        """Wait for running transactions, then close all connections, even if the server does not respond."""
        self._process.check()
        self._closed = True
        if connecting := self._connecting.get(asyncio.get_running_loop()):
            await asyncio.wait([connecting])
        while self._lookups:
            self._lookups.popitem()[1].close()
        if not await self._shut_down_threads(self._timeout_seconds):
            self._is_disconnected = True
            for connection in list(self._connections):
                _shut_down_socket(connection)
            await self._shut_down_threads(_DISCONNECT_SECONDS)
        while self._connections:
            self._connections.pop().close()

    async def _connect_for_lookups(self, loop: asyncio.AbstractEventLoop) -> None:
        """Open the connection for lookups of an event loop; until then, and if that fails, threads look up."""
        try:
            connection = await self._readers.run(self._open_autocommit_connection)
            self._lookups[loop] = LookupConnection(connection)
        except Exception as error:  # noqa: BLE001 - the next lookup tries again
            _LOG.info("%s: no connection for lookups, using threads: %s", self._location, error)
        finally:
            del self._connecting[loop]

    def _open_autocommit_connection(self) -> "Connection":
        connection = _connect_with_retries(
            self._url, self._wait_seconds, keeps_waiting=lambda: not self._closed
        )
        connection.autocommit = True
        return connection

    async def _shut_down_threads(self, timeout_seconds: float) -> bool:
        shutdowns = (
            asyncio.to_thread(threads.shut_down, timeout_seconds) for threads in (self._writers, self._readers)
        )
        return all(await asyncio.gather(*shutdowns))

    async def _run(self, callback: TransactionCallback[T], *, is_idempotent: bool, is_read: bool) -> T:
        self._process.check()
        if self._closed:
            raise StoreUnavailable(self._location, "is closed")
        # A server that hangs blocks its thread, but not the caller.
        try:
            async with asyncio.timeout(self._timeout_seconds):
                threads = self._readers if is_read else self._writers
                return await threads.run(lambda: self._run_with_retries(callback, is_idempotent, is_read))
        except TimeoutError:
            raise StoreUnavailable(
                self._location,
                f"no response within {self._timeout_seconds:g} s; the last write may or may not be stored",
            ) from None

    def _run_with_retries(self, callback: TransactionCallback[T], is_idempotent: bool, is_read: bool) -> T:
        """Run a transaction, and repeat it while it is retryable and time is left, but at least once.

        A server that has just restarted may go away once more.
        """
        import psycopg

        deadline = time.monotonic() + self._wait_seconds
        pause_seconds = _RETRY_PAUSE_SECONDS
        is_last = False
        while True:
            try:
                return self._run_once(callback, is_idempotent=is_idempotent, is_read=is_read)
            except _RetryableError as retryable:
                if is_last:
                    raise _translate_error(self._location, retryable.cause) from retryable
                is_last = time.monotonic() + pause_seconds > deadline
                # Let the other transaction of a deadlock finish first, or the two would collide again.
                time.sleep(_RETRY_PAUSE_SECONDS if is_last else pause_seconds)
                pause_seconds = min(2 * pause_seconds, _MAX_PAUSE_SECONDS)
            except psycopg.Error as error:
                raise _translate_error(self._location, error) from error

    def _run_once(self, callback: TransactionCallback[T], *, is_idempotent: bool, is_read: bool) -> T:
        """Run a callback in one transaction, or with autocommit if it only reads.

        Statements whose results are not needed are sent with the next one, and the commit with the last one:
        locks are held no longer than the server needs, even if this process has little CPU.

        Raises:
            _RetryableError: the transaction may be repeated, on a new connection if this one is lost.
        """
        import psycopg

        connection = self._connection()
        connection.autocommit = is_read
        is_committing = False
        try:
            if is_read:
                return callback(PostgresTransaction(connection))
            with ExitStack() as pipelines:
                result = callback(PostgresTransaction(connection, pipelines))
                is_committing = True
                connection.execute("COMMIT", prepare=False)
        except BaseException as error:  # leave no open transaction on the connection
            self._reset_connection(connection)
            is_rolled_back = isinstance(
                error, psycopg.errors.DeadlockDetected | psycopg.errors.SerializationFailure
            )
            is_repeatable = connection.closed and (is_idempotent or not is_committing)
            if isinstance(error, psycopg.Error) and (is_rolled_back or is_repeatable):
                raise _RetryableError(error) from error
            if isinstance(error, psycopg.OperationalError) and is_committing and connection.closed:
                raise StoreUnavailable(
                    self._location, "the connection was lost; the last write may or may not be stored"
                ) from error
            raise
        return result

    def _connection(self) -> "Connection":
        """Return this thread's connection. Reconnect if it was lost, and wait for a server that is starting."""
        connection: Connection | None = getattr(self._thread_local, "connection", None)
        if connection is not None:
            return connection
        if self._is_disconnected:
            raise StoreUnavailable(self._location, "is closed")
        connection = _connect_with_retries(
            self._url, self._wait_seconds, keeps_waiting=lambda: not self._closed
        )
        self._thread_local.connection = connection
        self._connections.add(connection)
        return connection

    def _reset_connection(self, connection: "Connection") -> None:
        """Roll back, and drop the connection if that fails."""
        import psycopg

        try:
            connection.rollback()
        except psycopg.Error:
            connection.close()
        if connection.closed:
            self._thread_local.connection = None
            self._connections.discard(connection)

    def _vacuum(self) -> None:
        import psycopg

        try:
            with _connect_with_retries(self._url, self._wait_seconds) as connection:
                connection.autocommit = True
                connection.execute("SET statement_timeout = 0")
                connection.execute(f"VACUUM (ANALYZE) {', '.join(TABLES)}")
        except psycopg.Error as error:
            raise _translate_error(self._location, error) from error


class LookupFailed(Exception):
    """The connection cannot be used for this lookup; another one may succeed."""


class _PendingLookup(msgspec.Struct, eq=False):
    future: "asyncio.Future[list[tuple[Any, ...]]]"
    results: "list[PGresult]" = msgspec.field(default_factory=list)


class LookupConnection:
    """A connection for queries that an event loop sends and reads itself, without a thread.

    A thread needs the GIL to start, after the response and to pass it on. While the event loop is busy, it gets
    it each time only after the switch interval: a lookup for a request then took 10 ms on average (November
    2026). So this talks to libpq directly, which never blocks here: the queries are short, and results are read
    once they have arrived. Queries may be sent before earlier ones are answered.
    """

    def __init__(self, connection: "psycopg.Connection[tuple[Any, ...]]") -> None:
        """Take over `connection`, which must have autocommit."""
        self._connection = connection
        self._libpq = connection.pgconn
        self._libpq.enter_pipeline_mode()
        self._names: dict[bytes, bytes] = {}
        self._running: deque[_PendingLookup] = deque()
        self._loop = asyncio.get_running_loop()
        self._socket = connection.fileno()
        self._loop.add_reader(self._socket, self._receive)

    async def fetch_all(self, statement: bytes, values: Sequence[str | bytes]) -> list[tuple[Any, ...]]:
        """Return the rows of a query.

        Raises:
            LookupFailed: no rows, since the connection was lost or the query failed; it is closed.
        """
        lookup = _PendingLookup(self._loop.create_future())
        self._running.append(lookup)
        try:
            self._send(statement, values)
        except Exception as error:  # noqa: BLE001 - whatever libpq raises, the caller has another way
            self.close(str(error))
        return await lookup.future

    def close(self, reason: str = "the connection was closed") -> None:
        """Running lookups fail."""
        if not self._connection.closed:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
            self._connection.close()
        while self._running:
            future = self._running.popleft().future
            if not future.done():
                future.set_exception(LookupFailed(reason))

    def _send(self, statement: bytes, values: Sequence[str | bytes]) -> None:
        from psycopg.pq import Format

        name = self._names.get(statement)
        if name is None:
            if len(self._names) == _MAX_LOOKUP_STATEMENTS:
                raise LookupFailed("too many different statements")
            name = self._names[statement] = b"lookup_%d" % len(self._names)
            self._libpq.send_prepare(name, statement)
        self._libpq.send_query_prepared(
            name,
            [value.encode() if isinstance(value, str) else value for value in values],
            [Format.TEXT if isinstance(value, str) else Format.BINARY for value in values],
            result_format=Format.BINARY,
        )
        self._libpq.pipeline_sync()

    def _receive(self) -> None:
        from psycopg.pq import ExecStatus

        try:
            self._libpq.consume_input()
            was_end = False
            while self._running and not self._libpq.is_busy():
                result = self._libpq.get_result()
                if result is None:  # the end of a statement, or, after another one, of what has arrived
                    if was_end:
                        break
                elif result.status == ExecStatus.PIPELINE_SYNC:
                    self._finish(self._running.popleft())
                else:
                    self._running[0].results.append(result)
                was_end = result is None
        except Exception as error:  # noqa: BLE001 - whatever libpq raises, the callers have another way
            self.close(str(error))

    def _finish(self, lookup: _PendingLookup) -> None:
        from psycopg.pq import ExecStatus

        rows = lookup.results[-1]
        if rows.status != ExecStatus.TUPLES_OK:
            if not lookup.future.done():
                lookup.future.set_exception(LookupFailed("the server reports an error"))
            self.close()
        elif not lookup.future.done():
            decoders = [_DECODERS[rows.ftype(column)] for column in range(rows.nfields)]
            lookup.future.set_result(
                [
                    tuple(
                        None if (value := rows.get_value(row, column)) is None else decode(value)
                        for column, decode in enumerate(decoders)
                    )
                    for row in range(rows.ntuples)
                ]
            )


class _RetryableError(Exception):
    """The connection was lost, or the server asks for a retry, and repeating the transaction is safe."""

    def __init__(self, cause: "psycopg.Error") -> None:
        super().__init__(str(cause))
        self.cause = cause


def _connect_with_retries(
    url: str,
    wait_seconds: float,
    *,
    statement_seconds: float | None = None,
    keeps_waiting: Callable[[], bool] | None = None,
) -> "Connection":
    """Connect, and wait for a server that is unreachable or starting.

    With `keeps_waiting`, retry as long as it returns true, whatever the server says: this process was connected
    before. Without it, an error of a reachable server is final if the server was already reachable at the
    previous attempt: the first error may come from a server that has finished starting since.
    """
    import psycopg

    deadline = time.monotonic() + wait_seconds
    pause_seconds = _FIRST_PAUSE_SECONDS
    was_reachable = False
    while True:
        try:
            return _connect(url, statement_seconds or wait_seconds)
        except psycopg.OperationalError:
            if keeps_waiting:
                should_wait = keeps_waiting()
            else:
                is_reachable = not _is_unreachable(url)
                should_wait = not (is_reachable and was_reachable)
                was_reachable = is_reachable
            if not should_wait or time.monotonic() + pause_seconds > deadline:
                raise
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _MAX_PAUSE_SECONDS)


def _is_unreachable(url: str) -> bool:
    """Return whether there is no server, or one that accepts no connections now.

    The user's name makes no difference to a ping (libpq's PQping; PostgreSQL 18's documentation, November
    2026).
    """
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import PGconn, Ping

    status = PGconn.ping(make_conninfo(url, connect_timeout=_PING_SECONDS).encode())
    return status in (Ping.REJECT, Ping.NO_RESPONSE)


def _shut_down_socket(connection: "Connection") -> None:
    """Shut down a connection that another thread waits on; that thread gets a connection error."""
    import psycopg

    with (
        suppress(OSError, psycopg.Error),
        socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as own_socket,
    ):
        own_socket.shutdown(socket.SHUT_RDWR)


def _connect(url: str, wait_seconds: float) -> "Connection":
    """Connect, with `wait_seconds` as the timeout of every operation."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    seconds = max(2, round(wait_seconds))
    options = {
        "application_name": _APPLICATION,
        "connect_timeout": seconds,
        "keepalives_idle": 30,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 1_000 * seconds,
        **conninfo_to_dict(url),
    }
    connection: Connection = psycopg.connect(**cast("dict[str, Any]", options))
    milliseconds = round(wait_seconds * 1_000)
    try:
        limits = (
            f"SET statement_timeout = {milliseconds};"
            f"SET lock_timeout = {milliseconds};"
            f"SET idle_in_transaction_session_timeout = {10 * milliseconds}"
        )
        connection.execute(limits.encode())
        connection.commit()
    except psycopg.Error:
        connection.close()
        raise
    _prepare_all_statements(connection)
    return connection


def _prepare_all_statements(connection: "Connection") -> None:
    """Prepare each statement at its first execution, once for all values.

    psycopg prepares a statement for each combination of types, and the type that it sends for a number depends
    on its size, so a statement with many numbers would be parsed and planned almost every time. Therefore the
    server infers the types of all values.
    """
    from psycopg.types.numeric import FloatDumper, Int8Dumper
    from psycopg.types.string import BytesBinaryDumper

    for kind, dumper in ((int, Int8Dumper), (float, FloatDumper), (bytes, BytesBinaryDumper)):
        connection.adapters.register_dumper(kind, type(dumper.__name__, (dumper,), {"oid": _UNKNOWN_TYPE}))
    connection.prepare_threshold = 0
    connection.prepared_max = _MAX_PREPARED_STATEMENTS


def _read_version(connection: "Connection") -> str | None:
    table = connection.execute("SELECT to_regclass(%s)", (VERSION_TABLE,)).fetchone()
    row = connection.execute(FIND_VERSION).fetchone() if table and table[0] else None
    return str(row[0]) if row else None


def _migrate_database(url: str, location: str, wait_seconds: float) -> None:
    import psycopg
    from sqlalchemy import NullPool, create_engine
    from sqlalchemy.exc import DBAPIError

    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: _connect_with_retries(url, wait_seconds, statement_seconds=_MIGRATION_WAIT_SECONDS),
        poolclass=NullPool,
    )
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            migrate(connection, location=location)
    except DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise StoreUnavailable(
                location, f"its tables cannot be created: {_error_message(error.orig)}"
            ) from error
        raise


def _translate_error(location: str, error: "psycopg.Error") -> Exception:
    """Convert a driver error to `StoreUnavailable`, unless it is a bug of ours."""
    import psycopg

    if isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable):
        return StoreUnavailable(location, f"took too long ({_error_message(error)})")
    external_errors = (
        psycopg.OperationalError,
        psycopg.InternalError,
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.UndefinedTable,
    )
    return StoreUnavailable(location, _error_message(error)) if isinstance(error, external_errors) else error


def _error_message(error: "psycopg.Error") -> str:
    return error.diag.message_primary or " ".join(str(error).split())
