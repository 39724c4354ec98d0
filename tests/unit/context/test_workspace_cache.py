"""Cached bundles: read once, again if needed, and not lost to half-written files."""

import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, active_count
from typing import Any

import pytest
from hypothesis import given

from foveate.context.workspace_cache import (
    Workspace,
    WorkspaceCache,
    WorkspaceCacheOptions,
    WorkspaceCacheStats,
    read_bundle,
)
from foveate.errors import BadOption
from foveate.memory.privacy import Gate
from foveate.tokens import drop_caches
from tests.support.scenarios.workspaces import Clock, make_unwatched_cache, write_files
from tests.support.strategies.notes import NoteFolder, note_folders

FILES = {
    "IDENTITY.md": "# Ana\n\nKeeps the garden.\n",
    "SOUL.md": "Kind.\n",
    "user.md": "Bob, who has roses.\n",
    "Agents.MD": "Ask before you delete.\n",
    "MEMORY.md": "Roses were watered.\n",
    "README.md": "Nothing for a prompt.\n",
    "docs/tone.md": "Short.\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_files(tmp_path / "ana", FILES)


def test_file_names_are_case_insensitive(root: Path) -> None:
    bundle = read_bundle(Workspace(root, extras=["docs/tone.md"]), Gate())

    assert [file.path for file in bundle.files] == [
        "IDENTITY.md",
        "SOUL.md",
        "user.md",
        "Agents.MD",
        "MEMORY.md",
        "docs/tone.md",
    ]
    assert bundle.text == (
        "# Ana\n\nKeeps the garden.\n\nKind.\n\nBob, who has roses.\n\n"
        "Ask before you delete.\n\nRoses were watered.\n\nShort."
    )
    assert bundle.warnings == ()


def test_missing_role_files_cause_no_warning(tmp_path: Path) -> None:
    bundle = read_bundle(Workspace(write_files(tmp_path, {"SOUL.md": "Kind."})), Gate())

    assert (bundle.text, bundle.warnings) == ("Kind.", ())
    assert read_bundle(Workspace(write_files(tmp_path / "empty", {"other.txt": ""})), Gate()).sections == ()


def test_a_missing_root_is_a_warning(tmp_path: Path) -> None:
    bundle = read_bundle(Workspace(tmp_path / "nobody"), Gate())

    assert bundle.sections == ()
    assert [str(warning) for warning in bundle.warnings] == [f"{tmp_path}/nobody: does not exist"]


def test_files_in_a_scope_override_those_above_it(root: Path) -> None:
    write_files(
        root,
        {"support/SOUL.md": "Patient.", "support/night/USER.md": "Sleepy.", "support/night/tone.md": "Soft."},
    )

    bundle = read_bundle(Workspace(root, "support/night"), Gate())

    assert [file.path for file in bundle.files] == [
        "IDENTITY.md",
        "support/SOUL.md",
        "support/night/USER.md",
        "Agents.MD",
        "MEMORY.md",
    ]


def test_a_missing_scope_falls_back_to_the_root_with_a_warning(root: Path) -> None:
    bundle = read_bundle(Workspace(root, "suport"), Gate())

    assert bundle.version == read_bundle(Workspace(root), Gate()).version
    assert [str(warning) for warning in bundle.warnings] == ["suport/: does not exist"]


@pytest.mark.slow
@given(forest=note_folders())
def test_a_bundle_contains_everything_except_private_parts(forest: NoteFolder) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = write_files(Path(folder), {file.path: file.text for file in forest.files})
        names = [file.path for file in forest.files]

        bundle = read_bundle(Workspace(root, extras=names), Gate())

    everything = "\n".join([bundle.text, repr(bundle), *(section.text for section in bundle.sections)])
    assert not forest.leaked_words(everything)
    assert {word for word in forest.public if word not in bundle.text} == set()


def test_editing_a_private_part_does_not_change_the_bundle(root: Path) -> None:
    write_files(root, {"MEMORY.md": "# Roses\n\n# Bank :private:\n\nSaid 1234.\n"})
    first = read_bundle(Workspace(root), Gate())
    write_files(root, {"MEMORY.md": "# Roses\n\n# Bank :private:\n\nSaid 9876.\n"})

    assert read_bundle(Workspace(root), Gate()).version == first.version


def test_a_bundle_is_read_once_per_root_scope_and_extras(root: Path) -> None:
    workspaces = make_unwatched_cache(Clock())
    first = workspaces.bundle(Workspace(root, extras=["docs/tone.md", "README.md"]))

    assert workspaces.bundle(Workspace(root, extras=["README.md", "docs/tone.md"])) is first
    assert workspaces.bundle(Workspace(root)) is not first
    assert workspaces.stats() == {str(root): WorkspaceCacheStats(hits=1, misses=2)}


def test_concurrent_callers_share_one_read(root: Path) -> None:
    write_files(root, {"MEMORY.md": "A line of many.\n" * 20_000})
    workspaces = make_unwatched_cache(Clock())
    barrier = Barrier(8)

    def read_concurrently(_: int) -> object:
        barrier.wait()
        return workspaces.bundle(Workspace(root))

    with ThreadPoolExecutor(8) as pool:
        bundles = list(pool.map(read_concurrently, range(8)))

    assert all(bundle is bundles[0] for bundle in bundles)
    assert workspaces.stats() == {str(root): WorkspaceCacheStats(hits=7, misses=1)}


def test_a_bundle_older_than_the_maximum_age_is_read_again(root: Path) -> None:
    clock = Clock()
    workspaces = make_unwatched_cache(clock, max_age_seconds=30)
    workspaces.bundle(Workspace(root))
    write_files(root, {"SOUL.md": "Kinder."})

    clock.now += 29
    assert "Kinder." not in workspaces.bundle(Workspace(root)).text
    clock.now += 1
    assert "Kinder." in workspaces.bundle(Workspace(root)).text


def test_an_unwatched_bundle_has_a_maximum_age_by_default(root: Path) -> None:
    clock = Clock()
    workspaces = make_unwatched_cache(clock)
    workspaces.bundle(Workspace(root))
    write_files(root, {"SOUL.md": "Kinder."})

    clock.now += 5
    assert "Kinder." in workspaces.bundle(Workspace(root)).text


def test_a_watched_bundle_is_valid_unless_it_changed_before(root: Path) -> None:
    clock = Clock()
    workspaces = make_unwatched_cache(clock)
    first = workspaces.bundle(Workspace(root))
    workspaces.on_watched(workspaces.unwatched_folders())
    clock.now += 10_000
    assert workspaces.bundle(Workspace(root)) is first

    workspaces.on_lost("for a while")
    workspaces.bundle(Workspace(root))
    assert workspaces.stats()[str(root)].misses == 2

    # The same length, and within the same tick of the file system's clock.
    path = root / "SOUL.md"
    tick = path.stat().st_mtime_ns
    path.write_text("Wild.\n", encoding="utf-8")
    os.utime(path, ns=(tick, tick))
    workspaces.on_watched(workspaces.unwatched_folders())

    assert "Wild." in workspaces.bundle(Workspace(root)).text
    assert workspaces.stats()[str(root)].invalidations == 1


def test_a_deleted_file_leaves_the_last_bundle_and_a_warning(root: Path) -> None:
    clock = Clock()
    workspaces = make_unwatched_cache(clock)
    valid = workspaces.bundle(Workspace(root))
    (root / "user.md").unlink()

    for _ in range(4):
        clock.now += 100
        current = workspaces.bundle(Workspace(root))
        assert (current.version, current.text, current.sections) == (valid.version, valid.text, valid.sections)
        assert [warning.path for warning in current.warnings] == ["user.md"]

    write_files(root, {"USER.md": "Bea.\n"})
    clock.now += 100
    assert "Bea." in workspaces.bundle(Workspace(root)).text
    assert workspaces.bundle(Workspace(root)).warnings == ()


def test_a_deleted_root_leaves_the_last_bundle(root: Path) -> None:
    clock = Clock()
    workspaces = make_unwatched_cache(clock)
    valid = workspaces.bundle(Workspace(root, "support", ["docs/tone.md"]))
    root.rename(root.with_name("elsewhere"))
    clock.now += 100

    current = workspaces.bundle(Workspace(root, "support", ["docs/tone.md"]))

    assert current.version == valid.version
    assert {warning.name for warning in current.warnings} >= {file.name for file in valid.files}


@pytest.mark.process
def test_a_half_written_file_leaves_the_last_bundle(root: Path) -> None:
    clock = Clock()
    workspaces = make_unwatched_cache(clock)
    valid = workspaces.bundle(Workspace(root))
    script = (
        "import os, signal, sys\n"
        "file = open(sys.argv[1], 'wb', buffering=0)\n"
        "file.write('Bob, who has roses and a café'.encode()[:-1])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run([sys.executable, "-c", script, root / "user.md"], check=False)
    clock.now += 5

    current = workspaces.bundle(Workspace(root))

    assert process.returncode == -signal.SIGKILL
    assert current.version == valid.version
    assert [str(warning) for warning in current.warnings] == [
        "user.md: ends in the middle of a character; its previous content is still used"
    ]


@pytest.mark.parametrize("end", [b"\xff", "é".encode()[:1], b"\0"])
def test_a_broken_file_that_became_private_does_not_keep_its_text(root: Path, end: bytes) -> None:
    clock = Clock()
    workspaces = make_unwatched_cache(clock)
    before = workspaces.bundle(Workspace(root)).text
    long_text = (root / "user.md").read_text(encoding="utf-8").strip()
    (root / "user.md").write_bytes(b"---\ntags: private\n---\nBob.\n" + end)
    clock.now += 100

    current = workspaces.bundle(Workspace(root))

    assert long_text in before
    assert long_text not in current.text
    assert [warning.path for warning in current.warnings] == ["user.md"]


def test_a_briefly_empty_file_is_ignored_and_a_lasting_one_accepted(root: Path) -> None:
    clock = Clock()
    workspaces = make_unwatched_cache(clock)
    valid = workspaces.bundle(Workspace(root))
    write_files(root, {"user.md": ""})
    clock.now += 5

    assert workspaces.bundle(Workspace(root)).version == valid.version
    clock.now += 0.9
    assert workspaces.bundle(Workspace(root)).version == valid.version
    clock.now += 0.1
    current = workspaces.bundle(Workspace(root))
    assert "Bob" not in current.text
    assert current.warnings == ()


@pytest.mark.slow
def test_problems_are_retried_with_increasing_delays(root: Path) -> None:
    clock = Clock()
    workspaces = make_unwatched_cache(clock, max_age_seconds=10_000)
    (root / "user.md").write_bytes(b"caf\xe9 noir")
    read_at = []
    while clock.now < 1600:
        before = workspaces.stats().get(str(root), WorkspaceCacheStats()).misses
        workspaces.bundle(Workspace(root))
        if workspaces.stats()[str(root)].misses > before:
            read_at.append(clock.now - 1000)
        clock.now += 0.5

    assert read_at[:7] == [0, 1, 3, 7, 15, 31, 63]
    assert read_at[7:10] == [123, 183, 243]
    for _ in range(1200):  # so often that a delay doubled each time would overflow a float
        clock.now += 60
        workspaces.bundle(Workspace(root))
    assert workspaces.stats()[str(root)].misses >= 1200


def test_permanent_warnings_do_not_cause_retries(root: Path) -> None:
    clock = Clock()
    workspaces = make_unwatched_cache(clock, max_age_seconds=10_000)
    write_files(root, {"MEMORY.md": "# Roses\nDEADLINE: <2026-02-31 Tue>\n"})
    first = workspaces.bundle(Workspace(root))
    clock.now += 5000

    assert [warning.path for warning in first.warnings] == ["MEMORY.md"]
    assert "DEADLINE" in first.text
    assert workspaces.bundle(Workspace(root)) is first


def test_a_workspace_without_the_cache_is_read_every_time(root: Path) -> None:
    threads = active_count()
    workspaces = WorkspaceCache(Gate(), WorkspaceCacheOptions(enabled=False))
    first = workspaces.bundle(Workspace(root))
    write_files(root, {"SOUL.md": "Kinder."})

    assert "Kinder." in workspaces.bundle(Workspace(root)).text
    assert "Kinder." not in first.text
    assert workspaces.stats() == {}
    assert active_count() == threads


def test_an_agent_can_override_whether_the_cache_is_enabled(root: Path) -> None:
    workspaces = make_unwatched_cache(Clock())
    assert workspaces.bundle(Workspace(root), enabled=False) is not workspaces.bundle(
        Workspace(root), enabled=False
    )
    assert workspaces.bundle(Workspace(root)) is workspaces.bundle(Workspace(root))


@pytest.mark.parametrize("drop", [WorkspaceCache.clear, lambda _: drop_caches()], ids=["drop", "drop_caches"])
def test_drop_also_drops_previous_texts(root: Path, drop: object) -> None:
    workspaces = make_unwatched_cache(Clock())
    workspaces.bundle(Workspace(root))
    (root / "user.md").unlink()

    assert callable(drop)
    drop(workspaces)

    current = workspaces.bundle(Workspace(root))
    assert "Bob" not in current.text
    assert current.warnings == ()


@pytest.mark.parametrize(
    "invalid",
    [
        {"watch_debounce_ms": -1},
        {"watch_debounce_ms": "500"},
        {"max_age_seconds": float("nan")},
        {"max_age_seconds": float("inf")},
        {"max_age_seconds": True},
        {"enabled": 1},
    ],
)
def test_an_invalid_option_is_rejected_by_name(invalid: dict[str, Any]) -> None:
    with pytest.raises(BadOption) as caught:
        WorkspaceCacheOptions(**invalid)
    assert caught.value.path == tuple(invalid)


def test_reading_leaks_no_file_descriptors(root: Path) -> None:
    (root / "SOUL.md").unlink()
    (root / "SOUL.md").symlink_to("docs/tone.md")
    os.mkfifo(root / "pipe")
    workspace = Workspace(root, extras=["docs/tone.md", "pipe", "docs/none.md"])
    read_bundle(workspace, Gate())
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208

    for _ in range(50):
        read_bundle(workspace, Gate())

    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208
