"""Long counts that let other threads in sooner than the interpreter would by itself.

A thread that wants to run waits for the interpreter's switch interval, 5 ms, before the one that runs is asked
to let go. While something long is being counted the interval is 1 ms, so that an event loop beside it keeps its
pace; afterwards it is again what it was.

What is large becomes up to a million objects, which are gone again when it is counted. The garbage collector
would look through all of them, for as long as half a second, and so waits until then.

Work that takes long, done in a thread while the event loop goes on.
"""

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

_SWITCH_INTERVAL_SECONDS = 0.001
# What has more characters or bytes than this takes long enough for another thread to notice.
_MIN_LONG_SIZE = 64 * 1024
_MIN_LARGE_SIZE = 1024 * 1024

_lock = Lock()
_counting = _counting_large = 0
_usual_seconds = 0.005
_collected = True


@contextmanager
def frequent_thread_switches(size: int) -> Iterator[None]:
    """The short interval for as long as anybody is inside with something long.

    Garbage is collected afterwards only if it was before: a program may have switched that off for good.
    """
    global _counting, _counting_large, _usual_seconds, _collected
    if size <= _MIN_LONG_SIZE:
        yield
        return
    with _lock:
        if not _counting:
            _usual_seconds = sys.getswitchinterval()
            sys.setswitchinterval(min(_SWITCH_INTERVAL_SECONDS, _usual_seconds))
        _counting += 1
        if size >= _MIN_LARGE_SIZE:
            if not _counting_large:
                _collected = gc.isenabled()
                gc.disable()
            _counting_large += 1
    try:
        yield
    finally:
        with _lock:
            _counting -= 1
            if not _counting:
                sys.setswitchinterval(_usual_seconds)
            if size >= _MIN_LARGE_SIZE:
                _counting_large -= 1
                if not _counting_large and _collected:
                    gc.enable()


Result = TypeVar("Result")

# Large work has threads of its own, so that other requests do not queue behind it. With two, the event loop
# does not wait long for the interpreter.
_LARGE_THREADS = 2


async def run_in_thread(function: Callable[[], Result], size_bytes: int) -> Result:
    """What `work` on so many bytes gives."""
    is_large = size_bytes >= LARGE_BYTES

    def courteous() -> Result:
        with frequent_thread_switches(size_bytes), writing_in_pieces() if is_large else nullcontext():
            return function()

    executor = _large_work_executor() if is_large else None
    return await asyncio.get_running_loop().run_in_executor(executor, copy_context().run, courteous)


@cache
def _large_work_executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_LARGE_THREADS, thread_name_prefix="large")
