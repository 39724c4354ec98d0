"""`foveate service` as users run it: with a recorded `systemctl`, and with a real systemd if there is one."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.processes.commands import Outcome, spawn
from tests.support.processes.service_managers import RecordedPrograms, record_programs

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the service manager here is not systemd"),
]

RUNNING = "ActiveState=active\nSubState=running\nActiveEnterTimestamp=@1794978013\n"


@pytest.fixture
def programs(tmp_path: Path) -> RecordedPrograms:
    recorded = record_programs(tmp_path / "programs", "systemctl", "loginctl")
    recorded.print_from("systemctl", RUNNING)
    return recorded


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A folder for sockets, whose paths have at most 108 bytes."""
    with TemporaryDirectory(prefix="fov-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "work" / "foveate.yaml"
    path.parent.mkdir()
    path.write_text("server: {port: 0}\n")
    return path


def run(programs: RecordedPrograms, *words: str | Path, **variables: str) -> Outcome:
    home = programs.folder.parent / "home"
    environment = {"HOME": str(home), "FOVEATE_HOME": str(home / "data"), "PATH": programs.path, **variables}
    return spawn("service", *words, env=environment)


def test_a_service_is_installed_and_removed(programs: RecordedPrograms, config: Path) -> None:
    unit = programs.folder.parent / "home/.config/systemd/user/foveate.service"

    outcome = run(programs, "install", "--config", config, ANTHROPIC_API_KEY="sk-secret")

    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith(f"installed {unit}\nstate    active (running) since 2026-11-")
    assert f"keys     {config.parent / '.env'}\n" in outcome.out
    assert "ANTHROPIC_API_KEY: set in this terminal, but the service does not see it" in outcome.err
    assert "loginctl enable-linger" in outcome.err
    assert f'"--config" "{config}"' in unit.read_text()
    assert "sk-secret" not in unit.read_text() + outcome.out + outcome.err
    assert "systemctl --user restart foveate.service" in programs.calls
    assert not any("enable-linger" in call for call in programs.calls)

    programs.print_from("loginctl", "Linger=yes\n")
    assert "linger" not in run(programs, "install", "--config", config).err

    removed = run(programs, "remove")
    assert (removed.code, removed.err) == (0, "")
    assert removed.out == f"removed {unit}\nyour data stays in {programs.folder.parent / 'home/data'}\n"
    assert not unit.exists()
    assert run(programs, "remove").out.startswith("not installed; nothing was removed\n")


def test_printing_changes_nothing(programs: RecordedPrograms, config: Path) -> None:
    outcome = run(programs, "install", "--print", "--config", config)

    assert outcome.code == 0, outcome.err
    assert f"\nWorkingDirectory={config.parent}\n" in outcome.out
    assert programs.calls == []
    assert not (programs.folder.parent / "home").exists()


def test_the_exit_code_of_status_says_whether_the_gateway_answers(
    programs: RecordedPrograms, config: Path
) -> None:
    outcome = run(programs, "status")
    assert (outcome.code, outcome.out) == (
        1,
        "not installed; install it with `foveate service install`\n",
    )

    run(programs, "install", "--config", config)
    assert run(programs, "status").code == 0
    programs.print_from("systemctl", "ActiveState=inactive\nSubState=dead\n")
    outcome = run(programs, "status", "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["state"] == "inactive (dead)"


def test_without_a_service_manager_the_error_says_what_to_do(programs: RecordedPrograms, config: Path) -> None:
    programs.fail("systemctl show", "Failed to connect to bus: No medium found")

    for words in (["install", "--config", str(config)], ["status"], ["remove"]):
        outcome = run(programs, *words)
        assert (outcome.code, outcome.out) == (2, "")
        assert "No medium found" in outcome.err
        assert "start `foveate serve` in" in outcome.err
        assert outcome.err.count("\n") == 1


def test_an_invalid_configuration_is_reported_before_anything_is_written(
    programs: RecordedPrograms, config: Path
) -> None:
    config.write_text("server: {port: many}\n")

    outcome = run(programs, "install", "--config", config)

    assert (outcome.code, outcome.out) == (2, "")
    assert f"{config}:1" in outcome.err
    assert programs.calls == []


# Starts systemd's manager of a user in namespaces of its own, and runs the rest of the words in it.
_SYSTEMD_SCRIPT = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system /run/user
mount -t cgroup2 cgroup2 /sys/fs/cgroup
dbus-daemon --session --address="$DBUS_SESSION_BUS_ADDRESS" --fork
setsid /lib/systemd/systemd --user >/dev/null 2>&1 &
for _ in $(seq 100); do
    if systemctl --user show --property=Version >/dev/null 2>&1; then break; fi
    sleep 0.1
done
systemctl --user show --property=Version >/dev/null || exit 77
"$@"
"""
_COMMANDS = """
set -e
cd "$1"
$2 -m foveate service install --json
kill -9 "$(systemctl --user show foveate --property=MainPID --value)"
for _ in $(seq 100); do
    if $2 -m foveate service status --json >status; then break; fi
    sleep 0.2
done
cat status
$2 -m foveate service remove --json
systemctl --user show foveate --property=LoadState >&2
"""


@pytest.mark.slow
def test_a_real_systemd_runs_the_service(tmp_path: Path, runtime: Path) -> None:
    """Install the service, kill the gateway, and remove the service."""
    programs = ("unshare", "systemctl", "dbus-daemon", "mount")
    if os.getuid() or not all(map(shutil.which, programs)) or not Path("/lib/systemd/systemd").exists():
        pytest.skip("needs root, systemd, dbus-daemon and unshare")
    folder = tmp_path / 'my 100% "$mine"'
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "foveate.yaml").write_text(
        f"server: {{port: {port}}}\n"
        "upstreams: {mine: {base_url: 'http://127.0.0.1:1/v1', api: openai, key_variable: MY_KEY}}\n"
    )
    (folder / ".env").write_text("MY_KEY=sk-1\n")
    (folder / ".env").chmod(0o600)
    finished = subprocess.run(
        [
            *("unshare", "--mount", "--cgroup", "--pid", "--fork", "--mount-proc"),
            *("sh", "-c", _SYSTEMD_SCRIPT, "sh"),
            *("sh", "-c", _COMMANDS, "sh", str(folder), sys.executable),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={
            **{name: value for name, value in os.environ.items() if "_API_KEY" not in name},
            "HOME": str(tmp_path / "home"),
            "FOVEATE_HOME": str(tmp_path / "data"),
            "XDG_RUNTIME_DIR": str(runtime),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={runtime}/bus",
        },
    )
    if finished.returncode == 77 or "unshare failed" in finished.stderr:
        pytest.skip(f"systemd does not run here: {finished.stderr}")
    assert finished.returncode == 0, finished.stderr
    installed, restarted, removed = map(json.loads, finished.stdout.splitlines())
    for document in (installed, restarted):
        assert (document["running"], document["health"]) == (True, "ok")
        assert document["url"] == f"http://127.0.0.1:{port}"
    assert installed["since"] < restarted["since"]
    assert removed["removed"]
    assert finished.stderr.endswith("LoadState=not-found\n")
    assert (tmp_path / "data" / "foveate.sqlite").exists()
