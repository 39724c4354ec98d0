"""Models with an unknown tokenizer are counted well after a few usage reports."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from foveate.compaction.plan import CompactionOptions
from foveate.cost.ledger import Charge
from foveate.engine.options import AgentOptions
from foveate.store import open_store
from tests.support.scenarios.file_reader import run_file_reader
from tests.support.scenarios.scaled_tokenizer import scaled_block_tokens
from tests.support.servers.gateway import running_gateway
from tests.support.servers.sandbox import KEY, running_sandbox

CALIBRATION_CALLS = 4


def read_count_errors(folder: Path, category: str = "main") -> list[float]:
    """Return the relative error of each count against the reported usage, in call order."""

    async def read() -> list[Charge]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            return [entry async for entry in store.ledger.list_charges() if entry.call.category == category]

    charges = asyncio.run(read())
    return [
        entry.estimated_input_tokens / entry.usage.cache.input_tokens - 1
        for entry in charges
        if entry.estimated_input_tokens is not None
    ]


@pytest.mark.parametrize("rate", [1.3, 0.7])
def test_a_new_model_with_a_different_tokenizer_is_soon_counted_within_five_percent(
    tmp_path: Path, rate: float
) -> None:
    sentence = "The parser reads {n} lines and {n} words of src/part_{n}.py before it stops. "
    with (
        running_sandbox(tokens=scaled_block_tokens(rate)) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as openai_client,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        for number in range(10):
            conversation: Any = [
                {"role": "user", "content": sentence.format(n=number) * (3 + 40 * (number % 5))}
            ]
            client.messages.create(model="claude-opus-9", max_tokens=50, messages=conversation)
            openai_client.chat.completions.create(model="gpt-9", messages=conversation)
            sandbox.clock.now += 1

    errors = read_count_errors(tmp_path)
    assert len(errors) == 20
    assert gateway.failed_steps == []
    assert all(abs(error) > 0.15 for error in errors[:2])
    assert all(abs(error) < 0.05 for error in errors[2 * CALIBRATION_CALLS :]), errors


def test_calibration_survives_a_restart_of_the_gateway(tmp_path: Path) -> None:
    """Regression: counts were off by a third after a restart, and oversized requests were sent."""
    sentence = "The parser reads {n} lines and {n} words of src/part_{n}.py before it stops. "
    with running_sandbox(tokens=scaled_block_tokens(1.3)) as sandbox:
        for start in range(2):
            with (
                running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
                anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
            ):
                for number in range(6):
                    conversation: Any = [
                        {"role": "user", "content": sentence.format(n=10 * start + number) * (9 + 20 * number)}
                    ]
                    client.messages.create(model="claude-opus-9", max_tokens=50, messages=conversation)
                    sandbox.clock.now += 1

    errors = read_count_errors(tmp_path)
    assert len(errors) == 12
    assert abs(errors[0]) > 0.15
    assert all(abs(error) < 0.05 for error in errors[6:]), errors


def test_calibration_works_for_compacted_histories_which_stay_within_the_window(tmp_path: Path) -> None:
    options = AgentOptions(
        compaction=True, window_tokens=16_000, compaction_options=CompactionOptions(extractive=True)
    )
    with (
        running_sandbox(tokens=scaled_block_tokens(1.3)) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client,
    ):
        reported_usage = run_file_reader(client, sandbox, 25, "claude-opus-9")

    errors = read_count_errors(tmp_path)
    assert gateway.failed_steps == []
    assert len(errors) == 25
    assert sum(reported_usage.inputs) / 25 < 14_000  # it was compacted
    assert max(reported_usage.inputs) <= 16_000 - 500
    assert all(abs(error) < 0.05 for error in errors[CALIBRATION_CALLS:]), errors


def test_tokens_added_by_the_provider_do_not_affect_calibration(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as openai_client,
    ):
        stored_response = openai_client.responses.create(model="gpt-9", input="word " * 300)
        for _ in range(5):  # the usage of each includes the conversation that the provider stores
            sandbox.clock.now += 1
            openai_client.responses.create(
                model="gpt-9", input="word " * 300, previous_response_id=stored_response.id
            )
        sandbox.clock.now += 1
        openai_client.responses.create(model="gpt-9", input="word " * 320)

    errors = read_count_errors(tmp_path)
    assert abs(errors[1]) < 0.05  # the size of the stored conversation is known from the previous response
    assert abs(errors[-1] - errors[0]) < 0.01
