"""Settings of the server, the store and the environment: each test changes one and checks its effect."""

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from foveate.config.settings import ServerSettings, TimeoutSettings
from foveate.gateway.auth.callers import hash_key
from foveate.gateway.build import open_gateway
from foveate.gateway.server.serve import load_live_config
from foveate.sandbox.http import SandboxRequest
from foveate.session.store import Session, SessionUpdate
from foveate.store import open_store
from tests.support.oracles.system_state import wait_until
from tests.support.processes.forked_commands import COMMAND
from tests.support.servers.gateway import running_gateway
from tests.support.servers.gateway_process import gateway_process, write_config
from tests.support.servers.live_gateway import CLAUDE, LiveGateway, live_gateway
from tests.support.servers.sandbox import KEY, running_sandbox
from tests.support.servers.scripted_upstream import (
    ScriptedUpstream,
    http_response,
    respond_always,
    running_upstream,
)
from tests.support.stores.templates import ensure_store

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGateway]:
    with live_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


def send_message(gateway: LiveGateway, body: dict[str, Any]) -> int:
    request = {"model": CLAUDE, "max_tokens": 10, "messages": gateway.messages(), **body}
    return gateway.post("/v1/messages", request).status_code


NESTED: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
TOOLS = [{"name": f"t{at}", "description": "Does.", "input_schema": NESTED} for at in range(3)]


@pytest.mark.parametrize(
    ("setting", "body", "expected_status"),
    [
        ("body_limit_bytes: 300", {"system": "x" * 400}, 413),
        ("max_messages: 2", {"messages": [{"role": "user", "content": "a"}] * 3}, 400),
        ("max_tools: 2", {"tools": TOOLS}, 400),
        ("max_depth: 4", {"tools": TOOLS}, 400),
    ],
)
def test_requests_above_a_server_limit_are_rejected(
    gateway: LiveGateway, setting: str, body: dict[str, Any], expected_status: int
) -> None:
    gateway.configure()
    assert send_message(gateway, body) == 200
    gateway.configure(f"server: {{{setting}}}\n")
    assert send_message(gateway, body) == expected_status


def send_half_a_request(gateway: LiveGateway, size_bytes: int = 500) -> socket.socket:
    """Send the head and only a part of the body of a request."""
    connection = socket.create_connection(("127.0.0.1", int(gateway.url.rpartition(":")[2])))
    connection.settimeout(20)
    head = f"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\nx-api-key: {KEY}\r\n"
    connection.sendall(
        f"{head}content-type: application/json\r\ncontent-length: {size_bytes}\r\n\r\n{{".encode()
    )
    return connection


def test_a_body_must_arrive_within_the_configured_time(gateway: LiveGateway) -> None:
    gateway.configure("server: {body_timeout_seconds: 0.2}\n")
    with send_half_a_request(gateway) as connection:
        assert b" 408 " in connection.recv(200)

    gateway.configure()
    with send_half_a_request(gateway) as connection:
        connection.settimeout(0.6)
        with pytest.raises(TimeoutError):
            connection.recv(200)


def test_all_bodies_together_stay_within_the_configured_memory(gateway: LiveGateway) -> None:
    """A body waits for the memory that others hold."""

    def post(seconds: float) -> int:
        return httpx.post(
            f"{gateway.url}/v1/messages",
            json={"model": CLAUDE, "max_tokens": 10, "messages": gateway.messages(), "system": "x" * 700_000},
            headers={"x-api-key": KEY, "anthropic-version": "2023-06-01"},
            timeout=seconds,
        ).status_code

    with ExitStack() as stack:
        gateway.configure("server: {body_limit_bytes: 800000}\n")
        for _ in range(3):
            stack.enter_context(send_half_a_request(gateway, 790_000))
        assert post(30) in (200, 400)  # the body is read, whether or not the sandbox accepts it
        gateway.configure("server: {body_limit_bytes: 800000, body_memory_bytes: 2400000}\n")
        with pytest.raises(httpx.ReadTimeout):
            post(1)


