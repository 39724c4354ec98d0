"""Changes on disk, noticed by a real watcher."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import enumerate as running

import pytest

from foveate.context.workspace_cache import Workspace, WorkspaceCache
from tests.support.scenarios.workspaces import wait_until, watched_cache, write_files


def has_text(workspaces: WorkspaceCache, workspace: Workspace, text: str) -> Callable[[], bool]:
    return lambda: workspaces.bundle(workspace).text == text


def is_watched(workspaces: WorkspaceCache, *roots: Path) -> Callable[[], bool]:
    """Return a condition: all bundles of these roots are watched."""
    return lambda: not any(str(root) in folder for folder in workspaces.unwatched_folders() for root in roots)


def overwrite(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def replace(path: Path, text: str) -> None:
    """Write a new file and rename it, as editors and deployments do."""
    replacement = path.with_name("new.tmp")
    replacement.write_text(text, encoding="utf-8")
    replacement.replace(path)


def remake(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text, encoding="utf-8")


def remake_folder(path: Path, text: str) -> None:
    shutil.rmtree(path.parent)
    write_files(path.parent, {path.name: text})


def swap_folder(path: Path, text: str) -> None:
    replacement = write_files(path.parent.with_name("beside"), {path.name: text})
    path.parent.rename(path.parent.with_name("gone"))
    replacement.rename(path.parent)


@pytest.mark.parametrize("change", [overwrite, replace, remake, remake_folder, swap_folder])
def test_repeated_changes_of_a_file_are_noticed(change: Callable[[Path, str], None], tmp_path: Path) -> None:
    path = write_files(tmp_path / "ana", {"SOUL.md": "one"}) / "SOUL.md"
    workspace = Workspace(path.parent)
    with watched_cache() as workspaces:
        assert has_text(workspaces, workspace, "one")()
        # In between a plain edit, for which the new folder must be watched.
        for number, apply_change in enumerate([change, overwrite] * 2):
            wait_until(is_watched(workspaces, path.parent), "a watch")
            apply_change(path, f"text {number}")
            wait_until(has_text(workspaces, workspace, f"text {number}"), f"change {number} in the bundle")
            shutil.rmtree(tmp_path / "gone", ignore_errors=True)
        assert workspaces.stats()[workspace.root].invalidations >= 4


def test_a_change_between_read_and_watch_is_noticed(tmp_path: Path) -> None:
    # The same length as before, and changed within one tick of the file system's clock.
    with watched_cache() as workspaces:
        for number in range(30):
            root = write_files(tmp_path / str(number), {"SOUL.md": "one"})
            workspaces.bundle(Workspace(root))
            write_files(root, {"SOUL.md": "two"})
        for number in range(30):
            wait_until(
                has_text(workspaces, Workspace(tmp_path / str(number)), "two"), f"the change of {number}"
            )


def test_a_root_that_is_created_later_is_noticed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "agents" / "ana", "support", ["docs/tone.txt"])
    with watched_cache() as workspaces:
        assert workspaces.bundle(workspace).text == ""
        for files, text in (
            ({"SOUL.md": "Kind."}, "Kind."),
            ({"support/SOUL.md": "Patient."}, "Patient."),
            ({"docs/tone.txt": "Short."}, "Patient.\n\nShort."),
        ):
            write_files(tmp_path / "agents" / "ana", files)
            wait_until(has_text(workspaces, workspace, text), text)
        assert workspaces.bundle(workspace).warnings == ()


def test_a_switched_link_is_noticed(tmp_path: Path) -> None:
    for release in ("1", "2", "3"):
        write_files(tmp_path / "releases" / release, {"SOUL.md": f"Release {release}."})
    current = tmp_path / "current"
    current.symlink_to("releases/1")
    with watched_cache() as workspaces:
        for release in ("1", "2", "3"):
            (tmp_path / "next").symlink_to(f"releases/{release}")
            (tmp_path / "next").rename(current)
            wait_until(has_text(workspaces, Workspace(current), f"Release {release}."), release)
            wait_until(is_watched(workspaces, tmp_path), "a watch")


def test_files_switched_by_a_sibling_link_are_noticed(tmp_path: Path) -> None:
    # As Kubernetes mounts a ConfigMap.
    for version in ("..1", "..2"):
        write_files(tmp_path / version, {"SOUL.md": f"Version {version}."})
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "SOUL.md").symlink_to("..data/SOUL.md")
    with watched_cache() as workspaces:
        assert has_text(workspaces, Workspace(tmp_path), "Version ..1.")()
        wait_until(is_watched(workspaces, tmp_path), "a watch")
        (tmp_path / "..next").symlink_to("..2")
        (tmp_path / "..next").rename(tmp_path / "..data")
        wait_until(has_text(workspaces, Workspace(tmp_path), "Version ..2."), "the other version")


@pytest.mark.slow
def test_only_markdown_files_and_extras_invalidate_a_bundle(tmp_path: Path) -> None:
    root = write_files(
        tmp_path / "ana", {"SOUL.md": "Kind.", "docs/tone.txt": "Short.", "notes.md": "", "other.txt": ""}
    )
    last = write_files(tmp_path / "bea", {"SOUL.md": "Last."})
    workspace, sentinel = Workspace(root, extras=["docs/tone.txt"]), Workspace(last)

    def is_invalidated_by(change: Callable[[], object], number: int) -> bool:
        """Return whether a change drops the bundle. A later change of another bundle shows when to look."""
        first = workspaces.bundle(workspace)
        workspaces.bundle(sentinel)
        wait_until(is_watched(workspaces, root, last), "a watch")
        change()
        write_files(last, {"SOUL.md": f"Last {number}."})
        wait_until(has_text(workspaces, sentinel, f"Last {number}."), "the other workspace")
        return workspaces.bundle(workspace) is not first

    with watched_cache() as workspaces:
        ignored = [
            lambda: write_files(root, {"other.txt": "new"}),
            lambda: write_files(root, {"docs/other.txt": "new"}),
            lambda: write_files(root, {"SOUL.md~": "new", ".SOUL.md.swp": "new", ".#SOUL.md": "new"}),
            lambda: write_files(root, {"deep/down/SOUL.md": "new"}),
            lambda: os.utime(root),
            lambda: (root / "SOUL.md").read_text(encoding="utf-8"),
        ]
        relevant = [
            lambda: write_files(root, {"notes.md": "new"}),
            lambda: write_files(root, {"docs/tone.txt": "Shorter."}),
            lambda: write_files(root, {"docs/more.md": "new"}),
            lambda: (root / "notes.md").unlink(),
            lambda: write_files(root, {"Memory.MD": "new"}),
        ]
        for number, change in enumerate(ignored):
            assert not is_invalidated_by(change, number), f"ignored[{number}]"
        assert workspaces.stats()[workspace.root].invalidations == 0
        for number, change in enumerate(relevant):
            assert is_invalidated_by(change, 100 + number), f"relevant[{number}]"
        assert workspaces.stats()[workspace.root].invalidations == len(relevant)


def test_a_change_drops_every_bundle_of_its_root_and_of_no_other(tmp_path: Path) -> None:
    ana = write_files(tmp_path / "ana", {"SOUL.md": "Kind.", "support/USER.md": "Bob."})
    bea = write_files(tmp_path / "bea", {"SOUL.md": "Stern."})
    with watched_cache() as workspaces:
        other = workspaces.bundle(Workspace(bea))
        plain = workspaces.bundle(Workspace(ana))
        workspaces.bundle(Workspace(ana, "support"))
        wait_until(is_watched(workspaces, tmp_path), "a watch")
        write_files(ana, {"support/USER.md": "Bea."})
        wait_until(has_text(workspaces, Workspace(ana, "support"), "Kind.\n\nBea."), "the change")

        assert workspaces.bundle(Workspace(ana)) is not plain
        assert workspaces.bundle(Workspace(bea)) is other
        assert workspaces.stats()[str(ana)].invalidations == 1


@pytest.mark.slow
def test_simultaneous_changes_drop_a_bundle_once(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"SOUL.md": "0"})
    debounce_seconds = 3  # much longer than the changes take, unless the machine is busy
    with watched_cache(debounce_ms=1000 * debounce_seconds) as workspaces:
        workspaces.bundle(Workspace(root))
        wait_until(is_watched(workspaces, root), "a watch")
        write_files(root, {"noise.txt": ""})
        time.sleep(debounce_seconds - 0.5)  # an ignored file does not start the debounce time
        started = time.monotonic()
        for number in range(1, 101):
            write_files(root, {"SOUL.md": str(number), "USER.md": "", f"note{number}.md": ""})
            while time.monotonic() < started + number / 100:
                time.sleep(0.001)
            workspaces.bundle(Workspace(root))
        windows = (time.monotonic() - started) / debounce_seconds
        wait_until(has_text(workspaces, Workspace(root), "100"), "the last change")

        assert 1 <= workspaces.stats()[str(root)].invalidations <= 1 + windows


@pytest.mark.slow
def test_a_thousand_agents_are_watched_by_one_thread(tmp_path: Path) -> None:
    roots = [write_files(tmp_path / str(number), {"SOUL.md": "Kind."}) for number in range(1000)]
    before = set(running())
    with watched_cache() as workspaces:
        for root in roots:
            workspaces.bundle(Workspace(root))
        wait_until(is_watched(workspaces, tmp_path), "a watch")
        write_files(roots[700], {"SOUL.md": "Kinder."})
        wait_until(has_text(workspaces, Workspace(roots[700]), "Kinder."), "the change")

        counts = workspaces.stats()
        assert [root for root in roots if counts[str(root)].invalidations] == [roots[700]]
        assert [thread.name for thread in set(running()) - before] == ["foveate-watcher"]


@pytest.mark.slow
def test_an_undecodable_file_name_does_not_stop_watching(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"SOUL.md": "one"})
    with watched_cache() as workspaces:
        workspaces.bundle(Workspace(root))
        wait_until(is_watched(workspaces, root), "a watch")
        Path(os.fsdecode(os.fsencode(root) + b"/\xff")).touch()
        write_files(root, {"SOUL.md": "two"})
        wait_until(has_text(workspaces, Workspace(root), "two"), "the change")
        wait_until(lambda: not workspaces.bundle(Workspace(root)).warnings, "a new watch")
        wait_until(is_watched(workspaces, root), "a new watch")


def test_after_close_no_thread_remains_and_bundles_can_be_read(tmp_path: Path) -> None:
    root = write_files(tmp_path, {"SOUL.md": "one"})
    before = set(running())  # other tests may have left theirs
    with watched_cache() as workspaces:
        workspaces.bundle(Workspace(root))
        assert "foveate-watcher" in {thread.name for thread in set(running()) - before}

    assert "foveate-watcher" not in {thread.name for thread in set(running()) - before}
    bundle = workspaces.bundle(Workspace(root))
    assert bundle.text == "one"
    assert "the watcher was closed" in str(bundle.warnings[-1])
    assert "foveate-watcher" not in {thread.name for thread in set(running()) - before}
    workspaces.close()


SCRIPT_HEADER = """
import os, resource, sys, time
from pathlib import Path
from foveate.memory.privacy import Gate
from foveate.context.workspace import Workspace
from foveate.context.workspace_cache import WorkspaceCache, WorkspaceCacheOptions
import watchfiles
root = Path(sys.argv[1])
workspace = Workspace(root)
def until(holds):
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)
"""


def run_script(script: str, root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT_HEADER + script, str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.process
def test_a_process_exits_cleanly_without_close(tmp_path: Path) -> None:
    script = """
