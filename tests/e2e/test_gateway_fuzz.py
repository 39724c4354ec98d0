"""Every request to a gateway is answered: no 500, no hang, and the next request is served.

`FOVEATE_FUZZ_EXAMPLES` says how many requests of each kind are tried.
"""

import gzip
import json
import os
import time
import zlib
from collections.abc import Iterator
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from foveate.compaction.plan import CompactionOptions
from foveate.cost.caps import Cap, CapScope
from foveate.engine.options import AgentOptions
from tests.support.clients.raw_http import RawResponse, build_post, claude_request, send_raw
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.scripted_upstream import (
    ScriptedUpstream,
    claude_response,
    http_response,
    respond_always,
    running_upstream,
)
from tests.support.strategies.malformed_requests import HUGE_REQUESTS, VALID_REQUESTS, malformed_requests

SECRET = "sk-nobody-may-read-this-4712"
EXAMPLES = int(os.environ.get("FOVEATE_FUZZ_EXAMPLES", "60"))
KEYS = {"x_api_key": SECRET, "anthropic_version": "2023-06-01", "content_type": "application/json"}
fuzzed = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    """A provider that takes everything."""
    with running_upstream(respond_always(http_response(claude_response("Well")))) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with all mechanisms on."""
    options = AgentOptions(compaction=True, compaction_options=CompactionOptions(extractive=True))
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(upstream.url, folder, options=options) as running:
        yield running


def check(gateway: RunningGateway, request: bytes) -> RawResponse:
    """Send a request and return the response; check the gateway before and after it."""
    gateway.failed_steps.clear()
    found = send_raw(gateway.url, request, timeout_seconds=20)
    after = send_raw(gateway.url, claude_request(SECRET))

    assert found.is_complete
    assert 200 <= found.status < 500
    assert [
        problem for problem in gateway.failed_steps if not problem.reason.startswith("MalformedRequest")
    ] == []
    assert (after.status, b"Well" in after.body) == (200, True)
    return found


@given(request=malformed_requests())
@fuzzed
def test_nearly_valid_requests_are_answered(gateway: RunningGateway, request: tuple[str, bytes]) -> None:
    path, body = request
    check(gateway, build_post(path, body, **KEYS))


def test_a_limit_above_the_window_triggers_no_compaction(
    gateway: RunningGateway, upstream: ScriptedUpstream
) -> None:
    """Regression: the gateway paid for compactions that could not help while the client waited."""
    upstream.requests.clear()
    body = json.dumps(VALID_REQUESTS["/v1/chat/completions"] | {"max_tokens": 2**31}).encode()
    found = send_raw(gateway.url, build_post("/v1/chat/completions", body, **KEYS))

    assert found.status == 200  # whether the limit is too high is the provider's to say
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("name", HUGE_REQUESTS)
def test_huge_requests_are_answered_in_time(gateway: RunningGateway, name: str) -> None:
    path, body = HUGE_REQUESTS[name]
    started = time.process_time()
    check(gateway, build_post(path, body, **KEYS))

    assert time.process_time() - started < 10


@given(
    path=st.sampled_from(sorted(VALID_REQUESTS)),
    body=st.binary(max_size=300)
    | st.text(max_size=100).map(lambda response: response.encode("utf-8", "replace")),
    encoding=st.sampled_from(
        ("", "gzip", "deflate", "br", "zstd", "gzip, gzip", "identity", "x", "gzip,,", "\xff")
    ),
    is_packed=st.booleans(),
)
@fuzzed
def test_any_bytes_with_any_content_encoding_are_answered(
    gateway: RunningGateway, path: str, body: bytes, encoding: str, is_packed: bool
) -> None:
    if is_packed:
        body = gzip.compress(body) if "gzip" in encoding else zlib.compress(body)
    check(gateway, build_post(path, body, **KEYS, content_encoding=encoding))


@pytest.fixture(scope="module")
def capped(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway whose cap admits nothing."""
    caps = [Cap(scope=CapScope.CALL, dollars=Decimal("1e-9"))]
    with running_gateway(upstream.url, tmp_path_factory.mktemp("capped"), caps=caps) as running:
        yield running


