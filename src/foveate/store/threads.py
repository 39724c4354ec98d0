"""A few threads that wait for a database, so that the event loop does not."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Threads:
    """Threads that begin when there is work for them, and keep no program from ending: they are daemons.

    Python's own pools wait at the end for whatever their threads wait for, such as a server that has gone dead.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives, once one of the threads has come to it."""
        done: Future[T] = Future()
        self._work.put(partial(_do, work, done))
        if not self._idle.acquire(blocking=False):
            self._begin()
        try:
            return await asyncio.wrap_future(done)
        finally:
            del done  # it knows what the work failed with, and that this frame

    def end(self, seconds: float | None = None) -> bool:
        """Whether all threads have ended, after what they were asked to do, within so many seconds."""
        with self._lock:
            for _ in self._threads:
                self._work.put(None)
            deadline = None if seconds is None else time.monotonic() + seconds
            for thread in self._threads:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            return not any(thread.is_alive() for thread in self._threads)

    def _begin(self) -> None:
        with self._lock:
            if len(self._threads) < self._most:
                thread = threading.Thread(target=self._keep_working, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _keep_working(self) -> None:
        while True:
            try:
                work = self._work.get_nowait()
            except Empty:
                self._idle.release()
                work = self._work.get()
            if work is None:
                return
            work()
            del work  # who waits for more holds nothing


def _do(work: Callable[[], T], done: "Future[T]") -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - this thread's border: it is raised where the work is awaited
        done.set_exception(error)
        del done  # as above
    else:
        done.set_result(result)
