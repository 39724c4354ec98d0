"""Settings of the server, the store and the environment: each test changes one, and sees the difference."""

import json
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.sandboxes import KEY, running_sandbox
from tests.served import configure, serving
from tests.support.forked_commands import COMMAND
from tests.support.live_gateway import CLAUDE, LiveGateway, live_gateway

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    with live_gateway(tmp_path_factory.mktemp("gateway")) as found:
        yield found


def status(gateway: LiveGateway, body: dict[str, Any]) -> int:
    said = {"model": CLAUDE, "max_tokens": 10, "messages": gateway.messages(), **body}
    return gateway.post("/v1/messages", said).status_code


NESTED: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
TOOLS = [{"name": f"t{at}", "description": "Does.", "input_schema": NESTED} for at in range(3)]


@pytest.mark.parametrize(
    ("setting", "body", "refused"),
    [
        ("body_limit_bytes: 300", {"system": "x" * 400}, 413),
        ("max_messages: 2", {"messages": [{"role": "user", "content": "a"}] * 3}, 400),
        ("max_tools: 2", {"tools": TOOLS}, 400),
        ("max_depth: 4", {"tools": TOOLS}, 400),
    ],
)
def test_requests_beyond_a_limit_of_the_server_are_refused(
    gateway: LiveGateway, setting: str, body: dict[str, Any], refused: int
) -> None:
    gateway.configure()
    assert status(gateway, body) == 200
    gateway.configure(f"server: {{{setting}}}\n")
    assert status(gateway, body) == refused


def half_sent(gateway: LiveGateway, size_bytes: int = 500) -> socket.socket:
    """A request of which only the head and a part of the body have come."""
    connection = socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
    connection.settimeout(20)
    head = f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {KEY}\r\n"
    connection.sendall(
        f"{head}content-type: application/json\r\ncontent-length: {size_bytes}\r\n\r\n{{".encode()
    )
    return connection


def test_a_body_has_to_arrive_in_the_time_that_is_set(gateway: LiveGateway) -> None:
    gateway.configure("server: {body_timeout_seconds: 0.2}\n")
    with half_sent(gateway) as connection:
        assert b" 408 " in connection.recv(200)

    gateway.configure()
    with half_sent(gateway) as connection:
        connection.settimeout(0.6)
        with pytest.raises(TimeoutError):
            connection.recv(200)


def test_all_bodies_together_have_the_memory_that_is_set(gateway: LiveGateway) -> None:
    """A body waits for the memory that others hold."""

    def post(seconds: float) -> int:
        return httpx.post(
            f"{gateway.url}/v1/messages",
            json={"model": CLAUDE, "max_tokens": 10, "messages": gateway.messages(), "system": "x" * 700_000},
            headers={"x-api-key": KEY, "anthropic-version": "2023-06-01"},
            timeout=seconds,
        ).status_code

    with ExitStack() as held:
        gateway.configure("server: {body_limit_bytes: 800000}\n")
        for _ in range(3):
            held.enter_context(half_sent(gateway, 790_000))
        assert post(30) in (200, 400)  # it is read, whatever the provider says of it
        gateway.configure("server: {body_limit_bytes: 800000, body_memory_bytes: 2400000}\n")
        with pytest.raises(httpx.ReadTimeout):
            post(1)


def test_pages_of_listed_origins_may_ask(gateway: LiveGateway) -> None:
    headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
    gateway.configure("server: {cors_origins: ['https://app.example']}\n")
    allowed = httpx.options(f"{gateway.url}/v1/messages", headers=headers)
    gateway.configure()
    forbidden = httpx.options(f"{gateway.url}/v1/messages", headers=headers)

    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in forbidden.headers


def test_a_gateway_on_loopback_is_asked_by_listed_names(gateway: LiveGateway) -> None:
    def asked() -> int:
        body = {"model": CLAUDE, "max_tokens": 10, "messages": gateway.messages()}
        return gateway.post(
            "/v1/messages", body, host="gateway.example", origin="http://gateway.example"
        ).status_code

    gateway.configure()
    assert asked() != 200
    gateway.configure("server: {host_names: [gateway.example]}\n")
    assert asked() == 200


