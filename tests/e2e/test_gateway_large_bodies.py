"""Large bodies: unauthorised bodies are not read, and all bodies together stay within a memory limit."""

import gc
import gzip
import json
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from foveate.gateway.request_body import BodyLimits, BufferedBody
from tests.support.clients.raw_http import (
    ANTHROPIC,
    RawResponse,
    build_post,
    connect,
    parse_response,
    receive_all,
    send_raw,
)
from tests.support.oracles.system_state import resident_bytes, wait_until
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.scripted_upstream import (
    UpstreamConnection,
    claude_response,
    http_response,
    respond_once,
    running_upstream,
)

KILOBYTE, MEGABYTE = 1024, 1024 * 1024
BODY_BYTES = 60 * MEGABYTE
CONNECTIONS = 8
KEY = "sk-of-a-provider"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[RunningGateway]:
    with running_upstream(respond_once(http_response(claude_response("Well")))) as upstream:
        with running_gateway(upstream.url, tmp_path) as gateway:
            yield gateway
        assert gateway.failed_steps == []


def large_request(key: str, size: int = BODY_BYTES) -> bytes:
    """Return the head of a request whose body follows."""
    return build_post("/v1/messages", b"", **ANTHROPIC, x_api_key=key, content_length=str(size))


@contextmanager
def connections(url: str, number: int) -> Iterator[list[socket.socket]]:
    sockets = [connect(url) for _ in range(number)]
    try:
        yield sockets
    finally:
        for connection in sockets:
            connection.close()


