import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from foveate.memory.search.embeddings import SqliteVectorCache, embed_with_cache


class Counting:
    """An embedder that returns text lengths, and records its inputs."""

    def __init__(self, name: str = "counting", width: int = 3) -> None:
        self.name = name
        self.width = width
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        return np.array([[len(text) / 7] * self.width for text in texts], np.float32)


def test_a_text_is_embedded_once(tmp_path: Path) -> None:
    embedder = Counting()
    first = embed_with_cache(embedder, SqliteVectorCache(tmp_path / "v.sqlite"), ["one", "three", "one"])
    assert embedder.asked == ["one", "three"]
    second = embed_with_cache(embedder, SqliteVectorCache(tmp_path / "v.sqlite"), ["three", "two", "one"])
    assert embedder.asked == ["one", "three", "two"]
    np.testing.assert_array_equal(first[[1, 0]], second[[0, 2]])


def test_it_makes_no_difference_whether_a_vector_was_kept(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite")
    texts = [f"text {'x' * number}" for number in range(9)]
    made = embed_with_cache(Counting(), vectors, texts)
    np.testing.assert_array_equal(made, embed_with_cache(Counting(), vectors, texts))
    np.testing.assert_array_equal(made, embed_with_cache(Counting(), None, texts))


def test_another_embedder_has_vectors_of_its_own(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite")
    embed_with_cache(Counting("one"), vectors, ["a text"])
    other = Counting("other")
    embed_with_cache(other, vectors, ["a text"])
    assert other.asked == ["a text"]


def test_many_texts_are_kept_as_they_are_made(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite")
    texts = [str(number) for number in range(5_000)]

    class Stopping(Counting):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if len(self.asked) > 3_000:
                raise KeyboardInterrupt
            return super().embed(texts)

    with pytest.raises(KeyboardInterrupt):
        embed_with_cache(Stopping(), vectors, texts)
    rest = Counting()
    assert embed_with_cache(rest, vectors, texts).shape == (5_000, 3)
    assert len(rest.asked) == 5_000 - 4_096


def test_no_texts_have_no_rows(tmp_path: Path) -> None:
    assert len(embed_with_cache(Counting(), SqliteVectorCache(tmp_path / "v.sqlite"), [])) == 0


def test_a_model_that_has_become_another_is_asked_anew(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite")
    embed_with_cache(Counting(width=3), vectors, ["one", "two"])
    assert embed_with_cache(Counting(width=5), vectors, ["one", "three", "two"]).shape == (3, 5)


def test_the_text_itself_is_not_in_the_file(tmp_path: Path) -> None:
    embed_with_cache(Counting(), SqliteVectorCache(tmp_path / "v.sqlite"), ["confidential falcon"])
    assert all(b"falcon" not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("row", [b"odd", "text", b"", 5, b"\xff" * 6, b"\0" * 8])
def test_what_is_no_vector_in_the_file_is_made_anew(tmp_path: Path, row: object) -> None:
    texts = ["one", "three"]
    good = embed_with_cache(Counting(), SqliteVectorCache(tmp_path / "v.sqlite"), texts)
    with sqlite3.connect(tmp_path / "v.sqlite") as database:
        database.execute("UPDATE vectors SET vector = ? WHERE number = 1", (row,))
    database.close()

    np.testing.assert_array_equal(
        embed_with_cache(Counting(), SqliteVectorCache(tmp_path / "v.sqlite"), texts), good
    )


def test_the_oldest_make_room(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite", max_vectors=10)
    for number in range(30):
        embed_with_cache(Counting(), vectors, [str(number)])
    embedder = Counting()
    embed_with_cache(embedder, vectors, [str(number) for number in range(30)])
    assert embedder.asked == [str(number) for number in range(20)]


def _refused(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("not a folder")
    return tmp_path / "file" / "v.sqlite"


def test_where_nothing_can_be_kept_all_works_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vectors = SqliteVectorCache(_refused(tmp_path))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert embed_with_cache(Counting(), vectors, ["one"]).shape == (1, 3)
    assert [record.getMessage() for record in caplog.records] == [vectors.failure]
    assert str(vectors.path) in (vectors.failure or "")


def test_a_file_that_is_something_else_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite"
    path.write_bytes(b"by no means a database" * 100)
    vectors = SqliteVectorCache(path)
    embed_with_cache(Counting(), vectors, ["one"])
    assert vectors.failure is None
    assert (tmp_path / "v.broken").read_bytes().startswith(b"by no means")
    again = Counting()
    embed_with_cache(again, SqliteVectorCache(path), ["one"])
    assert not again.asked


def test_while_somebody_else_writes_it_is_done_without(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite", busy_timeout_seconds=0.05)
    embed_with_cache(Counting(), vectors, ["one"])
    other = sqlite3.connect(vectors.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert embed_with_cache(Counting(), vectors, ["two"]).shape == (1, 3)
    assert vectors.failure is None
    other.execute("ROLLBACK")
    other.close()
    embed_with_cache(Counting(), vectors, ["two"])
    again = Counting()
    embed_with_cache(again, vectors, ["one", "two"])
    assert not again.asked


_WRITER = """
import sys
from pathlib import Path
import numpy as np
from foveate.memory.search.embeddings import SqliteVectorCache, embed_with_cache
class Embedder:
    name = "counting"
    def embed(self, texts):
        return np.array([[len(text) / 7] * 3 for text in texts], np.float32)
vectors = SqliteVectorCache(Path(sys.argv[1]))
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    embed_with_cache(Embedder(), vectors, [f"text {number}", f"text {number + 1}"])
    print(number, flush=True)
assert vectors.failure is None, vectors.failure
"""


def _writer(path: Path, first: int, last: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), str(first), str(last)], stdout=subprocess.PIPE
    )


@pytest.mark.slow
@pytest.mark.process
def test_two_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite"
    writers = [_writer(path, 0, 60), _writer(path, 30, 90)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    again = Counting()
    embed_with_cache(again, SqliteVectorCache(path), [f"text {number}" for number in range(91)])
    assert not again.asked


@pytest.mark.process
def test_a_process_that_is_killed_leaves_a_file_that_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite"
    writer = _writer(path, 0, 1_000_000)
    assert writer.stdout is not None
    for _ in range(20):
        writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    again, vectors = Counting(), SqliteVectorCache(path)
    embed_with_cache(again, vectors, [f"text {number}" for number in range(20)])
    assert not again.asked
    assert vectors.failure is None


@pytest.mark.process
def test_a_full_disk_is_done_without(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from foveate.memory.search.embeddings import SqliteVectorCache, embed_with_cache
class Embedder:
    name = "counting"
    def embed(self, texts):
        return np.ones((len(texts), 256), np.float32)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
vectors = SqliteVectorCache(Path(sys.argv[1]))
assert embed_with_cache(Embedder(), vectors, [str(number) for number in range(5_000)]).shape == (5_000, 256)
assert vectors.failure is not None
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "v.sqlite")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"\n") == 1
