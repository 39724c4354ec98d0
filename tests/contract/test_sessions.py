"""Sessions are found and counted alike on both databases, by gateways that share one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from foveate import formats
from foveate.model import Format, Request
from foveate.session.counting import TurnCounter
from foveate.session.hash_chain import compute_chain
from foveate.store import Store, open_store
from foveate.tokens import counter_for
from tests.support.scenarios.conversations import Worker, model, request_body, user

AGENT = "agent"


@pytest.fixture
async def stores(database_url: str) -> AsyncIterator[list[Store]]:
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(await open_store(database_url)) for _ in range(3)]


async def test_conversations_with_equal_text_stay_separate_on_any_gateway(
    stores: list[Store],
) -> None:
    workers = [Worker(store.sessions, has_others=True) for store in stores]

    async def converse(number: int) -> list[str]:
        messages, session_ids = [user("hello")], []
        for turn in range(5):
            request = await workers[(number + turn) % 3].send(request_body(messages), now=float(turn))
            session_ids.append(request.id)
            await request.answer(f"Answer {number}")
            messages += [model(f"Answer {number}"), user("go on")]
        return session_ids

    conversations = await asyncio.gather(*(converse(number) for number in range(9)))

    assert {len(set(session_ids)) for session_ids in conversations} == {1}
    assert set(Counter(session_ids[0] for session_ids in conversations).values()) == {1}


async def test_a_fork_and_a_rewritten_answer_are_found_by_another_gateway(stores: list[Store]) -> None:
    first_worker, second_worker, third_worker = [Worker(store.sessions) for store in stores]
    first = await first_worker.send_and_answer(user("a"), answer="(b)")
    second = await second_worker.send_and_answer(user("a"), model("b"), user("c"), answer="d")
    fork = await third_worker.send_and_answer(user("a"), model("b"), user("x"))

    assert second.id == first.id
    assert fork.session_match.session.parent_id == first.id


async def test_a_previous_response_is_found_by_another_gateway(stores: list[Store]) -> None:
    first_worker, second_worker, _ = [Worker(store.sessions) for store in stores]
    first = await first_worker.send({"model": "gpt-5.2", "input": "hello"}, api_format=Format.RESPONSES)
    await first.answer("Hi.", response="resp_1")
    body = {"model": "gpt-5.2", "input": "more", "previous_response_id": "resp_1"}

    assert (await second_worker.send(body, api_format=Format.RESPONSES)).id == first.id


def make_request(messages: int) -> Request:
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "messages": [
            {
                "role": ("user", "assistant")[at % 2],
                "content": f"Message {at}, whose square is {at * at}",
            }
            for at in range(messages)
        ],
    }
    return formats.parse_request(body)


async def test_counts_of_one_gateway_give_the_same_totals_on_another(stores: list[Store]) -> None:
    counter = counter_for("claude-sonnet-4-5")
    for messages, store in zip((40, 41, 45), stores, strict=True):
        request = make_request(messages)
        count = await TurnCounter(store.sessions).count(AGENT, request, compute_chain(request), counter)

        assert count.total == counter.count_request(request).total
