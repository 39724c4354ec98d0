"""What the tables of a room need of a database: transactions, each a plain function of `Rows`.

Statements are written once, with `?` where a value goes, in the SQL that SQLite and PostgreSQL share.

Reads of pages, which leave room for those of requests: nobody's request waits for those who look on.
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
"""Those of `schema.py`, for whoever must not wait for the libraries that it is written with."""

T = TypeVar("T")
TransactionCallback = Callable[["Transaction"], T]

# So few sizes that the drivers remember the statements of all of them.
_IN_LIST_SIZES = (1, 4, 16, 64, 256, 1024)
_INSERT_SIZES = (1, 2, 3, 4, 5, 8, 16, 32, 64)  # five are the accounts of a call
# The largest of them for so many rows, up to as many as the largest has.
_INSERT_SIZE_BY_ROWS_LEFT = tuple(
    max(size for size in (0, *_INSERT_SIZES) if size <= left) for left in range(_INSERT_SIZES[-1] + 1)
)


class Transaction(Protocol):
    """The inside of one transaction."""

    def fetch_all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Every row that a statement gives."""

    def execute(self, statement: str, values: Sequence[Any] = ()) -> int:
        """How many rows a statement has changed."""

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """How many rows a statement has changed, run with each of `rows`."""


class Database(Protocol):
    """Runs transactions. One that raises leaves nothing behind, and what it raised comes to its caller.

    Raises:
        StoreUnavailable: the database could not be used; nothing was done, or it says that this is not known.
    """

    @property
    def location(self) -> str:
        """Where it is, in words that may be shown: without a password."""

    async def read(self, callback: TransactionCallback[T]) -> T:
        """What `work` finds."""

    async def write(self, callback: TransactionCallback[T], *, is_idempotent: bool) -> T:
        """What `work` gives, once what it wrote is kept.

        `again` says that doing it twice is doing it once, so that it is repeated where the connection was lost
        before the database said that it is kept.
        """

    async def size_bytes(self) -> int:
        """How much room it takes, with what was deleted and not given back."""

    async def vacuum(self) -> None:
        """Give back the room of what was deleted."""

    async def close(self) -> None:
        """Wait for what is under way, and let go of the database."""


class ProcessGuard:
    """Tells whether this is the process that opened a database: a fork has none of its threads."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._process_id = os.getpid()

    def check(self) -> None:
        """See that this is no fork.

        Raises:
            StoreUnavailable: it is one.
        """
        if os.getpid() != self._process_id:
            raise StoreUnavailable(self._location, "was opened by another process: a fork opens its own")


def build_where_clause(conditions: Mapping[str, Sequence[Any] | None]) -> tuple[str, list[Any]]:
    """What a statement says of the conditions that have values, and these; nothing of those with None."""
    active = {condition: values for condition, values in conditions.items() if values is not None}
    return f"WHERE {' AND '.join(active)}" if active else "", [
        value for values in active.values() for value in values
    ]


def group_placeholders(keys: Sequence[T]) -> Iterator[tuple[str, Sequence[T]]]:
    """The keys in groups, each with its `?`s.

    A group is filled up with its last key to one of few sizes.
    """
    for first in range(0, len(keys), _IN_LIST_SIZES[-1]):
        group = keys[first : first + _IN_LIST_SIZES[-1]]
        size = next(size for size in _IN_LIST_SIZES if size >= len(group))
        yield ",".join("?" * size), (*group, *(group[-1],) * (size - len(group)))


def batch_inserts(statement: str, values: Sequence[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    """A statement that inserts rows, for groups of them in their order: with its `?`s where it says `{}`."""
    first, end = 0, len(values)
    while first < end:
        size = _INSERT_SIZE_BY_ROWS_LEFT[min(end - first, _INSERT_SIZES[-1])]
        group = values[first : first + size]
        yield _format_insert(statement, size, len(group[0])), list(chain.from_iterable(group))
        first += size


@lru_cache(maxsize=256)
def _format_insert(statement: str, rows: int, columns: int) -> str:
    return statement.format(", ".join([f"({', '.join('?' * columns)})"] * rows))


def check_storable_names(**names: str | None) -> None:
    """See that both databases can hold these names.

    Raises:
        BadOption: one has a NUL or half a character in it.
    """
    for label, name in names.items():
        if name is not None and not name.isprintable() and ("\0" in name or not _is_encodable(name)):
            raise BadOption(f"{label}: {name!r} cannot be kept, since it has a NUL or half a character in it")


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


MAX_CONCURRENT_READS = 2
"""So many reads of pages are under way at once, of those that a database takes."""


class Reader(Protocol):
    """Reads a database, as all of them do."""

    async def read(self, callback: TransactionCallback[T]) -> T:
        """What `work` finds."""


class LowPriorityReader:
    """The same database for those who can wait: few of their reads are under way, the others come in turn."""

    def __init__(self, database: Reader, max_concurrent: int = MAX_CONCURRENT_READS) -> None:
        self._database = database
        self._max_concurrent = max_concurrent
        # A store may be used from any event loop, and nobody can wait for another loop's.
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def read(self, callback: TransactionCallback[T]) -> T:
        """What `work` finds, once it is its turn."""
        semaphore = self._semaphores.setdefault(
            asyncio.get_running_loop(), asyncio.Semaphore(self._max_concurrent)
        )
        async with semaphore:
            return await self._database.read(callback)
