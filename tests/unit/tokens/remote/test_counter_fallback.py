"""COUNT-3, 4, 7, 8: every behaviour of an endpoint yields a count with its accuracy."""

import asyncio
import json
import socket
from dataclasses import replace

import pytest

import foveate
from foveate import formats
from foveate.http import JsonClient
from foveate.model import Request, TokenCount
from foveate.tokens import Backend, ConnectedCounter, CounterOptions, drop_caches
from foveate.tokens.offline_counters import counter_for
from foveate.tokens.remote.counter import FallbackCounter
from foveate.tokens.remote.endpoints import CountQuery, EndpointRegistry, Unsupported
from foveate.tokens.remote.model_servers import TokenizeCounter
from tests.support.servers.counting_apis import (
    Behaviour,
    always_reply,
    http_response,
    llama_tokenize,
    ok_response,
    raw_server,
    vllm,
)

TEXT = "a text of six words here"
OFFLINE = foveate.count(TEXT)
CHAT = {"model": "gpt-4o", "messages": [{"role": "user", "content": "four words of content"}]}
HUGE = 100 * 1024 * 1024


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def options(url: str, timeout_ms: int = 2000) -> CounterOptions:
    return CounterOptions(endpoint_url=url, use_endpoint=True, timeout_ms=timeout_ms)


