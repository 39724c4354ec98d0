"""Checks of upstreams."""

from dataclasses import replace

import pytest

from foveate.config.load import parse_settings
from foveate.config.settings import Settings
from foveate.doctor.findings import Level
from foveate.doctor.upstream_checks import (
    _describe_abilities,
    _status_finding,
    _unreachable_finding,
    select_upstreams,
)
from foveate.gateway.config import build_gateway_options
from foveate.gateway.routing import KNOWN_UPSTREAMS
from foveate.http.listening_sockets import open_listening_socket
from foveate.http.proxies import ProxyRules


def make_settings(text: str) -> Settings:
    return parse_settings(text.encode(), "foveate.yaml")


def test_named_upstreams_are_checked_or_else_the_default_ones() -> None:
    def select(text: str, **environment: str) -> dict[str, bool]:
        settings = make_settings(text)
        upstreams = build_gateway_options(settings, environment).routing.upstreams
        return {upstream.name: is_named for upstream, is_named in select_upstreams(settings, upstreams)}

    assert select("# nothing\n") == {"anthropic": False, "openai": False}
    assert select("# nothing\n", DEEPSEEK_API_KEY="sk-1") == {"deepseek": True}
    assert select("routes: [{models: '*', upstream: vllm}]\n") == {"vllm": True}
    assert select("upstreams: {mine: {base_url: 'http://h', api: both}}\n") == {"mine": True}


@pytest.mark.parametrize(
    ("status", "key", "level", "text"),
    [
        (200, "sk-1", Level.OK, "accepts the key"),
        (200, None, Level.OK, "needs no key"),
        (401, None, Level.OK, "clients send their own"),
        (401, "sk-1", Level.FAILED, "rejects the key"),
        (404, "sk-1", Level.OK, "the first call shows"),
        (429, "sk-1", Level.WARNING, "returns 429"),
        (503, "sk-1", Level.WARNING, "returns 503"),
    ],
)
def test_the_status_of_an_upstream_decides_the_finding(
    status: int, key: str | None, level: Level, text: str
) -> None:
    from dataclasses import replace

    finding = _status_finding(replace(KNOWN_UPSTREAMS["openai"], key=key), status, "9 ms")

    assert (finding.level, text in finding.message) == (level, True)
    assert "sk-1" not in finding.message


def test_an_unreachable_upstream_fails_only_if_it_is_configured() -> None:
    openai = KNOWN_UPSTREAMS["openai"]

    assert _unreachable_finding(openai, "no connection", is_named=True).level is Level.FAILED
    assert _unreachable_finding(openai, "no connection", is_named=False).level is Level.WARNING
    certificate = _unreachable_finding(openai, "the certificate is not trusted", is_named=True)
    assert "authority" in certificate.advice
    assert "SSL_CERT_FILE" in certificate.advice
    proxy = _unreachable_finding(openai, "the proxy http://p:1 is unreachable", is_named=True)
    assert "server.proxy" in proxy.advice


@pytest.mark.slow
async def test_counting_support_of_every_upstream_is_reported() -> None:
    with open_listening_socket("127.0.0.1", 0) as listener:
        silent_upstream = replace(
            KNOWN_UPSTREAMS["llama.cpp"], base_url=f"http://127.0.0.1:{listener.getsockname()[1]}"
        )
        assert "did not respond to a request to tokenize within 1 s" in await _describe_abilities(
            silent_upstream, [], ProxyRules()
        )
    hosted_upstreams = [
        upstream for upstream in KNOWN_UPSTREAMS.values() if upstream.provider not in ("llama.cpp", "vllm")
    ]

    for upstream in hosted_upstreams:
        assert "count" in (await _describe_abilities(upstream, [], ProxyRules()))[0]
