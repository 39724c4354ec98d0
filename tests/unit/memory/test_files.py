import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from foveate.memory.files import Problem, WalkResult, find_files, make_roots
from tests.support.scenarios.note_folders import folder_for_everybody, without_privileges, write_files


def walk(*paths: Path | str, follow_symlinks: bool = False) -> WalkResult:
    return find_files(make_roots(map(str, paths)), follow_symlinks=follow_symlinks)


def found_keys(*paths: Path | str, follow_symlinks: bool = False) -> list[str]:
    return sorted(found.key for found in walk(*paths, follow_symlinks=follow_symlinks).files)


def problem_lines(*paths: Path | str) -> list[str]:
    return [f"{Path(problem.path).name}: {problem.reason}" for problem in walk(*paths).problems]


def folder(path: Path, *names: str) -> Path:
    return write_files(path, dict.fromkeys(names, "text"))


def test_notes_are_found_by_their_suffix_in_any_case(tmp_path: Path) -> None:
    folder(tmp_path, "a.org", "b.ORG_archive", "c.md", "d.Markdown", "e.txt", "f", "g.org.bak", "h.mdx")

    assert found_keys(tmp_path) == ["a.org", "b.ORG_archive", "c.md", "d.Markdown"]


def test_keys_are_paths_from_the_folder(tmp_path: Path) -> None:
    folder(tmp_path, "z.md", "sub/z.md", "sub/deeper still/z.md")

    assert found_keys(tmp_path) == ["sub/deeper still/z.md", "sub/z.md", "z.md"]


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
    folder(tmp_path, name, "kept.md")

    assert found_keys(tmp_path) == ["kept.md"]
    assert problem_lines(tmp_path) == []


def test_a_given_folder_is_read_even_if_it_is_hidden(tmp_path: Path) -> None:
    assert found_keys(folder(tmp_path / ".notes", "a.md")) == ["a.md"]


def test_a_given_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    folder(tmp_path, "README", ".hidden", "sub/a.md")

    assert found_keys(tmp_path / "README", tmp_path / ".hidden", tmp_path / "sub") == [
        ".hidden",
        "README",
        "sub/a.md",
    ]


def test_a_folder_called_like_a_note_is_a_folder(tmp_path: Path) -> None:
    assert found_keys(folder(tmp_path, "a.md/b.md")) == ["a.md/b.md"]


def test_keys_do_not_depend_on_the_folders_location(tmp_path: Path) -> None:
    near, far = tmp_path / "here", tmp_path / "far" / "away"
    for place in (near, far):
        folder(place, "work/a.md", "home/a.md", "log.md")

    for named in (["work"], ["work", "home"], ["work", "log.md"], ["."]):
        assert found_keys(*(near / name for name in named)) == found_keys(*(far / name for name in named))


def test_several_folders_are_told_apart_by_name(tmp_path: Path) -> None:
    folder(tmp_path, "work/a.md", "home/a.md")

    assert found_keys(tmp_path / "work", tmp_path / "home") == ["home/a.md", "work/a.md"]


def test_folders_with_the_same_name_are_numbered_in_order(tmp_path: Path) -> None:
    folder(tmp_path, "one/notes/a.md", "two/notes/b.md", "two/notes-2/c.md")

    assert found_keys(tmp_path / "one/notes", tmp_path / "two/notes", tmp_path / "two/notes-2") == [
        "notes-2-2/c.md",
        "notes-2/b.md",
        "notes/a.md",
    ]


def test_files_with_the_same_name_include_their_folder(tmp_path: Path) -> None:
    folder(tmp_path, "one/a.md", "two/a.md", "more/two/a.md", "b.md")
    named = [tmp_path / name for name in ("one/a.md", "two/a.md", "more/two/a.md", "b.md")]

    assert found_keys(*named) == ["b.md", "one/a.md", "two/a-2.md", "two/a.md"]


def test_the_spelling_of_a_folder_does_not_change_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(tmp_path, "work/a.md", "work/sub/b.md", "home/c.md")
    monkeypatch.chdir(tmp_path / "work")
    expected = ["home/c.md", "work/a.md", "work/sub/b.md"]

    for work in (".", "../work", "sub/..", str(tmp_path / "work") + "/"):
        assert found_keys(work, "../home") == expected


def test_a_file_in_several_given_paths_is_found_once(tmp_path: Path) -> None:
    folder(tmp_path, "notes/a.md", "notes/sub/b.md")
    notes = tmp_path / "notes"

    assert found_keys(notes, notes) == ["a.md", "sub/b.md"]
    assert found_keys(notes, notes / "sub", notes / "a.md") == ["notes/a.md", "notes/sub/b.md"]
    assert found_keys(notes / "sub", notes) == ["notes/a.md", "sub/b.md"]


def test_a_followed_link_gives_the_key_of_the_link(tmp_path: Path) -> None:
    outside = folder(tmp_path / "outside", "a.md", "deep/b.md")
    notes = folder(tmp_path / "notes", "own.md")
    (notes / "linked").symlink_to(outside)
    (notes / "one.md").symlink_to(outside / "a.md")

    assert found_keys(notes, follow_symlinks=True) == ["linked/a.md", "linked/deep/b.md", "own.md"]


