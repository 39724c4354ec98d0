"""Access to the gateway's own pages."""

from base64 import b64encode
from collections.abc import MutableMapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.gateway.auth.callers import HashedKeys, generate_key, hash_key
from foveate.gateway.auth.page_access import guard_pages, identify_viewer, is_loopback
from foveate.gateway.request import Receive, Scope, Send
from foveate.web.page import ADMIN, Viewer, get_viewer

KEY = generate_key()
ADMIN_KEY = generate_key()
KEYS = HashedKeys({hash_key(KEY): "ana"}, [hash_key(ADMIN_KEY)])
BASIC = b"Basic " + b64encode(b"anybody:" + KEY.encode())


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_addresses_and_names_are_recognized(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "127.0.0.1.evil.example", ""]
)
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "name", [b"127.0.0.1:8090", b"localhost:8090", b"[::1]:8090", b"localhost", b"127.0.0.1"]
)
def test_requests_on_loopback_need_no_key(name: bytes) -> None:
    assert identify_viewer({b"host": name}, host="127.0.0.1", keys=KEYS) == ADMIN


@pytest.mark.parametrize(
    "name", [b"evil.example:8090", b"evil.example", b"", b"10.0.0.1:8090", b"[::2]:1", b"127.0.0.1@evil"]
)
def test_a_web_page_whose_name_resolves_to_loopback_is_rejected(name: bytes) -> None:
    assert identify_viewer({b"host": name}, host="127.0.0.1", keys=KEYS) is None


@pytest.mark.parametrize(
    "key_headers",
    [
        {b"authorization": b"Bearer " + KEY.encode()},
        {b"x-api-key": KEY.encode()},
        {b"authorization": BASIC},
    ],
)
@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_an_agents_key_sees_its_agent_on_any_host(key_headers: dict[bytes, bytes], host: str) -> None:
    assert identify_viewer({b"host": b"gateway.example", **key_headers}, host=host, keys=KEYS) == Viewer("ana")


def test_an_admin_key_sees_everything_on_any_host() -> None:
    for host in ("0.0.0.0", "127.0.0.1"):
        headers = {b"host": b"gateway.example", b"authorization": b"Bearer " + ADMIN_KEY.encode()}
        assert identify_viewer(headers, host=host, keys=KEYS) == ADMIN


@pytest.mark.parametrize("name", [b"127.0.0.1:8090", b"localhost"])
def test_an_agents_key_sees_only_its_agent_even_on_loopback(name: bytes) -> None:
    headers = {b"host": name, b"authorization": b"Bearer " + KEY.encode()}

    assert identify_viewer(headers, host="127.0.0.1", keys=KEYS) == Viewer("ana")


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (b"x-forwarded-for", b"127.0.0.1"),
        (b"x-forwarded-host", b"localhost"),
        (b"x-forwarded-proto", b"https"),
        (b"forwarded", b"for=127.0.0.1"),
        (b"x-real-ip", b"127.0.0.1"),
        (b"via", b"1.1 proxy"),
    ],
)
def test_requests_from_a_proxy_are_not_from_loopback(header: bytes, value: bytes) -> None:
    assert identify_viewer({b"host": b"127.0.0.1:8090", header: value}, host="127.0.0.1", keys=KEYS) is None


@pytest.mark.parametrize("value", [b"127.0.0.1", b"::1", b"localhost"])
def test_no_forwarding_header_makes_a_request_loopback(value: bytes) -> None:
    headers = {b"host": b"gateway.example", b"x-forwarded-for": value, b"x-forwarded-host": b"localhost"}

    for host in ("0.0.0.0", "127.0.0.1"):
        assert identify_viewer(headers, host=host, keys=KEYS) is None


@given(
    authorization=st.one_of(
        st.none(),
        st.binary(max_size=60),
        st.text("abcdefov-", max_size=50).map(lambda text: b"Bearer " + text.encode()),
        st.binary(max_size=40).map(lambda text: b"Basic " + b64encode(text)),
        st.just(b"Bearer " + generate_key().encode()),
    ),
    name=st.sampled_from([b"127.0.0.1:8090", b"localhost", b"gateway.example"]),
)
def test_beyond_loopback_a_key_is_always_required(authorization: bytes | None, name: bytes) -> None:
    headers = {b"host": name} | ({} if authorization is None else {b"authorization": authorization})

    assert identify_viewer(headers, host="0.0.0.0", keys=KEYS) is None


@pytest.mark.parametrize(
    ("site", "mode", "dest", "is_shown"),
    [
        (None, None, None, True),
        (b"none", b"navigate", b"document", True),
        (b"same-origin", b"cors", b"empty", True),
        (b"cross-site", b"navigate", b"document", True),
        (b"cross-site", b"navigate", b"iframe", False),
        (b"cross-site", b"no-cors", b"image", False),
        (b"cross-site", b"cors", b"empty", False),
        (b"same-site", b"no-cors", b"script", False),
    ],
)
async def test_other_sites_cannot_read_pages(
    site: bytes | None, mode: bytes | None, dest: bytes | None, is_shown: bool
) -> None:
    statuses: list[int] = []

    async def page(_scope: Scope, _receive: Receive, _send: Send) -> None:
        statuses.append(200)

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    values = {b"host": b"localhost", b"sec-fetch-site": site, b"sec-fetch-mode": mode, b"sec-fetch-dest": dest}
    headers = [(name, value) for name, value in values.items() if value is not None]
    pages = guard_pages({"/-/sessions": page}, {}, host="127.0.0.1", keys=lambda: KEYS)
    await pages["/-/sessions"]({"headers": headers}, receive, send)

    assert statuses == [200 if is_shown else 403]


async def test_a_forbidden_page_is_not_rendered() -> None:
    rendered: list[str] = []
    messages: list[MutableMapping[str, Any]] = []

    async def page(scope: Scope, _receive: Receive, _send: Send) -> None:
        rendered.append(scope["path"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    pages = guard_pages(
        {"/metrics": page, "/health": page, "/ready": page}, {}, host="0.0.0.0", keys=lambda: KEYS
    )
    for path in pages:
        await pages[path]({"path": path, "headers": [(b"host", b"localhost")]}, receive, send)

    assert rendered == ["/health", "/ready"]
    assert messages[0]["status"] == 401
    assert KEY.encode() not in messages[1]["body"]


async def test_an_agents_key_opens_only_scoped_pages_which_get_the_viewer() -> None:
    viewers: list[Viewer] = []
    statuses: list[int] = []

    async def page(scope: Scope, _receive: Receive, _send: Send) -> None:
        viewers.append(get_viewer(scope))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    pages = guard_pages({"/metrics": page, "/-/new": page}, {"/": page}, host="0.0.0.0", keys=lambda: KEYS)
    for path in pages:
        headers = [(b"authorization", b"Bearer " + KEY.encode())]
        await pages[path]({"path": path, "headers": headers}, receive, send)

    assert viewers == [Viewer("ana")]
    assert statuses == [403, 403]


async def test_a_page_fails_without_a_checked_viewer() -> None:
    with pytest.raises(KeyError):
        get_viewer({"type": "http", "headers": []})
