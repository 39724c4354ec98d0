"""Calls are reconstructed from a recording and its usage."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from foveate.cost.pricing.price_book import PriceBook
from foveate.model import CacheUsage, Ttl, Usage
from foveate.replay.policies import Policy
from foveate.replay.recording import Recording
from foveate.replay.run import ReplayOptions, replay_recording
from foveate.replay.simulator.reconstruct import UsageFinding, reconstruct_calls
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import PREFIX_TOKENS, PlannedTurn, make_recording

BOOK = PriceBook()
TURNS = st.lists(
    st.builds(
        PlannedTurn,
        result_chars=st.integers(0, 9_000),
        is_question=st.booleans(),
        gap_seconds=st.sampled_from((0.5, 10.0, 40.0, 299.0, 320.0, 2_000.0, 4_000.0)),
        changes_system=st.sampled_from((False, False, False, True)),
        steps_back=st.sampled_from((0, 0, 0, 1, 2)),
    ),
    min_size=1,
    max_size=14,
)


def off_by(recording: Recording) -> float:
    """Relative difference of the simulated cost from the recorded one."""
    check = replay_recording(recording, BOOK, ReplayOptions(policies=(Policy.RECORDED,))).check
    assert check.off is not None
    return check.off


@pytest.mark.slow
@settings(max_examples=limit_examples(40), deadline=None)
@given(turns=TURNS, ttl=st.sampled_from((Ttl.FIVE_MINUTES, Ttl.ONE_HOUR)))
def test_the_simulated_cost_of_what_was_sent_is_always_within_three_percent(
    turns: list[PlannedTurn], ttl: Ttl
) -> None:
    assert abs(off_by(make_recording(turns, ttl=ttl))) <= 0.03


@pytest.mark.slow
@settings(max_examples=limit_examples(40), deadline=None)
@given(turns=TURNS)
def test_the_parts_of_a_call_always_add_up_to_its_usage(turns: list[PlannedTurn]) -> None:
    recording = make_recording([replace(turn, steps_back=0) for turn in turns])

    for sent in reconstruct_calls(recording):
        assert sent.call.usage is not None
        assert sent.input_tokens == sent.call.usage.cache.input_tokens
        assert sent.recorded.input_tokens == sent.input_tokens


def test_a_fully_recorded_session_needs_only_the_totals_of_its_usage() -> None:
    sent = reconstruct_calls(make_recording([PlannedTurn() for _ in range(30)]))

    assert {one.finding for one in sent} == {UsageFinding.NOTHING}
    assert all(abs(one.expected.read - one.recorded.read) == 0 for one in sent)


def test_the_system_prompt_is_what_the_first_usage_exceeds_the_messages_by() -> None:
    first, *_ = reconstruct_calls(make_recording([PlannedTurn(), PlannedTurn()]))

    assert first.front.tokens == pytest.approx(PREFIX_TOKENS, rel=0.01)


def test_the_first_call_reads_what_earlier_sessions_left() -> None:
    recording = make_recording([PlannedTurn() for _ in range(4)])
    first, *rest = recording.calls
    assert first.usage is not None
    usage = first.usage.cache
    warm = CacheUsage(read=PREFIX_TOKENS, written_5m=usage.input_tokens - PREFIX_TOKENS)
    recording = replace(recording, calls=(replace(first, usage=Usage(cache=warm)), *rest))

    sent = reconstruct_calls(recording)

    assert sent[0].recorded.read == pytest.approx(PREFIX_TOKENS, rel=0.01)
    assert sent[0].finding is UsageFinding.NOTHING


def test_an_unrecorded_change_of_the_system_prompt_is_found_in_the_usage_and_counted() -> None:
    turns = [PlannedTurn(changes_system=number == 10) for number in range(20)]

    sent = reconstruct_calls(make_recording(turns))

    assert [number for number, one in enumerate(sent) if one.finding is UsageFinding.PREFIX_CHANGED] == [10]
    assert sent[10].expected.read > 0 == sent[10].recorded.read


def test_an_entry_that_outlives_its_ttl_is_found_in_the_usage_and_counted() -> None:
    recording = make_recording([PlannedTurn(gap_seconds=400.0 if number == 5 else 20.0) for number in range(8)])
    late = recording.calls[5]
    assert late.usage is not None
    total = late.usage.cache.input_tokens
    found = replace(late, usage=Usage(cache=CacheUsage(read=PREFIX_TOKENS, written_5m=total - PREFIX_TOKENS)))
    recording = replace(recording, calls=(*recording.calls[:5], found, *recording.calls[6:]))

    sent = reconstruct_calls(recording)

    assert sent[5].finding is UsageFinding.ALREADY_CACHED
    assert sent[5].recorded.read == pytest.approx(PREFIX_TOKENS, rel=0.01)


def test_an_unrecorded_shortening_of_the_history_is_found_in_the_usage() -> None:
    """Agents drop old tool results without logging it."""
    recording = make_recording([PlannedTurn(result_chars=9_000) for _ in range(12)])
    cleared = []
    for number, call in enumerate(recording.calls):
        assert call.usage is not None
        total = call.usage.cache.input_tokens
        if number >= 8:
            total -= 9_000
        usage = (
            CacheUsage(read=PREFIX_TOKENS, written_5m=total - PREFIX_TOKENS)
            if number == 8
            else call.usage.cache
        )
        usage = structs.replace(usage, read=usage.read - 9_000) if number > 8 else usage
        cleared.append(replace(call, usage=Usage(cache=usage)))
    recording = replace(recording, calls=tuple(cleared))

    sent = reconstruct_calls(recording)

    for one in sent[8:]:
        assert one.call.usage is not None
        assert one.input_tokens == pytest.approx(one.call.usage.cache.input_tokens, rel=0.005)
    assert abs(off_by(recording)) < 0.03


def test_one_hour_breakpoints_are_inferred_from_the_written_tokens() -> None:
    sent = reconstruct_calls(
        make_recording([PlannedTurn(), PlannedTurn(gap_seconds=1_200.0), PlannedTurn()], ttl=Ttl.ONE_HOUR)
    )

    assert {one.ttls for one in sent} == {(Ttl.ONE_HOUR, Ttl.ONE_HOUR)}
    assert all(one.recorded.written_1h and not one.recorded.written_5m for one in sent)


def test_a_call_that_neither_read_nor_wrote_had_no_breakpoints() -> None:
    recording = make_recording([PlannedTurn(), PlannedTurn()])
    first, second = recording.calls
    assert second.usage is not None
    usage = CacheUsage(uncached=second.usage.cache.input_tokens)
    recording = replace(recording, calls=(first, replace(second, usage=Usage(cache=usage))))

    sent = reconstruct_calls(recording)

    assert sent[1].ttls is None
    assert sent[1].recorded == usage


@pytest.mark.parametrize("words", [200, 30_000])
def test_a_recorded_system_prompt_is_scaled_to_the_usage(words: int) -> None:
    """Its offline count is an estimate; the total of the usage is not."""
    around = b'{"model": "claude-sonnet-4-6", "max_tokens": 900, "system": "' + b"word " * words + b'"}'
    recording = make_recording([PlannedTurn() for _ in range(6)])
    calls = tuple(replace(call, envelope=around) for call in recording.calls)

    sent = reconstruct_calls(replace(recording, calls=calls))

    for one in sent:
        assert one.call.usage is not None
        assert one.input_tokens == pytest.approx(one.call.usage.cache.input_tokens, abs=2)
        assert one.reserve_tokens == 900
    assert abs(off_by(replace(recording, calls=calls))) < 0.03


def test_calls_without_usage_are_counted() -> None:
    sent = reconstruct_calls(
        make_recording([PlannedTurn(result_chars=4_000) for _ in range(3)], has_usage=False)
    )

    assert sent[0].front.tokens == 0
    assert 600 < sent[1].last_node.end_tokens - sent[0].last_node.end_tokens < 1_600
    assert all(one.output_tokens > 0 for one in sent)


def test_an_unreadable_message_is_sized_by_its_bytes() -> None:
    recording = make_recording([PlannedTurn()], has_usage=False)
    (call,) = recording.calls
    broken = replace(
        call, last_message=replace(call.last_message, raw=b'{"role": "user", "content": ' + b"[" * 5_000)
    )

    (sent,) = reconstruct_calls(replace(recording, calls=(broken,)))

    assert sent.input_tokens > 1_000


def test_an_empty_recording_has_sent_nothing() -> None:
    assert reconstruct_calls(make_recording([])) == []
