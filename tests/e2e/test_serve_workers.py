"""Several worker processes on one socket: they share requests, and none outlives the gateway."""

import http.client
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from foveate.gateway.server.supervisor import CrashHistory
from tests.support.processes.forked_commands import COMMAND
from tests.support.servers.gateway_process import (
    SERVE_COMMAND,
    GatewayProcess,
    gateway_process,
    wait_until_gone,
    write_config,
)
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox
from tests.support.stores.postgres import PostgresServer

pytestmark = pytest.mark.process

HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "content-type": "application/json"}
BODY = json.dumps(
    {"model": "claude-opus-4-5", "max_tokens": 20, "messages": [{"role": "user", "content": "Hello"}]}
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as running:
        yield running


@pytest.fixture(scope="module")
def config(sandbox: RunningSandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workers") / "foveate.yaml"
    write_config(path, sandbox.url, "server: {workers: 2}\n")
    return path


@pytest.fixture(scope="module")
def gateway(config: Path) -> Iterator[GatewayProcess]:
    """Two workers, which create their store themselves."""
    with gateway_process(
        config.parent, FOVEATE_STORE=f"sqlite:///{config.parent}/foveate.sqlite", forked=False
    ) as running:
        yield running


def send_message(url: str) -> int:
    """Send one request on its own connection, and return its status."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        connection.request("POST", "/v1/messages", BODY, HEADERS)
        return connection.getresponse().status
    finally:
        connection.close()


def wait_for(condition: Callable[[], bool], *, within_seconds: float) -> None:
    deadline = time.monotonic() + within_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="CPU times are read from /proc")
def test_both_workers_serve_requests(gateway: GatewayProcess) -> None:
    first, second = gateway.workers()
    before = cpu_seconds(first), cpu_seconds(second)
    statuses: list[int] = []

    def send_requests() -> None:
        connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=30)
        for _ in range(10):
            connection.request("POST", "/v1/messages", BODY, HEADERS)
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()

    threads = [threading.Thread(target=send_requests) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert statuses == [200] * 160
    cpu_used = cpu_seconds(first) - before[0], cpu_seconds(second) - before[1]
    assert min(cpu_used) > 0.1 * sum(cpu_used), cpu_used


def test_a_killed_worker_is_replaced_and_every_request_is_answered(gateway: GatewayProcess) -> None:
    assert gateway.ready_object["workers"] == 2
    killed, other = gateway.workers()
    os.kill(killed, signal.SIGKILL)

    assert [send_message(gateway.url) for _ in range(5)] == [200] * 5

    wait_until_gone([killed], within_seconds=15)
    wait_for(lambda: len(gateway.workers()) == 2, within_seconds=15)
    assert other in gateway.workers()


def test_a_worker_started_with_an_invalid_file_uses_the_previous_configuration(
    gateway: GatewayProcess, config: Path
) -> None:
    """Regression: replacements exited at an invalid file, and after seven of them the gateway exited."""
    valid_config = config.read_bytes()
    config.write_text("nonsense: [")
    try:
        for pid in gateway.workers():
            os.kill(pid, signal.SIGKILL)

        assert send_message(gateway.url) == 200  # only a restarted worker can answer
        with urllib.request.urlopen(f"{gateway.url}/health", timeout=30) as response:
            config_health = json.load(response)["config"]
        assert not config_health["valid"]
    finally:
        config.write_bytes(valid_config)
    wait_for(lambda: len(gateway.workers()) == 2, within_seconds=15)


def test_no_worker_outlives_a_parent_that_is_killed(sandbox: RunningSandbox, tmp_path: Path) -> None:
    write_config(tmp_path / "foveate.yaml", sandbox.url)
    with gateway_process(tmp_path, "--workers", "2", forked=False) as gateway:
        pids = gateway.workers()
        assert len(pids) == 2
        os.kill(gateway.pid, signal.SIGKILL)

        wait_until_gone(pids, within_seconds=10)


def test_workers_that_die_at_once_are_reported_and_not_restarted_forever(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, and no folder")
    url = f"sqlite:///{tmp_path}/taken/foveate.sqlite"

    result = subprocess.run(
        [*SERVE_COMMAND, "--workers", "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "FOVEATE_STORE": url},
    )

    assert result.returncode == 1
    assert "exited right after the start" in result.stderr
    assert f"{tmp_path}/taken" in result.stderr  # from the worker's own output
    assert json.loads(result.stdout)["error"]["code"] == "workers_failed"


def test_workers_share_one_postgresql(
    sandbox: RunningSandbox, postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.new_database()
    write_config(tmp_path / "foveate.yaml", sandbox.url, f"store: {{url: '{url}'}}\n")
    with gateway_process(tmp_path, "--workers", "2") as gateway:
        with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
            for _ in range(3):
                client.messages.create(
                    model="claude-opus-4-5", max_tokens=20, messages=[{"role": "user", "content": "Hello"}]
                )
        gateway.process.terminate()
        assert gateway.wait_for_exit()[0] == 0
    report = subprocess.run(
        [*COMMAND, "cost", "--json", "--store", url],
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(report.stdout)["total"]["calls"] == 3


def test_identical_conversations_of_two_workers_continue_on_their_connections(
    sandbox: RunningSandbox, tmp_path: Path
) -> None:
    write_config(tmp_path / "foveate.yaml", sandbox.url, "server: {workers: 2}\n")
    url = f"sqlite:///{tmp_path}/foveate.sqlite"
    with gateway_process(tmp_path, FOVEATE_STORE=url) as gateway:
        address = gateway.url.removeprefix("http://")
        connections = [http.client.HTTPConnection(address, timeout=30) for _ in range(4)]
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
        for _ in range(3):
            answers = []
            for connection in connections:
                body = {"model": "claude-opus-4-5", "max_tokens": 20, "messages": messages}
                connection.request("POST", "/v1/messages", json.dumps(body), HEADERS)
                answers.append(json.loads(connection.getresponse().read())["content"])
            assert answers == answers[:1] * len(connections)
            messages += [{"role": "assistant", "content": answers[0]}, {"role": "user", "content": "Go on."}]
        for connection in connections:
            connection.close()
        gateway.process.terminate()
        assert gateway.wait_for_exit()[0] == 0
    report = subprocess.run(
        [*COMMAND, "cost", "--by", "session", "--json", "--store", url],
        capture_output=True,
        text=True,
        check=True,
    )

    assert [row["calls"] for row in json.loads(report.stdout)["rows"]] == [3] * len(connections)


def test_the_restart_backoff_grows_and_is_limited() -> None:
    history = CrashHistory(was_ready=True)
    delays = []
    for _ in range(7):
        history = history.add_crash(lived_seconds=1)
        delays.append(history.restart_delay_seconds(others_serve=False))

    assert delays == [0.5, 1, 2, 4, 8, 15, None]
    assert history.add_crash(lived_seconds=60).restart_delay_seconds(others_serve=False) == 0.5


@pytest.mark.parametrize("consecutive", [7, 5000])
def test_restarts_continue_while_other_workers_serve(consecutive: int) -> None:
    """Regression: the gateway exited, with its healthy workers, after replacements of one died seven times."""
    assert CrashHistory(consecutive=consecutive, was_ready=True).restart_delay_seconds(others_serve=True) == 15


def test_no_worker_is_restarted_if_none_was_ever_ready() -> None:
    assert CrashHistory().add_crash(lived_seconds=1).restart_delay_seconds(others_serve=True) is None
