"""A pool of daemon threads that wait for a database, so that the event loop does not."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
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
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._queued: deque[_Task] = deque()
        # The thread that became idle last runs the next task: its connection has the warmest caches.
        self._idle: list[SimpleQueue[_Task | None]] = []
        self._is_shut_down = False

    async def run(self, task: Callable[[], T]) -> T:
        future: Future[T] = Future()
        self._submit(partial(_run_task, task, future))
        try:
            return await asyncio.wrap_future(future)
        finally:
            del future  # it refers to the exception, which refers to this frame

    def shut_down(self, timeout_seconds: float | None = None) -> bool:
        """Finish all queued tasks and end the threads; return whether all ended within `timeout_seconds`."""
        with self._lock:
            self._is_shut_down = True
            while self._idle:
                self._idle.pop().put(None)
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _submit(self, task: "_Task") -> None:
        with self._lock:
            if self._idle:
                self._idle.pop().put(task)
            elif len(self._threads) < self._max_threads:
                own_queue: SimpleQueue[_Task | None] = SimpleQueue()
                own_queue.put(task)
                thread = threading.Thread(
                    target=self._run_tasks, args=(own_queue,), name=self._name, daemon=True
                )
                thread.start()
                self._threads.append(thread)
            else:
                self._queued.append(task)

    def _run_tasks(self, own_queue: "SimpleQueue[_Task | None]") -> None:
        task = own_queue.get()
        while task is not None:
            task()
            del task  # hold no references while waiting
            task = self._next_task(own_queue)

    def _next_task(self, own_queue: "SimpleQueue[_Task | None]") -> "_Task | None":
        with self._lock:
            if self._queued:
                return self._queued.popleft()
            if self._is_shut_down:
                return None
            self._idle.append(own_queue)
        return own_queue.get()


_Task = Callable[[], None]


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
