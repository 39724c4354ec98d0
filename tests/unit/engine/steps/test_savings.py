"""The simulation of requests with and without Foveate, as the engine runs it."""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx

from foveate.context.workspace import Workspace
from foveate.cost.ledger import Charge
from foveate.engine.options import AgentOptions, SectionOptions
from foveate.model import ComparisonOutcome
from foveate.store import open_store
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
TEXT = "one small red bird sings in the tall green tree "


def send(
    gateway: RunningGateway,
    sandbox: RunningSandbox,
    turns: int,
    *,
    last: str = "",
    key: str = KEY,
    **fields: Any,
) -> dict[str, Any]:
    """Send a conversation with this many earlier turns, and let 20 seconds pass."""
    messages = [
        {"role": "assistant" if at % 2 else "user", "content": f"{at} {TEXT * 60}"}
        for at in range(2 * turns + 1)
    ]
    messages[-1]["content"] += last
    body = {"model": "claude-sonnet-4-6", "max_tokens": 9, "system": TEXT * 300, "messages": messages, **fields}
    response = httpx.post(f"{gateway.url}/v1/messages", json=body, headers={**HEADERS, "x-api-key": key})
    assert response.status_code == 200, response.text
    sandbox.clock.now += 20
    payload: dict[str, Any] = response.json()
    return payload


async def read_charges(folder: Path) -> Sequence[Charge]:
    async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
        return [charge async for charge in store.ledger.list_charges()]


async def test_after_a_restart_the_first_request_of_a_session_is_not_compared(tmp_path: Path) -> None:
    with running_sandbox() as sandbox:
        for first in (0, 2):
            with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
                for turns in range(first, first + 2):
                    send(gateway, sandbox, turns)
    all_savings = [charge.savings for charge in await read_charges(tmp_path)]

    simulated, unknown = ComparisonOutcome.SIMULATED, ComparisonOutcome.UNKNOWN
    assert [savings.comparison for savings in all_savings] == [simulated, simulated, unknown, simulated]
    assert [savings.simulation_error for savings in all_savings if savings.without is not None] == [0, 0, 0]


async def test_requests_after_one_served_by_another_gateway_are_not_compared(tmp_path: Path) -> None:
    with running_sandbox() as sandbox:
        gateways = [running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) for _ in range(2)]
        with gateways[0] as first, gateways[1] as other:
            for turns, gateway in enumerate((first, first, other, first, first, other, other)):
                send(gateway, sandbox, turns)
                await asyncio.sleep(
                    0.5
                )  # turns are written after the response, and the other gateway reads them
    all_savings = [charge.savings for charge in await read_charges(tmp_path)]

    simulated, unknown = ComparisonOutcome.SIMULATED, ComparisonOutcome.UNKNOWN
    expected = [simulated, simulated, unknown, unknown, simulated, unknown, simulated]
    assert [savings.comparison for savings in all_savings] == expected
    assert {savings.simulation_error for savings in all_savings if savings.without is not None} == {0}


async def test_a_fork_of_a_session_served_by_another_process_is_not_compared(tmp_path: Path) -> None:
    with running_sandbox() as sandbox:
        for turns, last in ((1, "as before"), (1, "another")):
            with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
                send(gateway, sandbox, turns, last=last)
    comparisons = [charge.savings.comparison for charge in await read_charges(tmp_path)]

    assert comparisons == [ComparisonOutcome.SIMULATED, ComparisonOutcome.UNKNOWN]


async def test_client_breakpoints_stay_if_another_process_served_the_session(tmp_path: Path) -> None:
    options = AgentOptions(replace_breakpoints=True)
    cached = [{"type": "text", "text": TEXT * 300, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
    with running_sandbox() as sandbox:
        for turns in (0, 1):
            with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway:
                send(gateway, sandbox, turns, system=cached)
        has_one_hour = [b'"ttl":"1h"' in request.body.replace(b" ", b"") for request in sandbox.requests]

    assert has_one_hour == [False, True]


async def test_a_request_that_foveate_cannot_change_costs_the_same_without_it(tmp_path: Path) -> None:
    options = AgentOptions(prompt_cache=False)
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        send(gateway, sandbox, 0)
    (charge,) = await read_charges(tmp_path)

    assert charge.savings.without == charge.dollars
    assert charge.savings.total == charge.savings.simulation_error == 0


async def test_injected_context_is_a_separate_cost(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text(TEXT * 200, encoding="utf-8")
    options = AgentOptions(sections=SectionOptions(workspace=Workspace(root=str(tmp_path))))
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        send(gateway, sandbox, 0)
        send(gateway, sandbox, 1)
    all_savings = [charge.savings for charge in await read_charges(tmp_path)]

    assert all(savings.context is not None and savings.context < 0 for savings in all_savings)
    assert [savings.simulation_error for savings in all_savings] == [Decimal(0)] * 2


async def test_accounts_of_one_agent_have_separate_caches(tmp_path: Path) -> None:
    """Defect: a client with another key was credited with reads of what the first client had cached. Each of
    its sessions wrote the whole prompt again, with the long TTL, since only the rest seemed to be new.
    """
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
    ):
        for key in (KEY, f"{KEY}-of-another"):
            for session in range(3):
                send(gateway, sandbox, 0, last=f"session {session} of {key}", key=key)
    charges = await read_charges(tmp_path)

    assert [charge.usage.cache.read > 0 for charge in charges] == [False, True, True] * 2
    assert {charge.savings.simulation_error for charge in charges} == {0}
