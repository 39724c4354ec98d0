"""Responses of a public gateway to callers without a key: no paths, amounts or addresses."""

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from foveate.gateway.auth.callers import generate_key, hash_key
from tests.support.processes.sqlite_lock import locked_by_another_process
from tests.support.servers.gateway_process import gateway_process
from tests.support.servers.scripted_upstream import UpstreamConnection, running_upstream

pytestmark = pytest.mark.process

KEY, ADMIN_KEY = generate_key(), generate_key()
LIMIT = "0.01234"
CLAUDE = {"model": "claude-opus-4-5", "max_tokens": 64_000, "messages": [{"role": "user", "content": "Hello"}]}
GPT = {"model": "gpt-4.1", "max_tokens": 50, "messages": CLAUDE["messages"]}
CONFIG = """
upstreams:
  anthropic: {{base_url: '{url}'}}
  openai: {{base_url: 'http://127.0.0.1:1/v1'}}
  paidhost: {{base_url: '{url}/paid', api: openai, key_variable: PAID_KEY}}
routes:
  - {{models: 'paid-*', upstream: paidhost}}
cost:
  caps:
    - {{scope: total, dollars: {limit}}}
    - {{scope: call, agent: bob, dollars: 0.5}}
    - {{scope: call, agent: ana, dollars: 0.02}}
server: {{admin_keys: ['{admin}']}}
agents:
  - {{id: ana, keys: ['{hashed}']}}
  - {{id: bob, keys: ['{other}']}}
"""


