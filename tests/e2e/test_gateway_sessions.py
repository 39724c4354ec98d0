"""A long agent session through the gateway: cached, within its window, and without rejected requests."""

import asyncio
from pathlib import Path

import anthropic
import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from tests.support.scenarios.file_reader import run_file_reader
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

WINDOW_TOKENS = 30_000


@pytest.mark.parametrize("model", ["claude-opus-4-5", "claude-opus-5-5"])
def test_sixty_turns_of_an_agent_stay_within_the_window_and_are_read_from_the_cache(
    tmp_path: Path, model: str
) -> None:
    options = AgentOptions(
        compaction=True, window_tokens=WINDOW_TOKENS, compaction_options=CompactionOptions(extractive=True)
    )
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        usage = run_file_reader(client, sandbox, 60, model)

    assert gateway.failed_steps == []
    assert max(usage.inputs) <= WINDOW_TOKENS - 500
    assert usage.hit_ratio > 0.9
    main, compaction = read_total(tmp_path, "main"), read_total(tmp_path, "compaction")
    assert main.calls == 60
    # The first attempt reads the cache. The sandbox cannot summarize, so the next gets the messages as data.
    assert compaction.read > compaction.uncached
    assert main.savings.breakpoints is not None
    assert main.savings.breakpoints > main.dollars  # nearly everything is read at a tenth of the price
    assert main.savings.compaction
    assert main.savings.simulation_error == 0


def read_total(folder: Path, category: str) -> ChargeTotal:
    async def read() -> ChargeTotal:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            totals = await store.ledger.sum_charges([GroupBy.CATEGORY])
            return next(total for total in totals if total.group == (category,))

    return asyncio.run(read())