workspaces = WorkspaceCache(Gate(), WorkspaceCacheOptions(watch_debounce_ms=20))
workspaces.bundle(workspace)
until(lambda: not workspaces.unwatched_folders())
print(workspaces.bundle(workspace).text)
"""
    process = run_script(script, write_files(tmp_path, {"SOUL.md": "one"}))

    assert (process.returncode, process.stdout, process.stderr) == (0, "one\n", "")


@pytest.mark.slow
@pytest.mark.process
def test_a_forked_process_notices_changes_too(tmp_path: Path) -> None:
    script = """
workspaces = WorkspaceCache(Gate(), WorkspaceCacheOptions(watch_debounce_ms=20))
workspaces.bundle(workspace)
until(lambda: not workspaces.unwatched_folders())
child = os.fork()
if not child:
    workspaces.bundle(workspace)
    until(lambda: not workspaces.unwatched_folders())
    (root / "SOUL.md").write_text("two")
    until(lambda: workspaces.bundle(workspace).text == "two")
    workspaces.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
until(lambda: workspaces.bundle(workspace).text == "two")
workspaces.close()
"""
    process = run_script(script, write_files(tmp_path, {"SOUL.md": "one"}))

    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.process
def test_a_warning_is_given_while_nothing_can_be_watched(tmp_path: Path) -> None:
    script = """
with WorkspaceCache(Gate(), WorkspaceCacheOptions(watch_debounce_ms=20, max_age_seconds=600)) as workspaces:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    workspaces.bundle(workspace, enabled=False)
    # Enough descriptors for reading, but none for watching.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))) + 2, hard))
    workspaces.bundle(workspace)
    until(lambda: workspaces.bundle(workspace).warnings)
    print(workspaces.bundle(workspace).text, *workspaces.bundle(workspace).warnings, sep="|")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (root / "SOUL.md").write_text("two")
    until(lambda: workspaces.bundle(workspace).text == "two")
    print(*workspaces.bundle(workspace).warnings)
"""
    process = run_script(script, write_files(tmp_path, {"SOUL.md": "one"}))

    assert (process.returncode, process.stderr) == (0, "")
    warning_line, later_warnings = process.stdout.splitlines()
    assert warning_line.startswith(f"one|{tmp_path}: the folder cannot be watched (")
    assert "Too many open files" in warning_line
    assert warning_line.endswith("); files are reread every 600 seconds")
    assert later_warnings == ""
