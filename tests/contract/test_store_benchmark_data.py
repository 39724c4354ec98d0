"""The store that pages are benchmarked on is one that Foveate could have written."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.web_data import fill_store
from foveate.session.rollups import TotalsGroup
from foveate.store import open_store
from tests.support.oracles.store_totals import check_totals

NOW = 1_794_744_000.0


@pytest.mark.slow
def test_a_filled_store_has_the_requested_size_and_correct_totals(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/filled.sqlite"

    fill_store(url, sessions=30, rows=4_000, now=NOW)

    async def check_contents() -> None:
        async with await open_store(url) as store:
            await check_totals(store)
            assert await store.totals.count_sessions() == (await store.sizes()).sessions == 30
            ((_, totals),) = await store.totals.sum_totals()
            assert 4_000 == totals.calls > totals.requests > 3_500
            assert 0 < totals.cache_misses < totals.requests
            assert min(totals.failed, totals.unpriced) > 0
            assert len(await store.totals.sum_totals([TotalsGroup.DAY], since=NOW - 31 * 86_400)) > 5
            (compaction, *_) = await store.compactions.list_compactions()
            traces = await store.traces.list_traces(limit=9_999, session_id=compaction.session_id)
            assert any(traced.trace.compaction_id == compaction.id for traced in traces)
            balances = await store.ledger.get_balances(["total"], now=NOW)
            assert balances["total"].spent == totals.dollars

    asyncio.run(check_contents())
