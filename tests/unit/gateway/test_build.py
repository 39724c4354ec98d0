"""A gateway is built from its configuration."""

import asyncio
import time
from pathlib import Path

import pytest
from msgspec import structs

from foveate.config.settings import Settings, StoreSettings, TimeoutSettings
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.counting.offline_counters import is_counter_loaded
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.errors import StoreUnavailable
from foveate.gateway.app import GatewayOptions
from foveate.gateway.build import (
    admission_options,
    load_recent_vocabularies,
    open_gateway,
    upstream_timeouts,
    watch_other_gateways,
)
from foveate.gateway.config import ResolvedConfig
from foveate.store import open_store, store_name
from foveate.store.outbox import FileOutbox
from foveate.tokens.offline_counters import CounterOptions
from tests.support.scenarios.vocabulary_files import write_byte_vocabulary
from tests.support.stores.ledger_records import CALL, CHARGE


async def list_charge_ids(url: str) -> list[str]:
    async with await open_store(url) as store:
        return [item.call.id async for item in store.ledger.list_charges()]


@pytest.mark.slow
async def test_a_charge_left_in_the_outbox_is_recorded_in_its_own_store(tmp_path: Path) -> None:
    """Regression: the next process in the data folder recorded it in its own store, whatever that was."""
    own_url, other_url = (f"sqlite:///{tmp_path}/{name}.sqlite" for name in ("ours", "other"))
    outbox = FileOutbox(tmp_path / "spool" / store_name(own_url))
    await outbox.put(CHARGE)
    await outbox.close()
    for url in (other_url, own_url):
        config = ResolvedConfig(
            settings=Settings(store=StoreSettings(url=url)),
            gateway=GatewayOptions(),
            agents=lambda _: AgentOptions(),
            cost=SpendingOptions(caps=(), prices=PriceBook()),
        )
        async with open_gateway(lambda: config, environment={}, outbox_folder=tmp_path / "spool"):  # noqa: B023
            deadline = time.monotonic() + (0.3 if url == other_url else 10)
            while not await list_charge_ids(url) and time.monotonic() < deadline:  # noqa: ASYNC110 - another task does it
                await asyncio.sleep(0.05)

    assert await list_charge_ids(other_url) == []
    assert await list_charge_ids(own_url) == [CHARGE.call.id]


@pytest.mark.parametrize("total_seconds", [1, 3600, 86_400])
def test_a_reservation_outlives_the_longest_call(total_seconds: float) -> None:
    """Regression: it expired after twenty minutes, but a call can take an hour."""
    timeouts = TimeoutSettings(connect_seconds=10, total_seconds=total_seconds)

    # A call is resent if our breakpoints or one of two parameters are rejected. A summary has five minutes.
    assert admission_options(timeouts).lifetime_seconds > max(4 * (10 + total_seconds), 300)


@pytest.mark.parametrize("total_seconds", [1, 3600, 40_000, 1_000_000])
def test_a_call_never_outlives_its_reservation_even_if_timeouts_are_raised_later(
    total_seconds: float,
) -> None:
    lifetime_seconds = admission_options(TimeoutSettings()).lifetime_seconds

    timeouts = upstream_timeouts(
        TimeoutSettings(total_seconds=total_seconds), lifetime_seconds=lifetime_seconds
    )

    assert 4 * (timeouts.connect_seconds + timeouts.total_seconds) < lifetime_seconds
    assert timeouts.total_seconds == min(total_seconds, timeouts.total_seconds)
    assert total_seconds > 40_000 or timeouts.total_seconds == total_seconds


async def test_the_vocabularies_of_recent_models_are_loaded_at_startup(tmp_path: Path) -> None:
    """Regression: after each restart, the first request of a model family delayed all others."""
    counter_options = CounterOptions(vocabulary=write_byte_vocabulary(tmp_path))
    now = time.time()
    async with await open_store(f"sqlite:///{tmp_path}/store.sqlite") as store:
        for model, days, calls in (
            ("seldom", 1, 1),
            *((f"often-{at}", 1, 2) for at in range(4)),
            ("old", 30, 3),
        ):
            for number in range(calls):
                call = structs.replace(CALL, id=f"{model} {number}", model=model, at=now - days * 86400)
                await store.ledger.settle_all([(structs.replace(CHARGE, call=call), ())])
        await load_recent_vocabularies(store.totals, lambda _: AgentOptions(counter=counter_options), now)

    models = ("seldom", "old", *(f"often-{at}" for at in range(4)))
    loaded = {model for model in models if is_counter_loaded(counter_options, model)}
    assert loaded == {f"often-{at}" for at in range(4)}


async def test_a_gateway_starts_without_recent_vocabularies_if_the_store_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the gateway did not start."""
    store = await open_store(f"sqlite:///{tmp_path}/store.sqlite")
    await store.close()

    await load_recent_vocabularies(store.totals, lambda _: AgentOptions(), 0.0)

    assert "recent models could not be read" in caplog.text


async def test_a_gateway_that_cannot_find_others_stores_sessions_as_if_there_were_some(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Regression: it did not start, such as for a role that may not read the server's connections."""

    class SharedStore:
        may_read = False

        async def has_other_gateways(self) -> bool:
            if not self.may_read:
                raise StoreUnavailable("the store", "permission denied for view pg_stat_activity")
            return False

    store = SharedStore()
    async with watch_other_gateways(store, interval_seconds=0.01) as has_other_gateways:
        assert has_other_gateways()
        assert "permission denied" in caplog.text
        store.may_read = True
        while has_other_gateways():  # noqa: ASYNC110 - another task does it
            await asyncio.sleep(0.01)
