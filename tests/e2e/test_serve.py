"""`foveate serve` as a user starts it: it serves, applies a new configuration at once, and exits cleanly."""

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import anthropic
import pytest

from foveate.sandbox.script import ScriptStep
from tests.support.processes.forked_commands import COMMAND
from tests.support.servers.gateway_process import SERVE_COMMAND, gateway_process, write_config
from tests.support.servers.sandbox import KEY, running_sandbox, step_headers

pytestmark = pytest.mark.process


def send_message(url: str, step: ScriptStep | None = None) -> int:
    """Return the number of output tokens of a response."""
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        message = client.messages.create(
            model="claude-opus-4-5",
            max_tokens=50,
            messages=[{"role": "user", "content": "Hello"}],
            extra_headers={} if step is None else step_headers(step),
        )
    return message.usage.output_tokens


def test_a_gateway_serves_applies_a_new_configuration_at_once_and_exits_cleanly(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    with running_sandbox() as sandbox:
        write_config(config, sandbox.url)
        with gateway_process(tmp_path, "--config", str(config), forked=False) as gateway:
            url, process = gateway.url, gateway.process
            assert send_message(url)

            write_config(config, sandbox.url, "cost: {caps: [{scope: call, dollars: 0.0000001}]}\n")
            with pytest.raises(anthropic.APIStatusError, match="the cap on a call"):
                send_message(url)

            write_config(config, sandbox.url, "cost: {cups: []}\n")
            with pytest.raises(anthropic.APIStatusError, match="the cap on a call"):
                send_message(url)

            write_config(config, sandbox.url, "server: {timeouts: {idle_seconds: 0.3}}\n")
            with pytest.raises(anthropic.APIStatusError, match="did not respond in time"):
                send_message(url, ScriptStep(text="late", delay_seconds=5))

            write_config(config, sandbox.url)
            assert send_message(url)

            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)

    assert "the new configuration is invalid, keeping the previous one" in errors
    assert "foveate.yaml:4" in errors
    assert "did you mean caps" in errors or "cups" in errors
    assert KEY not in errors
    report = subprocess.run(
        [*COMMAND, "cost", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FOVEATE_HOME": str(tmp_path)},
    )
    assert json.loads(report.stdout)["total"]["calls"] == 3  # the call that timed out may be charged


def test_an_invalid_configuration_at_start_is_reported_and_nothing_is_served(tmp_path: Path) -> None:
    config = tmp_path / "foveate.yaml"
    config.write_text("server:\n  prot: 1\n")

    result = subprocess.run(
        [*SERVE_COMMAND, "--config", str(config)], capture_output=True, text=True, check=False
    )

    assert result.returncode == 2
    assert "foveate.yaml:2: unknown setting 'prot'; did you mean port?" in result.stderr
    assert json.loads(result.stdout)["error"]["code"] == "bad_setting"


def test_a_port_in_use_is_reported_with_a_way_to_find_its_user(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = subprocess.run(
            [*COMMAND, "serve", "--port", str(port)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )

    assert result.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in result.stderr
    assert "choose another port with --port" in result.stderr
    assert f":{port}" in result.stderr.partition("find the process that uses it: ")[2]
    assert not result.stdout


def test_a_gateway_reads_keys_and_configuration_from_their_default_places(tmp_path: Path) -> None:
    (tmp_path / "foveate.yaml").write_text("agents: [{id: ana}]\n")
    (tmp_path / ".env").write_text("OPENROUTER_API_KEY=sk-hush\nDEEPSEEK_API_KEY=sk-hush\n")

    with gateway_process(
        tmp_path, DEEPSEEK_API_KEY="", ANTHROPIC_API_KEY="sk-hush", OPENAI_API_KEY=""
    ) as gateway:
        ready = gateway.ready_object

    assert ready["config"] == "foveate.yaml"
    assert ready["store"] == f"sqlite:///{tmp_path}/foveate.sqlite"
    assert ready["keys"] == ["anthropic", "openrouter"]  # the environment takes precedence over the file
    assert "hush" not in json.dumps(ready)
