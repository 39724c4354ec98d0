"""Over whole sessions, the placed breakpoints cost about as little as fixed ones, or less."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.model import Area, CacheBreakpoint, CacheUsage, Ttl
from foveate.prompt_cache.placement.arrival_times import NO_GAPS, estimate_returns, forecast_next_request
from foveate.prompt_cache.placement.breakpoints import apply_breakpoints, place_breakpoints
from foveate.prompt_cache.prompt.cached_prompt import CachedPrompt, PromptPiece
from foveate.prompt_cache.rules import CacheRules, rules_for
from foveate.prompt_cache.simulator import SimulatedCache
from tests.support.scenarios.cache_prompts import opening, piece, results

CLAUDE, DROPS_THINKING, OPENAI = "claude-sonnet-4-6", "claude-sonnet-4-5", "gpt-5.6"
ChooseIndexes = Callable[[CachedPrompt], Sequence[int]]


def price(usage: CacheUsage, rules: CacheRules) -> float:
    short_price, long_price = min(rules.write_prices.values()), max(rules.write_prices.values())
    write_cost = usage.written_5m * short_price + usage.written_1h * long_price
    return usage.uncached + usage.read * rules.read_price + write_cost


def relative_cost(session: Sequence[CachedPrompt], gaps: Sequence[float]) -> float:
    """Return the cost of a session with our breakpoints, as a share of the cost without any."""
    rules = rules_for(session[0].model)
    cache, now, histogram, total_cost = SimulatedCache(), 0.0, NO_GAPS, 0.0
    for cached_prompt, gap in zip(session, gaps, strict=True):
        now += gap
        histogram = histogram.with_gap(gap)
        breakpoints = place_breakpoints(
            cached_prompt, rules, cache, estimate_returns(forecast_next_request(histogram), rules), now=now
        )
        served = cache.serve(apply_breakpoints(cached_prompt, breakpoints), rules, at=now)
        cache = served.cache
        total_cost += price(served.usage, rules)
    return total_cost / sum(cached_prompt.tokens for cached_prompt in session)


def relative_cost_with_fixed(
    session: Sequence[CachedPrompt], gaps: Sequence[float], choose_indexes: ChooseIndexes, ttl: Ttl
) -> float:
    """Return the same with breakpoints at the indexes that `choose_indexes` returns."""
    rules = rules_for(session[0].model)
    cache, now, total_cost = SimulatedCache(), 0.0, 0.0
    for cached_prompt, gap in zip(session, gaps, strict=True):
        now += gap
        places = [
            cached_prompt.pieces[index].place
            for index in choose_indexes(cached_prompt)
            if cached_prompt.pieces[index].accepts_breakpoint
        ]
        breakpoints = [CacheBreakpoint(place=place, ttl=ttl, reason="by hand") for place in places if place]
        served = cache.serve(apply_breakpoints(cached_prompt, breakpoints), rules, at=now)
        cache = served.cache
        total_cost += price(served.usage, rules)
    return total_cost / sum(cached_prompt.tokens for cached_prompt in session)


def choose_system_and_end(cached_prompt: CachedPrompt) -> list[int]:
    system_indexes = [
        index for index, prompt_piece in enumerate(cached_prompt.pieces) if prompt_piece.area is Area.SYSTEM
    ]
    return [*system_indexes[-1:], len(cached_prompt.pieces) - 1]


@pytest.mark.parametrize("model", [CLAUDE, OPENAI])
def test_a_document_stays_cached_though_another_question_follows_it_each_time(model: str) -> None:
    document = [piece("rules", 300, area=Area.SYSTEM), piece("document", 50_000)]
    session = [
        CachedPrompt(model=model, pieces=(*document, piece(f"question {number}", 30, block=1)))
        for number in range(10)
    ]
    assert relative_cost(session, [20.0] * 10) < 0.22


@pytest.mark.parametrize("model", [CLAUDE, OPENAI])
def test_a_last_block_that_changes_each_turn_does_not_cost_the_history(model: str) -> None:
    session, history = [], [piece("rules", 6_000, area=Area.SYSTEM)]
    for turn in range(30):
        history = [*history, piece(f"question {turn}", 300, index=2 * turn)]
        time = piece(f"the time is {turn}", 60, index=2 * turn, block=1)
        session.append(CachedPrompt(model=model, pieces=(*history, time)))
        history = [*history, piece(f"answer {turn}", 1_500, index=2 * turn + 1)]
    assert relative_cost(session, [20.0] * 30) < 0.18


def test_transient_blocks_and_all_after_them_get_no_breakpoint() -> None:
    cached_prompt = CachedPrompt(
        model=CLAUDE, pieces=(*opening(), piece("question", 500), piece("time", 900, block=1))
    )
    rules = rules_for(CLAUDE)
    time = cached_prompt.pieces[-1].place
    assert time is not None
    breakpoints = place_breakpoints(
        cached_prompt,
        rules,
        SimulatedCache(),
        estimate_returns(forecast_next_request(), rules),
        now=0.0,
        transient=[time],
    )
    assert [cache_breakpoint.place for cache_breakpoint in breakpoints] == [
        prompt_piece.place for prompt_piece in cached_prompt.pieces[:-1]
    ]


def test_a_provider_that_reads_only_at_breakpoints_gets_one_at_an_entry() -> None:
    session, history = [], [piece("rules", 6_000, area=Area.SYSTEM)]
    for turn in range(30):
        history = [*history, piece(f"turn {turn}", 1_800, index=turn)]
        session.append(CachedPrompt(model=OPENAI, pieces=tuple(history), explicit_only=True))
    assert relative_cost(session, [20.0] * 30) < 0.18


@pytest.mark.slow
@pytest.mark.parametrize("calls", [5, 15, 30])
def test_thinking_that_will_be_dropped_does_not_cost_the_history(calls: int) -> None:
    session: list[CachedPrompt] = []
    history = [piece("rules", 6_000, area=Area.SYSTEM)]
    index = 0
    for turn in range(6):
        history = [*history, piece(f"question {turn}", 500, index=index)]
        session.append(CachedPrompt(model=DROPS_THINKING, pieces=tuple(history)))
        tool_loop: list[PromptPiece] = []
        for call in range(calls):
            thinking = piece(f"{turn} {call}", 150, kind="thinking", index=index + 1, accepts_breakpoint=False)
            tool_loop = [*tool_loop, thinking, *results(1, 200, index=index + 1, kind="tool_use")]
            tool_loop = [*tool_loop, *results(1, 1_500, index=index + 2)]
            index += 2
            session.append(CachedPrompt(model=DROPS_THINKING, pieces=(*history, *tool_loop)))
        history = [*history, *(prompt_piece for prompt_piece in tool_loop if prompt_piece.kind != "thinking")]
        index += 1
    gaps = [30.0] * len(session)

    def choose_two_questions(cached_prompt: CachedPrompt) -> list[int]:
        text_indexes = [
            index for index, prompt_piece in enumerate(cached_prompt.pieces) if prompt_piece.kind == "text"
        ]
        return [*text_indexes[:1], *text_indexes[-2:], len(cached_prompt.pieces) - 1]

    assert relative_cost(session, gaps) < 1.03 * relative_cost_with_fixed(
        session, gaps, choose_two_questions, Ttl.FIVE_MINUTES
    )


@st.composite
def sessions(draw: st.DrawFn) -> tuple[list[CachedPrompt], list[float]]:
    """Generate a growing session: turns of any size, some with many results or a last block that changes."""
    history = [*opening(draw(st.integers(0, 9_000)), draw(st.integers(1, 9_000)))]
    prompts: list[CachedPrompt] = []
    for turn in range(draw(st.integers(3, 10))):
        answer = piece(f"answer {turn}", draw(st.integers(1, 2_000)), kind="tool_use", index=2 * turn)
        count = draw(st.sampled_from((1, 1, 2, 30)))
        tool_results = results(count, draw(st.integers(1, 4_000)), index=2 * turn + 1)
        history = [*history, answer, *tool_results]
        transient = [piece(f"now {turn}", 40, index=2 * turn + 1, block=count)] if draw(st.booleans()) else []
        prompts.append(CachedPrompt(model=CLAUDE, pieces=(*history, *transient)))
    gaps = draw(
        st.lists(
            st.sampled_from((5.0, 20.0, 60.0, 400.0, 1800.0)), min_size=len(prompts), max_size=len(prompts)
        )
    )
    return prompts, gaps


@pytest.mark.slow
@given(sessions())
def test_no_session_costs_much_more_than_with_fixed_breakpoints(
    session: tuple[list[CachedPrompt], list[float]],
) -> None:
    prompts, gaps = session
    fixed_cost = max(
        relative_cost_with_fixed(prompts, gaps, choose_system_and_end, ttl)
        for ttl in (Ttl.FIVE_MINUTES, Ttl.ONE_HOUR)
    )
    assert relative_cost(prompts, gaps) < 1.05 * fixed_cost


def test_there_are_not_more_breakpoints_if_the_whole_request_has_the_long_ttl() -> None:
    rules = rules_for(OPENAI)
    cached_prompt = CachedPrompt(
        model=OPENAI, pieces=(*opening(), piece("question", 5_000)), ttl=Ttl.TWELVE_HOURS
    )
    breakpoints = place_breakpoints(
        cached_prompt, rules, SimulatedCache(), estimate_returns(forecast_next_request(), rules), now=0.0
    )
    assert {cache_breakpoint.ttl for cache_breakpoint in breakpoints} == {Ttl.TWELVE_HOURS}
