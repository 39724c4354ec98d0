"""Any request is answered, forwarded byte for byte unless the gateway edits it, and charged once.

`FOVEATE_FUZZ_EXAMPLES` says how many requests are tried at each gateway.
"""

import json
import os
from collections.abc import Iterator, Sequence
from itertools import count

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from foveate.compaction.plan import CompactionOptions
from foveate.engine.embeddings import read_embeddings_model, read_embeddings_request
from foveate.engine.options import AgentOptions
from foveate.errors import FoveateError
from foveate.gateway.endpoints import Endpoint, Operation, canonicalize_path, match_endpoint
from foveate.gateway.routing import Route, ThreadMode
from foveate.model import Format
from tests.conftest import recorded_data
from tests.support.clients.raw_http import build_post, send_raw
from tests.support.servers.fuzzed_gateway import FuzzedGateway, fuzzed_gateway
from tests.support.servers.scripted_upstream import ConnectionClosed, UpstreamConnection, http_response
from tests.support.strategies.fuzz_requests import (
    BUILT_IN,
    FuzzedRequest,
    Seed,
    fuzzed_requests,
    recorded_seeds,
)
from tests.support.strategies.fuzz_responses import stream_body
from tests.support.strategies.malformed_requests import VALID_REQUESTS
from tests.support.strategies.mutated_json import parse
from tests.support.strategies.response_seeds import COMPLETE, STREAMED

EXAMPLES = int(os.environ.get("FOVEATE_FUZZ_EXAMPLES", "10"))
fuzzed = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
_NUMBERS = count()
_NAMES = {
    Format.ANTHROPIC: "anthropic",
    Format.CHAT: "chat",
    Format.RESPONSES: "responses",
    Format.GEMINI: "gemini",
    Format.BEDROCK: "bedrock",
}


def _seeds() -> Sequence[Seed]:
    folder = recorded_data()
    return [*BUILT_IN, *(recorded_seeds(folder) if folder is not None else ())]


def _find_endpoint(path: str) -> Endpoint:
    headers = {"anthropic-version": "2023-06-01"} if path.startswith("/v1/mess") else {}
    return match_endpoint("POST", canonicalize_path(path.partition("?")[0]), headers)


def _response(request: bytes) -> bytes:
    """Return a valid response with usage, streamed if the request says so."""
    line, _, rest = request.partition(b"\r\n")
    # OpenAI's base URL contains the version, and Azure's path is chosen by the client.
    endpoint = _find_endpoint(line.split(b" ")[1].decode("latin-1"))
    if endpoint.operation is Operation.EMBEDDINGS:
        return http_response(json.dumps(COMPLETE["embeddings"]).encode())
    if endpoint.operation is Operation.COUNT_TOKENS:
        return http_response(b'{"input_tokens": 9, "totalTokens": 9}')
    name = _NAMES.get(endpoint.api_format) if endpoint.api_format is not None else None
    if name is None or endpoint.operation is Operation.OTHER:
        return http_response(b'{"object": "something"}')
    if endpoint.is_streaming or (
        b'"stream":true' in rest.replace(b" ", b"") and name not in ("gemini", "bedrock")
    ):
        events = [
            streamed_event if isinstance(streamed_event, str) else parse(json.dumps(streamed_event))
            for streamed_event in STREAMED[name]
        ]
        content_type = "application/vnd.amazon.eventstream" if name == "bedrock" else "text/event-stream"
        return http_response(stream_body(name, events), content_type=content_type)
    return http_response(json.dumps(COMPLETE[name]).encode())


def _respond(connection: UpstreamConnection) -> None:
    while True:
        try:
            connection.send(_response(connection.read_request()))
        except ConnectionClosed:
            return


_GATEWAYS = {
    "plain": AgentOptions(prompt_cache=False),
    "full": AgentOptions(
        compaction=True, compaction_options=CompactionOptions(extractive=True), replace_breakpoints=True
    ),
    "routed": AgentOptions(),
}
_ROUTES = [
    Route(models="claude-*", upstream="anthropic", model="claude-sonnet-4-5"),
    Route(models="gpt-*", upstream="openai", model="gpt-4.1-mini"),
]


