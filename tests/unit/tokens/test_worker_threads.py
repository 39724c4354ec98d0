"""Long work lets other threads run, and restores the interpreter's settings."""

import gc
import sys
from threading import Barrier, Thread

import pytest

import foveate
from foveate.tokens.worker_threads import frequent_thread_switches

LONG = 1_000_000
LARGE = 2 * 1024 * 1024


def test_the_switch_interval_is_short_inside_and_restored_afterwards() -> None:
    before = sys.getswitchinterval()

    with frequent_thread_switches(LONG), frequent_thread_switches(LONG):
        assert sys.getswitchinterval() <= 0.0001

    assert sys.getswitchinterval() == before


def test_short_work_changes_nothing() -> None:
    before = sys.getswitchinterval()

    with frequent_thread_switches(100):
        assert sys.getswitchinterval() == before


def test_the_interval_is_restored_after_an_error() -> None:
    before = sys.getswitchinterval()

    with pytest.raises(ValueError, match="oh"), frequent_thread_switches(LONG):
        raise ValueError("oh")

    assert sys.getswitchinterval() == before


def test_the_interval_is_restored_after_concurrent_work() -> None:
    before = sys.getswitchinterval()
    start = Barrier(6)

    def count(number: int) -> None:
        start.wait()
        foveate.count(f"{number} and some more words. " * 4000)

    threads = [Thread(target=count, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sys.getswitchinterval() == before


@pytest.mark.parametrize("is_collected", [True, False])
def test_garbage_collection_resumes_after_large_work_only_if_it_was_enabled(*, is_collected: bool) -> None:
    """Regression: it was enabled in programs that had disabled it."""
    before = gc.isenabled()
    (gc.enable if is_collected else gc.disable)()
    try:
        with frequent_thread_switches(LARGE), frequent_thread_switches(LARGE):
            assert not gc.isenabled()
        assert gc.isenabled() is is_collected
    finally:
        (gc.enable if before else gc.disable)()
