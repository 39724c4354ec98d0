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


class CountingEmbedder:
    """An embedder that returns text lengths, and records its inputs."""

    def __init__(self, name: str = "counting", width: int = 3) -> None:
        self.name = name
        self.width = width
        self.inputs: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.inputs += texts
        return np.array([[len(text) / 7] * self.width for text in texts], np.float32)


def test_a_text_is_embedded_once(tmp_path: Path) -> None:
    embedder = CountingEmbedder()
    first = embed_with_cache(embedder, SqliteVectorCache(tmp_path / "v.sqlite"), ["one", "three", "one"])
    assert embedder.inputs == ["one", "three"]
    second = embed_with_cache(embedder, SqliteVectorCache(tmp_path / "v.sqlite"), ["three", "two", "one"])
    assert embedder.inputs == ["one", "three", "two"]
    np.testing.assert_array_equal(first[[1, 0]], second[[0, 2]])


def test_cached_and_new_vectors_are_equal(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite")
    texts = [f"text {'x' * number}" for number in range(9)]
    rows = embed_with_cache(CountingEmbedder(), vectors, texts)
    np.testing.assert_array_equal(rows, embed_with_cache(CountingEmbedder(), vectors, texts))
    np.testing.assert_array_equal(rows, embed_with_cache(CountingEmbedder(), None, texts))


def test_another_embedder_has_its_own_vectors(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite")
    embed_with_cache(CountingEmbedder("one"), vectors, ["a text"])
    other = CountingEmbedder("other")
    embed_with_cache(other, vectors, ["a text"])
    assert other.inputs == ["a text"]


def test_vectors_are_cached_batch_by_batch(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite")
    texts = [str(number) for number in range(5_000)]

    class InterruptedEmbedder(CountingEmbedder):
        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if len(self.inputs) > 3_000:
                raise KeyboardInterrupt
            return super().embed(texts)

    with pytest.raises(KeyboardInterrupt):
        embed_with_cache(InterruptedEmbedder(), vectors, texts)
    embedder = CountingEmbedder()
    assert embed_with_cache(embedder, vectors, texts).shape == (5_000, 3)
    assert len(embedder.inputs) == 5_000 - 4_096


def test_an_empty_list_of_texts_has_no_rows(tmp_path: Path) -> None:
    assert len(embed_with_cache(CountingEmbedder(), SqliteVectorCache(tmp_path / "v.sqlite"), [])) == 0


def test_a_changed_model_embeds_again(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite")
    embed_with_cache(CountingEmbedder(width=3), vectors, ["one", "two"])
    assert embed_with_cache(CountingEmbedder(width=5), vectors, ["one", "three", "two"]).shape == (3, 5)


def test_texts_are_not_stored(tmp_path: Path) -> None:
    embed_with_cache(CountingEmbedder(), SqliteVectorCache(tmp_path / "v.sqlite"), ["confidential falcon"])
    assert all(b"falcon" not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("row", [b"odd", "text", b"", 5, b"\xff" * 6, b"\0" * 8])
def test_invalid_vectors_in_the_file_are_replaced(tmp_path: Path, row: object) -> None:
    texts = ["one", "three"]
    expected = embed_with_cache(CountingEmbedder(), SqliteVectorCache(tmp_path / "v.sqlite"), texts)
    with sqlite3.connect(tmp_path / "v.sqlite") as database:
        database.execute("UPDATE vectors SET vector = ? WHERE number = 1", (row,))
    database.close()

    np.testing.assert_array_equal(
        embed_with_cache(CountingEmbedder(), SqliteVectorCache(tmp_path / "v.sqlite"), texts), expected
    )


def test_the_oldest_vectors_are_evicted(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite", max_vectors=10)
    for number in range(30):
        embed_with_cache(CountingEmbedder(), vectors, [str(number)])
    embedder = CountingEmbedder()
    embed_with_cache(embedder, vectors, [str(number) for number in range(30)])
    assert embedder.inputs == [str(number) for number in range(20)]


def _make_unusable_path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("not a folder")
    return tmp_path / "file" / "v.sqlite"


def test_an_unusable_file_is_reported_once_and_everything_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vectors = SqliteVectorCache(_make_unusable_path(tmp_path))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert embed_with_cache(CountingEmbedder(), vectors, ["one"]).shape == (1, 3)
    assert [record.getMessage() for record in caplog.records] == [vectors.failure]
    assert str(vectors.path) in (vectors.failure or "")


def test_a_corrupt_file_is_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite"
    path.write_bytes(b"by no means a database" * 100)
    vectors = SqliteVectorCache(path)
    embed_with_cache(CountingEmbedder(), vectors, ["one"])
    assert vectors.failure is None
    assert (tmp_path / "v.broken").read_bytes().startswith(b"by no means")
    embedder = CountingEmbedder()
    embed_with_cache(embedder, SqliteVectorCache(path), ["one"])
    assert not embedder.inputs


def test_a_busy_file_is_skipped(tmp_path: Path) -> None:
    vectors = SqliteVectorCache(tmp_path / "v.sqlite", busy_timeout_seconds=0.05)
    embed_with_cache(CountingEmbedder(), vectors, ["one"])
    connection = sqlite3.connect(vectors.path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    assert embed_with_cache(CountingEmbedder(), vectors, ["two"]).shape == (1, 3)
    assert vectors.failure is None
    connection.execute("ROLLBACK")
    connection.close()
    embed_with_cache(CountingEmbedder(), vectors, ["two"])
    embedder = CountingEmbedder()
    embed_with_cache(embedder, vectors, ["one", "two"])
    assert not embedder.inputs


_WRITER_SCRIPT = """
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


def _start_writer(path: Path, first: int, last: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER_SCRIPT, str(path), str(first), str(last)], stdout=subprocess.PIPE
    )


@pytest.mark.slow
@pytest.mark.process
def test_two_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite"
    writers = [_start_writer(path, 0, 60), _start_writer(path, 30, 90)]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    embedder = CountingEmbedder()
    embed_with_cache(embedder, SqliteVectorCache(path), [f"text {number}" for number in range(91)])
    assert not embedder.inputs


@pytest.mark.process
def test_a_killed_process_leaves_a_usable_file(tmp_path: Path) -> None:
    path = tmp_path / "v.sqlite"
    writer = _start_writer(path, 0, 1_000_000)
    assert writer.stdout is not None
    for _ in range(20):
        writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    embedder, vectors = CountingEmbedder(), SqliteVectorCache(path)
    embed_with_cache(embedder, vectors, [f"text {number}" for number in range(20)])
    assert not embedder.inputs
    assert vectors.failure is None


@pytest.mark.process
def test_a_full_disk_is_tolerated(tmp_path: Path) -> None:
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
    completed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "v.sqlite")], capture_output=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.count(b"\n") == 1
