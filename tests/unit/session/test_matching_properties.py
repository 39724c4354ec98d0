"""Two conversations are never merged, and one is never split while its client names it."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.conversations import (
    Message,
    SentRequest,
    Worker,
    model,
    request_body,
    tool_call,
    tool_result,
    user,
)
from tests.support.stores.memory_session_store import InMemory

FIRST_WORDS = ("hello", "Fix the bug in main.py.")
ANSWERS = ("Done.", "I will look at the files first. " * 8, "The tests pass now, and the bug is gone. " * 8)
CLIENTS = ("plain", "tools", "rearranging", "rewriting", "claude-code", "codex", "opencode", "header")
NAMED = frozenset(CLIENTS[4:])


@dataclass
class Talk:
    """One conversation of one client."""

    number: int
    client: str
    caller: str
    system: str
    messages: list[Message]
    sent: SentRequest | None = None
    turns: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)  # each with the session that it was found in
    failed: list[tuple[str, str]] = field(default_factory=list)  # those of them that got no answer

    @property
    def headers(self) -> dict[str, str]:
        """How the client names the conversation."""
        match self.client:
            case "claude-code":
                return {"x-claude-code-session-id": f"uuid-{self.number}"}
            case "codex":
                return {"session-id": f"uuid-{self.number}", "thread-id": f"uuid-{self.number}"}
            case "opencode":
                return {"x-session-id": f"uuid-{self.number}"}
        return {}

    def body(self) -> dict[str, Any]:
        messages = list(self.messages)
        if self.client == "rearranging":  # files behind the history, as aider sends them
            messages[-1:-1] = [user("These are the files."), model("Ok.")]
        return request_body(messages, system=self.system)

    def take(self, answer: str, chance: Random) -> None:
        """Add an answer and the next message."""
        self.turns += 1
        if self.client == "tools":
            call = f"toolu_{self.number:08}{self.turns:016}"
            self.messages += [tool_call(call), tool_result(call, "text")]
            return
        self.messages += [model("(an answer)" if self.client == "rewriting" else answer), user("go on")]
        if self.client in NAMED and chance.random() < 0.2:  # the client compacts its history, or goes back
            self.messages[:] = [user("A summary.")]


async def run(seed: int, size: int, workers: int) -> list[Talk]:
    chance = Random(seed)
    store = InMemory()
    gateway = [Worker(store, has_others=workers > 1) for _ in range(workers)]
    talks = [
        Talk(
            number=number,
            client=chance.choice(CLIENTS),
            caller=chance.choice("ab"),
            system=chance.choice("xy"),
            messages=[user(chance.choice(FIRST_WORDS))],
        )
        for number in range(size)
    ]
    for _ in range(8 * size):
        talk = chance.choice(talks)
        if talk.sent is None:
            worker = chance.choice(gateway)
            name = f"name-{talk.number}" if talk.client == "header" else None
            talk.sent = await worker.send(
                talk.body(), caller=f"{talk.client} {talk.caller}", name=name, headers=talk.headers
            )
            talk.requests.append((talk.sent.id, json.dumps(talk.body())))
        elif chance.random() < 0.1:
            await talk.sent.fail()
            talk.failed.append(talk.requests[-1])
            talk.sent = None
        else:
            answer = f"Answer {chance.random()}" if chance.random() < 0.5 else chance.choice(ANSWERS)
            calls = [f"toolu_{talk.number:08}{talk.turns + 1:016}"] if talk.client == "tools" else []
            await talk.sent.answer("" if calls else answer, calls=calls)
            talk.take(answer, chance)
            talk.sent = None
    return talks


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), size=st.integers(2, 8), workers=st.integers(1, 3))
@example(seed=8, size=3, workers=2)
@example(seed=367, size=6, workers=2)
@example(seed=2442, size=4, workers=1)
@example(seed=6108, size=6, workers=1)
@example(seed=9952, size=6, workers=2)
@settings(max_examples=limit_examples(200))
def test_conversations_are_never_merged_and_a_named_one_is_never_split(
    seed: int, size: int, workers: int
) -> None:
    """Clients of several kinds talk at the same time, with the same words and answers, through some workers.

    All requests of a session are requests of one conversation. Two conversations that are alike so far are
    interchangeable: one of them may repeat in its session what the other has sent in vain.
    """
    talks = asyncio.run(run(seed, size, workers))

    sent = [Counter(body for _, body in talk.requests) for talk in talks]
    sessions: dict[str, Counter[str]] = {}
    for talk in talks:
        for session, body in talk.requests:
            sessions.setdefault(session, Counter())[body] += 1
        if talk.client in NAMED:
            assert len({session for session, _ in talk.requests}) <= 1
    failed = Counter(request for talk in talks for request in talk.failed)
    for session, bodies in sessions.items():
        answered = Counter({body: times - failed[session, body] for body, times in bodies.items()})
        assert any(answered <= own and bodies.keys() <= own.keys() for own in sent)
