"""Counts through a real llama.cpp server, compared with the usage that it reports."""

import asyncio
import json
from typing import Any
from urllib.request import Request, urlopen

import pytest

from foveate import formats
from foveate.http import JsonClient
from foveate.model import Format
from foveate.tokens import Backend, ConnectedCounter, CounterOptions
from foveate.tokens.counter import RequestCount
from foveate.tokens.remote.endpoints import TokenizeServer
from foveate.tokens.remote.model_servers import TokenizeCounter
from foveate.tokens.remote.providers import AnthropicCounter
from tests.support.servers.llama import LlamaServer

TIMEOUT_MS = 20_000

TEXTS = {
    "prose": "The fovea is the small pit in the retina where vision is sharpest.",
    "code": "def f(x: int) -> int:\n    return x ** 2  # square\n",
    "JSON": '{"name": "f", "values": [1, 2.5, null, true]}',
    "CJK": "視野の中心だけがはっきり見える。",
    "emoji and combining marks": "👩‍👩‍👧‍👦 naïve café ☕",
    "special tokens spelled out": "<|im_start|>user<|im_end|>",
    "blanks": " \n\t  \n",
    "one letter": "a",
}

TOOL = {
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CHATS: dict[str, dict[str, Any]] = {
    "one message": {"messages": [{"role": "user", "content": "Say hello."}]},
    "a system prompt and turns": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Who are you?"},
            {"role": "assistant", "content": "A small model."},
            {"role": "user", "content": [{"type": "text", "text": "How small?"}]},
        ]
    },
    "tools": {
        "messages": [{"role": "user", "content": "The weather in Paris?"}],
        "tools": [{"type": "function", "function": TOOL}],
    },
}
MESSAGES: dict[str, dict[str, Any]] = {
    "one message": {"messages": [{"role": "user", "content": "Say hello."}]},
    "a system prompt and turns": {
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Who are you?"},
            {"role": "assistant", "content": [{"type": "text", "text": "A small model."}]},
            {"role": "user", "content": "How small?"},
        ],
    },
    "tools": {
        "system": [{"type": "text", "text": "Use tools."}],
        "messages": [{"role": "user", "content": "The weather in Paris?"}],
        "tools": [
            {
                "name": TOOL["name"],
                "description": TOOL["description"],
                "input_schema": TOOL["parameters"],
            }
        ],
    },
}
RESPONSES: dict[str, dict[str, Any]] = {
    "a text": {"input": "Say hello."},
    "instructions and turns": {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Who are you?"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "A small model."}],
            },
            {"role": "user", "content": [{"type": "input_text", "text": "How small?"}]},
        ],
    },
}


def post(server: LlamaServer, path: str, body: object) -> dict[str, Any]:
    request = Request(
        server.base_url + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=60) as response:
        decoded = json.loads(response.read())
    assert isinstance(decoded, dict)
    return decoded


def endpoint_options(server: LlamaServer) -> CounterOptions:
    return CounterOptions(endpoint_url=server.base_url, use_endpoint=True, timeout_ms=TIMEOUT_MS)


async def count_request(server: LlamaServer, body: dict[str, Any]) -> RequestCount:
    async with ConnectedCounter(endpoint_options(server)) as connected:
        return await connected.count_request(formats.parse_request(body))


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_text_has_the_tokens_that_the_server_reports(llama_server: LlamaServer, text: str) -> None:
    async with ConnectedCounter(endpoint_options(llama_server)) as connected:
        count = await connected.count_text(text, llama_server.model)

    tokens = post(llama_server, "/tokenize", {"content": text})["tokens"]
    assert (count.total.tokens, count.total.exact) == (len(tokens), True)
    assert count.backend == "endpoint"


