"""The cost of each part of the context: exact sums, and a plain computation of the same."""

import json
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings

from foveate.advice.cost_breakdown import (
    OLD_REQUESTS,
    ContextCosts,
    ContextPart,
    InputRates,
    PartCost,
    PartKind,
)
from foveate.model import CacheUsage, Format
from foveate.replay.recording import RecordedCall, RecordedMessage, Recording
from foveate.replay.simulator.reconstruct import ReconstructedCall, reconstruct_calls
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_message, make_recording
from tests.support.strategies.planned_turns import turn_lists

RATES = InputRates(read=0.1, written_1h=2.0, written_5m=1.25, uncached=1.0)
TOOL = ContextPart(PartKind.TOOL, "read")


def compute_costs(recording: Recording) -> dict[ContextPart, PartCost]:
    costs = ContextCosts(recording.format)
    for call in reconstruct_calls(recording):
        costs.add_call(call, call.recorded, RATES, output_dollars=0.5)
    return costs.costs()


def price_position(usage: CacheUsage, token: int) -> float:
    """The price of one token by its position in the prompt."""
    for tokens, rate in ((usage.read, 0.1), (usage.written_1h, 2.0), (usage.written_5m, 1.25)):
        if token < tokens:
            return rate
        token -= tokens
    return 1.0


def compute_plainly(call: ReconstructedCall) -> dict[str, float]:
    """The cost of one call by kind of part, token by token."""
    dollars: defaultdict[str, float] = defaultdict(float)
    position = 0
    pieces = [("preamble", piece.tokens) for piece in call.preamble.pieces]
    for node in call.last_node.path():
        for piece in node.pieces:
            is_tool = piece.kind in ("tool_use", "tool_result")
            pieces.append(("tool" if is_tool else node.role, piece.tokens))
    for name, tokens in pieces:
        dollars[name] += sum(price_position(call.recorded, position + token) for token in range(tokens))
        position += tokens
    return dollars


@settings(max_examples=limit_examples(30))
@given(turns=turn_lists)
def test_the_parts_always_add_up_to_the_cost_of_all_calls(turns: list[PlannedTurn]) -> None:
    recording = make_recording(turns)

    costs = compute_costs(recording)

    calls = reconstruct_calls(recording)
    expected = sum(RATES.dollars(call.recorded) + 0.5 for call in calls)
    assert sum(cost.dollars for cost in costs.values()) == pytest.approx(expected)


@settings(max_examples=limit_examples(10))
@given(turns=turn_lists)
def test_the_cost_of_a_part_always_equals_that_of_its_tokens_one_by_one(turns: list[PlannedTurn]) -> None:
    recording = make_recording([PlannedTurn(result_chars=turn.result_chars // 9) for turn in turns[:6]])

    costs = compute_costs(recording)

    calls = [compute_plainly(call) for call in reconstruct_calls(recording)]
    kinds = {
        "preamble": PartKind.PREAMBLE,
        "user": PartKind.USER,
        "assistant": PartKind.ASSISTANT,
        "tool": PartKind.TOOL,
    }
    for name, kind in kinds.items():
        dollars = sum(cost.dollars for part, cost in costs.items() if part.kind is kind)
        assert dollars == pytest.approx(sum(call.get(name, 0.0) for call in calls)), name


def test_nothing_is_old_before_the_limit_of_requests() -> None:
    short, long = (
        compute_costs(make_recording([PlannedTurn() for _ in range(requests)]))
        for requests in (OLD_REQUESTS + 1, OLD_REQUESTS + 10)
    )

    assert short[TOOL].old_read == 0
    assert 0 < long[TOOL].old_read < long[TOOL].read


def test_results_stay_old_after_the_system_prompt_changed() -> None:
    unchanged, changed = (
        compute_costs(make_recording([PlannedTurn(changes_system=number == at) for number in range(40)]))
        for at in (-1, 25)
    )

    # The request with the change reads nothing, the others read the same.
    assert changed[TOOL].old_read == pytest.approx(unchanged[TOOL].old_read, rel=0.1)


def read_file(last: RecordedMessage, name: str, arguments: dict[str, object], chars: int) -> RecordedMessage:
    """Append a tool call and its result."""
    call = {"type": "tool_use", "id": name, "name": "read", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": name, "content": "x" * chars}
    return make_message(make_message(last, "assistant", [call]), "user", [result])


@pytest.mark.parametrize(
    ("first", "second", "is_superseded"),
    [
        ({"path": "a.py"}, {"path": "a.py"}, True),
        ({"path": "a.py", "offset": 10, "limit": 5}, {"path": "a.py"}, True),
        ({"path": "a.py"}, {"path": "a.py", "offset": 10, "limit": 5}, False),
        ({"path": "a.py"}, {"path": "b.py"}, False),
        ({"path": "a.py", "description": "list"}, {"path": "a.py", "description": "again"}, True),
    ],
)
def test_a_result_is_superseded_by_a_newer_version_of_it(
    first: dict[str, object], second: dict[str, object], is_superseded: bool
) -> None:
    recording = make_recording([PlannedTurn() for _ in range(3)])
    question = make_message(None, "user", "hello")
    once = read_file(question, "one", first, 4_000)
    twice = read_file(once, "two", second, 40)
    calls = reconstruct_calls(
        Recording(
            name=recording.name,
            source=recording.source,
            format=Format.ANTHROPIC,
            calls=tuple(
                call_with(recording, number, message) for number, message in enumerate((question, once, twice))
            ),
        )
    )
    costs = ContextCosts(Format.ANTHROPIC)
    for call in calls:
        costs.add_call(call, CacheUsage(uncached=call.input_tokens), RATES, output_dollars=0.0)

    superseded = costs.costs()[TOOL].superseded

    # The long result is carried once more after it was superseded, at the uncached price of 1.
    result_tokens = next(node for node in calls[1].last_node.path() if node.depth == 2).tokens
    assert superseded == pytest.approx(result_tokens if is_superseded else 0)


def call_with(recording: Recording, number: int, message: RecordedMessage) -> RecordedCall:
    return replace(recording.calls[number], last_message=message, usage=None, response=json.dumps({}).encode())
