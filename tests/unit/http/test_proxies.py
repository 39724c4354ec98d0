"""Which proxy a request uses, from the environment, a setting and NO_PROXY."""

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import BadOption
from foveate.http.proxies import Proxy, ProxyRules, parse_proxy

PROXY = "http://proxy.corp:3128"


def find_url(rules: ProxyRules, scheme: str = "https", host: str = "api.example", port: int = 443) -> str:
    proxy = rules.find_proxy(scheme, host, port)
    return "" if proxy is None else proxy.url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://proxy.corp:3128", Proxy("http", "proxy.corp", 3128)),
        ("proxy.corp:3128", Proxy("http", "proxy.corp", 3128)),
        ("http://proxy.corp/", Proxy("http", "proxy.corp", 80)),
        ("https://proxy.corp", Proxy("https", "proxy.corp", 443)),
        ("HTTP://[fd00::1]:3128", Proxy("http", "fd00::1", 3128)),
    ],
)
def test_a_proxy_is_a_url_or_a_host_with_a_port(url: str, expected: Proxy) -> None:
    assert parse_proxy(url) == expected


@pytest.mark.parametrize(
    ("userinfo", "credentials"),
    [
        ("ana:secret", "ana:secret"),
        ("ana", "ana:"),
        ("CORP%5Cana:p%40s%3As%20%C3%BC", "CORP\\ana:p@s:s ü"),
        ("ana:p@ss", "ana:p@ss"),
        (":", ":"),
    ],
)
def test_credentials_of_a_proxy_are_decoded_and_not_shown(userinfo: str, credentials: str) -> None:
    proxy = parse_proxy(f"http://{userinfo}@proxy.corp:3128")

    assert proxy.authorization is not None
    kind, _, encoded = proxy.authorization.partition(b" ")
    assert (kind, b64decode(encoded).decode()) == (b"Basic", credentials)
    assert proxy.url == PROXY
    assert "Basic" not in repr(proxy)
    assert "secret" not in repr(ProxyRules("http://a:secret@b", "http://a:secret@b"))


@pytest.mark.parametrize(
    "url",
    [
        "socks5://proxy.corp:1080",
        "http://",
        "http://a:99999",
        "http://ana:sec/ret@b:1",
        "ftp://b",
        "http://a b",
    ],
)
def test_an_invalid_proxy_is_reported_without_its_password(url: str) -> None:
    with pytest.raises(BadOption, match=r"http://user:password@proxy\.example:3128") as failure:
        parse_proxy(url)

    assert "sec" not in str(failure.value)


@pytest.mark.parametrize(
    ("environment", "http", "https"),
    [
        ({}, "", ""),
        ({"HTTPS_PROXY": "s:1"}, "", "http://s:1"),
        ({"HTTP_PROXY": "p:1"}, "http://p:1", ""),
        ({"ALL_PROXY": "a:1"}, "http://a:1", "http://a:1"),
        ({"ALL_PROXY": "a:1", "HTTPS_PROXY": "s:1"}, "http://a:1", "http://s:1"),
        ({"https_proxy": "small:1", "HTTPS_PROXY": "large:1"}, "", "http://small:1"),
        ({"https_proxy": "", "HTTPS_PROXY": "large:1"}, "", ""),
        ({"HTTPS_PROXY": " ", "HTTP_PROXY": ""}, "", ""),
        ({"all_proxy": " a:1 ", "no_proxy": "other.example"}, "http://a:1", "http://a:1"),
    ],
)
def test_proxies_come_from_the_usual_variables(environment: dict[str, str], http: str, https: str) -> None:
    rules = ProxyRules.from_environment(environment)

    assert (find_url(rules, "http"), find_url(rules, "https")) == (http, https)


@pytest.mark.parametrize(
    ("configured", "expected"), [(None, "http://s:1"), ("http://c:2", "http://c:2"), ("", "")]
)
def test_a_configured_proxy_replaces_those_of_the_environment(configured: str | None, expected: str) -> None:
    environment = {"HTTPS_PROXY": "s:1", "ALL_PROXY": "a:1", "NO_PROXY": ".corp"}
    rules = ProxyRules.from_environment(environment, configured)

    assert find_url(rules) == expected
    assert find_url(rules, host="llm.corp") == ""


@pytest.mark.parametrize(
    ("no_proxy", "direct", "proxied"),
    [
        ("*", ["api.example", "10.0.0.1", "fd00::1"], []),
        ("corp", ["corp", "llm.corp", "a.b.corp", "llm.corp."], ["notcorp", "corp.example"]),
        (".corp", ["corp", "llm.corp"], ["notcorp"]),
        ("*.corp", ["llm.corp"], ["notcorp"]),
        ("LLM.Corp", ["llm.corp", "a.llm.corp"], ["corp"]),
        ("a.example, b.example c.example", ["a.example", "b.example", "c.example"], ["d.example"]),
        ("llm.corp:443", ["llm.corp"], []),
        ("llm.corp:8443", [], ["llm.corp"]),
        ("10.0.0.0/8,fd00::/8", ["10.1.2.3", "fd12::1"], ["11.1.2.3", "fe00::1", "10.example"]),
        ("10.1.2.3/8", ["10.9.9.9"], ["11.0.0.1"]),
        ("10.1.2.3", ["10.1.2.3"], ["10.1.2.30", "1.10.1.2.3.example"]),
        ("10.1.2.3:443,10.1.2.4:80", ["10.1.2.3"], ["10.1.2.4"]),
        ("fd00::1,[fd00::2],[fd00::3]:443,[fd00::4]:80", ["fd00::1", "fd00::2", "fd00::3"], ["fd00::4"]),
        (", . .. / 10.0.0.0/99 x/y ,", [], ["api.example", "10.0.0.1", "fd00::1"]),
        ("", [], ["api.example", "10.0.0.1"]),
    ],
)
def test_no_proxy_lists_hosts_domains_addresses_and_networks(
    no_proxy: str, direct: list[str], proxied: list[str]
) -> None:
    rules = ProxyRules(PROXY, PROXY, no_proxy)

    assert [host for host in [*direct, *proxied] if not find_url(rules, host=host)] == direct


@given(
    proxy=st.text(min_size=1),
    no_proxy=st.text(),
    scheme=st.sampled_from(["http", "https"]),
    host=st.sampled_from(["localhost", "x.localhost", "localhost.", "127.0.0.1", "127.9.9.9", "::1"]),
    port=st.integers(1, 65535),
)
def test_loopback_is_never_reached_through_a_proxy(
    proxy: str, no_proxy: str, scheme: str, host: str, port: int
) -> None:
    assert ProxyRules(proxy, proxy, no_proxy).find_proxy(scheme, host, port) is None


@given(st.text(), st.text(), st.text())
def test_any_text_is_a_proxy_or_an_error(proxy: str, no_proxy: str, host: str) -> None:
    try:
        found = ProxyRules(proxy, proxy, no_proxy).find_proxy("https", host, 443)
    except BadOption:
        return
    assert found is None or (found.host and found.scheme in ("http", "https"))


def test_an_invalid_proxy_matters_only_to_requests_that_use_it() -> None:
    rules = ProxyRules.from_environment({"ALL_PROXY": "socks5://a:1", "HTTPS_PROXY": "s:1"})

    assert find_url(rules) == "http://s:1"
    with pytest.raises(BadOption, match="SOCKS"):
        find_url(rules, "http")