def test_the_gateways_pages_are_shown_only_if_they_are_on(gateway: LiveGateway) -> None:
    gateway.configure()
    assert httpx.get(gateway.url).status_code == 200
    gateway.configure("server: {page: false}\n")
    assert httpx.get(gateway.url).status_code == 404


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ("idle_seconds: 0.2", {"delay_seconds": 3}),
        ("total_seconds: 0.2", {"delay_seconds": 3}),
    ],
)
def test_an_upstream_is_waited_for_as_long_as_is_set(
    gateway: LiveGateway, setting: str, answer: dict[str, Any]
) -> None:
    gateway.configure(f"server: {{timeouts: {{{setting}}}}}\n")
    body = {"model": CLAUDE, "max_tokens": 10, "messages": gateway.messages()}
    late = gateway.post("/v1/messages", body, x_sandbox_answer=json.dumps(answer))

    assert late.status_code == 504
    assert "0.2 s" in late.text


def test_a_connection_is_waited_for_as_long_as_is_set(gateway: LiveGateway) -> None:
    with ExitStack() as held:
        full = held.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):  # nobody accepts them, so that further ones have to wait
            waiting = held.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        gateway.configure(
            "server: {timeouts: {connect_seconds: 0.3}}\nroutes: [{models: '*', upstream: full}]\n",
            upstreams=f"  full: {{base_url: 'http://127.0.0.1:{full.getsockname()[1]}', api: anthropic}}\n",
        )
        body = {"model": CLAUDE, "max_tokens": 10, "messages": gateway.messages()}
        late = gateway.post("/v1/messages", body)

    assert late.status_code in (502, 504)
    assert "0.3 s" in late.text


def rows(folder: Path, sql: str) -> list[Any]:
    with sqlite3.connect(f"file:{folder}/foveate.sqlite?mode=ro", uri=True) as connection:
        return connection.execute(sql).fetchall()


KEPT = "SELECT count(*) FROM requests_v1"


def test_requests_are_kept_only_if_that_is_on_and_within_days_and_bytes(gateway: LiveGateway) -> None:
    def kept(settings: str, times: int = 3) -> int:
        gateway.configure(f"keep_requests: {{{settings}}}\n")
        for _ in range(times):
            gateway.ask()
        time.sleep(0.5)
        return int(rows(gateway.folder, KEPT)[0][0])

    assert kept("enabled: false") == 0
    assert kept("enabled: true") == 3
    assert kept("enabled: true, most_bytes: 1") < 2
    assert kept("enabled: true, days: 0.000001, most_bytes: 2000") < 6


def started(folder: Path, settings: str, *options: str) -> tuple[dict[str, Any], str]:
    """What a gateway with such a configuration tells when it is ready, and on standard error."""
    with running_sandbox() as sandbox:
        configure(folder / "foveate.yaml", sandbox.url, settings)
        with serving(folder, *options) as served:
            httpx.post(
                f"{served.url}/v1/messages",
                json={"model": CLAUDE, "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]},
                headers={"x-api-key": KEY, "anthropic-version": "2023-06-01"},
            )
            served.process.terminate()
            return served.told, served.ended()[1]


def test_the_log_is_written_as_is_set(tmp_path: Path) -> None:
    def log(settings: str) -> list[str]:
        return started(tmp_path, f"server: {{{settings}}}\n")[1].splitlines()

    plain, structured, quiet = log("log: lines"), log("log: json"), log("log_level: error")

    assert any(CLAUDE in line for line in plain)
    assert not plain[0].startswith("{")
    assert all(json.loads(line) for line in structured if line.strip())
    assert not quiet


def test_the_gateway_listens_and_keeps_its_store_where_is_set(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    store = tmp_path / "elsewhere.sqlite"
    settings = f"server: {{host: 127.0.0.2, port: {port}}}\nstore: {{url: 'sqlite:///{store}'}}\n"
    (tmp_path / "foveate.yaml").write_text(settings)
    with subprocess.Popen(
        [*COMMAND, "serve", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={"FOVEATE_HOME": str(tmp_path), "PATH": ""},
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        process.terminate()
        process.communicate()

    assert told["url"] == f"http://127.0.0.2:{port}"
    assert store.exists()
