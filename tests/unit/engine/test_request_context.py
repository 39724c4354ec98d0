"""The state of a request in the pipeline."""

import json

import pytest

from foveate import formats
from foveate.engine.options import AgentOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext
from foveate.model import Format


def make_context(model: str, max_tokens: int, window_tokens: int | None) -> RequestContext:
    payload = {"model": model, "max_tokens": max_tokens, "messages": [{"role": "user", "content": "Hi"}]}
    body = json.dumps(payload).encode()
    request = formats.parse_request(body, Format.ANTHROPIC)
    incoming = IncomingRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="anthropic", body=body
    )
    return RequestContext(
        incoming=incoming,
        options=AgentOptions(window_tokens=window_tokens),
        received_at=0.0,
        original=request,
        request=request,
    )


@pytest.mark.parametrize(
    ("model", "max_tokens", "window_tokens", "reserved"),
    [
        ("claude-opus-4-5", 64_000, None, 64_000),
        ("claude-opus-4-5", 64_000, 200_000, 64_000),  # the model's own window, which the provider enforces
        ("claude-opus-4-5", 64_000, 32_768, 8_192),
        ("claude-opus-4-5", 1_000, 32_768, 1_000),
        ("claude-opus-4-5", 500_000, None, 64_000),  # its maximum output
        ("claude-opus-4-5", 500_000, 1_000_000, 64_000),
        ("gpt-4", 100_000, None, 2_048),  # a window of 8,192, and an unknown maximum output
        ("nobody-knows-it", 64_000, 32_768, 8_192),
        ("nobody-knows-it", 64_000, None, 64_000),
    ],
)
def test_the_response_reserves_at_most_a_quarter_of_a_window_the_provider_does_not_enforce(
    model: str, max_tokens: int, window_tokens: int | None, reserved: int
) -> None:
    """Defect: with a window below its `max_tokens`, every request of a client was rejected."""
    assert make_context(model, max_tokens, window_tokens).output_reserve_tokens == reserved
