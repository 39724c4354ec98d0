import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.memory.search.embeddings import default_embedder, normalize_rows


def test_texts_about_the_same_topic_are_more_similar() -> None:
    fees, costs, cat = default_embedder().embed(
        ["Fees of a savings account", "What the bank charges for a deposit", "A black cat sleeps in the garden"]
    )
    assert fees @ costs > fees @ cat + 0.2


@given(st.lists(st.text(st.characters(), max_size=40), max_size=5))
def test_every_row_has_length_one_or_zero(texts: list[str]) -> None:
    rows = default_embedder().embed(texts)
    assert rows.shape == (len(texts), 256)
    assert rows.dtype == np.float32
    lengths = np.linalg.norm(rows, axis=1)
    assert all(length == pytest.approx(1, abs=1e-5) or length == 0 for length in lengths)


def test_a_text_without_words_has_zeros() -> None:
    assert not default_embedder().embed([""]).any()


def test_the_vector_of_a_text_does_not_depend_on_the_batch() -> None:
    embedder = default_embedder()
    texts = [f"note {number} about gardens" for number in range(1200)]
    vectors = embedder.embed(texts)
    np.testing.assert_array_equal(vectors[[0, 700, 1199]], embedder.embed([texts[0], texts[700], texts[1199]]))


def test_zero_rows_stay_zero() -> None:
    assert normalize_rows(np.array([[3, 4], [0, 0]], np.float32)).tolist() == [
        [pytest.approx(0.6), pytest.approx(0.8)],
        [0, 0],
    ]


@pytest.mark.process
def test_the_package_is_not_imported_and_logging_is_unchanged() -> None:
    code = (
        "import logging, sys; from foveate.memory.search.embeddings import default_embedder; "
        "default_embedder().embed(['a note']); "
        "sys.exit('wordllama' in sys.modules or 'requests' in sys.modules or len(logging.root.handlers))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.process
def test_the_vectors_equal_those_of_the_package(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
import numpy as np, wordllama
from foveate.memory.search.embeddings import default_embedder
cache = Path.home() / ".cache" / "wordllama"  # it finds its own tokenizer only there
cache.mkdir(parents=True)
(cache / "tokenizers").symlink_to(Path(wordllama.__file__).parent / "tokenizers")
theirs = wordllama.WordLlama.load(disable_download=True)
texts = ["Fees of a savings account", "A black cat sleeps in the garden. " * 20, "黒い猫"]
same = (theirs.embed(texts, norm=True) * default_embedder().embed(texts)).sum(axis=1)
sys.exit(0 if (same > 0.9999).all() else str(same))
"""
    environment = {**os.environ, "HOME": str(tmp_path)}
    finished = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert finished.returncode == 0, finished.stderr
