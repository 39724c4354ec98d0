"""Only pages of listed origins may read responses, and never with a browser's own credentials."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.gateway.request import ClientRequest, Receive, Scope, Send
from foveate.gateway.response import ClientResponse
from foveate.gateway.server.cors import CorsMiddleware, preflight_headers, response_headers

HOST = "127.0.0.1"
PREFLIGHT = (b"access-control-request-method", b"POST")
ORIGINS = st.sampled_from(["https://a.example", "https://b.example", "null", "http://localhost:3000"])


@given(
    origin=ORIGINS, allowed=st.lists(st.one_of(ORIGINS, st.just("*"))), requested_headers=st.binary(max_size=20)
)
def test_only_a_listed_origin_may_ever_read_and_never_with_credentials(
    origin: str, allowed: list[str], requested_headers: bytes
) -> None:
    actual_headers, preflight = (
        response_headers(origin, allowed),
        preflight_headers(origin, requested_headers, allowed),
    )

    assert (actual_headers is not None) == bool(preflight) == (origin in allowed or "*" in allowed)
    for headers in (actual_headers or [], preflight):
        by_name = dict(headers)
        assert by_name.get(b"access-control-allow-origin") in (None, origin.encode(), b"*")
        assert b"access-control-allow-credentials" not in by_name


async def get_headers(cors: CorsMiddleware, *headers: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    return dict((await get_head(cors, *headers))["headers"])


async def get_head(cors: CorsMiddleware, *headers: tuple[bytes, bytes]) -> MutableMapping[str, Any]:
    """Return the head of the response."""
    return (await get_messages(cors, *headers))[0]


async def get_messages(
    cors: CorsMiddleware, *headers: tuple[bytes, bytes], method: str = "POST"
) -> list[MutableMapping[str, Any]]:
    """Return the complete response."""
    messages: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    scope = {"type": "http", "method": method, "path": "/", "query_string": b"", "headers": list(headers)}
    await cors(scope, receive, send)
    return messages


async def provider(_scope: Scope, _receive: Receive, send: Send) -> None:
    """A provider that lets any page read its responses."""
    headers = [(b"Access-Control-Allow-Origin", b"*"), (b"access-control-allow-credentials", b"true")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def test_the_providers_cors_headers_are_dropped() -> None:
    without_origins, with_origin = (
        CorsMiddleware(provider, list, host=HOST),
        CorsMiddleware(provider, lambda: ["https://a.example"], host=HOST),
    )

    own_origin = (b"origin", b"http://localhost:1"), (b"host", b"localhost:1")
    assert await get_headers(without_origins, *own_origin) == {b"vary": b"origin"}
    headers = await get_headers(with_origin, (b"origin", b"https://a.example"))
    assert headers[b"access-control-allow-origin"] == b"https://a.example"
    assert b"access-control-allow-credentials" not in headers


async def test_requests_without_an_origin_are_unchanged() -> None:
    headers = await get_headers(CorsMiddleware(provider, lambda: ["*"], host=HOST))

    assert headers[b"Access-Control-Allow-Origin"] == b"*"
    assert b"vary" not in headers


@pytest.mark.parametrize(
    ("bind_host", "host", "origin", "status"),
    [
        ("127.0.0.1", b"127.0.0.1:8090", b"http://127.0.0.1:8090", 200),
        ("127.0.0.1", b"LocalHost:8090", None, 200),
        ("127.0.0.1", b"[::1]:8090", None, 200),
        ("127.0.0.1", None, None, 200),  # HTTP/1.0
        ("127.0.0.1", b"evil.example:8090", b"http://evil.example:8090", 403),  # resolves to loopback
        ("127.0.0.1", b"evil.example:8090", None, 403),  # and requests its own page
        ("127.0.0.1", b"host.docker.internal:8090", None, 200),  # listed
        ("127.0.0.1", b"localhost:8090", b"https://evil.example", 403),
        ("127.0.0.1", b"localhost:8090", b"null", 403),
        ("127.0.0.1", b"localhost:8090", b"http://localhost:3000", 403),  # another port of this machine
        ("0.0.0.0", b"gateway.example", b"https://gateway.example", 200),
        ("0.0.0.0", b"10.0.0.5:8090", b"https://evil.example", 403),
        ("0.0.0.0", b"10.0.0.5:8090", None, 200),
    ],
)
@pytest.mark.parametrize("site", [None, b"same-origin"])
async def test_a_page_that_is_not_listed_cannot_use_a_key(
    bind_host: str, host: bytes | None, origin: bytes | None, status: int, site: bytes | None
) -> None:
    """Regression: without metadata of the browser, as over plain HTTP, the request was accepted."""
    cors = CorsMiddleware(provider, list, host=bind_host, host_names=lambda: ["host.docker.internal"])
    headers = {b"host": host, b"origin": origin, b"sec-fetch-site": site}

    head = await get_head(cors, *((header, value) for header, value in headers.items() if value is not None))

    assert head["status"] == status


@dataclass
class RecordingObserver:
    """Records requests and their responses."""

    started: int = 0
    ended: list[tuple[str, int, str]] = field(default_factory=list)

    def on_start(self, response: ClientResponse) -> None:
        self.started += 1

    def on_end(self, request: ClientRequest, response: ClientResponse) -> None:
        self.ended.append((request.id, response.status, response.error_code))


@pytest.mark.parametrize(
    ("method", "status", "error_code", "headers"),
    [
        ("POST", 403, "foreign_origin", [(b"origin", b"http://x")]),
        (
            "OPTIONS",
            403,
            "foreign_origin",
            [(b"origin", b"http://x"), PREFLIGHT],
        ),
        ("OPTIONS", 204, "", [(b"origin", b"http://a"), PREFLIGHT]),
        ("GET", 403, "foreign_host", [(b"host", b"evil.example")]),
    ],
)
async def test_responses_of_the_middleware_have_an_id_and_are_logged(
    method: str, status: int, error_code: str, headers: list[tuple[bytes, bytes]]
) -> None:
    """Regression: they had no id and no text, and were missing from log and metrics."""
    observer = RecordingObserver()

    head, body = await get_messages(
        CorsMiddleware(provider, lambda: ["http://a"], host=HOST, observer=observer), *headers, method=method
    )

    headers_by_name = dict(head["headers"])
    assert observer.ended == [(headers_by_name[b"x-foveate-request-id"].decode(), status, error_code)]
    assert (observer.started, head["status"], headers_by_name[b"vary"]) == (1, status, b"origin")
    assert bool(error_code) == (b"server." in body["body"])
