"""Pages of other origins: only listed ones may read, and never with a browser's own credentials."""

from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.gateway.asks import Receive, Scope, Send
from foveate.gateway.cors import Cors, answer_headers, preflight_headers

HERE = "127.0.0.1"
ORIGINS = st.sampled_from(["https://a.example", "https://b.example", "null", "http://localhost:3000"])


@given(origin=ORIGINS, allowed=st.lists(st.one_of(ORIGINS, st.just("*"))), asked=st.binary(max_size=20))
def test_only_a_listed_origin_may_ever_read_and_never_with_credentials(
    origin: str, allowed: list[str], asked: bytes
) -> None:
    answered, before = answer_headers(origin, allowed), preflight_headers(origin, asked, allowed)

    assert (answered is not None) == bool(before) == (origin in allowed or "*" in allowed)
    for said in (answered or [], before):
        named = dict(said)
        assert named.get(b"access-control-allow-origin") in (None, origin.encode(), b"*")
        assert b"access-control-allow-credentials" not in named


async def answered(cors: Cors, *headers: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    return dict((await sent_to(cors, *headers))["headers"])


async def sent_to(cors: Cors, *headers: tuple[bytes, bytes]) -> MutableMapping[str, Any]:
    """The head of the answer."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await cors({"type": "http", "method": "POST", "path": "/", "headers": list(headers)}, receive, send)
    return sent[0]


async def provider(_scope: Scope, _receive: Receive, send: Send) -> None:
    """One that lets any page read its answers."""
    said = [(b"Access-Control-Allow-Origin", b"*"), (b"access-control-allow-credentials", b"true")]
    await send({"type": "http.response.start", "status": 200, "headers": said})
    await send({"type": "http.response.body", "body": b""})


async def test_what_a_provider_allows_does_not_hold_for_the_gateway() -> None:
    closed, opened = Cors(provider, list, host=HERE), Cors(provider, lambda: ["https://a.example"], host=HERE)

    assert await answered(closed, (b"origin", b"https://a.example")) == {b"vary": b"origin"}
    headers = await answered(opened, (b"origin", b"https://a.example"))
    assert headers[b"access-control-allow-origin"] == b"https://a.example"
    assert b"access-control-allow-credentials" not in headers


async def test_a_request_of_no_page_is_left_alone() -> None:
    headers = await answered(Cors(provider, lambda: ["*"], host=HERE))

    assert headers[b"Access-Control-Allow-Origin"] == b"*"
    assert b"vary" not in headers


@pytest.mark.parametrize(
    ("bound", "name", "site", "status"),
    [
        ("127.0.0.1", b"127.0.0.1:8090", b"same-origin", 200),
        ("127.0.0.1", b"evil.example:8090", b"same-origin", 403),  # its name leads to loopback all at once
        ("127.0.0.1", b"localhost:8090", b"cross-site", 403),
        ("127.0.0.1", b"localhost:8090", b"same-site", 403),  # another port of this machine
        ("0.0.0.0", b"gateway.example", b"same-origin", 200),
        ("0.0.0.0", b"gateway.example", b"cross-site", 403),
        ("127.0.0.1", b"gateway.example", None, 200),  # no browser
    ],
)
async def test_a_page_that_is_not_listed_spends_nobodys_key(
    bound: str, name: bytes, site: bytes | None, status: int
) -> None:
    browser = [] if site is None else [(b"sec-fetch-site", site)]

    head = await sent_to(Cors(provider, list, host=bound), (b"origin", b"http://x"), (b"host", name), *browser)

    assert head["status"] == status
