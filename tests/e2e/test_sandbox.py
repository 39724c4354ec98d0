"""`foveate sandbox` as users run it: start, exit and errors."""

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.processes.commands import WITHOUT_KEYS, spawn
from tests.support.processes.forked_commands import COMMAND, REAL_COMMAND

pytestmark = pytest.mark.process

HEADERS = {"x-api-key": "any", "anthropic-version": "2023-06-01"}
REQUEST = {"model": "claude-opus-5-5", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]}


@contextmanager
def start_sandbox(*arguments: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start a sandbox process, and return it with its first line of output."""
    command = [*COMMAND, "sandbox", "--port", "0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=WITHOUT_KEYS
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def post(url: str, body: Any, headers: dict[str, str] = HEADERS) -> tuple[int, Any]:
    try:
        with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=30) as response:
            return response.status, json.loads(response.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_the_sandbox_prints_its_address_answers_and_exits_cleanly(
    signal_number: signal.Signals, code: int
) -> None:
    with start_sandbox("--json") as (process, line):
        ready = json.loads(line)
        assert ready.keys() == {"url", "providers"}
        assert ready["providers"] == ["anthropic", "google", "openai"]
        status, response = post(f"{ready['url']}/v1/messages", REQUEST)
        assert (status, response["type"]) == (200, "message")
        process.send_signal(signal_number)
        out, err = process.communicate(timeout=20)

    assert process.returncode == code
    assert (out, err) == ("", "")


def test_an_interrupt_during_start_exits_silently(tmp_path: Path) -> None:
    """Regression: a RuntimeWarning named a coroutine that was never awaited, while the event loop started."""
    (tmp_path / "uvloop.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    outcome = spawn("sandbox", "--port", "0", "--json", command=REAL_COMMAND, env={"PYTHONPATH": str(tmp_path)})

    assert (outcome.code, outcome.err) == (130, "")


def test_the_output_explains_how_to_connect_a_client(tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("- text: By the script.\n", encoding="utf-8")
    with start_sandbox("--provider", "anthropic", "--script", str(script)) as (process, line):
        url = line.removeprefix("Sandbox: ").rstrip()
        assert process.stdout is not None
        assert process.stdout.readline() == "Any API key works. Press Ctrl-C to stop.\n"
        assert process.stdout.readline() == "\n"
        assert process.stdout.readline() == f"  export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY=sandbox\n"
        _, response = post(f"{url}/v1/messages", REQUEST)
        assert response["content"] == [{"type": "text", "text": "By the script."}]
        status, error = post(f"{url}/v1/chat/completions", {}, HEADERS)
        assert (status, error["type"]) == (404, "error")


def test_a_port_in_use_is_reported_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        outcome = spawn("sandbox", "--port", port)
        as_json = spawn("sandbox", "--port", port, "--json")

    assert outcome.code == 2
    assert outcome.err == f"foveate: cannot listen on 127.0.0.1:{port}: Address already in use\n"
    assert json.loads(as_json.out)["error"]["code"] == "cannot_listen"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--provider", "mistral"],
            "foveate: --provider takes anthropic, openai, google or both, not mistral\n",
        ),
        (["--host", "192.0.2.1", "--port", "0"], "foveate: cannot listen on 192.0.2.1:0: "),
        (["--script", "nothing.yaml"], "foveate: nothing.yaml: No such file or directory\n"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(run: Any, arguments: list[str], message: str) -> None:
    outcome = run("sandbox", *arguments)

    assert outcome.code == 2
    assert outcome.err.startswith(message)
    assert outcome.err.count("\n") == 1
    assert not outcome.out


def test_an_invalid_step_is_reported_with_its_line(run: Any, tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("- text: a\n- status: 99\n", encoding="utf-8")
    outcome = run("sandbox", "--script", script)

    assert outcome.code == 2
    assert outcome.err.startswith(f"foveate: {script}:2: ")
