"""Checks of upstreams: whether they are reachable, accept the key, and what they support.

Only requests that cost nothing are sent: the list of models; to a server without one, an empty request, which
every API rejects; and one letter to servers that may tokenise.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

from foveate.doctor.findings import Finding, failed_finding, ok_finding, warning_finding
from foveate.errors import UpstreamError, UpstreamStatus

if TYPE_CHECKING:
    from foveate.config.settings import Settings
    from foveate.gateway.routing import Upstream
    from foveate.http.proxies import ProxyRules

CHECK = "upstream"
LIMIT_SECONDS, _TOKENIZE_SECONDS = 3.0, 1.0
_MAX_BYTES = 16 * 1024 * 1024
# Their lists of models are public, so they do not prove that a key is valid (November 2026).
_PUBLIC_MODEL_LISTS = frozenset(("openrouter", "nvidia"))
# Providers without a tokenize endpoint; any other may be a local server.
_HOSTED_PROVIDERS = frozenset(
    ("anthropic", "openai", "openrouter", "deepseek", "google", "azure", "bedrock", "vertex", "nvidia")
)
# Paths of the APIs; a server with both has that of OpenAI.
_API_PATHS = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}
_COUNTING_SUPPORT = {
    "anthropic": "counts the tokens of requests",
    "openai": "counts the tokens of Responses requests",
}


@dataclass(frozen=True, slots=True)
class UpstreamCheck:
    findings: Sequence[Finding]
    at: float | None = None


def select_upstreams(
    settings: "Settings", upstreams: "Mapping[str, Upstream]"
) -> "list[tuple[Upstream, bool]]":
    """Return the upstreams to check, and whether each is named in the configuration or has a key."""
    named_upstreams = {*settings.upstreams, *(route.upstream for route in settings.routes)}
    named_upstreams |= {name for name, upstream in upstreams.items() if upstream.key is not None}
    defaults = () if named_upstreams else ("anthropic", "openai")
    return [
        (upstreams[name], name in named_upstreams)
        for name in upstreams
        if name in named_upstreams or name in defaults
    ]


async def check_upstream(
    upstream: "Upstream", *, is_named: bool, models: Sequence[str], proxies: "ProxyRules"
) -> UpstreamCheck:
    from foveate.gateway.endpoints import ApiFamily

    headers = [(b"accept", b"application/json")]
    if upstream.key is not None:
        headers.append((b"authorization", f"Bearer {upstream.key}".encode("latin-1")))
    if upstream.family is ApiFamily.ANTHROPIC:
        headers.append((b"anthropic-version", b"2023-06-01"))
        if upstream.key is not None:
            headers[1] = (b"x-api-key", upstream.key.encode("latin-1"))
    path = "/v1/models"
    provider_access = {
        ApiFamily.GEMINI: ("/v1beta/models", b"x-goog-api-key"),
        ApiFamily.AZURE: ("/openai/v1/models", b"api-key"),
    }.get(upstream.family)
    if provider_access is not None:
        path, name = provider_access
        if upstream.key is not None:
            headers[1] = (name, upstream.key.encode("latin-1"))
    started = time.monotonic()
    try:
        status, at = await _fetch_status("GET", upstream.url(path), headers, proxies)
    except (UpstreamError, TimeoutError) as error:
        reason = str(error) or f"no response within {LIMIT_SECONDS:g} s"
        return UpstreamCheck([_unreachable_finding(upstream, reason, is_named=is_named)])
    elapsed = f"{1000 * (time.monotonic() - started):,.0f} ms"
    missing = await _check_api_exists(upstream, headers, proxies) if status in (404, 405) else None
    way = elapsed + _describe_proxy(upstream, proxies)
    findings = [missing or _status_finding(upstream, status, way)]
    abilities = await _describe_abilities(upstream, models, proxies)
    if abilities:
        findings.append(ok_finding(CHECK, f"it {' and '.join(abilities)}", upstream.name))
    return UpstreamCheck(findings, at)


def _describe_proxy(upstream: "Upstream", proxies: "ProxyRules") -> str:
    from foveate.http.pool import parse_url

    proxy = proxies.find_proxy(*parse_url(upstream.base_url).origin)
    return "" if proxy is None else f" through the proxy {proxy.url}"


async def _check_api_exists(
    upstream: "Upstream", headers: list[tuple[bytes, bytes]], proxies: "ProxyRules"
) -> Finding | None:
    """Report an address without an API: it does not even reject an empty request."""
    path = _API_PATHS.get(upstream.family.value)
    if path is None:
        return None
    url = upstream.url(path)
    try:
        json_headers = [*headers, (b"content-type", b"application/json")]
        status, _ = await _fetch_status("POST", url, json_headers, proxies, b"{}")
    except (UpstreamError, TimeoutError):
        return None  # it was just reached, so this does not mean that the address is wrong
    if status not in (404, 405):
        return None
    message = f"there is no API at its base_url: POST {url} returns {status}"
    return failed_finding(
        CHECK, message, "correct its base_url: it is the base URL that clients of its API use", upstream.name
    )


async def _fetch_status(
    method: str, url: str, headers: list[tuple[bytes, bytes]], proxies: "ProxyRules", body: bytes = b""
) -> tuple[int, float | None]:
    from foveate.http.pool import ConnectionPool, Timeouts, parse_url, read_body

    timeouts = Timeouts(connect_seconds=LIMIT_SECONDS, idle_seconds=LIMIT_SECONDS, total_seconds=LIMIT_SECONDS)
    async with (
        asyncio.timeout(LIMIT_SECONDS),
        ConnectionPool(timeouts=timeouts, proxies=proxies) as pool,
        pool.stream(method, parse_url(url), headers, body) as response,
    ):
        await read_body(response, max_bytes=_MAX_BYTES, url=url)
        return response.status, _parse_date(response.header(b"date"))


def _parse_date(header: bytes | None) -> float | None:
    try:
        return None if header is None else parsedate_to_datetime(header.decode("latin-1")).timestamp()
    except (ValueError, OverflowError):
        return None


def _unreachable_finding(upstream: "Upstream", reason: str, *, is_named: bool) -> Finding:
    if "certificate" in reason:
        advice = (
            "install its certificate authority on this machine, or set SSL_CERT_FILE to a file with it;"
            " a proxy that intercepts TLS has an authority of its own"
        )
        return failed_finding(CHECK, reason, advice, upstream.name)
    if not is_named:
        return warning_finding(
            CHECK, reason, "nothing to do unless your agents use it; --offline skips this check", upstream.name
        )
    advice = (
        "check server.proxy, or the environment variables HTTPS_PROXY and NO_PROXY"
        if "proxy" in reason
        else "check its base_url, the network, and that the server is running"
    )
    return failed_finding(CHECK, reason, advice, upstream.name)


def _status_finding(upstream: "Upstream", status: int, elapsed: str) -> Finding:
    reached_text = f"reached in {elapsed}" + (", over TLS" if upstream.base_url.startswith("https:") else "")
    if status in (401, 403):
        if upstream.key is None:
            return ok_finding(CHECK, f"{reached_text}; no key is set, clients send their own", upstream.name)
        return failed_finding(
            CHECK,
            f"{reached_text}, but it rejects the key ({status})",
            "check the environment variable that holds the key",
            upstream.name,
        )
    if status >= 500:
        return warning_finding(
            CHECK,
            f"{reached_text}, but it returns {status}",
            "check the status page of its provider",
            upstream.name,
        )
    if status in (404, 405) or upstream.provider in _PUBLIC_MODEL_LISTS:
        key_note = (
            "the first call shows whether it accepts the key" if upstream.key is not None else "no key is set"
        )
        return ok_finding(CHECK, f"{reached_text}; {key_note}", upstream.name)
    if not 200 <= status < 300:
        return warning_finding(
            CHECK, f"{reached_text}, but it returns {status}", "check its base_url", upstream.name
        )
    return ok_finding(
        CHECK,
        f"{reached_text}; {'it accepts the key' if upstream.key is not None else 'it needs no key'}",
        upstream.name,
    )


async def _describe_abilities(upstream: "Upstream", models: Sequence[str], proxies: "ProxyRules") -> list[str]:
    abilities = []
    if upstream.provider not in _HOSTED_PROVIDERS:
        abilities.append(await _describe_tokenizing(upstream, proxies))
    else:
        abilities.append(_COUNTING_SUPPORT.get(upstream.provider, "cannot count tokens (Foveate counts them)"))
    abilities.append(await asyncio.to_thread(_describe_caching, upstream, models))
    return abilities


async def _describe_tokenizing(upstream: "Upstream", proxies: "ProxyRules") -> str:
    """Ask for the tokens of one letter, which costs nothing."""
    from foveate.http import JsonClient
    from foveate.tokens.remote.endpoints import is_permanent_failure
    from foveate.tokens.remote.model_servers import TokenizeCounter

    headers = {} if upstream.key is None else {"authorization": f"Bearer {upstream.key}"}
    async with JsonClient(timeout_seconds=_TOKENIZE_SECONDS, proxies=proxies) as client:
        try:
            dialect = await TokenizeCounter(client, upstream.base_url, headers).detect_server()
        except UpstreamError as error:
            if is_permanent_failure(error):
                return "cannot count tokens (Foveate counts them)"
            if isinstance(error, UpstreamStatus):
                return f"returns {error.status} to a request to tokenize"
            return f"did not respond to a request to tokenize within {_TOKENIZE_SECONDS:g} s"
    return f"can tokenize ({dialect}; token_counter.use_endpoint uses that)"


def _describe_caching(upstream: "Upstream", models: Sequence[str]) -> str:
    from foveate.prompt_cache.rules import CachingMode, rules_for

    default_model = {"anthropic": "claude-sonnet-4-5", "openai": "gpt-5"}.get(upstream.provider, "")
    kinds = {rules_for(model, upstream.provider).caching for model in (models or [default_model])}
    words = {
        CachingMode.BREAKPOINTS: "caches prompts at breakpoints",
        CachingMode.AUTOMATIC: "caches prompts automatically",
        CachingMode.BOTH: "caches prompts automatically and at breakpoints",
        CachingMode.NONE: "has no known prompt cache",
    }
    return " or ".join(words[kind] for kind in sorted(kinds))
