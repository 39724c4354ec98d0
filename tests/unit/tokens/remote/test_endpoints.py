"""COUNT-4, 5: knowledge about an endpoint, its queries, and invalid responses."""

import json
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

import foveate
from foveate import formats
from foveate.errors import UpstreamStatus
from foveate.http import JsonClient
from foveate.model import Request, TokenCount
from foveate.tokens import Backend, ConnectedCounter, CounterOptions
from foveate.tokens.offline_counters import counter_for
from foveate.tokens.remote.counter import FallbackCounter
from foveate.tokens.remote.endpoints import CountQuery, EndpointRegistry, shared_endpoint_registry
from foveate.tokens.remote.model_servers import TokenizeCounter
from foveate.tokens.remote.providers import ANTHROPIC_URL, AnthropicCounter
from tests.support.servers.counting_apis import (
    always_reply,
    anthropic_api,
    gemini_api,
    http_response,
    llama_tokenize,
    ok_response,
    raw_server,
    vllm,
)

TEXT = "a text of six words here"
CHAT: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "four words of content"}]}
MESSAGES: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "three more words"}],
}
RESPONSES: dict[str, Any] = {"model": "gpt-4o", "input": "three more words"}
GEMINI: dict[str, Any] = {
    "model": "models/gemini-2.5-pro",
    "contents": [{"role": "user", "parts": [{"text": "three more words"}]}],
}
CASES = {
    Backend.ANTHROPIC_API: (MESSAGES, b"input_tokens"),
    Backend.OPENAI_API: (RESPONSES, b"input_tokens"),
    Backend.GEMINI_API: (GEMINI, b"totalTokens"),
    Backend.ENDPOINT: (CHAT, b"count"),
}
INVALID_NUMBERS = {
    "a string that is not UTF-8": b'"\xff"',
    "five thousand digits": b"9" * 5000,
    "a number above the maximum": b"1000000001",
    "nested too deeply": b"[" * 5000 + b"]" * 5000,
    "a lone surrogate": b'"\\ud800"',
}


def make_options(backend: Backend, url: str, key: str = "k") -> CounterOptions:
    return CounterOptions(backend=backend, endpoint_url=url, api_key=key)


@pytest.mark.parametrize("backend", CASES)
@pytest.mark.parametrize("number", INVALID_NUMBERS.values(), ids=INVALID_NUMBERS)
async def test_an_invalid_number_from_an_endpoint_is_a_garbled_response(
    number: bytes, backend: Backend
) -> None:
    """Regression: raised as `MalformedRequest`, as if the request were wrong."""
    body, name = CASES[backend]

    def behave(path: str, request_body: bytes) -> bytes:
        is_llama_probe = path == "/tokenize" and b'"content"' in request_body
        return (
            http_response(400) if is_llama_probe else http_response(200, b'{"' + name + b'":' + number + b"}")
        )

    endpoints = EndpointRegistry()
    request = formats.parse_request(body)
    async with (
        raw_server(behave) as api,
        ConnectedCounter(make_options(backend, api.url), endpoints) as fallback_counter,
    ):
        count = await fallback_counter.count_request(request)

    assert count == foveate.count_request(body)
    assert endpoints.unsupported_reason(api.url, request.format)


async def test_an_invalid_template_from_llama_cpp_is_a_garbled_response() -> None:
    def behave(path: str, body: bytes) -> bytes:
        return (
            http_response(200, b'{"prompt":"\xff"}')
            if path == "/apply-template"
            else llama_tokenize(path, body)
        )

    async with (
        raw_server(behave) as server,
        ConnectedCounter(make_options(Backend.ENDPOINT, server.url), EndpointRegistry()) as fallback_counter,
    ):
        assert await fallback_counter.count_request(formats.parse_request(CHAT)) == foveate.count_request(CHAT)


