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
    with running_sandbox() as running:
        yield running


@pytest.fixture
def gateway(sandbox: RunningSandbox, tmp_path: Path) -> Iterator[RunningGateway]:
    with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as running:
        yield running
        assert running.failed_steps == []


def read_sessions(folder: Path) -> Sequence[tuple[Session, int]]:
    """Charged sessions and their number of calls, read after the gateway stops."""

    async def read() -> list[tuple[Session, int]]:
        async with await open_store(f"sqlite:///{folder}/gateway.sqlite") as store:
            calls = Counter([entry.call.session_id async for entry in store.ledger.list_charges()])
            found = [(await store.sessions.get_session(id_), count) for id_, count in calls.items()]
            return [(session, count) for session, count in found if session is not None]

    return asyncio.run(read())


def ask(
    gateway: RunningGateway,
    headers: Mapping[str, str],
    *texts: str,
    system: str = RULES,
    key: str = KEY,
    model: str = "claude-sonnet-5",
) -> None:
    """Send a request with these texts, from user and model in turn."""
    messages: Any = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    with anthropic.Anthropic(base_url=gateway.url, api_key=key, max_retries=0) as client:
        client.messages.create(
            model=model, max_tokens=50, system=system, messages=messages, extra_headers=dict(headers)
        )


def test_agents_that_name_their_conversations_have_one_session_each(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    """They share a prompt and a key, and have side calls, their own compaction, and sub-agents."""
    with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
        for name in ("one", "two"):
            main = CLAUDE | {"x-claude-code-session-id": name}
            ask(gateway, main, "hello")
            ask(gateway, main, "hello", system="Write a title.")
            ask(gateway, main, "hello", "Hi.", "look")
            ask(gateway, main | {"x-claude-code-agent-id": "a"}, "look", system="You look at files.")
            ask(gateway, main, "A summary of all this.")
        assert gateway.cache_misses == []

    found = read_sessions(tmp_path)
    mains = {session.id for session, _ in found if session.parent_id is None}
    assert sorted((count, session.parent_id in mains) for session, count in found) == [
        *[(1, True)] * 2,
        *[(4, False)] * 2,
    ]


def test_conversations_without_names_have_one_session_each(sandbox: RunningSandbox, tmp_path: Path) -> None:
    with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
        for _ in range(3):
            with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
                messages: list[Any] = [{"role": "user", "content": "hello"}]
                for _ in range(4):
                    texts = client.chat.completions.create(model="gpt-4.1", messages=messages, stream=True)
                    answer = "".join(chunk.choices[0].delta.content or "" for chunk in texts if chunk.choices)
                    messages += [
                        {"role": "assistant", "content": answer},
                        {"role": "user", "content": "go on"},
                    ]

    assert [count for _, count in read_sessions(tmp_path)] == [4, 4, 4]
    keys = Counter(json.loads(heard.body)["prompt_cache_key"] for heard in sandbox.requests)
    assert sorted(keys.values()) == [4, 4, 4]


def test_previous_responses_are_one_session(sandbox: RunningSandbox, tmp_path: Path) -> None:
    with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
        for _ in range(2):
            with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
                previous: str | None = None
                for _ in range(3):
                    answer = client.responses.create(
                        model="gpt-5.2", input="go on", previous_response_id=previous
                    )
                    previous = answer.id

    assert [count for _, count in read_sessions(tmp_path)] == [3, 3]


def test_a_key_or_an_agent_does_not_reach_the_session_of_another_one(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    with running_gateway(sandbox.url, tmp_path, clock=sandbox.clock) as gateway:
        for agent in ("ana", "ben"):
            ask(gateway, {"x-foveate-agent": agent, "x-session-id": "same"}, "hello")
        for _ in range(2):
            ask(gateway, {"x-foveate-agent": "ana"}, "hello")

    assert [count for _, count in read_sessions(tmp_path)] == [1, 1, 1, 1]
