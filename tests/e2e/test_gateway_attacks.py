"""Attacks on a running gateway; each test is named after what the attacker must not achieve."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from foveate.config.settings import Settings, StoreSettings
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.gateway.app import GatewayOptions
from foveate.gateway.auth.callers import HashedKeys, hash_key
from foveate.gateway.config import ResolvedConfig
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import ALLOWED_OPERATIONS, Routing, Upstream
from tests.support.clients.raw_http import RawResponse, send_raw
from tests.support.servers.gateway import running_gateway
from tests.support.servers.scripted_upstream import (
    Behaviour,
    ConnectionClosed,
    ScriptedUpstream,
    UpstreamConnection,
    http_response,
    respond_always,
    running_upstream,
)
from tests.support.stores.templates import ensure_store

KEY = f"fov-{'k3y_-' * 10}"
PROVIDER_KEY = "sk-ant-of-the-gateway"


@dataclass(frozen=True)
class AttackedGateway:
    """A gateway with a key, and its upstream."""

    url: str
    upstream: ScriptedUpstream

    def send(self, line: str, *headers: str, body: bytes = b"") -> RawResponse:
        """Send a request with exactly these header lines."""
        length = [f"content-length: {len(body)}"] if body else []
        head = [f"{line} HTTP/1.1", "host: gateway", "connection: close", *length, *headers]
        return send_raw(self.url, "\r\n".join((*head, "", "")).encode("latin-1") + body)


def respond_twice(*, late_seconds: float) -> Behaviour:
    """Answer each request with its path, and send a second response a moment later."""

    def behave(connection: UpstreamConnection) -> None:
        while True:
            try:
                path = connection.read_request().split()[1]
            except ConnectionClosed:
                return
            if late_seconds:
                connection.send(http_response(path))
                time.sleep(late_seconds)
                connection.send(http_response(path))
            else:
                connection.send(http_response(path) * 2)

    return behave


@contextmanager
def attacked_gateway(
    folder: Path,
    behave: Behaviour = respond_always(http_response(b"{}")),  # noqa: B008 - it has no state
    *,
    allow: tuple[str, ...] = ALLOWED_OPERATIONS,
    reuse: bool = True,
) -> Iterator[AttackedGateway]:
    with running_upstream(behave) as upstream:
        routing = Routing(
            upstreams={
                "anthropic": Upstream(
                    name="anthropic",
                    base_url=f"{upstream.url}/tenant-a",
                    family=ApiFamily.ANTHROPIC,
                    provider="anthropic",
                    key=PROVIDER_KEY,
                    allow=allow,
                    reuse=reuse,
                )
            }
        )
        config = ResolvedConfig(
            settings=Settings(store=StoreSettings(url=ensure_store(folder / "gateway.sqlite"))),
            gateway=GatewayOptions(routing=routing, keys=HashedKeys({hash_key(KEY): "ana"})),
            agents=lambda _agent: AgentOptions(),
            cost=SpendingOptions(caps=(), prices=PriceBook()),
        )
        with running_gateway(upstream.url, folder, config=config) as gateway:
            yield AttackedGateway(gateway.url, upstream)


VERSION = "anthropic-version: 2023-06-01"


@pytest.mark.parametrize(
    "line",
    [
        "GET /v1/files",
        "DELETE /v1/files/file_1",
        "GET /v1/organizations/api_keys",
        "POST /v1/messages/batches",
        "GET /v1/messages/batches/b_1/results",
        "POST /v1/models",
    ],
)
def test_a_gateway_key_does_not_reach_the_rest_of_the_provider_account(tmp_path: Path, line: str) -> None:
    with attacked_gateway(tmp_path) as gateway:
        response = gateway.send(line, f"x-api-key: {KEY}", VERSION)

    assert response.status == 403
    assert b"upstreams.anthropic.allow" in response.body
    assert gateway.upstream.requests == []


@pytest.mark.parametrize("allow", [("all",), ("models", "GET /v1/files*"), ("* /v1/f*",)])
def test_operations_that_are_allowed_are_forwarded_with_the_key_of_the_gateway(
    tmp_path: Path, allow: tuple[str, ...]
) -> None:
    with attacked_gateway(tmp_path, allow=allow) as gateway:
        response = gateway.send("GET /v1/files/file_1", f"x-api-key: {KEY}", VERSION)

    assert response.status == 200
    assert f"x-api-key: {PROVIDER_KEY}".encode() in gateway.upstream.requests[0]


def test_a_client_with_its_own_key_has_the_rights_of_that_key(tmp_path: Path) -> None:
    with attacked_gateway(tmp_path) as gateway:
        response = gateway.send("DELETE /v1/files/file_1", "x-api-key: sk-ant-own", VERSION)

    assert response.status == 200
    assert gateway.upstream.requests[0].startswith(b"DELETE /tenant-a/v1/files/file_1 ")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../../tenant-b/v1/models",
        "/v1/%2e%2e/%2e%2e/tenant-b/v1/models",
        "/v1/..%2f..%2ftenant-b/v1/models",
        "/v1/%252e%252e/%252e%252e/tenant-b",
        "/v1/..\\..\\tenant-b",
        "/v1/./models",
        "/../tenant-b",
        "/v1/models/..",
        "/v1/models/..;/files",
        "/v1/models/%25252e%25252e%25252ffiles",
    ],
)
@pytest.mark.parametrize("key", [KEY, "sk-ant-own"])
def test_no_path_leaves_the_base_url_of_an_upstream(tmp_path: Path, path: str, key: str) -> None:
    with attacked_gateway(tmp_path, allow=("all",)) as gateway:
        response = gateway.send(f"GET {path}", f"x-api-key: {key}", VERSION)

    assert response.status == 400
    assert gateway.upstream.requests == []


@pytest.mark.parametrize("method", ["TRACE", "PROPFIND", "PURGE"])
def test_methods_that_no_api_uses_are_rejected(tmp_path: Path, method: str) -> None:
    with attacked_gateway(tmp_path, allow=("all",)) as gateway:
        response = gateway.send(f"{method} /v1/models", "x-api-key: sk-ant-own", VERSION)

    assert response.status == 405
    assert "POST" in response.headers["allow"]
    assert gateway.upstream.requests == []


def test_a_header_cannot_turn_a_request_into_one_with_another_method(tmp_path: Path) -> None:
    with attacked_gateway(tmp_path) as gateway:
        gateway.send(
            "GET /v1/models",
            f"x-api-key: {KEY}",
            VERSION,
            "X-HTTP-Method-Override: DELETE",
            "x-http-method: DELETE",
            "x-method-override: DELETE",
        )

    assert len(gateway.upstream.requests) == 1
    assert b"DELETE" not in gateway.upstream.requests[0]


@pytest.mark.parametrize(
    ("line", "header"),
    [
        (f"GET /v1/models/{KEY}", VERSION),
        (f"GET /v1/models/%66ov-{KEY[4:]}", VERSION),
        (f"GET /v1/models?key={KEY}", VERSION),
        (f"GET /v1/models?after=x%20{KEY}", VERSION),
        ("GET /v1/models", f"cookie: session={KEY}"),
        ("GET /v1/models", f"x-debug: {KEY}"),
        ("GET /v1/models", f"user-agent: tool ({KEY})"),
    ],
)
def test_a_gateway_key_in_the_wrong_place_is_rejected_and_never_forwarded(
    tmp_path: Path, line: str, header: str
) -> None:
    with attacked_gateway(tmp_path) as gateway:
        response = gateway.send(line, "x-api-key: sk-ant-own", header)

    assert response.status == 401
    assert KEY.encode() not in response.body
    assert gateway.upstream.requests == []


def test_no_spelling_of_our_headers_passes_the_gateway_in_either_direction(tmp_path: Path) -> None:
    with attacked_gateway(
        tmp_path, respond_always(http_response(b"{}", x_foveate_request_id="of the upstream"))
    ) as gateway:
        response = gateway.send(
            "GET /v1/models", "x-api-key: sk-ant-own", VERSION, "X_Foveate_Agent: ana", "X-Foveate_Kind: main"
        )

    assert b"foveate" not in gateway.upstream.requests[0].lower()
    assert response.headers.get("x-foveate-request-id") != "of the upstream"


@pytest.mark.parametrize("status", ["099 Odd", "600 Odd", "999 Odd"])
def test_a_status_that_does_not_exist_is_a_bad_gateway(tmp_path: Path, status: str) -> None:
    with attacked_gateway(tmp_path, respond_always(http_response(b"{}", status))) as gateway:
        response = gateway.send("GET /v1/models", "x-api-key: sk-ant-own", VERSION)

    assert response.status == 502


@pytest.mark.parametrize(("late_seconds", "reuse"), [(0.0, True), (0.005, False)])
def test_a_second_response_of_an_upstream_never_reaches_the_next_client(
    tmp_path: Path, late_seconds: float, reuse: bool
) -> None:
    with attacked_gateway(tmp_path, respond_twice(late_seconds=late_seconds), reuse=reuse) as gateway:
        for number in range(50):
            response = gateway.send(f"GET /v1/models/m-{number}", "x-api-key: sk-ant-own", VERSION)
            assert response.body == f"/tenant-a/v1/models/m-{number}".encode()


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"GET /v1/models HTTP/1.1\r\n", b"one Host header"),
        (b"GET /v1/models HTTP/1.1\r\nhost: a\r\nhost: b\r\n", b"one Host header"),
        (b"GET /v1/models HTTP/1.0\r\nhost: a\r\nhost: b\r\n", b"one Host header"),
        (b"GET /v1/models HTTP/1.1\r\nhost: a\r\n" + b"x-long: " + b"a" * 300_000 + b"\r\n", b"262144 bytes"),
        (
            b"GET /v1/models HTTP/1.1\r\nhost: a\r\n"
            + b"x-many: "
            + b"a" * 1_000
            + b"\r\n"
            + b"y: 1\r\n" * 50_000,
            b"262144 bytes",
        ),
    ],
)
def test_a_request_head_that_is_too_long_or_lacks_a_single_host_gets_400(
    tmp_path: Path, head: bytes, message: bytes
) -> None:
    with attacked_gateway(tmp_path) as gateway:
        response = send_raw(gateway.url, head + b"\r\n")

    assert response.status == 400
    assert message in response.body
    assert gateway.upstream.requests == []
