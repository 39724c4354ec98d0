"""Queries that an event loop sends to a PostgreSQL server and reads itself, without a thread.

A thread needs the GIL to start, after the response and to pass it on. While the event loop is busy, it gets it
each time only after the switch interval: a lookup for a request then took 10 ms on average (November 2026). So
this talks to libpq directly, which never blocks here: the queries are short, and results are read once they
have arrived.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGresult

_MAX_STATEMENTS = 64
# Binary formats by type OID, for the types in `schema.py` (PostgreSQL's pg_type.dat).
_DECODERS: dict[int, Callable[[bytes], Any]] = {
    16: lambda value: value != b"\0",
    17: bytes,
    20: lambda value: int.from_bytes(value, "big", signed=True),
    23: lambda value: int.from_bytes(value, "big", signed=True),
    25: lambda value: value.decode(),
    701: lambda value: struct.unpack("!d", value)[0],
}


class LookupFailed(Exception):
    """The connection cannot be used for this lookup; another one may succeed."""


class _PendingLookup(msgspec.Struct, eq=False):
    future: "asyncio.Future[list[tuple[Any, ...]]]"
    results: "list[PGresult]" = msgspec.field(default_factory=list)


class LookupConnection:
    """A connection that only its event loop uses. Queries may be sent before earlier ones are answered."""

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
        """Close the connection. Lookups that are running fail."""
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
            if len(self._names) == _MAX_STATEMENTS:
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
