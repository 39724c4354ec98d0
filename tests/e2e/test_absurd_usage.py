"""Providers that report absurd usage: cost is unknown, the ceiling is charged, the raw usage is stored."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from foveate.cost.ledger import AccountBalance
from tests.support.clients.raw_http import chat_request, claude_request, connect
from tests.support.oracles.system_state import wait_until
from tests.support.servers.gateway_process import TOTAL_CAP, UPSTREAMS_WITHOUT_REUSE, gateway_process
from tests.support.servers.sandbox import KEY
from tests.support.servers.scripted_upstream import (
    LAST_CHUNK,
    STREAM_HEAD,
    UpstreamConnection,
    http_chunk,
    http_response,
    running_upstream,
)
from tests.support.stores.gateway_ledger import read_charges, read_total_balance

pytestmark = pytest.mark.process

ABSURD_COUNTS: dict[str, Any] = {"huge": 10**12, "negative": -5, "nan": float("nan"), "text": "12", "half": 1.5}


def respond_with_absurd_usage(connection: UpstreamConnection) -> None:
    """Answer each request with the invalid usage that the last word of the request names."""
    request_bytes = connection.read_request()
    (absurd_count,) = [
        value for name, value in ABSURD_COUNTS.items() if b"say " + name.encode() in request_bytes
    ]
    is_stream = b'"stream": true' in request_bytes
    if b"/v1/messages" in request_bytes:
        usage = {"input_tokens": 9, "output_tokens": absurd_count}
        start = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
        events: list[dict[str, Any]] = [
            start,
            {"type": "message_delta", "usage": usage},
            {"type": "message_stop"},
        ]
        message = {"type": "message", "content": [], "usage": usage}
    else:
        usage = {"prompt_tokens": absurd_count, "completion_tokens": 4}
        events = [{"choices": [{"delta": {"content": "x"}}]}, {"choices": [], "usage": usage}]
        message = {"choices": [], "usage": usage}
    if not is_stream:
        connection.send(http_response(json.dumps(message).encode()))
        return
    event_names = [f"event: {event['type']}\n".encode() if "type" in event else b"" for event in events]
    stream_events = [
        name + b"data: " + json.dumps(event).encode() + b"\n\n"
        for name, event in zip(event_names, events, strict=True)
    ]
    connection.send(
        STREAM_HEAD,
        *map(http_chunk, stream_events),
        *([] if event_names[0] else [http_chunk(b"data: [DONE]\n\n")]),
        LAST_CHUNK,
    )


@pytest.mark.parametrize("caps", ["", TOTAL_CAP], ids=["without caps", "with a cap"])
def test_absurd_usage_is_recorded_as_unknown_and_charged_as_its_ceiling(tmp_path: Path, caps: str) -> None:
    """Attack: a provider that reports a negative or impossible number of tokens made calls free."""
    config = tmp_path / "foveate.yaml"
    requests = [
        build_request(KEY, stream=stream, text=f"say {name}", connection="close")
        for name in ABSURD_COUNTS
        for stream in (False, True)
        for build_request in (claude_request, chat_request)
    ]
    with running_upstream(respond_with_absurd_usage) as upstream:
        config.write_text(UPSTREAMS_WITHOUT_REUSE.format(url=upstream.url) + caps)
        with gateway_process(tmp_path, "--config", str(config)) as gateway:
            for request in requests:
                with connect(gateway.url) as connection:
                    connection.sendall(request)
                    assert b" 200 " in connection.recv(65_536)[:20]
                    while connection.recv(65_536):
                        pass
            charges = wait_until(lambda: read_charges(tmp_path), lambda charges: len(charges) == len(requests))
    assert len(charges) == len(requests)
    for charge in charges:
        assert charge.dollars is None
        assert charge.usage.cache.input_tokens == charge.usage.output_tokens == 0
        assert any(
            json.dumps(count).lower().encode() in charge.usage.raw.lower() for count in ABSURD_COUNTS.values()
        )
        assert charge.charge == charge.estimated_dollars
        assert charge.charge is not None
        assert charge.charge > 0
    total_charge = sum((charge.charge or Decimal(0) for charge in charges), Decimal(0))
    assert read_total_balance(tmp_path) == AccountBalance(spent=total_charge, reserved=Decimal(0))
