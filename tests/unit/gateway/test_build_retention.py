"""Old data is deleted while the gateway runs, and failures are retried."""

import asyncio
from dataclasses import dataclass, field

from foveate.errors import StoreUnavailable
from foveate.gateway.build import RETENTION_DELAY_SECONDS, RETENTION_INTERVAL_SECONDS, run_retention
from foveate.store import PruneResult


@dataclass
class Store:
    """A store that fails the first time."""

    calls: list[tuple[float, float]] = field(default_factory=list)

    async def prune(self, *, keep_days: float, now: float) -> PruneResult:
        self.calls.append((keep_days, now))
        if len(self.calls) == 1:
            raise StoreUnavailable("db", "is away")
        return PruneResult(sessions=1)


async def test_old_data_is_deleted_at_intervals_even_after_a_failure() -> None:
    store, waits = Store(), list[float]()
    has_waited = asyncio.Event()
    days = iter((30.0, 7.0, 7.0))

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            has_waited.set()
            await asyncio.Event().wait()

    async with run_retention(store, lambda: next(days), clock=lambda: 1000.0, wait=wait):
        await has_waited.wait()

    assert store.calls == [(30.0, 1000.0), (7.0, 1000.0), (7.0, 1000.0)]
    assert waits == [RETENTION_DELAY_SECONDS, *[RETENTION_INTERVAL_SECONDS] * 3]
