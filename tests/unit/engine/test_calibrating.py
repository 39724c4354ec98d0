"""Bills correct the counts that come after them, and no bill makes a count absurd."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import wire
from foveate.cache.layout import layout
from foveate.cache.prompts import CachedPrompt, Piece
from foveate.cache.rhythm import chances, forecast
from foveate.cache.rules import rules_for
from foveate.cache.simulate import Cache
from foveate.engine.behind import Behind
from foveate.engine.calibrating import MOST_LEARNERS, Calibrate, Calibrations, learner_of
from foveate.engine.calls import Incoming, Outgoing
from foveate.engine.counters import surely_kept
from foveate.engine.counting import Counts
from foveate.engine.exchange import Exchange
from foveate.engine.options import AgentOptions
from foveate.engine.watch import UNWATCHED
from foveate.engine.work import Work
from foveate.fold.overflow import lower_end
from foveate.tokens import RequestCount
from foveate.values import Area, Format, Place, TokenCount
from tests.support.examples import limit_examples

MODEL = "claude-opus-4-5"
BODY = msgspec.json.encode(
    {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}
)


def work_of(calibrations: Calibrations, total: TokenCount, *unexplained: str) -> Work:
    """A request whose raw count is `total`."""
    incoming = Incoming(
        id="r", agent="ana", spoken=Format.ANTHROPIC, provider="anthropic", upstream="there", body=BODY
    )
    request = wire.read(BODY, Format.ANTHROPIC)
    work = Work(incoming=incoming, options=AgentOptions(), now=0.0, came=request, request=request)
    counted = RequestCount(model=MODEL, backend="estimate", total=total, unexplained=unexplained)
    Counts(calibrations).read(work, counted)
    return work


async def bill(
    bills: Calibrations,
    work: Work,
    tokens: int,
    *,
    status: int = 200,
    is_broken: bool = False,
    ends: bool = True,
) -> None:
    """Have a request billed."""
    exchange = Exchange(
        work.incoming,
        work,
        Outgoing(body=BODY),
        settle=(Calibrate(bills),),
        clock=lambda: 0.0,
        watch=UNWATCHED,
        behind=Behind(),
    )
    exchange.begun(status, streams=True)
    started = {"type": "message_start", "message": {"usage": {"input_tokens": tokens}}}
    events = [started, {"type": "message_stop"}] if ends else [started]
    for event in events:
        exchange.passed(b"data: " + msgspec.json.encode(event) + b"\n\n")
    exchange.rest()
    exchange.over(is_broken=is_broken)
    await exchange.settled()


RAW = TokenCount(1_000, False, 1_100)


@pytest.fixture
def bills() -> Calibrations:
    """Nothing is known at first."""
    return Calibrations()


async def test_a_bill_says_how_far_the_count_was_off_and_corrects_the_next(bills: Calibrations) -> None:
    first = work_of(bills, RAW)
    await bill(bills, first, 1_300)
    for _ in range(3):
        await bill(bills, work_of(bills, RAW), 1_300)
    later = work_of(bills, RAW)

    assert (first.count, first.billed_tokens) == (RAW, 1_300)
    assert first.drift_percent == pytest.approx(30)
    assert later.count is not None
    assert later.count.tokens == pytest.approx(1_300, rel=0.02)
    assert later.count.upper >= 1_300
    assert later.estimate is not None
    assert later.estimate.total == RAW  # what is kept of turns stays raw
    assert later.rate == pytest.approx(1.3, rel=0.02)


@pytest.mark.parametrize(
    "billed",
    [
        lambda bills: bill(bills, work_of(bills, RAW), 1_900, is_broken=True, ends=False),
        lambda bills: bill(bills, work_of(bills, RAW), 1_900, status=400),
        lambda bills: bill(bills, work_of(bills, RAW, "web_search"), 1_900),
        lambda bills: bill(bills, work_of(bills, RAW), 0),
        lambda bills: bill(bills, work_of(bills, TokenCount(1_000, True, 1_000)), 1_900),
    ],
    ids=["broke off", "refused", "server-side tool", "nothing", "exact"],
)
async def test_a_bill_that_cannot_be_compared_teaches_nothing(
    bills: Calibrations, billed: Callable[[Calibrations], Awaitable[None]]
) -> None:
    await billed(bills)

    assert work_of(bills, RAW).count == RAW


async def test_each_upstream_teaches_of_itself_alone(bills: Calibrations) -> None:
    _, counter = learner_of(work_of(bills, RAW))
    bills.observed(("poisoned", counter), 1_000, 2_000)

    assert work_of(bills, RAW).count == RAW


async def test_what_was_learnt_of_one_counter_is_not_said_of_another(bills: Calibrations) -> None:
    """What is kept may be of a vocabulary or of rules of before."""
    upstream, counter = learner_of(work_of(bills, RAW))
    bills.observed((upstream, f"{counter} of before"), 1_000, 2_000)

    assert work_of(bills, RAW).count == RAW


def test_models_that_were_heard_of_long_ago_are_forgotten(bills: Calibrations) -> None:
    for number in range(1_000):
        bills.observed(("there", f"model-{number}"), 100, 130)

    assert bills.of(("there", "model-0")).responses == 0
    assert bills.of(("there", "model-999")).responses == 1
    assert len(bills.news()) == MOST_LEARNERS
    assert not bills.has_news


@settings(max_examples=limit_examples(80), deadline=None)
@given(
    st.lists(st.tuples(st.integers(-10, 10**7), st.integers(-10, 10**12)), max_size=30),
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.booleans(),
)
def test_no_bills_make_a_count_absurd(
    pairs: list[tuple[int, int]], tokens: int, margin: int, exact: bool
) -> None:
    known = Calibrations()
    for estimated, billed in pairs:
        known.observed(("there", MODEL), estimated, billed)
    raw = TokenCount(tokens, exact, tokens + margin)

    found = known.applied(("there", MODEL), raw)

    if exact:
        assert found == raw
    assert tokens // 2 <= found.tokens <= max(2 * tokens, raw.upper)
    assert found.tokens <= found.upper <= 2 * max(2 * tokens, raw.upper)


@settings(max_examples=limit_examples(80), deadline=None)
@given(
    st.lists(st.integers(1, 3_000), min_size=1, max_size=12),
    st.floats(0.5, 2.0),
    st.floats(1.0, 2.0),
    st.sampled_from([MODEL, "claude-sonnet-4-5", "claude-opus-5", "claude-opus-4-7"]),
)
def test_no_mark_stands_where_the_prefix_may_be_below_the_minimum(
    sizes: list[int], rate: float, spread: float, model: str
) -> None:
    rules = rules_for(model, "anthropic")
    pieces = tuple(
        Piece(
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
    kept = surely_kept(rules, model, "anthropic", blocks=raw, count=count)

    marks = layout(CachedPrompt(model=model, pieces=pieces), kept, Cache(), chances(forecast(), rules), now=0.0)

    for mark in marks:
        prefix = sum(sizes[: mark.place.index + 1])
        assert prefix * max(lower_end(count), tokens / 2) / raw >= rules.minimum_tokens


def test_of_very_many_models_those_are_remembered_whose_bills_came_last(bills: Calibrations) -> None:
    for number in range(400):
        bills.observed(("u", f"model {number}"), 1_000, 1_300)
        bills.observed(("u", "the usual one"), 1_000, 1_300)

    known = [number for number in range(400) if bills.of(("u", f"model {number}")).responses]
    assert bills.of(("u", "the usual one")).responses == 400
    assert known == list(range(400 - len(known), 400))
    assert 100 < len(known) < 300
