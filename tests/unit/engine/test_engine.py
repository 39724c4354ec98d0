"""The pipeline: steps run in order, each may fail on its own, and rejections reach the client."""

import json
from collections.abc import Sequence
from decimal import Decimal

import pytest

from foveate.engine.engine import Engine
from foveate.engine.exchange import Exchange
from foveate.engine.options import AgentOptions
from foveate.engine.request import IncomingRequest
from foveate.engine.request_context import RequestContext, Step
from foveate.errors import CapExceeded, DoesNotFit, DuplicateKey
from foveate.formats.json_text.parse import to_json
from foveate.model import Area, CacheBreakpoint, Format, Place, ReplaceText, SetParameter
from tests.support.oracles.engine_observers import StepObserver

BODY = b'{"model": "claude-opus-4-5",  "max_tokens": 9, "messages": [{"role":"user","content":"Hi"}]}'


class FakeStep:
    """A step that makes these edits, or raises."""

    def __init__(self, name: str, action: object) -> None:
        self.name = name
        self._action = action

    async def apply(self, context: RequestContext) -> None:
        if isinstance(self._action, Exception):
            raise self._action
        if isinstance(self._action, ReplaceText):
            await context.apply_edits(self.name, (self._action,))
        if isinstance(self._action, CacheBreakpoint):
            context.cache.breakpoints = (self._action,)
        if isinstance(self._action, SetParameter):
            context.cache.added_parameters += (self._action,)


REPLACE_TEXT = ReplaceText(place=Place(Area.MESSAGES, 0, 0), text="Hello", reason="longer")
BREAKPOINT = CacheBreakpoint(place=Place(Area.MESSAGES, 0, 0), reason="it pays")
INVALID_BREAKPOINT = CacheBreakpoint(place=Place(Area.MESSAGES, 7, 0), reason="there is no such message")


async def admit_always(request_id: str, agent: str, reason: str) -> None: ...


def make_engine(observer: StepObserver, steps: Sequence[Step]) -> Engine:
    return Engine(
        steps=steps,
        options=lambda _: AgentOptions(),
        clock=lambda: 1.0,
        observer=observer,
        admit_uncounted=admit_always,
    )


def make_incoming(body: bytes, model: str | None) -> IncomingRequest:
    return IncomingRequest(
        id="r",
        agent="ana",
        api_format=Format.ANTHROPIC,
        provider="anthropic",
        upstream="a",
        body=body,
        model=model,
    )


async def prepare(
    *actions: object, body: bytes = BODY, model: str | None = None
) -> tuple[Exchange, StepObserver]:
    observer = StepObserver()
    steps = [FakeStep(f"step {number}", action) for number, action in enumerate(actions, start=1)]
    return await make_engine(observer, steps).prepare(make_incoming(body, model)), observer


async def test_a_request_without_edits_is_sent_byte_for_byte() -> None:
    exchange, observer = await prepare(None, None)

    assert exchange.upstream_request.body is BODY
    assert (observer.steps, observer.problems) == (["step 1", "step 2"], [])


async def test_edits_of_all_steps_are_sent_and_listed_with_their_step() -> None:
    exchange, _ = await prepare(REPLACE_TEXT, BREAKPOINT)

    assert b'"Hello"' in exchange.upstream_request.body
    assert b"cache_control" in exchange.upstream_request.body
    assert [applied.step for applied in exchange.upstream_request.applied_edits] == ["step 1", "cache"]


@pytest.mark.parametrize("failure", [RuntimeError("no"), ValueError("no"), RecursionError("no")])
async def test_a_failing_step_is_skipped_and_reported(failure: Exception) -> None:
    exchange, observer = await prepare(REPLACE_TEXT, failure, BREAKPOINT)

    assert b'"Hello"' in exchange.upstream_request.body
    assert b"cache_control" in exchange.upstream_request.body
    assert [problem.step for problem in observer.problems] == ["step 2"]
    assert exchange.upstream_request.problems == tuple(observer.problems)


async def test_breakpoints_that_cannot_be_written_are_dropped() -> None:
    exchange, observer = await prepare(REPLACE_TEXT, INVALID_BREAKPOINT)

    assert exchange.upstream_request.body == BODY.replace(b'"Hi"', b'"Hello"')
    assert [problem.step for problem in observer.problems] == ["write"]


@pytest.mark.parametrize(
    "rejection",
    [
        DoesNotFit("too long", tokens=9, limit_tokens=5, window_tokens=6),
        CapExceeded(
            "no", "wait", cap="c", limit=Decimal(1), spent=Decimal(1), reserved=Decimal(0), ceiling=Decimal(1)
        ),
    ],
)
async def test_a_rejection_by_a_step_is_raised(rejection: Exception) -> None:
    with pytest.raises(type(rejection)):
        await prepare(REPLACE_TEXT, rejection)


@pytest.mark.parametrize("body", [b"", b"not JSON", b"[1]", b'{"model": 1}', b'{"messages": 3}'])
async def test_an_unreadable_request_is_sent_unchanged(body: bytes) -> None:
    exchange, observer = await prepare(RuntimeError("not reached where it cannot be read"), body=body)

    assert exchange.upstream_request.body == body
    assert observer.problems


