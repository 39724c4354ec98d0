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
REQUEST_HEADERS = {"x_api_key": SECRET, "anthropic_version": "2023-06-01", "content_type": "application/json"}
fuzzed = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    """A provider that accepts every request."""
    with running_upstream(respond_always(http_response(claude_response("Well")))) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with all mechanisms on."""
    options = AgentOptions(compaction=True, compaction_options=CompactionOptions(extractive=True))
    folder = tmp_path_factory.mktemp("gateway")
    with running_gateway(upstream.url, folder, options=options) as server:
        yield server


def check_answered(gateway: RunningGateway, request: bytes) -> RawResponse:
    """Send a request and return the response; check the gateway before and after it."""
    gateway.failed_steps.clear()
    response = send_raw(gateway.url, request, timeout_seconds=20)
    after = send_raw(gateway.url, claude_request(SECRET))

    assert response.is_complete
    assert 200 <= response.status < 500
    assert [
        problem for problem in gateway.failed_steps if not problem.reason.startswith("MalformedRequest")
    ] == []
    assert (after.status, b"Well" in after.body) == (200, True)
    return response


@given(request=malformed_requests())
@fuzzed
def test_nearly_valid_requests_are_answered(gateway: RunningGateway, request: tuple[str, bytes]) -> None:
    path, body = request
    check_answered(gateway, build_post(path, body, **REQUEST_HEADERS))


def test_a_limit_above_the_window_triggers_no_compaction(
    gateway: RunningGateway, upstream: ScriptedUpstream
) -> None:
    """Regression: the gateway paid for compactions that could not help while the client waited."""
    upstream.requests.clear()
    body = json.dumps(VALID_REQUESTS["/v1/chat/completions"] | {"max_tokens": 2**31}).encode()
    response = send_raw(gateway.url, build_post("/v1/chat/completions", body, **REQUEST_HEADERS))

    assert response.status == 200  # the provider decides whether the limit is too high
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("name", HUGE_REQUESTS)
def test_huge_requests_are_answered_in_time(gateway: RunningGateway, name: str) -> None:
    path, body = HUGE_REQUESTS[name]
    started = time.process_time()
    check_answered(gateway, build_post(path, body, **REQUEST_HEADERS))

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
    check_answered(gateway, build_post(path, body, **REQUEST_HEADERS, content_encoding=encoding))


@pytest.fixture(scope="module")
def capped_gateway(
    upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    """A gateway whose cap admits nothing."""
    caps = [Cap(scope=CapScope.CALL, dollars=Decimal("1e-9"))]
    with running_gateway(upstream.url, tmp_path_factory.mktemp("capped"), caps=caps) as server:
        yield server


@given(
    request=malformed_requests(),
    path=st.sampled_from(
        ("", "/", "/v1/../v1/messages", "/v1/completions", "//v1//messages//", "/v1/messages%2F")
    ),
    encoding=st.sampled_from(("", "gzip", "br")),
)
@fuzzed
def test_nothing_that_could_cost_bypasses_a_cap(
    capped_gateway: RunningGateway,
    upstream: ScriptedUpstream,
    request: tuple[str, bytes],
    path: str,
    encoding: str,
) -> None:
    request_path, body = request
    assume(not (path or request_path).endswith("count_tokens"))  # token counts are free
    assume(request_path != "/v1/embeddings" or b'"Hello"' in body)  # and so are embeddings of no text
    upstream.requests.clear()
    response = send_raw(
        capped_gateway.url,
        build_post(path or request_path, body, **REQUEST_HEADERS, content_encoding=encoding),
        timeout_seconds=20,
    )

    assert response.status in (402, 400)  # it may also be too long
    assert response.headers["x-should-retry"] == "false"
    assert json.loads(response.body)["error"]["message"]
    assert upstream.requests == []


HEADER_NAMES = st.sampled_from(
    ("x-foveate-agent", "x-foveate-session", "x-foveate-kind", "x-foveate-", "anthropic-beta", "authorization",
     "accept-encoding", "content-type", "cookie", "te", "upgrade", "expect", "x-forwarded-for", "via", "range",
     "x")
)  # fmt: skip
# The server rejects characters that HTTP forbids in a header before the gateway sees them.
HEADER_VALUES = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=40
)


@given(
    headers=st.lists(
        st.tuples(HEADER_NAMES, HEADER_VALUES | st.just("fov-x") | st.just("Bearer fov-x")), max_size=4
    )
)
@fuzzed
def test_any_headers_are_answered(gateway: RunningGateway, headers: list[tuple[str, str]]) -> None:
    path = "/v1/messages"
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")
    request = build_post(path, json.dumps(VALID_REQUESTS[path]).encode(), **REQUEST_HEADERS)
    check_answered(gateway, request.replace(b"\r\n", b"\r\n" + lines, 1))


PATH_SEGMENTS = st.sampled_from(
    ("v1", "messages", "chat", "completions", "models", "embeddings", "count_tokens", "..", ".", "", "%2e%2e",
     "%2F", "%00", "%20", "%", "%zz", "+", "~", "@", ":", "%0d%0a", "%ff", "*", "\\", "[", "|", "{}", "%3Fa=b")
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "LOCK")
FORWARDED_METHODS = METHODS[:7]
QUERIES = ("", "?a=b", "?beta=true", "?%00", "?a=b&a=%ff", f"?{'q' * 5_000}", "?x=http://x/?y", "?a=%20")


@given(
    method=st.sampled_from(METHODS),
    segments=st.lists(PATH_SEGMENTS, min_size=1, max_size=5),
    query=st.sampled_from(QUERIES),
)
@fuzzed
def test_any_method_on_any_path_is_forwarded_unchanged_or_rejected(
    gateway: RunningGateway, upstream: ScriptedUpstream, method: str, segments: list[str], query: str
) -> None:
    """Regression: paths were forwarded without their escapes, which changed names that contain a slash."""
    target = f"/own/{'/'.join(segments)}{query}"
    upstream.requests.clear()
    response = send_raw(
        gateway.url,
        build_post(target, b"", **REQUEST_HEADERS).replace(b"POST", method.encode(), 1),
        timeout_seconds=20,
    )
    lines = [head.partition(b"\r\n")[0] for head in upstream.requests]
    after = send_raw(gateway.url, claude_request(SECRET))
    error_status = (
        405
        if method not in FORWARDED_METHODS
        else 400
        if not {"..", ".", "%2e%2e"}.isdisjoint(segments)
        else None
    )

    assert response.status == (error_status or 200)
    assert response.is_complete or method == "HEAD"
    assert lines == ([] if error_status else [f"{method} {target} HTTP/1.1".encode()])
    assert after.status == 200


@pytest.mark.parametrize(
    "target", ["*", "/", "//", "/v1", "/v1/", "http://elsewhere.invalid/v1/models", "/v1/../x"]
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
def test_unusual_request_targets_reach_only_the_provider(
    gateway: RunningGateway, upstream: ScriptedUpstream, method: str, target: str
) -> None:
    upstream.requests.clear()
    response = send_raw(
        gateway.url, build_post(target, b"", **REQUEST_HEADERS).replace(b"POST", method.encode(), 1)
    )

    assert response.status < 500
    assert all(b"\r\nhost: 127.0.0.1:" in head for head in upstream.requests)
