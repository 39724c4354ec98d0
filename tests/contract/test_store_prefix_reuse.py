"""Prefix reuse of agents, on both databases."""

from collections.abc import AsyncIterator

import pytest

from foveate.errors import BadOption
from foveate.prompt_cache.placement.prefix_reuse import AgentReuse, ReuseRate
from foveate.store import Store, open_store
from tests.support.stores.database_dumps import run_statements


def make_reuse(requests: int) -> AgentReuse:
    return AgentReuse({"history": ReuseRate(requests / 2, requests / 4, 0.5)}, requests, 12.5, 2_048.0, 9.5)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


async def test_prefix_reuse_is_loaded_with_the_newest_last(store: Store) -> None:
    await store.prefix_reuse.save({"bo": make_reuse(2)}, now=2.0)
    await store.prefix_reuse.save({"ana": make_reuse(3)}, now=1.0)

    assert list((await store.prefix_reuse.load(since=0.0, limit=9)).items()) == [
        ("ana", make_reuse(3)),
        ("bo", make_reuse(2)),
    ]
    assert await store.prefix_reuse.load(since=0.0, limit=1) == {"bo": make_reuse(2)}
    assert await store.prefix_reuse.load(since=1.5, limit=9) == {"bo": make_reuse(2)}


async def test_of_two_gateways_the_one_that_saw_more_requests_wins(store: Store) -> None:
    await store.prefix_reuse.save({"ana": make_reuse(5)}, now=1.0)
    await store.prefix_reuse.save({"ana": make_reuse(2)}, now=2.0)
    assert await store.prefix_reuse.load(since=0.0, limit=9) == {"ana": make_reuse(5)}

    await store.prefix_reuse.save({"ana": make_reuse(6)}, now=3.0)
    assert await store.prefix_reuse.load(since=0.0, limit=9) == {"ana": make_reuse(6)}


async def test_an_agent_whose_name_is_too_long_for_an_index_is_skipped(store: Store) -> None:
    await store.prefix_reuse.save({"a" * 9_000: make_reuse(1), "bo": make_reuse(1)}, now=1.0)

    assert await store.prefix_reuse.load(since=0.0, limit=9) == {"bo": make_reuse(1)}
    with pytest.raises(BadOption, match="NUL"):
        await store.prefix_reuse.save({"a\0b": make_reuse(1)}, now=1.0)


async def test_a_row_that_cannot_be_read_is_ignored(store: Store, database_url: str) -> None:
    await store.prefix_reuse.save({"ana": make_reuse(1)}, now=1.0)
    encoded = b'{"requests": "many"}'.hex()
    literal = f"X'{encoded}'" if database_url.startswith("sqlite") else f"'\\x{encoded}'::bytea"
    run_statements(database_url, f"UPDATE prefix_reuse_v1 SET learnt = {literal}")

    assert await store.prefix_reuse.load(since=0.0, limit=9) == {}


async def test_prefix_reuse_of_inactive_agents_is_deleted(store: Store) -> None:
    day = 86_400.0
    await store.prefix_reuse.save({"ana": make_reuse(1)}, now=1 * day)
    await store.prefix_reuse.save({"bo": make_reuse(1)}, now=9 * day)
    await store.prune(keep_days=5, now=10 * day)

    assert await store.prefix_reuse.load(since=0.0, limit=9) == {"bo": make_reuse(1)}
