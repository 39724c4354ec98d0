"""Preparation before the first request."""

import gc
import sys
import threading
import time

from foveate.gateway.server.serve import freeze_garbage_collector, shorten_thread_switches


def test_permanent_objects_are_excluded_from_garbage_collection() -> None:
    """Regression: now and then all requests waited while the collector scanned code and tables."""
    before = gc.get_threshold()
    try:
        freeze_garbage_collector()

        assert gc.get_freeze_count() > len(gc.get_objects())
        assert gc.get_threshold() > before
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_a_thread_that_waits_for_a_database_is_not_held_up_by_a_busy_event_loop() -> None:
    """Regression: transactions and lookups of the store waited 5 ms for the GIL after each statement."""
    before = sys.getswitchinterval()
    slow_seconds = min(_wait_beside_busy_thread() for _ in range(2))
    try:
        shorten_thread_switches()

        assert min(_wait_beside_busy_thread() for _ in range(3)) < slow_seconds / 2
    finally:
        sys.setswitchinterval(before)


def _wait_beside_busy_thread() -> float:
    """Return how long a thread takes for some short waits, while this thread computes."""
    seconds: list[float] = []

    def wait_often() -> None:
        started_at = time.perf_counter()
        for _ in range(20):
            time.sleep(0.0002)
        seconds.append(time.perf_counter() - started_at)

    thread = threading.Thread(target=wait_often)
    thread.start()
    while not seconds:
        sum(range(100))
    thread.join()
    return seconds[0]
