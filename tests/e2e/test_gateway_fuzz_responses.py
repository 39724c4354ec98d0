"""Any response of an upstream reaches the client unchanged, or as an error, and the call is charged once.

`FOVEATE_FUZZ_EXAMPLES` says how many responses of each format are tried.
"""

import json
import os
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from foveate.engine.options import AgentOptions
from foveate.gateway.request import REQUEST_ID_HEADER
from tests.support.clients.raw_http import build_post, send_raw
from tests.support.servers.fuzzed_gateway import FuzzedGateway, fuzzed_gateway
from tests.support.servers.scripted_upstream import ConnectionClosed, UpstreamConnection
from tests.support.strategies.fuzz_responses import (
    FuzzedResponse,
    build_response,
    response_plans,
    valid_response,
)
from tests.support.strategies.response_seeds import COMPLETE, STREAMED

EXAMPLES = int(os.environ.get("FOVEATE_FUZZ_EXAMPLES", "10"))
fuzzed = settings(
    max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
_NUMBERS = count()
_ABSURD_TOKENS = 10**12
_HELLO = [{"role": "user", "content": "Hello"}]
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "anthropic": ("/v1/messages", {"model": "claude-opus-4-5", "max_tokens": 9, "messages": _HELLO}),
    "chat": ("/v1/chat/completions", {"model": "gpt-4.1", "max_tokens": 9, "messages": _HELLO}),
    "responses": ("/v1/responses", {"model": "gpt-4.1", "input": "Hello"}),
    "gemini": ("/v1beta/models/gemini-2.5-pro:generateContent", {"contents": [{"parts": [{"text": "Hello"}]}]}),
    "bedrock": (
        "/model/anthropic.claude-opus-4-5-20251101-v1:0/converse",
        {"messages": [{"role": "user", "content": [{"text": "Hello"}]}]},
    ),
    "embeddings": ("/v1/embeddings", {"model": "text-embedding-3-small", "input": "Hello"}),
}


class _Responder:
    """Sends the current response to every request."""

    response: FuzzedResponse

    def __call__(self, connection: UpstreamConnection) -> None:
        while True:
            try:
                connection.read_request()
            except ConnectionClosed:
                return
            response = self.response  # once it is sent, the test may set the next one
            connection.send(*response.pieces)
            if response.closes:
                return


@pytest.fixture(scope="module")
def responder() -> _Responder:
    return _Responder()


@pytest.fixture(scope="module")
def gateway(responder: _Responder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedGateway]:
    with fuzzed_gateway(tmp_path_factory.mktemp("responses"), responder, options=AgentOptions()) as server:
        yield server


def _request(api_format: str, *, streams: bool) -> bytes:
    path, body = REQUESTS[api_format]
    if streams and api_format == "gemini":
        path = path.replace(":generate", ":streamGenerate") + "?alt=sse"
    elif streams and api_format == "bedrock":
        path += "-stream"
    elif streams:
        body = {**body, "stream": True}
        if api_format == "chat":  # otherwise the gateway requests usage itself and removes it from the response
            body |= {"stream_options": {"include_usage": True}}
    headers = {"content_type": "application/json", "x_foveate_agent": f"fuzz-{next(_NUMBERS)}"}
    return build_post(path, json.dumps(body).encode(), authorization="Bearer sk-x", **headers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api_format", "streams"),
    [*((name, False) for name in COMPLETE), *((name, True) for name in STREAMED)],
)
@given(data=st.data())
@fuzzed
def test_any_response_reaches_the_client_unchanged_or_as_an_error_and_is_charged_once(
    gateway: FuzzedGateway, responder: _Responder, api_format: str, streams: bool, data: st.DataObject
) -> None:
    responses = data.draw(
        st.lists(response_plans(api_format, streams=streams).map(build_response), min_size=1, max_size=5)
    )
    # Charges are recorded in order: when the last one is stored, so are all others.
    last = valid_response(api_format)
    charged = [
        _relay(gateway, responder, response, _request(api_format, streams=streams))
        for response in (*responses, last)
    ]
    rows = gateway.new_rows(sum(charged))

    assert gateway.take_faults() == []
    assert gateway.gateway.failed_steps == []
    # An error is charged as well, if it reports usage.
    assert sum(charged) <= len(rows) <= len(charged)
    for row in rows:
        assert 0 <= min(row.tokens) <= max(row.tokens) < _ABSURD_TOKENS
        assert row.picodollars is None or row.picodollars > 0


def _relay(gateway: FuzzedGateway, responder: _Responder, response: FuzzedResponse, request: bytes) -> bool:
    """Relay a response, check what the client gets, and tell whether the call must be charged."""
    gateway.upstream.requests.clear()
    responder.response = response
    received = send_raw(gateway.gateway.url, request, timeout_seconds=20)
    event(f"status {received.status}, whole: {received.is_complete}")

    assert len(gateway.upstream.requests) == 1, received
    if response.status is None:
        assert received.status == 502
    else:
        assert received.status in (response.status, 502)
    if response.body is not None:
        assert (received.status, received.body) == (response.status, response.body)
        assert received.is_complete or received.status == 304
    assert not any(name.startswith("x-foveate-") and name != REQUEST_ID_HEADER for name in received.headers)
    return response.status is None or 200 <= response.status < 300
