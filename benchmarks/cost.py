"""Calls a second for which dollars are reserved under caps and then settled, on both databases.

Each call is on five accounts, two of which have a cap. Each process has many calls in flight, like a gateway,
and 64 sessions of 8 agents.
"""

import asyncio
import os
import statistics
import tempfile
import time
import uuid
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks.databases import new_database, new_file, run_together, running_postgres
from benchmarks.harness import Cell, Report
from foveate.cost.admission import Admission
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import Call, Category, Charge
from foveate.model import CacheUsage, Savings, Usage
from foveate.store import open_store

PROCESSES = (1, 4)
_SECONDS = 4.0
_CONCURRENCY = 128
_AGENTS, _SESSIONS = 8, 64

_CAPS = (
    Cap(scope=CapScope.DAY, dollars=Decimal(1_000_000)),
    Cap(scope=CapScope.AGENT, dollars=Decimal(1_000_000)),
)
_CEILING = Decimal("0.985")
_CHARGE_DOLLARS = Decimal("0.061234567891")
_USAGE = Usage(
    cache=CacheUsage(uncached=12, read=34_000, written_5m=560),
    output_tokens=900,
    reasoning_tokens=100,
    raw=b'{"input_tokens":12,"cache_read_input_tokens":34000,"cache_creation_input_tokens":560,"output_tokens":900}',
)
_SAVINGS = Savings(breakpoints=Decimal("0.153"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTiming:
    """Measurements of one process."""

    started_at: float
    ended_at: float
    seconds: list[float]
    cpu_seconds: float


FIGURES = (
    "<database>_<processes>_processes_per_second",
    "load_before",
)


def run(_data: Path | None) -> Report:
    """Reserve and settle as fast as possible."""
    load = os.getloadavg()[0]
    rows: list[dict[str, Cell]] = []
    with tempfile.TemporaryDirectory() as folder, running_postgres() as server:
        for processes in PROCESSES:
            rows.append(_row("sqlite", new_file(folder), processes))
            if server is not None:
                rows.append(_row("postgresql", new_database(server), processes))
    figures = {
        f"{row['database']}_{row['processes']}_processes_per_second": float(row["calls_per_second"] or 0)
        for row in rows
    }
    return Report(figures={**figures, "load_before": round(load, 2)}, rows=rows)


def _row(database: str, url: str, processes: int) -> dict[str, Cell]:
    timings = _measure(url, processes)
    seconds = sorted(second for timing in timings for second in timing.seconds)
    elapsed = max(timing.ended_at for timing in timings) - min(timing.started_at for timing in timings)
    asyncio.run(_check(url, len(seconds)))
    return {
        "database": database,
        "processes": processes,
        "calls_per_second": round(len(seconds) / elapsed, 1),
        "calls": len(seconds),
        "at_once": _CONCURRENCY * processes,
        "median_ms": round(statistics.median(seconds) * 1e3, 2),
        "p99_ms": round(seconds[int(len(seconds) * 0.99)] * 1e3, 2),
        "cpu_us_a_call": round(sum(timing.cpu_seconds for timing in timings) / len(seconds) * 1e6, 1),
    }


async def _check(url: str, calls: int) -> None:
    """Check that all work was done: every charge is stored, and no reservation is left."""
    async with await open_store(url) as store:
        (total,) = await store.ledger.sum_charges([])
        (balance,) = (await store.ledger.get_balances(["total"], now=0.0)).values()
    if not (total.dollars == balance.spent == calls * _CHARGE_DOLLARS and not balance.reserved):
        raise AssertionError(f"{calls} calls were made, and {total.calls} are in the ledger: {balance}")


def _measure(url: str, processes: int) -> list[LedgerTiming]:
    """Return the measurements of each process; all start together."""
    return run_together(_time_calls, url, processes)


async def _time_calls(_: int, url: str, barrier: Barrier) -> LedgerTiming:
    seconds: list[float] = []
    async with await open_store(url, wait_seconds=60.0) as store:
        admission = Admission(store.ledger, clock=time.time)
        await asyncio.to_thread(barrier.wait)
        started_at, cpu = time.time(), time.process_time()
        deadline = time.perf_counter() + _SECONDS

        async def make_calls(number: int) -> None:
            while (started := time.perf_counter()) < deadline:
                call = _call(number)
                await admission.admit(call, _CEILING, _CAPS)
                await admission.settle(
                    Charge(
                        call=call,
                        usage=_USAGE,
                        dollars=_CHARGE_DOLLARS,
                        estimated_input_tokens=35_000,
                        estimated_dollars=_CEILING,
                        savings=_SAVINGS,
                    )
                )
                seconds.append(time.perf_counter() - started)

        await asyncio.gather(*(make_calls(number) for number in range(_CONCURRENCY)))
        ended_at, cpu = time.time(), time.process_time() - cpu
        await admission.close()
    return LedgerTiming(started_at=started_at, ended_at=ended_at, seconds=seconds, cpu_seconds=cpu)


def _call(number: int) -> Call:
    return Call(
        id=uuid.uuid4().hex,
        agent=f"agent-{number % _AGENTS}",
        session_id=f"session-{number % _SESSIONS}",
        provider="anthropic",
        model="claude-opus-5-5",
        category=Category.MAIN,
        at=time.time(),
    )