@dataclass(frozen=True)
class PublicGateway:
    """A public gateway, its folder, and the secrets that no caller without a key may see."""

    port: int
    folder: Path
    secrets: tuple[str, ...]

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        """Send a request and return the status and the whole response, headers included."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(
                method, path, content, {name.replace("_", "-"): value for name, value in headers.items()}
            )
            response = connection.getresponse()
            return response.status, f"{response.getheaders()} {response.read().decode()}"
        finally:
            connection.close()

    def leaks(self, text: str) -> list[str]:
        return [secret for secret in self.secrets if secret in text]


def close_without_response(connection: UpstreamConnection) -> None:
    connection.read_request()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublicGateway]:
    folder = tmp_path_factory.mktemp("texts")
    with running_upstream(close_without_response) as upstream:
        config = CONFIG.format(
            url=upstream.url,
            limit=LIMIT,
            hashed=hash_key(KEY),
            admin=hash_key(ADMIN_KEY),
            other=hash_key(generate_key()),
        )
        (folder / "foveate.yaml").write_text(config)
        with gateway_process(folder, "--host", "0.0.0.0", PAID_KEY="sk-paid-0123456789") as process:
            secrets = (
                *(str(folder), str(Path.home()), "foveate.sqlite", "foveate.yaml", upstream.url),
                *(
                    urlsplit(upstream.url).netloc,
                    "127.0.0.1:1",
                    "paidhost",
                    "bob",
                    "sk-paid",
                    KEY,
                    hash_key(KEY),
                ),
                *(LIMIT, "$0.01", "$0.5", "$"),
            )
            yield PublicGateway(urlsplit(process.url).port or 0, folder, secrets)


JSON = {"content_type": "application/json"}
ANTHROPIC = {**JSON, "x_api_key": "sk-ant-0", "anthropic_version": "2023-06-01"}
OPENAI = {**JSON, "authorization": "Bearer sk-0"}
REQUESTS: dict[str, tuple[int, str, str, Any, dict[str, str]]] = {
    "health": (200, "GET", "/health", None, {}),
    "ready": (200, "GET", "/ready", None, {}),
    "metrics": (401, "GET", "/metrics", None, {}),
    "overview": (401, "GET", "/", None, {}),
    "sessions": (401, "GET", "/-/sessions", None, {}),
    "a cap": (402, "POST", "/v1/messages", CLAUDE, ANTHROPIC),
    "a cap, chat": (402, "POST", "/v1/chat/completions", GPT | {"max_tokens": 30_000}, OPENAI),
    "a cap, responses": (402, "POST", "/v1/responses", {"model": "gpt-4.1", "input": "Hi" * 99_999}, OPENAI),
    "an unknown price": (402, "POST", "/v1/chat/completions", GPT | {"model": "nobody's"}, OPENAI),
    "an unknown route": (402, "POST", "/v1/images", {}, OPENAI),
    "an invalid body": (402, "POST", "/v1/messages", b"{", ANTHROPIC),
    "a duplicate key": (400, "POST", "/v1/messages", b'{"model": "a", "model": "b"}', ANTHROPIC),
    "an unreachable upstream": (502, "POST", "/v1/chat/completions", GPT | {"max_tokens": 5}, OPENAI),
    "another agent": (401, "POST", "/v1/messages", CLAUDE, {**ANTHROPIC, "x_foveate_agent": "ana"}),
    "an unknown key": (401, "POST", "/v1/messages", CLAUDE, {**JSON, "x_api_key": "fov-nobody's"}),
    "a paid upstream": (401, "POST", "/v1/chat/completions", GPT | {"model": "paid-1"}, OPENAI),
    "another API": (400, "POST", "/v1/messages", CLAUDE | {"model": "paid-1"}, ANTHROPIC),
    "an API of another provider": (402, "POST", "/v1beta/models/gemini-3:generateContent", {}, JSON),
    "an API without an upstream": (400, "POST", "/openai/deployments/x/chat/completions", GPT, JSON),
    "an unknown method": (405, "TRACE", "/v1/messages", None, {}),
    "a path outside the API": (400, "GET", "/v1/../../etc/passwd", None, OPENAI),
    "a websocket": (426, "GET", "/v1/responses", None, {"connection": "upgrade", "upgrade": "websocket"}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_callers_without_a_key_see_no_path_amount_or_address(gateway: PublicGateway, name: str) -> None:
    """Attack: /health showed everybody the path of the store, and a 402 the caps and their spending."""
    status, method, path, body, headers = REQUESTS[name]
    actual_status, text = gateway.send(method, path, body, **headers)
    assert actual_status == status, text
    assert gateway.leaks(text) == []


def test_only_administrators_can_read_the_problems_of_the_gateway(gateway: PublicGateway) -> None:
    callers: tuple[dict[str, str], ...] = (
        {},
        {"x_api_key": "fov-wrong"},
        {"authorization": "Bearer sk-0"},
        {"x_api_key": KEY},
    )
    for headers in callers:
        text = gateway.send("GET", "/health", **headers)[1]
        assert text.partition("] ")[2] in ('{"status":"ok"}', '{"status":"degraded"}')
    assert str(gateway.folder) in gateway.send("GET", "/health", x_api_key=ADMIN_KEY)[1]


def test_a_key_sees_the_state_of_its_own_caps_and_no_path(gateway: PublicGateway) -> None:
    status, text = gateway.send("POST", "/v1/messages", CLAUDE, **(ANTHROPIC | {"x_foveate_key": KEY}))
    assert status == 402
    assert "the cap on a call of ana is $0.02" in text
    less = CLAUDE | {"max_tokens": 600}  # fits its own cap, and not the one that all agents share
    status, text = gateway.send("POST", "/v1/messages", less, **(ANTHROPIC | {"x_foveate_key": KEY}))
    assert status == 402
    assert gateway.leaks(text) == []


def test_the_location_of_an_unavailable_store_is_never_shown(gateway: PublicGateway) -> None:
    request = CLAUDE | {"max_tokens": 5}
    gateway.send("POST", "/v1/messages", request, **ANTHROPIC)
    with locked_by_another_process(gateway.folder / "foveate.sqlite"):
        for headers in (ANTHROPIC, ANTHROPIC | {"x_foveate_key": KEY}):
            status, text = gateway.send("POST", "/v1/messages", request, **headers)
            assert (status, "cannot be checked" in text) == (402, True)
            assert gateway.leaks(text) == []
        status, text = gateway.send("GET", "/ready")
        assert gateway.leaks(text) == []