TRUNCATED = http_response(200, b'{"tokens": [1, 2, 3').replace(b"content-length: 19", b"content-length: 400")
HANGS = always_reply(None)
PERMANENT_FAILURES = {
    "404": always_reply(http_response(404)),
    "405": always_reply(http_response(405)),
    "501": always_reply(http_response(501)),
    "HTML with 200": always_reply(http_response(200, b"<!doctype html><title>Welcome</title>", "text/html")),
    "another shape": always_reply(ok_response({"result": 3})),
    "tokens that are not a list": always_reply(ok_response({"tokens": 6})),
    "tokens with pieces": always_reply(ok_response({"tokens": [{"id": 1, "piece": "a"}]})),
    "a list": always_reply(ok_response([1, 2, 3])),
    "nothing": always_reply(http_response(200, b"")),
    "JSON that is nested too deeply": always_reply(http_response(200, b"[" * 100_000)),
    "100 MB, announced": always_reply(
        http_response(200, b"").replace(b"length: 0", f"length: {HUGE}".encode())
    ),
    "neither dialect": always_reply(http_response(422, b'{"error": "inputs: missing field"}')),
}
TEMPORARY_FAILURES = {
    "500": always_reply(http_response(500)),
    "503": always_reply(http_response(503, b"Loading model", "text/plain")),
    "429": always_reply(http_response(429)),
    "401": always_reply(http_response(401)),
    "a redirect": always_reply(http_response(302, b"", "text/plain", "location: http://127.0.0.1:1/")),
    "a truncated reply": always_reply(TRUNCATED),
    "no HTTP": always_reply(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "a closed connection": always_reply(b""),
}


@pytest.mark.parametrize("behave", PERMANENT_FAILURES.values(), ids=PERMANENT_FAILURES)
async def test_a_permanent_failure_is_remembered_and_the_offline_count_stays_exact(behave: Behaviour) -> None:
    async with (
        raw_server(behave) as server,
        ConnectedCounter(options(server.url), EndpointRegistry()) as fallback_counter,
    ):
        first = await fallback_counter.count_text(TEXT, "gpt-4o")
        probes = server.requests
        again = await fallback_counter.count_text("other words", "gpt-4o")
        other_model = await fallback_counter.count_text(TEXT, "gpt-4")
        request_count = await fallback_counter.count_request(formats.parse_request(CHAT))

    assert first.total == OFFLINE
    assert first.backend == "offline"
    assert again.total.exact
    assert other_model.total == foveate.count(TEXT, "gpt-4")
    assert request_count == foveate.count_request(CHAT)
    assert server.requests == probes <= 2


@pytest.mark.parametrize("behave", TEMPORARY_FAILURES.values(), ids=TEMPORARY_FAILURES)
async def test_a_failing_endpoint_is_tried_three_times_and_counts_are_not_exact(behave: Behaviour) -> None:
    async with (
        raw_server(behave) as server,
        ConnectedCounter(options(server.url), EndpointRegistry()) as fallback_counter,
    ):
        counts = [await fallback_counter.count_text(TEXT, "gpt-4o") for _ in range(5)]
        request_count = await fallback_counter.count_request(formats.parse_request(CHAT))

    assert {count.total for count in counts} == {replace(OFFLINE, exact=False)}
    assert {count.backend for count in counts} == {"offline"}
    assert request_count.total == replace(foveate.count_request(CHAT).total, exact=False)
    assert server.requests == 3


async def test_a_hanging_endpoint_delays_three_counts_by_the_timeout() -> None:
    async with (
        raw_server(HANGS) as server,
        ConnectedCounter(options(server.url, timeout_ms=50), EndpointRegistry()) as fallback_counter,
    ):
        counts = [await fallback_counter.count_text(TEXT, "gpt-4o") for _ in range(5)]

    assert {count.total for count in counts} == {replace(OFFLINE, exact=False)}
    assert server.requests == 3


@pytest.mark.slow
async def test_an_unannounced_response_of_100_mb_is_not_read_completely() -> None:
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    endless = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 100 + b"0\r\n\r\n"
    async with (
        raw_server(always_reply(endless)) as server,
        ConnectedCounter(options(server.url, timeout_ms=30_000), EndpointRegistry()) as fallback_counter,
    ):
        count = await fallback_counter.count_text(TEXT, "gpt-4o")

    assert count.total == OFFLINE


async def test_a_closed_port_is_a_temporary_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    endpoints = EndpointRegistry()
    async with ConnectedCounter(options(url), endpoints) as fallback_counter:
        counts = [await fallback_counter.count_text(TEXT, "gpt-4o") for _ in range(3)]

    assert {count.total for count in counts} == {replace(OFFLINE, exact=False)}
    assert endpoints.unsupported_reason(url, "text") is None
    assert not endpoints.breaker(url).is_closed
    assert url in endpoints.last_errors[url]


async def test_without_use_endpoint_no_probe_is_sent() -> None:
    async with raw_server(llama_tokenize) as server:
        for backend in (Backend.AUTO, Backend.OFFLINE, Backend.ESTIMATE):
            if backend is Backend.ESTIMATE:
                continue
            offline_options = CounterOptions(backend=backend, endpoint_url=server.url, use_endpoint=False)
            async with ConnectedCounter(offline_options, EndpointRegistry()) as fallback_counter:
                assert (await fallback_counter.count_text(TEXT, "gpt-4o")).total == OFFLINE
                await fallback_counter.count_request(formats.parse_request(CHAT))
        async with ConnectedCounter(
            CounterOptions(backend=Backend.OFFLINE, endpoint_url=server.url, use_endpoint=True),
            EndpointRegistry(),
        ):
            pass

    assert server.requests == 0


async def test_after_the_wait_one_trial_closes_the_breaker_again() -> None:
    is_healthy = False

    def behave(path: str, body: bytes) -> bytes:
        return llama_tokenize(path, body) if is_healthy else http_response(500)

    clock = Clock()
    endpoints = EndpointRegistry(clock)
    async with (
        raw_server(behave) as server,
        ConnectedCounter(options(server.url), endpoints) as fallback_counter,
    ):
        for _ in range(4):
            await fallback_counter.count_text(TEXT, "gpt-4o")
        assert server.requests == 3
        clock.now += 29.9
        await fallback_counter.count_text(TEXT, "gpt-4o")
        assert server.requests == 3
        clock.now += 0.1
        failed = await fallback_counter.count_text(TEXT, "gpt-4o")
        assert server.requests == 4
        assert not failed.total.exact
        is_healthy = True
        clock.now += 59.9
        assert not (await fallback_counter.count_text(TEXT, "gpt-4o")).total.exact
        clock.now += 0.1
        recovered = await fallback_counter.count_text(TEXT, "gpt-4o")

    assert recovered.total == TokenCount(6, True, 6)
    assert recovered.backend == "endpoint"
    assert endpoints.breaker(server.url).is_closed
    assert not endpoints.last_errors


async def test_concurrent_counts_while_half_open_send_one_trial() -> None:
    clock = Clock()
    endpoints = EndpointRegistry(clock)
    async with (
        raw_server(always_reply(http_response(500))) as server,
        ConnectedCounter(options(server.url), endpoints) as fallback_counter,
    ):
        for _ in range(3):
            await fallback_counter.count_text(TEXT, "gpt-4o")
        clock.now += 30
        await asyncio.gather(*(fallback_counter.count_text(f"{TEXT} {i}", "gpt-4o") for i in range(5)))

    assert server.requests == 4


async def test_ten_concurrent_timeouts_open_the_breaker_for_half_a_minute() -> None:
    clock = Clock()
    endpoints = EndpointRegistry(clock)
    async with (
        raw_server(HANGS) as server,
        ConnectedCounter(options(server.url, timeout_ms=50), endpoints) as fallback_counter,
    ):
        await asyncio.gather(*(fallback_counter.count_text(f"{TEXT} {i}", "gpt-4o") for i in range(10)))

    assert endpoints.breaker(server.url).wait_seconds == 30.0


async def test_a_cancelled_trial_allows_the_next_one() -> None:
    clock = Clock()
    endpoints = EndpointRegistry(clock)
    async with (
        raw_server(HANGS) as server,
        ConnectedCounter(options(server.url, timeout_ms=50), endpoints) as fallback_counter,
    ):
        for _ in range(3):
            await fallback_counter.count_text(TEXT, "gpt-4o")
        clock.now += 30
        trial = asyncio.create_task(fallback_counter.count_text(TEXT, "gpt-4o"))
        await asyncio.sleep(0.01)
        trial.cancel()
        await asyncio.gather(trial, return_exceptions=True)

        assert endpoints.breaker(server.url).allows(clock.now)


async def test_a_remote_count_is_cached() -> None:
    async with (
        raw_server(llama_tokenize) as server,
        ConnectedCounter(options(server.url), EndpointRegistry()) as fallback_counter,
    ):
        first = await fallback_counter.count_text(TEXT, "gpt-4o")
        requests_before = server.requests
        again = await fallback_counter.count_text(TEXT, "gpt-4o")

    assert first == again
    assert first.total == TokenCount(6, True, 6)
    assert server.requests == requests_before == 2  # the probe, then the text


async def test_a_cached_count_is_returned_while_the_breaker_is_open() -> None:
    is_failing = False

    def behave(path: str, body: bytes) -> bytes:
        return http_response(500) if is_failing else llama_tokenize(path, body)

    async with (
        raw_server(behave) as server,
        ConnectedCounter(options(server.url), EndpointRegistry()) as fallback_counter,
    ):
        await fallback_counter.count_text(TEXT, "gpt-4o")
        is_failing = True
        for i in range(4):
            await fallback_counter.count_text(f"{TEXT} {i}", "gpt-4o")
        cached = await fallback_counter.count_text(TEXT, "gpt-4o")

    assert cached.total == TokenCount(6, True, 6)


async def test_the_cache_of_remote_counts_is_bounded() -> None:
    bounded = CounterOptions(backend=Backend.ENDPOINT, cache_capacity=2)
    async with (
        raw_server(llama_tokenize) as server,
        ConnectedCounter(replace(bounded, endpoint_url=server.url), EndpointRegistry()) as fallback_counter,
    ):
        for text in ("one", "two", "three", "one"):
            await fallback_counter.count_text(text, "gpt-4o")

    assert [body["content"] for _, body in server.sent] == ["a", "one", "two", "three", "one"]


async def test_drop_caches_drops_remote_counts() -> None:
    async with (
        raw_server(llama_tokenize) as server,
        ConnectedCounter(options(server.url), EndpointRegistry()) as fallback_counter,
    ):
        first = await fallback_counter.count_text(TEXT, "gpt-4o")
        requests_before = server.requests
        drop_caches()
        again = await fallback_counter.count_text(TEXT, "gpt-4o")

    assert first == again
    assert server.requests == requests_before + 1  # the text without the probe


async def test_another_model_is_counted_separately_for_the_same_body() -> None:
    """Regression: only the model of the body was in the key, so switching models returned a stale count."""
    request = formats.parse_request(CHAT)
    async with vllm() as server, ConnectedCounter(options(server.url), EndpointRegistry()) as fallback_counter:
        await fallback_counter.count_request(request)
        requests_before = server.requests
        await fallback_counter.count_request(replace(request, model="gpt-4"))

    assert server.requests == requests_before + 1


async def test_switching_the_model_switches_the_offline_counter() -> None:
    async with ConnectedCounter(CounterOptions(), EndpointRegistry()) as fallback_counter:
        counts = [
            await fallback_counter.count_text("Привет, мир", model) for model in ("gpt-4o", "gpt-4", "gpt-4o")
        ]

    assert [count.model for count in counts] == ["gpt-4o", "gpt-4", "gpt-4o"]
    assert [count.total for count in counts] == [
        foveate.count("Привет, мир", model) for model in ("gpt-4o", "gpt-4", "gpt-4o")
    ]
    assert counts[0].total != counts[1].total


async def test_a_rejected_text_does_not_affect_others() -> None:
    def behave(path: str, body: bytes) -> bytes:
        return http_response(413) if len(body) > 1000 else llama_tokenize(path, body)

    endpoints = EndpointRegistry()
    async with (
        raw_server(behave) as server,
        ConnectedCounter(options(server.url), endpoints) as fallback_counter,
    ):
        long = [await fallback_counter.count_text("long " * 1000 + str(i), "gpt-4o") for i in range(4)]
        short = await fallback_counter.count_text(TEXT, "gpt-4o")

    assert not any(count.total.exact for count in long)
    assert short.backend == "endpoint"
    assert endpoints.breaker(server.url).is_closed


class UnsupportedCounter:
    """A counter that supports nothing."""

    name, url = "nothing", "http://127.0.0.1:9"

    def text_query(self, text: str, model: str) -> CountQuery:
        raise Unsupported

    def request_query(self, request: Request) -> CountQuery:
        raise Unsupported

    async def fetch_count(self, query: CountQuery) -> TokenCount:
        raise AssertionError("no query is made")


async def test_unsupported_subjects_get_the_offline_count_unchanged() -> None:
    """Regression: a text was inexact because OpenAI's endpoint counts only requests."""
    fallback_counter = FallbackCounter(counter_for, endpoint_for=lambda _: UnsupportedCounter())

    assert (await fallback_counter.count_text(TEXT, "gpt-4o")).total == OFFLINE
    assert (await fallback_counter.count_request(formats.parse_request(CHAT))) == foveate.count_request(CHAT)


async def test_an_empty_text_is_counted_without_a_request() -> None:
    async with (
        raw_server(llama_tokenize) as server,
        ConnectedCounter(options(server.url), EndpointRegistry()) as fallback_counter,
    ):
        count = await fallback_counter.count_text("", "gpt-4o")

    assert count.total == TokenCount(0, True, 0)
    assert server.requests == 0


async def test_a_text_with_lone_surrogates_is_counted() -> None:
    async with (
        raw_server(llama_tokenize) as server,
        ConnectedCounter(options(server.url), EndpointRegistry()) as fallback_counter,
    ):
        count = await fallback_counter.count_text("a lone surrogate \ud83d and more", "gpt-4o")

    assert count.backend == "endpoint"
    assert count.total.tokens == 6


async def test_a_llama_server_without_chat_counting_counts_the_templated_text() -> None:
    def behave(path: str, body: bytes) -> bytes:
        if path == "/apply-template":
            message_content = json.loads(body)["messages"][0]["content"]
            return ok_response({"prompt": f"<start> {message_content} <end>"})
        return llama_tokenize(path, body)

    async with (
        raw_server(behave) as server,
        ConnectedCounter(options(server.url), EndpointRegistry()) as fallback_counter,
    ):
        first = await fallback_counter.count_request(formats.parse_request(CHAT))
        await fallback_counter.count_request(formats.parse_request({**CHAT, "user": "other"}))

    assert first.total == TokenCount(6, True, 6)
    routes = [path for path, _ in server.sent]
    assert routes.count("/v1/chat/completions/input_tokens") == 1


async def test_known_endpoints_are_not_probed_again() -> None:
    endpoints = EndpointRegistry()
    async with raw_server(always_reply(http_response(404))) as server:
        for _ in range(3):
            async with ConnectedCounter(options(server.url), endpoints) as fallback_counter:
                await fallback_counter.count_text(TEXT, "gpt-4o")

    assert server.requests == 1
    assert "404" in (endpoints.unsupported_reason(server.url, "text") or "")


async def test_the_kind_of_tokenize_server_is_detected() -> None:
    async with raw_server(llama_tokenize) as llama, vllm() as other, JsonClient() as client:
        assert await TokenizeCounter(client, llama.url).detect_server() == "llama.cpp"
        assert await TokenizeCounter(client, f"{other.url}/v1/").detect_server() == "vLLM"
