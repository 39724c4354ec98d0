"""Vocabularies are loaded without blocking the event loop."""

import asyncio
from os import stat_result
from pathlib import Path, PosixPath

import pytest

from foveate.engine.counting.offline_counters import is_counter_loaded, load_counter, offline_counter
from foveate.errors import BadVocabulary
from foveate.tokens.offline_counters import Backend, CounterOptions
from tests.support.scenarios.vocabulary_files import write_byte_vocabulary


async def test_a_vocabulary_is_loaded_once_while_other_requests_run(tmp_path: Path) -> None:
    """Regression: the first request of a model family blocked the event loop for up to half a second."""
    options = CounterOptions(vocabulary=write_byte_vocabulary(tmp_path))
    other_steps = 0

    async def run_another_request() -> None:
        nonlocal other_steps
        while True:
            other_steps += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(run_another_request())
    try:
        assert not is_counter_loaded(options, "some-model")
        await load_counter(options, "some-model")
        assert other_steps > 1
        assert is_counter_loaded(options, "some-model")

        other_steps = 0
        await load_counter(options, "some-model")
        assert other_steps == 0
    finally:
        other.cancel()
    assert offline_counter(options, "some-model").text("ab").tokens == 2


async def test_a_vocabulary_that_cannot_be_loaded_is_reported_by_the_first_count(tmp_path: Path) -> None:
    options = CounterOptions(vocabulary=tmp_path / "missing.tiktoken")
    await load_counter(options, "some-model")

    assert not is_counter_loaded(options, "some-model")
    with pytest.raises(BadVocabulary):
        offline_counter(options, "some-model")


class UnusablePath(PosixPath):
    def stat(self, *, follow_symlinks: bool = True) -> stat_result:
        raise RuntimeError("can't start new thread")


async def test_an_unexpected_error_is_also_left_to_the_first_count() -> None:
    """Regression: it rejected the request, which must be sent whatever fails."""
    options = CounterOptions(vocabulary=UnusablePath("cl100k.tiktoken"))
    await load_counter(options, "some-model")

    assert not is_counter_loaded(options, "some-model")
    with pytest.raises(RuntimeError):
        offline_counter(options, "some-model")


def test_an_estimate_needs_no_vocabulary() -> None:
    assert is_counter_loaded(CounterOptions(backend=Backend.ESTIMATE), "gemma-2-9b")
