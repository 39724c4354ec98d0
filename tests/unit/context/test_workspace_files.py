"""Unusual files in a workspace: the rest is read, nothing hangs, nothing leaks."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.context.workspace import (
    SourceFile,
    WorkspaceScan,
    WorkspaceWarning,
    read_files,
    resolve_path,
    scan_workspace,
)
from foveate.context.workspace_cache import Workspace, read_bundle
from foveate.memory.privacy import Gate
from tests.support.scenarios.workspaces import write_files


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 50_000_000)


def cycle(path: Path) -> None:
    path.symlink_to("AGENTS.md")
    path.with_name("AGENTS.md").symlink_to("USER.md")


UNUSABLE_FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "50 MB": (huge, "is larger than 4,000,000 bytes, the maximum size"),
    "Latin-1": (lambda path: path.write_bytes(b"caf\xe9 noir"), "is not UTF-8 (byte 3)"),
    "UTF-16": (lambda path: path.write_text("café", encoding="utf-16"), "is UTF-16: save it as UTF-8"),
    "half a character": (lambda path: path.write_bytes("é".encode()[:1]), "ends in the middle of a character"),
    "binary": (lambda path: path.write_bytes(b"a\0b"), "is binary, not text"),
    "folder": (Path.mkdir, "is a folder"),
    "FIFO": (os.mkfifo, "is not a file"),
    "cycle": (cycle, "is a circular link"),
    "device": (
        lambda path: path.symlink_to("/dev/zero"),
        "is a link that leads out of the workspace and is not followed",
    ),
    "broken link": (lambda path: path.symlink_to("nowhere.md"), "does not exist"),
    "link through a file": (lambda path: path.symlink_to("SOUL.md/USER.md"), "does not exist"),
}


@pytest.mark.parametrize("case", UNUSABLE_FILES)
def test_an_unusable_file_is_left_out_with_a_warning(case: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"SOUL.md": "Kind.", "MEMORY.md": "Roses."})
    make, reason = UNUSABLE_FILES[case]
    make(tmp_path / "USER.md")

    bundle = read_bundle(Workspace(tmp_path), Gate())

    assert bundle.text == "Kind.\n\nRoses."
    assert WorkspaceWarning("USER.md", reason, "USER.md") in bundle.warnings


@pytest.mark.parametrize("case", UNUSABLE_FILES)
def test_an_unusable_extra_is_left_out_with_a_warning(case: str, tmp_path: Path) -> None:
    write_files(tmp_path, {"SOUL.md": "Kind.", "docs/SOUL.md": "No role here."})
    make, reason = UNUSABLE_FILES[case]
    make(tmp_path / "docs" / "USER.md")

    bundle = read_bundle(Workspace(tmp_path, extras=["docs/USER.md"]), Gate())

    assert bundle.text == "Kind."
    assert bundle.warnings == (WorkspaceWarning("docs/USER.md", reason, "docs/USER.md"),)


def test_a_missing_extra_is_a_warning(tmp_path: Path) -> None:
    bundle = read_bundle(Workspace(tmp_path, extras=["none/at/all.md"]), Gate())

    assert bundle.warnings == (WorkspaceWarning("none/at/all.md", "does not exist", "none/at/all.md"),)


def test_a_byte_order_mark_and_surrounding_blank_lines_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").write_bytes(b"\xef\xbb\xbf\r\n\n  Kind.\r\nVery.\r\n\n")

    assert read_bundle(Workspace(tmp_path), Gate()).text == "  Kind.\r\nVery."


def test_a_link_inside_the_workspace_is_followed(tmp_path: Path) -> None:
    write_files(tmp_path, {"shared/tone.md": "Short.", "shared/deep/SOUL.md": "Kind."})
    (tmp_path / "USER.md").symlink_to(tmp_path / "shared" / "tone.md")
    (tmp_path / "support").symlink_to("shared/deep/../deep")

    assert read_bundle(Workspace(tmp_path, "support"), Gate()).text == "Kind.\n\nShort."


@pytest.mark.parametrize("target", ["..", "/etc", "../other"])
def test_a_scope_that_links_out_of_the_workspace_is_not_followed(target: str, tmp_path: Path) -> None:
    root = write_files(tmp_path / "ana", {"SOUL.md": "Kind."})
    write_files(tmp_path, {"other/USER.md": "Not mine.", "USER.md": "Nor this."})
    (root / "support").symlink_to(target)

    bundle = read_bundle(Workspace(root, "support", ["support/USER.md"]), Gate())

    assert bundle.text == "Kind."
    assert {warning.path for warning in bundle.warnings} == {"support/", "support/USER.md"}


def test_a_root_may_be_a_link(tmp_path: Path) -> None:
    write_files(tmp_path / "releases" / "1", {"SOUL.md": "Kind."})
    (tmp_path / "current").symlink_to("releases/1")

    bundle = read_bundle(Workspace(tmp_path / "current"), Gate())

    assert (bundle.text, bundle.warnings) == ("Kind.", ())


def test_a_root_that_is_a_file_is_a_warning(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"SOUL.md": "Kind."}) / "SOUL.md"

    assert read_bundle(Workspace(root), Gate()).warnings == (WorkspaceWarning(str(root), "is not a folder"),)


@pytest.mark.parametrize("part", ["docs", "docs/tone.md"])
def test_a_link_created_during_the_read_is_not_followed(part: str, tmp_path: Path) -> None:
    root = write_files(tmp_path / "ana", {"docs/tone.md": "Short."})
    write_files(tmp_path, {"secret/tone.md": "Not for Ana."})
    scan = scan_workspace(Workspace(root, extras=["docs/tone.md"]))
    (root / part).rename(root / "moved")
    (root / part).symlink_to(tmp_path / part.replace("docs", "secret"))

    reading = read_files(scan, Gate())

    assert reading.files == ()
    assert [warning.path for warning in reading.warnings] == ["docs/tone.md"]


def test_a_file_of_the_wrong_length_is_being_written() -> None:
    real = f"/proc/{os.getpid()}/status"
    if not Path(real).exists():
        pytest.skip("there is no /proc, where files say that they are empty and are not")
    scan = WorkspaceScan(
        root="/proc",
        sources=(SourceFile(name="USER.md", path="USER.md", real_path=real, stamp=()),),
        warnings=(),
        path_steps=frozenset(),
        file_steps=frozenset(),
        listed_folders=frozenset(),
        is_recent=False,
    )

    assert read_files(scan, Gate()).warnings == (WorkspaceWarning("USER.md", "is being written", "USER.md"),)


def test_of_two_files_that_differ_in_case_the_upper_case_one_is_used(tmp_path: Path) -> None:
    write_files(tmp_path, {"user.md": "small", "USER.md": "LARGE"})
    if len(list(tmp_path.iterdir())) == 1:
        pytest.skip("names that differ in case are one file here")

    bundle = read_bundle(Workspace(tmp_path), Gate())

    assert bundle.text == "LARGE"
    assert [str(warning) for warning in bundle.warnings] == ["user.md: is ignored because USER.md exists too"]


def test_an_extra_that_is_also_a_role_of_the_scope_occurs_once(tmp_path: Path) -> None:
    write_files(tmp_path, {"support/SOUL.md": "Kind."})

    assert read_bundle(Workspace(tmp_path, "support", ["support/SOUL.md"]), Gate()).text == "Kind."


@pytest.mark.slow
@pytest.mark.process
def test_an_unreadable_file_is_a_warning() -> None:
    # Not as root, who may read everything.
    script = """
