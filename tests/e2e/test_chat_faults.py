"""Failures in conversations: no message is lost, and the error says what to do."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from foveate.chat.requests import CUT_OFF_TEXT
from foveate.chat.responses import FailureKind, ResponseFragment
from foveate.sandbox.script import ScriptStep
from tests.support.clients.chat import open_chat, parse_request_body, read_spending
from tests.support.servers.sandbox import RunningSandbox, running_sandbox

LONG = "The lighthouse keeper wrote down the wind, the tide and every ship that passed. " * 60


@pytest.fixture
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as server:
        yield server


async def test_an_interrupted_response_keeps_its_text_so_far_and_is_charged(tmp_path: Path) -> None:
    with running_sandbox(
        ScriptStep(text="One two three four five. " * 40, pace_seconds=0.02), ScriptStep()
    ) as sandbox:
        async with open_chat(tmp_path, sandbox.url, model="claude-sonnet-5-5") as chat:

            def show(fragment: ResponseFragment) -> None:
                if "three" in fragment.text:
                    chat.talk.stop()

            answer = await chat.talk.ask("Count!", show)
            spending = await read_spending(tmp_path)
            request = sandbox.wait_for_abandoned_request(within_seconds=5)
            await chat.talk.ask("Go on.")

    assert answer.is_stopped
    assert answer.failure is None
    assert answer.text.startswith("One two three")
    assert len(answer.text) < 500
    assert request.path == "/v1/messages"
    assert spending.keys() == {("claude-sonnet-5-5", "main")}
    assert answer.charge
    assert answer.charge.is_partial
    assert parse_request_body(sandbox.requests[-1])["messages"][1]["content"].endswith(CUT_OFF_TEXT)


async def test_a_message_interrupted_before_any_output_is_not_stored(tmp_path: Path) -> None:
    with running_sandbox(ScriptStep(delay_seconds=20)) as sandbox:
        async with open_chat(tmp_path, sandbox.url) as chat:
            task = asyncio.ensure_future(chat.talk.ask("Hello?"))
            while not sandbox.requests:  # noqa: ASYNC110 - the sandbox runs in another thread
                await asyncio.sleep(0.01)
            chat.talk.stop()
            answer = await task

    assert answer.is_stopped
    assert (answer.text, chat.talk.turns) == ("", ())


FAILURES = {
    "a key that is rejected": (
        ScriptStep(status=401, message="invalid x-api-key"),
        FailureKind.KEY,
        "ANTHROPIC_API_KEY",
    ),
    "too many requests": (ScriptStep(status=429, retry_after_seconds=7), FailureKind.BUSY, "try again in 7 s"),
    "an overloaded provider": (ScriptStep(overloaded=True), FailureKind.BUSY, "rate limited or overloaded"),
    "a provider that fails": (ScriptStep(status=500, message="ouch"), FailureKind.UNREACHABLE, "ouch"),
    "a truncated stream": (ScriptStep(text="Well " * 9, disconnect_after=4), FailureKind.BROKEN, "interrupted"),
    "a stream that fails": (
        ScriptStep(text="Well " * 9, fail_after=4),
        FailureKind.BROKEN,
        "stays in the conversation",
    ),
    "an empty response": (ScriptStep(text=""), FailureKind.REFUSED, "empty"),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_each_failure_is_one_line_that_says_what_to_do(tmp_path: Path, name: str) -> None:
    step, failure_kind, expected_message = FAILURES[name]
    with running_sandbox(step, ScriptStep(text="Now it works.")) as sandbox:
        async with open_chat(tmp_path, sandbox.url, model="claude-sonnet-5-5") as chat:
            answer = await chat.talk.ask("Hello!")
            turn_count = len(chat.talk.turns)
            next_answer = await chat.talk.ask("Hello again!")

    assert answer.failure
    assert answer.failure.kind is failure_kind, answer.failure
    assert expected_message in answer.failure.text
    assert "\n" not in answer.failure.text
    assert turn_count == (2 if answer.text else 0)
    assert (next_answer.failure, next_answer.text) == (None, "Now it works.")


async def test_an_unreachable_provider_is_reported_with_its_address(
    tmp_path: Path, sandbox: RunningSandbox
) -> None:
    extra_config = "  dead: {base_url: 'http://127.0.0.1:9', api: openai}\n"
    async with open_chat(tmp_path, sandbox.url, more=extra_config, model="dead/some-model") as chat:
        answer = await chat.talk.ask("Hello!")

    assert answer.failure
    assert answer.failure.kind is FailureKind.UNREACHABLE
    assert "http://127.0.0.1:9" in answer.failure.text


async def test_a_message_longer_than_the_window_is_rejected_with_advice(
    tmp_path: Path, sandbox: RunningSandbox
) -> None:
    extra_config = "agents: [{id: ana, window_tokens: 2000, on_overflow: refuse}]\n"
    async with open_chat(tmp_path, sandbox.url, more=extra_config, model="gpt-4o", agent="ana") as chat:
        answer = await chat.talk.ask(LONG * 5)
        short_answer = await chat.talk.ask("Hello!")

    assert answer.failure
    assert answer.failure.kind is FailureKind.WINDOW
    assert "send a shorter message" in answer.failure.text
    assert short_answer.failure is None
    assert parse_request_body(sandbox.requests[0])["max_completion_tokens"] == 500


async def test_a_megabyte_and_a_lone_surrogate_are_valid_messages(
    tmp_path: Path, sandbox: RunningSandbox
) -> None:
    async with open_chat(tmp_path, sandbox.url, model="claude-sonnet-5-5") as chat:
        large_answer = await chat.talk.ask("x y " * 262_144)
        surrogate_answer = await chat.talk.ask("half \ud83d of one")

    assert (large_answer.failure, surrogate_answer.failure) == (None, None)
    assert "half \ufffd of one" in sandbox.requests[-1].body.decode()
