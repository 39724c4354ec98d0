"""Faults of `foveate compactions` and `foveate store`: clear messages, and nothing is lost."""

import asyncio
import json
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foveate.store import open_store
from foveate.store.migrate import VERSION_TABLE
from tests.support.processes.commands import WITHOUT_KEYS, Outcome, on_terminal, spawn, wait_until_open
from tests.support.processes.forked_commands import COMMAND
from tests.support.processes.heavy_imports import HEAVY_IMPORTS_SCRIPT
from tests.support.processes.sqlite_lock import locked_by_another_process
from tests.support.stores.records import COMPACTED_MESSAGES, make_compaction

pytestmark = pytest.mark.process


def create_store(path: Path, turns: tuple[bytes, ...] = COMPACTED_MESSAGES, *, compactions: int = 1) -> str:
    """Create a store with some compactions and return its URL."""
    url = f"sqlite:///{path}"

    async def fill() -> None:
        async with await open_store(url) as store:
            for number in range(compactions):
                await store.compactions.record(make_compaction(f"fold-{number}"), turns, lease=None)

    asyncio.run(fill())
    return url


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "foveate.sqlite"


def read_undone_at(path: Path) -> list[object]:
    connection = sqlite3.connect(path)
    times = [time_undone for (time_undone,) in connection.execute("SELECT undone_at FROM compactions_v1")]
    connection.close()
    return times


def test_a_writer_blocks_other_writers_but_not_readers(path: Path) -> None:
    url = create_store(path)
    with locked_by_another_process(path, "IMMEDIATE"):
        reader = spawn("compactions", "list", "--store", url)
        writer = spawn("compactions", "undo", "fold", "--store", url, "--json")

    assert (reader.code, reader.out.splitlines()[1][:6]) == (0, "fold-0")
    assert writer.code == 1
    assert json.loads(writer.out)["error"]["code"] == "store_unavailable"
    assert "is locked by another process" in writer.err
    assert read_undone_at(path) == [None]


def test_control_c_exits_with_130_and_no_traceback(path: Path) -> None:
    url = create_store(path)
    with (
        locked_by_another_process(path, "IMMEDIATE"),
        subprocess.Popen(
            [*COMMAND, "compactions", "undo", "fold", "--store", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=WITHOUT_KEYS,
        ) as process,
    ):
        wait_until_open(path, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, b"", b"")
    assert read_undone_at(path) == [None]


@pytest.mark.parametrize(
    "command", [("compactions", "list"), ("compactions", "undo", "f"), ("store", "vacuum")]
)
def test_a_store_of_a_newer_version_is_rejected_and_unchanged(
    run: Any, path: Path, command: tuple[str, ...]
) -> None:
    url = create_store(path)
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    connection.commit()
    connection.close()

    outcome = run(*command, "--store", url, "--json")

    assert outcome.code == 1
    assert json.loads(outcome.out)["error"]["code"] == "store_too_new"
    assert "update Foveate" in outcome.err
    assert read_undone_at(path) == [None]


def test_a_file_that_is_not_a_database_is_reported(run: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("These are notes, and long enough to be taken for something else.")

    outcome = run("compactions", "list", "--store", f"sqlite:///{tmp_path}/notes.txt")

    assert outcome.code == 1
    assert "is not an SQLite database, or is damaged" in outcome.err


def test_a_missing_server_is_reported_without_its_password(run: Any) -> None:
    outcome = run("store", "info", "--store", "postgresql://me:secret@127.0.0.1:1/notes", "--json")

    assert outcome.code == 1
    assert json.loads(outcome.out)["error"]["code"] == "store_unavailable"
    assert "postgresql://127.0.0.1:1/notes" in outcome.err
    assert "secret" not in outcome.err + outcome.out


def test_a_full_disk_leaves_the_old_export(path: Path, tmp_path: Path) -> None:
    url = create_store(path, (bytes(100_000),) * 5)
    old_export = tmp_path / "folds.jsonl"
    old_export.write_text("old")
    line = f'ulimit -f 200; "$@" compactions export --store {url} --output {old_export}'

    outcome = spawn(command=["bash", "-c", line, "bash", *COMMAND])

    assert outcome.code == 1
    assert "nothing was changed: raise the file size limit" in outcome.err
    assert old_export.read_text() == "old"
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".tmp")]


def test_a_store_that_fails_midway_leaves_the_old_export(run: Any, path: Path, tmp_path: Path) -> None:
    url = create_store(path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE folded_turns_v1")
    connection.close()
    old_export = tmp_path / "folds.jsonl"
    old_export.write_text("old")

    outcome = run("compactions", "export", "--store", url, "--output", old_export)

    assert outcome.code == 1
    assert "folded_turns_v1" in outcome.err
    assert old_export.read_text() == "old"


def test_an_export_is_readable_only_by_its_owner_and_reports_its_size(
    run: Any, path: Path, tmp_path: Path
) -> None:
    url, file = create_store(path, compactions=3), tmp_path / "folds.json"

    outcome = run("compactions", "export", "--store", url, "-o", file, "--format", "json", "--json")

    assert json.loads(outcome.out) == {"folds": 3, "output": str(file)}
    assert outcome.err == f"foveate: wrote 3 compactions to {file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(json.loads(file.read_bytes())) == 3


def test_an_export_never_overwrites_the_store_or_without_a_store_an_older_export(
    run: Any, path: Path, tmp_path: Path
) -> None:
    url, old_export = create_store(path), tmp_path / "old.jsonl"
    old_export.write_text("old")

    overwriting = run("compactions", "export", "--store", url, "--output", path)
    empty = run("compactions", "export", "--store", f"sqlite:///{tmp_path}/no.sqlite", "--output", old_export)

    assert overwriting.code == 2
    assert "is the store itself: choose another file" in overwriting.err
    assert read_undone_at(path) == [None]
    assert (empty.code, empty.out, old_export.read_text()) == (0, "", "old")


def test_a_closed_pipe_is_not_an_error(path: Path) -> None:
    url = create_store(path, (bytes(100_000),), compactions=20)
    line = f'"$@" compactions export --store {url} | head -c 10; exit ${{PIPESTATUS[0]}}'

    assert spawn(command=["bash", "-c", line, "bash", *COMMAND]) == Outcome(0, '{"id": "fo', "")


@pytest.mark.parametrize(
    "command", ["compactions list", "compactions show fold", "compactions export", "store info"]
)
@pytest.mark.parametrize(
    ("redirection", "message"), [(">/dev/full", "No space left on device"), (">&-", "is closed")]
)
def test_a_failed_write_to_standard_output_is_reported(
    path: Path, command: str, redirection: str, message: str
) -> None:
    url = create_store(path)

    outcome = spawn(command=["sh", "-c", f'"$@" {command} --store {url} {redirection}', "sh", *COMMAND])

    assert outcome.code == 1
    assert outcome.err == f"foveate: standard output: {message}\n"


def test_a_terminal_gets_colors_unless_they_are_disabled(path: Path) -> None:
    url = create_store(path)

    assert "\x1b[32mok\x1b[0m" in on_terminal("compactions", "list", "--store", url)
    assert "\x1b" not in on_terminal("compactions", "list", "--store", url, env={"NO_COLOR": "1"})


def test_reading_a_current_store_imports_nothing_heavy(path: Path) -> None:
    url = create_store(path)

    outcome = spawn(
        "compactions", "show", "fold", "--store", url, command=[sys.executable, "-c", HEAVY_IMPORTS_SCRIPT]
    )

    assert outcome.code == 0
    assert outcome.out.startswith("compaction fold-0\n")
    assert outcome.err.strip() == ""
