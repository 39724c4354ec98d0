"""The official clients through the gateway with a real llama.cpp model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from foveate.cost.ledger import GroupBy
from tests.support.oracles.system_state import wait_for_agent_sums
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.llama import LlamaServer
from tests.support.servers.sandbox import KEY

MAX_TOKENS = 8
MESSAGES: Any = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def gateway(llama_server: LlamaServer, folder: Path) -> Iterator[RunningGateway]:
    with running_gateway(llama_server.base_url, folder) as server:
        yield server
    assert server.failed_steps == []


def test_the_anthropic_client_works(gateway: RunningGateway, llama_server: LlamaServer) -> None:
    arguments: Any = {"model": llama_server.model, "max_tokens": MAX_TOKENS, "messages": MESSAGES}
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        response: Any = client.messages.create(**arguments)
        with client.messages.stream(**arguments) as stream:
            streamed_text = stream.get_final_text()
        count = client.messages.count_tokens(model=llama_server.model, messages=MESSAGES)

    assert response.content[0].text == streamed_text
    usage = response.usage
    assert 0 < usage.output_tokens <= MAX_TOKENS
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_the_openai_client_works(gateway: RunningGateway, llama_server: LlamaServer) -> None:
    arguments: Any = {"model": llama_server.model, "max_tokens": MAX_TOKENS, "messages": MESSAGES}
    with openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client:
        response = client.chat.completions.create(**arguments)
        chunks = list(client.chat.completions.create(**arguments, stream=True))
        models = [model.id for model in client.models.list()]

    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == response.choices[0].message.content
    )
    assert all(chunk.usage is None for chunk in chunks)
    assert llama_server.model in models


async def test_the_async_clients_work(gateway: RunningGateway, llama_server: LlamaServer) -> None:
    arguments: Any = {"model": llama_server.model, "max_tokens": MAX_TOKENS, "messages": MESSAGES}
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as anthropic_client:
        response: Any = await anthropic_client.messages.create(**arguments)
        async with anthropic_client.messages.stream(**arguments) as stream:
            streamed_text = await stream.get_final_text()
    async with openai.AsyncOpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as openai_client:
        completion = await openai_client.chat.completions.create(**arguments)
        pieces = [
            chunk async for chunk in await openai_client.chat.completions.create(**arguments, stream=True)
        ]

    assert response.content[0].text == streamed_text
    assert (
        "".join(piece.choices[0].delta.content or "" for piece in pieces)
        == completion.choices[0].message.content
    )


@pytest.mark.parametrize("api_format", ["anthropic", "openai"])
def test_several_turns_are_one_session_and_are_charged_according_to_their_usage(
    gateway: RunningGateway, llama_server: LlamaServer, folder: Path, api_format: str
) -> None:
    agent = f"talker-{api_format}"
    headers = {"x-foveate-agent": agent}
    messages: Any = []
    input_tokens = output_tokens = 0
    for question in ("Name a colour.", "Name another one.", "Which was the first?"):
        messages.append({"role": "user", "content": question})
        arguments: Any = {"model": llama_server.model, "max_tokens": MAX_TOKENS, "messages": messages}
        if api_format == "anthropic":
            with anthropic.Anthropic(
                base_url=gateway.url, api_key=KEY, default_headers=headers
            ) as anthropic_client:
                reply: Any = anthropic_client.messages.create(**arguments)
            response = reply.content[0].text
            input_tokens += reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0)
            output_tokens += reply.usage.output_tokens
        else:
            with openai.OpenAI(
                base_url=gateway.openai_url, api_key=KEY, default_headers=headers
            ) as openai_client:
                completion: Any = openai_client.chat.completions.create(**arguments)
            response = completion.choices[0].message.content
            input_tokens += completion.usage.prompt_tokens
            output_tokens += completion.usage.completion_tokens
        messages.append({"role": "assistant", "content": response})

    (total,) = wait_for_agent_sums(folder / "gateway.sqlite", agent, 3, GroupBy.SESSION)
    assert (total.calls, total.partial_calls) == (3, 0)
    assert total.unknown_calls == 3  # this model has no price, and an unknown cost is never zero
    assert total.uncached + total.read == input_tokens
    assert total.output_tokens == output_tokens
