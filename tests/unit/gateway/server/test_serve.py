"""Preparation before the first request."""

import gc
import sys

from foveate.gateway.server.serve import freeze_garbage_collector, shorten_thread_switches


def test_permanent_objects_are_excluded_from_garbage_collection() -> None:
    """Regression: now and then all requests waited while the collector scanned code and tables."""
    before = gc.get_threshold()
    python_default = 700
    try:
        freeze_garbage_collector()

        assert gc.get_freeze_count() > len(gc.get_objects())
        assert gc.get_threshold()[0] > python_default
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def test_threads_of_the_store_get_the_gil_ten_times_as_often_as_by_default() -> None:
    """Regression: transactions and lookups of the store waited 5 ms for the GIL after each statement."""
    before = sys.getswitchinterval()
    try:
        shorten_thread_switches()

        assert sys.getswitchinterval() <= 0.0005
    finally:
        sys.setswitchinterval(before)
