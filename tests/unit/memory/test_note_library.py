import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from foveate.errors import BadOption, UnreadableInput
from foveate.memory.note_library import Library
from foveate.memory.privacy import Gate
from tests.support.scenarios.note_folders import (
    all_nodes,
    folder_for_everybody,
    load_library,
    node_ids,
    opened_files,
    problem_lines,
    wait_until_settled,
    without_privileges,
    write_files,
)

WITH_ID = "* {}\n:PROPERTIES:\n:ID: {}\n:END:\n"


def document_keys(library: Library) -> list[str]:
    return [document.key for document in library.documents]


def all_text(library: Library) -> str:
    return "".join(document.outline.text for document in library.documents)


def test_nothing_is_read_before_the_first_refresh(tmp_path: Path) -> None:
    library = Library([write_files(tmp_path, {"a.md": "# One\n"}), "/nowhere"], Gate())

    assert (library.documents, library.problems, library.node("x")) == ((), (), None)


def test_org_and_markdown_become_documents_by_key(tmp_path: Path) -> None:
    write_files(
        tmp_path, {"b.org": "* Star\n", "a.md": "x\n# Hash\n", "sub/c.markdown": "text\n", "empty.md": ""}
    )
    os.utime(tmp_path / "a.md", (1_700_000_000, 1_700_000_000))
    library = load_library(tmp_path)

    assert document_keys(library) == ["a.md", "b.org", "empty.md", "sub/c.markdown"]
    assert [node.title for node in library.documents[0].nodes] == ["a", "Hash"]
    assert library.documents[0].path == str(tmp_path / "a.md")
    assert library.documents[0].modified == datetime.fromtimestamp(1_700_000_000)
    assert library.problems == ()


def test_a_node_is_found_by_its_id(tmp_path: Path) -> None:
    library = load_library(write_files(tmp_path, {"a.org": WITH_ID.format("One", "abc") + "* Two\n"}))
    node = library.node("abc")

    assert node is library.documents[0].nodes[1]
    assert library.node(node_ids(library)["Two"]) is library.documents[0].nodes[2]
    assert library.node("abcd") is None


def test_an_unchanged_library_opens_no_file(tmp_path: Path) -> None:
    library = load_library(write_files(tmp_path, {f"{n}.org": "* One\n" for n in range(20)}))
    wait_until_settled(library)
    before = library.version, library.documents, library.problems
    with opened_files() as opened:
        changes = library.refresh()

    assert opened == []
    assert (changes.read, changes.removed) == ((), ())
    assert (library.version, library.documents, library.problems) == before
    assert library.documents is before[1]


def test_only_the_file_that_has_changed_is_opened_and_only_its_document_is_new(tmp_path: Path) -> None:
    library = load_library(write_files(tmp_path, {f"{n:02}.org": f"* Title {n}\n" for n in range(20)}))
    wait_until_settled(library)
    before, version = library.documents, library.version
    write_files(tmp_path, {"07.org": "* Another\n"})
    with opened_files() as opened_paths:
        changes = library.refresh()

    changed_path = str(tmp_path / "07.org")
    assert set(opened_paths) == {changed_path}
    assert (changes.read, changes.removed) == ((changed_path,), ())
    is_same = [new is old for new, old in zip(library.documents, before, strict=True)]
    assert is_same == [n != 7 for n in range(20)]
    assert library.version != version
    assert node_ids(library).keys() >= {"Another"}
    assert library.node(before[7].nodes[1].id) is None


