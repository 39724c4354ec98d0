import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foveate.memory.note_library import Library
from tests.support.scenarios.note_folders import (
    all_nodes,
    load_library,
    node_ids,
    problem_lines,
    wait_until_settled,
    write_files,
)
from tests.support.strategies.notes import NoteFolder, note_folders, note_texts

WITH_ID = "* {}\n:PROPERTIES:\n:ID: {}\n:END:\n"


@contextmanager
def write_temporary_notes(notes: NoteFolder) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield write_files(Path(name), {file.path: file.text for file in notes.files})


def describe_nodes(library: Library) -> list[tuple[object, ...]]:
    """Return everything that a library exposes about its nodes."""
    return [
        (
            node.id,
            node.title,
            node.version,
            node.modified,
            node.document.key,
            node.tags,
            node.parent and node.parent.id,
        )
        for node in all_nodes(library)
    ]


def assert_equals_fresh_library(library: Library, folder: Path) -> None:
    fresh = load_library(folder)
    assert describe_nodes(library) == describe_nodes(fresh)
    assert library.version == fresh.version
    assert library.problems == fresh.problems
    for node in all_nodes(library):
        assert library.node(node.id) is node


@pytest.mark.slow
@given(notes=note_folders(), data=st.data())
def test_any_edit_changes_the_version_and_reverting_restores_it(notes: NoteFolder, data: st.DataObject) -> None:
    with write_temporary_notes(notes) as folder:
        file = data.draw(st.sampled_from(notes.files))
        path, original = folder / file.path, file.text.encode()
        os.utime(path, ns=(0, 1_700_000_000_123_456_789))
        library = load_library(folder)
        version = library.version
        offset = data.draw(st.integers(0, len(original)))
        inserted = data.draw(st.sampled_from([b"", b"x", b"\n", b"*", b"\xff"]))
        edited = original[:offset] + inserted + original[offset + data.draw(st.integers(0, 1)) :]
        times = path.stat()
        path.write_bytes(edited)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        library.refresh()

        assert (library.version == version) == (edited == original)
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        library.refresh()
        assert library.version == version


def iterate_strings(root: object) -> Iterator[str]:
    """Yield all strings and bytes reachable from an object."""
    code = (type, ModuleType, FunctionType, BuiltinFunctionType)
    pending, seen_ids = [root], {id(root)}
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, bytes | bytearray):
            yield value.decode("utf-8", "replace")
        # The garbage collector does not track structs without it.
        fields = (
            [getattr(value, name) for name in value.__struct_fields__]
            if isinstance(value, msgspec.Struct)
            else []
        )
        for referent in [*gc.get_referents(value), *fields]:
            if id(referent) not in seen_ids and not isinstance(referent, code):
                seen_ids.add(id(referent))
                pending.append(referent)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(notes=note_folders(), edited_notes=note_folders())
def test_nothing_private_can_be_reached_from_a_library(notes: NoteFolder, edited_notes: NoteFolder) -> None:
    with write_temporary_notes(notes) as folder:
        library = load_library(folder)
        text = "\0".join(iterate_strings(library))
        assert not notes.leaked_words(text)
        assert all(word in text for word in notes.public)

        for file in notes.files:  # private words of one can be public in the other
            (folder / file.path).unlink()
        write_files(folder, {file.path: file.text for file in edited_notes.files})
        library.refresh()
        text = "\0".join(iterate_strings(library))
        assert not edited_notes.leaked_words(text)
        assert all(word in text for word in edited_notes.public)


def test_text_that_becomes_private_is_forgotten(tmp_path: Path) -> None:
    library = load_library(
        write_files(tmp_path, {"a.org": "* One\nsecret\n* Two\n", "b.org": "* Three\nsecret\n"})
    )
    write_files(
        tmp_path,
        {"a.org": "* One :private:\nsecret\n* Two\n", "b.org": "#+FILETAGS: private\n* Three\nsecret\n"},
    )
    changes = library.refresh()

    assert not [text for text in iterate_strings(library) if "secret" in text or "Three" in text]
    assert list(node_ids(library)) == ["a", "Two"]
    assert changes.removed == (str(tmp_path / "b.org"),)


def test_problems_of_private_notes_are_not_reported(tmp_path: Path) -> None:
    library = load_library(
        write_files(
            tmp_path,
            {
                "a.org": WITH_ID.format("Hidden :private:", "same") + "DEADLINE: <2026-02-31 Tue>\n",
                "b.org": WITH_ID.format("Shown", "same"),
                "c.org": "#+FILETAGS: :private:\n" + WITH_ID.format("Hidden", "same"),
            },
        )
    )

    assert library.problems == ()
    assert node_ids(library)["Shown"] == "same"
    assert [document.key for document in library.documents] == ["a.org", "b.org"]


