"""Protocols for database access: a transaction is a plain function of a `Transaction`.

Statements are written once, with `?` placeholders, in the SQL that SQLite and PostgreSQL share.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from foveate.errors import BadOption, StoreUnavailable

TABLES = (
    "sessions_v1",
    "session_parents_v1",
    "turns_v1",
    "answers_v1",
    "turn_counts_v1",
    "compactions_v1",
    "folded_turns_v1",
    "fold_uses_v1",
    "compaction_locks_v1",
    "ledger_v1",
    "corrections_v1",
    "accounts_v1",
    "reservations_v1",
    "requests_v1",
    "traces_v1",
    "totals_v1",
    "session_totals_v1",
    "lessons_v1",
    "prefix_reuse_v1",
    "rate_limits_v1",
)
"""The tables of `schema.py`, without importing SQLAlchemy."""

T = TypeVar("T")
TransactionCallback = Callable[["Transaction"], T]

# Few sizes, so that the drivers can cache the statements of all of them.
_IN_LIST_SIZES = (1, 4, 16, 64, 256, 1024)
_INSERT_SIZES = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # a call has five accounts
# The largest size that fits, by the number of rows left.
_INSERT_SIZE_BY_ROWS_LEFT = tuple(
    max(size for size in (0, *_INSERT_SIZES) if size <= left) for left in range(_INSERT_SIZES[-1] + 1)
)


class Transaction(Protocol):
    def fetch_all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]: ...

    def enqueue(self, statement: str, values: Sequence[Any] = ()) -> None:
        """Execute a statement whose result is not needed, at the latest with the next one or the commit."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int: ...

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int: ...


class Database(Protocol):
    """Runs transactions. If a callback raises, its transaction is rolled back.

    Raises:
        StoreUnavailable: the database could not be used. Nothing was written, or the message says that this is
            unknown.
    """

    @property
    def location(self) -> str:
        """The path or URL of the database, without a password."""

    async def read(self, callback: TransactionCallback[T]) -> T: ...

    async def look_up(self, statement: str, values: Sequence[str | bytes]) -> list[tuple[Any, ...]]:
        """Return the rows of a query that finds a few rows by their key.

        The event loop does that itself: it takes 50 µs, and waking a thread takes milliseconds if the loop is
        busy.
        """

    async def write(self, callback: TransactionCallback[T], *, is_idempotent: bool) -> T:
        """Return the result of a callback once its changes are committed.

        If `is_idempotent`, the callback is repeated when the connection was lost before the commit was
        confirmed.
        """

    async def has_other_gateways(self) -> bool: ...

    async def size_bytes(self) -> int:
        """Return the size on disk, including space that is not reclaimed yet."""

    async def vacuum(self) -> None: ...

    async def close(self) -> None:
        """Wait for running transactions, then close all connections."""


class ProcessGuard:
    """Rejects use of a database in a forked process, which has none of its threads."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._process_id = os.getpid()

    def check(self) -> None:
        """Check that this process opened the database.

        Raises:
            StoreUnavailable: this process did not open the database.
        """
        if os.getpid() != self._process_id:
            raise StoreUnavailable(
                self._location, "was opened by another process: open the store again after a fork"
            )


def build_where_clause(conditions: Mapping[str, Sequence[Any] | None]) -> tuple[str, list[Any]]:
    """Return a WHERE clause and its values; conditions whose values are None are left out."""
    active = {condition: values for condition, values in conditions.items() if values is not None}
    return f"WHERE {' AND '.join(active)}" if active else "", [
        value for values in active.values() for value in values
    ]


def group_placeholders(keys: Sequence[T]) -> Iterator[tuple[str, Sequence[T]]]:
    """Split keys for IN (...) into groups, and yield each with its placeholders.

    Each group is padded with its last key to one of a few sizes, so that drivers can cache all statements.
    """
    for first in range(0, len(keys), _IN_LIST_SIZES[-1]):
        group = keys[first : first + _IN_LIST_SIZES[-1]]
        size = next(size for size in _IN_LIST_SIZES if size >= len(group))
        yield ",".join("?" * size), (*group, *(group[-1],) * (size - len(group)))


def batch_inserts(statement: str, values: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    first, end = 0, len(values)
    while first < end:
        size = _INSERT_SIZE_BY_ROWS_LEFT[min(end - first, _INSERT_SIZES[-1])]
        group = values[first : first + size]
        yield _format_insert(statement, size, len(group[0])), list(chain.from_iterable(group))
        first += size


def enqueue_inserts(transaction: Transaction, statement: str, values: Sequence[tuple[Any, ...]]) -> None:
    for insert, batch in batch_inserts(statement, values):
        transaction.enqueue(insert, batch)


@lru_cache(maxsize=256)
def _format_insert(statement: str, rows: int, columns: int) -> str:
    return statement.format(", ".join([f"({', '.join('?' * columns)})"] * rows))


def check_storable_names(**names: str | None) -> None:
    """Check that both databases can store these names.

    Raises:
        BadOption: a name contains a NUL or a lone surrogate.
    """
    for label, name in names.items():
        if name is not None and not name.isprintable() and ("\0" in name or not _is_encodable(name)):
            raise BadOption(f"{label}: {name!r} cannot be stored: it contains a NUL or a lone surrogate")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


MAX_CONCURRENT_READS = 2


class Reader(Protocol):
    async def read(self, callback: TransactionCallback[T]) -> T: ...


class LowPriorityReader:
    """Limits concurrent dashboard reads, so that reads for requests never wait for them."""

    def __init__(self, database: Reader, max_concurrent: int = MAX_CONCURRENT_READS) -> None:
        self._database = database
        self._max_concurrent = max_concurrent
        # A store may be used from any event loop, and a semaphore belongs to one.
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def read(self, callback: TransactionCallback[T]) -> T:
        semaphore = self._semaphores.setdefault(
            asyncio.get_running_loop(), asyncio.Semaphore(self._max_concurrent)
        )
        async with semaphore:
            return await self._database.read(callback)
