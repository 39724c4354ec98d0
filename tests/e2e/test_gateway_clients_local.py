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

MOST_TOKENS = 8
HELLO: Any = [{"role": "user", "content": "Say hello."}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def gateway(llama_server: LlamaServer, folder: Path) -> Iterator[RunningGateway]:
    with running_gateway(llama_server.base_url, folder) as running:
        yield running
    assert running.failed_steps == []


def test_the_anthropic_client_works(gateway: RunningGateway, llama_server: LlamaServer) -> None:
    asking: Any = {"model": llama_server.model, "max_tokens": MOST_TOKENS, "messages": HELLO}
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        whole: Any = client.messages.create(**asking)
        with client.messages.stream(**asking) as stream:
            response = stream.get_final_text()
        counted = client.messages.count_tokens(model=llama_server.model, messages=HELLO)

    assert whole.content[0].text == response
    usage = whole.usage
    assert 0 < usage.output_tokens <= MOST_TOKENS
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_the_openai_client_works(gateway: RunningGateway, llama_server: LlamaServer) -> None:
    asking: Any = {"model": llama_server.model, "max_tokens": MOST_TOKENS, "messages": HELLO}
    with openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client:
        whole = client.chat.completions.create(**asking)
        chunks = list(client.chat.completions.create(**asking, stream=True))
        models = [model.id for model in client.models.list()]

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert all(chunk.usage is None for chunk in chunks)
    assert llama_server.model in models


async def test_the_async_clients_work(gateway: RunningGateway, llama_server: LlamaServer) -> None:
    asking: Any = {"model": llama_server.model, "max_tokens": MOST_TOKENS, "messages": HELLO}
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as claude:
        whole: Any = await claude.messages.create(**asking)
        async with claude.messages.stream(**asking) as stream:
            response = await stream.get_final_text()
    async with openai.AsyncOpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as gpt:
        chat = await gpt.chat.completions.create(**asking)
        pieces = [chunk async for chunk in await gpt.chat.completions.create(**asking, stream=True)]

    assert whole.content[0].text == response
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == chat.choices[0].message.content


@pytest.mark.parametrize("api_format", ["anthropic", "openai"])
def test_several_turns_are_one_session_and_are_charged_according_to_their_usage(
    gateway: RunningGateway, llama_server: LlamaServer, folder: Path, api_format: str
) -> None:
    agent = f"talker-{api_format}"
    headers = {"x-foveate-agent": agent}
    messages: Any = []
    read = wrote = 0
    for question in ("Name a colour.", "Name another one.", "Which was the first?"):
        messages.append({"role": "user", "content": question})
        asking: Any = {"model": llama_server.model, "max_tokens": MOST_TOKENS, "messages": messages}
        if api_format == "anthropic":
            with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, default_headers=headers) as claude:
                reply: Any = claude.messages.create(**asking)
            response = reply.content[0].text
            read += reply.usage.input_tokens + (reply.usage.cache_read_input_tokens or 0)
            wrote += reply.usage.output_tokens
        else:
            with openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, default_headers=headers) as gpt:
                chat: Any = gpt.chat.completions.create(**asking)
            response = chat.choices[0].message.content
            read += chat.usage.prompt_tokens
            wrote += chat.usage.completion_tokens
        messages.append({"role": "assistant", "content": response})

    (found,) = wait_for_agent_sums(folder / "gateway.sqlite", agent, 3, GroupBy.SESSION)
    assert (found.calls, found.partial_calls) == (3, 0)
    assert found.unknown_calls == 3  # nobody sells this model, and unknown is never zero
    assert found.uncached + found.read == read
    assert found.output_tokens == wrote
