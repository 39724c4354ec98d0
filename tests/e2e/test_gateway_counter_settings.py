"""`token_counter` through the gateway: each counter, its upstream calls, and requests without a counter."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import Charge
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from foveate.tokens import Backend, CounterOptions
from tests.support.scenarios.scaled_tokenizer import scaled_block_tokens
from tests.support.servers.gateway import running_gateway
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox
from tests.support.servers.slow_counter import slow_counter_upstream

MODEL = "claude-opus-4-5"
COUNT_PATH = "/v1/messages/count_tokens"


def read_charges(folder: Path, name: str = "gateway.sqlite") -> list[Charge]:
    async def read() -> list[Charge]:
        async with await open_store(f"sqlite:///{folder}/{name}") as store:
            return [entry async for entry in store.ledger.list_charges()]

    return asyncio.run(read())


def send_message(client: anthropic.Anthropic, text: str = "Hello", **more: Any) -> None:
    messages: Any = [{"role": "user", "content": text}]
    client.messages.create(model=MODEL, max_tokens=50, messages=messages, **more)


def test_the_anthropic_counter_is_called_with_the_client_key_and_charged_at_zero(
    tmp_path: Path,
) -> None:
    options = AgentOptions(counter=CounterOptions(backend=Backend.ANTHROPIC_API))
    with (
        running_sandbox(tokens=scaled_block_tokens(1.3)) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        send_message(client)
        send_message(client)  # the same request is counted once

    counts = [request for request in sandbox.requests if request.path == COUNT_PATH]
    assert [request.headers["authorization"] for request in counts] == [f"Bearer {KEY}"]
    charges = read_charges(tmp_path)
    main = [entry for entry in charges if entry.call.category == "main"]
    counting = [entry for entry in charges if entry.call.category == "counting"]
    assert [entry.estimated_input_tokens for entry in main] == [
        entry.usage.cache.input_tokens for entry in main
    ]
    assert [entry.dollars for entry in counting] == [0]
    assert counting[0].call.session_id in {entry.call.session_id for entry in main}


def test_by_default_the_provider_counts_only_if_a_rejection_depends_on_an_estimate(tmp_path: Path) -> None:
    text = "The parser reads src/part.py line by line, and then it stops. " * 90
    (tmp_path / "offline").mkdir()
    options = AgentOptions(window_tokens=1_200)
    offline_options = AgentOptions(window_tokens=1_200, counter=CounterOptions(backend=Backend.OFFLINE))
    with running_sandbox(tokens=scaled_block_tokens(0.7)) as sandbox:
        with (
            running_gateway(sandbox.url, tmp_path, options=options) as gateway,
            anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        ):
            send_message(client)
            uncounted = [request.path for request in sandbox.requests]
            send_message(client, text)  # an estimate would reject it
        counted_requests = [request.path for request in sandbox.requests]
        with (
            running_gateway(sandbox.url, tmp_path / "offline", options=offline_options) as gateway,
            anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
            pytest.raises(anthropic.BadRequestError, match="prompt is too long"),
        ):
            send_message(client, text)

    assert uncounted == ["/v1/messages"]
    assert counted_requests == ["/v1/messages", COUNT_PATH, "/v1/messages"]
    assert len(sandbox.requests) == 3


def test_a_rejected_key_affects_only_the_client_that_sends_it(tmp_path: Path) -> None:
    options = AgentOptions(counter=CounterOptions(backend=Backend.ANTHROPIC_API))
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        for number in range(4):
            request_without_key = urllib.request.Request(
                f"{gateway.url}/v1/messages",
                data=json.dumps({"model": MODEL, "max_tokens": 5, "messages": [greeting(number)]}).encode(),
                headers={"anthropic-version": "2023-06-01"},
            )
            with pytest.raises(urllib.error.HTTPError, match="401") as exc_info:
                urllib.request.urlopen(request_without_key)
            exc_info.value.close()
        sandbox.requests.clear()
        send_message(client)

    assert [request.path for request in sandbox.requests] == [COUNT_PATH, "/v1/messages"]


def greeting(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"Hello {number}"}


def time_chats(url: str, folder: Path, counter: CounterOptions, times: int = 1) -> float:
    """Send a few chats and return how long they took."""
    messages: Any = [{"role": "user", "content": "Hello"}]
    with (
        running_gateway(url, folder, options=AgentOptions(counter=counter)) as gateway,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client,
    ):
        started_at = time.monotonic()
        for _ in range(times):
            client.chat.completions.create(model="tiny-7b-x", messages=messages)
        return time.monotonic() - started_at


def test_a_tokenizing_server_is_called_only_if_enabled(tmp_path: Path) -> None:
    with slow_counter_upstream(count_seconds=0) as (url, paths):
        time_chats(url, tmp_path, CounterOptions())
        uncounted = list(paths)
        time_chats(url, tmp_path, CounterOptions(backend=Backend.ENDPOINT, use_endpoint=True))

    assert uncounted == ["/v1/chat/completions"]
    assert paths[1:] == ["/tokenize", "/v1/chat/completions/input_tokens", "/v1/chat/completions"]
    charges = [
        entry.estimated_input_tokens for entry in read_charges(tmp_path) if entry.call.category == "main"
    ]
    assert charges[0] != 777
    assert charges[1] == 777


def test_a_slow_counting_server_times_out_and_is_then_skipped(
    tmp_path: Path,
) -> None:
    counter = CounterOptions(backend=Backend.ENDPOINT, use_endpoint=True, timeout_ms=200)
    with slow_counter_upstream(count_seconds=20) as (url, paths):
        elapsed_seconds = time_chats(url, tmp_path, counter, times=5)

    assert paths.count("/v1/chat/completions") == 5
    assert paths.count("/tokenize") == 3  # then the circuit breaker is open
    assert elapsed_seconds < 20
    assert len([entry for entry in read_charges(tmp_path) if entry.estimated_input_tokens]) == 5


def test_a_failing_counter_delays_no_request(tmp_path: Path) -> None:
    with slow_counter_upstream() as (url, paths):
        time_chats(url, tmp_path, CounterOptions(backend=Backend.ENDPOINT, use_endpoint=True), times=2)

    assert paths.count("/v1/chat/completions") == 2
    assert {entry.call.category for entry in read_charges(tmp_path)} == {"main"}


def test_without_a_counter_the_provider_checks_the_window_and_caps_reject(
    tmp_path: Path,
) -> None:
    options = AgentOptions(token_counter=False, window_tokens=100)
    caps = [Cap(scope=CapScope.AGENT, agent="poor", dollars=Decimal(100))]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options, caps=caps) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        send_message(client, "word " * 12_000)
        with pytest.raises(anthropic.APIStatusError, match="the cap on agent poor") as exc_info:
            send_message(client, extra_headers={"x-foveate-agent": "poor"})

    assert exc_info.value.status_code == 402
    assert [request.path for request in sandbox.requests] == ["/v1/messages"]
    assert b"cache_control" in sandbox.requests[0].body  # breakpoints are placed without a count
    charges = read_charges(tmp_path)
    assert [entry.estimated_input_tokens for entry in charges] == [None]
    assert gateway.failed_steps == []


@pytest.mark.process
def test_a_changed_counter_applies_from_the_next_request(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    config_template = "context_optimization: {{token_counter: {{{0}}}}}\n"
    counters = ("backend: tiktoken", "backend: anthropic_api", "backend: endpoint", "enabled: false")
    with running_sandbox() as sandbox:
        write_config(config, sandbox.url)
        with (
            gateway_process(tmp_path, "--config", str(config)) as gateway,
            anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        ):
            paths_by_step: list[list[str]] = []
            # In sequence: background work of one request must not hide the change of the next one.
            for number in range(5):
                for counter in counters:
                    write_config(config, sandbox.url, config_template.format(counter))
                    sandbox.requests.clear()
                    send_message(client, f"Hello {number} with {counter}")
                    paths_by_step.append([request.path for request in sandbox.requests])

    # The third configuration is invalid, so the second stays in effect.
    expected = [["/v1/messages"], [COUNT_PATH, "/v1/messages"], [COUNT_PATH, "/v1/messages"], ["/v1/messages"]]
    assert paths_by_step == 5 * expected
