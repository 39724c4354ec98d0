"""LLM logs of OpenHands: one file per call, and the files of a folder belong together."""

import json
from decimal import Decimal
from pathlib import Path

from foveate.cost.pricing.price_book import PriceBook
from foveate.model import CacheUsage, Format
from foveate.replay.policies import Policy
from foveate.replay.recording import Recording, RecordingSource
from foveate.replay.recording_files import find_files, group_sessions, read_recordings, read_session
from foveate.replay.run import ReplayOptions, replay_recording
from tests.support.scenarios.agent_logs import OPENHANDS, Record


def logged(folder: Path, *logs: Record) -> list[Recording]:
    folder.mkdir(parents=True, exist_ok=True)
    for number, log in enumerate(logs):
        (folder / f"litellm_proxy__claude-{number}.json").write_text(json.dumps(log))
    read_sessions, broken = group_sessions(find_files([folder]).files)
    assert not broken
    return [recording for session in read_sessions for recording in read_session(session)]


def test_the_files_of_a_folder_are_one_session(tmp_path: Path) -> None:
    (only,) = logged(tmp_path / "llm-logs", *OPENHANDS)

    assert (only.name, only.source, only.format) == ("llm-logs", RecordingSource.OPENHANDS, Format.CHAT)
    assert [call.model for call in only.calls] == ["claude-sonnet-4-20250514"] * 2
    assert [call.last_message.depth for call in only.calls] == [1, 3]
    assert [call.usage.cache for call in only.calls if call.usage] == [
        CacheUsage(uncached=2_000),
        CacheUsage(uncached=2_100),
    ]
    assert [call.response_at - call.at for call in only.calls] == [2.5, 2.5]
    assert only.reported_dollars == Decimal("0.0153")
    assert not only.missing
    assert b'"terminal"' in only.calls[0].envelope


def test_one_file_can_be_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(OPENHANDS[0]))
    (only,) = read_recordings(path)

    assert (only.name, len(only.calls)) == ("log", 1)


def test_conversations_in_one_folder_are_separated_by_their_first_message(tmp_path: Path) -> None:
    other = json.loads(
        json.dumps(OPENHANDS).replace("write a file", "read a file").replace("chatcmpl", "other")
    )

    assert [len(recording.calls) for recording in logged(tmp_path / "logs", *OPENHANDS, *other)] == [2, 2]


def test_a_failed_request_is_not_a_call(tmp_path: Path) -> None:
    failed = {name: OPENHANDS[0][name] for name in ("messages", "kwargs", "timestamp", "latency_sec")}
    (only,) = logged(tmp_path / "logs", *OPENHANDS, failed | {"error": {"type": "Timeout"}, "cost": 0.0})

    assert (len(only.calls), only.unreadable) == (2, ())


def test_tools_described_in_the_prompt_were_not_sent(tmp_path: Path) -> None:
    raw = {"raw_messages": [], "raw_response": OPENHANDS[1]["response"]}
    (only,) = logged(tmp_path / "logs", OPENHANDS[0] | raw, OPENHANDS[1] | raw)

    assert not any(call.envelope for call in only.calls)
    assert not only.missing


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
    (only,) = logged(tmp_path / "logs", log)
    (call,) = only.calls

    assert only.format is Format.RESPONSES
    assert call.usage is not None
    assert call.usage.cache == CacheUsage(uncached=952, read=2_048)
    assert "tools" in only.missing


def test_the_simulation_comes_near_what_was_charged(tmp_path: Path) -> None:
    (only,) = logged(tmp_path / "llm-logs", *OPENHANDS)
    replayed = replay_recording(only, PriceBook(), ReplayOptions(policies=(Policy.RECORDED,)))

    assert replayed.check.off is not None
    assert abs(replayed.check.off) < 0.03
    assert replayed.check.said == Decimal("0.0153")
