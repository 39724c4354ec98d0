"""A long agent session through the gateway: cached, within its window, and without rejected requests."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

WINDOW_TOKENS = 30_000
TOOLS: Any = [
    {
        "name": name,
        "description": f"Does {name} with a file. " * 40,
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for name in ("read", "write", "search", "run")
]
SYSTEM = "You are a careful engineer. Never push to the main branch. " * 60


@dataclass
class UsageTotal:
    """Total usage reported for a session."""

    inputs: list[int] = field(default_factory=list)
    read: int = 0

    def add(self, usage: Any) -> None:
        self.inputs.append(
            usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
        )
        self.read += usage.cache_read_input_tokens

    @property
    def hit_ratio(self) -> float:
        return self.read / sum(self.inputs)


def turns(client: anthropic.Anthropic, sandbox: Any, count: int, model: str) -> UsageTotal:
    """An agent that reads one file after the other, and resends all of it each time."""
    total = UsageTotal()
    messages: list[Any] = [{"role": "user", "content": "Find the slow parser. Never push to the main branch."}]
    for number in range(count):
        reply = client.messages.create(
            model=model, max_tokens=500, system=SYSTEM, tools=TOOLS, messages=messages
        )
        total.add(reply.usage)
        sandbox.clock.now += 20
        call = {
            "type": "tool_use",
            "id": f"toolu_{number}",
            "name": "read",
            "input": {"path": f"src/part_{number}.py"},
        }
        listing = "\n".join(f"def parse_{number}_{line}(text): return text.split({line})" for line in range(26))
        messages += [
            {"role": "assistant", "content": [{"type": "text", "text": f"I look into part {number}."}, call]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": listing}],
            },
        ]
    return total


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
        total = turns(client, sandbox, 60, model)

    assert gateway.failed_steps == []
    assert max(total.inputs) <= WINDOW_TOKENS - 500
    assert total.hit_ratio > 0.9
    report, summary_report = read_report(tmp_path, "main"), read_report(tmp_path, "compaction")
    assert report.calls == 60
    # The first try reads what is cached. Since the sandbox cannot sum up, the next is shown it as data.
    assert summary_report.read > summary_report.uncached
    assert report.savings.breakpoints is not None
    assert report.savings.breakpoints > report.dollars  # nearly all is read at a tenth of the price
    assert report.savings.compaction
    assert report.savings.simulation_error == 0


def read_report(folder: Path, category: str) -> ChargeTotal:
    async def read() -> ChargeTotal:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            found = await store.ledger.sum_charges([GroupBy.CATEGORY])
            return next(one for one in found if one.group == (category,))

    return asyncio.run(read())
