"""Counts by a real llama.cpp server for requests through the gateway."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from foveate.cost.ledger import Category, Charge
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from foveate.tokens import Backend, CounterOptions
from tests.support.servers.gateway import running_gateway
from tests.support.servers.llama import LlamaServer
from tests.support.servers.sandbox import KEY


@pytest.mark.slow
def test_the_count_of_the_server_equals_its_usage(llama_server: LlamaServer, tmp_path: Path) -> None:
    import openai

    counter = CounterOptions(backend=Backend.ENDPOINT, use_endpoint=True, timeout_ms=20_000)
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hello, 你好!"},
    ]
    with (
        running_gateway(llama_server.base_url, tmp_path, options=AgentOptions(counter=counter)) as gateway,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client,
    ):
        client.chat.completions.create(model=llama_server.model, messages=messages, max_tokens=4)

    async def read_charges() -> list[Charge]:
        async with await open_store(f"sqlite:///{tmp_path}/gateway.sqlite") as store:
            return [charge async for charge in store.ledger.list_charges()]

    charges = {charge.call.category: charge for charge in asyncio.run(read_charges())}
    assert charges[Category.MAIN].estimated_input_tokens == charges[Category.MAIN].usage.cache.input_tokens
    assert charges[Category.COUNTING].dollars == 0
    assert gateway.failed_steps == []