def test_links_that_leave_the_folders_are_followed_only_if_allowed(tmp_path: Path) -> None:
    outside = folder(tmp_path / "outside", "a.md", "passwords.txt")
    notes = folder(tmp_path / "notes", "own.md", "sub/b.md")
    (notes / "linked").symlink_to(outside)
    (notes / "one.md").symlink_to(outside / "a.md")
    (notes / "other.md").symlink_to(outside / "passwords.txt")
    (notes / "sub/inside").symlink_to(notes / "own.md")
    (tmp_path / "same").symlink_to(notes)

    assert found_keys(notes) == ["own.md", "sub/b.md"]
    assert found_keys(tmp_path / "same") == ["own.md", "sub/b.md"]  # a given folder may be a link itself
    assert sorted(line.partition(" leads")[0] for line in problem_lines(notes)) == [
        "linked: is a link that",
        "one.md: is a link that",
        "other.md: is a link that",
    ]
    named = ["notes/other.md", "notes/own.md", "notes/sub/b.md", "outside/a.md"]
    assert found_keys(notes, outside) == named  # their targets are given as well


def test_a_linked_file_keeps_its_own_key(tmp_path: Path) -> None:
    folder(tmp_path, "z/real.md")
    (tmp_path / "a.md").symlink_to(tmp_path / "z/real.md")
    (tmp_path / "b").symlink_to(tmp_path / "z")

    assert found_keys(tmp_path) == ["z/real.md"]
    assert problem_lines(tmp_path) == []


def test_a_cycle_of_links_is_reported(tmp_path: Path) -> None:
    folder(tmp_path, "a/b/note.md")
    (tmp_path / "a/b/up").symlink_to(tmp_path / "a")
    (tmp_path / "a/b/top").symlink_to(tmp_path)
    (tmp_path / "self.md").symlink_to("self.md")

    assert found_keys(tmp_path) == ["a/b/note.md"]
    assert sorted(problem_lines(tmp_path)) == [
        "self.md: Too many levels of symbolic links",
        "top: links back to a folder that it stands in",
        "up: links back to a folder that it stands in",
    ]


def test_two_folders_that_link_to_each_other_are_both_read(tmp_path: Path) -> None:
    folder(tmp_path, "one/a.md", "two/b.md")
    (tmp_path / "one/two").symlink_to(tmp_path / "two")
    (tmp_path / "two/one").symlink_to(tmp_path / "one")

    assert found_keys(tmp_path) == ["one/a.md", "two/b.md"]
    assert found_keys(tmp_path / "one", follow_symlinks=True) == ["a.md", "two/b.md"]


def test_broken_links_are_reported_if_they_may_be_notes(tmp_path: Path) -> None:
    for name in ("note.md", "vault", "photo.jpg", ".#lock.org"):
        (tmp_path / name).symlink_to("nowhere")

    assert sorted(problem_lines(tmp_path)) == ["note.md: links to nothing", "vault: links to nothing"]


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    folder(tmp_path, "a.md")
    os.mkfifo(tmp_path / "pipe.md")
    os.mkfifo(tmp_path / "pipe")

    assert found_keys(tmp_path) == ["a.md"]
    assert problem_lines(tmp_path) == ["pipe.md: is neither a file nor a folder"]
    assert problem_lines(tmp_path / "pipe") == ["pipe: is neither a file nor a folder"]


def test_an_unreadable_folder_is_reported_and_others_are_read() -> None:
    with folder_for_everybody() as notes:
        folder(notes, "a.md", "closed/b.md")
        (notes / "closed").chmod(0)
        try:
            with without_privileges():
                assert found_keys(notes) == ["a.md"]
                assert problem_lines(notes) == ["closed: Permission denied"]
                assert problem_lines(notes / "closed/b.md", notes / "a.md") == ["b.md: Permission denied"]
        finally:
            (notes / "closed").chmod(0o755)


@pytest.mark.parametrize("name", ["absent", "absent/a.md", "a.md/b.md"])
def test_a_given_path_that_does_not_exist_is_missing(tmp_path: Path, name: str) -> None:
    folder(tmp_path, "a.md")
    found = walk(tmp_path / name, tmp_path)

    assert [problem.path for problem in found.missing] == [str(tmp_path / name)]
    assert [file.key for file in found.files] == [f"{tmp_path.name}/a.md"]


@pytest.mark.process
def test_folders_are_read_at_any_depth(tmp_path: Path) -> None:
    levels = sys.getrecursionlimit() + 100
    deepest = tmp_path / "top"
    for _ in range(levels):
        deepest.mkdir()
        deepest /= "d"
    deepest.with_name("a.md").write_text("text", encoding="utf-8")
    try:
        assert found_keys(tmp_path) == [f"top/{'d/' * (levels - 1)}a.md"]
    finally:  # shutil.rmtree does not support such depth
        subprocess.run(["rm", "-r", str(tmp_path / "top")], check=True)


def test_unprintable_names_have_distinct_keys(tmp_path: Path) -> None:
    for name in (b"\xff.md", b"\xfe.md", b"a\nb.md"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("text", encoding="utf-8")

    assert found_keys(tmp_path) == ["a\ufffdb.md", "\ufffd-2.md", "\ufffd.md"]


def test_the_listing_order_of_a_folder_does_not_matter(tmp_path: Path) -> None:
    def listed(place: Path, names: Sequence[str]) -> list[str]:
        return [found.key for found in walk(folder(place, *names)).files]

    names = ["c.md", "a.md", "b/z.md", "b/a.md", "a/a.md"]

    assert listed(tmp_path / "one", names) == listed(tmp_path / "two", names[::-1])


def test_a_problem_is_one_line() -> None:
    assert str(Problem("notes/a.md", "is not UTF-8 (byte 7)")) == "notes/a.md: is not UTF-8 (byte 7)"
