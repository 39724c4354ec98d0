"""COUNT-2: the providers' counters, against servers as strict as theirs."""

from dataclasses import replace
from typing import Any

import pytest

import foveate
from foveate import formats
from foveate.errors import BadOption, UpstreamStatus
from foveate.http import JsonClient
from foveate.model import TokenCount
from foveate.tokens import Backend, ConnectedCounter, CounterOptions
from foveate.tokens.remote.endpoints import EndpointRegistry
from foveate.tokens.remote.providers import AnthropicCounter
from tests.support.servers.counting_apis import (
    VLLM_MODEL,
    always_reply,
    anthropic_api,
    gemini_api,
    ok_response,
    openai_api,
    raw_server,
    vllm,
)

TEXT = "a text of six words here"
MESSAGES: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 100,
    "stream": True,
    "temperature": 0.5,
    "metadata": {"user_id": "u"},
    "system": "two words",
    "messages": [{"role": "user", "content": "three more words"}],
}
RESPONSES: dict[str, Any] = {"model": "gpt-4o", "input": "three more words", "store": False, "stream": True}
GEMINI: dict[str, Any] = {
    "model": "models/gemini-2.5-pro",
    "systemInstruction": {"parts": [{"text": "two words"}]},
    "contents": [{"role": "user", "parts": [{"text": "three more words"}]}],
    "safetySettings": [],
}


def make_options(backend: Backend, url: str, key: str) -> CounterOptions:
    return CounterOptions(backend=backend, endpoint_url=url, api_key=key)


async def test_anthropic_gets_only_the_fields_that_its_counter_accepts() -> None:
    async with (
        anthropic_api() as api,
        ConnectedCounter(
            make_options(Backend.ANTHROPIC_API, api.url, "sk-ant-good"), EndpointRegistry()
        ) as fallback_counter,
    ):
        count = await fallback_counter.count_request(formats.parse_request(MESSAGES))

    assert count.backend == "anthropic_api"
    assert count.total.tokens == 2 + 7 + 3
    assert count.total.exact
    assert count.total.upper > count.total.tokens  # Anthropic calls it an estimate
    assert api.body().keys() == {"model", "system", "messages"}


async def test_anthropic_counts_for_the_requested_model() -> None:
    request = replace(formats.parse_request(MESSAGES), model="claude-opus-5-5")
    async with (
        anthropic_api() as api,
        ConnectedCounter(
            make_options(Backend.ANTHROPIC_API, api.url, "sk-ant-good"), EndpointRegistry()
        ) as fallback_counter,
    ):
        await fallback_counter.count_request(request)

    assert api.body()["model"] == "claude-opus-5-5"


async def test_a_text_counts_as_its_message_minus_the_message_overhead() -> None:
    async with (
        anthropic_api() as api,
        ConnectedCounter(
            make_options(Backend.ANTHROPIC_API, api.url, "sk-ant-good"), EndpointRegistry()
        ) as fallback_counter,
    ):
        counts = [
            await fallback_counter.count_text(text, "claude-sonnet-4-5") for text in (TEXT, "two words", TEXT)
        ]

    assert [count.total.tokens for count in counts] == [6, 2, 6]
    assert api.requests == 3  # the empty message, and each text once


async def test_a_blank_text_is_not_sent_to_anthropic() -> None:
    async with (
        anthropic_api() as api,
        ConnectedCounter(
            make_options(Backend.ANTHROPIC_API, api.url, "sk-ant-good"), EndpointRegistry()
        ) as fallback_counter,
    ):
        count = await fallback_counter.count_text("  \n ", "gpt-4o")

    assert api.requests == 0
    assert count.total == foveate.count("  \n ")


async def test_an_unknown_model_at_anthropic_does_not_affect_others() -> None:
    """Regression: its 404 was taken for a missing route, and Claude was no longer counted by it."""
    endpoints = EndpointRegistry()
    async with (
        anthropic_api() as api,
        ConnectedCounter(
            make_options(Backend.ANTHROPIC_API, api.url, "sk-ant-good"), endpoints
        ) as fallback_counter,
    ):
        for _ in range(2):
            unknown = await fallback_counter.count_text(TEXT, "gpt-4")
        requests_before = api.requests
        known_count = await fallback_counter.count_text(TEXT, "claude-sonnet-4-5")

    assert requests_before == 1
    assert unknown.total == foveate.count(TEXT, "gpt-4")
    assert known_count.backend == "anthropic_api"
    assert endpoints.unsupported_reason(api.url, "text") is None
    assert "gpt-4" in (endpoints.unsupported_reason(api.url, "text", "gpt-4") or "")


