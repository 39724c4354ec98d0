"""Names and response ids that are not unique apply to one caller, who may renew a token or key."""

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.gateway.auth.callers import hash_caller, hash_name_scope
from foveate.gateway.request import parse_request
from foveate.model import Format
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.conversations import SentRequest, Worker, model, request_body, user
from tests.support.stores.memory_session_store import InMemorySessionStore

PROGRAMS = ("cline", "pi")
KEYS = ("sk-1", "sk-2", None)  # callers without a key send a token that they renew
CLIENTS = ("x-task-id", "x-session-affinity", "session-id", "x-foveate-session", "response", "uuid")


@dataclass
class Conversation:
    """One conversation. `number` counts those of its caller, so that other callers use the same names."""

    client: str
    program: str
    key: str | None
    number: int
    uuid: str
    turns: int = 0
    previous: str = ""
    request: SentRequest | None = None
    sessions: set[str] = field(default_factory=set)

    def credential(self, rng: Random) -> tuple[str, str]:
        if self.client == "uuid":  # the client names it uniquely, and changes its key
            return "x-api-key", f"sk-{rng.random()}"
        return "authorization", f"Bearer {self.key or f'sk-ant-oat01-{rng.random()}'}"

    def name(self) -> dict[str, str]:
        if self.client == "uuid":
            return {"x-session-id": self.uuid}
        return {self.client: str(self.number)} if self.client != "response" else {}

    def body(self) -> dict[str, Any]:
        if self.client == "response":
            more = {"previous_response_id": self.previous} if self.previous else {}
            return {"model": "gpt-5.6", "input": [{"role": "user", "content": f"turn {self.turns}"}], **more}
        return request_body(
            [user("hello"), *(m for _ in range(self.turns) for m in (model("Yes."), user("go on")))]
        )

    async def send(self, worker: Worker, rng: Random, now: float) -> None:
        headers = dict([("user-agent", f"{self.program}/{rng.random()}"), self.credential(rng)])
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        http_request = parse_request(
            {"method": "POST", "path": "/v1/messages", "query_string": b"", "headers": raw}
        )
        names = self.name()
        self.request = await worker.send(
            self.body(),
            caller=hash_caller(http_request),
            scope=hash_name_scope(http_request),
            name=names.pop("x-foveate-session", None),
            headers=names,
            now=now,
            api_format=Format.RESPONSES if self.client == "response" else Format.ANTHROPIC,
        )
        self.sessions.add(self.request.id)

    async def finish(self, rng: Random) -> None:
        assert self.request is not None
        if rng.random() < 0.1:
            await self.request.fail()
            if self.client == "response" and not self.previous:  # nothing names the conversation yet
                self.sessions.clear()
        else:
            self.turns += 1
            self.previous = f"resp_{self.number}_{self.turns}" if self.client == "response" else ""
            await self.request.answer("Yes.", response=self.previous)
        self.request = None


async def simulate(seed: int, size: int, workers: int) -> list[Conversation]:
    rng = Random(seed)
    store = InMemorySessionStore()
    gateway = [Worker(store, has_others=workers > 1) for _ in range(workers)]
    conversations: list[Conversation] = []
    for _ in range(size):
        key, program = rng.choice(KEYS), rng.choice(PROGRAMS)
        number = sum(
            other.key == key and (key is not None or other.program == program) for other in conversations
        )
        uuid = str(UUID(int=rng.getrandbits(128)))
        conversations.append(Conversation(rng.choice(CLIENTS), program, key, number, uuid))
    for step in range(8 * size):
        conversation = rng.choice(conversations)
        if conversation.request is None:
            await conversation.send(rng.choice(gateway), rng, float(step))
        else:
            await conversation.finish(rng)
    return conversations


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), size=st.integers(2, 12), workers=st.integers(1, 3))
@settings(max_examples=limit_examples(200))
def test_callers_with_the_same_names_never_share_or_split_a_session(seed: int, size: int, workers: int) -> None:
    conversations = asyncio.run(simulate(seed, size, workers))

    assert all(len(conversation.sessions) <= 1 for conversation in conversations)
    session_ids = [id_ for conversation in conversations for id_ in conversation.sessions]
    assert len(session_ids) == len(set(session_ids))


async def send_hello(worker: Worker, key: str, **more: Any) -> SentRequest:
    return await worker.send_and_answer(user("hello"), caller=key, scope=key, **more)


@pytest.mark.parametrize("name", ["1", "main", "garden-2026-11-15", "conversation20261115", "1763373000000"])
async def test_the_same_plain_name_of_two_callers_means_two_sessions(name: str) -> None:
    worker = Worker(InMemorySessionStore())
    for more in ({"name": name}, {"headers": {"x-task-id": name}}, {"headers": {"session-id": name}}):
        first, other, again = [await send_hello(worker, key, **more) for key in ("a", "b", "a")]

        assert first.id == again.id != other.id


@pytest.mark.parametrize(
    "name",
    [
        "69247677-d38f-483f-bfd0-64031bf6f175",
        "ses_5c8f2a1b9ffeKq3ZxY7mN2pQrS",
        "run-01ARZ3NDEKTSV4RRFFQ69G5FAV",
        "9f1c4ad2b7e84c03a6d5e2f190b34c7d",
    ],
)
async def test_a_session_with_a_unique_name_continues_with_another_key(name: str) -> None:
    worker = Worker(InMemorySessionStore())
    for more in ({"name": name}, {"headers": {"x-session-id": name}}, {"headers": {"thread-id": name}}):
        first, second = [await send_hello(worker, key, **more) for key in ("a", "b")]

        assert first.id == second.id


async def test_a_child_and_its_parent_have_the_scope_of_their_caller() -> None:
    worker = Worker(InMemorySessionStore())
    parent = await send_hello(worker, "a", headers={"x-session-id": "1"})
    child = await send_hello(worker, "a", headers={"x-session-id": "2", "x-parent-session-id": "1"})

    assert child.session_match.session.parent_id == parent.id
