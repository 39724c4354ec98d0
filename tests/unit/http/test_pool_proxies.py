"""Requests through proxies: a real one (proxy.py), and scripted ones that fail."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trustme

from foveate.errors import UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from foveate.http import JsonClient
from foveate.http.pool import ConnectionPool, Timeouts, parse_url, read_body
from foveate.http.proxies import ProxyRules
from tests.support.servers.http_proxy import HOST, HttpProxy, running_http_proxy
from tests.support.servers.scripted_http import (
    HELLO,
    ScriptedServer,
    fetch,
    reply_and_close,
    reply_with,
    serve_script,
    wait_until,
)

AUTHORITY = trustme.CA()
PASSWORD = "p@ss:wörd"
USERINFO = "ana:p%40ss%3Aw%C3%B6rd"
UPSTREAM_URL = f"https://{HOST}/v1/x"


def trusting_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


def make_pool(proxy_url: str, *, timeouts: Timeouts | None = None, no_proxy: str = "") -> ConnectionPool:
    rules = ProxyRules(proxy_url, proxy_url, no_proxy)
    return ConnectionPool(tls_context=trusting_context(), proxies=rules, timeouts=timeouts)


@asynccontextmanager
async def upstream_server(scheme: str, name: str = HOST) -> AsyncIterator[tuple[ScriptedServer, str]]:
    """A server, and its URL with a host name that only the proxy can resolve."""
    context = None
    if scheme == "https":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        AUTHORITY.issue_cert(name).configure_cert(context)
    async with serve_script(reply_with(HELLO), tls_context=context) as server:
        yield server, f"{scheme}://{HOST}:{server.target.port}/v1/x?y=1"
        await wait_until(lambda: all(server.is_closed))
        await asyncio.sleep(0.1)  # the server shuts TLS down


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    with running_http_proxy(tmp_path_factory.mktemp("proxy")) as running:
        yield running


@pytest.fixture(scope="module")
def locked_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    with running_http_proxy(tmp_path_factory.mktemp("proxy"), credentials=f"ana:{PASSWORD}") as running:
        yield running


@pytest.fixture(scope="module")
def secure_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    with running_http_proxy(tmp_path_factory.mktemp("proxy"), authority=AUTHORITY) as running:
        yield running


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_requests_through_a_proxy_share_a_connection(proxy: HttpProxy, scheme: str) -> None:
    async with upstream_server(scheme) as (upstream, url), make_pool(proxy.url) as pool:
        for body in (b"1", b"22"):
            assert await fetch(pool, parse_url(url), body) == b"hello"

    [requests] = upstream.requests_by_connection
    assert [request.split(b"\r\n")[0] for request in requests] == [b"POST /v1/x?y=1 HTTP/1.1"] * 2
    assert [request.rpartition(b"\r\n\r\n")[2] for request in requests] == [b"1", b"22"]
    assert all(f"host: {HOST}:{upstream.target.port}".encode() in request for request in requests)


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_can_be_reached_over_tls(secure_proxy: HttpProxy, scheme: str) -> None:
    async with upstream_server(scheme) as (_, url), make_pool(secure_proxy.url) as pool:
        for _ in range(2):
            assert await fetch(pool, parse_url(url)) == b"hello"


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_credentials_are_sent_to_the_proxy_only(locked_proxy: HttpProxy, scheme: str) -> None:
    async with (
        upstream_server(scheme) as (upstream, url),
        make_pool(locked_proxy.with_credentials(USERINFO)) as pool,
    ):
        for _ in range(2):
            assert await fetch(pool, parse_url(url)) == b"hello"

    # Of a plain connection, proxy.py forwards later requests as they are.
    [first, second] = upstream.requests_by_connection[0]
    encoded = b64encode(f"ana:{PASSWORD}".encode())
    assert encoded not in (first if scheme == "http" else first + second)


@pytest.mark.process
@pytest.mark.parametrize(
    ("userinfo", "message"),
    [
        ("", r"requires credentials \(407\).*http://user:password@"),
        ("ana:secret", r"rejects the credentials \(407\)"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_wants_other_credentials_is_named_without_them(
    locked_proxy: HttpProxy, scheme: str, userinfo: str, message: str
) -> None:
    proxy_url = locked_proxy.with_credentials(userinfo) if userinfo else locked_proxy.url
    async with upstream_server(scheme) as (upstream, url), make_pool(proxy_url) as pool:
        with pytest.raises(UpstreamUnreachable, match=message) as failure:
            await fetch(pool, parse_url(url))

    assert locked_proxy.url in str(failure.value)
    assert "secret" not in str(failure.value)
    assert not isinstance(failure.value, UpstreamBroken)
    assert upstream.requests_by_connection == []


@pytest.mark.process
async def test_the_certificate_of_the_upstream_is_checked_behind_a_proxy(proxy: HttpProxy) -> None:
    async with upstream_server("https", "elsewhere.test") as (_, url), make_pool(proxy.url) as pool:
        with pytest.raises(
            UpstreamUnreachable, match=r"certificate is not trusted .*through the proxy http://127\.0\.0\.1"
        ):
            await fetch(pool, parse_url(url))


@pytest.mark.process
async def test_the_json_client_uses_the_proxy(proxy: HttpProxy) -> None:
    reply = b'HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{"n":2}'
    rules = ProxyRules(proxy.url, proxy.url)
    async with serve_script(reply_with(reply)) as server, JsonClient(proxies=rules) as client:
        url = f"http://{HOST}:{server.target.port}/count"
        for each in (client, client.with_reuse(False)):
            assert bytes((await each.post_json(url, b"{}"))["n"]) == b"2"


@pytest.mark.process
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_proxies_work_with_uvloop(proxy: HttpProxy, secure_proxy: HttpProxy, scheme: str) -> None:
    uvloop = pytest.importorskip("uvloop")
    for each in (proxy, secure_proxy):
        uvloop.run(test_requests_through_a_proxy_share_a_connection(each, scheme))


async def test_hosts_without_a_proxy_are_reached_directly() -> None:
    async with serve_script(reply_with(HELLO)) as upstream, make_pool("http://127.0.0.1:1") as pool:
        assert await fetch(pool, upstream.target) == b"hello"
    # The network guard of the tests raises if the name is resolved here, and not by the proxy.
    async with make_pool("http://127.0.0.1:1", no_proxy=".localdomain") as pool:
        with pytest.raises(UpstreamUnreachable, match=r"the proxy http://127\.0\.0\.1:1 is unreachable"):
            await fetch(pool, parse_url(UPSTREAM_URL))


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_unreachable_proxy_is_named_without_its_password(scheme: str) -> None:
    async with make_pool("http://ana:secret@127.0.0.1:1") as pool:
        with pytest.raises(UpstreamUnreachable) as failure:
            await fetch(pool, parse_url(f"{scheme}://{HOST}/"))

    reason = "the proxy http://127.0.0.1:1 is unreachable: connection failed (Connection refused)"
    assert str(failure.value) == f"{scheme}://{HOST}/: {reason}"


async def test_an_invalid_proxy_is_reported_without_its_password() -> None:
    async with make_pool("socks5://ana:secret@127.0.0.1:1") as pool:
        with pytest.raises(
            UpstreamUnreachable, match=r"proxy cannot be used: .*SOCKS is not supported"
        ) as failure:
            await fetch(pool, parse_url(UPSTREAM_URL))

    assert "secret" not in str(failure.value)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\n\r\nbye", "refused the connection with status 502"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n<html>", "refused the connection with status 403"),
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://login.corp/\r\n\r\n",
            "refused the connection with status 302",
        ),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "opened no tunnel: the response is not valid HTTP"),
        (b"", "opened no tunnel: the connection was closed before a response arrived"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "opened no tunnel: the connection was closed"),
        (b"HTTP/1.1 200 OK\r\n\r\nwelcome", "connection failed"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "(connection|TLS connection) failed .*, through the proxy"),
    ],
    ids=["502", "403", "redirect", "no HTTP", "nothing", "truncated head", "data at once", "closed"],
)
async def test_a_proxy_that_opens_no_tunnel_is_named_and_the_request_is_not_sent(
    reply: bytes, message: str
) -> None:
    async with (
        serve_script(reply_and_close(reply)) as bad_proxy,
        make_pool(f"http://ana:secret@127.0.0.1:{bad_proxy.target.port}") as pool,
    ):
        with pytest.raises(UpstreamUnreachable, match=message) as failure:
            await fetch(pool, parse_url(UPSTREAM_URL))

    credentials = b64encode(b"ana:secret")
    assert bad_proxy.requests_by_connection == [
        [
            b"CONNECT %(host)b:443 HTTP/1.1\r\nhost: %(host)b:443\r\nproxy-authorization: Basic %(key)b\r\n\r\n"
            % {b"host": HOST.encode(), b"key": credentials}
        ]
    ]
    assert f"http://127.0.0.1:{bad_proxy.target.port}" in str(failure.value)
    assert not isinstance(failure.value, UpstreamBroken)


async def test_the_upstreams_own_407_is_not_the_proxys() -> None:
    """The proxy only forwards bytes of a tunnel, but answers plain requests itself."""
    reply = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
    async with (
        serve_script(reply_with(reply)) as upstream,
        make_pool("http://127.0.0.1:1") as pool,
        pool.stream("POST", upstream.target, []) as response,
    ):
        assert response.status == 407


async def test_other_errors_of_a_forwarding_proxy_are_responses() -> None:
    reply = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n"
    async with (
        serve_script(reply_with(reply)) as forwarder,
        make_pool(f"http://127.0.0.1:{forwarder.target.port}") as pool,
        pool.stream("GET", parse_url(f"http://{HOST}/a"), []) as response,
    ):
        assert response.status == 502
        assert await read_body(response, max_bytes=10, url="") == b""

    assert forwarder.requests_by_connection == [
        [b"GET http://%(host)b/a HTTP/1.1\r\nhost: %(host)b\r\n\r\n" % {b"host": HOST.encode()}]
    ]


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["no tunnel", "no TLS"])
async def test_a_silent_proxy_has_the_connect_timeout(reply: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        await reader.read()

    async with serve_script(handler) as silent:
        url = f"http://127.0.0.1:{silent.target.port}"
        async with make_pool(url, timeouts=Timeouts(connect_seconds=0.2)) as pool:
            with pytest.raises(UpstreamTimeout, match=f"within 0.2 s through the proxy {url}"):
                await fetch(pool, parse_url(UPSTREAM_URL))


async def test_an_ipv6_upstream_is_written_in_brackets() -> None:
    async with (
        serve_script(reply_and_close(b"HTTP/1.1 502 No\r\n\r\n")) as bad_proxy,
        make_pool(f"http://127.0.0.1:{bad_proxy.target.port}") as pool,
    ):
        for url in ("https://[fd00::1]/", "https://[fd00::1]:8443/"):
            with pytest.raises(UpstreamUnreachable):
                await fetch(pool, parse_url(url))

    heads = [requests[0].split(b" ")[1] for requests in bad_proxy.requests_by_connection]
    assert heads == [b"[fd00::1]:443", b"[fd00::1]:8443"]


@pytest.mark.parametrize("configured", [False, True])
async def test_a_pool_reads_the_environment_unless_it_gets_rules(
    monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    async with ConnectionPool(proxies=ProxyRules(https="http://127.0.0.1:2") if configured else None) as pool:
        with pytest.raises(UpstreamUnreachable, match=f"127.0.0.1:{2 if configured else 1} is unreachable"):
            await fetch(pool, parse_url(UPSTREAM_URL))
