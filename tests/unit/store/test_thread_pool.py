"""The threads that wait for a database."""

import asyncio
import threading

import pytest

from foveate.store.thread_pool import DaemonThreadPool


async def test_tasks_run_once_threads_can_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: threads that could not be started counted, and when all had failed, tasks waited for ever."""
    pool = DaemonThreadPool(1, "test")

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="start new thread"):
            await pool.run(lambda: 1)

    assert await asyncio.wait_for(pool.run(lambda: 2), 10) == 2
    assert await asyncio.to_thread(pool.shut_down, 10.0)
