"""Input costs of agents through the gateway, compared with the same calls made directly."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from tests.support.scenarios.priced_workloads import (
    DOLLARS_PER_TOKEN,
    EPHEMERAL,
    HEADERS,
    Body,
    Step,
    Texts,
    Workload,
    build_body,
    measure_input_cost,
    tool_definition,
    with_default_breakpoints,
)
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox


def oneshot() -> Iterator[Step]:
    text = Texts()
    for _ in range(60):
        yield build_body(text(1500)), 20


def oneshot_shared_system() -> Iterator[Step]:
    text = Texts()
    system = text(1500)
    for _ in range(40):
        yield build_body(text(400), system=system), 20


def rag() -> Iterator[Step]:
    text = Texts()
    system, library = text(1200), [text(300) for _ in range(20)]
    for number in range(40):
        documents = random.Random(number).sample(library, 4)
        yield build_body(system=system, content=[*documents, text(30)]), 15


def classification() -> Iterator[Step]:
    text = Texts()
    examples = [text(100) for _ in range(20)]
    for _ in range(40):
        yield build_body(*examples, text(80)), 5


def clock_in_system() -> Iterator[Step]:
    text = Texts()
    rules, tools, messages = text(1500), [text(300)], [text(100)]
    for number in range(40):
        yield build_body(*messages, system=f"It is {number} past noon. {rules}", tools=tools), 20
        messages += [text(20), text(60)]


def agent_loop() -> Iterator[Step]:
    yield from _loops(pause_every=0)


def agent_loop_pauses() -> Iterator[Step]:
    yield from _loops(pause_every=5)


def _loops(*, pause_every: int) -> Iterator[Step]:
    text = Texts()
    system, tools = text(1000), [text(500)]
    for _ in range(3):
        messages = [text(100)]
        for number in range(15):
            is_pause = pause_every and number % pause_every == pause_every - 1
            yield build_body(*messages, system=system, tools=tools), 1200 if is_pause else 15
            messages += [text(30), text(150)]


def subagent_fanout() -> Iterator[Step]:
    text = Texts()
    system, tools = text(1000), [text(1000)]
    for _ in range(3):
        agents = [[text(200)] for _ in range(6)]
        for _ in range(4):
            for messages in agents:
                yield build_body(*messages, system=system, tools=tools), 3
                messages += [text(30), text(150)]


def changing_tools() -> Iterator[Step]:
    text = Texts()
    system, tools = text(1000), [text(300) for _ in range(4)]
    for _ in range(3):
        messages = [text(100)]
        for number in range(15):
            if number % 3 == 0:
                tools = [text(300), *tools[:3]]
            yield build_body(*messages, system=system, tools=tools), 15
            messages += [text(30), text(150)]


def edited_messages() -> Iterator[Step]:
    """An agent whose last messages are edited and sent again."""
    text = Texts()
    system, tools, messages = text(1500), [text(500)], [text(100)]
    for number in range(10):
        yield build_body(*messages, system=system, tools=tools), 10
        for edit in range(2 if number > 2 else 0):
            yield build_body(*messages[:-1], f"{messages[-1]} {edit}", system=system, tools=tools), 5
        messages += [text(30), text(150)]


WORKLOADS: list[Workload] = [
    oneshot,
    oneshot_shared_system,
    rag,
    classification,
    clock_in_system,
    agent_loop,
    agent_loop_pauses,
    subagent_fanout,
    changing_tools,
    edited_messages,
]


def read_saved_tokens(folder: Path, category: str = "main") -> float:
    """Return the savings in the ledger, in uncached input tokens."""

    async def read() -> ChargeTotal:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            totals = await store.ledger.sum_charges([GroupBy.CATEGORY])
        return next(total for total in totals if total.group == (category,))

    total = asyncio.run(read())
    assert total.compared_calls == total.calls
    assert total.savings.simulation_error == 0
    assert total.savings.total is not None
    return float(total.savings.total) / DOLLARS_PER_TOKEN


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: str(workload.__name__))
def test_a_workload_never_costs_more_through_the_gateway_and_savings_match_measurements(
    workload: Workload, tmp_path: Path
) -> None:
    """The limit is the cheaper of no breakpoints and default breakpoints, plus five wasted cache writes.

    Breakpoints of the client are extended or replaced.
    """
    with running_sandbox() as sandbox:
        without_breakpoints, largest = measure_input_cost(sandbox.url, sandbox, workload)
    with running_sandbox() as sandbox:
        with_breakpoints, _ = measure_input_cost(sandbox.url, sandbox, workload, with_default_breakpoints)
    placed = measure_through_gateway(tmp_path / "placed", workload, without=without_breakpoints)
    with_client_breakpoints = measure_through_gateway(
        tmp_path / "kept", workload, with_default_breakpoints, without=with_breakpoints
    )
    replaced = measure_through_gateway(
        tmp_path / "replaced", workload, with_default_breakpoints, without=with_breakpoints, replaces=True
    )

    assert placed <= 1.02 * min(without_breakpoints, with_breakpoints) + 0.25 * largest
    assert with_client_breakpoints <= 1.02 * with_breakpoints
    assert replaced <= 1.02 * with_breakpoints + 0.25 * largest


def measure_through_gateway(
    folder: Path,
    workload: Workload,
    change: Callable[[Body], Body] = lambda request: request,
    *,
    without: float,
    replaces: bool = False,
) -> float:
    """Return the input cost through a gateway; check the savings in its ledger against `without`."""
    with (
        running_sandbox() as sandbox,
        running_gateway(
            sandbox.url, folder, clock=sandbox.clock, options=AgentOptions(replace_breakpoints=replaces)
        ) as gateway,
    ):
        cost, _ = measure_input_cost(gateway.url, sandbox, workload, change)
        assert gateway.failed_steps == []
        assert max(sent_request.body.count(b'"cache_control":{') for sent_request in sandbox.requests) <= 4
    assert read_saved_tokens(folder) == pytest.approx(without - cost, abs=0.001 * without)
    return cost


@pytest.mark.slow
def test_the_gateway_remembers_after_a_restart_that_an_agent_repeats_nothing(tmp_path: Path) -> None:
    with running_sandbox() as sandbox:
        with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
            measure_input_cost(gateway.url, sandbox, oneshot)
        with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
            cost, _ = measure_input_cost(gateway.url, sandbox, oneshot)
    with running_sandbox() as sandbox:
        direct_cost, _ = measure_input_cost(sandbox.url, sandbox, oneshot)

    assert cost == direct_cost


def test_replaced_breakpoints_are_removed_everywhere_a_client_can_set_them(tmp_path: Path) -> None:
    text, one_hour = Texts(), {**EPHEMERAL, "ttl": "1h"}
    tool = {**tool_definition("look", text(40)), "cache_control": one_hour}
    result = [{"type": "tool_result", "tool_use_id": "t1", "content": "seen", "cache_control": one_hour}]
    request = {
        **build_body(),
        "tools": [tool],
        "system": [{"type": "text", "text": text(1500), "cache_control": one_hour}],
        "messages": [
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {"cache_control": 1}}],
            },
            {"role": "user", "content": result},
        ],
        "cache_control": one_hour,
    }
    options = AgentOptions(replace_breakpoints=True)
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        response = httpx.post(f"{gateway.url}/v1/messages", json=request, headers=HEADERS, timeout=60)
        assert response.status_code == 200, response.text
        assert gateway.failed_steps == []
        sent_request = json.loads(sandbox.requests[0].body)

    assert sent_request["cache_control"] is None
    blocks = [sent_request["tools"][0], sent_request["system"][0], sent_request["messages"][2]["content"][0]]
    assert all(block["cache_control"] in (None, EPHEMERAL) for block in blocks)
    assert sent_request["messages"][1]["content"][0]["input"] == {"cache_control": 1}


def test_long_instructions_of_a_response_get_no_breakpoint_and_other_edits_remain(tmp_path: Path) -> None:
    """Regression: a breakpoint on the plain string could not be written, and all other edits were lost."""
    text = Texts()
    conversation = [{"role": "user", "content": text(2000)}]
    request = {"model": "gpt-5.6", "instructions": text(4000), "input": conversation}
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        httpx.Client(base_url=gateway.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client,
    ):
        for _ in range(3):
            response = client.post("/v1/responses", json=request)
            assert response.status_code == 200, response.text
            conversation += [{"role": "assistant", "content": text(20)}, {"role": "user", "content": text(300)}]
        assert gateway.failed_steps == []
        sent_request = json.loads(sandbox.requests[-1].body)

    assert sent_request["prompt_cache_key"]
    assert sent_request["instructions"] == request["instructions"]
