"""Processes that write one SQLite file take turns, and the lock files never prevent a write."""

from pathlib import Path
from threading import Event, Thread

from foveate.store.sqlite import WriterQueue
from tests.support.oracles.system_state import wait_until


def is_queued(database: Path) -> bool:
    """Check if a writer is waiting."""
    import fcntl

    with Path(f"{database}-next").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_process_that_writes_again_queues_behind_waiting_writers(tmp_path: Path) -> None:
    """Regression: a busy process starved the others, since SQLite's waiting writers poll ever less often."""
    database = tmp_path / "store.sqlite"
    busy_queue, waiting_queue = WriterQueue(database), WriterQueue(database)
    order: list[str] = []

    def write() -> None:
        with waiting_queue.hold_turn():
            order.append("waiting")

    other_writer = Thread(target=write)
    with busy_queue.hold_turn():
        order.append("busy")
        other_writer.start()
        wait_until(lambda: is_queued(database), bool, 30)
    with busy_queue.hold_turn():
        order.append("busy again")
    other_writer.join()
    busy_queue.close()
    waiting_queue.close()

    assert order == ["busy", "waiting", "busy again"]


def test_a_writer_proceeds_if_another_process_holds_the_turn_too_long(tmp_path: Path) -> None:
    database = tmp_path / "store.sqlite"
    stuck_queue, other_queue = WriterQueue(database), WriterQueue(database)
    has_written = Event()
    with stuck_queue.hold_turn(), other_queue.hold_turn():
        has_written.set()

    assert has_written.is_set()


def test_a_writer_proceeds_if_the_lock_files_cannot_be_opened(tmp_path: Path) -> None:
    queue = WriterQueue(tmp_path / "no such folder" / "store.sqlite")
    with queue.hold_turn():
        pass
    queue.close()
