"""Simulated truncation of tool results."""

from foveate.compaction.tool_results import result_limit_tokens
from foveate.replay.simulator.history_edits import ResultTruncation
from foveate.replay.simulator.reconstruct import ReconstructedCall, reconstruct_calls
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_recording

WINDOW_TOKENS = 20_000
TURNS = [PlannedTurn(result_chars=8_000 if number % 3 else 200) for number in range(12)]


def result_tokens(call: ReconstructedCall) -> list[int]:
    pieces = [piece for node in call.last_node.path() for piece in node.pieces]
    return [piece.tokens for piece in pieces if piece.kind == "tool_result"]


def test_every_result_is_limited_and_nothing_else_changes() -> None:
    truncation, limit = ResultTruncation(0.05), result_limit_tokens(WINDOW_TOKENS, 0.05)

    for call in reconstruct_calls(make_recording(TURNS)):
        truncated = truncation.apply(call, WINDOW_TOKENS)

        assert result_tokens(truncated) == [min(tokens, limit) for tokens in result_tokens(call)]
        removed = sum(max(tokens - limit, 0) for tokens in result_tokens(call))
        assert truncated.input_tokens == call.input_tokens - removed


def test_the_history_before_the_first_long_result_stays_the_same_object() -> None:
    truncation = ResultTruncation(0.05)
    calls = reconstruct_calls(make_recording([PlannedTurn(result_chars=100), PlannedTurn(), PlannedTurn()]))

    is_same_call = truncation.apply(calls[1], WINDOW_TOKENS) is calls[1]
    truncated = truncation.apply(calls[-1], WINDOW_TOKENS)
    is_same_start = truncated.last_node.ancestor_at(2) is calls[-1].last_node.ancestor_at(2)
    is_same_end = truncated.last_node is calls[-1].last_node

    assert (is_same_call, is_same_start, is_same_end) == (True, True, False)


def test_an_unknown_window_truncates_nothing() -> None:
    call = reconstruct_calls(make_recording(TURNS))[-1]

    is_same = ResultTruncation(0.01).apply(call, None) is call

    assert is_same
