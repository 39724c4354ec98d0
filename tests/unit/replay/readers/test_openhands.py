"""LLM logs of OpenHands: one file per call, and the files of a folder belong together."""

import json
from decimal import Decimal
from pathlib import Path

from foveate.cost.pricing.price_book import PriceBook
from foveate.model import CacheUsage, Format
from foveate.replay.outcomes import Policy
from foveate.replay.recording import Recording, RecordingSource
from foveate.replay.recording_files import find_files, group_sessions, read_recordings, read_session
from foveate.replay.run import ReplayOptions, replay_recording
from tests.support.scenarios.agent_logs import OPENHANDS, Record


def write_and_read(folder: Path, *logs: Record) -> list[Recording]:
    folder.mkdir(parents=True, exist_ok=True)
    for number, log in enumerate(logs):
        (folder / f"litellm_proxy__claude-{number}.json").write_text(json.dumps(log))
    sessions, problems = group_sessions(find_files([folder]).files)
    assert not problems
    return [recording for session in sessions for recording in read_session(session)]


def test_the_files_of_a_folder_are_one_session(tmp_path: Path) -> None:
    (recording,) = write_and_read(tmp_path / "llm-logs", *OPENHANDS)

    assert (recording.name, recording.source, recording.format) == (
        "llm-logs",
        RecordingSource.OPENHANDS,
        Format.CHAT,
    )
    assert [call.model for call in recording.calls] == ["claude-sonnet-4-20250514"] * 2
    assert [call.last_message.depth for call in recording.calls] == [1, 3]
    assert [call.usage.cache for call in recording.calls if call.usage] == [
        CacheUsage(uncached=2_000),
        CacheUsage(uncached=2_100),
    ]
    assert [call.response_at - call.at for call in recording.calls] == [2.5, 2.5]
    assert recording.reported_dollars == Decimal("0.0153")
    assert not recording.missing
    assert b'"terminal"' in recording.calls[0].envelope


def test_one_file_can_be_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(OPENHANDS[0]))
    (recording,) = read_recordings(path)

    assert (recording.name, len(recording.calls)) == ("log", 1)


def test_conversations_in_one_folder_are_separated_by_their_first_message(tmp_path: Path) -> None:
    other = json.loads(
        json.dumps(OPENHANDS).replace("write a file", "read a file").replace("chatcmpl", "other")
    )

    assert [len(recording.calls) for recording in write_and_read(tmp_path / "logs", *OPENHANDS, *other)] == [
        2,
        2,
    ]


def test_a_failed_request_is_not_a_call(tmp_path: Path) -> None:
    failed_request = {name: OPENHANDS[0][name] for name in ("messages", "kwargs", "timestamp", "latency_sec")}
    (recording,) = write_and_read(
        tmp_path / "logs", *OPENHANDS, failed_request | {"error": {"type": "Timeout"}, "cost": 0.0}
    )

    assert (len(recording.calls), recording.unreadable) == (2, ())


def test_tools_described_in_the_prompt_were_not_sent(tmp_path: Path) -> None:
    prompt_tools = {"raw_messages": [], "raw_response": OPENHANDS[1]["response"]}
    (recording,) = write_and_read(tmp_path / "logs", OPENHANDS[0] | prompt_tools, OPENHANDS[1] | prompt_tools)

    assert not any(call.envelope for call in recording.calls)
    assert not recording.missing


def test_calls_of_the_responses_api_are_read(tmp_path: Path) -> None:
    response = {
        "id": "resp_1",
        "model": "gpt-5.1",
        "object": "response",
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
        ],
        "usage": {
            "input_tokens": 3_000,
            "input_tokens_details": {"cached_tokens": 2_048},
            "output_tokens": 9,
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    log = {
        "llm_path": "responses",
        "instructions": "You are OpenHands.",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
        "tools": [{"kind": "TerminalTool", "description": "an object of OpenHands' own"}],
        "kwargs": {},
        "response": response,
        "cost": 0.0,
        "timestamp": 1_780_653_600.0,
        "latency_sec": 1.0,
    }
    (recording,) = write_and_read(tmp_path / "logs", log)
    (call,) = recording.calls

    assert recording.format is Format.RESPONSES
    assert call.usage is not None
    assert call.usage.cache == CacheUsage(uncached=952, read=2_048)
    assert "tools" in recording.missing


def test_the_simulated_cost_is_close_to_the_charged_cost(tmp_path: Path) -> None:
    (recording,) = write_and_read(tmp_path / "llm-logs", *OPENHANDS)
    replayed = replay_recording(recording, PriceBook(), ReplayOptions(policies=(Policy.RECORDED,)))

    assert replayed.check.relative_error is not None
    assert abs(replayed.check.relative_error) < 0.03
    assert replayed.check.reported == Decimal("0.0153")
