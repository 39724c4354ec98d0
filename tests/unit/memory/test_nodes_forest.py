from pathlib import Path

from foveate.memory.nodes import SHORT_FILE_CHARS, Forest, build_columns
from foveate.memory.note_library import Library
from tests.support.scenarios.note_folders import load_library, wait_until_settled, write_files

TREE = "Text\n* One\nabc\n** Two\n*** Three\n** Four\n* Five\n"


def load_forest(folder: Path, **files: str) -> tuple[Library, Forest]:
    library = load_library(write_files(folder, {f"{name}.org": text for name, text in files.items()}))
    return library, Forest.from_documents(library.documents)


def test_the_columns_of_a_document_describe_its_tree(tmp_path: Path) -> None:
    library, _ = load_forest(tmp_path, a=TREE)
    columns = build_columns(library.documents[0])

    assert columns.parent.tolist() == [-1, 0, 1, 2, 1, 0]
    assert columns.depth.tolist() == [0, 1, 2, 3, 2, 1]
    assert columns.end.tolist() == [6, 5, 4, 4, 5, 6]
    assert columns.chars.tolist() == [len("Text\n"), len("abc\n"), 0, 0, 0, 0]


def test_all_documents_are_in_one_sequence(tmp_path: Path) -> None:
    _, forest = load_forest(tmp_path, a="* A\n", b=TREE, c="* C :private:\n", d="x\n")

    assert [node.title for node in forest.nodes] == [
        "a", "A", "b", "One", "Two", "Three", "Four", "Five", "c", "d",
    ]  # fmt: skip
    assert forest.starts.tolist() == [0, 2, 8, 9, 10]
    assert forest.document_index.tolist() == [0, 0, *[1] * 6, 2, 3]
    assert forest.parent.tolist() == [-1, 0, -1, 2, 3, 4, 3, 2, -1, -1]
    assert forest.end.tolist() == [2, 2, 8, 7, 6, 6, 7, 8, 9, 10]


def test_a_node_has_an_index_and_ancestors(tmp_path: Path) -> None:
    _, forest = load_forest(tmp_path, a="* A\n", b=TREE)

    assert [forest.find_index(node) for node in forest.nodes] == list(range(len(forest.nodes)))
    assert [forest.nodes[index].title for index in forest.ancestors(5)] == ["b", "One", "Two"]
    assert forest.ancestors(2) == []


def test_a_node_of_another_memory_has_no_index(tmp_path: Path) -> None:
    _, forest = load_forest(tmp_path / "one", a="* A\n")
    _, other = load_forest(tmp_path / "two", a="* A\n")

    assert forest.find_index(other.nodes[1]) is None


def test_a_short_file_is_one_piece_and_a_long_one_has_one_per_node(tmp_path: Path) -> None:
    text = "* A\n* B\n" + "x" * (SHORT_FILE_CHARS - len("* A\n* B\n"))
    _, forest = load_forest(tmp_path, a=text, b=f"{text}x", c="* C\n", d="#+FILETAGS: :private:\n", e="e\n")

    assert [forest.nodes[index].document.key for index in forest.piece_starts] == [
        "a.org", "b.org", "b.org", "b.org", "c.org", "e.org",
    ]  # fmt: skip
    assert forest.nodes[int(forest.piece_starts[-1])].title == "e"


def test_an_empty_forest_is_valid(tmp_path: Path) -> None:
    for _, forest in (load_forest(tmp_path), load_forest(tmp_path, a="#+FILETAGS: :private:\n")):
        assert forest.nodes == []
        for column in (forest.piece_starts, forest.parent, forest.end, forest.newest_first, forest.modified):
            assert column.tolist() == []


def test_nodes_are_ordered_by_depth_then_age_then_position(tmp_path: Path) -> None:
    template = "#+TITLE: {0}\n#+DATE: {1}\n* {0}1\n* {0}2\n"
    _, forest = load_forest(
        tmp_path,
        a=template.format("A", "0001-01-01"),
        b=template.format("B", "2026-11-02 10:00:01"),
        c=template.format("C", "2026-11-02 10:00:00"),
    )

    titles = [forest.nodes[index].title for index in forest.newest_first]
    assert titles == ["B", "C", "A", "B1", "B2", "C1", "C2", "A1", "A2"]


def test_after_a_refresh_only_changed_documents_get_new_columns(tmp_path: Path) -> None:
    library, before = load_forest(tmp_path, a="* A\n", b="* B\n", c="* C\n")
    wait_until_settled(library)
    write_files(tmp_path, {"b.org": "* B\n* More\n"})
    library.refresh()
    after = Forest.from_documents(library.documents, before)

    reused = [before._columns.get(id(document)) is after._columns[id(document)] for document in after.documents]
    assert reused == [True, False, True]
    assert [node.title for node in after.nodes] == ["a", "A", "b", "B", "More", "c", "C"]
    assert after.nodes[1] is before.nodes[1]
    assert after.parent.tolist() == Forest.from_documents(library.documents).parent.tolist()
