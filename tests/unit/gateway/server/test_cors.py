"""Only pages of listed origins may read responses, and never with a browser's own credentials."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.gateway.request import IncomingRequest, Receive, Scope, Send
from foveate.gateway.response import ClientResponse
from foveate.gateway.server.cors import CorsMiddleware, preflight_headers, response_headers

HOST = "127.0.0.1"
PREFLIGHT = (b"access-control-request-method", b"POST")
ORIGINS = st.sampled_from(["https://a.example", "https://b.example", "null", "http://localhost:3000"])


@given(origin=ORIGINS, allowed=st.lists(st.one_of(ORIGINS, st.just("*"))), requests=st.binary(max_size=20))
def test_only_a_listed_origin_may_ever_read_and_never_with_credentials(
    origin: str, allowed: list[str], requests: bytes
) -> None:
    get_headers, before = response_headers(origin, allowed), preflight_headers(origin, requests, allowed)

    assert (get_headers is not None) == bool(before) == (origin in allowed or "*" in allowed)
    for text in (get_headers or [], before):
        names = dict(text)
        assert names.get(b"access-control-allow-origin") in (None, origin.encode(), b"*")
        assert b"access-control-allow-credentials" not in names


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
    text = [(b"Access-Control-Allow-Origin", b"*"), (b"access-control-allow-credentials", b"true")]
    await send({"type": "http.response.start", "status": 200, "headers": text})
    await send({"type": "http.response.body", "body": b""})


async def test_the_providers_cors_headers_are_dropped() -> None:
    closed, opened = (
        CorsMiddleware(provider, list, host=HOST),
        CorsMiddleware(provider, lambda: ["https://a.example"], host=HOST),
    )

    own = (b"origin", b"http://localhost:1"), (b"host", b"localhost:1")
    assert await get_headers(closed, *own) == {b"vary": b"origin"}
    headers = await get_headers(opened, (b"origin", b"https://a.example"))
    assert headers[b"access-control-allow-origin"] == b"https://a.example"
    assert b"access-control-allow-credentials" not in headers


async def test_requests_without_an_origin_are_unchanged() -> None:
    headers = await get_headers(CorsMiddleware(provider, lambda: ["*"], host=HOST))

    assert headers[b"Access-Control-Allow-Origin"] == b"*"
    assert b"vary" not in headers


@pytest.mark.parametrize(
    ("bound", "name", "origin", "status"),
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
    bound: str, name: bytes | None, origin: bytes | None, status: int, site: bytes | None
) -> None:
    """Regression: without metadata of the browser, as over plain HTTP, the request was accepted."""
    cors = CorsMiddleware(provider, list, host=bound, host_names=lambda: ["host.docker.internal"])
    text = {b"host": name, b"origin": origin, b"sec-fetch-site": site}

    head = await get_head(cors, *((names, value) for names, value in text.items() if value is not None))

    assert head["status"] == status


@dataclass
class RecordingObserver:
    """Records requests and their responses."""

    here: int = 0
    gone: list[tuple[str, int, str]] = field(default_factory=list)

    def on_start(self, _client: ClientResponse) -> None:
        self.here += 1

    def on_end(self, request: IncomingRequest, response: ClientResponse) -> None:
        self.gone.append((request.id, response.status, response.error_code))


@pytest.mark.parametrize(
    ("method", "status", "refused", "headers"),
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
    method: str, status: int, refused: str, headers: list[tuple[bytes, bytes]]
) -> None:
    """Regression: they had no id and no text, and were missing from log and metrics."""
    seen = RecordingObserver()

    head, body = await get_messages(
        CorsMiddleware(provider, lambda: ["http://a"], host=HOST, observer=seen), *headers, method=method
    )

    names = dict(head["headers"])
    assert seen.gone == [(names[b"x-foveate-request-id"].decode(), status, refused)]
    assert (seen.here, head["status"], names[b"vary"]) == (1, status, b"origin")
    assert bool(refused) == (b"server." in body["body"])
