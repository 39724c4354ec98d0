"""Official clients through the gateway to the sandbox."""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import anthropic
import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import ChargeTotal, GroupBy
from foveate.store import open_store
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

HELLO: ChatCompletionUserMessageParam = {"role": "user", "content": "Hello"}


def test_the_anthropic_client_gets_its_response_through_the_gateway(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        reply = client.messages.create(
            model="claude-opus-4-5", max_tokens=100, messages=[{"role": "user", "content": "Hello"}]
        )
        with client.messages.stream(
            model="claude-opus-4-5", max_tokens=100, messages=[{"role": "user", "content": "Hello"}]
        ) as stream:
            text = stream.get_final_text()

    assert reply.content[0].type == "text"
    assert text
    assert gateway.failed_steps == []


def test_the_openai_client_gets_its_response_through_the_gateway(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client,
    ):
        reply = client.chat.completions.create(model="gpt-4.1", messages=[HELLO])
        chunks = list(client.chat.completions.create(model="gpt-4.1", messages=[HELLO], stream=True))
        response = client.responses.create(model="gpt-4.1", input="Hello")

    assert reply.choices[0].message.content
    assert all(chunk.choices for chunk in chunks)
    assert response.output_text
    assert gateway.failed_steps == []


def sum_charges(folder: Path, *by: GroupBy) -> Sequence[ChargeTotal]:
    async def read() -> Sequence[ChargeTotal]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return await store.ledger.sum_charges(by)

    return asyncio.run(read())


def test_every_call_is_in_the_ledger_with_its_price(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        replies = [
            client.messages.create(
                model="claude-opus-4-5",
                max_tokens=100,
                messages=[{"role": "user", "content": f"Hello {number}"}],
                extra_headers={"x-foveate-agent": "ana"},
            )
            for number in range(3)
        ]

    (total,) = sum_charges(tmp_path, GroupBy.AGENT, GroupBy.MODEL)
    assert total.group == ("ana", "claude-opus-4-5")
    assert (total.calls, total.unknown_calls, total.partial_calls) == (3, 0, 0)
    assert total.output_tokens == sum(reply.usage.output_tokens for reply in replies)
    assert total.uncached == sum(reply.usage.input_tokens for reply in replies)
    assert total.dollars > 0


def test_a_call_over_a_cap_is_rejected_in_the_format_of_its_provider_and_not_retried(
    tmp_path: Path,
) -> None:
    caps = [Cap(scope=CapScope.CALL, dollars=Decimal("0.000001"))]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, caps=caps) as gateway,
    ):
        with (
            anthropic.Anthropic(base_url=gateway.url, api_key=KEY) as anthropic_client,
            pytest.raises(anthropic.APIStatusError, match="the cap on a call") as anthropic_error,
        ):
            anthropic_client.messages.create(
                model="claude-opus-4-5", max_tokens=100, messages=[{"role": "user", "content": "Hello"}]
            )
        with (
            openai.OpenAI(base_url=gateway.openai_url, api_key=KEY) as openai_client,
            pytest.raises(openai.APIStatusError, match="the cap on a call") as openai_error,
        ):
            openai_client.chat.completions.create(model="gpt-4.1", messages=[HELLO], max_tokens=100)

    assert (anthropic_error.value.status_code, openai_error.value.status_code) == (402, 402)
    assert sandbox.requests == []
    assert sum_charges(tmp_path, GroupBy.AGENT) == []
