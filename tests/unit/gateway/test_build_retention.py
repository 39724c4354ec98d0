"""Old data is deleted while the gateway runs, and failures are retried."""

import asyncio
from dataclasses import dataclass, field

from foveate.config.settings import KeepRequestsSettings, Settings, StoreSettings
from foveate.errors import StoreUnavailable
from foveate.gateway.build import RETENTION_DELAY_SECONDS, RETENTION_INTERVAL_SECONDS, run_retention
from foveate.store import PruneResult

DAY = 86_400.0


@dataclass
class Archive:
    calls: list[tuple[float, int]] = field(default_factory=list)

    async def trim(self, *, before: float, max_bytes: int) -> int:
        self.calls.append((before, max_bytes))
        return 1


@dataclass
class Store:
    """A store that fails the first time."""

    calls: list[tuple[float, float]] = field(default_factory=list)
    request_archive: Archive = field(default_factory=Archive)

    async def prune(self, *, keep_days: float, now: float) -> PruneResult:
        self.calls.append((keep_days, now))
        if len(self.calls) == 1:
            raise StoreUnavailable("db", "is away")
        return PruneResult(sessions=1)


async def test_old_data_is_deleted_at_intervals_even_after_a_failure() -> None:
    store, waits = Store(), list[float]()
    has_waited = asyncio.Event()
    settings = Settings(
        store=StoreSettings(keep_days=30), keep_requests=KeepRequestsSettings(days=2, most_bytes=9)
    )
    shorter = settings.model_copy(update={"store": StoreSettings(keep_days=7)})

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 4:
            has_waited.set()
            await asyncio.Event().wait()

    async with run_retention(
        store, lambda: shorter if store.calls else settings, clock=lambda: 9 * DAY, wait=wait
    ):
        await has_waited.wait()

    assert store.calls == [(30.0, 9 * DAY), (7.0, 9 * DAY), (7.0, 9 * DAY)]
    # Regression: archived requests stayed until the next request came.
    assert store.request_archive.calls == [(7 * DAY, 9)] * 2
    assert waits == [RETENTION_DELAY_SECONDS, *[RETENTION_INTERVAL_SECONDS] * 3]
