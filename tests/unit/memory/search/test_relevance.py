import re
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from foveate.errors import UpstreamTimeout
from foveate.memory.nodes import NoteDocument
from foveate.memory.search.embeddings import Embedder, SqliteVectorCache, embed_with_cache
from foveate.memory.search.relevance import Index, default_weights
from tests.support.scenarios.memory_nodes import LONG_AGO, NodeSpec, build_test_nodes

_UNKNOWN_WORDS = "quuxly zorbing flimflam"


def _build_document(*specs: NodeSpec, title: str = "notes", modified: datetime = LONG_AGO) -> NoteDocument:
    return build_test_nodes(*specs, file=NodeSpec(title=title, level=0), modified=modified)[0].document


def _build_index() -> Index:
    return Index(vector_cache=None)


def _score_titles(index: Index, documents: Sequence[NoteDocument], query: str) -> dict[str, float]:
    nodes = [node for document in documents for node in document.nodes]
    relevance = index.score_query(documents, query).relevance
    assert len(relevance) == len(nodes)
    return {
        f"{node.parent.title}/{node.title}" if node.parent else node.title: float(score)
        for node, score in zip(nodes, relevance, strict=True)
    }


def _build_bank_notes() -> NoteDocument:
    return _build_document(
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
    scores = _score_titles(_build_index(), [_build_bank_notes()], "savings account fees")
    assert max(scores, key=scores.__getitem__) == "Savings account/Fees"
    assert scores["Savings account/Fees"] > 1.5 * scores["Loans/Fees"] > 0


def test_a_title_counts_more_than_a_word_in_the_text() -> None:
    document = _build_document(
        NodeSpec(title="Falcons", content="A note."), NodeSpec(title="A note", content="Of falcons.")
    )
    scores = _score_titles(_build_index(), [document], "falcons")
    assert scores["notes/Falcons"] > scores["notes/A note"] > 0


def test_synonyms_are_found() -> None:
    document = _build_document(
        *(NodeSpec(title=title) for title in ("Automobile repair", "Sourdough bread", "Tax returns"))
    )
    scores = _score_titles(_build_index(), [document], "fixing my car")
    assert max(scores, key=scores.__getitem__) == "notes/Automobile repair"


def test_siblings_of_a_match_are_more_relevant_than_other_nodes() -> None:
    matching_file = _build_document(
        NodeSpec(title="Falcons", content="Where falcons nest."),
        NodeSpec(title="Other", content="Some words."),
        title="a",
    )
    other_file = _build_document(
        NodeSpec(title="Other", content="Some words."),
        NodeSpec(title="Another", content="More words."),
        title="b",
    )
    scores = _score_titles(_build_index(), [matching_file, other_file], "falcons")
    assert scores["a/Falcons"] > scores["a/Other"] > scores["b/Other"] + 0.1


@pytest.mark.parametrize("query", ["", "  \n", "?!", "\0"])
def test_a_query_without_words_finds_nothing(query: str) -> None:
    scores = _build_index().score_query([_build_bank_notes()], query)
    assert not scores.relevance.any()
    assert len(scores.similarity) == 6


def test_a_query_of_stop_words_finds_them() -> None:
    document = _build_document(
        NodeSpec(title="Bands", content="The Who are one."), NodeSpec(title="Birds", content="Falcons fly.")
    )
    scores = _score_titles(Index(None), [document], "the who")
    assert scores["notes/Bands"] > scores["notes/Birds"]


def test_without_a_match_nothing_is_relevant() -> None:
    assert max(_score_titles(_build_index(), [_build_bank_notes()], _UNKNOWN_WORDS).values()) < 0.02
    assert max(_score_titles(Index(None), [_build_bank_notes()], _UNKNOWN_WORDS).values()) == 0


def test_one_matching_word_of_many_scores_low() -> None:
    scores = _score_titles(Index(None), [_build_bank_notes()], f"{_UNKNOWN_WORDS} month")
    assert 0 < max(scores.values()) < 0.5


def test_a_memory_without_nodes_has_no_scores() -> None:
    assert len(_build_index().score_query([], "fees").relevance) == 0
    assert (
        len(_build_index().score_query([_build_document(title="", modified=LONG_AGO)], "fees").relevance) == 1
    )


def test_a_file_without_nodes_is_skipped() -> None:
    empty = _build_document()
    empty.nodes.clear()
    index = _build_index()
    assert len(index.score_query([empty], "fees").relevance) == 0
    assert _score_titles(index, [empty, _build_bank_notes(), empty], "fees") == _score_titles(
        _build_index(), [_build_bank_notes()], "fees"
    )


def test_of_equal_matches_the_newer_wins_and_age_never_beats_a_match() -> None:
    old = _build_document(NodeSpec(title="Falcons", content="They nest."), title="old")
    new = _build_document(
        NodeSpec(title="Falcons", content="They nest."), title="new", modified=LONG_AGO + timedelta(days=900)
    )
    newest = _build_document(
        NodeSpec(title="Cats", content="They sleep, a falcon too."),
        title="newest",
        modified=LONG_AGO + timedelta(days=999),
    )
    scores = _score_titles(Index(None), [old, new, newest], "falcons")
    assert scores["new/Falcons"] > scores["old/Falcons"] > scores["newest/Cats"]


def test_a_query_of_a_megabyte_is_fast() -> None:
    index = _build_index()
    index.score_query([_build_bank_notes()], "warm")
    start_seconds = process_time()
    scored = index.score_query(
        [_build_bank_notes()], "what are the fees of a loan and of a savings account? " * 20_000
    )
    assert process_time() - start_seconds < 15
    assert scored.relevance.max() > 0.5


def test_a_node_is_most_relevant_to_itself() -> None:
    document = _build_bank_notes()
    scores = _build_index().score_node([document], document.nodes[2])
    assert int(scores.relevance.argmax()) == 2
    assert scores.relevance[2] == 1
    assert scores.similarity[2] == pytest.approx(1, abs=1e-3)
    assert scores.relevance[4] > scores.relevance[5]


def test_a_node_outside_the_documents_can_be_scored() -> None:
    scores = _build_index().score_node([_build_bank_notes()], _build_bank_notes().nodes[2])
    assert int(scores.relevance.argmax()) == 2


def test_without_an_embedder_words_alone_decide() -> None:
    scores = Index(None).score_query([_build_bank_notes()], "fees")
    assert not scores.similarity.any()
    assert scores.relevance.max() == pytest.approx(1, abs=0.3)


def test_only_changed_nodes_are_embedded_again() -> None:
    embedder = RecordingEmbedder()
    index = Index(lambda: embedder, vector_cache=None)
    files = [_build_document(NodeSpec(title=f"Note {number}"), title=f"file {number}") for number in range(20)]
    index.score_query(files, "cat")
    assert len(embedder.inputs) == 41
    embedder.inputs.clear()
    files[7] = _build_document(NodeSpec(title="A cat"), title="file 7")
    scores = _score_titles(index, files, "cat")
    assert embedder.inputs == ["file 7\n", "A cat\n", "cat"]
    assert max(scores, key=scores.__getitem__) == "file 7/A cat"


def test_queries_are_not_cached(tmp_path: Path) -> None:
    vectors, embedder = SqliteVectorCache(tmp_path / "v.sqlite"), RecordingEmbedder()
    document = _build_bank_notes()
    Index(lambda: embedder, vector_cache=lambda: vectors).score_query([document], "fees of a cat")
    Index(lambda: embedder, vector_cache=lambda: vectors).score_node(
        [document], _build_document(NodeSpec(title="Fees, a cat")).nodes[1]
    )
    first_inputs = [*embedder.inputs]
    assert {"fees of a cat", "Fees, a cat\n"} <= {*first_inputs}, "both were embedded"
    embedder.inputs.clear()
    embed_with_cache(embedder, vectors, list(dict.fromkeys(first_inputs)))
    assert embedder.inputs == ["fees of a cat", "Fees, a cat\n"], "and all else is there"


def test_a_failing_embedder_leaves_the_index_unchanged() -> None:
    embedder = RecordingEmbedder()
    index = Index(lambda: embedder, vector_cache=None)
    files = [_build_bank_notes()]
    before = index.score_query(files, "fees").relevance
    embedder.fails = True
    with pytest.raises(UpstreamTimeout):
        index.score_query([*files, _build_document(NodeSpec(title="A cat"))], "fees")
    embedder.fails = False
    np.testing.assert_array_equal(index.score_query(files, "fees").relevance, before)


_words = st.lists(st.sampled_from(["anchor", "basket", "copper", "the", "ember", "falcons"]), max_size=6).map(
    " ".join
)
_node_specs = st.builds(NodeSpec, title=_words, content=_words, level=st.integers(1, 3))
_documents = st.builds(
    lambda specs, days: _build_document(*specs, modified=LONG_AGO + timedelta(days=days)),
    st.lists(_node_specs, max_size=6),
    st.integers(0, 90),
)


@pytest.mark.slow
@given(st.lists(_documents, max_size=8), st.data())
def test_scores_depend_only_on_the_current_files(documents: list[NoteDocument], data: st.DataObject) -> None:
    index = Index(None)
    for _ in range(6):
        files = data.draw(st.lists(st.sampled_from(documents), unique_by=id)) if documents else []
        for query in (
            "anchor falcon",
            "basket",
            "The. anchor copper ember basket falcon falcon anchor basket. Copper",
        ):
            updated, expected = index.score_query(files, query), Index(None).score_query(files, query)
            np.testing.assert_array_equal(updated.relevance, expected.relevance)
            assert ((updated.relevance >= 0) & (updated.relevance <= 1)).all()


def test_threads_get_scores_of_their_own_documents() -> None:
    index = Index(None)
    versions = [
        [_build_document(NodeSpec(title="Falcons"), *(NodeSpec(title=f"n{n}") for n in range(size)))]
        for size in range(12)
    ]
    expected = [Index(None).score_query(files, "falcons").relevance for files in versions]
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda files: index.score_query(files, "falcons").relevance, versions * 20))
    for number, scores in enumerate(results):
        np.testing.assert_array_equal(scores, expected[number % 12])


def test_any_text_can_be_a_query() -> None:
    document = _build_document(NodeSpec(title="\ud800 falcon\0", content="黒い猫がいる"))
    assert _score_titles(_build_index(), [document], "猫 \udfff")["notes/\ud800 falcon\0"] > 0.3


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
    index.score_query([_build_bank_notes()], "fees")
    assert created
