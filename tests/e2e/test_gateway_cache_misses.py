"""Cache misses that the gateway detects and explains."""

import logging
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from foveate.engine.observer import SessionCacheMiss
from foveate.model import Area
from foveate.prompt_cache.misses.causes import MissCause
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

SECRET = "The launch is on Tuesday."
RULES = f"You are a careful engineer. {SECRET} " * 300


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(sandbox: RunningSandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    with running_gateway(sandbox.url, folder, clock=sandbox.clock) as server:
        yield server
        assert server.failed_steps == []


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as sdk_client:
        yield sdk_client


def run_conversation(
    client: anthropic.Anthropic, user: str, *systems: str, gap_seconds: float, sandbox: RunningSandbox
) -> None:
    """Run a conversation that uses each of these system prompts in turn."""
    messages: list[Any] = [{"role": "user", "content": f"I am {user}. Find the slow parser."}]
    for system in systems:
        reply = client.messages.create(
            model="claude-sonnet-5", max_tokens=200, system=system, messages=messages
        )
        messages += [
            {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
            {"role": "user", "content": "Go on."},
        ]
        sandbox.clock.now += gap_seconds


def wait_for_cache_miss(gateway: RunningGateway, before: int) -> SessionCacheMiss:
    """Wait for the next cache miss; the gateway analyses it in the background."""
    deadline = time.monotonic() + 30
    while len(gateway.cache_misses) <= before:
        assert time.monotonic() < deadline, "no cache miss was detected"
        time.sleep(0.01)
    return gateway.cache_misses[before]


def test_a_timestamp_in_the_system_prompt_is_reported_with_its_bytes_and_cost(
    client: anthropic.Anthropic,
    gateway: RunningGateway,
    sandbox: RunningSandbox,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = len(gateway.cache_misses)
    with caplog.at_level(logging.INFO, "foveate.engine.background.cache_misses"):
        system_prompts = [f"{RULES}\nIt is 2026-11-15T12:00:{second:02}Z." for second in (1, 2)]
        run_conversation(client, "ana", system_prompts[0], *system_prompts, gap_seconds=20, sandbox=sandbox)
        miss = wait_for_cache_miss(gateway, before)

    verdict = miss.verdict
    assert verdict.cause is MissCause.TIMESTAMP
    assert verdict.place is not None
    assert (verdict.place.area, verdict.place.index) == (Area.SYSTEM, 0)
    assert verdict.after is not None
    assert verdict.after.end_byte - verdict.after.start_byte < 40
    assert verdict.lost_tokens > 1500
    assert verdict.lost_dollars is not None
    assert 0 < verdict.lost_dollars < Decimal("0.1")
    assert (miss.agent, miss.provider, miss.model) == ("default", "anthropic", "claude-sonnet-5")
    assert miss.request_id != miss.previous_id
    assert len(gateway.cache_misses) == before + 1  # the second request was read from the cache
    (line,) = [record.getMessage() for record in caplog.records if "cache miss in" in record.getMessage()]
    assert line.startswith(f"{miss.request_id}: cache miss in session {miss.session_id}: timestamp")
    assert "\n" not in line
    assert "12:00" not in line
    assert SECRET not in line


def test_a_pause_longer_than_the_cache_ttl_is_reported_as_the_cause(
    client: anthropic.Anthropic, gateway: RunningGateway, sandbox: RunningSandbox
) -> None:
    before = len(gateway.cache_misses)
    run_conversation(client, "bo", RULES, RULES, gap_seconds=2 * 3600, sandbox=sandbox)

    assert wait_for_cache_miss(gateway, before).verdict.cause is MissCause.EXPIRED


def test_a_session_with_an_unchanged_prefix_has_no_cache_miss(
    client: anthropic.Anthropic, gateway: RunningGateway, sandbox: RunningSandbox
) -> None:
    before = len(gateway.cache_misses)
    run_conversation(client, "cy", *[RULES] * 6, gap_seconds=20, sandbox=sandbox)
    time.sleep(0.2)

    assert gateway.cache_misses[before:] == []


def test_misses_of_automatic_caching_are_explained(gateway: RunningGateway, sandbox: RunningSandbox) -> None:
    before = len(gateway.cache_misses)
    with openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": "I am dee. Find the slow parser."}]
        for number in range(2):
            system: Any = {"role": "system", "content": f"Request {number + 41}. {RULES}"}
            completion = client.chat.completions.create(model="gpt-4.1", messages=[system, *messages])
            answer = completion.choices[0].message.content
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Go on."}]
            sandbox.clock.now += 20

    miss = wait_for_cache_miss(gateway, before)
    assert miss.verdict.cause is MissCause.COUNTER
    assert miss.provider == "openai"