async def test_a_model_is_sent_under_its_name_at_the_upstream() -> None:
    exchange, _ = await prepare(model="anthropic/claude-opus-4.5")

    assert exchange.upstream_request.body == BODY.replace(b"claude-opus-4-5", b"anthropic/claude-opus-4.5")


async def test_rejected_breakpoints_are_dropped_once() -> None:
    exchange, _ = await prepare(REPLACE_TEXT, BREAKPOINT)
    first = exchange.upstream_request
    error_body = b'{"error": {"message": "messages.0.cache_control: Extra inputs are not permitted"}}'

    assert not await exchange.should_resend(400, b'{"error": {"message": "max_tokens is too large"}}')
    assert exchange.upstream_request is first
    assert await exchange.should_resend(400, error_body)
    assert exchange.upstream_request.body == BODY.replace(b'"Hi"', b'"Hello"')
    assert [applied.step for applied in exchange.upstream_request.applied_edits] == ["step 1"]
    assert not await exchange.should_resend(400, error_body)


ADDED_PARAMETERS = (
    SetParameter(path=("prompt_cache_key",), value="k", reason=""),
    SetParameter(path=("stream_options", "include_usage"), value=True, reason=""),
)
UNKNOWN_PARAMETER = (
    b'{"error": {"message": "Unknown parameter: \'%b\'.", "param": "%b", "code": "unknown_parameter"}}'
)


async def test_each_rejected_parameter_of_ours_is_dropped() -> None:
    exchange, _ = await prepare(*ADDED_PARAMETERS, BREAKPOINT)
    request = json.loads(exchange.upstream_request.body)
    assert {"prompt_cache_key", "stream_options"} <= request.keys()

    assert not await exchange.should_resend(400, UNKNOWN_PARAMETER % (b"temperature", b"temperature"))
    assert not await exchange.should_resend(500, UNKNOWN_PARAMETER % (b"prompt_cache_key", b"prompt_cache_key"))
    assert await exchange.should_resend(400, UNKNOWN_PARAMETER % (b"prompt_cache_key", b"prompt_cache_key"))
    del request["prompt_cache_key"]
    assert json.loads(exchange.upstream_request.body) == request
    assert await exchange.should_resend(
        422, b'{"detail": [{"loc": ["body", "stream_options"], "msg": "Extra"}]}'
    )
    del request["stream_options"]
    assert json.loads(exchange.upstream_request.body) == request
    assert await exchange.should_resend(400, b'{"error": {"message": "cache_control: not permitted"}}')
    assert json.loads(exchange.upstream_request.body) == json.loads(BODY)
    assert exchange.rejected_parameters == {"prompt_cache_key", "stream_options"}
    assert not await exchange.should_resend(400, UNKNOWN_PARAMETER % (b"prompt_cache_key", b"prompt_cache_key"))


async def test_a_rejected_parameter_of_the_client_is_not_dropped() -> None:
    body = to_json({**json.loads(BODY), "prompt_cache_key": "mine", "stream_options": {"include_usage": True}})
    exchange, _ = await prepare(None, body=body)

    for name in (b"prompt_cache_key", b"stream_options"):
        assert not await exchange.should_resend(400, UNKNOWN_PARAMETER % (name, name))
    assert exchange.upstream_request.body == body


async def test_a_rejection_without_our_breakpoints_concerns_the_client() -> None:
    exchange, _ = await prepare(None)

    assert not await exchange.should_resend(400, b'{"error": {"message": "cache_control: not permitted"}}')


THINKING_BODY = {
    "model": "claude-opus-5-5",
    "max_tokens": 2000,
    "thinking": {"type": "adaptive"},
    "messages": [{"role": "user", "content": "Hi"}],
}
MISMATCH = b'{"error": {"message": "messages.5.content.0: prefix_mismatch: the messages before this block"}}'


@pytest.mark.parametrize(
    ("model", "status", "error_body", "is_noted"),
    [
        ("claude-opus-5-5", 400, MISMATCH, True),
        ("claude-opus-5-5", 400, b'{"error": {"message": "max_tokens is too large"}}', False),
        ("claude-opus-5-5", 429, MISMATCH, False),
        ("claude-opus-4-5", 400, MISMATCH, False),
    ],
    ids=["thinking rejected", "another error", "rate limit", "model does not bind thinking"],
)
async def test_rejected_thinking_is_noted_and_nothing_is_sent_again(
    model: str, status: int, error_body: bytes, is_noted: bool
) -> None:
    exchange, _ = await prepare(BREAKPOINT, body=to_json(THINKING_BODY | {"model": model}))
    upstream_request = exchange.upstream_request

    assert not await exchange.should_resend(status, error_body)
    assert exchange.upstream_request is upstream_request
    assert exchange.has_invalid_thinking == is_noted


async def test_a_request_with_a_duplicate_key_is_rejected_without_a_cap_too() -> None:
    body = BODY.replace(b'"max_tokens": 9', b'"max_tokens": 64000, "max_tokens": 9')

    with pytest.raises(DuplicateKey, match="`max_tokens` occurs twice"):
        await make_engine(StepObserver(), []).prepare(make_incoming(body, None))
