"""Calls are reconstructed from a recording and its usage."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from foveate.cost.pricing.price_book import PriceBook
from foveate.model import CacheUsage, Ttl, Usage
from foveate.replay.outcomes import Policy
from foveate.replay.recording import Recording
from foveate.replay.run import ReplayOptions, replay_recording
from foveate.replay.simulator.reconstruct import UsageFinding, reconstruct_calls
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import PREFIX_TOKENS, PlannedTurn, make_recording
from tests.support.strategies.planned_turns import turn_lists

BOOK = PriceBook()


def relative_error(recording: Recording) -> float:
    """Relative difference of the simulated cost from the recorded one."""
    check = replay_recording(recording, BOOK, ReplayOptions(policies=(Policy.RECORDED,))).check
    assert check.relative_error is not None
    return check.relative_error


@pytest.mark.slow
@settings(max_examples=limit_examples(40))
@given(turns=turn_lists, ttl=st.sampled_from((Ttl.FIVE_MINUTES, Ttl.ONE_HOUR)))
def test_the_simulated_cost_of_what_was_sent_is_always_within_three_percent(
    turns: list[PlannedTurn], ttl: Ttl
) -> None:
    assert abs(relative_error(make_recording(turns, ttl=ttl))) <= 0.03


@pytest.mark.slow
@settings(max_examples=limit_examples(40))
@given(turns=turn_lists)
def test_the_parts_of_a_call_always_add_up_to_its_usage(turns: list[PlannedTurn]) -> None:
    recording = make_recording([replace(turn, steps_back=0) for turn in turns])

    for call in reconstruct_calls(recording):
        assert call.call.usage is not None
        assert call.input_tokens == call.call.usage.cache.input_tokens
        assert call.recorded.input_tokens == call.input_tokens


def test_a_fully_recorded_session_needs_only_the_totals_of_its_usage() -> None:
    calls = reconstruct_calls(make_recording([PlannedTurn() for _ in range(30)]))

    assert {call.finding for call in calls} == {UsageFinding.NOTHING}
    assert all(abs(call.expected.read - call.recorded.read) == 0 for call in calls)


def test_the_system_prompt_size_is_the_first_usage_minus_the_messages() -> None:
    first, *_ = reconstruct_calls(make_recording([PlannedTurn(), PlannedTurn()]))

    assert first.preamble.tokens == pytest.approx(PREFIX_TOKENS, rel=0.01)


def test_the_first_call_reads_what_earlier_sessions_left() -> None:
    recording = make_recording([PlannedTurn() for _ in range(4)])
    first, *later_calls = recording.calls
    assert first.usage is not None
    usage = first.usage.cache
    warm_usage = CacheUsage(read=PREFIX_TOKENS, written_5m=usage.input_tokens - PREFIX_TOKENS)
    recording = replace(recording, calls=(replace(first, usage=Usage(cache=warm_usage)), *later_calls))

    calls = reconstruct_calls(recording)

    assert calls[0].recorded.read == pytest.approx(PREFIX_TOKENS, rel=0.01)
    assert calls[0].finding is UsageFinding.NOTHING


def test_an_unrecorded_change_of_the_system_prompt_is_found_in_the_usage_and_counted() -> None:
    turns = [PlannedTurn(changes_system=number == 10) for number in range(20)]

    calls = reconstruct_calls(make_recording(turns))

    assert [number for number, call in enumerate(calls) if call.finding is UsageFinding.PREFIX_CHANGED] == [10]
    assert calls[10].expected.read > 0 == calls[10].recorded.read


def test_an_entry_that_outlives_its_ttl_is_found_in_the_usage_and_counted() -> None:
    recording = make_recording([PlannedTurn(gap_seconds=400.0 if number == 5 else 20.0) for number in range(8)])
    late_call = recording.calls[5]
    assert late_call.usage is not None
    total = late_call.usage.cache.input_tokens
    early_read = replace(
        late_call, usage=Usage(cache=CacheUsage(read=PREFIX_TOKENS, written_5m=total - PREFIX_TOKENS))
    )
    recording = replace(recording, calls=(*recording.calls[:5], early_read, *recording.calls[6:]))

    calls = reconstruct_calls(recording)

    assert calls[5].finding is UsageFinding.ALREADY_CACHED
    assert calls[5].recorded.read == pytest.approx(PREFIX_TOKENS, rel=0.01)


def test_an_unrecorded_shortening_of_the_history_is_found_in_the_usage() -> None:
    """Agents drop old tool results without logging it."""
    recording = make_recording([PlannedTurn(result_chars=9_000) for _ in range(12)])
    shortened = []
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
        shortened.append(replace(call, usage=Usage(cache=usage)))
    recording = replace(recording, calls=tuple(shortened))

    calls = reconstruct_calls(recording)

    for reconstructed_call in calls[8:]:
        assert reconstructed_call.call.usage is not None
        assert reconstructed_call.input_tokens == pytest.approx(
            reconstructed_call.call.usage.cache.input_tokens, rel=0.005
        )
    assert abs(relative_error(recording)) < 0.03


def test_one_hour_breakpoints_are_inferred_from_the_written_tokens() -> None:
    calls = reconstruct_calls(
        make_recording([PlannedTurn(), PlannedTurn(gap_seconds=1_200.0), PlannedTurn()], ttl=Ttl.ONE_HOUR)
    )

    assert {call.ttls for call in calls} == {(Ttl.ONE_HOUR, Ttl.ONE_HOUR)}
    assert all(call.recorded.written_1h and not call.recorded.written_5m for call in calls)


def test_a_call_that_neither_read_nor_wrote_had_no_breakpoints() -> None:
    recording = make_recording([PlannedTurn(), PlannedTurn()])
    first, second = recording.calls
    assert second.usage is not None
    usage = CacheUsage(uncached=second.usage.cache.input_tokens)
    recording = replace(recording, calls=(first, replace(second, usage=Usage(cache=usage))))

    calls = reconstruct_calls(recording)

    assert calls[1].ttls is None
    assert calls[1].recorded == usage


@pytest.mark.parametrize("words", [200, 30_000])
def test_a_recorded_system_prompt_is_scaled_to_the_usage(words: int) -> None:
    """Its offline count is an estimate; the total of the usage is not."""
    envelope = b'{"model": "claude-sonnet-4-6", "max_tokens": 900, "system": "' + b"word " * words + b'"}'
    recording = make_recording([PlannedTurn() for _ in range(6)])
    calls = tuple(replace(call, envelope=envelope) for call in recording.calls)

    reconstructed = reconstruct_calls(replace(recording, calls=calls))

    for reconstructed_call in reconstructed:
        assert reconstructed_call.call.usage is not None
        assert reconstructed_call.input_tokens == pytest.approx(
            reconstructed_call.call.usage.cache.input_tokens, abs=2
        )
        assert reconstructed_call.reserve_tokens == 900
    assert abs(relative_error(replace(recording, calls=calls))) < 0.03


def test_calls_without_usage_are_counted() -> None:
    calls = reconstruct_calls(
        make_recording([PlannedTurn(result_chars=4_000) for _ in range(3)], has_usage=False)
    )

    assert calls[0].preamble.tokens == 0
    assert 600 < calls[1].last_node.end_tokens - calls[0].last_node.end_tokens < 1_600
    assert all(call.output_tokens > 0 for call in calls)


def test_an_unreadable_message_is_sized_by_its_bytes() -> None:
    recording = make_recording([PlannedTurn()], has_usage=False)
    (call,) = recording.calls
    unreadable = replace(
        call, last_message=replace(call.last_message, raw=b'{"role": "user", "content": ' + b"[" * 5_000)
    )

    (reconstructed,) = reconstruct_calls(replace(recording, calls=(unreadable,)))

    assert reconstructed.input_tokens > 1_000


def test_an_empty_recording_has_sent_nothing() -> None:
    assert reconstruct_calls(make_recording([])) == []
