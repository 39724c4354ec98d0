"""Simulated keep-alive requests: sent when they pay, counted even if nobody returns."""

from dataclasses import replace

from foveate.compaction.edit_timing import Moment
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions, KeepAliveOptions
from foveate.model import CacheUsage
from foveate.replay.recording import Recording
from foveate.replay.simulator.adaptive_run import AdaptiveRun
from foveate.replay.simulator.editing_run import NO_EDITS, EditingMoment, EditingRun, HistoryEdits
from foveate.replay.simulator.policy_runs import start_gateway_runs
from foveate.replay.simulator.prompts import AbbreviatedPrompts
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


def test_a_session_is_kept_alive_or_compacted_whichever_is_worth_more() -> None:
    """Kept alive, it is decided about again each time its cache is about to expire."""
    turns = [PlannedTurn(result_chars=9_000, gap_seconds=20.0 if number % 4 else 420.0) for number in range(40)]
    recording = make_recording([*turns, PlannedTurn(gap_seconds=8_000.0)])
    planned: list[float] = []

    class AtExpiry:
        def __init__(self, *, compacts: bool) -> None:
            self._compacts = compacts

        def decide(self, moment: EditingMoment) -> HistoryEdits:
            if moment.moment is not Moment.EXPIRY:
                return NO_EDITS
            planned.append(moment.keep_alive_tokens)
            return HistoryEdits(moment.plan_compaction(30_000)) if self._compacts else NO_EDITS

    sent_of_last = {}
    for compacts in (False, True):
        planned.clear()
        run = AdaptiveRun(AbbreviatedPrompts(), KEEPS_ALIVE, KEEPS_ALIVE.keep_alive)
        editing = EditingRun(run, AtExpiry(compacts=compacts), api_format=recording.format, window_tokens=None)
        calls = reconstruct_calls(recording)
        for call in calls:
            editing.simulate(call)
        sent = [keep_alive.call.call.id for keep_alive in editing.adaptive.finish()]
        sent_of_last[compacts] = sent.count(recording.calls[-2].id)
        assert any(planned)

    assert sent_of_last[False] > 1  # several in a row
    assert sent_of_last[True] == 0  # the next request has another prefix
