"""`foveate run` with a scripted agent: gateway, exit codes, signals, pipes and what is left behind."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveate.sandbox.server import open_listening_socket
from tests.support.processes.forked_commands import COMMAND, REAL_COMMAND, command_pid, required_variables
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox
from tests.support.stores.templates import ensure_store

pytestmark = pytest.mark.process

AGENT = """\
import json, os, sys, time, urllib.request

def call(text, max_tokens=10):
    messages = [{"role": "user", "content": text}]
    body = {"model": "claude-opus-4-5", "max_tokens": max_tokens, "messages": messages}
    key = os.environ["KEY"]
    request = urllib.request.Request(
        os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json", "anthropic-version": "2023-06-01", "x-api-key": key},
    )
    return json.load(urllib.request.urlopen(request))
"""
CALL = "print(call('hi')['role'])"
WAIT = "print(os.getpid(), os.environ['ANTHROPIC_BASE_URL'], flush=True); time.sleep(60)"


class Place:
    """A folder with a configuration, a store and scripts, and `foveate run` in it."""

    def __init__(self, folder: Path, sandbox: RunningSandbox) -> None:
        self.command = COMMAND
        self.folder = folder
        self.data = folder / "data"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        with open_listening_socket("127.0.0.1", 0) as listener:
            self.port = listener.getsockname()[1]
        (folder / "foveate.yaml").write_text(
            f"server: {{port: {self.port}}}\nupstreams: {{anthropic: {{base_url: '{sandbox.url}'}}}}\n"
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.temporary),
            "FOVEATE_HOME": str(self.data),
            "KEY": KEY,
            **required_variables(),
        }

    def arguments(self, script: str, *options: str) -> list[str]:
        path = self.folder / "agent.py"
        path.write_text(f"{AGENT}\n{script}\n")
        return [*self.command, "run", *options, "--", sys.executable, str(path)]

    def run(
        self, script: str, *options: str, stdin: str = "", environment: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.arguments(script, *options),
            cwd=self.folder,
            env=self.environment | dict(environment or {}),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def start(self, script: str, *options: str) -> "tuple[subprocess.Popen[str], int, str]":
        """Start a run, and return it with the process id of its agent and the base URL of the gateway."""
        process = subprocess.Popen(
            self.arguments(script, *options),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        pid, url = process.stdout.readline().split()
        return process, int(pid), url

    def files(self) -> set[str]:
        return {
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if self.data not in path.parents
        }


@pytest.fixture
def new_place(tmp_path: Path) -> Iterator[Place]:
    with running_sandbox() as sandbox:
        yield Place(tmp_path, sandbox)


@pytest.fixture
def place(new_place: Place) -> Place:
    """A place whose store exists."""
    ensure_store(new_place.data / "foveate.sqlite")
    return new_place


def read_summary(stderr: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(stderr.splitlines()[-1])
    return summary


def answers(url: str) -> bool:
    try:
        return httpx.get(url.partition("/run/")[0] + "/ready", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(is_done: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_run_starts_a_gateway_passes_everything_through_and_sums_up(new_place: Place) -> None:
    new_place.command = REAL_COMMAND
    before = new_place.files()

    result = new_place.run(
        f"{CALL}; print(sys.stdin.read(), end=''); print('e', file=sys.stderr); sys.exit(7)", stdin="in"
    )

    assert (result.returncode, result.stdout) == (7, "assistant\nin")
    first, second, *_ = result.stderr.splitlines()
    assert first == "e"
    assert second.startswith("Foveate: python")
    assert "1 call, 1 session, " in second
    assert new_place.files() - before == {"agent.py", "data"}  # nothing in the temporary folder
    assert not answers(f"http://127.0.0.1:{new_place.port}")


def test_the_summary_as_json_has_the_numbers_of_the_ledger(place: Place) -> None:
    result = place.run(f"{CALL}; {CALL}", "--json", "--name", "ana")

    summary = read_summary(result.stderr)
    cost = subprocess.run(
        [*COMMAND, "cost", "--by", "agent", "--json"],
        cwd=place.folder, env=place.environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (row,) = json.loads(cost.stdout)["rows"]
    assert (summary["agent"], summary["calls"], summary["exit_code"]) == ("ana", 2, 0)
    assert (row["agent"], row["calls"]) == ("ana", 2)
    assert summary["dollars"] is not None
    assert float(summary["dollars"]) == pytest.approx(float(row["dollars"]))


def test_quiet_leaves_the_summary_out(place: Place) -> None:
    result = place.run("print('x')", "--quiet")

    assert (result.stdout, result.stderr) == ("x\n", "")


def test_a_run_without_calls_says_what_to_check(place: Place) -> None:
    result = place.run("pass")

    assert "no calls" in result.stderr
    assert "no request reached the gateway: does the program read ANTHROPIC_BASE_URL" in result.stderr


def test_a_provider_that_cannot_be_reached_is_named(place: Place) -> None:
    (place.folder / "foveate.yaml").write_text("upstreams: {anthropic: {base_url: 'http://127.0.0.1:9'}}\n")

    result = place.run("try: call('hi')\nexcept Exception: pass")

    assert "no request reached" not in result.stderr
    assert "the gateway's log has: " in result.stderr
    assert "upstream_unreachable: 127.0.0.1:9" in result.stderr
    assert "`foveate doctor` checks whether the providers can be reached" in result.stderr


def test_a_data_folder_that_cannot_be_written_is_an_error(place: Place) -> None:
    result = place.run("print('started')", environment={"FOVEATE_HOME": "/proc/foveate"})

    assert (result.returncode, result.stdout) == (1, "")
    assert "/proc/foveate" in result.stderr
    assert "Traceback" not in result.stderr


def test_failed_requests_are_not_called_missing(place: Place) -> None:
    result = place.run("try: call('hi', max_tokens=-1)\nexcept Exception: pass")

    assert "no calls; 1 request failed" in result.stderr


def test_a_running_gateway_with_the_same_store_is_used_and_left_running(place: Place) -> None:
    server = subprocess.Popen(
        [*COMMAND, "serve"],
        cwd=place.folder,
        env=place.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{place.port}"
    try:
        wait_until(lambda: answers(url))
        result = place.run(f"{CALL}; print(os.environ['ANTHROPIC_BASE_URL'])", "--json")
        assert answers(url)
    finally:
        server.terminate()
        server.wait(30)

    assert result.stdout.splitlines()[1].startswith(f"{url}/run/")
    assert read_summary(result.stderr)["calls"] == 1


def test_two_runs_at_once_have_a_gateway_each_and_one_store(place: Place) -> None:
    first, _, first_url = place.start(WAIT)
    try:
        second = place.run(f"{CALL}; print(os.environ['ANTHROPIC_BASE_URL'])", "--json")
        assert answers(first_url)
    finally:
        first.terminate()
        first.communicate(timeout=30)

    assert read_summary(second.stderr)["calls"] == 1
    assert second.stdout.split()[1].partition("/run/")[0] != first_url.partition("/run/")[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals_reach_the_agent_and_its_end_is_the_exit_code(number: signal.Signals, place: Place) -> None:
    process, pid, url = place.start(WAIT)

    process.send_signal(number)
    process.communicate(timeout=30)

    assert process.returncode == 128 + number
    assert not is_alive(pid)
    assert not answers(url)


def test_an_interrupt_of_the_run_alone_reaches_the_agent(place: Place) -> None:
    process, pid, _ = place.start(
        f"import signal; signal.signal(signal.SIGINT, lambda *_: sys.exit(3)); {WAIT}"
    )

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)

    assert process.returncode == 3
    assert not is_alive(pid)


def test_an_interrupt_of_the_terminal_reaches_the_agent_once(place: Place) -> None:
    """The terminal sends it to both. Two would end an agent that asks after the first."""
    script = (
        "import signal; count = 0\n"
        "def interrupt(*_):\n    global count; count += 1\n"
        "signal.signal(signal.SIGINT, interrupt); print('ready', flush=True)\n"
        "while not count: time.sleep(0.05)\n"
        "time.sleep(0.5); sys.exit(count)"
    )
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(place.folder)
        os.execvpe(place.arguments(script)[0], place.arguments(script), place.environment)
    shown = b""
    while b"ready" not in shown:
        shown += os.read(terminal, 1_000)
    os.write(terminal, b"\x03")
    with suppress(OSError):  # until the other side is closed
        while os.read(terminal, 1_000):
            pass
    _, status = os.waitpid(pid, 0)
    os.close(terminal)

    assert os.waitstatus_to_exitcode(status) == 1


def test_a_killed_run_takes_its_gateway_along_and_changes_no_file(place: Place) -> None:
    process, pid, url = place.start(WAIT)
    before = place.files()
    assert answers(url)

    process.kill()
    process.wait()
    try:
        wait_until(lambda: not answers(url))
    finally:
        os.kill(pid, signal.SIGKILL)
        process.communicate()

    assert place.files() == before


def test_a_killed_gateway_ends_neither_the_run_nor_its_exit_code(place: Place) -> None:
    process, pid, url = place.start(WAIT)
    (gateway,) = (child for child in children(command_pid(process.pid)) if child != pid)

    os.kill(gateway, signal.SIGKILL)
    wait_until(lambda: not answers(url))
    assert process.poll() is None
    os.kill(pid, signal.SIGTERM)
    process.communicate(timeout=30)

    assert process.returncode == 128 + signal.SIGTERM


def test_a_gateway_that_cannot_start_is_an_error_that_says_why(place: Place) -> None:
    result = place.run("print('started')", environment={"FOVEATE_STORE": "sqlite:////proc/foveate.sqlite"})

    assert (result.returncode, result.stdout) == (2, "")
    assert "the gateway did not start:" in result.stderr
    assert "/proc/foveate.sqlite" in result.stderr


def test_keys_of_an_env_file_are_for_foveate_only(place: Place) -> None:
    (place.folder / ".env").write_text("ANTHROPIC_API_KEY=sk-ant-secret\n")

    assert place.run("print(os.environ.get('ANTHROPIC_API_KEY'))").stdout == "None\n"


def test_pi_is_given_its_address_by_a_variable(new_place: Place) -> None:
    program = new_place.folder / "pi"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$FOVEATE_RUN_URL" "$@"\n')
    program.chmod(0o755)
    result = subprocess.run(
        [*COMMAND, "run", "--print", "pi"],
        cwd=new_place.folder,
        env=new_place.environment | {"PATH": f"{new_place.folder}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert f"export FOVEATE_RUN_URL=http://127.0.0.1:{new_place.port}/run/" in result.stdout
    assert not new_place.data.exists()


def test_print_starts_nothing(new_place: Place) -> None:
    result = new_place.run("print('started')", "--print")

    assert result.returncode == 0
    assert f"export ANTHROPIC_BASE_URL=http://127.0.0.1:{new_place.port}/run/" in result.stdout
    assert not new_place.data.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["claud"], "'claud' is not an agent that Foveate knows. Did you mean claude?"),
        (["python", "x.py"], "foveate run -- python"),
        (["goose"], "goose is not installed here: there is no program 'goose' on PATH"),
        (["--", "/nonexistent/x"], "/nonexistent/x cannot be run: there is no such file"),
        (["copilot"], "is not installed"),
    ],
)
def test_wrong_agents_are_errors_that_say_what_to_do(arguments: list[str], message: str, place: Place) -> None:
    result = subprocess.run(
        [*COMMAND, "run", *arguments],
        cwd=place.folder,
        env=place.environment | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


def test_an_agent_that_needs_lines_in_its_file_is_not_started_without_them(place: Place) -> None:
    programs = place.folder / "programs"
    programs.mkdir()
    (programs / "cn").write_text("#!/bin/sh\necho started\n")
    (programs / "cn").chmod(0o755)
    environment = place.environment | {"PATH": f"{programs}:{os.environ['PATH']}"}

    def run() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*COMMAND, "run", "continue"],
            cwd=place.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    refused = run()
    config = place.folder / ".continue/config.yaml"
    config.parent.mkdir()
    config.write_text(f"models:\n  - {{name: x, apiBase: 'http://127.0.0.1:{place.port}/v1/'}}\n")
    started = run()
    with open_listening_socket("127.0.0.1", place.port):
        busy = run()

    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"apiBase: http://127.0.0.1:{place.port}/run/0000000000000000/continue/v1/" in refused.stderr
    assert "only from ~/.continue/config.yaml. Add these lines to it:" in refused.stderr
    assert "add the lines above" in refused.stderr
    assert (started.returncode, started.stdout) == (0, "started\n")
    assert (busy.returncode, busy.stdout) == (2, "")
    assert f"cannot listen on 127.0.0.1:{place.port}" in busy.stderr
    assert (
        "or change the port both in foveate.yaml (server.port) and in the settings of the agent" in busy.stderr
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


@dataclass
class TerminalRun:
    """A run whose terminal is a pseudo-terminal of the test."""

    pid: int
    terminal: int
    output: bytes = b""

    def read_until(self, text: bytes) -> None:
        deadline = time.monotonic() + 60
        while text not in self.output:
            assert time.monotonic() < deadline, self.output
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.output += os.read(self.terminal, 4096)

    def wait(self) -> int:
        """Read until the run ends, and return its exit code."""
        while True:
            with suppress(OSError):  # at the end
                if select.select([self.terminal], [], [], 0.05)[0]:
                    self.output += os.read(self.terminal, 4096)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)


@contextmanager
def run_in_terminal(place: Place, script: str) -> Iterator[TerminalRun]:
    arguments, environment = place.arguments(script), place.environment | {"TERM": "dumb"}
    terminal, slave = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *arguments],
        cwd=place.folder,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    run = TerminalRun(process.pid, terminal)
    try:
        yield run
    finally:
        os.close(terminal)
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        process.returncode = 0  # it was waited for above


def process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_ctrl_c_reaches_the_agent_and_not_the_gateway(place: Place) -> None:
    script = f"""\
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    {CALL}
    sys.exit(3)
"""
    with run_in_terminal(place, script) as run:
        run.read_until(b"ready")
        os.write(run.terminal, b"\x03")
        code = run.wait()

    assert code == 3
    assert b"assistant" in run.output
    assert b"1 call, " in run.output


def test_a_run_stops_and_continues_with_its_agent(place: Place) -> None:
    script = "import signal; print('ready', flush=True); os.kill(os.getpid(), signal.SIGSTOP); print('again')"
    with run_in_terminal(place, script) as run:
        run.read_until(b"ready")
        pid = command_pid(run.pid)
        wait_until(lambda: process_state(pid) == "T")
        os.killpg(pid, signal.SIGCONT)  # as `fg` does
        code = run.wait()

    assert code == 0
    assert b"again" in run.output


def test_the_terminal_is_restored_after_a_killed_agent(place: Place) -> None:
    script = "import signal, tty; tty.setraw(0); print('raw', flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    with run_in_terminal(place, script) as run:
        run.read_until(b"raw")
        code = run.wait()
        attributes = termios.tcgetattr(run.terminal)

    assert code == 128 + signal.SIGKILL
    assert attributes[3] & termios.ECHO
    assert attributes[3] & termios.ICANON
