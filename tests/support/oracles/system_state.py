"""Inspect what a gateway leaves behind: ledger, reservations, files, sockets and memory."""

import asyncio
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.store import open_store

T = TypeVar("T")

_CALLS = "SELECT call_id, model, is_partial, picodollars IS NULL FROM ledger_v1 ORDER BY at, call_id"
_RESERVED = "SELECT count(*) FROM reservations_v1"
_RESERVED_DOLLARS = "SELECT coalesce(sum(reserved), 0) FROM accounts_v1"


@dataclass(frozen=True)
class LedgerCall:
    """A call in the ledger. `is_unknown`: its cost is unknown."""

    id: str
    model: str
    is_partial: bool
    is_unknown: bool


@dataclass(frozen=True)
class LedgerState:
    """All calls in a ledger, and the number of reservations."""

    calls: Sequence[LedgerCall]
    reservations: int

    @property
    def complete_calls(self) -> int:
        return sum(not call.is_partial for call in self.calls)

    @property
    def partial_calls(self) -> int:
        return sum(call.is_partial for call in self.calls)


def read_ledger_state(file: Path) -> LedgerState:
    """Read the ledger of a SQLite store."""
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=20)) as connection:
        connection.execute("BEGIN")  # a consistent snapshot
        calls = [LedgerCall(row[0], row[1], bool(row[2]), bool(row[3])) for row in connection.execute(_CALLS)]
        (reserved,) = connection.execute(_RESERVED).fetchone()
        (reserved_dollars,) = connection.execute(_RESERVED_DOLLARS).fetchone()
    assert bool(reserved) == bool(reserved_dollars)
    return LedgerState(calls, reserved)


def wait_until_settled(file: Path, calls: int, *, within_seconds: float = 30) -> LedgerState:
    """Wait for a number of calls and no reservations; return the last state in any case."""
    return wait_until(
        lambda: read_ledger_state(file),
        lambda state: len(state.calls) >= calls and not state.reservations,
        within_seconds,
    )


def wait_until(read: Callable[[], T], is_done: Callable[[T], bool], within_seconds: float = 30) -> T:
    """Call `read` until `is_done` accepts its result or the time is up; return the last result."""
    deadline = time.monotonic() + within_seconds
    while not is_done(value := read()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


def read_sums(url: str, *group_by: GroupBy) -> Sequence[ChargeTotal]:
    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(url) as store:
            return await store.ledger.sum_charges(group_by)

    return asyncio.run(read())


def wait_for_agent_sums(file: Path, agent: str, calls: int, *by: GroupBy) -> Sequence[ChargeTotal]:
    """Wait for a number of calls of an agent: charges are written shortly after the response."""

    def read() -> Sequence[ChargeTotal]:
        return [
            total for total in read_sums(f"sqlite:///{file}", GroupBy.AGENT, *by) if total.group[0] == agent
        ]

    return wait_until(read, lambda totals: sum(total.calls for total in totals) >= calls)


def files_containing(folder: Path, secret: str) -> list[Path]:
    """Find files that contain a secret, also in UTF-16 or reversed."""
    needles = {secret.encode(), secret.encode("utf-16-le"), secret[::-1].encode()}
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(needle in path.read_bytes() for needle in needles)
    ]


def open_sockets(process: int | str = "self") -> int:
    return _count_open_files(process)["socket"]


def _count_open_files(process: int | str) -> Counter[str]:
    kinds: Counter[str] = Counter()
    folder = f"/proc/{process}/fd"
    for name in os.listdir(folder):  # noqa: PTH208 - entries may disappear at any time
        try:
            kinds[os.readlink(f"{folder}/{name}").partition(":")[0]] += 1  # noqa: PTH115
        except FileNotFoundError:
            continue
    return kinds


def resident_bytes(process: int | str = "self") -> int:
    pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
