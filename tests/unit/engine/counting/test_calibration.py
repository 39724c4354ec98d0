"""Reported usage corrects later counts, and never makes a count absurd."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.compaction.overflow import lower_bound_tokens
from foveate.engine.completion_queue import CompletionQueue
from foveate.engine.counting.calibration import MAX_CALIBRATIONS, Calibrate, Calibrations, calibration_key
from foveate.engine.counting.offline_counters import conservative_minimum
from foveate.engine.exchange import CallHooks, Exchange
from foveate.engine.observer import NO_OBSERVER
from foveate.engine.options import AgentOptions
from foveate.engine.request import IncomingRequest, UpstreamRequest
from foveate.engine.request_context import RequestContext
from foveate.engine.steps.count import CountCorrector
from foveate.model import Area, Format, Place, TokenCount
from foveate.prompt_cache.placement.arrival_times import estimate_returns, forecast_next_request
from foveate.prompt_cache.placement.breakpoints import place_breakpoints
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece
from foveate.prompt_cache.rules import rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from foveate.tokens import RequestCount

MODEL = "claude-opus-4-5"
BODY = msgspec.json.encode(
    {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}
)


def make_context(calibrations: Calibrations, total: TokenCount, *unexplained: str) -> RequestContext:
    """A request whose raw count is `total`."""
    incoming = IncomingRequest(
        id="r", agent="ana", api_format=Format.ANTHROPIC, provider="anthropic", upstream="there", body=BODY
    )
    request = formats.parse_request(BODY, Format.ANTHROPIC)
    context = RequestContext(
        incoming=incoming, options=AgentOptions(), received_at=0.0, original=request, request=request
    )
    counted = RequestCount(model=MODEL, backend="estimate", total=total, unexplained=unexplained)
    CountCorrector(calibrations).use_raw_count(context, counted)
    return context


async def report_usage(
    calibrations: Calibrations,
    context: RequestContext,
    tokens: int,
    *,
    status: int = 200,
    is_interrupted: bool = False,
    is_complete: bool = True,
) -> None:
    exchange = Exchange(
        context.incoming,
        context,
        UpstreamRequest(body=BODY),
        hooks=CallHooks(in_background=(Calibrate(calibrations),)),
        clock=lambda: 0.0,
        observer=NO_OBSERVER,
        completer=CompletionQueue(),
    )
    exchange.on_response_start(status, is_streaming=True)
    start_event = {"type": "message_start", "message": {"usage": {"input_tokens": tokens}}}
    events = [start_event, {"type": "message_stop"}] if is_complete else [start_event]
    for event in events:
        exchange.on_chunk(b"data: " + msgspec.json.encode(event) + b"\n\n")
    exchange.flush()
    exchange.finish(is_interrupted=is_interrupted)
    await exchange.wait_until_completed()


RAW = TokenCount(1_000, False, 1_100)


@pytest.fixture
def calibrations() -> Calibrations:
    return Calibrations()


async def test_usage_shows_the_drift_of_a_count_and_corrects_the_next(calibrations: Calibrations) -> None:
    first = make_context(calibrations, RAW)
    await report_usage(calibrations, first, 1_300)
    for _ in range(3):
        await report_usage(calibrations, make_context(calibrations, RAW), 1_300)
    corrected = make_context(calibrations, RAW)

    assert (first.count.total, first.count.reported_tokens) == (RAW, 1_300)
    assert first.count.drift_percent == pytest.approx(30)
    assert corrected.count.total is not None
    assert corrected.count.total.tokens == pytest.approx(1_300, rel=0.02)
    assert corrected.count.total.upper >= 1_300
    assert corrected.count.raw is not None
    assert corrected.count.raw.total == RAW  # stored counts of turns stay raw
    assert corrected.tokens_per_raw_token == pytest.approx(1.3, rel=0.02)


@pytest.mark.parametrize(
    "report",
    [
        lambda calibrations: report_usage(
            calibrations, make_context(calibrations, RAW), 1_900, is_interrupted=True, is_complete=False
        ),
        lambda calibrations: report_usage(calibrations, make_context(calibrations, RAW), 1_900, status=400),
        lambda calibrations: report_usage(calibrations, make_context(calibrations, RAW, "web_search"), 1_900),
        lambda calibrations: report_usage(calibrations, make_context(calibrations, RAW), 0),
        lambda calibrations: report_usage(
            calibrations, make_context(calibrations, TokenCount(1_000, True, 1_000)), 1_900
        ),
    ],
    ids=["interrupted", "rejected", "server-side tool", "no tokens", "exact"],
)
async def test_usage_that_cannot_be_compared_is_ignored(
    calibrations: Calibrations, report: Callable[[Calibrations], Awaitable[None]]
) -> None:
    await report(calibrations)

    assert make_context(calibrations, RAW).count.total == RAW


async def test_each_upstream_has_its_own_calibration(calibrations: Calibrations) -> None:
    _, counter = calibration_key(make_context(calibrations, RAW))
    calibrations.observe(("poisoned", counter), 1_000, 2_000)

    assert make_context(calibrations, RAW).count.total == RAW


async def test_each_counter_has_its_own_calibration(calibrations: Calibrations) -> None:
    """Saved calibrations may belong to an older vocabulary or older rules."""
    upstream, counter = calibration_key(make_context(calibrations, RAW))
    calibrations.observe((upstream, f"{counter} of before"), 1_000, 2_000)

    assert make_context(calibrations, RAW).count.total == RAW


def test_the_least_recently_used_models_are_forgotten(calibrations: Calibrations) -> None:
    for number in range(1_000):
        calibrations.observe(("there", f"model-{number}"), 100, 130)

    assert calibrations.get(("there", "model-0")).responses == 0
    assert calibrations.get(("there", "model-999")).responses == 1
    assert len(calibrations.take_changes()) == MAX_CALIBRATIONS
    assert not calibrations.has_changes


@given(
    st.lists(st.tuples(st.integers(-10, 10**7), st.integers(-10, 10**12)), max_size=30),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_no_usage_makes_a_count_absurd(
    pairs: list[tuple[int, int]], tokens: int, margin: int, exact: bool
) -> None:
    calibrations = Calibrations()
    for estimated, reported in pairs:
        calibrations.observe(("there", MODEL), estimated, reported)
    raw = TokenCount(tokens, exact, tokens + margin)

    corrected = calibrations.correct(("there", MODEL), raw)

    if exact:
        assert corrected == raw
    assert tokens // 2 <= corrected.tokens <= max(2 * tokens, raw.upper)
    assert corrected.tokens <= corrected.upper <= 2 * max(2 * tokens, raw.upper)


@given(
    st.lists(st.integers(1, 3_000), min_size=1, max_size=12),
    st.floats(0.5, 2.0),
    st.floats(1.0, 2.0),
    st.sampled_from([MODEL, "claude-sonnet-4-5", "claude-opus-5", "claude-opus-4-7"]),
)
def test_no_breakpoint_is_placed_where_the_prefix_may_be_below_the_minimum(
    sizes: list[int], rate: float, spread: float, model: str
) -> None:
    rules = rules_for(model, "anthropic")
    pieces = tuple(
        PromptPiece(
            digest=bytes((at,)),
            tokens=tokens,
            kind="text",
            area=Area.MESSAGES,
            place=Place(Area.MESSAGES, at, 0),
        )
        for at, tokens in enumerate(sizes)
    )
    raw = sum(sizes)
    tokens = max(1, round(raw * rate))
    count = TokenCount(tokens, False, round(tokens * spread))
    conservative_rules = conservative_minimum(rules, model, "anthropic", blocks=raw, count=count)

    breakpoints = place_breakpoints(
        CachedPrompt(model=model, pieces=pieces),
        conservative_rules,
        SimulatedCache(),
        estimate_returns(forecast_next_request(), rules),
        now=0.0,
    )

    for cache_breakpoint in breakpoints:
        prefix = sum(sizes[: cache_breakpoint.place.index + 1])
        assert prefix * max(lower_bound_tokens(count), tokens / 2) / raw >= rules.minimum_tokens


def test_the_most_recently_used_models_are_remembered(calibrations: Calibrations) -> None:
    for number in range(400):
        calibrations.observe(("u", f"model {number}"), 1_000, 1_300)
        calibrations.observe(("u", "the usual one"), 1_000, 1_300)

    remembered = [number for number in range(400) if calibrations.get(("u", f"model {number}")).responses]
    assert calibrations.get(("u", "the usual one")).responses == 400
    assert remembered == list(range(400 - len(remembered), 400))
    assert 100 < len(remembered) < 300