@pytest.mark.slow
@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
async def test_the_count_of_a_chat_equals_its_usage(llama_server: LlamaServer, chat: dict[str, Any]) -> None:
    body = {"model": llama_server.model, "max_tokens": 1, "n": 1, **chat}
    count = await count_request(llama_server, body)

    usage = (await asyncio.to_thread(post, llama_server, "/v1/chat/completions", body))["usage"]
    assert count.total.tokens == usage["prompt_tokens"]
    assert count.total.exact
    assert count.backend == "endpoint"


@pytest.mark.slow
@pytest.mark.parametrize("messages", MESSAGES.values(), ids=MESSAGES)
async def test_the_count_of_an_anthropic_request_equals_its_usage(
    llama_server: LlamaServer, messages: dict[str, Any]
) -> None:
    body = {"model": llama_server.model, "max_tokens": 1, "system": "Be kind.", **messages}
    count = await count_request(llama_server, body)

    usage = (await asyncio.to_thread(post, llama_server, "/v1/messages", body))["usage"]
    assert count.total.tokens == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert count.total.exact


@pytest.mark.parametrize("responses", RESPONSES.values(), ids=RESPONSES)
async def test_the_count_of_a_responses_request_equals_its_usage(
    llama_server: LlamaServer, responses: dict[str, Any]
) -> None:
    body = {"model": llama_server.model, "max_output_tokens": 1, **responses}
    count = await count_request(llama_server, body)

    usage = (await asyncio.to_thread(post, llama_server, "/v1/responses", body))["usage"]
    assert count.total.tokens == usage["input_tokens"]
    assert count.total.exact


@pytest.mark.parametrize("messages", MESSAGES.values(), ids=MESSAGES)
async def test_our_counter_and_anthropics_own_client_get_the_same_count(
    llama_server: LlamaServer, messages: dict[str, Any]
) -> None:
    from anthropic import Anthropic

    body: dict[str, Any] = {"model": llama_server.model, **messages}
    with Anthropic(base_url=llama_server.base_url, api_key="none", max_retries=0) as official:
        official_count = await asyncio.to_thread(lambda: official.messages.count_tokens(**body))
    async with JsonClient(timeout_seconds=20) as client:
        counter = AnthropicCounter(client, "none", llama_server.base_url)
        query = counter.request_query(formats.parse_request({**body, "max_tokens": 5}, Format.ANTHROPIC))
        own_count = await counter.fetch_count(query)

    assert own_count.tokens == official_count.input_tokens


async def test_anthropics_counter_counts_a_text_as_the_tokenizer_does(llama_server: LlamaServer) -> None:
    text = TEXTS["prose"]
    async with JsonClient(timeout_seconds=20) as client:
        counter = AnthropicCounter(client, "none", llama_server.base_url)
        count = await counter.fetch_count(counter.text_query(text, llama_server.model))

    assert count.tokens == len(post(llama_server, "/tokenize", {"content": text})["tokens"])


async def test_the_server_is_detected_as_llama_cpp(llama_server: LlamaServer) -> None:
    async with JsonClient(timeout_seconds=20) as client:
        for url in (llama_server.base_url, f"{llama_server.base_url}/", f"{llama_server.base_url}/v1"):
            assert await TokenizeCounter(client, url).detect_server() is TokenizeServer.LLAMA_CPP


async def test_a_format_that_the_server_does_not_support_is_counted_offline(llama_server: LlamaServer) -> None:
    body = {"model": "gpt-4o", "contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
    options = CounterOptions(
        backend=Backend.ENDPOINT, endpoint_url=llama_server.base_url, timeout_ms=TIMEOUT_MS
    )
    async with ConnectedCounter(options) as connected:
        count = await connected.count_request(formats.parse_request(body))

    assert count.backend != "endpoint"
    assert count.total.tokens > 0


async def test_a_text_longer_than_the_window_is_counted(llama_server: LlamaServer) -> None:
    text = "one two three four five " * 10_000
    async with ConnectedCounter(endpoint_options(llama_server)) as connected:
        count = await connected.count_text(text, llama_server.model)

    assert count.total.exact
    assert count.total.tokens > 4096
