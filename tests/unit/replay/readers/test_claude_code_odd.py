"""Responses in Claude Code's logs that no model wrote, or whose usage is incomplete."""

import json
from decimal import Decimal
from pathlib import Path

from foveate.replay.recording import MissingPart, RecordedCall
from foveate.replay.recording_files import read_recordings
from tests.support.scenarios.claude_code_log import SESSION, Line, answer, call, line, result, text, write_log


def read_calls(folder: Path, *lines: Line) -> tuple[RecordedCall, ...]:
    (recording,) = read_recordings(write_log(folder, *lines))
    return recording.calls


def test_messages_that_the_agent_wrote_for_the_model_are_sent_but_are_not_responses(tmp_path: Path) -> None:
    usage = {"input_tokens": 0, "output_tokens": 0}
    agent_message = line(
        "assistant", "e1", "a4", 10, text("No response."), message={"model": "<synthetic>", "usage": usage}
    )
    next_turn = (
        line("user", "u9", "e1", 11, text("again")),
        answer("a9", "u9", 12, "r9", 5_200, 10, text("yes")),
    )
    *_, last = read_calls(tmp_path, *SESSION, agent_message, *next_turn)

    assert last.id == "r9"
    assert last.last_message.previous is not None
    assert json.loads(last.last_message.previous.raw)["content"][-1] == text("No response.")


def test_a_response_with_zero_usage_is_not_a_call(tmp_path: Path) -> None:
    zero_usage = {"usage": {"input_tokens": 0, "output_tokens": 0}}
    failed_response = answer("a5", "a4", 10, "r5", 0, 0, text("x"), message=zero_usage)

    assert [recorded_call.id for recorded_call in read_calls(tmp_path, *SESSION, failed_response)] == [
        "r1",
        "r2",
    ]


def test_usage_with_only_output_tokens_is_ignored(tmp_path: Path) -> None:
    output_only = {"usage": {"input_tokens": 0, "output_tokens": 9}}
    path = write_log(tmp_path, SESSION[0], answer("a1", "u1", 3, "r1", 0, 0, text("hi"), message=output_only))
    (recording,) = read_recordings(path)

    assert [recorded_call.usage for recorded_call in recording.calls] == [None]
    assert MissingPart.USAGE in recording.missing


def test_a_response_without_its_request_in_the_log_is_a_call(tmp_path: Path) -> None:
    (recorded_call,) = read_calls(tmp_path, answer("a1", None, 3, "r1", 0, 900, text("warm")))

    assert json.loads(recorded_call.last_message.raw) == {"role": "user", "content": ""}
    assert recorded_call.at == recorded_call.response_at


def test_lines_of_one_response_without_any_id_are_one_call(tmp_path: Path) -> None:
    lines = [
        {key: value for key, value in entry.items() if key != "requestId"}
        for entry in (
            line("user", "u1", None, 0, text("go")),
            answer("a1", "u1", 3, "", 0, 5_000, text("I look."), output=1),
            answer("a2", "a1", 4, "", 0, 5_000, call("one"), output=40),
            line("user", "u2", "a2", 5, result("one")),
            answer("a3", "u2", 7, "", 5_000, 300, text("done")),
            answer("a4", "a3", 9, "", 5_300, 20, text("and again")),
        )
    ]
    recorded_calls = read_calls(tmp_path, *lines)

    assert [entry.usage.cache.read for entry in recorded_calls if entry.usage] == [0, 5_000, 5_300]
    assert [entry.usage.output_tokens for entry in recorded_calls if entry.usage] == [40, 9, 9]


def test_the_reported_cost_is_the_agents_final_total(tmp_path: Path) -> None:
    """The total grows from turn to turn, and restarts in another process."""
    result_lines = [
        {"type": "result", "sessionId": "s", "total_cost_usd": total} for total in (0.1, 0.25, 0.05, 0.3)
    ]
    (recording,) = read_recordings(write_log(tmp_path, *SESSION, *result_lines))

    assert recording.reported_dollars == Decimal("0.55")
    assert len(recording.calls) == 2


def test_command_output_is_sent_as_user_content(tmp_path: Path) -> None:
    command_output: Line = {
        "type": "system",
        "subtype": "local_command",
        "uuid": "c",
        "parentUuid": None,
        "sessionId": "s",
        "content": "<local-command-stdout>ok</local-command-stdout>",
    }
    (recorded_call,) = read_calls(tmp_path, command_output, answer("a1", "c", 3, "r1", 0, 900, text("fine")))

    assert b"local-command-stdout" in recorded_call.last_message.raw