@given(
    request=malformed_requests(),
    path=st.sampled_from(
        ("", "/", "/v1/../v1/messages", "/v1/completions", "//v1//messages//", "/v1/messages%2F")
    ),
    encoding=st.sampled_from(("", "gzip", "br")),
)
@fuzzed
def test_nothing_that_could_cost_bypasses_a_cap(
    capped: RunningGateway, upstream: ScriptedUpstream, request: tuple[str, bytes], path: str, encoding: str
) -> None:
    own, body = request
    assume(not (path or own).endswith("count_tokens"))  # which is free
    assume(own != "/v1/embeddings" or b'"Hello"' in body)  # as are vectors of nothing
    upstream.requests.clear()
    found = send_raw(
        capped.url, build_post(path or own, body, **KEYS, content_encoding=encoding), timeout_seconds=20
    )

    assert found.status in (402, 400)  # it may be too long as well
    assert found.headers["x-should-retry"] == "false"
    assert json.loads(found.body)["error"]["message"]
    assert upstream.requests == []


NAMES = st.sampled_from(
    ("x-foveate-agent", "x-foveate-session", "x-foveate-kind", "x-foveate-", "anthropic-beta", "authorization",
     "accept-encoding", "content-type", "cookie", "te", "upgrade", "expect", "x-forwarded-for", "via", "range",
     "x")
)  # fmt: skip
# What HTTP forbids in a header, the server refuses before the gateway sees it.
VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=40)


@given(headers=st.lists(st.tuples(NAMES, VALUES | st.just("fov-x") | st.just("Bearer fov-x")), max_size=4))
@fuzzed
def test_any_headers_are_answered(gateway: RunningGateway, headers: list[tuple[str, str]]) -> None:
    path = "/v1/messages"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")
    request = build_post(path, json.dumps(VALID_REQUESTS[path]).encode(), **KEYS)
    check(gateway, request.replace(b"\r\n", b"\r\n" + lines, 1))


PIECES = st.sampled_from(
    ("v1", "messages", "chat", "completions", "models", "embeddings", "count_tokens", "..", ".", "", "%2e%2e",
     "%2F", "%00", "%20", "%", "%zz", "+", "~", "@", ":", "%0d%0a", "%ff", "*", "\\", "[", "|", "{}", "%3Fa=b")
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "LOCK")
FORWARDED = METHODS[:7]
QUERIES = ("", "?a=b", "?beta=true", "?%00", "?a=b&a=%ff", f"?{'q' * 5_000}", "?x=http://x/?y", "?a=%20")


@given(
    method=st.sampled_from(METHODS),
    pieces=st.lists(PIECES, min_size=1, max_size=5),
    query=st.sampled_from(QUERIES),
)
@fuzzed
def test_any_method_on_any_path_is_forwarded_unchanged_or_rejected(
    gateway: RunningGateway, upstream: ScriptedUpstream, method: str, pieces: list[str], query: str
) -> None:
    """Regression: paths were forwarded without their escapes, which changed names that contain a slash."""
    target = f"/own/{'/'.join(pieces)}{query}"
    upstream.requests.clear()
    found = send_raw(
        gateway.url, build_post(target, b"", **KEYS).replace(b"POST", method.encode(), 1), timeout_seconds=20
    )
    lines = [head.partition(b"\r\n")[0] for head in upstream.requests]
    after = send_raw(gateway.url, claude_request(SECRET))
    refused = 405 if method not in FORWARDED else 400 if not {"..", ".", "%2e%2e"}.isdisjoint(pieces) else None

    assert found.status == (refused or 200)
    assert found.is_complete or method == "HEAD"
    assert lines == ([] if refused else [f"{method} {target} HTTP/1.1".encode()])
    assert after.status == 200


@pytest.mark.parametrize(
    "target", ["*", "/", "//", "/v1", "/v1/", "http://elsewhere.invalid/v1/models", "/v1/../x"]
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
def test_unusual_request_targets_reach_only_the_provider(
    gateway: RunningGateway, upstream: ScriptedUpstream, method: str, target: str
) -> None:
    upstream.requests.clear()
    found = send_raw(gateway.url, build_post(target, b"", **KEYS).replace(b"POST", method.encode(), 1))

    assert found.status < 500
    assert all(b"\r\nhost: 127.0.0.1:" in head for head in upstream.requests)