def test_pages_of_listed_origins_may_send_requests(gateway: LiveGateway) -> None:
    headers = {"origin": "https://app.example", "access-control-request-method": "POST"}
    gateway.configure("server: {cors_origins: ['https://app.example']}\n")
    allowed = httpx.options(f"{gateway.url}/v1/messages", headers=headers)
    gateway.configure()
    forbidden = httpx.options(f"{gateway.url}/v1/messages", headers=headers)

    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in forbidden.headers


def test_a_gateway_on_loopback_accepts_listed_host_names(gateway: LiveGateway) -> None:
    def send() -> int:
        body = {"model": CLAUDE, "max_tokens": 10, "messages": gateway.messages()}
        return gateway.post(
            "/v1/messages", body, host="gateway.example", origin="http://gateway.example"
        ).status_code

    gateway.configure()
    assert send() != 200
    gateway.configure("server: {host_names: [gateway.example]}\n")
    assert send() == 200


def test_the_gateways_pages_are_shown_only_if_enabled(gateway: LiveGateway) -> None:
    gateway.configure()
    assert httpx.get(gateway.url, timeout=60).status_code == 200
    gateway.configure("server: {page: false}\n")
    assert httpx.get(gateway.url, timeout=60).status_code == 404


@pytest.mark.parametrize(
    ("setting", "step"),
    [
        ("idle_seconds: 0.2", {"delay_seconds": 3}),
        ("total_seconds: 0.2", {"delay_seconds": 3}),
    ],
)
def test_an_upstream_has_the_configured_timeout(
    gateway: LiveGateway, setting: str, step: dict[str, Any]
) -> None:
    gateway.configure(f"server: {{timeouts: {{{setting}}}}}\n")
    body = {"model": CLAUDE, "max_tokens": 10, "messages": gateway.messages()}
    response = gateway.post("/v1/messages", body, x_sandbox_answer=json.dumps(step))

    assert response.status_code == 504
    assert "0.2 s" in response.text


def test_a_connection_has_the_configured_timeout(gateway: LiveGateway) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # they are never accepted, so that further connections wait
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        gateway.configure(
            "server: {timeouts: {connect_seconds: 0.3}}\nroutes: [{models: '*', upstream: full}]\n",
            upstreams=f"  full: {{base_url: 'http://127.0.0.1:{listener.getsockname()[1]}', api: anthropic}}\n",
        )
        body = {"model": CLAUDE, "max_tokens": 10, "messages": gateway.messages()}
        response = gateway.post("/v1/messages", body)

    assert response.status_code in (502, 504)
    assert "0.3 s" in response.text


def query_store(folder: Path, sql: str) -> list[Any]:
    with sqlite3.connect(f"file:{folder}/foveate.sqlite?mode=ro", uri=True) as connection:
        return connection.execute(sql).fetchall()


STORED_REQUESTS_SQL = "SELECT count(*) FROM requests_v1"


def test_requests_are_stored_only_if_enabled_and_within_days_and_bytes(gateway: LiveGateway) -> None:
    def stored_requests() -> int:
        return int(query_store(gateway.folder, STORED_REQUESTS_SQL)[0][0])

    def send_messages(settings: str) -> None:
        gateway.configure(f"keep_requests: {{{settings}}}\n")
        for _ in range(3):
            gateway.send_message()

    send_messages("enabled: false")
    time.sleep(0.5)
    assert stored_requests() == 0
    send_messages("enabled: true")
    wait_until(stored_requests, lambda count: count == 3)
    send_messages("enabled: true, most_bytes: 1")
    wait_until(stored_requests, lambda count: count < 2)
    send_messages("enabled: true, days: 0.000001, most_bytes: 2000")
    wait_until(stored_requests, lambda count: count < 6)


