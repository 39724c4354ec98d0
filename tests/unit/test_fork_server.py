"""Commands of the fork server behave as `python -m foveate` does."""

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pexpect
import pytest

from tests.support.processes.forked_commands import COMMAND, REAL_COMMAND, command_pid, ensure_running
from tests.support.servers.gateway_process import child_pids, gateway_process

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def fork_server() -> None:
    ensure_running()


@pytest.mark.parametrize(
    "script",
    [
        '"$@" count greeting.txt -',
        '"$@" count --backend nonsense greeting.txt',
        '"$@" count greeting.txt >/dev/full',
        '"$@" count greeting.txt >&-',
        '"$@" count - <&-',
        '"$@" count greeting.txt nowhere.txt 2>&-',
        'ulimit -f 0; "$@" config init made.yaml',
        'umask 077; "$@" config init made.yaml; stat -c %a made.yaml; rm made.yaml',
        'FOVEATE_HOME=$PWD/elsewhere "$@" cost',
    ],
)
def test_a_forked_command_behaves_like_a_real_one(tmp_path: Path, script: str) -> None:
    (tmp_path / "greeting.txt").write_text("Hello, world!", encoding="utf-8")

    def outcome(command: list[str]) -> tuple[int, bytes, bytes]:
        result = subprocess.run(
            ["sh", "-c", script, "sh", *command], input=b"more", capture_output=True, cwd=tmp_path, check=False
        )
        return result.returncode, result.stdout, result.stderr

    assert outcome(COMMAND) == outcome(REAL_COMMAND)


def test_a_module_of_the_package_is_forked_too(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "-m", "foveate.cli.run.gateway_child", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "FOVEATE_HOME": str(tmp_path)},
        cwd=tmp_path,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"http://127.0.0.1:")
        assert command_pid(process.pid) != process.pid
        process.communicate(b"", timeout=60)  # it ends with its standard input

    assert process.returncode == 0


def test_the_workers_of_a_forked_gateway_are_forked_with_its_socket(tmp_path: Path) -> None:
    with gateway_process(tmp_path, "--workers", "2") as gateway:
        assert not set(gateway.workers()) & set(child_pids(gateway.pid))
        with urlopen(f"{gateway.url}/health", timeout=60) as response:
            assert json.load(response)["status"] == "ok"
        os.kill(gateway.workers()[0], signal.SIGKILL)
        with urlopen(f"{gateway.url}/health", timeout=60) as response:
            assert json.load(response)["status"] == "ok"


def test_a_command_with_an_unsupported_environment_is_not_forked(tmp_path: Path) -> None:
    path = tmp_path / "naïve.txt"
    path.write_text("7 °C", encoding="utf-8")
    result = subprocess.run(
        [*COMMAND, "count", path],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )

    assert rb"na\xefve.txt" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_a_forked_command_like_a_real_one(number: signal.Signals) -> None:
    def exit_after_signal(command: list[str]) -> tuple[int, str]:
        with subprocess.Popen(
            [*command, "sandbox", "--port", "0", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            with suppress(HTTPError), urlopen(url, timeout=60):  # its event loop runs
                pass
            process.send_signal(number)
            _, errors = process.communicate(timeout=60)
        wait_until_closed(url)
        return process.returncode, errors

    assert exit_after_signal(COMMAND) == exit_after_signal(REAL_COMMAND)


@pytest.mark.parametrize("command", [COMMAND, REAL_COMMAND])
def test_the_pid_of_a_command_is_that_of_its_own_process(command: list[str]) -> None:
    with subprocess.Popen([*command, "sandbox", "--port", "0", "--json"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        pid = command_pid(process.pid)
        assert (pid == process.pid) == (command == REAL_COMMAND)
        os.kill(pid, signal.SIGKILL)

    assert process.returncode == -signal.SIGKILL


def test_a_forked_command_has_the_terminal_like_a_real_one() -> None:
    def screen_after_control_c(command: list[str], env: dict[str, str]) -> tuple[bytes, int | None]:
        program, *arguments = [*command, "sandbox", "--port", "0"]
        process = pexpect.spawn(program, arguments, timeout=60, env={**os.environ, **env}, echo=False)
        process.expect("ANTHROPIC_BASE_URL")
        process.sendintr()
        rest = re.sub(rb":\d+", b"", process.read())  # without ports
        process.close()
        return rest, process.exitstatus

    outcome = screen_after_control_c(REAL_COMMAND, {})

    assert screen_after_control_c(COMMAND, {}) == outcome
    assert screen_after_control_c(COMMAND, {"PYTHONIOENCODING": "utf-8"}) == outcome  # it is not forked


def wait_until_closed(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with urlopen(url, timeout=60):
                pass
        except URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return
        time.sleep(0.01)
    pytest.fail("the server is still there")
