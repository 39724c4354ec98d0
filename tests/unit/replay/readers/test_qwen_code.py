"""Chat recordings of Qwen Code: records in a tree, each with a content of Gemini's API."""

import json
from pathlib import Path

import pytest

from foveate.model import CacheUsage
from foveate.replay.readers.qwen_code import scan_qwen_code
from foveate.replay.recording import Recording, RecordingSource
from foveate.replay.recording_files import peek_file, read_recordings
from tests.support.scenarios.agent_logs import QWEN_CODE, Record, qwen, qwen_answer
from tests.support.scenarios.claude_code_log import write_log


def read_recording(folder: Path, *lines: Record) -> Recording:
    (recording,) = read_recordings(write_log(folder, *lines))
    return recording


def part_kinds(recording: Recording) -> list[list[str]]:
    parts = [
        [json.loads(message.raw)["parts"][0] for message in call.last_message.history()]
        for call in recording.calls
    ]
    return [[part.get("text") or next(iter(part)) for part in history] for history in parts]


def test_every_response_is_a_call_with_everything_before_it(tmp_path: Path) -> None:
    recording = read_recording(tmp_path, *QWEN_CODE)

    assert recording.name == "qwen-1"
    assert part_kinds(recording) == [["read a file"], ["read a file", "functionCall", "functionResponse"]]
    assert [call.usage.cache for call in recording.calls if call.usage] == [
        CacheUsage(uncached=9_000),
        CacheUsage(uncached=140, read=8_960),
    ]
    assert [(call.at % 60, call.response_at % 60) for call in recording.calls] == [(1, 3), (4, 6)]


def test_a_compression_replaces_all_before_it(tmp_path: Path) -> None:
    payload = {"info": {}, "compressedHistory": [{"role": "user", "parts": [{"text": "a summary"}]}]}
    system = {"type": "system", "subtype": "chat_compression", "systemPayload": payload}
    compressed = qwen("system", "q5", "q4", 10) | system
    next_turn = [
        qwen("user", "q6", "q5", 11, {"text": "go on"}),
        qwen_answer("q7", "q6", 12, 3_000, 0, {"text": "yes"}),
    ]

    assert part_kinds(read_recording(tmp_path, *QWEN_CODE, compressed, *next_turn))[-1] == [
        "a summary",
        "go on",
    ]


def test_a_rewound_record_is_on_another_branch(tmp_path: Path) -> None:
    next_turn = [
        qwen("user", "q5", "q2", 9, {"text": "stop"}),
        qwen_answer("q6", "q5", 10, 9_050, 0, {"text": "yes"}),
    ]

    assert part_kinds(read_recording(tmp_path, *QWEN_CODE, *next_turn))[-1] == [
        "read a file",
        "functionCall",
        "stop",
    ]


def test_a_log_that_begins_with_a_record_without_a_message_is_not_one_of_claude_code(tmp_path: Path) -> None:
    first = {name: value for name, value in qwen("system", "q0", None, 0).items() if name != "message"}

    assert peek_file(write_log(tmp_path, first, *QWEN_CODE)).source is RecordingSource.QWEN_CODE


@pytest.mark.parametrize(
    ("candidates", "thoughts", "total", "output"),
    [
        (100, 80, 9_100, 100),  # OpenAI's API: candidates include thoughts
        (100, 80, 9_180, 180),  # Gemini's API: they do not
        (100, 80, 0, 100),
        (0, 80, 9_080, 80),
    ],
)
def test_thoughts_are_counted_once_with_every_api(
    tmp_path: Path, candidates: int, thoughts: int, total: int, output: int
) -> None:
    question, answer = QWEN_CODE[:2]
    usage = {
        "promptTokenCount": 9_000,
        "candidatesTokenCount": candidates,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": total,
    }
    path = write_log(tmp_path, question, answer | {"usageMetadata": usage})

    (recording,) = read_recordings(path)
    (call,), (scanned,) = recording.calls, scan_qwen_code(path).calls
    assert call.usage is not None
    assert (call.usage.output_tokens, call.usage.reasoning_tokens) == (output, thoughts)
    assert (scanned.usage.output_tokens, scanned.usage.reasoning_tokens) == (output, thoughts)
