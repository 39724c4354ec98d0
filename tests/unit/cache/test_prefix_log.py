"""The log of an agent's prefixes: what is shared, what continues what, and what is in the cache."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cache_workloads import (
    WORKLOADS,
    Builder,
    Workload,
    fixed_costs,
    our_costs,
)
from foveate.cache.prefix_log import MAX_KEYS, PrefixLog, Sighting
from foveate.cache.reuse import AgentReuse, PromptLayer
from foveate.cache.rules import rules_for
from foveate.cache.simulate import Cache
from foveate.values import Ttl

RULES = rules_for("claude-sonnet-4-6")


def layers(sighting: Sighting) -> list[PromptLayer]:
    return [level.layer for level in sighting.levels]


def seen(log: PrefixLog, workload: Workload) -> list[Sighting]:
    return [log.observe(call.asked.prompt, RULES, Cache(), now=call.asked.at) for call in workload]


def test_a_request_that_repeats_another_and_adds_to_it_continues_it() -> None:
    build = Builder()
    system, first = build.text(2048), build.text(1024)
    build.call(0, 1, system=[system], messages=[first])
    build.call(10, 1, system=[system], messages=[first, build.text(64), build.text(512)])
    opening, next_turn = seen(PrefixLog(), build.workload())

    assert layers(opening) == [PromptLayer.SYSTEM, PromptLayer.CONTEXT]
    assert layers(next_turn) == [PromptLayer.SHARED_SYSTEM, PromptLayer.SHARED_CONTEXT, PromptLayer.HISTORY]


def test_requests_that_differ_in_their_last_message_share_all_before_it() -> None:
    build = Builder()
    examples = [build.text(512) for _ in range(6)]
    for number in range(2):
        build.call(number, number, messages=[*examples, build.text(512)])
    _, second = seen(PrefixLog(), build.workload())

    assert layers(second) == [PromptLayer.SHARED_CONTEXT, PromptLayer.CONTEXT]
    assert second.levels[0].pieces == 6


def test_what_was_asked_for_longer_ago_than_the_long_ttl_is_new() -> None:
    build = Builder()
    system = build.text(2048)
    for at in (0, 3599, 2 * 3600):
        build.call(at, 1, system=[system], messages=[build.text(512)])
    found = [layers(each)[0] for each in seen(PrefixLog(), build.workload())]

    assert found == [PromptLayer.SYSTEM, PromptLayer.SHARED_SYSTEM, PromptLayer.SYSTEM]


def test_outcomes_are_counted_within_the_short_ttl_and_late_ones_afterwards() -> None:
    build = Builder()
    system = build.text(2048)
    for at in (0, 10, 1000):
        build.call(at, at, system=[system], messages=[build.text(512)])
    log = PrefixLog()
    seen(log, build.workload())

    new, shared = log.reuse.rate(PromptLayer.SYSTEM), log.reuse.rate(PromptLayer.SHARED_SYSTEM)
    assert (new.asked, new.again, new.late) == (1, 1, 0)
    assert (shared.asked, shared.again, shared.late) == (1, 0, 1)
    assert log.reuse.rate(PromptLayer.CONTEXT).again == 0
    assert log.reuse.requests == 3


def test_a_request_that_failed_shows_nothing_and_wrote_nothing() -> None:
    build = Builder()
    build.call(0, 1, tools=[build.text(4096)], messages=[build.text(4096)])
    build.call(1000, 2, messages=[build.text(4096)])
    log = PrefixLog()
    first, second = build.workload()
    sighting = log.observe(first.asked.prompt, RULES, Cache(), now=0)
    assert log.reuse.unread_new > 0
    log.failed(sighting)

    assert log.reuse.unread_new == 0
    log.observe(second.asked.prompt, RULES, Cache(), now=1000)
    assert log.reuse.rates == {}


def test_what_one_session_wrote_can_be_read_by_another() -> None:
    build = Builder()
    system = build.text(4096)
    for at in (0, 10):
        build.call(at, at, system=[system], messages=[build.text(512)])
    log = PrefixLog()
    first, second = (call.asked for call in build.workload())
    sighting = log.observe(first.prompt, RULES, Cache(), now=0)
    served = Cache().serve_marked(first.prompt, {0: Ttl.FIVE_MINUTES}, RULES, at=0, answers_at=2)
    log.served(sighting, served.cache)
    later = log.observe(second.prompt, RULES, Cache(), now=10)

    assert later.levels[0].is_written
    assert later.reach.written_tokens <= 512
    assert later.cache.serve_marked(second.prompt, {0: Ttl.FIVE_MINUTES}, RULES, at=10).usage.read == 4096


def test_a_log_of_very_many_requests_stays_small_and_keeps_what_is_continued() -> None:
    build = Builder()
    loop = [build.text(2048)]
    for number in range(3000):
        build.call(number / 10, 10_000 + number, messages=[build.text(1024)])
        if number % 500 == 0:
            build.call(number / 10 + 0.01, 1, messages=loop)
            loop = [*loop, build.text(64), build.text(128)]
    log = PrefixLog()
    found = seen(log, build.workload())

    continued = [layers(each)[-1] for each in found if len(each.levels) > 1]
    assert continued == [PromptLayer.HISTORY] * 5
    assert len(log._by_key) <= MAX_KEYS


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_from_call_21_on_a_named_workload_costs_what_the_better_policy_does(name: str) -> None:
    workload = WORKLOADS[name]()
    assert len(workload) >= 200
    none, usual = (sum(fixed_costs(workload, ttl)[20:]) for ttl in (None, Ttl.FIVE_MINUTES))
    cold, learnt = our_costs(workload)
    warm, _ = our_costs(workload, learnt)

    assert sum(cold[20:]) <= 1.02 * min(none, usual)
    assert sum(warm[20:]) <= 1.02 * min(none, usual)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_added_to_the_breakpoints_of_a_client_ours_cost_it_nothing(name: str) -> None:
    workload = WORKLOADS[name]()
    ours, _ = our_costs(workload, client_ttl=Ttl.FIVE_MINUTES)

    assert sum(ours) <= 1.02 * sum(fixed_costs(workload, Ttl.FIVE_MINUTES))


def test_at_most_five_single_calls_in_a_burst_are_written_and_a_loop_starts_writing_again() -> None:
    build = Builder()
    for number in range(100):
        build.call(number / 100, number + 2, messages=[build.text(4096)])
    first = build.text(4096)
    build.call(10, 1, messages=[first])
    build.call(20, 1, messages=[first, build.text(64), build.text(512)])
    build.call(30, 1000, messages=[build.text(4096)])
    found = seen(PrefixLog(), build.workload())

    assert sum(bool(each.reach.written_tokens) for each in found[:101]) <= 5
    assert found[101].reach.layer is PromptLayer.HISTORY
    assert found[102].reach.layer is PromptLayer.CONTEXT


regimes = st.fixed_dictionaries(
    {
        "calls": st.integers(10, 80),
        "tools": st.sampled_from((0, 1024, 8192)),
        "system": st.sampled_from((0, 512, 2048, 8192)),
        "examples": st.sampled_from((0, 0, 4096)),
        "first": st.sampled_from((256, 2048, 16384)),
        "parallel": st.integers(1, 3),
        "single_share": st.sampled_from((0.0, 0.2, 0.5, 0.8, 1.0)),
        "turns": st.integers(2, 12),
        "has_clock": st.booleans(),
        "growth": st.sampled_from((64, 512, 2048)),
        "gap": st.sampled_from((2.0, 20.0, 60.0)),
        "between": st.sampled_from((1.0, 30.0, 120.0)),
    }
)


def generated(said: list[dict[str, float]], seed: int) -> Workload:
    """Regimes one after the other, each with prompts of its own."""
    build, at = Builder(seed), 0.0
    for regime in said:
        tools = [build.text(int(regime["tools"]))] if regime["tools"] else []
        system = [build.text(int(regime["system"]))] if regime["system"] else []
        examples = [build.text(int(regime["examples"]))] if regime["examples"] else []
        lanes, calls = [at] * int(regime["parallel"]), 0
        while calls < regime["calls"]:
            lane = min(range(len(lanes)), key=lanes.__getitem__)
            session, messages = build.session(), [*examples, build.text(int(regime["first"]))]
            is_single = build.random.random() < regime["single_share"]
            for _ in range(1 if is_single else build.random.randint(2, int(regime["turns"]))):
                if regime["has_clock"] and system:
                    system = [build.text(int(regime["system"]))]
                build.call(lanes[lane], session, tools=tools, system=system, messages=messages)
                messages = [*messages, *(build.text(int(regime["growth"])) for _ in range(2))]
                lanes[lane] += build.random.expovariate(1 / regime["gap"])
                calls += 1
            lanes[lane] += build.random.expovariate(1 / regime["between"])
        at = max(lanes) + 1
    return build.workload()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(regimes, min_size=1, max_size=3), st.integers(0, 2**32), st.booleans())
def test_no_generated_workload_costs_much_more_than_the_better_policy(
    said: list[dict[str, float]], seed: int, is_known: bool
) -> None:
    """VALUE-1: 1.02 times the better policy, and for each regime a quarter of the five largest prompts."""
    workload = generated(said, seed)
    none, usual = (sum(fixed_costs(workload, ttl)) for ttl in (None, Ttl.FIVE_MINUTES))
    learnt = our_costs(workload)[1] if is_known else AgentReuse()
    ours, _ = our_costs(workload, learnt)
    largest = sum(sorted(call.asked.tokens for call in workload)[-5:])

    assert sum(ours) <= 1.02 * min(none, usual) + 0.25 * largest * len(said)
