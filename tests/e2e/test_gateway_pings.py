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

from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Upstream
from foveate.sandbox.script import ScriptStep
from foveate.store import open_store
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

MODEL = "claude-opus-4-5"
SYSTEM = "You are a careful engineer. Never push to the main branch. " * 800
HELLO: list[Any] = [{"role": "user", "content": "Find the slow parser."}]
# So long nothing comes where nothing is to come.
QUIET_SECONDS = 1.0
KEEP_ALIVE = AgentOptions(keep_alive=KeepAliveOptions(enabled=True))


def read_charges(folder: Path) -> dict[str, ChargeTotal]:
    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await store.ledger.sum_charges([GroupBy.CATEGORY])

    return {one.group[0]: one for one in asyncio.run(read())}


def keep_alive_requests(sandbox: RunningSandbox) -> list[Any]:
    bodies = [json.loads(heard.body) for heard in sandbox.requests if heard.path == "/v1/messages"]
    return [one for one in bodies if one["max_tokens"] == 0]


def wait_until(what: Callable[[], object], *, within_seconds: float = 10) -> None:
    deadline = time.monotonic() + within_seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_keep_alive_sent(sandbox: RunningSandbox, *, after_seconds: float, within_seconds: float = 10) -> bool:
    """Tell whether a keep-alive is sent after this time, within `within_seconds` of a real clock."""
    before = len(keep_alive_requests(sandbox))
    sandbox.clock.now += after_seconds
    deadline = time.monotonic() + within_seconds
    while len(keep_alive_requests(sandbox)) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)  # its answer has to be back before time goes on
    return len(keep_alive_requests(sandbox)) > before


def ask(client: anthropic.Anthropic, messages: list[Any], *, streams: bool = False) -> Any:
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
        first = ask(client, HELLO, streams=streams)
        assert is_keep_alive_sent(sandbox, after_seconds=291)
        sandbox.clock.now += 40 * 60 - 291
        response_body = {"role": "assistant", "content": first.content[0].text}
        late = ask(client, [*HELLO, response_body, {"role": "user", "content": "And then?"}], streams=streams)

    assert first.usage.cache_creation_input_tokens > 5_000
    assert late.usage.cache_read_input_tokens >= first.usage.cache_creation_input_tokens
    assert late.usage.cache_creation_input_tokens < 200
    assert gateway.failed_steps == []
    sums = read_charges(tmp_path)
    assert sums["main"].calls == 2
    assert sums["ping"].calls == len(keep_alive_requests(sandbox)) == 1
    assert sums["ping"].read >= first.usage.cache_creation_input_tokens - 5
    assert 0 < sums["ping"].dollars < sums["main"].dollars / 4
    saved = sums["main"].savings
    assert saved.simulation_error == saved.compaction == 0
    assert saved.keep_alive is not None
    assert saved.keep_alive > 5 * sums["ping"].dollars
    assert sums["ping"].savings.keep_alive == -sums["ping"].dollars
    keys = {heard.headers["authorization"] for heard in sandbox.requests}
    assert keys == {f"Bearer {KEY}"}


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
            ask(client, HELLO)
            assert is_keep_alive_sent(sandbox, after_seconds=291)

    assert len(sandbox.requests) > 1
    assert {heard.headers.get("connection") for heard in sandbox.requests} == {"close"}


@pytest.mark.parametrize("calls", [False, True])
def test_keep_alives_stop_for_an_idle_session_when_they_no_longer_pay_off(tmp_path: Path, calls: bool) -> None:
    eager = AgentOptions(keep_alive=KeepAliveOptions(enabled=True, max_in_a_row=50))
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=eager) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        if calls:
            call_a_tool(client)
        else:
            ask(client, HELLO)
        assert is_keep_alive_sent(sandbox, after_seconds=291)
        life = 291 if calls else 3591
        while is_keep_alive_sent(sandbox, after_seconds=life, within_seconds=3 * QUIET_SECONDS):
            assert len(keep_alive_requests(sandbox)) < 20
        sent = len(keep_alive_requests(sandbox))
        is_over = not is_keep_alive_sent(sandbox, after_seconds=3600, within_seconds=QUIET_SECONDS)

    assert is_over
    sums = read_charges(tmp_path)
    assert (sums["main"].calls, sums["ping"].calls) == (1, sent)
    assert sums["ping"].written_5m == 0  # each has found what it was to keep
    assert sums["ping"].dollars < sums["main"].dollars


def test_consecutive_keep_alives_are_limited(tmp_path: Path) -> None:
    one = AgentOptions(keep_alive=KeepAliveOptions(enabled=True, max_in_a_row=1))
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=one) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        call_a_tool(client)
        assert is_keep_alive_sent(sandbox, after_seconds=291)
        assert not is_keep_alive_sent(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)


def call_a_tool(client: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "read", "input_schema": {"type": "object", "properties": {}}}]
    bodies: Any = {"model": MODEL, "max_tokens": 100, "system": SYSTEM, "messages": HELLO, "tools": tools}
    client.messages.create(**bodies, tool_choice={"type": "any"})


def test_a_keep_alive_during_a_tool_call_repeats_the_request(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=KEEP_ALIVE) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        call_a_tool(client)
        assert is_keep_alive_sent(sandbox, after_seconds=291)

    sent = {**json.loads(sandbox.requests[0].body), "max_tokens": 0, "stream": False}
    assert keep_alive_requests(sandbox) == [sent]


def test_no_keep_alives_are_sent_by_default(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        ask(client, HELLO)
        assert not is_keep_alive_sent(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)


def test_no_keep_alives_are_sent_while_the_session_has_a_request_in_flight(tmp_path: Path) -> None:
    slow = ScriptStep(text="Yes.", delay_seconds=1.5)
    with (
        running_sandbox(ScriptStep(text="Yes."), slow, ScriptStep(text="Yes."), repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=KEEP_ALIVE) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        ask(client, HELLO)
        response_body = {"role": "assistant", "content": "Yes."}
        later = [*HELLO, response_body, {"role": "user", "content": "And then?"}]
        asking = Thread(target=lambda: ask(client, later))
        asking.start()
        wait_until(lambda: len(sandbox.requests) == 2)
        during = is_keep_alive_sent(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)
        asking.join()

    assert not during  # what was planned behind the first answer was due by then


def test_keep_alives_of_a_session_end_after_an_error_or_at_a_cap(tmp_path: Path) -> None:
    refuses = ScriptStep(status=429, message="slow down", retry_after_seconds=1)
    with (
        running_sandbox(ScriptStep(text="Yes."), refuses, ScriptStep(text="Yes.")) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=KEEP_ALIVE) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        ask(client, HELLO)
        assert is_keep_alive_sent(sandbox, after_seconds=291)
        response_body = {"role": "assistant", "content": "Yes."}
        ask(client, [*HELLO, response_body, {"role": "user", "content": "And then?"}])
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
        ask(client, HELLO)
        assert not is_keep_alive_sent(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)
