"""Calibrations by upstream and counter, on both databases."""

from collections.abc import AsyncIterator

import pytest

from foveate.errors import BadOption
from foveate.store import Store, open_store
from foveate.tokens.calibration import Calibration
from tests.support.stores.database_dumps import run_statements

CLAUDE_KEY, GPT_KEY = ("anthropic", "'claude-opus-9' a"), ("openai", "'gpt-9' b")


def make_calibration(responses: int, rate: float = 1.3) -> Calibration:
    calibration = Calibration()
    for size in range(responses):
        calibration = calibration.observe(1_000 + 97 * size, round((1_000 + 97 * size) * rate))
    return calibration


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    async with await open_store(database_url) as opened:
        yield opened


async def test_calibrations_are_stored_and_loaded_with_the_newest_last(store: Store) -> None:
    await store.calibrations.save({GPT_KEY: make_calibration(2, 0.7)}, now=2.0)
    await store.calibrations.save({CLAUDE_KEY: make_calibration(3)}, now=1.0)

    assert list((await store.calibrations.load_latest(limit=9)).items()) == [
        (CLAUDE_KEY, make_calibration(3)),
        (GPT_KEY, make_calibration(2, 0.7)),
    ]
    assert await store.calibrations.load_latest(limit=1) == {GPT_KEY: make_calibration(2, 0.7)}


async def test_of_two_concurrent_calibrations_the_one_with_more_responses_wins(store: Store) -> None:
    await store.calibrations.save({CLAUDE_KEY: make_calibration(5)}, now=1.0)
    await store.calibrations.save({CLAUDE_KEY: make_calibration(2, 0.7)}, now=2.0)
    assert await store.calibrations.load_latest(limit=9) == {CLAUDE_KEY: make_calibration(5)}

    await store.calibrations.save({CLAUDE_KEY: make_calibration(6)}, now=3.0)
    assert await store.calibrations.load_latest(limit=9) == {CLAUDE_KEY: make_calibration(6)}


async def test_a_calibration_with_a_name_too_long_for_a_key_is_skipped(store: Store) -> None:
    await store.calibrations.save(
        {("openai", "m" * 9_000): make_calibration(1), CLAUDE_KEY: make_calibration(1)}, now=1.0
    )

    assert await store.calibrations.load_latest(limit=9) == {CLAUDE_KEY: make_calibration(1)}
    with pytest.raises(BadOption, match="NUL"):
        await store.calibrations.save({("openai", "a\0b"): make_calibration(1)}, now=1.0)


async def test_an_unreadable_calibration_is_ignored(store: Store, database_url: str) -> None:
    await store.calibrations.save({CLAUDE_KEY: make_calibration(1), GPT_KEY: make_calibration(1)}, now=1.0)
    encoded = b'{"weight": "much"}'.hex()
    literal = f"X'{encoded}'" if database_url.startswith("sqlite") else f"'\\x{encoded}'::bytea"
    run_statements(database_url, f"UPDATE lessons_v1 SET learnt = {literal}")

    assert await store.calibrations.load_latest(limit=9) == {}


async def test_old_calibrations_are_deleted(store: Store) -> None:
    day = 86_400.0
    await store.calibrations.save({CLAUDE_KEY: make_calibration(1)}, now=1 * day)
    await store.calibrations.save({GPT_KEY: make_calibration(1)}, now=9 * day)
    await store.prune(keep_days=5, now=10 * day)

    assert await store.calibrations.load_latest(limit=9) == {GPT_KEY: make_calibration(1)}
