"""Keep-alives through the gateway: late sessions find their cache, and keep-alives of idle ones stop."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any

import anthropic
import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Upstream
from foveate.sandbox.script import ScriptStep
from foveate.store import open_store
from tests.support.oracles.keep_alives import is_keep_alive_sent, keep_alive_requests
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

MODEL = "claude-opus-4-5"
SYSTEM = "You are a careful engineer. Never push to the main branch. " * 800
MESSAGES: list[Any] = [{"role": "user", "content": "Find the slow parser."}]
# How long to wait before concluding that no keep-alive is sent.
QUIET_SECONDS = 1.0
KEEP_ALIVE = AgentOptions(keep_alive=KeepAliveOptions(enabled=True))


def read_charges(folder: Path) -> dict[str, ChargeTotal]:
    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await store.ledger.sum_charges([GroupBy.CATEGORY])

    return {total.group[0]: total for total in asyncio.run(read())}


def wait_until(is_true: Callable[[], object], *, within_seconds: float = 30) -> None:
    deadline = time.monotonic() + within_seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def send_messages(client: anthropic.Anthropic, messages: list[Any], *, streams: bool = False) -> Any:
    if not streams:
        return client.messages.create(model=MODEL, max_tokens=100, system=SYSTEM, messages=messages)
    with client.messages.stream(model=MODEL, max_tokens=100, system=SYSTEM, messages=messages) as stream:
        return stream.get_final_message()


@pytest.mark.parametrize("streams", [False, True])
def test_a_session_that_returns_after_forty_minutes_reads_its_cache(tmp_path: Path, streams: bool) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=KEEP_ALIVE) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        first = send_messages(client, MESSAGES, streams=streams)
        assert is_keep_alive_sent(sandbox, after_seconds=291)
        sandbox.clock.now += 40 * 60 - 291
        answer = {"role": "assistant", "content": first.content[0].text}
        second = send_messages(
            client, [*MESSAGES, answer, {"role": "user", "content": "And then?"}], streams=streams
        )

    assert first.usage.cache_creation_input_tokens > 5_000
    assert second.usage.cache_read_input_tokens >= first.usage.cache_creation_input_tokens
    assert second.usage.cache_creation_input_tokens < 200
    assert gateway.failed_steps == []
    totals = read_charges(tmp_path)
    assert totals["main"].calls == 2
    assert totals["ping"].calls == len(keep_alive_requests(sandbox)) == 1
    assert totals["ping"].read >= first.usage.cache_creation_input_tokens - 5
    assert 0 < totals["ping"].dollars < totals["main"].dollars / 4
    savings = totals["main"].savings
    assert savings.simulation_error == savings.compaction == 0
    assert savings.keep_alive is not None
    assert savings.keep_alive > 5 * totals["ping"].dollars
    assert totals["ping"].savings.keep_alive == -totals["ping"].dollars
    keys = {request.headers["authorization"] for request in sandbox.requests}
    assert keys == {f"Bearer {KEY}"}


@pytest.mark.parametrize("compacts", [False, True])
def test_a_prompt_that_a_compaction_replaces_is_not_kept_alive(tmp_path: Path, compacts: bool) -> None:
    """Defect: up to three keep-alives read a prompt that was never sent again."""
    options = AgentOptions(
        keep_alive=KeepAliveOptions(enabled=True),
        compaction=compacts,
        window_tokens=30_000,
        compaction_options=CompactionOptions(extractive=True),
    )
    history = [
        {
            "role": ("user", "assistant")[number % 2],
            "content": f"Part {number}: " + "the parser is slow. " * 120,
        }
        for number in range(21)
    ]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        send_messages(client, history)
        if compacts:
            wait_until(lambda: len(sandbox.requests) > 1)  # for the summary
        within_seconds = QUIET_SECONDS if compacts else 30

        assert is_keep_alive_sent(sandbox, after_seconds=291, within_seconds=within_seconds) is not compacts


def test_a_prompt_is_kept_alive_if_nothing_is_compacted(tmp_path: Path) -> None:
    """Defect: a session above the threshold was never kept alive, also if nothing could be compacted."""
    options = AgentOptions(keep_alive=KeepAliveOptions(enabled=True), compaction=True, window_tokens=30_000)
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        send_messages(client, [{"role": "user", "content": "The parser is slow. " * 3_500}])
        gateway.wait_for_compactions(1)

        assert is_keep_alive_sent(sandbox, after_seconds=291)


def test_a_keep_alive_to_an_upstream_without_reuse_opens_its_own_connection(tmp_path: Path) -> None:
    """Regression: only requests of clients respected `reuse: false`."""
    with running_sandbox() as sandbox:
        upstream = Upstream(
            name="anthropic",
            base_url=sandbox.url,
            family=ApiFamily.ANTHROPIC,
            provider="anthropic",
            reuse=False,
        )
        with (
            running_gateway(
                sandbox.url, tmp_path, clock=sandbox.clock, options=KEEP_ALIVE, upstreams=[upstream]
            ) as gateway,
            anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        ):
            send_messages(client, MESSAGES)
            assert is_keep_alive_sent(sandbox, after_seconds=291)

    assert len(sandbox.requests) > 1
    assert {request.headers.get("connection") for request in sandbox.requests} == {"close"}


@pytest.mark.parametrize("calls", [False, True])
def test_keep_alives_stop_for_an_idle_session_when_they_no_longer_pay_off(tmp_path: Path, calls: bool) -> None:
    options = AgentOptions(keep_alive=KeepAliveOptions(enabled=True, max_in_a_row=50))
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        if calls:
            send_tool_request(client)
        else:
            send_messages(client, MESSAGES)
        assert is_keep_alive_sent(sandbox, after_seconds=291)
        interval_seconds = 291 if calls else 3591
        while is_keep_alive_sent(sandbox, after_seconds=interval_seconds, within_seconds=3 * QUIET_SECONDS):
            assert len(keep_alive_requests(sandbox)) < 20
        sent_count = len(keep_alive_requests(sandbox))
        is_over = not is_keep_alive_sent(sandbox, after_seconds=3600, within_seconds=QUIET_SECONDS)

    assert is_over
    totals = read_charges(tmp_path)
    assert (totals["main"].calls, totals["ping"].calls) == (1, sent_count)
    assert totals["ping"].written_5m == 0  # each one has read the cache
    assert totals["ping"].dollars < totals["main"].dollars


def test_consecutive_keep_alives_are_limited(tmp_path: Path) -> None:
    options = AgentOptions(keep_alive=KeepAliveOptions(enabled=True, max_in_a_row=1))
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        send_tool_request(client)
        assert is_keep_alive_sent(sandbox, after_seconds=291)
        assert not is_keep_alive_sent(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)


def send_tool_request(client: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "read", "input_schema": {"type": "object", "properties": {}}}]
    request: Any = {"model": MODEL, "max_tokens": 100, "system": SYSTEM, "messages": MESSAGES, "tools": tools}
    client.messages.create(**request, tool_choice={"type": "any"})


def test_a_keep_alive_during_a_tool_call_repeats_the_request(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=KEEP_ALIVE) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        send_tool_request(client)
        assert is_keep_alive_sent(sandbox, after_seconds=291)

    expected = {**json.loads(sandbox.requests[0].body), "max_tokens": 0, "stream": False}
    assert keep_alive_requests(sandbox) == [expected]


def test_no_keep_alives_are_sent_by_default(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        send_messages(client, MESSAGES)
        assert not is_keep_alive_sent(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)


def test_no_keep_alives_are_sent_while_the_session_has_a_request_in_flight(tmp_path: Path) -> None:
    slow = ScriptStep(text="Yes.", delay_seconds=1.5)
    with (
        running_sandbox(ScriptStep(text="Yes."), slow, ScriptStep(text="Yes."), repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=KEEP_ALIVE) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        send_messages(client, MESSAGES)
        answer = {"role": "assistant", "content": "Yes."}
        messages = [*MESSAGES, answer, {"role": "user", "content": "And then?"}]
        thread = Thread(target=lambda: send_messages(client, messages))
        thread.start()
        wait_until(lambda: len(sandbox.requests) == 2)
        is_sent = is_keep_alive_sent(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)
        thread.join()

    assert not is_sent  # the keep-alive planned after the first response was due by then


def test_keep_alives_of_a_session_end_after_an_error_or_at_a_cap(tmp_path: Path) -> None:
    rejection = ScriptStep(status=429, message="slow down", retry_after_seconds=1)
    with (
        running_sandbox(ScriptStep(text="Yes."), rejection, ScriptStep(text="Yes.")) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=KEEP_ALIVE) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        send_messages(client, MESSAGES)
        assert is_keep_alive_sent(sandbox, after_seconds=291)
        answer = {"role": "assistant", "content": "Yes."}
        send_messages(client, [*MESSAGES, answer, {"role": "user", "content": "And then?"}])
        assert not is_keep_alive_sent(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)

    assert "ping" not in read_charges(tmp_path)

    caps = [Cap(scope=CapScope.SESSION, dollars=Decimal("0.15"))]
    with (
        running_sandbox() as sandbox,
        running_gateway(
            sandbox.url, tmp_path / "capped", clock=sandbox.clock, options=KEEP_ALIVE, caps=caps
        ) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        send_messages(client, MESSAGES)
        assert not is_keep_alive_sent(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)
