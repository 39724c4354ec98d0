"""`foveate cost` with output that fails or is not read, and the modules that it imports."""

import asyncio
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from foveate.cost.caps import list_accounts
from foveate.store import open_store
from tests.support.processes.commands import WITHOUT_KEYS, Outcome, on_terminal, spawn, wait_until_open
from tests.support.processes.forked_commands import COMMAND
from tests.support.processes.heavy_imports import HEAVY_IMPORTS_SCRIPT
from tests.support.processes.sqlite_lock import locked_by_another_process
from tests.support.stores.ledger_records import CHARGE, make_call, settle_one

pytestmark = pytest.mark.process

CONTROL = "a\x1b[31m\nb"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with more calls than one page, of an agent with control characters in its name."""
    path = tmp_path_factory.mktemp("store") / "foveate.sqlite"

    async def fill() -> None:
        async with await open_store(f"sqlite:///{path}") as store:
            entries = [
                replace(CHARGE, call=make_call(f"call-{number}", agent=CONTROL)) for number in range(1_200)
            ]
            await asyncio.gather(
                *(settle_one(store.ledger, charge, accounts=list_accounts(charge.call)) for charge in entries)
            )

    asyncio.run(fill())
    return f"sqlite:///{path}"


def store_path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def test_a_closed_pipe_is_not_an_error(url: str) -> None:
    line = f'"$@" cost export --store {url} | head -c 10; exit ${{PIPESTATUS[0]}}'

    assert spawn(command=["bash", "-c", line, "bash", *COMMAND]) == Outcome(0, "at,call_id", "")


@pytest.mark.parametrize("command", ["cost", "cost --json", "cost --csv", "cost export"])
@pytest.mark.parametrize(
    ("redirection", "message"), [(">/dev/full", "No space left on device"), (">&-", "is closed")]
)
def test_a_failed_write_to_standard_output_is_reported(
    url: str, command: str, redirection: str, message: str
) -> None:
    outcome = spawn(command=["sh", "-c", f'"$@" {command} --store {url} {redirection}', "sh", *COMMAND])

    assert outcome.code == 1
    assert outcome.err == f"foveate: standard output: {message}\n"


def test_a_full_disk_leaves_the_old_export(url: str, tmp_path: Path) -> None:
    old_export = tmp_path / "calls.csv"
    old_export.write_text("old")
    line = f'ulimit -f 100; "$@" cost export --store {url} --output {old_export}'

    outcome = spawn(command=["bash", "-c", line, "bash", *COMMAND])

    assert outcome.code == 1
    assert "nothing was changed: raise the file size limit" in outcome.err
    assert (old_export.read_text(), list(tmp_path.iterdir())) == ("old", [old_export])


def test_an_export_is_complete_and_readable_only_by_its_owner(run: Any, url: str, tmp_path: Path) -> None:
    file = tmp_path / "calls.csv"

    outcome = run("cost", "export", "--store", url, "-o", file)

    assert (outcome.code, outcome.out, outcome.err) == (0, "", f"foveate: 1,200 calls written to {file}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes().count(b"\r\n") == 1_201


def test_an_export_never_overwrites_the_store_or_without_a_store_an_older_export(
    run: Any, url: str, tmp_path: Path
) -> None:
    old_export = tmp_path / "old.csv"
    old_export.write_text("old")

    overwriting = run("cost", "export", "--store", url, "--output", store_path(url))
    empty = run("cost", "export", "--store", f"sqlite:///{tmp_path}/no.sqlite", "--output", old_export)

    assert overwriting.code == 2
    assert "is the store itself: choose another file" in overwriting.err
    assert (empty.code, empty.out, old_export.read_text()) == (0, "", "old")
    assert run("cost", "--store", url).code == 0


def test_listing_caps_does_not_wait_for_writers_or_release_reservations(url: str) -> None:
    """Regression: listing released reservations by its own clock and waited for writers."""
    with sqlite3.connect(store_path(url)) as connection:
        connection.execute(
            "INSERT INTO reservations_v1 (call_id, accounts, picodollars, expires_at) VALUES ('x', '[]', 1, 1)"
        )
    config = store_path(url).with_name("foveate.yaml")
    config.write_text("cost: {caps: [{scope: total, dollars: 1}]}")

    with locked_by_another_process(store_path(url), "IMMEDIATE"):
        outcome = spawn("cost", "caps", "--config", str(config), "--store", url)

    assert (outcome.code, outcome.err) == (0, "")
    assert connection.execute("SELECT call_id FROM reservations_v1").fetchall() == [("x",)]
    connection.close()


def test_control_c_while_waiting_for_a_store_exits_with_130(url: str) -> None:
    exclusive_connection = sqlite3.connect(store_path(url))
    exclusive_connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    exclusive_connection.execute("BEGIN IMMEDIATE")  # others cannot even read
    with subprocess.Popen(
        [*COMMAND, "cost", "--by", "day", "--store", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=WITHOUT_KEYS,
    ) as process:
        wait_until_open(store_path(url), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    exclusive_connection.close()

    assert (process.returncode, out, err) == (130, b"", b"")


def test_control_sequences_in_a_name_are_escaped(url: str) -> None:
    screen = on_terminal("cost", "--by", "agent", "--store", url, columns=200)

    assert "a\\x1b[31m\\nb" in screen
    assert CONTROL not in screen
    assert "\x1b[2magent" in screen
    assert "\x1b" not in on_terminal("cost", "--by", "agent", "--store", url, env={"NO_COLOR": "1"})


@pytest.mark.parametrize("command", [("cost", "--since", "2026-01-01"), ("cost", "export"), ("cost", "caps")])
def test_showing_costs_imports_nothing_heavy(url: str, command: tuple[str, ...]) -> None:
    config = store_path(url).with_name("caps.yaml")
    config.write_text("cost: {caps: [{scope: total, dollars: 1}]}")
    options = ("--config", str(config)) if "caps" in command else ()

    outcome = spawn(*command, *options, "--store", url, command=[sys.executable, "-c", HEAVY_IMPORTS_SCRIPT])

    assert outcome.code == 0
    assert outcome.out
    assert outcome.err.splitlines()[-1].strip() == ""
