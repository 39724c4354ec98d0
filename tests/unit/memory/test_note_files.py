import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from foveate.memory.note_files import Problem, WalkResult, find_files, make_roots
from tests.support.scenarios.note_folders import folder_for_everybody, without_privileges, write_files


def walk(*paths: Path | str, follow_symlinks: bool = False) -> WalkResult:
    return find_files(make_roots(map(str, paths)), follow_symlinks=follow_symlinks)


def list_keys(*paths: Path | str, follow_symlinks: bool = False) -> list[str]:
    return sorted(file.key for file in walk(*paths, follow_symlinks=follow_symlinks).files)


def list_problems(*paths: Path | str) -> list[str]:
    return [f"{Path(problem.path).name}: {problem.reason}" for problem in walk(*paths).problems]


def write_notes(path: Path, *names: str) -> Path:
    return write_files(path, dict.fromkeys(names, "text"))


def test_notes_are_found_by_their_suffix_in_any_case(tmp_path: Path) -> None:
    write_notes(tmp_path, "a.org", "b.ORG_archive", "c.md", "d.Markdown", "e.txt", "f", "g.org.bak", "h.mdx")

    assert list_keys(tmp_path) == ["a.org", "b.ORG_archive", "c.md", "d.Markdown"]


def test_keys_are_paths_from_the_folder(tmp_path: Path) -> None:
    write_notes(tmp_path, "z.md", "sub/z.md", "sub/deeper still/z.md")

    assert list_keys(tmp_path) == ["sub/deeper still/z.md", "sub/z.md", "z.md"]


@pytest.mark.parametrize(
    "name",
    [
        ".git/a.md",
        ".obsidian/a.md",
        "sub/.venv/a.md",
        "node_modules/a.md",
        "sub/node_modules/x/a.md",
        ".#a.org",
        "#a.org#",
        "a.org~",
        ".a.org.swp",
        "._a.md",
        ".hidden.md",
    ],
)
def test_hidden_files_and_editor_backups_are_skipped(tmp_path: Path, name: str) -> None:
    write_notes(tmp_path, name, "kept.md")

    assert list_keys(tmp_path) == ["kept.md"]
    assert list_problems(tmp_path) == []


def test_a_given_folder_is_read_even_if_it_is_hidden(tmp_path: Path) -> None:
    assert list_keys(write_notes(tmp_path / ".notes", "a.md")) == ["a.md"]


def test_a_given_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    write_notes(tmp_path, "README", ".hidden", "sub/a.md")

    assert list_keys(tmp_path / "README", tmp_path / ".hidden", tmp_path / "sub") == [
        ".hidden",
        "README",
        "sub/a.md",
    ]


def test_a_folder_called_like_a_note_is_a_folder(tmp_path: Path) -> None:
    assert list_keys(write_notes(tmp_path, "a.md/b.md")) == ["a.md/b.md"]


def test_keys_do_not_depend_on_the_folders_location(tmp_path: Path) -> None:
    first, second = tmp_path / "here", tmp_path / "far" / "away"
    for base in (first, second):
        write_notes(base, "work/a.md", "home/a.md", "log.md")

    for names in (["work"], ["work", "home"], ["work", "log.md"], ["."]):
        assert list_keys(*(first / name for name in names)) == list_keys(*(second / name for name in names))


def test_several_folders_are_distinguished_by_name(tmp_path: Path) -> None:
    write_notes(tmp_path, "work/a.md", "home/a.md")

    assert list_keys(tmp_path / "work", tmp_path / "home") == ["home/a.md", "work/a.md"]


def test_folders_with_the_same_name_are_numbered_in_order(tmp_path: Path) -> None:
    write_notes(tmp_path, "one/notes/a.md", "two/notes/b.md", "two/notes-2/c.md")

    assert list_keys(tmp_path / "one/notes", tmp_path / "two/notes", tmp_path / "two/notes-2") == [
        "notes-2-2/c.md",
        "notes-2/b.md",
        "notes/a.md",
    ]


