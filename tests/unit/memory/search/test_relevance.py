import re
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from foveate.errors import UpstreamTimeout
from foveate.memory.nodes import Document
from foveate.memory.search.embeddings import Embedder, SqliteVectorCache, embed_with_cache
from foveate.memory.search.relevance import Index, default_weights
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.memory_nodes import LONG_AGO, NodeSpec, build_test_nodes

_JUNK = "quuxly zorbing flimflam"


def _file(*sown: NodeSpec, title: str = "notes", modified: datetime = LONG_AGO) -> Document:
    return build_test_nodes(*sown, file=NodeSpec(title=title, level=0), modified=modified)[0].document


def _index() -> Index:
    return Index(vector_cache=None)


def _relevance(index: Index, documents: Sequence[Document], query: str) -> dict[str, float]:
    nodes = [node for document in documents for node in document.nodes]
    found = index.score_query(documents, query).relevance
    assert len(found) == len(nodes)
    return {
        f"{node.parent.title}/{node.title}" if node.parent else node.title: float(score)
        for node, score in zip(nodes, found, strict=True)
    }


def _bank() -> Document:
    return _file(
        NodeSpec(title="Savings account", content="Money rests here."),
        NodeSpec(title="Fees", content="Three percent a month.", level=2),
        NodeSpec(title="Loans", content="Borrow what you need."),
        NodeSpec(title="Fees", content="Two percent a month.", level=2),
        NodeSpec(title="Branches", content="Open from nine to five."),
        title="Bank",
    )


class RecordingEmbedder:
    """An embedder that recognizes texts about cats, and records its inputs."""

    name = "recording"

    def __init__(self) -> None:
        self.inputs: list[str] = []
        self.fails = False

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.fails:
            raise UpstreamTimeout("http://127.0.0.1", 1)
        self.inputs += texts
        return np.array([[1, 0] if "cat" in text else [0, 1] for text in texts], np.float32)


def test_a_child_matches_by_its_own_and_its_parents_title() -> None:
    found = _relevance(_index(), [_bank()], "savings account fees")
    assert max(found, key=found.__getitem__) == "Savings account/Fees"
    assert found["Savings account/Fees"] > 1.5 * found["Loans/Fees"] > 0


def test_a_title_counts_more_than_a_word_in_the_text() -> None:
    document = _file(
        NodeSpec(title="Falcons", content="A note."), NodeSpec(title="A note", content="Of falcons.")
    )
    found = _relevance(_index(), [document], "falcons")
    assert found["notes/Falcons"] > found["notes/A note"] > 0


def test_synonyms_are_found() -> None:
    document = _file(
        *(NodeSpec(title=title) for title in ("Automobile repair", "Sourdough bread", "Tax returns"))
    )
    found = _relevance(_index(), [document], "fixing my car")
    assert max(found, key=found.__getitem__) == "notes/Automobile repair"


def test_siblings_of_a_match_are_more_relevant_than_other_nodes() -> None:
    near = _file(
        NodeSpec(title="Falcons", content="Where falcons nest."),
        NodeSpec(title="Other", content="Some words."),
        title="a",
    )
    far = _file(
        NodeSpec(title="Other", content="Some words."),
        NodeSpec(title="Another", content="More words."),
        title="b",
    )
    found = _relevance(_index(), [near, far], "falcons")
    assert found["a/Falcons"] > found["a/Other"] > found["b/Other"] + 0.1


@pytest.mark.parametrize("query", ["", "  \n", "?!", "\0"])
def test_a_query_without_words_finds_nothing(query: str) -> None:
    scores = _index().score_query([_bank()], query)
    assert not scores.relevance.any()
    assert len(scores.similarity) == 6


def test_a_query_of_stop_words_finds_them() -> None:
    document = _file(
        NodeSpec(title="Bands", content="The Who are one."), NodeSpec(title="Birds", content="Falcons fly.")
    )
    found = _relevance(Index(None), [document], "the who")
    assert found["notes/Bands"] > found["notes/Birds"]


def test_without_a_match_nothing_is_relevant() -> None:
    assert max(_relevance(_index(), [_bank()], _JUNK).values()) < 0.02
    assert max(_relevance(Index(None), [_bank()], _JUNK).values()) == 0


def test_one_matching_word_of_many_scores_low() -> None:
    found = _relevance(Index(None), [_bank()], f"{_JUNK} month")
    assert 0 < max(found.values()) < 0.5


def test_a_memory_without_nodes_has_no_scores() -> None:
    assert len(_index().score_query([], "fees").relevance) == 0
    assert len(_index().score_query([_file(title="", modified=LONG_AGO)], "fees").relevance) == 1


def test_a_file_without_nodes_is_skipped() -> None:
    empty = _file()
    empty.nodes.clear()
    index = _index()
    assert len(index.score_query([empty], "fees").relevance) == 0
    assert _relevance(index, [empty, _bank(), empty], "fees") == _relevance(_index(), [_bank()], "fees")


def test_of_equal_matches_the_newer_wins_and_age_never_beats_a_match() -> None:
    old = _file(NodeSpec(title="Falcons", content="They nest."), title="old")
    new = _file(
        NodeSpec(title="Falcons", content="They nest."), title="new", modified=LONG_AGO + timedelta(days=900)
    )
    newest = _file(
        NodeSpec(title="Cats", content="They sleep, a falcon too."),
        title="newest",
        modified=LONG_AGO + timedelta(days=999),
    )
    found = _relevance(Index(None), [old, new, newest], "falcons")
    assert found["new/Falcons"] > found["old/Falcons"] > found["newest/Cats"]


