"""Processes that read logs side by side if there is enough data."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

# With less data, one process is done before another one has started.
_MIN_PARALLEL_BYTES = 4 * 1024 * 1024
_MAX_PROCESSES = 16
# Files are sent to a process in batches of this size, since smaller ones take no longer than the transfer.
_BATCH_BYTES = 256 * 1024
_MAX_BATCH_FILES = 32


def count_cores() -> int:
    """The number of cores that this process may use, and that are used at most."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MAX_PROCESSES)


def choose_processes(size_bytes: int) -> int:
    return count_cores() if size_bytes >= _MIN_PARALLEL_BYTES else 1


def make_batches(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Indexes of the files to send to a process at a time: the longest first, short ones together.

    A long one that comes last would leave all other processes idle.
    """
    batches: list[tuple[int, ...]] = []
    batch: list[int] = []
    batch_bytes = 0
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        batch.append(number)
        batch_bytes += sizes[number]
        if batch_bytes >= _BATCH_BYTES or len(batch) == _MAX_BATCH_FILES:
            batches.append(tuple(batch))
            batch, batch_bytes = [], 0
    return [*batches, tuple(batch)] if batch else batches


def open_worker_pool(processes: int, *, preload: Callable[[], None] = lambda: None) -> ProcessPoolExecutor:
    """Create a pool. `preload` loads what all processes need, if they are forks of this one."""
    # A fork has all modules loaded, but is not safe with threads, nor on other systems.
    can_fork = sys.platform == "linux" and threading.active_count() == 1
    if can_fork:
        preload()
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=_restore_interrupts)


def _restore_interrupts() -> None:
    """Exit silently on Ctrl-C: the parent process waits for this one and reports it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
