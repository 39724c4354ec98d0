"""Faults of `foveate compactions` and `foveate store`: clear messages, and nothing is lost."""

import asyncio
import json
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from foveate.store import open_store
from foveate.store.migrate import VERSION_TABLE
from tests.e2e.command import WITHOUT_KEYS, Outcome, on_terminal, spawn, wait_until_open
from tests.support.processes.forked_commands import COMMAND, REAL_COMMAND
from tests.support.stores.records import COMPACTED_MESSAGES, make_compaction

pytestmark = pytest.mark.process


def create_store(path: Path, turns: tuple[bytes, ...] = COMPACTED_MESSAGES, *, folds: int = 1) -> str:
    """The URL of a store with some compactions."""
    url = f"sqlite:///{path}"

    async def keep() -> None:
        async with await open_store(url) as store:
            for number in range(folds):
                await store.compactions.record(make_compaction(f"fold-{number}"), turns, lease=None)

    asyncio.run(keep())
    return url


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "foveate.sqlite"


LOCKED = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", LOCKED, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "locked\n"
        yield
        process.communicate("go\n", 60)


def undone_at(path: Path) -> list[object]:
    connection = sqlite3.connect(path)
    found = [at for (at,) in connection.execute("SELECT undone_at FROM compactions_v1")]
    connection.close()
    return found


def test_a_writer_blocks_other_writers_but_not_readers(path: Path) -> None:
    url = create_store(path)
    with locked(path):
        read = spawn("compactions", "list", "--store", url)
        written = spawn("compactions", "undo", "fold", "--store", url, "--json")

    assert (read.code, read.out[:6]) == (0, "fold-0")
    assert written.code == 1
    assert json.loads(written.out)["error"]["code"] == "store_unavailable"
    assert "is locked by another process" in written.err
    assert undone_at(path) == [None]


def test_control_c_ends_it_with_130_and_no_traceback(path: Path) -> None:
    url = create_store(path)
    with (
        locked(path),
        subprocess.Popen(
            [*REAL_COMMAND, "compactions", "undo", "fold", "--store", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=WITHOUT_KEYS,
        ) as process,
    ):
        wait_until_open(path, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, b"", b"")
    assert undone_at(path) == [None]


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
    assert undone_at(path) == [None]


def test_a_file_that_is_not_a_database_is_reported(run: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("These are notes, and long enough to be taken for something else.")

    outcome = run("compactions", "list", "--store", f"sqlite:///{tmp_path}/notes.txt")

    assert outcome.code == 1
    assert "is no SQLite database, or damaged" in outcome.err


def test_a_missing_server_is_reported_without_its_password(run: Any) -> None:
    outcome = run("store", "info", "--store", "postgresql://me:secret@127.0.0.1:1/notes", "--json")

    assert outcome.code == 1
    assert json.loads(outcome.out)["error"]["code"] == "store_unavailable"
    assert "postgresql://127.0.0.1:1/notes" in outcome.err
    assert "secret" not in outcome.err + outcome.out


def test_a_full_disk_leaves_the_old_export(path: Path, tmp_path: Path) -> None:
    url = create_store(path, (bytes(100_000),) * 5)
    old = tmp_path / "folds.jsonl"
    old.write_text("old")
    line = f'ulimit -f 200; "$@" compactions export --store {url} --output {old}'

    outcome = spawn(command=["bash", "-c", line, "bash", *COMMAND])

    assert outcome.code == 1
    assert "nothing was changed: raise the limit on the size of files" in outcome.err
    assert old.read_text() == "old"
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".tmp")]


def test_a_store_that_fails_midway_leaves_the_old_export(run: Any, path: Path, tmp_path: Path) -> None:
    url = create_store(path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE folded_turns_v1")
    connection.close()
    old = tmp_path / "folds.jsonl"
    old.write_text("old")

    outcome = run("compactions", "export", "--store", url, "--output", old)

    assert outcome.code == 1
    assert "folded_turns_v1" in outcome.err
    assert old.read_text() == "old"


def test_an_export_is_readable_only_by_its_owner_and_reports_its_size(
    run: Any, path: Path, tmp_path: Path
) -> None:
    url, file = create_store(path, folds=3), tmp_path / "folds.json"

    outcome = run("compactions", "export", "--store", url, "-o", file, "--format", "json", "--json")

    assert json.loads(outcome.out) == {"folds": 3, "output": str(file)}
    assert outcome.err == f"foveate: 3 folds in {file}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(json.loads(file.read_bytes())) == 3


def test_an_export_never_overwrites_the_store_or_without_a_store_an_older_export(
    run: Any, path: Path, tmp_path: Path
) -> None:
    url, old = create_store(path), tmp_path / "old.jsonl"
    old.write_text("old")

    onto_itself = run("compactions", "export", "--store", url, "--output", path)
    of_nothing = run("compactions", "export", "--store", f"sqlite:///{tmp_path}/no.sqlite", "--output", old)

    assert onto_itself.code == 2
    assert "is the store itself: choose another name" in onto_itself.err
    assert undone_at(path) == [None]
    assert (of_nothing.code, of_nothing.out, old.read_text()) == (0, "", "old")


def test_a_closed_pipe_is_not_an_error(path: Path) -> None:
    url = create_store(path, (bytes(100_000),), folds=20)
    line = f'"$@" compactions export --store {url} | head -c 10; exit ${{PIPESTATUS[0]}}'

    assert spawn(command=["bash", "-c", line, "bash", *COMMAND]) == Outcome(0, '{"id": "fo', "")


@pytest.mark.parametrize(
    "command", ["compactions list", "compactions show fold", "compactions export", "store info"]
)
@pytest.mark.parametrize(
    ("where", "message"), [(">/dev/full", "No space left on device"), (">&-", "is closed")]
)
def test_a_failed_write_to_standard_output_is_reported(
    path: Path, command: str, where: str, message: str
) -> None:
    url = create_store(path)

    outcome = spawn(command=["sh", "-c", f'"$@" {command} --store {url} {where}', "sh", *COMMAND])

    assert outcome.code == 1
    assert outcome.err == f"foveate: standard output: {message}\n"


def test_a_terminal_gets_colors_unless_they_are_disabled(path: Path) -> None:
    url = create_store(path)

    assert "\x1b[32mok\x1b[0m" in on_terminal("compactions", "list", "--store", url)
    assert "\x1b" not in on_terminal("compactions", "list", "--store", url, env={"NO_COLOR": "1"})


LOADED = """
import sys
from foveate.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    heavy = {"sqlalchemy", "alembic", "psycopg", "numpy", "aiohttp"}
    print(*sorted(heavy & sys.modules.keys()), file=sys.stderr)
"""


def test_reading_a_current_store_imports_nothing_heavy(path: Path) -> None:
    url = create_store(path)

    outcome = spawn("compactions", "show", "fold", "--store", url, command=[sys.executable, "-c", LOADED])

    assert outcome.code == 0
    assert outcome.out.startswith("fold fold-0\n")
    assert outcome.err.strip() == ""
