"""A pool of daemon threads that wait for a database, so that the event loop does not."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class DaemonThreadPool:
    """Daemon threads that start on demand and do not keep the program from exiting.

    Python's own executors wait at exit for whatever their threads wait for, such as a server that does not
    respond.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    async def run(self, task: Callable[[], T]) -> T:
        future: Future[T] = Future()
        self._tasks.put(partial(_run_task, task, future))
        if not self._idle.acquire(blocking=False):
            self._start_thread()
        try:
            return await asyncio.wrap_future(future)
        finally:
            del future  # it refers to the exception, which refers to this frame

    def shut_down(self, timeout_seconds: float | None = None) -> bool:
        """Finish all queued tasks and end the threads; return whether all ended within `timeout_seconds`."""
        with self._lock:
            for _ in self._threads:
                self._tasks.put(None)
            deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
            for thread in self._threads:
                thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
            return not any(thread.is_alive() for thread in self._threads)

    def _start_thread(self) -> None:
        with self._lock:
            if len(self._threads) < self._max_threads:
                thread = threading.Thread(target=self._run_tasks, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def _run_tasks(self) -> None:
        while True:
            try:
                task = self._tasks.get_nowait()
            except Empty:
                self._idle.release()
                task = self._tasks.get()
            if task is None:
                return
            task()
            del task  # hold no references while waiting


def _run_task(task: Callable[[], T], future: "Future[T]") -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = task()
    except BaseException as error:  # noqa: BLE001 - outermost frame of this thread; raised to the caller
        future.set_exception(error)
        del future  # breaks the reference cycle, as above
    else:
        future.set_result(result)