def test_a_change_is_noticed_although_size_and_time_are_restored(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"a.org": "* One\n"}) / "a.org"
    library = load_library(tmp_path)
    wait_until_settled(library)
    version, times = library.version, path.stat()
    with path.open("r+b") as file:
        file.write(b"* Two\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    library.refresh()

    assert "Two" in node_ids(library)
    assert library.version != version


def test_files_can_be_added_and_removed(tmp_path: Path) -> None:
    library = load_library(write_files(tmp_path, {"a.org": "* One\n", "b.org": "* Two\n"}))
    (tmp_path / "a.org").unlink()
    write_files(tmp_path, {"new/c.org": "* Three\n"})
    changes = library.refresh()

    assert document_keys(library) == ["b.org", "new/c.org"]
    assert (changes.read, changes.removed) == ((str(tmp_path / "new/c.org"),), (str(tmp_path / "a.org"),))


def test_a_file_that_is_replaced_by_renaming_is_read_again(tmp_path: Path) -> None:
    library = load_library(write_files(tmp_path, {"a.org": "* One\n"}))
    wait_until_settled(library)
    write_files(tmp_path, {"a.org.new": "* Two\n"})
    (tmp_path / "a.org.new").replace(tmp_path / "a.org")
    library.refresh()

    assert "Two" in node_ids(library)


def test_a_touched_file_is_a_newer_document_with_the_same_text(tmp_path: Path) -> None:
    library = load_library(write_files(tmp_path, {"a.org": "* One\n"}))
    before, version = library.documents[0], library.version
    os.utime(tmp_path / "a.org", (1_700_000_000, 1_700_000_000))
    library.refresh()
    after = library.documents[0]

    assert after.outline is before.outline
    assert after.nodes[1].modified == datetime.fromtimestamp(1_700_000_000)
    assert library.version != version


@pytest.mark.parametrize("seconds", [-(10**11), 10**11])
def test_a_file_time_outside_the_calendar_is_no_error(tmp_path: Path, seconds: int) -> None:
    path = write_files(tmp_path, {"a.org": "* One\n"}) / "a.org"
    os.utime(path, (seconds, seconds))
    library = load_library(tmp_path)

    assert document_keys(library) == ["a.org"]
    assert isinstance(library.documents[0].modified, datetime)


def test_a_missing_path_is_an_error_at_first_and_later_a_problem(tmp_path: Path) -> None:
    write_files(tmp_path, {"notes/a.org": "* One\n", "log.org": "* Two\n"})
    library = Library([tmp_path / "notes", tmp_path / "lgo.org"], Gate())
    with pytest.raises(UnreadableInput, match=r"lgo\.org: No such file"):
        library.refresh()
    (tmp_path / "log.org").rename(tmp_path / "lgo.org")
    library.refresh()
    assert document_keys(library) == ["lgo.org", "notes/a.org"]

    (tmp_path / "lgo.org").unlink()
    library.refresh()
    assert document_keys(library) == ["notes/a.org"]
    assert problem_lines(library) == ["lgo.org: No such file or directory"]

    write_files(tmp_path, {"lgo.org": "* Back\n"})
    library.refresh()
    assert problem_lines(library) == []
    assert document_keys(library) == ["lgo.org", "notes/a.org"]


def test_paths_are_expanded_unless_they_exist_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"home/notes/a.org": "", "cost $5/b.org": ""})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NOTES_HERE", "~/notes")

    for path in ("~/notes", "$NOTES_HERE", "'${NOTES_HERE}/'", '"$HOME/notes'):
        assert document_keys(load_library(path)) == ["a.org"]
    assert document_keys(load_library(str(tmp_path / "cost $5"))) == ["b.org"]
    with pytest.raises(BadOption, match="NOTES_THERE"):
        load_library("$NOTES_THERE/a.org")


def test_a_single_string_is_not_a_list_of_paths(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="a list"):
        Library(str(tmp_path), Gate())


def test_a_library_does_not_depend_on_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path, {"notes/a.org": "* One\n"})
    monkeypatch.chdir(tmp_path)
    library = load_library("notes")
    monkeypatch.chdir(tmp_path / "notes")

    assert library.refresh().removed == ()
    assert document_keys(library) == ["a.org"]


def test_invalid_utf_8_is_reported_with_its_position_and_other_files_are_read(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.org": "* One\n"})
    (tmp_path / "latin.org").write_bytes("* Caf\N{LATIN SMALL LETTER E WITH ACUTE}\n".encode("latin-1"))
    library = load_library(tmp_path)

    assert document_keys(library) == ["a.org"]
    assert problem_lines(library) == ["latin.org: is not UTF-8 (byte 5)"]

    wait_until_settled(library)
    assert problem_lines(library) == ["latin.org: is not UTF-8 (byte 5)"]
    write_files(tmp_path, {"latin.org": "* Caf\N{LATIN SMALL LETTER E WITH ACUTE}\n"})
    library.refresh()
    assert document_keys(library) == ["a.org", "latin.org"]
    assert problem_lines(library) == []


def test_a_file_that_became_invalid_is_not_shown_as_before(tmp_path: Path) -> None:
    library = load_library(write_files(tmp_path, {"a.org": "* One\n"}))
    (tmp_path / "a.org").write_bytes(b"* One \xe9 :private:\n")
    changes = library.refresh()

    assert library.documents == ()
    assert changes.removed == (str(tmp_path / "a.org"),)


def test_a_file_that_ends_within_a_character_counts_as_unfinished_once(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"a.org": "* One\n"}) / "a.org"
    library = load_library(tmp_path)
    version = library.version
    path.write_bytes("* Two \N{EURO SIGN}".encode()[:-1])
    library.refresh()

    assert list(node_ids(library)) == ["a", "One"]
    assert problem_lines(library) == ["a.org: is not UTF-8 (byte 6)"]
    assert library.version != version

    path.write_bytes("* Two \N{EURO SIGN}\n".encode())
    library.refresh()
    assert list(node_ids(library)) == ["a", "Two \N{EURO SIGN}"]
    assert problem_lines(library) == []

    path.write_bytes(b"* Three \xe2\x82")
    library.refresh()
    library.refresh()
    assert library.documents == ()
    assert problem_lines(library) == ["a.org: is not UTF-8 (byte 8)"]


def test_an_unfinished_file_that_is_restored_is_unchanged(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"a.org": "* One\n"}) / "a.org"
    library = load_library(tmp_path)
    path.write_bytes(b"* Two \xe2\x82")
    library.refresh()
    path.write_bytes(b"* One\n")
    library.refresh()

    assert list(node_ids(library)) == ["a", "One"]
    assert library.problems == ()


