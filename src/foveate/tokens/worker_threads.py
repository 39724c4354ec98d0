"""Run long work in threads without blocking the event loop."""

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import cache
from threading import Lock
from typing import TypeVar

from foveate.formats.json_text.large_json import LARGE_BYTES, writing_in_pieces

# While bodies arrive, the event loop acquires the GIL a hundred times in one iteration, and each time waits
# this long.
_SWITCH_INTERVAL_SECONDS = 0.0001
# Work on more characters or bytes than this takes long enough to delay other threads.
_MIN_LONG_SIZE = 64 * 1024
_MIN_LARGE_SIZE = 1024 * 1024
# Large work has its own thread, so that other requests do not queue behind it. With two of them, the event loop
# would wait for both whenever it needs the GIL. Only very large work has another one, because it takes seconds.
_MIN_VERY_LARGE_SIZE = 8 * 1024 * 1024
Result = TypeVar("Result")
_lock = Lock()
_active_long = _active_large = 0
_previous_interval_seconds = 0.005
_gc_was_enabled = True


async def run_in_thread(function: Callable[[], Result], size_bytes: int) -> Result:
    is_large = size_bytes >= LARGE_BYTES

    def run() -> Result:
        with frequent_thread_switches(size_bytes), writing_in_pieces() if is_large else nullcontext():
            return function()

    executor = _large_work_executor(size_bytes >= _MIN_VERY_LARGE_SIZE) if is_large else None
    return await asyncio.get_running_loop().run_in_executor(executor, copy_context().run, run)


@cache
def _large_work_executor(is_very_large: bool) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="very large" if is_very_large else "large")


@contextmanager
def frequent_thread_switches(size: int) -> Iterator[None]:
    """Shorten the interpreter's switch interval while long work runs.

    A waiting thread asks for the GIL only after the switch interval, 5 ms by default. With 0.1 ms an event loop
    stays responsive. The interval is restored when the last long work ends.

    Large work creates up to a million short-lived objects, and scanning them takes the garbage collector up to
    half a second. So it is paused during large work, and resumed only if it was enabled before.
    """
    global _active_long, _active_large, _previous_interval_seconds, _gc_was_enabled
    if size <= _MIN_LONG_SIZE:
        yield
        return
    with _lock:
        if not _active_long:
            _previous_interval_seconds = sys.getswitchinterval()
            sys.setswitchinterval(min(_SWITCH_INTERVAL_SECONDS, _previous_interval_seconds))
        _active_long += 1
        if size >= _MIN_LARGE_SIZE:
            if not _active_large:
                _gc_was_enabled = gc.isenabled()
                gc.disable()
            _active_large += 1
    try:
        yield
    finally:
        with _lock:
            _active_long -= 1
            if not _active_long:
                sys.setswitchinterval(_previous_interval_seconds)
            if size >= _MIN_LARGE_SIZE:
                _active_large -= 1
                if not _active_large and _gc_was_enabled:
                    gc.enable()
