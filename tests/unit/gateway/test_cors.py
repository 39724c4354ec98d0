"""Pages of other origins: only listed ones may read, and never with a browser's own credentials."""

from collections.abc import MutableMapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foveate.gateway.asks import Receive, Scope, Send
from foveate.gateway.cors import Cors, answer_headers, preflight_headers

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


async def answered(cors: Cors, *headers: tuple[bytes, bytes], method: str = "GET") -> dict[bytes, bytes]:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await cors({"type": "http", "method": method, "path": "/", "headers": list(headers)}, receive, send)
    return dict(sent[0]["headers"])


async def provider(_scope: Scope, _receive: Receive, send: Send) -> None:
    """One that lets any page read its answers."""
    said = [(b"Access-Control-Allow-Origin", b"*"), (b"access-control-allow-credentials", b"true")]
    await send({"type": "http.response.start", "status": 200, "headers": said})
    await send({"type": "http.response.body", "body": b""})


async def test_what_a_provider_allows_does_not_hold_for_the_gateway() -> None:
    closed, opened = Cors(provider, list), Cors(provider, lambda: ["https://a.example"])

    assert await answered(closed, (b"origin", b"https://a.example")) == {b"vary": b"origin"}
    headers = await answered(opened, (b"origin", b"https://a.example"))
    assert headers[b"access-control-allow-origin"] == b"https://a.example"
    assert b"access-control-allow-credentials" not in headers


async def test_a_request_of_no_page_is_left_alone() -> None:
    headers = await answered(Cors(provider, lambda: ["*"]))

    assert headers[b"Access-Control-Allow-Origin"] == b"*"
    assert b"vary" not in headers