def test_a_query_of_a_megabyte_is_fast() -> None:
    index = _index()
    index.score_query([_bank()], "warm")
    before = process_time()
    found = index.score_query([_bank()], "what are the fees of a loan and of a savings account? " * 20_000)
    assert process_time() - before < 2
    assert found.relevance.max() > 0.5


def test_a_node_is_most_relevant_to_itself() -> None:
    document = _bank()
    scores = _index().score_node([document], document.nodes[2])
    assert int(scores.relevance.argmax()) == 2
    assert scores.relevance[2] == 1
    assert scores.similarity[2] == pytest.approx(1, abs=1e-3)
    assert scores.relevance[4] > scores.relevance[5]


def test_a_node_outside_the_documents_can_be_scored() -> None:
    scores = _index().score_node([_bank()], _bank().nodes[2])
    assert int(scores.relevance.argmax()) == 2


def test_without_an_embedder_words_alone_decide() -> None:
    scores = Index(None).score_query([_bank()], "fees")
    assert not scores.similarity.any()
    assert scores.relevance.max() == pytest.approx(1, abs=0.3)


def test_only_changed_nodes_are_embedded_again() -> None:
    embedder = RecordingEmbedder()
    index = Index(lambda: embedder, vector_cache=None)
    files = [_file(NodeSpec(title=f"Note {number}"), title=f"file {number}") for number in range(20)]
    index.score_query(files, "cat")
    assert len(embedder.inputs) == 41
    embedder.inputs.clear()
    files[7] = _file(NodeSpec(title="A cat"), title="file 7")
    found = _relevance(index, files, "cat")
    assert embedder.inputs == ["file 7\n", "A cat\n", "cat"]
    assert max(found, key=found.__getitem__) == "file 7/A cat"


def test_queries_are_not_cached(tmp_path: Path) -> None:
    vectors, embedder = SqliteVectorCache(tmp_path / "v.sqlite"), RecordingEmbedder()
    document = _bank()
    Index(lambda: embedder, vector_cache=lambda: vectors).score_query([document], "fees of a cat")
    Index(lambda: embedder, vector_cache=lambda: vectors).score_node(
        [document], _file(NodeSpec(title="Fees, a cat")).nodes[1]
    )
    asked_first = [*embedder.inputs]
    assert {"fees of a cat", "Fees, a cat\n"} <= {*asked_first}, "both were embedded"
    embedder.inputs.clear()
    embed_with_cache(embedder, vectors, list(dict.fromkeys(asked_first)))
    assert embedder.inputs == ["fees of a cat", "Fees, a cat\n"], "and all else is there"


def test_a_failing_embedder_leaves_the_index_unchanged() -> None:
    embedder = RecordingEmbedder()
    index = Index(lambda: embedder, vector_cache=None)
    files = [_bank()]
    before = index.score_query(files, "fees").relevance
    embedder.fails = True
    with pytest.raises(UpstreamTimeout):
        index.score_query([*files, _file(NodeSpec(title="A cat"))], "fees")
    embedder.fails = False
    np.testing.assert_array_equal(index.score_query(files, "fees").relevance, before)


_words = st.lists(st.sampled_from(["anchor", "basket", "copper", "the", "ember", "falcons"]), max_size=6).map(
    " ".join
)
_sown = st.builds(NodeSpec, title=_words, content=_words, level=st.integers(1, 3))
_files = st.builds(
    lambda sown, days: _file(*sown, modified=LONG_AGO + timedelta(days=days)),
    st.lists(_sown, max_size=6),
    st.integers(0, 90),
)


@pytest.mark.slow
@given(st.lists(_files, max_size=8), st.data())
@settings(max_examples=limit_examples(60))
def test_scores_depend_only_on_the_current_files(pool: list[Document], data: st.DataObject) -> None:
    index = Index(None)
    for _ in range(6):
        files = data.draw(st.lists(st.sampled_from(pool), unique_by=id)) if pool else []
        for query in (
            "anchor falcon",
            "basket",
            "The. anchor copper ember basket falcon falcon anchor basket. Copper",
        ):
            found, expected = index.score_query(files, query), Index(None).score_query(files, query)
            np.testing.assert_array_equal(found.relevance, expected.relevance)
            assert ((found.relevance >= 0) & (found.relevance <= 1)).all()


def test_threads_get_scores_of_their_own_documents() -> None:
    index = Index(None)
    versions = [
        [_file(NodeSpec(title="Falcons"), *(NodeSpec(title=f"n{n}") for n in range(size)))]
        for size in range(12)
    ]
    expected = [Index(None).score_query(files, "falcons").relevance for files in versions]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda files: index.score_query(files, "falcons").relevance, versions * 20))
    for number, scores in enumerate(found):
        np.testing.assert_array_equal(scores, expected[number % 12])


def test_any_text_can_be_a_query() -> None:
    document = _file(NodeSpec(title="\ud800 falcon\0", content="黒い猫がいる"))
    assert _relevance(_index(), [document], "猫 \udfff")["notes/\ud800 falcon\0"] > 0.3


def test_every_weight_is_set_and_explained(root: Path) -> None:
    text = (root / "src/foveate/memory/search/weights.toml").read_text("utf-8")
    assert {**tomllib.loads(text)["relevance"]} == {
        name: getattr(default_weights(), name) for name in default_weights().__slots__
    }
    for name in default_weights().__slots__:
        assert re.search(rf"^#.*\n{name} = ", text, re.MULTILINE), f"no comment above {name}"
    weights = default_weights()
    assert weights.words + weights.meaning + weights.title == pytest.approx(1)


def test_the_default_embedder_is_created_lazily() -> None:
    created: list[Embedder] = []

    def embedder() -> Embedder:
        created.append(RecordingEmbedder())
        return created[-1]

    index = Index(embedder, vector_cache=None)
    assert not created
    index.score_query([_bank()], "fees")
    assert created
