"""`token_counter` through the gateway: each counter, its upstream calls, and requests without a counter."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
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

MODEL = "claude-opus-4-5"
COUNT = "/v1/messages/count_tokens"


def entries(folder: Path, name: str = "gateway.sqlite") -> list[Charge]:
    async def read() -> list[Charge]:
        async with await open_store(f"sqlite:///{folder}/{name}") as store:
            return [entry async for entry in store.ledger.list_charges()]

    return asyncio.run(read())


def ask(client: anthropic.Anthropic, text: str = "Hello", **more: Any) -> None:
    error_message: Any = [{"role": "user", "content": text}]
    client.messages.create(model=MODEL, max_tokens=50, messages=error_message, **more)


def test_the_anthropic_counter_is_called_with_the_client_key_and_charged_at_zero(
    tmp_path: Path,
) -> None:
    options = AgentOptions(counter=CounterOptions(backend=Backend.ANTHROPIC_API))
    with (
        running_sandbox(tokens=scaled_block_tokens(1.3)) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        ask(client)
        ask(client)  # the same is asked for once

    counts = [heard for heard in sandbox.requests if heard.path == COUNT]
    assert [heard.headers["authorization"] for heard in counts] == [f"Bearer {KEY}"]
    booked = entries(tmp_path)
    main = [entry for entry in booked if entry.call.category == "main"]
    counting = [entry for entry in booked if entry.call.category == "counting"]
    assert [entry.estimated_input_tokens for entry in main] == [
        entry.usage.cache.input_tokens for entry in main
    ]
    assert [entry.dollars for entry in counting] == [0]
    assert counting[0].call.session_id in {entry.call.session_id for entry in main}


def test_by_default_the_provider_counts_only_if_a_rejection_depends_on_an_estimate(tmp_path: Path) -> None:
    text = "The parser reads src/part.py line by line, and then it stops. " * 90
    narrow = AgentOptions(window_tokens=1_200)
    offline = AgentOptions(window_tokens=1_200, counter=CounterOptions(backend=Backend.OFFLINE))
    with running_sandbox(tokens=scaled_block_tokens(0.7)) as sandbox:
        with (
            running_gateway(sandbox.url, tmp_path, options=narrow) as gateway,
            anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
        ):
            ask(client)
            uncounted = [heard.path for heard in sandbox.requests]
            ask(client, text)  # an estimate would not let it through
        counted_requests = [heard.path for heard in sandbox.requests]
        with (
            running_gateway(sandbox.url, tmp_path / "..", options=offline) as gateway,
            anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
            pytest.raises(anthropic.BadRequestError, match="prompt is too long"),
        ):
            ask(client, text)

    assert uncounted == ["/v1/messages"]
    assert counted_requests == ["/v1/messages", COUNT, "/v1/messages"]
    assert len(sandbox.requests) == 3


def test_a_rejected_key_affects_only_the_client_that_sends_it(tmp_path: Path) -> None:
    options = AgentOptions(counter=CounterOptions(backend=Backend.ANTHROPIC_API))
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        for number in range(4):
            keyless = urllib.request.Request(
                f"{gateway.url}/v1/messages",
                data=json.dumps({"model": MODEL, "max_tokens": 5, "messages": [hello(number)]}).encode(),
                headers={"anthropic-version": "2023-06-01"},
            )
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                urllib.request.urlopen(keyless)
            refused.value.close()
        sandbox.requests.clear()
        ask(client)

    assert [heard.path for heard in sandbox.requests] == [COUNT, "/v1/messages"]


def hello(number: int) -> dict[str, str]:
    return {"role": "user", "content": f"Hello {number}"}


@contextmanager
def upstream(counts_in_seconds: float | None = None) -> Iterator[tuple[str, list[str]]]:
    """A llama.cpp-like server whose counter is slow or fails, and the requests it receives."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            paths.append(self.path)
            status, error_message = 200, {}
            match self.path:
                case "/v1/chat/completions":
                    usage = {"prompt_tokens": 777, "completion_tokens": 1, "total_tokens": 778}
                    message = {"role": "assistant", "content": "Yes."}
                    choice = {"index": 0, "message": message, "finish_reason": "stop"}
                    named = {"id": "c", "object": "chat.completion", "created": 1, "model": "tiny"}
                    error_message = {**named, "choices": [choice], "usage": usage}
                case "/tokenize":
                    time.sleep(counts_in_seconds or 0)
                    error_message = {"tokens": [1]}
                case _ if counts_in_seconds is None:
                    status = 500
                case _:
                    error_message = {"input_tokens": 777}
            body = json.dumps(error_message).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            with suppress(ConnectionError):  # nobody waits for it any longer
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def chats(url: str, folder: Path, counter: CounterOptions, times: int = 1) -> float:
    """Send a few chats and return how long they took."""
    hello: Any = [{"role": "user", "content": "Hello"}]
    with (
        running_gateway(url, folder, options=AgentOptions(counter=counter)) as gateway,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client,
    ):
        began = time.monotonic()
        for _ in range(times):
            client.chat.completions.create(model="tiny-7b-x", messages=hello)
        return time.monotonic() - began


