"""Preparation before the first request."""

import gc
import platform
import subprocess
import sys

import pytest

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


_GROWTH_BY_THREAD = """
import sys
import threading
from pathlib import Path
from foveate.gateway.server.serve import return_freed_memory

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

def allocate_and_free():
    bytes(30 << 20)  # from now on, glibc would keep up to 60 MB for each thread
    blocks = [b"x" * (1 << 20) for _ in range(50)]
    blocks.clear()
    is_free.set()
    is_over.wait()

is_free, is_over = threading.Event(), threading.Event()
if sys.argv[1] == "prepared":
    return_freed_memory()
before = resident_mb()
thread = threading.Thread(target=allocate_and_free)
thread.start()
is_free.wait()
print(resident_mb() - before)
is_over.set()
thread.join()
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such thresholds")
def test_memory_that_a_thread_frees_is_returned_to_the_system() -> None:
    """Regression: large bodies left up to 60 MB for each thread that had read one."""
    growth_mb = {
        name: int(subprocess.check_output([sys.executable, "-c", _GROWTH_BY_THREAD, name]))
        for name in ("default", "prepared")
    }

    assert growth_mb["prepared"] < growth_mb["default"] / 3
