"""Work that takes long, done in a thread while the event loop goes on."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from contextvars import copy_context
from functools import cache
from typing import TypeVar

from foveate.tokens.courtesy import frequent_thread_switches
from foveate.wire.large_json import LARGE_BYTES, writing_in_pieces

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