@pytest.fixture(scope="module", params=_GATEWAYS)
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FuzzedGateway]:
    name = request.param
    with fuzzed_gateway(
        tmp_path_factory.mktemp(name),
        _respond,
        options=_GATEWAYS[name],
        routes=_ROUTES if name == "routed" else (),
        threads=ThreadMode.PASS if name == "plain" else ThreadMode.HOLD,
    ) as server:
        server.edits = name != "plain"
        yield server


_BODY = json.dumps(VALID_REQUESTS["/v1/messages"]).encode()
LAST_REQUEST = FuzzedRequest(
    path="/v1/messages",
    wire=build_post("/v1/messages", _BODY, x_api_key="sk-x", x_foveate_agent="last"),
    body=_BODY,
    packed=_BODY,
    is_complete=True,
)


@pytest.mark.slow
@given(requests=st.lists(fuzzed_requests(_seeds(), lambda: f"fuzz-{next(_NUMBERS)}"), min_size=1, max_size=5))
@fuzzed
def test_any_request_is_answered_forwarded_unchanged_unless_edited_and_charged_once(
    gateway: FuzzedGateway, requests: list[FuzzedRequest]
) -> None:
    # Charges are recorded in order: when the last one is stored, so are all others.
    expected = sum([_relay(gateway, request) for request in (*requests, LAST_REQUEST)])
    rows = gateway.new_rows(expected)

    assert gateway.take_faults() == []
    assert len(rows) == expected
    for row in rows:
        assert min(row.tokens) >= 0
        assert row.picodollars is None or row.picodollars > 0


def _relay(gateway: FuzzedGateway, request: FuzzedRequest) -> bool:
    """Send a request, check the result, and tell whether the call is charged."""
    gateway.gateway.failed_steps.clear()
    gateway.upstream.requests.clear()
    # Half-close the connection so that the gateway does not wait for the rest of a truncated body.
    response = send_raw(gateway.gateway.url, request.wire, timeout_seconds=20, ends=not request.is_complete)
    problems = list(gateway.gateway.failed_steps)
    forwarded = [body for head, body in _received_requests(gateway) if not _is_token_count(head, request)]
    event(f"status {response.status}, forwarded: {len(forwarded)}")

    assert [problem for problem in problems if not problem.reason.startswith("MalformedRequest")] == []
    assert len(forwarded) <= 1
    assert 200 <= response.status < 500 or (response.status == 0 and not request.is_complete)
    assert bool(forwarded) == (response.status == 200)
    assert request.is_complete or not forwarded
    if not forwarded:
        return False
    _check_forwarded(gateway, request, forwarded[0])
    # A compressed body is parsed if it can be decompressed, unless the client has signed it.
    is_packed = forwarded[0] == request.packed != request.body
    return _is_charged(
        request, forwarded[0], is_read=not is_packed and not any(problem.step == "read" for problem in problems)
    )


def _received_requests(gateway: FuzzedGateway) -> list[tuple[bytes, bytes]]:
    parts = [request.partition(b"\r\n\r\n") for request in gateway.upstream.requests]
    return [(head, body) for head, _, body in parts]


def _is_token_count(head: bytes, request: FuzzedRequest) -> bool:
    """Return whether the gateway itself requests a token count."""
    return b"count_tokens " in head.partition(b"\r\n")[0] and "count_tokens" not in request.path


def _check_forwarded(gateway: FuzzedGateway, request: FuzzedRequest, forwarded: bytes) -> None:
    if forwarded in (request.body, request.packed) or request.body is None:
        return
    before, after = (json.loads(data.decode("utf-8-sig", "replace")) for data in (request.body, forwarded))
    if not gateway.edits:
        assert _find_endpoint(request.path).api_format is Format.CHAT
        assert after.pop("stream_options")["include_usage"] is True
        before.pop("stream_options", None)
        assert before == after
    assert isinstance(after, dict)


def _is_charged(request: FuzzedRequest, forwarded: bytes, *, is_read: bool) -> bool:
    operation = _find_endpoint(request.path).operation
    if operation is Operation.EMBEDDINGS:
        try:
            read_embeddings_request(*read_embeddings_model(forwarded))
        except FoveateError:
            return False
    return operation in (Operation.GENERATE, Operation.EMBEDDINGS) and is_read
