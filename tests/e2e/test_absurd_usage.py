"""Providers that report absurd usage: cost is unknown, the ceiling is charged, the raw usage is stored."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from foveate.cost.ledger import AccountBalance
from tests.e2e.test_kill_in_flight import CAP, UPSTREAMS, total_standing
from tests.e2e.test_serve_spool import recorded_charges
from tests.support.clients.raw_http import chat_request, claude_request, connect
from tests.support.oracles.system_state import wait_until
from tests.support.servers.gateway_process import gateway_process
from tests.support.servers.sandbox import KEY
from tests.support.servers.scripted_upstream import (
    LAST_CHUNK,
    STREAM_HEAD,
    UpstreamConnection,
    http_chunk,
    http_response,
    running_upstream,
)

pytestmark = pytest.mark.process

ODD: dict[str, Any] = {"huge": 10**12, "negative": -5, "nan": float("nan"), "text": "12", "half": 1.5}


def respond_with_absurd_usage(talk: UpstreamConnection) -> None:
    """Answer each request with the invalid usage that the last word of the request names."""
    request_bytes = talk.read_request()
    (odd,) = [value for name, value in ODD.items() if b"say " + name.encode() in request_bytes]
    is_stream = b'"stream": true' in request_bytes
    if b"/v1/messages" in request_bytes:
        usage = {"input_tokens": 9, "output_tokens": odd}
        start = {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}
        events: list[dict[str, Any]] = [
            start,
            {"type": "message_delta", "usage": usage},
            {"type": "message_stop"},
        ]
        whole = {"type": "message", "content": [], "usage": usage}
    else:
        usage = {"prompt_tokens": odd, "completion_tokens": 4}
        events = [{"choices": [{"delta": {"content": "x"}}]}, {"choices": [], "usage": usage}]
        whole = {"choices": [], "usage": usage}
    if not is_stream:
        talk.send(http_response(json.dumps(whole).encode()))
        return
    named = [f"event: {one['type']}\n".encode() if "type" in one else b"" for one in events]
    stream_events = [
        name + b"data: " + json.dumps(one).encode() + b"\n\n" for name, one in zip(named, events, strict=True)
    ]
    talk.send(
        STREAM_HEAD,
        *map(http_chunk, stream_events),
        *([] if named[0] else [http_chunk(b"data: [DONE]\n\n")]),
        LAST_CHUNK,
    )


@pytest.mark.parametrize("caps", ["", CAP], ids=["without caps", "with a cap"])
def test_absurd_usage_is_recorded_as_unknown_and_charged_as_its_ceiling(tmp_path: Path, caps: str) -> None:
    """Attack: a provider that reports a negative or impossible number of tokens made calls free."""
    config = tmp_path / "foveate.yaml"
    requests = [
        ask(KEY, stream=stream, text=f"say {name}", connection="close")
        for name in ODD
        for stream in (False, True)
        for ask in (claude_request, chat_request)
    ]
    with running_upstream(respond_with_absurd_usage) as upstream:
        config.write_text(UPSTREAMS.format(url=upstream.url) + caps)
        with gateway_process(tmp_path, "--config", str(config)) as served:
            for request in requests:
                with connect(served.url) as connection:
                    connection.sendall(request)
                    assert b" 200 " in connection.recv(65_536)[:20]
                    while connection.recv(65_536):
                        pass
            found = wait_until(lambda: recorded_charges(tmp_path), lambda found: len(found) == len(requests))
    assert len(found) == len(requests)
    for one in found:
        assert one.dollars is None
        assert one.usage.cache.input_tokens == one.usage.output_tokens == 0
        assert any(json.dumps(odd).lower().encode() in one.usage.raw.lower() for odd in ODD.values())
        assert one.charge == one.estimated_dollars
        assert one.charge is not None
        assert one.charge > 0
    charged = sum((one.charge or Decimal(0) for one in found), Decimal(0))
    assert total_standing(tmp_path) == AccountBalance(spent=charged, reserved=Decimal(0))