async def test_a_request_that_needs_a_beta_is_counted_offline_and_not_exact() -> None:
    body = {**MESSAGES, "model": "gpt-4o", "mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}
    async with (
        anthropic_api() as api,
        ConnectedCounter(
            make_options(Backend.ANTHROPIC_API, api.url, "sk-ant-good"), EndpointRegistry()
        ) as fallback_counter,
    ):
        count = await fallback_counter.count_request(formats.parse_request(body))
        supported = await fallback_counter.count_request(formats.parse_request(MESSAGES))

    assert count.backend == "offline"
    assert not count.total.exact
    assert supported.backend == "anthropic_api"


async def test_a_wrong_key_is_reported_and_counts_as_a_failure() -> None:
    endpoints = EndpointRegistry()
    async with (
        anthropic_api() as api,
        ConnectedCounter(
            make_options(Backend.ANTHROPIC_API, api.url, "sk-ant-bad"), endpoints
        ) as fallback_counter,
    ):
        for i in range(5):
            count = await fallback_counter.count_text(f"{TEXT} {i}", "gpt-4o")

    assert api.requests == 3
    assert not count.total.exact
    assert "invalid x-api-key" in endpoints.last_errors[api.url]


async def test_no_error_contains_the_key() -> None:
    async with anthropic_api() as api, JsonClient() as client:
        counter = AnthropicCounter(client, "sk-ant-bad", api.url)
        query = counter.text_query(TEXT, "claude-sonnet-4-5")
        with pytest.raises(UpstreamStatus) as failure:
            await counter.fetch_count(query)

    assert failure.value.status == 401
    assert "sk-ant-bad" not in str(failure.value)


async def test_with_a_key_auto_uses_anthropic_only_for_claude() -> None:
    options = CounterOptions(api_key="sk-ant-good")
    async with ConnectedCounter(
        options, EndpointRegistry()
    ) as fallback_counter:  # the address is Anthropic's own, which a test cannot reach
        count = await fallback_counter.count_text(TEXT, "gpt-4o")

    assert count.total == foveate.count(TEXT)


@pytest.mark.parametrize("reply", [{}, {"input_tokens": "9"}, {"input_tokens": True}, {"input_tokens": -1}])
async def test_an_invalid_number_is_a_permanent_failure(reply: dict[str, object]) -> None:
    endpoints = EndpointRegistry()
    async with raw_server(always_reply(ok_response(reply))) as api:
        for backend, key in ((Backend.ANTHROPIC_API, "k"), (Backend.OPENAI_API, "k")):
            async with ConnectedCounter(make_options(backend, api.url, key), endpoints) as fallback_counter:
                await fallback_counter.count_request(formats.parse_request({**MESSAGES, "model": "gpt-4o"}))
                await fallback_counter.count_request(formats.parse_request(RESPONSES))

    assert "input_tokens" in (endpoints.unsupported_reason(api.url, "anthropic") or "")
    assert "input_tokens" in (endpoints.unsupported_reason(api.url, "openai-responses") or "")


async def test_openai_gets_only_the_fields_that_its_counter_accepts() -> None:
    async with (
        openai_api() as api,
        ConnectedCounter(
            make_options(Backend.OPENAI_API, api.url, "sk-good"), EndpointRegistry()
        ) as fallback_counter,
    ):
        count = await fallback_counter.count_request(formats.parse_request(RESPONSES))

    assert count.backend == "openai_api"
    assert count.total.tokens == 8 + 3
    assert count.total.exact
    assert api.body() == {"model": "gpt-4o", "input": "three more words"}


async def test_openai_is_not_used_for_texts_and_chats_that_are_exact_offline() -> None:
    chat = {"model": "gpt-4o", "messages": [{"role": "user", "content": TEXT}]}
    async with (
        openai_api() as api,
        ConnectedCounter(
            make_options(Backend.OPENAI_API, api.url, "sk-good"), EndpointRegistry()
        ) as fallback_counter,
    ):
        text, chat_count = (
            await fallback_counter.count_text(TEXT, "gpt-4o"),
            await fallback_counter.count_request(formats.parse_request(chat)),
        )

    assert api.requests == 0
    assert text.total == foveate.count(TEXT)
    assert chat_count == foveate.count_request(chat)


@pytest.mark.parametrize(
    "body",
    [
        GEMINI,
        {"generateContentRequest": {key: GEMINI[key] for key in ("model", "contents", "systemInstruction")}},
    ],
    ids=["generateContent", "countTokens"],
)
async def test_gemini_counts_a_request_with_its_system_instruction(body: dict[str, Any]) -> None:
    async with (
        gemini_api() as api,
        ConnectedCounter(
            make_options(Backend.GEMINI_API, api.url, "good"), EndpointRegistry()
        ) as fallback_counter,
    ):
        count = await fallback_counter.count_request(formats.parse_request(body))

    assert count.backend == "gemini_api"
    assert count.total.tokens == 2 + 3
    assert "safetySettings" not in api.body()["generateContentRequest"]


async def test_gemini_counts_a_text() -> None:
    async with (
        gemini_api() as api,
        ConnectedCounter(
            make_options(Backend.GEMINI_API, api.url, "good"), EndpointRegistry()
        ) as fallback_counter,
    ):
        count = await fallback_counter.count_text(TEXT, "gemini-2.5-pro")

    assert count.total.tokens == 6
    assert count.total.exact


async def test_vllm_counts_a_text_without_special_tokens_and_a_chat_with_its_template() -> None:
    chat = {
        "model": VLLM_MODEL,
        "messages": [{"role": "user", "content": "three more words"}],
        "temperature": 0,
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    async with vllm() as server:
        options = CounterOptions(backend=Backend.ENDPOINT, endpoint_url=f"{server.url}/v1")
        async with ConnectedCounter(options, EndpointRegistry()) as fallback_counter:
            text = await fallback_counter.count_text(TEXT, VLLM_MODEL)
            plain = await fallback_counter.count_request(formats.parse_request(chat))
            with_tools = await fallback_counter.count_request(formats.parse_request({**chat, "tools": tools}))

    assert text.total == TokenCount(6, True, 6)
    assert plain.total == TokenCount(5 + 3 + 3, True, 11)
    assert with_tools.total.tokens == 11 + 50


async def test_vllm_counts_for_the_model_it_runs_whatever_the_request_names() -> None:
    """Regression: its 404 for another name was taken for a missing route."""
    async with vllm() as server:
        options = CounterOptions(endpoint_url=server.url, use_endpoint=True)
        async with ConnectedCounter(options, EndpointRegistry()) as fallback_counter:
            counts = [await fallback_counter.count_text(text, "gpt-4o") for text in (TEXT, "two words")]

    assert [count.total for count in counts] == [TokenCount(6, True, 6), TokenCount(2, True, 2)]
    assert "model" not in server.body()


async def test_vllm_gets_the_continuation_option_of_the_chat() -> None:
    chat = {
        "model": VLLM_MODEL,
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    async with (
        vllm() as server,
        ConnectedCounter(
            CounterOptions(endpoint_url=server.url, use_endpoint=True), EndpointRegistry()
        ) as fallback_counter,
    ):
        count = await fallback_counter.count_request(formats.parse_request(chat))

    assert count.total == TokenCount(2 * 5 + 2, True, 12)


async def test_requests_without_a_vllm_route_are_counted_offline() -> None:
    async with (
        vllm() as server,
        ConnectedCounter(
            CounterOptions(endpoint_url=server.url, use_endpoint=True), EndpointRegistry()
        ) as fallback_counter,
    ):
        first = await fallback_counter.count_request(formats.parse_request(RESPONSES))
        requests_before = server.requests
        await fallback_counter.count_request(formats.parse_request({**RESPONSES, "input": "other"}))

    assert first == foveate.count_request(RESPONSES)
    assert server.requests == requests_before


def test_tiktoken_is_an_alias_of_offline() -> None:
    assert Backend.from_name("tiktoken") is Backend.OFFLINE
    assert Backend.from_name("auto") is Backend.AUTO


def test_an_unknown_backend_is_rejected_with_the_known_names() -> None:
    with pytest.raises(BadOption, match="auto, offline, estimate, endpoint, anthropic_api"):
        Backend.from_name("magic")


@pytest.mark.parametrize(
    "options",
    [
        CounterOptions(backend=Backend.ENDPOINT),
        CounterOptions(backend=Backend.ANTHROPIC_API),
        CounterOptions(backend=Backend.OPENAI_API),
        CounterOptions(backend=Backend.GEMINI_API),
        CounterOptions(backend=Backend.ENDPOINT, endpoint_url="localhost:8080"),
    ],
    ids=lambda options: f"{options.backend} {options.endpoint_url}",
)
async def test_a_backend_without_its_address_or_key_is_rejected(options: CounterOptions) -> None:
    with pytest.raises(BadOption):
        async with ConnectedCounter(options, EndpointRegistry()):
            pass
