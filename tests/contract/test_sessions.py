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
async def gateways(database_url: str) -> AsyncIterator[list[Store]]:
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(await open_store(database_url)) for _ in range(3)]


async def test_conversations_with_equal_text_stay_separate_on_any_gateway(
    gateways: list[Store],
) -> None:
    workers = [Worker(store.sessions, has_others=True) for store in gateways]

    async def talk(number: int) -> list[str]:
        messages, found = [user("hello")], []
        for turn in range(5):
            sent = await workers[(number + turn) % 3].send(request_body(messages), now=float(turn))
            found.append(sent.id)
            await sent.answer(f"Answer {number}")
            messages += [model(f"Answer {number}"), user("go on")]
        return found

    talks = await asyncio.gather(*(talk(number) for number in range(9)))

    assert {len(set(found)) for found in talks} == {1}
    assert set(Counter(found[0] for found in talks).values()) == {1}


async def test_a_fork_and_a_rewritten_answer_are_found_by_another_gateway(gateways: list[Store]) -> None:
    one, other, third = [Worker(store.sessions) for store in gateways]
    first = await one.send_and_answer(user("a"), answer="(b)")
    second = await other.send_and_answer(user("a"), model("b"), user("c"), answer="d")
    fork = await third.send_and_answer(user("a"), model("b"), user("x"))

    assert second.id == first.id
    assert fork.session_match.session.parent_id == first.id


async def test_a_previous_response_is_found_by_another_gateway(gateways: list[Store]) -> None:
    one, other, _ = [Worker(store.sessions) for store in gateways]
    first = await one.send({"model": "gpt-5.2", "input": "hello"}, api_format=Format.RESPONSES)
    await first.answer("Hi.", response="resp_1")
    body = {"model": "gpt-5.2", "input": "more", "previous_response_id": "resp_1"}

    assert (await other.send(body, api_format=Format.RESPONSES)).id == first.id


def request_of(messages: int) -> Request:
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


async def test_counts_of_one_gateway_give_the_same_totals_on_another(gateways: list[Store]) -> None:
    counter = counter_for("claude-sonnet-4-5")
    for messages, gateway in zip((40, 41, 45), gateways, strict=True):
        request = request_of(messages)
        counted = await TurnCounter(gateway.sessions).count(AGENT, request, compute_chain(request), counter)

        assert counted.total == counter.count_request(request).total
