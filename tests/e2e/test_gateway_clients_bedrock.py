"""The official AWS client through the gateway: requests keep their signature, responses are recorded."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import botocore.session
import httpx
import pytest
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

from foveate.compaction.plan import CompactionOptions
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import GroupBy
from foveate.engine.options import AgentOptions
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Route, Upstream
from tests.support.oracles.system_state import files_containing, wait_for_agent_sums, wait_until_settled
from tests.support.servers.aws import (
    ACCESS_KEY,
    REGION,
    SECRET_KEY,
    chunk_frame,
    event_stream_frame,
    is_signature_valid,
)
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.scripted_upstream import (
    Behaviour,
    ScriptedUpstream,
    http_response,
    respond_always,
    running_upstream,
)

MODEL = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0"
MESSAGES: Any = [{"role": "user", "content": [{"text": "Hello"}]}]
USAGE = {
    "inputTokens": 10,
    "outputTokens": 20,
    "totalTokens": 1_030,
    "cacheReadInputTokens": 1_000,
    "cacheWriteInputTokens": 0,
}
# Prices of Claude Sonnet 4.5 with the regional surcharge of 10% (aws.amazon.com/bedrock/pricing, Nov. 2026).
DOLLARS = (10 * Decimal("3e-6") + 1_000 * Decimal("0.3e-6") + 20 * Decimal("15e-6")) * Decimal("1.1")
CONVERSE_RESPONSE = {
    "output": {"message": {"role": "assistant", "content": [{"text": "Hi"}]}},
    "stopReason": "end_turn",
    "usage": USAGE,
    "metrics": {"latencyMs": 1},
}
EVENTS = b"".join(
    (
        event_stream_frame("messageStart", {"role": "assistant"}),
        event_stream_frame("contentBlockDelta", {"delta": {"text": "Hi"}, "contentBlockIndex": 0}),
        event_stream_frame("contentBlockStop", {"contentBlockIndex": 0}),
        event_stream_frame("messageStop", {"stopReason": "end_turn"}),
        event_stream_frame("metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}}),
    )
)
CLAUDE: Any = {
    "anthropic_version": "bedrock-2023-05-31",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hello"}],
}
CLAUDE_USAGE = {"input_tokens": 10, "cache_read_input_tokens": 1_000, "output_tokens": 20}
INVOKE_RESPONSE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "Hi"}],
    "stop_reason": "end_turn",
    "usage": CLAUDE_USAGE,
}
CHUNKS = b"".join(
    map(
        chunk_frame,
        (
            {"type": "message_start", "message": {"id": "msg_1", "usage": CLAUDE_USAGE | {"output_tokens": 1}}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
            {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 10}},
        ),
    )
)
STREAM = "application/vnd.amazon.eventstream"


def bedrock_upstream(url: str, **more: Any) -> Upstream:
    return Upstream(name="bedrock", base_url=url, family=ApiFamily.BEDROCK, provider="bedrock", **more)


def name_agent(request: Any, agent: str) -> None:
    request.headers["x-foveate-agent"] = agent


def open_client(url: str, agent: str = "") -> BaseClient:
    client = botocore.session.Session().create_client(
        "bedrock-runtime",
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        aws_session_token="a-token",
        config=Config(retries={"total_max_attempts": 1}),
    )
    if agent:
        client.meta.events.register("before-send", lambda request, **_: name_agent(request, agent))
    return client


@contextmanager
def running_client(
    behave: Behaviour, folder: Path, agent: str = "aws", **options: Any
) -> Iterator[tuple[Any, ScriptedUpstream, RunningGateway]]:
    """A client, a fake AWS upstream, and the gateway between them."""
    with (
        running_upstream(behave) as upstream,
        running_gateway(upstream.url, folder, upstreams=[bedrock_upstream(upstream.url)], **options) as gateway,
    ):
        yield open_client(gateway.url, agent), upstream, gateway
    assert gateway.failed_steps == []


def test_a_conversation_is_forwarded_with_its_signature_and_recorded(tmp_path: Path) -> None:
    with running_client(respond_always(http_response(json.dumps(CONVERSE_RESPONSE).encode())), tmp_path) as (
        client,
        upstream,
        _,
    ):
        reply = client.converse(
            modelId=MODEL, system=[{"text": "Be kind."}], messages=MESSAGES, inferenceConfig={"maxTokens": 100}
        )

    assert reply["output"]["message"]["content"] == [{"text": "Hi"}]
    (request,) = upstream.requests
    assert request.startswith(
        b"POST /model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse HTTP/1.1\r\n"
    )
    assert is_signature_valid(request)
    assert b"x-foveate" not in request
    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "aws", 1, GroupBy.MODEL)
    assert (total.group, total.calls, total.partial_calls) == (("aws", MODEL), 1, 0)
    assert (total.uncached, total.read, total.output_tokens) == (10, 1_000, 20)
    assert total.dollars == DOLLARS
    assert files_containing(tmp_path, SECRET_KEY) == files_containing(tmp_path, "a-token") == []


def test_a_signature_is_valid_only_for_the_signed_request(tmp_path: Path) -> None:
    """The check that the other tests rely on."""
    with running_client(respond_always(http_response(json.dumps(CONVERSE_RESPONSE).encode())), tmp_path) as (
        client,
        upstream,
        _,
    ):
        client.converse(modelId=MODEL, messages=MESSAGES)

    assert is_signature_valid(upstream.requests[0])
    assert not is_signature_valid(upstream.requests[0].replace(b"Hello", b"Hallo"))
    assert not is_signature_valid(upstream.requests[0].replace(b"/converse", b"/invoke"))


def test_streams_are_forwarded_in_their_frames_and_recorded(tmp_path: Path) -> None:
    with running_client(respond_always(http_response(EVENTS, content_type=STREAM)), tmp_path) as (
        client,
        upstream,
        _,
    ):
        events = list(client.converse_stream(modelId=MODEL, messages=MESSAGES)["stream"])

    assert events[-1]["metadata"]["usage"]["outputTokens"] == 20
    assert is_signature_valid(upstream.requests[0])
    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "aws", 1)
    assert (total.uncached, total.read, total.output_tokens, total.partial_calls) == (10, 1_000, 20, 0)
    assert total.dollars == DOLLARS


def test_claude_can_be_invoked_with_a_messages_api_body(tmp_path: Path) -> None:
    with running_client(respond_always(http_response(json.dumps(INVOKE_RESPONSE).encode())), tmp_path) as (
        client,
        upstream,
        _,
    ):
        reply = client.invoke_model(modelId=MODEL, body=json.dumps(CLAUDE))

    assert json.loads(reply["body"].read()) == INVOKE_RESPONSE
    assert is_signature_valid(upstream.requests[0])
    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "aws", 1, GroupBy.MODEL)
    assert (total.group, total.uncached, total.read, total.output_tokens) == (("aws", MODEL), 10, 1_000, 20)
    assert total.dollars == DOLLARS


def test_claude_streams_in_chunks_of_base64(tmp_path: Path) -> None:
    with running_client(respond_always(http_response(CHUNKS, content_type=STREAM)), tmp_path) as (client, _, _):
        reply = client.invoke_model_with_response_stream(modelId=MODEL, body=json.dumps(CLAUDE))
        events = [json.loads(event["chunk"]["bytes"]) for event in reply["body"]]

    assert events[-1]["type"] == "message_stop"
    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "aws", 1)
    assert (total.uncached, total.read, total.output_tokens, total.partial_calls) == (10, 1_000, 20, 0)
    assert total.dollars == DOLLARS


def test_an_exception_in_a_stream_is_recorded_as_an_incomplete_call(tmp_path: Path) -> None:
    failing_stream = EVENTS[
        : EVENTS.index(event_stream_frame("messageStop", {"stopReason": "end_turn"}))
    ] + event_stream_frame("throttlingException", {"message": "slowly"}, kind="exception")
    with (
        running_client(respond_always(http_response(failing_stream, content_type=STREAM)), tmp_path) as (
            client,
            _,
            _,
        ),
        pytest.raises(EventStreamError, match="slowly"),
    ):
        list(client.converse_stream(modelId=MODEL, messages=MESSAGES)["stream"])

    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "aws", 1)
    assert (total.calls, total.partial_calls) == (1, 1)


def test_a_conversation_is_one_session_and_is_not_edited(tmp_path: Path) -> None:
    options = AgentOptions(
        compaction=True, window_tokens=3_000, compaction_options=CompactionOptions(extractive=True)
    )
    behave = respond_always(http_response(json.dumps(CONVERSE_RESPONSE).encode()))
    messages: Any = list(MESSAGES)
    with running_client(behave, tmp_path, options=options) as (client, upstream, _):
        for _ in range(6):
            reply = client.converse(modelId=MODEL, messages=messages)
            messages += [reply["output"]["message"], {"role": "user", "content": [{"text": "word " * 1_000}]}]

    assert all(map(is_signature_valid, upstream.requests))
    (session,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "aws", 6, GroupBy.SESSION)
    assert session.calls == 6


def test_a_cap_limits_bounded_calls_and_rejects_the_rest(tmp_path: Path) -> None:
    caps = [Cap(scope=CapScope.AGENT, agent="aws", dollars=Decimal("0.02"))]
    behave = respond_always(http_response(json.dumps(CONVERSE_RESPONSE).encode()))
    with running_client(behave, tmp_path, caps=caps) as (client, upstream, _):
        client.converse(modelId=MODEL, messages=MESSAGES, inferenceConfig={"maxTokens": 1_000})
        wait_until_settled(tmp_path / "gateway.sqlite", 1)
        with pytest.raises(ClientError, match="the cap on agent aws") as limit_error:
            client.converse(modelId=MODEL, messages=MESSAGES, inferenceConfig={"maxTokens": 2_000})
        with pytest.raises(ClientError, match="the cap on agent aws") as unlimited_error:
            client.converse(modelId=MODEL, messages=MESSAGES)
        with pytest.raises(ClientError, match="cannot be checked") as unreadable_error:
            client.invoke_model(modelId="meta.llama3-70b-instruct-v1:0", body=b'{"prompt":"Hello"}')

    for error in (limit_error, unlimited_error, unreadable_error):
        assert error.value.response["Error"]["Code"] == "ServiceQuotaExceededException"
        assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 402
    assert len(upstream.requests) == 1


def test_an_unparsed_request_is_forwarded_with_its_signature(tmp_path: Path) -> None:
    with running_client(respond_always(http_response(b'{"generation":"Hi"}')), tmp_path) as (
        client,
        upstream,
        _,
    ):
        client.invoke_model(modelId="meta.llama3-70b-instruct-v1:0", body=b'{"prompt":"Hello"}')

    assert is_signature_valid(upstream.requests[0])


def test_a_provider_error_raises_the_exception_of_the_client(tmp_path: Path) -> None:
    rejection = http_response(
        b'{"message":"too many"}', status="429 Too Many Requests", x_amzn_errortype="ThrottlingException"
    )
    with (
        running_client(respond_always(rejection), tmp_path) as (client, _, _),
        pytest.raises(ClientError, match="too many") as exc_info,
    ):
        client.converse(modelId=MODEL, messages=MESSAGES)

    assert exc_info.value.response["Error"]["Code"] == "ThrottlingException"


def test_a_route_cannot_rename_the_model_of_a_signed_request(tmp_path: Path) -> None:
    behave = respond_always(http_response(json.dumps(CONVERSE_RESPONSE).encode()))
    routes = [Route(models="*", upstream="bedrock", model="another")]
    with (
        running_client(behave, tmp_path, routes=routes) as (client, upstream, _),
        pytest.raises(ClientError, match="own cloud credentials are sent unchanged"),
    ):
        client.converse(modelId=MODEL, messages=MESSAGES)

    assert upstream.requests == []


def test_requests_with_a_key_of_the_gateway_use_the_whole_pipeline(tmp_path: Path) -> None:
    """Requests with a Bedrock API key are not signed, so breakpoints can be placed."""
    with running_upstream(respond_always(http_response(json.dumps(CONVERSE_RESPONSE).encode()))) as upstream:
        upstream_with_key = bedrock_upstream(upstream.url, key="bedrock-api-key-ours", replaces_keys=True)
        with running_gateway(upstream.url, tmp_path, upstreams=[upstream_with_key]) as gateway:
            client: Any = open_client(gateway.url)
            client.converse(
                modelId=MODEL, system=[{"text": "These words are cached. " * 800}], messages=MESSAGES
            )

    (request,) = upstream.requests
    assert b"\r\nauthorization: Bearer bedrock-api-key-ours\r\n" in request
    assert b"AWS4-HMAC" not in request
    assert b"a-token" not in request
    assert b'"cachePoint"' in request
    assert gateway.failed_steps == []


SIGNING_OPTIONS: Any = {"aws_region": REGION, "replaces_keys": True}


@pytest.mark.parametrize("path", ["converse", "converse-stream"])
def test_the_gateway_signs_edited_requests_with_its_own_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    request_body = {"system": [{"text": "These words are cached. " * 800}], "messages": MESSAGES}
    client_headers = {
        "authorization": "AWS4-HMAC-SHA256 Credential=AKIATHEIRS",
        "x-amz-date": "20200101T000000Z",
    }
    with running_upstream(respond_always(http_response(json.dumps(CONVERSE_RESPONSE).encode()))) as upstream:
        signing_upstream = bedrock_upstream(upstream.url, **SIGNING_OPTIONS)
        with running_gateway(upstream.url, tmp_path, upstreams=[signing_upstream]) as gateway:
            response = httpx.post(
                f"{gateway.url}/model/{MODEL}/{path}?a=b%3A",
                json=request_body,
                headers=client_headers,
                timeout=60,
            )

    (request,) = upstream.requests
    assert response.status_code == 200
    assert is_signature_valid(request)
    assert b"AKIATHEIRS" not in request
    assert b'"cachePoint"' in request
    assert gateway.failed_steps == []


def test_without_credentials_nothing_is_sent_and_nothing_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    caps = [Cap(scope=CapScope.AGENT, agent="default", dollars=Decimal(1))]
    with running_upstream(respond_always(http_response(json.dumps(CONVERSE_RESPONSE).encode()))) as upstream:
        signing_upstream = bedrock_upstream(upstream.url, **SIGNING_OPTIONS)
        with running_gateway(upstream.url, tmp_path, upstreams=[signing_upstream], caps=caps) as gateway:
            response = httpx.post(
                f"{gateway.url}/model/{MODEL}/converse",
                json={"messages": MESSAGES, "inferenceConfig": {"maxTokens": 100}},
                timeout=60,
            )

    assert (response.status_code, upstream.requests) == (401, [])
    assert "no AWS credentials to sign with" in response.json()["message"]
    ledger = wait_until_settled(tmp_path / "gateway.sqlite", 0)
    assert (ledger.calls, ledger.reservations) == ([], 0)
