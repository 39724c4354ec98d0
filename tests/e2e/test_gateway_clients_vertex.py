"""Vertex AI clients through the gateway: requests are unchanged, and responses are recorded."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import pytest
from google import genai
from google.genai import errors, types
from google.oauth2.credentials import Credentials

from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import GroupBy
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Upstream
from tests.support.oracles.system_state import files_containing, wait_for_agent_sums
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.scripted_upstream import (
    Behaviour,
    ScriptedUpstream,
    http_response,
    respond_always,
    running_upstream,
)

TOKEN = "ya29.of-a-test"
PUBLISHERS_PATH = "projects/house/locations/europe-west1/publishers"
GEMINI = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 20, "totalTokenCount": 30},
    "modelVersion": "gemini-2.5-flash",
}
CLAUDE: Any = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "Hi"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "output_tokens": 20},
}
EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "message_start", "message": CLAUDE | {"content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
    {"type": "message_stop"},
)
STREAM = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in EVENTS).encode()
CLAUDE_MODEL = "claude-sonnet-4-5@20250929"


@contextmanager
def running_vertex(
    behave: Behaviour, folder: Path, **options: Any
) -> Iterator[tuple[ScriptedUpstream, RunningGateway]]:
    with running_upstream(behave) as upstream:
        vertex = Upstream(name="vertex", base_url=upstream.url, family=ApiFamily.VERTEX, provider="vertex")
        with running_gateway(upstream.url, folder, upstreams=[vertex], **options) as gateway:
            yield upstream, gateway
    assert gateway.failed_steps == []


@contextmanager
def open_gemini(gateway: RunningGateway) -> Iterator[genai.Client]:
    options = types.HttpOptions(base_url=gateway.url, retry_options=types.HttpRetryOptions(attempts=1))
    with genai.Client(
        vertexai=True,
        project="house",
        location="europe-west1",
        credentials=Credentials(TOKEN),
        http_options=options,
    ) as client:
        yield client


def open_claude(gateway: RunningGateway, region: str = "europe-west1") -> anthropic.AnthropicVertex:
    return anthropic.AnthropicVertex(
        region=region,
        project_id="house",
        access_token=TOKEN,
        base_url=f"{gateway.url}/v1",
        max_retries=0,
    )


def test_gemini_on_vertex_is_forwarded_and_recorded(tmp_path: Path) -> None:
    with (
        running_vertex(respond_always(http_response(json.dumps(GEMINI).encode())), tmp_path) as (
            upstream,
            gateway,
        ),
        open_gemini(gateway) as client,
    ):
        response = client.models.generate_content(model="gemini-2.5-flash", contents="Hello")

    assert response.text == "Hi"
    head = upstream.requests[0]
    assert f"/{PUBLISHERS_PATH}/google/models/gemini-2.5-flash:generateContent HTTP/1.1".encode() in head
    assert f"\r\nauthorization: Bearer {TOKEN}\r\n".encode() in head
    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "default", 1, GroupBy.MODEL)
    assert (total.group, total.uncached, total.output_tokens) == (("default", "gemini-2.5-flash"), 10, 20)
    assert total.dollars == 10 * Decimal("0.3e-6") + 20 * Decimal("2.5e-6")
    assert files_containing(tmp_path, TOKEN) == []


def test_claude_on_vertex_is_forwarded_and_recorded(tmp_path: Path) -> None:
    request_body: Any = {
        "model": CLAUDE_MODEL,
        "max_tokens": 100,
        "system": "These words are long enough to be kept. " * 400,
        "messages": [{"role": "user", "content": "Hello"}],
    }
    with (
        running_vertex(respond_always(http_response(json.dumps(CLAUDE).encode())), tmp_path) as (
            upstream,
            gateway,
        ),
        open_claude(gateway) as client,
    ):
        client.messages.create(**request_body)

    head, _, body = upstream.requests[0].partition(b"\r\n\r\n")
    assert f"POST /v1/{PUBLISHERS_PATH}/anthropic/models/{CLAUDE_MODEL}:rawPredict HTTP/1.1".encode() in head
    assert b"cache_control" not in body
    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "default", 1, GroupBy.MODEL)
    assert (total.group, total.uncached, total.output_tokens) == (("default", CLAUDE_MODEL), 10, 20)
    assert total.unknown_calls == 0


@pytest.mark.parametrize(
    ("region", "multiple"), [("global", "1"), ("us", "1.1"), ("eu", "1.1"), ("us-east5", "1.1")]
)
def test_claude_on_vertex_costs_more_outside_the_global_location(
    region: str, multiple: str, tmp_path: Path
) -> None:
    reply = CLAUDE | {"usage": CLAUDE["usage"] | {"inference_geo": "not_available"}}
    with (
        running_vertex(respond_always(http_response(json.dumps(reply).encode())), tmp_path) as (_, gateway),
        open_claude(gateway, region) as client,
    ):
        client.messages.create(
            model="claude-opus-4-8", max_tokens=100, messages=[{"role": "user", "content": "Hello"}]
        )

    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "default", 1)
    assert total.dollars == (10 * Decimal("5e-6") + 20 * Decimal("25e-6")) * Decimal(multiple)


def test_claude_on_vertex_streams(tmp_path: Path) -> None:
    with (
        running_vertex(respond_always(http_response(STREAM, content_type="text/event-stream")), tmp_path) as (
            upstream,
            gateway,
        ),
        open_claude(gateway) as client,
        client.messages.stream(
            model=CLAUDE_MODEL, max_tokens=100, messages=[{"role": "user", "content": "Hello"}]
        ) as stream,
    ):
        assert stream.get_final_text() == "Hi"

    assert b":streamRawPredict HTTP/1.1" in upstream.requests[0]
    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "default", 1)
    assert (total.uncached, total.output_tokens, total.partial_calls) == (10, 20, 0)


def test_a_cap_limits_vertex_clients(tmp_path: Path) -> None:
    caps = [Cap(scope=CapScope.AGENT, agent="default", dollars=Decimal("0.001"))]
    with running_vertex(respond_always(http_response(b"{}")), tmp_path, caps=caps) as (upstream, gateway):
        with (
            open_gemini(gateway) as client,
            pytest.raises(errors.ClientError, match="the cap on agent default") as gemini_error,
        ):
            client.models.generate_content(
                model="gemini-2.5-flash",
                contents="Hello",
                config=types.GenerateContentConfig(max_output_tokens=1_000),
            )
        with (
            open_claude(gateway) as claude_client,
            pytest.raises(anthropic.APIStatusError, match="the cap on") as claude_error,
        ):
            claude_client.messages.create(
                model=CLAUDE_MODEL, max_tokens=1_000, messages=[{"role": "user", "content": "Hello"}]
            )

    assert (gemini_error.value.code, claude_error.value.status_code) == (402, 402)
    assert upstream.requests == []
