"""The state of a request in the pipeline."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.engine.options import AgentOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext, in_pipeline_order
from foveate.engine.steps import PIPELINE
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


class NamedStep:
    def __init__(self, name: str) -> None:
        self.name = name

    async def apply(self, context: RequestContext) -> None: ...


@given(names=st.lists(st.sampled_from(PIPELINE), unique=True))
def test_steps_run_in_the_order_of_the_pipeline_in_whatever_order_they_are_built(names: Sequence[str]) -> None:
    steps = in_pipeline_order(*map(NamedStep, names))

    assert [step.name for step in steps] == [name for name in PIPELINE if name in names]


def test_a_step_without_a_place_in_the_pipeline_is_an_error() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        in_pipeline_order(NamedStep(PIPELINE[0]), NamedStep("another step"))