FILES = ("a.org", "b.org", "sub/c.org")
headings = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(["One", "Two"]),
        st.sampled_from(["", "", "x", "y", "z"]),
        st.booleans(),
    ),
    max_size=5,
)


def write_org(tree: list[tuple[int, str, str, bool]], reused_id: str) -> str:
    text = ""
    for level, title, node_id, is_private in tree:
        text += f"{'*' * level} {title}{' :private:' if is_private and node_id == 'z' else ''}\n"
        node_id = reused_id if node_id == "y" else node_id
        text += f":PROPERTIES:\n:ID: {node_id}\n:END:\n" if node_id else ""
    return text


@pytest.mark.slow
@given(data=st.data())
def test_an_updated_library_equals_a_fresh_one(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        library = load_library(folder)
        for _ in range(data.draw(st.integers(1, 5))):
            # Assign the generated id of one node to another.
            reused_id = data.draw(st.sampled_from(["y", *(node.id for node in all_nodes(library))]))
            for path in data.draw(st.lists(st.sampled_from(FILES), min_size=1, max_size=2, unique=True)):
                tree = data.draw(st.one_of(st.none(), headings, headings, headings))
                if tree is None:
                    (folder / path).unlink(missing_ok=True)
                else:
                    write_files(folder, {path: write_org(tree, reused_id)})
            library.refresh()
            assert_equals_fresh_library(library, folder)
            nodes = list(all_nodes(library))
            assert len({node.id for node in nodes}) == len(nodes)


@pytest.mark.slow
@given(texts=st.lists(note_texts, min_size=1, max_size=3))
def test_any_file_is_read_completely(texts: list[str]) -> None:
    contents = [text.encode("utf-8", "replace").decode() for text in texts]
    with tempfile.TemporaryDirectory() as folder_name:
        folder = write_files(
            Path(folder_name),
            {f"{number}{'.org' if number % 2 else '.md'}": text for number, text in enumerate(contents)},
        )
        library = load_library(folder)

        for document in library.documents:
            assert document.outline.to_text() == document.outline.text
        assert_equals_fresh_library(library, folder)


@pytest.mark.slow
@given(notes=note_folders())
def test_ids_do_not_depend_on_the_folders_location(notes: NoteFolder) -> None:
    with write_temporary_notes(notes) as first_folder, write_temporary_notes(notes) as second_folder:
        assert node_ids(load_library(first_folder)) == node_ids(load_library(second_folder))


def test_an_id_in_two_files_belongs_to_the_first_and_both_are_named(tmp_path: Path) -> None:
    write_files(tmp_path, {"b.org": WITH_ID.format("Later", "same") + "** Child\n", "z.org": "* Other\n"})
    library = load_library(tmp_path)
    child = node_ids(library)["Child"]
    assert node_ids(library)["Later"] == "same"

    write_files(tmp_path, {"a.org": WITH_ID.format("Sooner", "same") + "** Child of it\n"})
    wait_until_settled(library)
    ids = node_ids(library)
    assert ids["Sooner"] == "same"
    assert ids["Later"] != "same"
    assert ids["Child"] != child
    assert problem_lines(library) == [
        f"b.org: 'Later' has the same id, same, as 'Sooner' in {tmp_path}/a.org, "
        f"so it gets the id {ids['Later']}: change one of the two ids"
    ]

    (tmp_path / "a.org").unlink()
    library.refresh()
    assert node_ids(library)["Later"] == "same"
    assert node_ids(library)["Child"] == child
    assert library.problems == ()


def test_a_duplicate_id_in_one_file_is_reported(tmp_path: Path) -> None:
    library = load_library(write_files(tmp_path, {"a.md": "# One {#same}\n\n# Two {#same}\n"}))

    assert node_ids(library)["One"] == "same"
    assert problem_lines(library)[0].startswith(
        "a.md: 'Two' has the same id, same, as 'One' in this file, so it gets the id"
    )


@pytest.mark.slow
def test_real_notes_are_read_completely(tmp_path: Path, shared_data: Path) -> None:
    import tarfile

    archive = shared_data / "knowledge" / "worg.tar.gz"
    if not archive.exists():
        pytest.skip(f"no {archive}")
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        packed.extractall(tmp_path)
    library = load_library(tmp_path)
    nodes = list(all_nodes(library))

    assert len(library.documents) == len(list(tmp_path.rglob("*.org")))
    assert len({node.id for node in nodes}) == len(nodes) > 6000
    for document in library.documents:
        assert document.outline.text == Path(document.path).read_bytes().decode()