def run_gateway(folder: Path, settings: str, *options: str) -> tuple[dict[str, Any], str]:
    """Start a gateway with these settings; return its ready object and its standard error."""
    with running_sandbox() as sandbox:
        write_config(folder / "foveate.yaml", sandbox.url, settings)
        with gateway_process(folder, *options) as gateway:
            httpx.post(
                f"{gateway.url}/v1/messages",
                json={"model": CLAUDE, "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]},
                headers={"x-api-key": KEY, "anthropic-version": "2023-06-01"},
                timeout=60,
            )
            gateway.process.terminate()
            return gateway.ready_object, gateway.wait_for_exit()[1]


def test_the_log_is_written_as_configured(tmp_path: Path) -> None:
    def read_log(settings: str) -> list[str]:
        return run_gateway(tmp_path, f"server: {{{settings}}}\n")[1].splitlines()

    plain, structured, quiet = read_log("log: lines"), read_log("log: json"), read_log("log_level: error")

    assert any(CLAUDE in line for line in plain)
    assert not plain[0].startswith("{")
    assert all(json.loads(line) for line in structured if line.strip())
    assert not quiet


def test_the_gateway_uses_the_configured_address_and_store(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
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
        ready = json.loads(process.stdout.readline())
        process.terminate()
        process.communicate()

    assert ready["url"] == f"http://127.0.0.2:{port}"
    assert store.exists()


@pytest.mark.parametrize(("days", "is_stored"), [(3, False), (30, True)])
async def test_sessions_unused_for_the_configured_days_are_deleted(
    tmp_path: Path, days: int, is_stored: bool
) -> None:
    store_url = ensure_store(tmp_path / "foveate.sqlite")
    (tmp_path / "foveate.yaml").write_text(f"store: {{url: '{store_url}', keep_days: {days}}}\n")
    config = load_live_config(tmp_path / "foveate.yaml", {}, logs_changes=False).current().value
    now = 1_800_000_000.0
    async with await open_store(store_url) as store:
        session = Session(id="s", agent="ana", tip=b"", messages=1, created_at=now, seen_at=now)
        await store.sessions.save([SessionUpdate(session=session, turns=())])
    waits = iter((0.0, 3600.0))
    async with open_gateway(
        lambda: config,
        environment={},
        clock=lambda: now + 5 * 86_400,
        runs_retention=True,
        wait=lambda _: asyncio.sleep(next(waits)),
    ):
        await asyncio.sleep(0.5)

    assert bool(query_store(tmp_path, "SELECT id FROM sessions_v1")) is is_stored


@pytest.mark.parametrize("is_signed", [True, False])
def test_requests_to_bedrock_are_signed_only_if_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_signed: bool
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-a-test")
    with running_upstream(respond_always(http_response(b"{}"))) as upstream:
        sign = ", sign: aws" if is_signed else ""
        store = ensure_store(tmp_path / "foveate.sqlite")
        (tmp_path / "foveate.yaml").write_text(
            f"upstreams: {{bedrock: {{base_url: '{upstream.url}'{sign}}}}}\nstore: {{url: '{store}'}}\n"
        )
        environment = {"AWS_REGION": "eu-west-1"}
        config = load_live_config(tmp_path / "foveate.yaml", environment, logs_changes=False).current().value
        with running_gateway(upstream.url, tmp_path, config=config) as gateway:
            body = {"messages": [{"role": "user", "content": [{"text": "Hello"}]}]}
            path = "/model/anthropic.claude-sonnet-4-5-20250929-v1:0/converse"
            headers = {"authorization": "Bearer ABSK-of-a-test"}
            httpx.post(f"{gateway.url}{path}", json=body, headers=headers, timeout=60)

    (request,) = upstream.requests
    assert (b"AWS4-HMAC-SHA256" in request) is is_signed


@contextmanager
def running_gateway_for(folder: Path, provider: ScriptedUpstream, upstream_settings: str) -> Iterator[str]:
    """Run a gateway with its own key for one upstream that has these additional settings."""
    store = ensure_store(folder / "foveate.sqlite")
    (folder / "foveate.yaml").write_text(
        f"upstreams: {{anthropic: {{base_url: '{provider.url}'{upstream_settings}}}}}\n"
        f"store: {{url: '{store}'}}\n"
        f"agents: [{{id: ana, keys: ['{hash_key(GATEWAY_KEY)}']}}]\n"
    )
    environment = {"ANTHROPIC_API_KEY": "key-of-its-own"}
    config = load_live_config(folder / "foveate.yaml", environment, logs_changes=False).current().value
    with running_gateway(provider.url, folder, config=config) as gateway:
        yield gateway.url


GATEWAY_KEY = "fov-key-of-a-test-with-enough-letters"
HEADERS = {"x-api-key": GATEWAY_KEY, "anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(("upstream_settings", "status"), [("", 403), (", allow: ['GET /v1/files*']", 200)])
def test_the_gateways_key_is_used_only_where_allowed(
    tmp_path: Path, upstream_settings: str, status: int
) -> None:
    with (
        running_upstream(respond_always(http_response(b"{}"))) as provider,
        running_gateway_for(tmp_path, provider, upstream_settings) as url,
    ):
        assert httpx.get(f"{url}/v1/files", headers=HEADERS, timeout=60).status_code == status


@pytest.mark.parametrize(("upstream_settings", "connections"), [("", 1), (", reuse: false", 3)])
def test_connections_to_an_upstream_are_reused_only_if_enabled(
    tmp_path: Path, upstream_settings: str, connections: int
) -> None:
    with (
        running_upstream(respond_always(http_response(b"{}"))) as provider,
        running_gateway_for(tmp_path, provider, upstream_settings) as url,
    ):
        for _ in range(3):
            assert httpx.get(f"{url}/v1/models", headers=HEADERS, timeout=60).status_code == 200
    assert provider.connections == connections


@pytest.mark.parametrize(("seconds", "connections"), [(50, 1), (0.05, 3)])
def test_an_unused_connection_is_closed_after_the_configured_time(
    tmp_path: Path, seconds: float, connections: int
) -> None:
    server = ServerSettings(timeouts=TimeoutSettings(keep_alive_seconds=seconds))
    with (
        running_upstream(respond_always(http_response(b"{}"))) as provider,
        running_gateway(provider.url, tmp_path, server=server) as gateway,
    ):
        for _ in range(3):
            assert (
                httpx.get(f"{gateway.url}/v1/models", headers={"x-api-key": KEY}, timeout=60).status_code == 200
            )
            time.sleep(0.1)
    assert provider.connections == connections


@pytest.mark.parametrize(("share", "level"), [("0", "near"), ("0.9", "fine")])
def test_a_cap_warns_from_the_configured_share(tmp_path: Path, share: str, level: str) -> None:
    caps = f"[{{scope: agent, agent: ana, dollars: 5, warn_at: {share}}}]"
    store = ensure_store(tmp_path / "foveate.sqlite")
    (tmp_path / "foveate.yaml").write_text(f"cost: {{caps: {caps}}}\nstore: {{url: '{store}'}}\n")
    result = subprocess.run(
        [*COMMAND, "cost", "caps", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
        env=ENVIRONMENT,
    )

    assert json.loads(result.stdout)["caps"][0]["uses"][0]["level"] == level


# The environment


ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("CONTEXT_", "TIME_"))}


def request_with_environment(folder: Path, settings: str, **environment: str) -> SandboxRequest:
    """Return the request that a gateway started with these variables sends to the provider."""
    with running_sandbox() as sandbox:
        write_config(folder / "foveate.yaml", sandbox.url, settings)
        with gateway_process(folder, forked=True, **environment) as gateway:
            headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "x-foveate-agent": "ana"}
            body = {"model": CLAUDE, "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}
            response = httpx.post(f"{gateway.url}/v1/messages", json=body, headers=headers, timeout=60)
            assert response.status_code == 200, response.text
        return sandbox.requests[-1]


@pytest.mark.parametrize("is_set", [True, False])
def test_environment_variables_change_the_sent_request(tmp_path: Path, is_set: bool) -> None:
    (tmp_path / "watch.log").write_text("".join(f"line {number} of it\n" for number in range(30)))
    deadline = datetime.now(UTC) + timedelta(minutes=90)
    (tmp_path / "notes.org").write_text(f"* TODO Prune\nDEADLINE: <{deadline:%Y-%m-%d %a %H:%M}>\n")
    settings = (
        f"agents: [{{id: ana, sections: {{memory: {{paths: ['{tmp_path}/notes.org']}}, time: {{}},"
        f" logs: ['{tmp_path}/watch.log']}}}}]\n"
    )
    variables = {
        "CONTEXT_LOG_LIMIT": "3",
        "TIME_FORMAT": "natural",
        "DEADLINE_WARNING_MINUTES": "120",
        "ANTHROPIC_CACHE_BETA": "prompt-caching-of-a-test",
    }

    request = request_with_environment(tmp_path, settings, **(variables if is_set else {}))

    text = request.body.decode()
    assert (text.count(" of it") == 3) is is_set
    assert ("(UTC)" in text) is is_set
    assert ("Deadline in " in text) is is_set
    assert (request.headers.get("anthropic-beta") == "prompt-caching-of-a-test") is is_set


@pytest.mark.parametrize(
    ("variable", "value"), [("TIME_AWARENESS", "false"), ("CONTEXT_MAX_TOKENS", "30"), ("", "")]
)
def test_environment_variables_remove_sections(tmp_path: Path, variable: str, value: str) -> None:
    settings = "agents: [{id: ana, sections: {time: {}, limits: {total_tokens: 500}}}]\n"

    request = request_with_environment(tmp_path, settings, **({variable: value} if variable else {}))

    assert ("Time: " in request.body.decode()) is (variable == "")


def test_a_variable_sets_the_minimum_similarity_of_notes(tmp_path: Path) -> None:
    (tmp_path / "notes.org").write_text("* Roses\nRoses need water.\n* Pumps\nPumps move water.\n")
    is_shown = {}
    for threshold in ("0", "1"):
        result = subprocess.run(
            [*COMMAND, "memory", "render", "notes.org", "--focus", "Roses", "--limit-tokens", "none"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=True,
            env={**ENVIRONMENT, "CONTEXT_SEMANTIC_THRESHOLD": threshold, "FOVEATE_HOME": str(tmp_path)},
        )
        is_shown[threshold] = "Pumps move water." in result.stdout
    assert is_shown == {"0": True, "1": False}


@pytest.mark.parametrize(
    ("variable", "upstream", "path"),
    [
        ("ANTHROPIC_API_KEY", "anthropic", "/v1/messages"),
        ("OPENAI_API_KEY", "openai", "/v1/chat/completions"),
        ("OPENROUTER_API_KEY", "openrouter", "/v1/chat/completions"),
        ("DEEPSEEK_API_KEY", "deepseek", "/v1/chat/completions"),
        ("NVIDIA_API_KEY", "nvidia", "/v1/chat/completions"),
        ("GEMINI_API_KEY", "gemini", "/v1/chat/completions"),
    ],
)
def test_keys_of_upstreams_come_from_their_variables(
    tmp_path: Path, variable: str, upstream: str, path: str
) -> None:
    with running_upstream(respond_always(http_response(b"{}"))) as provider:
        store = ensure_store(tmp_path / "foveate.sqlite")
        key = "fov-key-of-a-test-with-enough-letters"
        base_url = provider.url if upstream == "anthropic" else f"{provider.url}/v1"
        (tmp_path / "foveate.yaml").write_text(
            f"upstreams: {{{upstream}: {{base_url: '{base_url}'}}}}\nstore: {{url: '{store}'}}\n"
            f"routes: [{{models: '*', upstream: {upstream}}}]\n"
            f"agents: [{{id: ana, keys: ['{hash_key(key)}']}}]\n"
        )
        config = (
            load_live_config(tmp_path / "foveate.yaml", {variable: "key-of-its-own"}, logs_changes=False)
            .current()
            .value
        )
        with running_gateway(provider.url, tmp_path, config=config) as gateway:
            body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}
            httpx.post(
                f"{gateway.url}{path}", json=body, headers={"authorization": f"Bearer {key}"}, timeout=60
            )

    (request,) = provider.requests
    assert b"key-of-its-own" in request
    assert key.encode() not in request


def test_variables_set_the_store_and_the_data_folder(tmp_path: Path) -> None:
    home, store = tmp_path / "home", tmp_path / "other.sqlite"
    home.mkdir()
    request_with_environment(tmp_path, "", FOVEATE_HOME=str(home))
    assert (home / "foveate.sqlite").exists()
    request_with_environment(tmp_path, "", FOVEATE_STORE=f"sqlite:///{store}")
    assert store.exists()