def test_files_with_the_same_name_include_their_folder(tmp_path: Path) -> None:
    write_notes(tmp_path, "one/a.md", "two/a.md", "more/two/a.md", "b.md")
    paths = [tmp_path / name for name in ("one/a.md", "two/a.md", "more/two/a.md", "b.md")]

    assert list_keys(*paths) == ["b.md", "one/a.md", "two/a-2.md", "two/a.md"]


def test_the_spelling_of_a_folder_does_not_change_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_notes(tmp_path, "work/a.md", "work/sub/b.md", "home/c.md")
    monkeypatch.chdir(tmp_path / "work")
    expected = ["home/c.md", "work/a.md", "work/sub/b.md"]

    for spelling in (".", "../work", "sub/..", str(tmp_path / "work") + "/"):
        assert list_keys(spelling, "../home") == expected


def test_a_file_in_several_given_paths_is_found_once(tmp_path: Path) -> None:
    write_notes(tmp_path, "notes/a.md", "notes/sub/b.md")
    notes = tmp_path / "notes"

    assert list_keys(notes, notes) == ["a.md", "sub/b.md"]
    assert list_keys(notes, notes / "sub", notes / "a.md") == ["notes/a.md", "notes/sub/b.md"]
    assert list_keys(notes / "sub", notes) == ["notes/a.md", "sub/b.md"]


def test_a_followed_link_gives_the_key_of_the_link(tmp_path: Path) -> None:
    outside = write_notes(tmp_path / "outside", "a.md", "deep/b.md")
    notes = write_notes(tmp_path / "notes", "own.md")
    (notes / "linked").symlink_to(outside)
    (notes / "one.md").symlink_to(outside / "a.md")

    assert list_keys(notes, follow_symlinks=True) == ["linked/a.md", "linked/deep/b.md", "own.md"]


def test_links_that_leave_the_folders_are_followed_only_if_allowed(tmp_path: Path) -> None:
    outside = write_notes(tmp_path / "outside", "a.md", "passwords.txt")
    notes = write_notes(tmp_path / "notes", "own.md", "sub/b.md")
    (notes / "linked").symlink_to(outside)
    (notes / "one.md").symlink_to(outside / "a.md")
    (notes / "other.md").symlink_to(outside / "passwords.txt")
    (notes / "sub/inside").symlink_to(notes / "own.md")
    (tmp_path / "same").symlink_to(notes)

    assert list_keys(notes) == ["own.md", "sub/b.md"]
    assert list_keys(tmp_path / "same") == [
        "own.md",
        "sub/b.md",
    ]  # an explicitly passed folder may itself be a link
    assert sorted(line.partition(" points outside")[0] for line in list_problems(notes)) == [
        "linked: is a link that",
        "one.md: is a link that",
        "other.md: is a link that",
    ]
    expected = ["notes/other.md", "notes/own.md", "notes/sub/b.md", "outside/a.md"]
    assert list_keys(notes, outside) == expected  # the targets are also passed


def test_a_linked_file_keeps_its_own_key(tmp_path: Path) -> None:
    write_notes(tmp_path, "z/real.md")
    (tmp_path / "a.md").symlink_to(tmp_path / "z/real.md")
    (tmp_path / "b").symlink_to(tmp_path / "z")

    assert list_keys(tmp_path) == ["z/real.md"]
    assert list_problems(tmp_path) == []


def test_a_cycle_of_links_is_reported(tmp_path: Path) -> None:
    write_notes(tmp_path, "a/b/note.md")
    (tmp_path / "a/b/up").symlink_to(tmp_path / "a")
    (tmp_path / "a/b/top").symlink_to(tmp_path)
    (tmp_path / "self.md").symlink_to("self.md")

    assert list_keys(tmp_path) == ["a/b/note.md"]
    assert sorted(list_problems(tmp_path)) == [
        "self.md: Too many levels of symbolic links",
        "top: is a link to a folder that contains it",
        "up: is a link to a folder that contains it",
    ]


