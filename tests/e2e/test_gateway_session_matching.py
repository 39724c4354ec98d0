"""Conversations of several clients through one gateway: one session each, with its cost and its cache key."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from foveate.session.store import Session
from foveate.store import open_store
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox

RULES = "You are a careful engineer. " * 400
CLAUDE = {"user-agent": "claude-cli/2.1.197 (external, cli)"}


@pytest.fixture
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as server:
        yield server


@pytest.fixture
def gateway(sandbox: RunningSandbox, tmp_path: Path) -> Iterator[RunningGateway]:
    with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as server:
        yield server
        assert server.failed_steps == []


def read_sessions(folder: Path) -> Sequence[tuple[Session, int]]:
    """Return the charged sessions and their number of calls; the gateway must have stopped."""

    async def read() -> list[tuple[Session, int]]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            calls = Counter([entry.call.session_id async for entry in store.ledger.list_charges()])
            sessions = [
                (await store.sessions.get_session(session_id), count) for session_id, count in calls.items()
            ]
            return [(session, count) for session, count in sessions if session is not None]

    return asyncio.run(read())


def send_message(
    gateway: RunningGateway,
    headers: Mapping[str, str],
    *texts: str,
    system: str = RULES,
    key: str = KEY,
    model: str = "claude-sonnet-5",
) -> None:
    """Send a request with these texts, from user and model in turn."""
    messages: Any = [
        {"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)
    ]
    with anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0) as client:
        client.messages.create(
            model=model, max_tokens=50, system=system, messages=messages, extra_headers=dict(headers)
        )


def test_agents_that_name_their_conversations_have_one_session_each(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    """The agents share a prompt and a key, and have side calls, their own compaction, and sub-agents."""
    with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
        for name in ("one", "two"):
            headers = CLAUDE | {"x-claude-code-session-id": name}
            send_message(gateway, headers, "hello")
            send_message(gateway, headers, "hello", system="Write a title.")
            send_message(gateway, headers, "hello", "Hi.", "look")
            send_message(
                gateway, headers | {"x-claude-code-agent-id": "a"}, "look", system="You look at files."
            )
            send_message(gateway, headers, "A summary of all this.")
        assert gateway.cache_misses == []

    sessions = read_sessions(tmp_path)
    main_ids = {session.id for session, _ in sessions if session.parent_id is None}
    assert sorted((count, session.parent_id in main_ids) for session, count in sessions) == [
        *[(1, True)] * 2,
        *[(4, False)] * 2,
    ]


def test_conversations_without_names_have_one_session_each(sandbox: RunningSandbox, tmp_path: Path) -> None:
    with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
        for _ in range(3):
            with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
                messages: list[Any] = [{"role": "user", "content": "hello"}]
                for _ in range(4):
                    chunks = client.chat.completions.create(model="gpt-4.1", messages=messages, stream=True)
                    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
                    messages += [
                        {"role": "assistant", "content": text},
                        {"role": "user", "content": "go on"},
                    ]

    assert [count for _, count in read_sessions(tmp_path)] == [4, 4, 4]
    keys = Counter(json.loads(request.body)["prompt_cache_key"] for request in sandbox.requests)
    assert sorted(keys.values()) == [4, 4, 4]


def test_previous_responses_are_one_session(sandbox: RunningSandbox, tmp_path: Path) -> None:
    with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
        for _ in range(2):
            with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
                previous_id: str | None = None
                for _ in range(3):
                    response = client.responses.create(
                        model="gpt-5.2", input="go on", previous_response_id=previous_id
                    )
                    previous_id = response.id

    assert [count for _, count in read_sessions(tmp_path)] == [3, 3]


def test_a_key_or_an_agent_does_not_reach_the_session_of_another_one(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
        for agent in ("ana", "ben"):
            send_message(gateway, {"x-foveate-agent": agent, "x-session-id": "same"}, "hello")
        for _ in range(2):
            send_message(gateway, {"x-foveate-agent": "ana"}, "hello")

    assert [count for _, count in read_sessions(tmp_path)] == [1, 1, 1, 1]
