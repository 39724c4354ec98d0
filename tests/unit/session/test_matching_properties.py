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

from foveate.gateway.server.broadcast import RING_BYTES
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.conversations import (
    Message,
    SentRequest,
    Worker,
    model,
    request_body,
    start_workers,
    tool_call,
    tool_result,
    user,
)
from tests.support.stores.memory_session_store import InMemorySessionStore

FIRST_WORDS = ("hello", "Fix the bug in main.py.")
ANSWERS = ("Done.", "I will look at the files first. " * 8, "The tests pass now, and the bug is gone. " * 8)
CLIENTS = ("plain", "tools", "rearranging", "rewriting", "claude-code", "codex", "opencode", "header")
NAMED = frozenset(CLIENTS[4:])


@dataclass
class Conversation:
    """One conversation of one client."""

    number: int
    client: str
    caller: str
    system: str
    messages: list[Message]
    pending: SentRequest | None = None
    turns: int = 0
    requests: list[tuple[str, str]] = field(default_factory=list)  # session id and body of each
    failed: list[tuple[str, str]] = field(default_factory=list)  # requests that got no response

    @property
    def headers(self) -> dict[str, str]:
        """Headers by which the client names the conversation."""
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
        if self.client == "rearranging":  # files after the history, as aider sends them
            messages[-1:-1] = [user("These are the files."), model("Ok.")]
        return request_body(messages, system=self.system)

    def add_response(self, answer: str, rng: Random) -> None:
        """Add a response and the next message."""
        self.turns += 1
        if self.client == "tools":
            call = f"toolu_{self.number:08}{self.turns:016}"
            self.messages += [tool_call(call), tool_result(call, "text")]
            return
        self.messages += [model("(an answer)" if self.client == "rewriting" else answer), user("go on")]
        if self.client in NAMED and rng.random() < 0.2:  # the client compacts its history, or goes back
            self.messages[:] = [user("A summary.")]


async def simulate(seed: int, size: int, workers: int, ring_bytes: int | None) -> list[Conversation]:
    """Without a ring, the workers are on different machines, and each turn is stored at once.

    With one, turns are stored some seconds later.
    """
    rng = Random(seed)
    store = InMemorySessionStore()
    if ring_bytes is None:
        gateway = [Worker(store, has_others=workers > 1) for _ in range(workers)]
    else:
        gateway = start_workers(store, count=workers, ring_bytes=ring_bytes)
    conversations = [
        Conversation(
            number=number,
            client=rng.choice(CLIENTS),
            caller=rng.choice("ab"),
            system=rng.choice("xy"),
            messages=[user(rng.choice(FIRST_WORDS))],
        )
        for number in range(size)
    ]
    for step in range(8 * size):
        if rng.random() < 0.1:
            await rng.choice(gateway).store()
        conversation = rng.choice(conversations)
        if conversation.pending is None:
            connection = rng.randrange(2 * workers)  # clients may share them, as behind a proxy
            name = f"name-{conversation.number}" if conversation.client == "header" else None
            conversation.pending = await gateway[connection % workers].send(
                conversation.body(),
                caller=f"{conversation.client} {conversation.caller}",
                name=name,
                headers=conversation.headers,
                connection=connection,
                now=step / 10,
            )
            conversation.requests.append((conversation.pending.id, json.dumps(conversation.body())))
        elif rng.random() < 0.1:
            await conversation.pending.fail()
            conversation.failed.append(conversation.requests[-1])
            conversation.pending = None
        else:
            answer = f"Answer {rng.random()}" if rng.random() < 0.5 else rng.choice(ANSWERS)
            calls = (
                [f"toolu_{conversation.number:08}{conversation.turns + 1:016}"]
                if conversation.client == "tools"
                else []
            )
            await conversation.pending.answer("" if calls else answer, calls=calls)
            conversation.add_response(answer, rng)
            conversation.pending = None
    return conversations


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(2, 8),
    workers=st.integers(1, 3),
    ring_bytes=st.sampled_from([None, RING_BYTES, 1024]),
)
@example(seed=8, size=3, workers=2, ring_bytes=None)
@example(seed=367, size=6, workers=2, ring_bytes=None)
@example(seed=2442, size=4, workers=1, ring_bytes=None)
@example(seed=6108, size=6, workers=1, ring_bytes=None)
@example(seed=9952, size=6, workers=2, ring_bytes=None)
@example(seed=555, size=4, workers=3, ring_bytes=1024)
@example(seed=764, size=8, workers=2, ring_bytes=1024)
@example(seed=877, size=8, workers=3, ring_bytes=1024)
@settings(max_examples=limit_examples(200))
def test_conversations_are_never_merged_and_a_named_one_is_never_split(
    seed: int, size: int, workers: int, ring_bytes: int | None
) -> None:
    """Several kinds of clients send the same messages concurrently through several workers.

    All requests of a session are requests of one conversation. Two conversations that are alike so far are
    interchangeable: one of them may repeat in its session a request of the other that failed.
    """
    conversations = asyncio.run(simulate(seed, size, workers, ring_bytes))

    counts_by_conversation = [
        Counter(body for _, body in conversation.requests) for conversation in conversations
    ]
    sessions: dict[str, Counter[str]] = {}
    for conversation in conversations:
        for session, body in conversation.requests:
            sessions.setdefault(session, Counter())[body] += 1
        if conversation.client in NAMED:
            assert len({session for session, _ in conversation.requests}) <= 1
    failed = Counter(request for conversation in conversations for request in conversation.failed)
    for session, bodies in sessions.items():
        answered = Counter({body: times - failed[session, body] for body, times in bodies.items()})
        assert any(answered <= counts and bodies.keys() <= counts.keys() for counts in counts_by_conversation)