def test_two_folders_that_link_to_each_other_are_both_read(tmp_path: Path) -> None:
    write_notes(tmp_path, "one/a.md", "two/b.md")
    (tmp_path / "one/two").symlink_to(tmp_path / "two")
    (tmp_path / "two/one").symlink_to(tmp_path / "one")

    assert list_keys(tmp_path) == ["one/a.md", "two/b.md"]
    assert list_keys(tmp_path / "one", follow_symlinks=True) == ["a.md", "two/b.md"]


def test_broken_links_are_reported_if_they_may_be_notes(tmp_path: Path) -> None:
    for name in ("note.md", "vault", "photo.jpg", ".#lock.org"):
        (tmp_path / name).symlink_to("nowhere")

    assert sorted(list_problems(tmp_path)) == ["note.md: is a broken link", "vault: is a broken link"]


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    write_notes(tmp_path, "a.md")
    os.mkfifo(tmp_path / "pipe.md")
    os.mkfifo(tmp_path / "pipe")

    assert list_keys(tmp_path) == ["a.md"]
    assert list_problems(tmp_path) == ["pipe.md: is neither a file nor a folder"]
    assert list_problems(tmp_path / "pipe") == ["pipe: is neither a file nor a folder"]


def test_an_unreadable_folder_is_reported_and_others_are_read() -> None:
    with folder_for_everybody() as notes:
        write_notes(notes, "a.md", "closed/b.md")
        (notes / "closed").chmod(0)
        try:
            with without_privileges():
                assert list_keys(notes) == ["a.md"]
                assert list_problems(notes) == ["closed: Permission denied"]
                assert list_problems(notes / "closed/b.md", notes / "a.md") == ["b.md: Permission denied"]
        finally:
            (notes / "closed").chmod(0o755)


@pytest.mark.parametrize("name", ["absent", "absent/a.md", "a.md/b.md"])
def test_a_given_path_that_does_not_exist_is_missing(tmp_path: Path, name: str) -> None:
    write_notes(tmp_path, "a.md")
    result = walk(tmp_path / name, tmp_path)

    assert [problem.path for problem in result.missing] == [str(tmp_path / name)]
    assert [file.key for file in result.files] == [f"{tmp_path.name}/a.md"]


@pytest.mark.process
def test_folders_are_read_at_any_depth(tmp_path: Path) -> None:
    levels = sys.getrecursionlimit() + 100
    deepest = tmp_path / "top"
    for _ in range(levels):
        deepest.mkdir()
        deepest /= "d"
    deepest.with_name("a.md").write_text("text", encoding="utf-8")
    try:
        assert list_keys(tmp_path) == [f"top/{'d/' * (levels - 1)}a.md"]
    finally:  # shutil.rmtree does not support such depth
        subprocess.run(["rm", "-r", str(tmp_path / "top")], check=True)


def test_unprintable_names_have_distinct_keys(tmp_path: Path) -> None:
    for name in (b"\xff.md", b"\xfe.md", b"a\nb.md"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("text", encoding="utf-8")

    assert list_keys(tmp_path) == ["a\ufffdb.md", "\ufffd-2.md", "\ufffd.md"]


def test_the_listing_order_of_a_folder_does_not_matter(tmp_path: Path) -> None:
    def list_keys_in_order(base: Path, names: Sequence[str]) -> list[str]:
        return [file.key for file in walk(write_notes(base, *names)).files]

    names = ["c.md", "a.md", "b/z.md", "b/a.md", "a/a.md"]

    assert list_keys_in_order(tmp_path / "one", names) == list_keys_in_order(tmp_path / "two", names[::-1])


def test_a_problem_is_one_line() -> None:
    assert str(Problem("notes/a.md", "is not UTF-8 (byte 7)")) == "notes/a.md: is not UTF-8 (byte 7)"
