"""Over whole sessions, the placed breakpoints cost about as little as fixed ones, or less."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.model import Area, CacheBreakpoint, CacheUsage, Ttl
from foveate.prompt_cache.placement.arrival_times import NO_GAPS, estimate_returns, forecast_next_request
from foveate.prompt_cache.placement.breakpoints import apply_breakpoints, place_breakpoints
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.cache_prompts import opening, piece, results

CLAUDE, FORGETFUL, OPENAI = "claude-sonnet-4-6", "claude-sonnet-4-5", "gpt-5.6"
Ways = Callable[[CachedPrompt], Sequence[int]]


def price(usage: CacheUsage, rules: CacheRules) -> float:
    short, long = min(rules.write_prices.values()), max(rules.write_prices.values())
    written = usage.written_5m * short + usage.written_1h * long
    return usage.uncached + usage.read * rules.read_price + written


def ours(session: Sequence[CachedPrompt], gaps: Sequence[float]) -> float:
    """The cost of a session with our breakpoints, as a share of the cost without any."""
    rules = rules_for(session[0].model)
    cache, now, histogram, paid = SimulatedCache(), 0.0, NO_GAPS, 0.0
    for row, gap in zip(session, gaps, strict=True):
        now += gap
        histogram = histogram.with_gap(gap)
        found = place_breakpoints(
            row, rules, cache, estimate_returns(forecast_next_request(histogram), rules), now=now
        )
        served = cache.serve(apply_breakpoints(row, found), rules, at=now)
        cache = served.cache
        paid += price(served.usage, rules)
    return paid / sum(row.tokens for row in session)


def by_hand(session: Sequence[CachedPrompt], gaps: Sequence[float], ways: Ways, ttl: Ttl) -> float:
    """The same with short-TTL breakpoints on the pieces that `ways` names."""
    rules = rules_for(session[0].model)
    cache, now, paid = SimulatedCache(), 0.0, 0.0
    for row, gap in zip(session, gaps, strict=True):
        now += gap
        places = [row.pieces[at].place for at in ways(row) if row.pieces[at].accepts_breakpoint]
        found = [CacheBreakpoint(place=place, ttl=ttl, reason="by hand") for place in places if place]
        served = cache.serve(apply_breakpoints(row, found), rules, at=now)
        cache = served.cache
        paid += price(served.usage, rules)
    return paid / sum(row.tokens for row in session)


def system_and_end(row: CachedPrompt) -> list[int]:
    system = [at for at, each in enumerate(row.pieces) if each.area is Area.SYSTEM]
    return [*system[-1:], len(row.pieces) - 1]


@pytest.mark.parametrize("model", [CLAUDE, OPENAI])
def test_a_document_stays_cached_though_another_question_follows_it_each_time(model: str) -> None:
    document = [piece("rules", 300, area=Area.SYSTEM), piece("document", 50_000)]
    session = [
        CachedPrompt(model=model, pieces=(*document, piece(f"question {n}", 30, block=1))) for n in range(10)
    ]
    assert ours(session, [20.0] * 10) < 0.22


@pytest.mark.parametrize("model", [CLAUDE, OPENAI])
def test_a_last_block_that_changes_each_turn_does_not_cost_the_history(model: str) -> None:
    session, history = [], [piece("rules", 6_000, area=Area.SYSTEM)]
    for turn in range(30):
        history = [*history, piece(f"question {turn}", 300, index=2 * turn)]
        time = piece(f"the time is {turn}", 60, index=2 * turn, block=1)
        session.append(CachedPrompt(model=model, pieces=(*history, time)))
        history = [*history, piece(f"answer {turn}", 1_500, index=2 * turn + 1)]
    assert ours(session, [20.0] * 30) < 0.18


def test_transient_blocks_and_all_after_them_get_no_breakpoint() -> None:
    row = CachedPrompt(model=CLAUDE, pieces=(*opening(), piece("question", 500), piece("time", 900, block=1)))
    rules = rules_for(CLAUDE)
    time = row.pieces[-1].place
    assert time is not None
    found = place_breakpoints(
        row,
        rules,
        SimulatedCache(),
        estimate_returns(forecast_next_request(), rules),
        now=0.0,
        transient=[time],
    )
    assert [cache_breakpoint.place for cache_breakpoint in found] == [each.place for each in row.pieces[:-1]]


def test_a_provider_that_reads_only_at_breakpoints_gets_one_at_an_entry() -> None:
    session, history = [], [piece("rules", 6_000, area=Area.SYSTEM)]
    for turn in range(30):
        history = [*history, piece(f"turn {turn}", 1_800, index=turn)]
        session.append(CachedPrompt(model=OPENAI, pieces=tuple(history), explicit_only=True))
    assert ours(session, [20.0] * 30) < 0.18


@pytest.mark.slow
@pytest.mark.parametrize("calls", [5, 15, 30])
def test_thinking_that_will_be_dropped_does_not_cost_the_history(calls: int) -> None:
    session: list[CachedPrompt] = []
    said = [piece("rules", 6_000, area=Area.SYSTEM)]
    index = 0
    for turn in range(6):
        said = [*said, piece(f"question {turn}", 500, index=index)]
        session.append(CachedPrompt(model=FORGETFUL, pieces=tuple(said)))
        loop: list[PromptPiece] = []
        for call in range(calls):
            thinking = piece(f"{turn} {call}", 150, kind="thinking", index=index + 1, accepts_breakpoint=False)
            loop = [*loop, thinking, *results(1, 200, index=index + 1, kind="tool_use")]
            loop = [*loop, *results(1, 1_500, index=index + 2)]
            index += 2
            session.append(CachedPrompt(model=FORGETFUL, pieces=(*said, *loop)))
        said = [*said, *(each for each in loop if each.kind != "thinking")]
        index += 1
    gaps = [30.0] * len(session)

    def two_questions(row: CachedPrompt) -> list[int]:
        asked = [at for at, each in enumerate(row.pieces) if each.kind == "text"]
        return [*asked[:1], *asked[-2:], len(row.pieces) - 1]

    assert ours(session, gaps) < 1.03 * by_hand(session, gaps, two_questions, Ttl.FIVE_MINUTES)


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[CachedPrompt], list[float]]:
    """A session that grows by turns of any size, some with many results, some with an end that changes."""
    said = [*opening(draw(st.integers(0, 9_000)), draw(st.integers(1, 9_000)))]
    rows: list[CachedPrompt] = []
    for turn in range(draw(st.integers(3, 10))):
        answer = piece(f"answer {turn}", draw(st.integers(1, 2_000)), kind="tool_use", index=2 * turn)
        count = draw(st.sampled_from((1, 1, 2, 30)))
        brought = results(count, draw(st.integers(1, 4_000)), index=2 * turn + 1)
        said = [*said, answer, *brought]
        passing = [piece(f"now {turn}", 40, index=2 * turn + 1, block=count)] if draw(st.booleans()) else []
        rows.append(CachedPrompt(model=CLAUDE, pieces=(*said, *passing)))
    gaps = draw(
        st.lists(st.sampled_from((5.0, 20.0, 60.0, 400.0, 1800.0)), min_size=len(rows), max_size=len(rows))
    )
    return rows, gaps


@pytest.mark.slow
@settings(max_examples=limit_examples(60))
@given(sessions())
def test_no_session_costs_much_more_than_with_fixed_breakpoints(
    session: tuple[list[CachedPrompt], list[float]],
) -> None:
    rows, gaps = session
    usual = max(by_hand(rows, gaps, system_and_end, ttl) for ttl in (Ttl.FIVE_MINUTES, Ttl.ONE_HOUR))
    assert ours(rows, gaps) < 1.05 * usual


def test_there_are_not_more_breakpoints_if_the_whole_request_has_the_long_ttl() -> None:
    rules = rules_for(OPENAI)
    row = CachedPrompt(model=OPENAI, pieces=(*opening(), piece("question", 5_000)), ttl=Ttl.TWELVE_HOURS)
    found = place_breakpoints(
        row, rules, SimulatedCache(), estimate_returns(forecast_next_request(), rules), now=0.0
    )
    assert {cache_breakpoint.ttl for cache_breakpoint in found} == {Ttl.TWELVE_HOURS}
