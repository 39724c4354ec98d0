"""Malformed HTTP on the socket of a gateway: nothing is smuggled, and the next client is served."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.clients.raw_http import (
    RawResponse,
    claude_request,
    connect,
    parse_response,
    receive_all,
    send_raw,
)
from tests.support.oracles.system_state import open_sockets, wait_until
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.scripted_upstream import (
    ScriptedUpstream,
    claude_response,
    http_response,
    respond_always,
    running_upstream,
)

SECRET = "sk-nobody-may-read-this-4713"
EXAMPLES = int(os.environ.get("FOVEATE_FUZZ_EXAMPLES", "60"))
BODY = json.dumps(
    {"model": "claude-opus-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
).encode()
HEAD = b"POST /v1/messages HTTP/1.1\r\nhost: gateway\r\nx-api-key: " + SECRET.encode() + b"\r\n"
SMUGGLED = b"POST /v1/messages HTTP/1.1\r\nhost: gateway\r\nx-smuggled: yes\r\ncontent-length: 0\r\n\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with running_upstream(respond_always(http_response(claude_response("Well")))) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(upstream.url, tmp_path_factory.mktemp("gateway")) as server:
        yield server
    # Only deliberately truncated bodies could not be read.
    assert [problem for problem in server.failed_steps if problem.step != "read"] == []


def send_bytes(gateway: RunningGateway, data: bytes, *, timeout_seconds: float = 20) -> bytes:
    """Send bytes and return everything received until the connection closes or times out."""
    pieces: list[bytes] = []
    with connect(gateway.url, timeout_seconds=timeout_seconds) as connection, suppress(OSError):
        connection.sendall(data)
        while piece := connection.recv(65_536):
            pieces.append(piece)
    return b"".join(pieces)


def send_one_request(gateway: RunningGateway, data: bytes) -> RawResponse:
    """Send bytes and return the first response, after which the connection may stay open."""
    received = b""
    with connect(gateway.url, timeout_seconds=20) as connection:
        connection.sendall(data)
        while not parse_response(received).is_complete:
            piece = connection.recv(65_536)
            assert piece, received
            received += piece
    return parse_response(received)


def is_served(gateway: RunningGateway) -> bool:
    response = send_raw(gateway.url, claude_request(SECRET))
    return (response.status, b"Well" in response.body) == (200, True)


CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
AMBIGUOUS_REQUESTS = {
    "a length and chunks": HEAD + LENGTH + CHUNKED + b"\r\n" + b"0\r\n\r\n" + SMUGGLED,
    "chunks and a length": HEAD + CHUNKED + b"content-length: 3\r\n\r\n" + CHUNKS + SMUGGLED,
    "two lengths": HEAD + b"content-length: 0\r\n" + LENGTH + b"\r\n" + SMUGGLED,
    "a list of lengths": HEAD + b"content-length: 0, 5\r\n\r\n" + SMUGGLED,
    "a length with a sign": HEAD + b"content-length: +%d\r\n\r\n" % len(BODY) + BODY + SMUGGLED,
    "a negative length": HEAD + b"content-length: -1\r\n\r\n" + SMUGGLED,
    "a hexadecimal length": HEAD + b"content-length: 0x10\r\n\r\n" + SMUGGLED,
    "a huge length": HEAD + b"content-length: 99999999999999999999999\r\n\r\n" + SMUGGLED,
    "an unknown transfer encoding": HEAD + b"transfer-encoding: xchunked\r\n" + LENGTH + b"\r\n" + SMUGGLED,
    "two transfer encodings": HEAD + CHUNKED + b"transfer-encoding: identity\r\n\r\n" + CHUNKS + SMUGGLED,
    "a space before the colon": HEAD + b"transfer-encoding : chunked\r\n" + LENGTH + b"\r\n" + BODY + SMUGGLED,
    "a folded header": HEAD + b"x: y\r\n transfer-encoding: chunked\r\n" + LENGTH + b"\r\n" + BODY,
    "a bare line feed": HEAD + b"x: y\ntransfer-encoding: chunked\n" + LENGTH + b"\r\n" + BODY,
    "an invalid chunk size": HEAD + CHUNKED + b"\r\nzz\r\n" + BODY + b"\r\n0\r\n\r\n" + SMUGGLED,
    "a negative chunk size": HEAD + CHUNKED + b"\r\n-5\r\n" + BODY + SMUGGLED,
    "a huge chunk size": HEAD + CHUNKED + b"\r\nfffffffffffffffffff\r\n" + BODY + SMUGGLED,
    "a chunk longer than its size": HEAD + CHUNKED + b"\r\n2\r\n" + BODY + b"\r\n0\r\n\r\n" + SMUGGLED,
    "an invalid last chunk": HEAD + CHUNKED + b"\r\n0\r\nx" + SMUGGLED,
    "a carriage return in a header": HEAD + b"x: y\r\rz\r\n" + LENGTH + b"\r\n" + BODY,
    "a nul in a header": HEAD + b"x: y\0z\r\n" + LENGTH + b"\r\n" + BODY,
    "http/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(40),
    "http/3.7": HEAD.replace(b"HTTP/1.1", b"HTTP/3.7") + LENGTH + b"\r\n" + BODY,
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(200),
    "connect": b"CONNECT elsewhere.invalid:443 HTTP/1.1\r\nhost: elsewhere.invalid:443\r\n\r\n",
}


@pytest.mark.parametrize("name", AMBIGUOUS_REQUESTS)
def test_ambiguous_requests_are_rejected_and_reach_no_provider(
    gateway: RunningGateway, upstream: ScriptedUpstream, name: str
) -> None:
    upstream.requests.clear()
    data = send_bytes(gateway, AMBIGUOUS_REQUESTS[name])

    assert (parse_response(data).status, data.count(b"HTTP/1.1 ")) == (400, 1)
    assert upstream.requests == []
    assert is_served(gateway)


UNUSUAL_REQUESTS = {
    "an upgrade": HEAD + b"connection: upgrade\r\nupgrade: websocket\r\n" + LENGTH + b"\r\n" + BODY,
    "an upgrade by Java": HEAD
    + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAE\r\n"
    + LENGTH
    + b"\r\n"
    + BODY,
    "http/0.9": b"GET /v1/models\r\n\r\n",
}


@pytest.mark.parametrize("name", UNUSUAL_REQUESTS)
def test_unusual_requests_reach_the_provider_as_one_plain_request(
    gateway: RunningGateway, upstream: ScriptedUpstream, name: str
) -> None:
    """Regression: a request with an Upgrade header lost its body."""
    upstream.requests.clear()
    response = send_one_request(gateway, UNUSUAL_REQUESTS[name])
    (received,) = upstream.requests
    head, _, body = received.lower().partition(b"\r\n\r\n")

    assert response.status == 200
    assert body == UNUSUAL_REQUESTS[name].lower().partition(b"\r\n\r\n")[2]
    assert (head.count(b"\r\nhost:"), head.count(b"\r\ncontent-length:")) == (1, bool(body))
    assert b"elsewhere" not in head
    assert b"upgrade" not in head
    assert b"settings" not in head
    assert is_served(gateway)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/realtime?model=gpt-realtime", "/anything"])
def test_a_websocket_is_rejected_at_once_and_nothing_is_sent(
    gateway: RunningGateway, upstream: ScriptedUpstream, path: str
) -> None:
    """Regression: it was forwarded as a plain GET, and the client retried for seconds before it fell back."""
    upstream.requests.clear()
    handshake = (
        f"GET {path} HTTP/1.1\r\nhost: here\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )

    response = send_one_request(gateway, handshake.encode())

    assert response.status == 426
    assert b"use the API over plain HTTP" in response.body
    assert upstream.requests == []
    assert is_served(gateway)


def test_requests_on_one_connection_are_answered_in_order(
    gateway: RunningGateway, upstream: ScriptedUpstream
) -> None:
    upstream.requests.clear()
    requests = [HEAD + b"x-number: %d\r\n" % number + LENGTH + b"\r\n" + BODY for number in range(8)]
    with connect(gateway.url) as connection:
        connection.sendall(b"".join(requests))
        data = b""
        while data.count(b"Well") < 8:
            data += connection.recv(65_536)

    assert data.count(b"HTTP/1.1 200") == 8
    numbers = [
        int(request.lower().partition(b"x-number: ")[2].split(b"\r\n")[0]) for request in upstream.requests
    ]
    assert numbers == list(range(8))


def test_a_body_in_any_chunks_is_one_body(gateway: RunningGateway, upstream: ScriptedUpstream) -> None:
    upstream.requests.clear()
    chunks = b"".join(b"1;ext=x\r\n%c\r\n" % byte for byte in BODY) + b"0\r\nx-trailer: y\r\n\r\n"
    response = send_raw(gateway.url, HEAD + CHUNKED + b"connection: close\r\n\r\n" + chunks)

    assert response.status == 200
    assert json.loads(upstream.requests[-1].partition(b"\r\n\r\n")[2])["messages"][0]["role"] == "user"


@pytest.mark.parametrize(("size", "status"), [(1_000, 200), (50_000, 200), (1_000_000, 400)])
@pytest.mark.parametrize("is_slow", [True, False])
def test_the_size_of_a_request_head_is_limited(
    gateway: RunningGateway, size: int, status: int, is_slow: bool
) -> None:
    """Regression: an endless request head was buffered without a limit."""
    data = HEAD + b"x-long: " + b"y" * size + b"\r\nconnection: close\r\n" + LENGTH + b"\r\n" + BODY
    with connect(gateway.url) as connection, suppress(BrokenPipeError, ConnectionResetError):
        step = 10_000 if is_slow else len(data)
        for offset in range(0, len(data), step):
            connection.sendall(data[offset : offset + step])
        assert parse_response(receive_all(connection)).status in (status, 0 if status == 400 else status)
    assert is_served(gateway)


def test_many_headers_are_accepted_or_rejected(gateway: RunningGateway) -> None:
    response = parse_response(
        send_bytes(gateway, HEAD + b"a: b\r\n" * 5_000 + LENGTH + b"\r\n" + BODY, timeout_seconds=2)
    )

    assert response.status in (0, 200, 400, 431)
    assert is_served(gateway)


@given(
    data=st.binary(max_size=60)
    | st.lists(
        st.sampled_from([HEAD, LENGTH, CHUNKED, CHUNKS, BODY, b"\r\n", b"0", b":", b"\n", b"\0"]), max_size=8
    ).map(b"".join)
)
@example(b"")
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_do_no_harm(gateway: RunningGateway, data: bytes) -> None:
    response = parse_response(send_bytes(gateway, data, timeout_seconds=0.1))

    assert response.status < 500
    assert is_served(gateway)


def test_silent_clients_and_partial_requests_harm_nobody_and_leak_nothing(
    gateway: RunningGateway,
) -> None:
    sockets = open_sockets()
    partial_requests = (b"", b"POST", HEAD, HEAD + LENGTH + b"\r\n", HEAD + LENGTH + b"\r\n" + BODY[:20])
    connections = [connect(gateway.url) for _ in range(20) for _ in partial_requests]
    for number, connection in enumerate(connections):
        connection.sendall(partial_requests[number % len(partial_requests)])
    started = time.monotonic()

    assert is_served(gateway)
    assert time.monotonic() - started < 20
    for connection in connections:
        connection.close()
    assert wait_until(open_sockets, lambda now: now <= sockets + 1) <= sockets + 1