@pytest.mark.parametrize("backend", CASES)
async def test_a_lone_surrogate_in_a_model_name_is_replaced(backend: Backend) -> None:
    """Regression: Gemini's route could not be built with it."""
    body, name = CASES[backend]
    reply = {name.decode(): 7, "tokens": [1]}
    async with (
        raw_server(always_reply(ok_response(reply))) as api,
        ConnectedCounter(make_options(backend, api.url), EndpointRegistry()) as fallback_counter,
    ):
        text = await fallback_counter.count_text(TEXT, "gemini-\ud83d")
        request_count = await fallback_counter.count_request(
            formats.parse_request({**body, "model": "gemini-\ud83d"})
        )

    assert text.total.tokens > 0
    assert request_count.total.tokens > 0


async def test_the_key_of_another_server_is_never_sent_to_anthropic() -> None:
    """Regression: with `use_endpoint` off, `auto` used it for Anthropic."""
    options = CounterOptions(endpoint_url="http://127.0.0.1:9", api_key="my-secret")

    assert not options.uses_network
    async with ConnectedCounter(
        options, EndpointRegistry()
    ) as fallback_counter:  # a request to Anthropic would fail this test
        count = await fallback_counter.count_text(TEXT, "claude-sonnet-4-5")
    assert count.backend == "estimate"
    assert ANTHROPIC_URL not in str(count)


def test_auto_uses_anthropic_with_a_key_and_no_address() -> None:
    assert CounterOptions(api_key="sk-ant").uses_network


@pytest.mark.slow
async def test_the_registry_is_bounded_for_invented_model_names() -> None:
    """Regression: each was kept for ever."""
    endpoints = EndpointRegistry()
    name = "m" * 10_000

    async def not_found() -> TokenCount:
        raise UpstreamStatus("http://x", 404, "model: unknown")

    tracemalloc.start()
    try:
        for i in range(3000):
            await endpoints.try_call("http://x", "text", f"{name}{i}", not_found)
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert endpoints.unsupported_reason("http://x", "text", f"{name}2999")
    assert endpoints.unsupported_reason("http://x", "text", f"{name}0") is None
    assert used_bytes < 3_000_000


async def test_the_cache_of_message_overheads_is_bounded() -> None:
    async with raw_server(always_reply(ok_response({"input_tokens": 8}))) as api, JsonClient() as client:
        counter = AnthropicCounter(client, "k", api.url)
        for i in range(3):
            await counter.fetch_count(counter.text_query(TEXT, f"model-{i}"))

        assert counter._frame_tokens_by_model.capacity < 10_000
        assert len(counter._frame_tokens_by_model) == 3


async def test_another_counter_of_the_same_address_does_not_probe_again() -> None:
    """Regression: knowledge about servers was lost with each counter."""
    endpoints = EndpointRegistry()
    async with raw_server(llama_tokenize) as server:
        for i in range(3):
            async with ConnectedCounter(
                make_options(Backend.ENDPOINT, server.url), endpoints
            ) as fallback_counter:
                await fallback_counter.count_text(f"{TEXT} {i}", "gpt-4o")
                await fallback_counter.count_request(
                    formats.parse_request({**RESPONSES, "input": f"words {i}"})
                )

    queries = [path if path != "/tokenize" else body["content"] for path, body in server.sent]
    assert queries.count("a") == 1
    assert queries.count("/v1/responses/input_tokens") == 1
    assert len(queries) == 2 + 3


async def test_counters_share_a_registry_unless_given_their_own() -> None:
    async with raw_server(always_reply(http_response(404))) as server:
        for endpoints in (None, None, EndpointRegistry(), None):
            async with ConnectedCounter(
                make_options(Backend.ENDPOINT, server.url), endpoints
            ) as fallback_counter:
                await fallback_counter.count_text(TEXT, "gpt-4o")

    assert server.requests == 2
    assert shared_endpoint_registry().unsupported_reason(server.url, "text")