def test_a_tokenizing_server_is_called_only_if_enabled(tmp_path: Path) -> None:
    with upstream(counts_in_seconds=0) as (url, paths):
        chats(url, tmp_path, CounterOptions())
        uncounted = list(paths)
        chats(url, tmp_path, CounterOptions(backend=Backend.ENDPOINT, use_endpoint=True))

    assert uncounted == ["/v1/chat/completions"]
    assert paths[1:] == ["/tokenize", "/v1/chat/completions/input_tokens", "/v1/chat/completions"]
    booked = [entry.estimated_input_tokens for entry in entries(tmp_path) if entry.call.category == "main"]
    assert booked[0] != 777
    assert booked[1] == 777


def test_a_slow_counting_server_times_out_and_is_then_skipped(
    tmp_path: Path,
) -> None:
    late = CounterOptions(backend=Backend.ENDPOINT, use_endpoint=True, timeout_ms=200)
    with upstream(counts_in_seconds=3) as (url, paths):
        took = chats(url, tmp_path, late, times=5)

    assert paths.count("/v1/chat/completions") == 5
    assert paths.count("/tokenize") == 3  # then the breaker is open
    assert took < 3
    assert len([entry for entry in entries(tmp_path) if entry.estimated_input_tokens]) == 5


def test_a_failing_counter_delays_no_request(tmp_path: Path) -> None:
    with upstream() as (url, paths):
        chats(url, tmp_path, CounterOptions(backend=Backend.ENDPOINT, use_endpoint=True), times=2)

    assert paths.count("/v1/chat/completions") == 2
    assert {entry.call.category for entry in entries(tmp_path)} == {"main"}


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
        ask(client, "word " * 12_000)
        with pytest.raises(anthropic.APIStatusError, match="the cap on agent poor") as refused:
            ask(client, extra_headers={"x-foveate-agent": "poor"})

    assert refused.value.status_code == 402
    assert [heard.path for heard in sandbox.requests] == ["/v1/messages"]
    assert b"cache_control" in sandbox.requests[0].body  # what a cache saves needs no number to be told
    booked = entries(tmp_path)
    assert [entry.estimated_input_tokens for entry in booked] == [None]
    assert gateway.failed_steps == []


@pytest.mark.process
def test_a_changed_counter_applies_from_the_next_request(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    response = "context_optimization: {{token_counter: {{{0}}}}}\n"
    said_in_turn = ("backend: tiktoken", "backend: anthropic_api", "backend: endpoint", "enabled: false")
    with running_sandbox() as sandbox:
        write_config(config, sandbox.url)
        with (
            gateway_process(tmp_path, "--config", str(config)) as served,
            anthropic.Anthropic(base_url=served.url, api_key=KEY, max_retries=0) as client,
        ):
            heard: list[list[str]] = []
            # One after the other: what a request behind its answer still asks for must hide no change.
            for number in range(5):
                for error_message in said_in_turn:
                    write_config(config, sandbox.url, response.format(error_message))
                    sandbox.requests.clear()
                    ask(client, f"Hello {number} with {error_message}")
                    heard.append([one.path for one in sandbox.requests])

    # The third asks for what it may not have, so that the second still holds.
    each = [["/v1/messages"], [COUNT, "/v1/messages"], [COUNT, "/v1/messages"], ["/v1/messages"]]
    assert heard == 5 * each
