"""Causes and costs of cache misses in recordings."""

from dataclasses import replace
from typing import Any

import pytest

from foveate.advice.cost_breakdown import InputRates, MissCost, MissCosts, describe_recorded_cause
from foveate.prompt_cache.misses.causes import MissCause
from foveate.replay.recording import Recording
from foveate.replay.simulator.reconstruct import reconstruct_calls
from tests.support.scenarios.recorded_sessions import MODEL, PlannedTurn, make_recording

RATES = InputRates(read=0.1, written_1h=2.0, written_5m=1.25, uncached=1.0)


def find_misses(recording: Recording) -> dict[str, MissCost]:
    costs = MissCosts(recording.format)
    for call in reconstruct_calls(recording):
        usage = call.call.usage.cache if call.call.usage is not None else call.recorded
        costs.add_call(call, usage, RATES)
    return costs.by_cause


def plan_turns(**changed: Any) -> list[PlannedTurn]:
    """Twelve turns, of which the ninth is different."""
    return [PlannedTurn(**changed) if number == 8 else PlannedTurn() for number in range(12)]


def test_a_session_without_pauses_has_no_misses() -> None:
    assert find_misses(make_recording(plan_turns())) == {}


def test_a_pause_longer_than_the_ttl_is_an_expired_entry() -> None:
    recording = make_recording(plan_turns(gap_seconds=400.0))
    before, after = recording.calls[7].usage, recording.calls[8].usage
    assert before is not None
    assert after is not None

    misses = find_misses(recording)

    assert list(misses) == [MissCause.EXPIRED]
    miss = misses[MissCause.EXPIRED]
    cached_tokens = before.cache.read + before.cache.written_5m
    assert miss.misses == 1
    assert miss.tokens == pytest.approx(cached_tokens - after.cache.read, rel=0.01)
    assert miss.dollars == pytest.approx(miss.tokens * (1.25 - 0.1), rel=0.01)


def test_a_changed_system_prompt_is_not_in_the_log() -> None:
    misses = find_misses(make_recording(plan_turns(changes_system=True)))

    assert list(misses) == [MissCause.UNEXPLAINED]
    assert "not in the log" in describe_recorded_cause(MissCause.UNEXPLAINED)


def test_another_model_has_its_own_cache() -> None:
    first, second = (make_recording(plan_turns(), model=model) for model in (MODEL, "claude-opus-4-6"))
    calls = (*first.calls[:6], *second.calls[6:])
    mixed = [
        replace(call, last_message=first.calls[number].last_message, usage=None)
        for number, call in enumerate(calls)
    ]

    misses = find_misses(replace(first, calls=tuple(mixed)))

    assert list(misses) == [MissCause.MODEL]
    assert misses[MissCause.MODEL].misses == 1
