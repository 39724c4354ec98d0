from pathlib import Path
from threading import Event, Thread

import pytest

from foveate import Memory
from foveate.memory.search.relevance import Index


@pytest.mark.slow
def test_a_view_is_consistent_during_a_refresh(tmp_path: Path) -> None:
    """Regression: a node was looked up in the new files, and its index in the old ones."""
    for number in range(20):
        (tmp_path / f"{number}.org").write_text(
            f":PROPERTIES:\n:ID: file-{number}\n:END:\nold\n" + "* x\n" * 50
        )
    memory = Memory.load(tmp_path, index=Index(embedder=None))
    failures: list[BaseException] = []
    stop = Event()

    def render_repeatedly() -> None:
        try:
            while not stop.is_set():
                memory.render("file-7", limit_tokens=200)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [Thread(target=render_repeatedly) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        (tmp_path / "7.org").write_text(
            f":PROPERTIES:\n:ID: file-7\n:END:\nnew {turn}\n" + "* x\n" * (turn + 1)
        )
        memory.refresh()
        assert f"new {turn}" in memory.render("file-7", limit_tokens=200).text
    stop.set()
    for thread in threads:
        thread.join()

    assert not failures