import os, sys
from foveate.memory.privacy import Gate
from foveate.context.workspace import Workspace
from foveate.context.workspace_cache import read_bundle
read_bundle(Workspace(sys.argv[1]), Gate())
if os.geteuid() == 0:
    os.setgroups([])
    os.setegid(65534)
    os.seteuid(65534)
for root in sys.argv[1:]:
    bundle = read_bundle(Workspace(root), Gate())
    print(bundle.text, *bundle.warnings, sep="|")
"""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        unreadable_file = write_files(Path(folder) / "one", {"SOUL.md": "Kind.", "USER.md": "Bob."})
        unreadable_folder = write_files(Path(folder) / "two", {"SOUL.md": "Kind."})
        (unreadable_file / "USER.md").chmod(0)
        unreadable_folder.chmod(0)
        command = [sys.executable, "-c", script, str(unreadable_file), str(unreadable_folder)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        unreadable_folder.chmod(0o755)

    assert process.stderr == ""
    assert process.stdout.splitlines() == ["Kind.|USER.md: Permission denied", "|.: Permission denied"]


PARTS = st.sampled_from(["a", "b", "c", "..", "."])
PLACES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
TARGETS = st.lists(PARTS, min_size=1, max_size=4).map("/".join)


@pytest.mark.slow
@given(
    folders=st.lists(PLACES, max_size=4),
    links=st.lists(st.tuples(PLACES, TARGETS, st.booleans()), max_size=5),
    path=TARGETS,
)
def test_paths_are_resolved_like_the_operating_system_does(
    folders: list[str], links: list[tuple[str, str, bool]], path: str
) -> None:
    with tempfile.TemporaryDirectory() as temporary_folder:
        deep = Path(os.path.realpath(temporary_folder)) / "1" / "2" / "3" / "4" / "5"
        deep.mkdir(parents=True)
        for folder in folders:
            (deep / folder).mkdir(parents=True, exist_ok=True)
        for link, target, is_absolute in links:
            if not os.path.lexists(deep / link) and (deep / link).parent.is_dir():
                (deep / link).symlink_to(deep / target if is_absolute else target)

        real, steps, problem = resolve_path("/", str(deep / path))

        exists = os.path.exists(deep / path)  # noqa: PTH110
        assert (real is not None) == exists == (not problem)
        assert real is None or real == os.path.realpath(deep / path)
        assert all(os.path.realpath(folder) == folder for folder, _ in steps)
