"""Simulated keep-alive requests: sent when they pay, counted even if nobody returns."""

from dataclasses import replace

from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.model import CacheUsage
from foveate.replay.recording import Recording
from foveate.replay.simulator.gateway_runs import start_gateway_runs
from foveate.replay.simulator.reconstruct import reconstruct_calls
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_recording

KEEPS_ALIVE = AgentOptions(keep_alive=KeepAliveOptions(enabled=True))
# Every fourth pause is longer than the TTL of five minutes, so the next ones are expected to be.
REGULAR_PAUSES = [PlannedTurn(gap_seconds=420.0 if number % 4 == 3 else 20.0) for number in range(40)]


def run_session(recording: Recording, options: AgentOptions) -> tuple[int, list[tuple[str, CacheUsage]]]:
    """Return the tokens written by calls, and the usage of each keep-alive request with the call it repeats."""
    (run,) = start_gateway_runs([options], PriceBook(), api_format=recording.format)
    usages = [run.simulate(call).usage for call in reconstruct_calls(recording)]
    sent = [(keep_alive.call.call.id, keep_alive.usage) for keep_alive in run.finish()]
    return sum(usage.written_5m + usage.written_1h for usage in usages), sent


def test_regular_pauses_are_bridged() -> None:
    recording = make_recording(REGULAR_PAUSES)

    written_without, none_sent = run_session(recording, AgentOptions())
    written_with, sent = run_session(recording, KEEPS_ALIVE)

    assert not none_sent
    assert sent
    assert written_with < written_without
    assert all(usage.read > 0 for _, usage in sent)


def test_a_session_without_pauses_sends_none_between_its_calls() -> None:
    recording = make_recording([PlannedTurn() for _ in range(20)])

    written_without, _ = run_session(recording, AgentOptions())
    written_with, sent = run_session(recording, KEEPS_ALIVE)

    assert written_with == written_without
    assert {call for call, _ in sent} <= {recording.calls[-1].id}


def test_requests_after_the_last_call_are_counted_although_nobody_returns() -> None:
    recording = make_recording(REGULAR_PAUSES)

    _, sent = run_session(recording, KEEPS_ALIVE)

    assert recording.calls[-1].id in {call for call, _ in sent}


def test_a_conversation_with_thinking_is_not_kept_alive() -> None:
    recording = make_recording(REGULAR_PAUSES)
    thinking = replace(recording, calls=tuple(replace(call, has_thinking=True) for call in recording.calls))

    assert not run_session(thinking, KEEPS_ALIVE)[1]


def test_finishing_twice_sends_nothing_again() -> None:
    recording = make_recording(REGULAR_PAUSES)
    (run,) = start_gateway_runs([KEEPS_ALIVE], PriceBook(), api_format=recording.format)
    for call in reconstruct_calls(recording):
        run.simulate(call)

    first_count, second_count = len(run.finish()), len(run.finish())

    assert first_count == second_count > 0
