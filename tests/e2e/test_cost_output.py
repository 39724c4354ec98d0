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
from tests.e2e.command import WITHOUT_KEYS, Outcome, on_terminal, spawn, wait_until_open
from tests.e2e.test_compactions_faults import LOADED, locked
from tests.support.processes.forked_commands import COMMAND, REAL_COMMAND
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
                *(settle_one(store.ledger, one, accounts=list_accounts(one.call)) for one in entries)
            )

    asyncio.run(fill())
    return f"sqlite:///{path}"


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def test_a_closed_pipe_is_not_an_error(url: str) -> None:
    line = f'"$@" cost export --store {url} | head -c 10; exit ${{PIPESTATUS[0]}}'

    assert spawn(command=["bash", "-c", line, "bash", *COMMAND]) == Outcome(0, "at,call_id", "")


@pytest.mark.parametrize("command", ["cost", "cost --json", "cost --csv", "cost export"])
@pytest.mark.parametrize(
    ("where", "message"), [(">/dev/full", "No space left on device"), (">&-", "is closed")]
)
def test_a_failed_write_to_standard_output_is_reported(
    url: str, command: str, where: str, message: str
) -> None:
    outcome = spawn(command=["sh", "-c", f'"$@" {command} --store {url} {where}', "sh", *COMMAND])

    assert outcome.code == 1
    assert outcome.err == f"foveate: standard output: {message}\n"


def test_a_full_disk_leaves_the_old_export(url: str, tmp_path: Path) -> None:
    old = tmp_path / "calls.csv"
    old.write_text("old")
    line = f'ulimit -f 100; "$@" cost export --store {url} --output {old}'

    outcome = spawn(command=["bash", "-c", line, "bash", *COMMAND])

    assert outcome.code == 1
    assert "nothing was changed: raise the limit on the size of files" in outcome.err
    assert (old.read_text(), list(tmp_path.iterdir())) == ("old", [old])


def test_an_export_is_complete_and_readable_only_by_its_owner(run: Any, url: str, tmp_path: Path) -> None:
    file = tmp_path / "calls.csv"

    outcome = run("cost", "export", "--store", url, "-o", file)

    assert (outcome.code, outcome.out, outcome.err) == (0, "", f"foveate: 1,200 calls in {file}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes().count(b"\r\n") == 1_201


def test_an_export_never_overwrites_the_store_or_without_a_store_an_older_export(
    run: Any, url: str, tmp_path: Path
) -> None:
    old = tmp_path / "old.csv"
    old.write_text("old")

    onto_itself = run("cost", "export", "--store", url, "--output", path_of(url))
    of_nothing = run("cost", "export", "--store", f"sqlite:///{tmp_path}/no.sqlite", "--output", old)

    assert onto_itself.code == 2
    assert "is the store itself: choose another name" in onto_itself.err
    assert (of_nothing.code, of_nothing.out, old.read_text()) == (0, "", "old")
    assert run("cost", "--store", url).code == 0


def test_listing_caps_does_not_wait_for_writers_or_release_reservations(url: str) -> None:
    """Regression: listing released reservations by its own clock and waited for writers."""
    with sqlite3.connect(path_of(url)) as connection:
        connection.execute(
            "INSERT INTO reservations_v1 (call_id, accounts, picodollars, expires_at) VALUES ('x', '[]', 1, 1)"
        )
    config = path_of(url).with_name("foveate.yaml")
    config.write_text("cost: {caps: [{scope: total, dollars: 1}]}")

    with locked(path_of(url)):
        outcome = spawn("cost", "caps", "--config", str(config), "--store", url)

    assert (outcome.code, outcome.err) == (0, "")
    assert connection.execute("SELECT call_id FROM reservations_v1").fetchall() == [("x",)]
    connection.close()


def test_control_c_while_waiting_for_a_store_exits_with_130(url: str) -> None:
    alone = sqlite3.connect(path_of(url))
    alone.execute("PRAGMA locking_mode = EXCLUSIVE")
    alone.execute("BEGIN IMMEDIATE")  # nobody else can even read
    with subprocess.Popen(
        [*REAL_COMMAND, "cost", "--by", "day", "--store", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=WITHOUT_KEYS,
    ) as process:
        wait_until_open(path_of(url), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    alone.close()

    assert (process.returncode, out, err) == (130, b"", b"")


def test_control_sequences_in_a_name_are_escaped(url: str) -> None:
    shown = on_terminal("cost", "--by", "agent", "--store", url, columns=200)

    assert "a\\x1b[31m\\nb" in shown
    assert CONTROL not in shown
    assert "\x1b[2magent" in shown
    assert "\x1b" not in on_terminal("cost", "--by", "agent", "--store", url, env={"NO_COLOR": "1"})


@pytest.mark.parametrize("command", [("cost", "--since", "2026-01-01"), ("cost", "export"), ("cost", "caps")])
def test_showing_costs_imports_nothing_heavy(url: str, command: tuple[str, ...]) -> None:
    config = path_of(url).with_name("caps.yaml")
    config.write_text("cost: {caps: [{scope: total, dollars: 1}]}")
    more = ("--config", str(config)) if "caps" in command else ()

    outcome = spawn(*command, *more, "--store", url, command=[sys.executable, "-c", LOADED])

    assert outcome.code == 0
    assert outcome.out
    assert outcome.err.splitlines()[-1].strip() == ""
