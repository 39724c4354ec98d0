"""`foveate status` with a real gateway, without one, and as status bars start it."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.oracles.system_state import wait_until
from tests.support.processes.commands import WITHOUT_KEYS, spawn
from tests.support.processes.forked_commands import REAL_COMMAND
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.sandbox import running_sandbox

pytestmark = pytest.mark.process

NOWHERE = "http://127.0.0.1:1"


def test_a_running_gateway_is_shown_as_table_json_and_line(tmp_path: Path) -> None:
    with running_sandbox() as sandbox:
        write_config(tmp_path / "foveate.yaml", sandbox.url)
        with gateway_process(tmp_path) as gateway:
            table = spawn("status", "--url", gateway.url)
            document = spawn("status", "--url", gateway.url, "--json")
            # It gives up after a fifth of a second, which may be too short on a busy machine.
            line = wait_until(
                lambda: spawn("status", "--line", f"--url={gateway.url}", stdin=b'{"session_id": "unknown"}'),
                lambda outcome: outcome.out != "no gateway\n",
            )
    assert (table.code, document.code, line.code) == (0, 0, 0)
    assert table.out.splitlines()[0] == f"gateway      {gateway.url}, ok"
    status = json.loads(document.out)
    assert (status["url"], status["health"], status["session"]) == (gateway.url, "ok", None)
    assert line.out == "today $0.00\n"


def test_without_a_gateway_the_command_says_how_to_start_one() -> None:
    outcome = spawn("status", "--url", NOWHERE)
    assert outcome.code != 0
    assert "start it with: foveate serve" in outcome.err


def test_another_program_at_the_address_is_not_called_a_gateway_that_is_not_running() -> None:
    with running_sandbox() as sandbox:
        outcome = spawn("status", "--url", sandbox.url)

    assert outcome.code != 0
    assert outcome.err.startswith(f"foveate: {sandbox.url}: answers HTTP/1.1 401")
    assert "--url takes another address" in outcome.err


def test_a_gateway_that_other_machines_can_reach_needs_a_key(tmp_path: Path) -> None:
    key = json.loads(spawn("config", "key", "--admin", "--json").out)
    (tmp_path / "foveate.yaml").write_text(
        f"server: {{port: 0, host: 0.0.0.0, admin_keys: ['{key['hash']}']}}\n"
    )
    with gateway_process(tmp_path) as gateway:
        address = gateway.url.removeprefix("http://")
        without_key = spawn("status", "--url", gateway.url)
        with_key = spawn("status", "--url", f"http://:{key['key']}@{address}")
        line = spawn("status", "--line", "--url", f"http://:{key['key']}@{address}")

    assert without_key.code != 0
    assert "needs a gateway key" in without_key.err
    assert with_key.out.splitlines()[0] == f"gateway      {gateway.url}, ok"
    assert line.out == "today $0.00\n"
    assert key["key"] not in without_key.err + with_key.out + with_key.err


@pytest.mark.parametrize(
    ("stdin", "expected"),
    [
        (b"", "no gateway\n"),
        (b"not json", "no gateway\n"),
        (b'{"session_id": "s", "cost": {"total_cost_usd": 1.5}}', "$1.50 | no gateway\n"),
    ],
)
def test_the_line_never_fails(stdin: bytes, expected: str) -> None:
    for command in ([], REAL_COMMAND):
        outcome = spawn("status", "--line", "--url", NOWHERE, stdin=stdin, command=command)
        assert (outcome.code, outcome.out, outcome.err) == (0, expected, "")


def test_the_line_does_not_wait_for_a_standard_input_that_stays_open() -> None:
    """As with tmux, which passes nothing."""
    command = [*REAL_COMMAND, "status", "--line", "--url", NOWHERE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=WITHOUT_KEYS) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"no gateway\n"
        assert process.wait(60) == 0


def test_the_line_loads_neither_the_command_line_nor_json() -> None:
    script = (
        "import sys; sys.argv = ['foveate', 'status', '--line', '--url', 'http://127.0.0.1:1'];"
        "from foveate.__main__ import main; main();"
        "print([name for name in ('typer', 'foveate.cli', 'json', 're', 'typing') if name in sys.modules])"
    )
    finished = subprocess.run(
        [REAL_COMMAND[0], "-S", "-c", f"import sys; sys.path[:0] = {_paths()!r}; {script}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=WITHOUT_KEYS,
    )
    assert finished.stdout.splitlines() == ["no gateway", "[]"]


def _paths() -> list[str]:
    import foveate

    return [str(Path(foveate.__file__).parents[1])]


def read_documented_commands() -> list[str]:
    """The commands in the settings of Claude Code and tmux that the guide shows."""
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "usage.md").read_text(encoding="utf-8")
    settings = json.loads(guide.partition("```json\n")[2].partition("```")[0])
    configuration = guide.partition("```tmux\n")[2].partition("```")[0]
    assert settings["statusLine"]["type"] == "command"
    return [settings["statusLine"]["command"], configuration.partition("#(")[2].partition(")")[0]]


def test_the_documented_commands_print_a_line(tmp_path: Path) -> None:
    program = tmp_path / "foveate"
    program.write_text(f'#!/bin/sh\nexec {" ".join(REAL_COMMAND)} "$@"\n')
    program.chmod(0o700)
    environment = {"PATH": f"{tmp_path}:{WITHOUT_KEYS['PATH']}", "ANTHROPIC_BASE_URL": NOWHERE}
    for command_line in read_documented_commands():
        outcome = spawn(command=["sh", "-c", command_line], env=environment, stdin=b'{"session_id":"s"}')
        assert (outcome.code, outcome.out) == (0, "no gateway\n")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_tmux_accepts_the_documented_configuration(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "usage.md").read_text(encoding="utf-8")
    file = tmp_path / "tmux.conf"
    file.write_text(guide.partition("```tmux\n")[2].partition("```")[0])
    # In a short path, as those of sockets have at most 108 bytes.
    socket = ["env", "TMUX_TMPDIR=/tmp", "tmux", "-L", f"foveate-{os.getpid()}", "-f", str(file)]
    show = [*socket, "new-session", "-d", ";", "show-options", "-gv", "status-right", ";", "kill-server"]
    assert spawn(command=show).out.strip().endswith("#(foveate status --line)")


def test_unknown_options_are_reported_as_usual() -> None:
    outcome = spawn("status", "--line", "--nonsense")
    assert outcome.code == 2
    assert "--nonsense" in outcome.err


def test_a_closed_standard_output_is_not_an_error() -> None:
    command = ["sh", "-c", f'"$@" status --line --url {NOWHERE} >&-', "sh", *REAL_COMMAND]
    started = time.monotonic()
    assert spawn(command=command).code == 0
    assert time.monotonic() - started < 60
