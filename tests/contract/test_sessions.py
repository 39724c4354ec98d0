"""Sessions are found and counted alike on both databases, by gateways that share one."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from foveate import wire
from foveate.session.chain import Chain, chain_of
from foveate.session.counting import TurnCounts
from foveate.session.sessions import Found, Tips, find
from foveate.store import Store, open_store
from foveate.tokens import counter_for
from foveate.values import Request
from tests.unit.session.in_memory import words

AGENT = "agent"


@pytest.fixture
async def gateways(database_url: str) -> AsyncIterator[list[Store]]:
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(await open_store(database_url)) for _ in range(3)]


def grown(chance: random.Random) -> list[tuple[str, ...]]:
    """Conversations that begin alike, go on, fork and are taken back."""
    said: list[tuple[str, ...]] = [("hello",)]
    for _ in range(60):
        before = chance.choice(said)
        more = tuple(chance.choices("abc", k=chance.randint(0, 3)))
        said.append(before[: chance.randint(1, len(before))] + more)
    return said


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_gateways_that_look_at_once_lose_no_turn_and_mix_no_sessions(
    gateways: list[Store], seed: int
) -> None:
    chance = random.Random(seed)
    chains = [words(*said) for said in grown(chance)]
    tips = [Tips() for _ in gateways]

    async def asked(chain: Chain) -> Found:
        number = chance.randrange(len(gateways))
        return await find(AGENT, chain, gateways[number].turns, now=1.0, tips=tips[number])

    for start in range(0, len(chains), 12):
        some = chains[start : start + 12]
        for chain, found in zip(some, await asyncio.gather(*map(asked, some)), strict=True):
            await assert_own_turns(gateways[0], chain, found)


async def assert_own_turns(store: Store, chain: Chain, found: Found) -> None:
    """Every message of the chain is a turn of its session or, up to where that was forked, of its parents."""
    known = await store.turns.known(AGENT, chain.hashes)
    session = await store.turns.session(found.session.id)
    for position in reversed(range(len(chain))):
        turn = known[chain.hashes[position]]
        while session is not None and session.id != turn.session_id and session.forked_at is not None:
            parent = await store.turns.session(session.parent_id or "")
            own = [one for one in known.values() if one.session_id == session.id]
            assert not own or session.forked_at == chain.hashes[min(one.position for one in own) - 1]
            session = parent
        assert session is not None
        assert (turn.position, turn.session_id) == (position, session.id)


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
    return wire.read(body)


async def test_what_one_gateway_counted_another_one_adds_up_to_the_same(gateways: list[Store]) -> None:
    counter = counter_for("claude-sonnet-4-5")
    for messages, gateway in zip((40, 41, 45), gateways, strict=True):
        request = request_of(messages)
        counted = await TurnCounts(gateway.turns).count(AGENT, request, chain_of(request), counter)

        assert counted.total == counter.request(request).total