async def test_a_server_that_rejects_model_names_gets_one_only_once() -> None:
    endpoints = EndpointRegistry()
    async with vllm() as server:
        for text in ("one", "two words"):
            async with ConnectedCounter(
                make_options(Backend.ENDPOINT, server.url), endpoints
            ) as fallback_counter:
                await fallback_counter.count_text(text, "gpt-4o")

    assert sum("model" in body for _, body in server.sent) == 1


SERVERS: dict[Backend, Callable[[], Any]] = {
    Backend.ANTHROPIC_API: anthropic_api,
    Backend.GEMINI_API: gemini_api,
    Backend.ENDPOINT: vllm,
}


@pytest.mark.parametrize("backend", SERVERS)
async def test_equal_queries_share_a_count_despite_other_fields(backend: Backend) -> None:
    """Regression: the key was the whole body, so another `max_tokens` caused another request."""
    body, _ = CASES[backend]
    key = {Backend.ANTHROPIC_API: "sk-ant-good", Backend.GEMINI_API: "good"}.get(backend, "")
    reordered = dict(reversed(body.items()))
    async with (
        SERVERS[backend]() as api,
        ConnectedCounter(make_options(backend, api.url, key), EndpointRegistry()) as fallback_counter,
    ):
        first = await fallback_counter.count_request(formats.parse_request(body))
        requests_before = api.requests
        others = [
            await fallback_counter.count_request(
                formats.parse_request({**other, "temperature": i, "max_tokens": i})
            )
            for i, other in enumerate((body, reordered))
        ]

    assert first.backend == backend
    assert others == [first, first]
    assert api.requests == requests_before


async def test_another_order_inside_a_tool_is_another_query() -> None:
    """A chat template may print a tool in the order of its fields."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    reordered = dict(reversed(tool.items()))
    async with (
        vllm() as server,
        ConnectedCounter(make_options(Backend.ENDPOINT, server.url), EndpointRegistry()) as fallback_counter,
    ):
        await fallback_counter.count_request(formats.parse_request({**CHAT, "tools": [tool]}))
        requests_before = server.requests
        await fallback_counter.count_request(formats.parse_request({**CHAT, "tools": [reordered]}))

    assert server.requests == requests_before + 1
    assert json.dumps(server.body()["tools"]) == json.dumps([reordered])


class ThreadRecordingCounter:
    """A counter that records in which thread its query is built."""

    name, url = "threads", "http://127.0.0.1:9"

    def __init__(self) -> None:
        self.on_loop: list[bool] = []

    def text_query(self, text: str, model: str) -> CountQuery:
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        return CountQuery(subject="text", model=model, body=text.encode())

    def request_query(self, request: Request) -> CountQuery:
        raise AssertionError("no request is counted")

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        return TokenCount(1, True, 1)


async def test_a_long_query_is_built_and_hashed_off_the_event_loop() -> None:
    """Regression: eleven megabytes blocked the loop for fifty milliseconds."""
    counter = ThreadRecordingCounter()
    fallback_counter = FallbackCounter(counter_for, endpoint_for=lambda _: counter)
    await fallback_counter.count_text("short", "gpt-4o")
    await fallback_counter.count_text("long " * 100_000, "gpt-4o")

    assert counter.on_loop == [True, False]


async def test_a_counter_without_a_registry_probes_by_itself() -> None:
    async with raw_server(llama_tokenize) as server, JsonClient() as client:
        for _ in range(2):
            await TokenizeCounter(client, server.url).detect_server()

    assert server.requests == 2


async def test_unsupported_subjects_are_reported() -> None:
    endpoints = EndpointRegistry()
    async with ConnectedCounter(
        make_options(Backend.OPENAI_API, "http://127.0.0.1:9"), endpoints
    ) as fallback_counter:
        await fallback_counter.count_text(TEXT, "gpt-4o")

    assert endpoints.last_errors == {
        "http://127.0.0.1:9": "http://127.0.0.1:9: it counts Responses requests only"
    }
