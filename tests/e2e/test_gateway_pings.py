"""Keep-alive pings through the gateway: who returns late finds its cache, and who does not is let go."""

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
PINGING = AgentOptions(keep_alive=KeepAliveOptions(enabled=True))


def booked(folder: Path) -> dict[str, ChargeTotal]:
    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await store.ledger.sum_charges([GroupBy.CATEGORY])

    return {one.group[0]: one for one in asyncio.run(read())}


def pings(sandbox: RunningSandbox) -> list[Any]:
    asked = [json.loads(heard.body) for heard in sandbox.requests if heard.path == "/v1/messages"]
    return [one for one in asked if one["max_tokens"] == 0]


def until(what: Callable[[], object], *, within_seconds: float = 10) -> None:
    deadline = time.monotonic() + within_seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def one_more(sandbox: RunningSandbox, *, after_seconds: float, within_seconds: float = 10) -> bool:
    """Whether a ping is sent once so much time has passed; `within_seconds` of a real clock."""
    before = len(pings(sandbox))
    sandbox.clock.now += after_seconds
    deadline = time.monotonic() + within_seconds
    while len(pings(sandbox)) == before and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)  # its answer has to be back before time goes on
    return len(pings(sandbox)) > before


def ask(client: anthropic.Anthropic, messages: list[Any], *, streams: bool = False) -> Any:
    if not streams:
        return client.messages.create(model=MODEL, max_tokens=100, system=SYSTEM, messages=messages)
    with client.messages.stream(model=MODEL, max_tokens=100, system=SYSTEM, messages=messages) as stream:
        return stream.get_final_message()


@pytest.mark.parametrize("streams", [False, True])
def test_a_session_that_returns_after_forty_minutes_reads_its_cache(tmp_path: Path, streams: bool) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=PINGING) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        first = ask(client, HELLO, streams=streams)
        assert one_more(sandbox, after_seconds=291)
        sandbox.clock.now += 40 * 60 - 291
        said = {"role": "assistant", "content": first.content[0].text}
        late = ask(client, [*HELLO, said, {"role": "user", "content": "And then?"}], streams=streams)

    assert first.usage.cache_creation_input_tokens > 5_000
    assert late.usage.cache_read_input_tokens >= first.usage.cache_creation_input_tokens
    assert late.usage.cache_creation_input_tokens < 200
    assert gateway.failed_steps == []
    sums = booked(tmp_path)
    assert sums["main"].calls == 2
    assert sums["ping"].calls == len(pings(sandbox)) == 1
    assert sums["ping"].read >= first.usage.cache_creation_input_tokens - 5
    assert 0 < sums["ping"].dollars < sums["main"].dollars / 4
    saved = sums["main"].savings
    assert saved.simulation_error == saved.compaction == 0
    assert saved.keep_alive is not None
    assert saved.keep_alive > 5 * sums["ping"].dollars
    assert sums["ping"].savings.keep_alive == -sums["ping"].dollars
    keys = {heard.headers["authorization"] for heard in sandbox.requests}
    assert keys == {f"Bearer {KEY}"}


def test_a_ping_to_an_upstream_without_reuse_has_a_connection_of_its_own(tmp_path: Path) -> None:
    """Defect: only the requests of clients heeded `reuse: false`."""
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
                sandbox.url, tmp_path, clock=sandbox.clock, options=PINGING, upstreams=[upstream]
            ) as gateway,
            anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        ):
            ask(client, HELLO)
            assert one_more(sandbox, after_seconds=291)

    assert len(sandbox.requests) > 1
    assert {heard.headers.get("connection") for heard in sandbox.requests} == {"close"}


@pytest.mark.parametrize("calls", [False, True])
def test_a_session_that_does_not_return_is_let_go_when_it_no_longer_pays(tmp_path: Path, calls: bool) -> None:
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
        assert one_more(sandbox, after_seconds=291)
        life = 291 if calls else 3591
        while one_more(sandbox, after_seconds=life, within_seconds=3 * QUIET_SECONDS):
            assert len(pings(sandbox)) < 20
        sent = len(pings(sandbox))
        is_over = not one_more(sandbox, after_seconds=3600, within_seconds=QUIET_SECONDS)

    assert is_over
    sums = booked(tmp_path)
    assert (sums["main"].calls, sums["ping"].calls) == (1, sent)
    assert sums["ping"].written_5m == 0  # each has found what it was to keep
    assert sums["ping"].dollars < sums["main"].dollars


def test_no_more_are_sent_in_a_row_than_are_allowed(tmp_path: Path) -> None:
    one = AgentOptions(keep_alive=KeepAliveOptions(enabled=True, max_in_a_row=1))
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=one) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        call_a_tool(client)
        assert one_more(sandbox, after_seconds=291)
        assert not one_more(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)


def call_a_tool(client: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "read", "input_schema": {"type": "object", "properties": {}}}]
    asked: Any = {"model": MODEL, "max_tokens": 100, "system": SYSTEM, "messages": HELLO, "tools": tools}
    client.messages.create(**asked, tool_choice={"type": "any"})


def test_a_tool_call_is_kept_warm_by_repeating_what_was_asked(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=PINGING) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        call_a_tool(client)
        assert one_more(sandbox, after_seconds=291)

    sent = {**json.loads(sandbox.requests[0].body), "max_tokens": 0, "stream": False}
    assert pings(sandbox) == [sent]


def test_nothing_is_pinged_by_default(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        ask(client, HELLO)
        assert not one_more(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)


def test_nothing_is_pinged_while_a_request_of_the_session_is_under_way(tmp_path: Path) -> None:
    slow = ScriptStep(text="Yes.", delay_seconds=1.5)
    with (
        running_sandbox(ScriptStep(text="Yes."), slow, ScriptStep(text="Yes."), repeat=True) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=PINGING) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        ask(client, HELLO)
        said = {"role": "assistant", "content": "Yes."}
        later = [*HELLO, said, {"role": "user", "content": "And then?"}]
        asking = Thread(target=lambda: ask(client, later))
        asking.start()
        until(lambda: len(sandbox.requests) == 2)
        during = one_more(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)
        asking.join()

    assert not during  # what was planned behind the first answer was due by then


def test_an_error_is_the_end_of_pings_for_a_session_and_so_is_a_cap(tmp_path: Path) -> None:
    refuses = ScriptStep(status=429, message="slow down", retry_after_seconds=1)
    with (
        running_sandbox(ScriptStep(text="Yes."), refuses, ScriptStep(text="Yes.")) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=PINGING) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        ask(client, HELLO)
        assert one_more(sandbox, after_seconds=291)
        said = {"role": "assistant", "content": "Yes."}
        ask(client, [*HELLO, said, {"role": "user", "content": "And then?"}])
        assert not one_more(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)

    assert "ping" not in booked(tmp_path)

    caps = [Cap(scope=CapScope.SESSION, dollars=Decimal("0.15"))]
    with (
        running_sandbox() as sandbox,
        running_gateway(
            sandbox.url, tmp_path / "capped", clock=sandbox.clock, options=PINGING, caps=caps
        ) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        ask(client, HELLO)
        assert not one_more(sandbox, after_seconds=291, within_seconds=QUIET_SECONDS)
