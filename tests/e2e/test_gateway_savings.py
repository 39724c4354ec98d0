"""Savings in the ledger, compared with costs measured with and without the gateway."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from tests.support.processes.commands import spawn
from tests.support.scenarios.priced_workloads import (
    DOLLARS_PER_TOKEN,
    HEADERS,
    Body,
    Step,
    Texts,
    build_body,
    measure_input_cost,
    with_default_breakpoints,
)
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import running_sandbox

EXTRACTIVE_OPTIONS = CompactionOptions(extractive=True, tail_keep_tokens=6_000)


def long_session() -> Iterator[Step]:
    """An agent whose history outgrows 24,000 tokens."""
    text = Texts()
    system, tools = text(1500), [text(500)]
    messages = [text(300)]
    for _ in range(12):
        yield build_body(*messages, system=system, tools=tools), 20
        messages = [*messages, text(50), text(1200)]


def read_totals(folder: Path) -> Mapping[str, ChargeTotal]:
    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await store.ledger.sum_charges([GroupBy.CATEGORY])

    return {total.group[0]: total for total in asyncio.run(read())}


def long_session_with_pauses() -> Iterator[Step]:
    """The long session, with time for a compaction between two requests."""
    for step in long_session():
        time.sleep(0.05)
        yield step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt_cache", "has_breakpoints"), [(True, False), (True, True), (False, True), (False, False)]
)
def test_compaction_is_credited_with_exactly_what_it_saved(
    tmp_path: Path, prompt_cache: bool, has_breakpoints: bool
) -> None:
    change = with_default_breakpoints if has_breakpoints else _keep_request
    options = AgentOptions(
        compaction=True, prompt_cache=prompt_cache, window_tokens=24_000, compaction_options=EXTRACTIVE_OPTIONS
    )
    with running_sandbox() as sandbox:
        direct_cost, _ = measure_input_cost(sandbox.url, sandbox, long_session, change)
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        gateway_cost, _ = measure_input_cost(gateway.url, sandbox, long_session_with_pauses, change)
        assert gateway.failed_steps == []
        causes = {miss.verdict.cause.value for miss in gateway.cache_misses}
    total = read_totals(tmp_path)["main"]

    assert total.compared_calls == total.calls == 12
    assert total.savings.simulation_error == 0
    assert total.savings.total is not None
    assert float(total.savings.total) / DOLLARS_PER_TOKEN == pytest.approx(
        direct_cost - gateway_cost, abs=0.001 * direct_cost
    )
    assert total.savings.compaction
    assert bool(total.savings.breakpoints) == (prompt_cache and not has_breakpoints)
    assert causes == ({"compaction"} if prompt_cache or has_breakpoints else set())


def _keep_request(request: Body) -> Body:
    return request


@pytest.mark.process
def test_a_session_that_would_not_fit_without_compaction_is_credited_with_nothing(tmp_path: Path) -> None:
    """From the first request that exceeds the window of 200,000 tokens, all calls are counted separately."""
    text, url = Texts(), f"sqlite:///{tmp_path}/gateway.sqlite"
    options = AgentOptions(compaction=True, compaction_options=EXTRACTIVE_OPTIONS)
    messages = [text(30_000)]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        httpx.Client(base_url=gateway.url, headers=HEADERS, timeout=60) as client,
    ):
        for _ in range(5):
            response = client.post("/v1/messages", json={**build_body(*messages), "model": "claude-opus-4-5"})
            assert response.status_code == 200, response.text
            messages = [*messages, text(10), text(30_000)]
            time.sleep(0.05)
    main = read_totals(tmp_path)["main"]

    assert 0 < main.would_not_fit_calls == main.calls - main.compared_calls
    assert main.would_not_fit_dollars > 0
    outcome = spawn("cost", "--store", url, "--by", "agent", "--json")
    total = json.loads(outcome.out)["total"]
    assert total["would_not_fit_calls"] >= main.would_not_fit_calls
    report = spawn("cost", "--store", url, "--by", "agent")
    assert "would not have fit the context window without Foveate" in report.err
