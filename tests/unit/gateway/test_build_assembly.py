"""What a gateway takes from the configuration."""

import asyncio
import time
from pathlib import Path

import pytest

from foveate.config.settings import Settings, StoreSettings, TimeoutSettings
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.gateway.app import GatewayOptions
from foveate.gateway.build import admission_options, open_gateway, upstream_timeouts
from foveate.gateway.config import ResolvedConfig
from foveate.store import open_store, store_name
from foveate.store.outbox import FileOutbox
from tests.support.stores.ledger_records import CHARGE


async def booked(url: str) -> list[str]:
    async with await open_store(url) as store:
        return [one.call.id async for one in store.ledger.list_charges()]


@pytest.mark.slow
async def test_a_bill_that_was_left_is_booked_in_the_store_that_it_is_for(tmp_path: Path) -> None:
    """Defect: whoever ran next in the data folder booked it, in whichever store it had."""
    ours, other = (f"sqlite:///{tmp_path}/{name}.sqlite" for name in ("ours", "other"))
    left = FileOutbox(tmp_path / "spool" / store_name(ours))
    await left.put(CHARGE)
    await left.close()
    for url in (other, ours):
        chosen = ResolvedConfig(
            settings=Settings(store=StoreSettings(url=url)),
            gateway=GatewayOptions(),
            agents=lambda _: AgentOptions(),
            cost=SpendingOptions(caps=(), prices=PriceBook()),
        )
        async with open_gateway(lambda: chosen, environment={}, outbox_folder=tmp_path / "spool"):  # noqa: B023
            deadline = time.monotonic() + (0.3 if url == other else 10)
            while not await booked(url) and time.monotonic() < deadline:  # noqa: ASYNC110 - another task does it
                await asyncio.sleep(0.05)

    assert await booked(other) == []
    assert await booked(ours) == [CHARGE.call.id]


@pytest.mark.parametrize("total_seconds", [1, 3600, 86_400])
def test_something_stays_reserved_for_a_call_for_longer_than_it_may_take(total_seconds: float) -> None:
    """Defect: it ran out after twenty minutes, and a call may take an hour."""
    waits = TimeoutSettings(connect_seconds=10, total_seconds=total_seconds)

    # A call is sent again if our breakpoints or one of two parameters are refused. A summary has five minutes.
    assert admission_options(waits).lifetime_seconds > max(4 * (10 + total_seconds), 300)


@pytest.mark.parametrize("total_seconds", [1, 3600, 40_000, 1_000_000])
def test_a_call_never_outlasts_what_is_reserved_for_it_also_where_its_time_is_raised_later(
    total_seconds: float,
) -> None:
    lifetime_seconds = admission_options(TimeoutSettings()).lifetime_seconds

    waits = upstream_timeouts(TimeoutSettings(total_seconds=total_seconds), lifetime_seconds=lifetime_seconds)

    assert 4 * (waits.connect_seconds + waits.total_seconds) < lifetime_seconds
    assert waits.total_seconds == min(total_seconds, waits.total_seconds)
    assert total_seconds > 40_000 or waits.total_seconds == total_seconds
