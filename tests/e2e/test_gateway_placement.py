"""Input costs of agents through the gateway, compared with the same calls made directly."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

Body = dict[str, Any]
# A request, and how many seconds pass until the next one.
Step = tuple[Body, float]
Workload = Callable[[], Iterator[Step]]

MODEL = "claude-sonnet-4-6"
PRICES = {"input_tokens": 1.0, "cache_read_input_tokens": 0.1, "5m": 1.25, "1h": 2.0}
DOLLARS_PER_TOKEN = 3e-6
CACHED = {"type": "ephemeral"}
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}


class Texts:
    """Different texts of about the requested number of tokens."""

    def __init__(self) -> None:
        self._random = random.Random(7)

    def __call__(self, tokens: int) -> str:
        return " ".join(self._random.choice(_WORDS) for _ in range(tokens))


_WORDS = [
    f"{a}{b}" for a in ("red", "blue", "green", "long", "short") for b in ("bird", "house", "stone", "rain")
]


def body(*messages: str, system: str = "", tools: Sequence[str] = (), content: Sequence[str] = ()) -> Body:
    """A request whose messages come from the user and the assistant in turn; the last may have blocks."""
    roles = ("user", "assistant")
    conversation: list[Any] = [{"role": roles[at % 2], "content": text} for at, text in enumerate(messages)]
    if content:
        conversation.append({"role": "user", "content": [{"type": "text", "text": text} for text in content]})
    return {
        "model": MODEL,
        "max_tokens": 8,
        "messages": conversation,
        **({"system": [{"type": "text", "text": system}]} if system else {}),
        **({"tools": [_tool(f"tool_{at}", text) for at, text in enumerate(tools)]} if tools else {}),
    }


def _tool(name: str, text: str) -> Body:
    return {"name": name, "description": text, "input_schema": {"type": "object", "properties": {}}}


def oneshot() -> Iterator[Step]:
    text = Texts()
    for _ in range(60):
        yield body(text(1500)), 20


def oneshot_shared_system() -> Iterator[Step]:
    text = Texts()
    system = text(1500)
    for _ in range(40):
        yield body(text(400), system=system), 20


def rag() -> Iterator[Step]:
    text = Texts()
    system, library = text(1200), [text(300) for _ in range(20)]
    for number in range(40):
        documents = random.Random(number).sample(library, 4)
        yield body(system=system, content=[*documents, text(30)]), 15


def classification() -> Iterator[Step]:
    text = Texts()
    examples = [text(100) for _ in range(20)]
    for _ in range(40):
        yield body(*examples, text(80)), 5


def clock_in_system() -> Iterator[Step]:
    text = Texts()
    rules, tools, messages = text(1500), [text(300)], [text(100)]
    for number in range(40):
        yield body(*messages, system=f"It is {number} past noon. {rules}", tools=tools), 20
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
            yield body(*messages, system=system, tools=tools), 1200 if is_pause else 15
            messages += [text(30), text(150)]


def subagent_fanout() -> Iterator[Step]:
    text = Texts()
    system, tools = text(1000), [text(1000)]
    for _ in range(3):
        agents = [[text(200)] for _ in range(6)]
        for _ in range(4):
            for messages in agents:
                yield body(*messages, system=system, tools=tools), 3
                messages += [text(30), text(150)]


def changing_tools() -> Iterator[Step]:
    text = Texts()
    system, tools = text(1000), [text(300) for _ in range(4)]
    for _ in range(3):
        messages = [text(100)]
        for number in range(15):
            if number % 3 == 0:
                tools = [text(300), *tools[:3]]
            yield body(*messages, system=system, tools=tools), 15
            messages += [text(30), text(150)]


def edited_messages() -> Iterator[Step]:
    """An agent whose last messages are edited and sent again."""
    text = Texts()
    system, tools, messages = text(1500), [text(500)], [text(100)]
    for number in range(10):
        yield body(*messages, system=system, tools=tools), 10
        for edit in range(2 if number > 2 else 0):
            yield body(*messages[:-1], f"{messages[-1]} {edit}", system=system, tools=tools), 5
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


def with_usual_breakpoints(request: Body) -> Body:
    """The same with a breakpoint on the system prompt and one on the last message."""
    messages, last = request["messages"][:-1], request["messages"][-1]
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    blocks[-1] = {**blocks[-1], "cache_control": CACHED}
    system = [{**block, "cache_control": CACHED} for block in request.get("system", [])]
    changed = {**request, "messages": [*messages, {**last, "content": blocks}]}
    return {**changed, "system": system} if system else changed


def input_cost(
    url: str,
    sandbox: RunningSandbox,
    workload: Workload,
    change: Callable[[Body], Body] = lambda conversation: conversation,
) -> tuple[float, float]:
    """The input cost of a workload, in uncached tokens, and that of its five largest prompts."""
    cost, sizes = 0.0, []
    with httpx.Client(base_url=url, headers=HEADERS) as client:

        def send(request: Body) -> dict[str, Any]:
            found = client.post("/v1/messages", json=change(request))
            assert found.status_code == 200, found.text
            usage: dict[str, Any] = found.json()["usage"]
            return usage

        for request, seconds in workload():
            usage = send(request)
            written = usage["cache_creation"]
            tokens = {
                "input_tokens": usage["input_tokens"],
                "cache_read_input_tokens": usage["cache_read_input_tokens"],
                "5m": written["ephemeral_5m_input_tokens"],
                "1h": written["ephemeral_1h_input_tokens"],
            }
            cost += sum(PRICES[name] * count for name, count in tokens.items())
            sizes.append(sum(tokens.values()))
            sandbox.clock.now += seconds
    return cost, sum(sorted(sizes)[-5:])


def saved_tokens(folder: Path, category: str = "main") -> float:
    """Return the savings in the ledger, in uncached input tokens."""

    async def read() -> ChargeTotal:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            sums = await store.ledger.sum_charges([GroupBy.CATEGORY])
        return next(found for found in sums if found.group == (category,))

    found = asyncio.run(read())
    assert found.compared_calls == found.calls
    assert found.savings.simulation_error == 0
    assert found.savings.total is not None
    return float(found.savings.total) / DOLLARS_PER_TOKEN


@pytest.mark.slow
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: str(workload.__name__))
def test_a_workload_never_costs_more_through_the_gateway_and_savings_match_measurements(
    workload: Workload, tmp_path: Path
) -> None:
    """The better of no breakpoints and the usual ones, plus what five wasted writes cost; the client's are kept
    and added to, or replaced.
    """
    with running_sandbox() as sandbox:
        none, largest = input_cost(sandbox.url, sandbox, workload)
    with running_sandbox() as sandbox:
        usual, _ = input_cost(sandbox.url, sandbox, workload, with_usual_breakpoints)
    placed = through_gateway(tmp_path / "placed", workload, without=none)
    with_client_breakpoints = through_gateway(
        tmp_path / "kept", workload, with_usual_breakpoints, without=usual
    )
    replaced = through_gateway(
        tmp_path / "replaced", workload, with_usual_breakpoints, without=usual, replaces=True
    )

    assert placed <= 1.02 * min(none, usual) + 0.25 * largest
    assert with_client_breakpoints <= 1.02 * usual
    assert replaced <= 1.02 * usual + 0.25 * largest


def through_gateway(
    folder: Path,
    workload: Workload,
    change: Callable[[Body], Body] = lambda conversation: conversation,
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
        cost, _ = input_cost(gateway.url, sandbox, workload, change)
        assert gateway.failed_steps == []
        assert max(ask.body.count(b'"cache_control":{') for ask in sandbox.requests) <= 4
    assert saved_tokens(folder) == pytest.approx(without - cost, abs=0.001 * without)
    return cost


@pytest.mark.slow
def test_the_gateway_remembers_after_a_restart_that_an_agent_repeats_nothing(tmp_path: Path) -> None:
    with running_sandbox() as sandbox:
        with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
            input_cost(gateway.url, sandbox, oneshot)
        with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
            again, _ = input_cost(gateway.url, sandbox, oneshot)
    with running_sandbox() as sandbox:
        none, _ = input_cost(sandbox.url, sandbox, oneshot)

    assert again == none


def test_replaced_breakpoints_are_removed_everywhere_a_client_can_set_them(tmp_path: Path) -> None:
    text, long = Texts(), {**CACHED, "ttl": "1h"}
    tool = {**_tool("look", text(40)), "cache_control": long}
    result = [{"type": "tool_result", "tool_use_id": "t1", "content": "seen", "cache_control": long}]
    request = {
        **body(),
        "tools": [tool],
        "system": [{"type": "text", "text": text(1500), "cache_control": long}],
        "messages": [
            {"role": "user", "content": "look"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {"cache_control": 1}}],
            },
            {"role": "user", "content": result},
        ],
        "cache_control": long,
    }
    options = AgentOptions(replace_breakpoints=True)
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        found = httpx.post(f"{gateway.url}/v1/messages", json=request, headers=HEADERS)
        assert found.status_code == 200, found.text
        assert gateway.failed_steps == []
        sent = json.loads(sandbox.requests[0].body)

    assert sent["cache_control"] is None
    blocks = [sent["tools"][0], sent["system"][0], sent["messages"][2]["content"][0]]
    assert all(block["cache_control"] in (None, CACHED) for block in blocks)
    assert sent["messages"][1]["content"][0]["input"] == {"cache_control": 1}


def test_long_instructions_of_a_response_get_no_breakpoint_and_other_edits_remain(tmp_path: Path) -> None:
    """Regression: a breakpoint on the plain string could not be written, and all other edits were lost."""
    text = Texts()
    conversation = [{"role": "user", "content": text(2000)}]
    request = {"model": "gpt-5.6", "instructions": text(4000), "input": conversation}
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        httpx.Client(base_url=gateway.url, headers={"authorization": f"Bearer {KEY}"}) as client,
    ):
        for _ in range(3):
            found = client.post("/v1/responses", json=request)
            assert found.status_code == 200, found.text
            conversation += [{"role": "assistant", "content": text(20)}, {"role": "user", "content": text(300)}]
        assert gateway.failed_steps == []
        sent = json.loads(sandbox.requests[-1].body)

    assert sent["prompt_cache_key"]
    assert sent["instructions"] == request["instructions"]