@contextmanager
def concurrent_writer(path: Path) -> Iterator[None]:
    """A thread that writes to a file all the time."""
    stop = threading.Event()

    def update_time() -> None:
        while not stop.is_set():
            os.utime(path)

    writer = threading.Thread(target=update_time)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


@pytest.mark.slow
def test_a_file_that_changes_while_it_is_read_keeps_its_old_content(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"a.org": "* One\n", "b.org": "* Other\n"}) / "a.org"
    library = load_library(tmp_path)
    with path.open(
        "r+b"
    ) as file:  # large enough that reading takes longer than a tick of the file system's clock
        file.truncate(100_000_000)
    expected = ["a.org: changed while it was read"]
    with concurrent_writer(path):
        for _ in range(20):  # on a busy machine there may be no write during a read
            library.refresh()
            if problem_lines(library) == expected:
                break
        assert problem_lines(library) == expected
        assert list(node_ids(library)) == ["a", "One", "b", "Other"]
        fresh = next(fresh for _ in range(20) if problem_lines(fresh := load_library(path)) == expected)
        assert fresh.documents == ()
    path.write_bytes(b"* Two\n")
    library.refresh()
    assert list(node_ids(library)) == ["a", "Two", "b", "Other"]
    assert problem_lines(library) == []


def test_an_unreadable_file_is_reported_and_not_shown_as_before() -> None:
    with folder_for_everybody() as notes:
        library = load_library(write_files(notes, {"a.org": "* One\n", "b.org": "* Two\n"}))
        (notes / "a.org").chmod(0)
        with without_privileges():
            library.refresh()
            assert document_keys(library) == ["b.org"]
            assert problem_lines(library) == ["a.org: Permission denied"]
        (notes / "a.org").chmod(0o644)
        library.refresh()
        assert document_keys(library) == ["a.org", "b.org"]
        assert problem_lines(library) == []


def test_a_file_above_the_size_limit_is_reported(tmp_path: Path) -> None:
    with (write_files(tmp_path, {"a.org": "* One\n", "b.org": ""}) / "a.org").open("r+b") as file:
        file.truncate(5_000_000_000)
    library = load_library(tmp_path)

    assert document_keys(library) == ["b.org"]
    assert problem_lines(library) == ["a.org: is larger than 1,000,000,000 bytes, the limit for notes"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["large.org", "large.md"])
def test_a_file_of_50_megabytes_is_read(tmp_path: Path, name: str) -> None:
    star = "*" if name.endswith("org") else "#"
    text = f"{star} One\n" + "a line of text like any other\n" * 1_700_000 + f"{star} Last\nend\n"
    library = load_library(write_files(tmp_path, {name: text}))

    assert len(text) > 50_000_000
    assert [node.title for node in library.documents[0].nodes] == ["large", "One", "Last"]
    assert library.documents[0].outline.text == text


def test_parser_problems_are_reported(tmp_path: Path) -> None:
    library = load_library(write_files(tmp_path, {"a.org": "* One\nDEADLINE: <2026-02-31 Tue>\n"}))

    assert document_keys(library) == ["a.org"]
    assert [problem.path for problem in library.problems] == [str(tmp_path / "a.org")]


@pytest.mark.slow
def test_readers_see_a_consistent_state_during_a_refresh(tmp_path: Path) -> None:
    count = 30
    library = load_library(
        write_files(tmp_path, {f"{n:02}.org": WITH_ID.format(f"T{n}", f"id-{n}") for n in range(count)})
    )
    stop, failures = threading.Event(), []

    def read_documents() -> None:
        while not stop.is_set():
            documents = library.documents
            if [document.key for document in documents] != [f"{n:02}.org" for n in range(count)]:
                failures.append(repr(documents))
            if any(len(document.nodes) != 2 for document in documents) or library.node("id-3") is None:
                failures.append("half of a document")

    def refresh() -> None:
        while not stop.is_set():
            library.refresh()

    threads = [threading.Thread(target=run) for run in (read_documents, read_documents, refresh)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # otherwise the threads hardly ever interleave
    try:
        for thread in threads:
            thread.start()
        for turn in range(25):
            write_files(tmp_path, {"03.org.new": WITH_ID.format(f"Turn {turn}", "id-3")})
            (tmp_path / "03.org.new").replace(tmp_path / "03.org")
            library.refresh()
            node = library.node("id-3")
            if node is None or node.title != f"Turn {turn}":
                failures.append(f"{node} after turn {turn}")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)

    assert failures == []


def test_a_regenerated_id_never_equals_one_below_the_owner(tmp_path: Path) -> None:
    """Regression: both were generated from the id and the title."""
    generated = node_ids(load_library(write_files(tmp_path, {"a.org": "* Two\n"})))["Two"]
    library = load_library(
        write_files(tmp_path, {"a.org": "* Two\n" + WITH_ID.format("One", generated) + "** Two\n"})
    )
    nodes = list(all_nodes(library))

    assert len({node.id for node in nodes}) == len(nodes) == 4
    assert all(library.node(node.id) is node for node in nodes)