def test_connections_with_an_invalid_key_do_not_have_their_bodies_read(gateway: RunningGateway) -> None:
    """Regression: 20 of them took 1.1 GB, since the key was checked only after the body arrived."""
    piece = bytes(MEGABYTE)
    with connections(gateway.url, CONNECTIONS) as clients:
        before = resident_bytes()
        for client in clients:
            client.sendall(large_request("fov-is-none-of-them"))
            for _ in range(BODY_BYTES // MEGABYTE - 1):
                client.sendall(piece)
        growth_bytes = resident_bytes() - before
        responses = [parse_response(receive_all(client)) for client in clients]

    assert [response.status for response in responses] == [401] * CONNECTIONS
    assert json.loads(responses[0].body)["error"]["type"] == "authentication_error"
    assert growth_bytes < CONNECTIONS * BODY_BYTES / 10


@pytest.mark.parametrize("size", [BODY_BYTES, 100 * MEGABYTE])
def test_a_request_rejected_by_its_headers_is_answered_before_its_body_arrives(
    gateway: RunningGateway, size: int
) -> None:
    key = "fov-is-none-of-them" if size == BODY_BYTES else KEY
    with connect(gateway.url) as client:
        client.sendall(large_request(key, size))
        response = parse_response(receive_all(client))

    assert response.status == (401 if size == BODY_BYTES else 413)


@contextmanager
def crowded_gateway(folder: Path, *, wait_seconds: float) -> Iterator[tuple[RunningGateway, Event]]:
    """A gateway with memory for three bodies, whose provider responds once it is released."""
    release = Event()

    def behave(connection: UpstreamConnection) -> None:
        connection.read_request()
        release.wait(30)
        connection.send(http_response(claude_response("Well"), connection="close"))

    limits = BodyLimits(max_bytes=4 * MEGABYTE, memory_bytes=1, memory_seconds=wait_seconds)
    with (
        running_upstream(behave) as upstream,
        running_gateway(upstream.url, folder, body=limits) as gateway,
    ):
        yield gateway, release


def post_message(gateway: RunningGateway, size: int, **headers: str) -> RawResponse:
    fields = {
        "model": "claude-opus-4-5",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hello"}],
        "metadata": {"user_id": "x" * size},
    }
    body = json.dumps(fields).encode()
    if headers:
        body = gzip.compress(body)
    request = build_post("/v1/messages", body, **ANTHROPIC, x_api_key=KEY, **headers)
    return send_raw(gateway.url, request, timeout_seconds=60)


def test_bodies_together_stay_within_the_memory_limit(tmp_path: Path) -> None:
    with crowded_gateway(tmp_path, wait_seconds=0.3) as (gateway, release), ThreadPoolExecutor(12) as clients:
        large_calls = [clients.submit(post_message, gateway, 3 * MEGABYTE) for _ in range(8)]
        rejected = wait_until(
            lambda: [call.result() for call in large_calls if call.done()], lambda done: len(done) >= 5, 30
        )
        small_call = clients.submit(post_message, gateway, KILOBYTE)
        compressed = clients.submit(post_message, gateway, 3 * MEGABYTE, content_encoding="gzip").result()
        assert not small_call.done()  # it waits for the provider, and is not rejected
        release.set()

        assert [response.status for response in rejected] == [503] * len(rejected)
        assert all(int(response.headers["retry-after"]) > 0 for response in rejected)
        assert "x-should-retry" not in rejected[0].headers
        assert json.loads(rejected[0].body)["error"]["type"] == "api_error"
        assert compressed.status == 503
        assert small_call.result().status == 200
        assert sorted(call.result().status for call in large_calls) == [200] * (8 - len(rejected)) + [
            503
        ] * len(rejected)
        assert post_message(gateway, 3 * MEGABYTE).status == 200


def test_a_compressed_body_is_freed_once_it_is_decompressed(tmp_path: Path) -> None:
    """Regression: it was held until the response, but no longer counted."""
    held_bytes: list[int] = []

    def behave(connection: UpstreamConnection) -> None:
        connection.read_request()
        held_bytes.extend(len(body.data) for body in gc.get_objects() if isinstance(body, BufferedBody))
        connection.send(http_response(claude_response("Well"), connection="close"))

    body = build_request(metadata={"user_id": random.Random(1).randbytes(MEGABYTE).hex()})
    with running_upstream(behave) as upstream, running_gateway(upstream.url, tmp_path) as gateway:
        request = build_post(
            "/v1/messages", gzip.compress(body), **ANTHROPIC, x_api_key=KEY, content_encoding="gzip"
        )
        assert send_raw(gateway.url, request, timeout_seconds=60).status == 200

    assert held_bytes == [0]


def test_a_request_that_waits_for_memory_is_served_once_others_end(tmp_path: Path) -> None:
    with crowded_gateway(tmp_path, wait_seconds=60) as (gateway, release), ThreadPoolExecutor(8) as clients:
        release.set()
        calls = [clients.submit(post_message, gateway, 3 * MEGABYTE) for _ in range(8)]

        assert [call.result().body for call in calls if call.result().status != 200] == []


def post_body(gateway: RunningGateway, body: bytes, path: str = "/v1/messages") -> RawResponse:
    return send_raw(gateway.url, build_post(path, body, **ANTHROPIC, x_api_key=KEY), timeout_seconds=60)


def build_request(**members: object) -> bytes:
    request_body = {
        "model": "claude-opus-4-5",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    return json.dumps(request_body | members).encode()


def nested_json(levels: int) -> bytes:
    return b'{"metadata":' + b"[" * levels + b"]" * levels + b"," + build_request()[1:]


def test_a_million_messages_are_rejected_and_their_memory_is_freed(gateway: RunningGateway) -> None:
    """Regression: such a request got no response in 120 seconds, and still used 5.8 GB 15 seconds later."""
    body = build_request(messages=[{"role": "user", "content": "a"}] * 1_000_000)
    before = resident_bytes()

    response = post_body(gateway, body)

    assert response.status == 400
    assert "has 1,000,000 messages; the limit is 20,000 (server.max_messages)" in response.body.decode()
    wait_until(resident_bytes, lambda now: now - before < 100 * MEGABYTE, 30)


TOOL = {"name": "look", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/messages", build_request(tools=[TOOL] * 2_001), "2,001 tools; the limit is 2,000"),
        ("/v1/messages", nested_json(5_000), "levels of nesting; the limit is 100"),
        ("/v1/messages", nested_json(100), "101 levels of nesting; the limit is 100"),
        ("/v1/messages", nested_json(2_000_000), "levels of nesting; the limit is 100"),
        (
            "/v1/messages",
            build_request(metadata={"ids": [1] * 1_000_000}),
            " JSON values; the limit is 320,000",
        ),
        (
            "/v1/chat/completions",
            build_request(model="gpt-5", messages=[{"role": "user", "content": "a"}] * 20_001),
            "20,001 messages; the limit is 20,000",
        ),
        (
            "/v1/responses",
            b'{"model":"gpt-5","input":[' + b",".join([b'{"role":"user","content":"a"}'] * 20_001) + b"]}",
            "20,001 input items; the limit is 20,000",
        ),
        (
            "/v1/embeddings",
            json.dumps({"model": "text-embedding-3-small", "input": ["a"] * 20_001}).encode(),
            "20,001 input items; the limit is 20,000",
        ),
    ],
    ids=["tools", "levels", "a level", "two million levels", "values", "chat", "responses", "embeddings"],
)
def test_a_request_above_a_limit_is_rejected_with_the_number_and_the_limit(
    gateway: RunningGateway, path: str, body: bytes, reason: str
) -> None:
    response = post_body(gateway, body, path)

    assert response.status == 400
    assert reason in response.body.decode()


def test_a_request_exactly_at_its_limits_is_sent(gateway: RunningGateway) -> None:
    tools = [TOOL | {"name": f"look_{number}"} for number in range(2_000)]

    assert post_body(gateway, build_request(tools=tools)).status == 200
    assert post_body(gateway, nested_json(99)).status == 200
