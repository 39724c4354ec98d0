"""Chat recordings of Gemini CLI, as one document and as lines."""

import json
from pathlib import Path
from typing import Any

from foveate.cost.pricing.price_book import PriceBook
from foveate.model import CacheUsage
from foveate.replay.outcomes import Policy
from foveate.replay.recording import MissingPart, Recording
from foveate.replay.recording_files import read_recordings
from foveate.replay.run import ReplayOptions, replay_recording
from tests.support.scenarios.agent_logs import GEMINI_CLI, GEMINI_META, Record, gemini_answer, gemini_user
from tests.support.scenarios.claude_code_log import write_log


def read_recording(folder: Path, *lines: Record) -> Recording:
    (recording,) = read_recordings(write_log(folder, *lines))
    return recording


def history_parts(recording: Recording) -> list[list[tuple[str, str]]]:
    return [
        [_first_part(json.loads(message.raw)) for message in call.last_message.history()]
        for call in recording.calls
    ]


def _first_part(content: Any) -> tuple[str, str]:
    part = content["parts"][-1]
    return content["role"], part.get("text") or next(iter(part))


HISTORIES = [
    [("user", "read a file")],
    [("user", "read a file"), ("model", "functionCall"), ("user", "functionResponse")],
]


def test_a_recording_of_lines_is_read(tmp_path: Path) -> None:
    recording = read_recording(tmp_path, *GEMINI_CLI)

    assert recording.name == "gemini-1"
    assert recording.missing == {MissingPart.SYSTEM, MissingPart.TOOLS}
    assert history_parts(recording) == HISTORIES
    assert [(call.usage.cache, call.usage.output_tokens) for call in recording.calls if call.usage] == [
        (CacheUsage(uncached=12_000), 120),
        (CacheUsage(uncached=200, read=11_900), 10),
    ]
    assert recording.calls[1].at - recording.calls[0].response_at == 2  # when the tool was done


def test_a_recording_that_is_one_document_is_read(tmp_path: Path) -> None:
    path = tmp_path / "session-1.json"
    path.write_text(json.dumps({**GEMINI_META, "messages": GEMINI_CLI[1:]}, indent=2))
    (recording,) = read_recordings(path)

    assert history_parts(recording) == HISTORIES


def test_a_message_that_is_written_again_is_one_message(tmp_path: Path) -> None:
    unfinished = gemini_answer(1, "I read it.", None)

    recording = read_recording(tmp_path, *GEMINI_CLI[:2], unfinished, *GEMINI_CLI[2:])

    assert history_parts(recording) == HISTORIES


def test_a_call_that_was_rewound_is_charged_but_not_sent_again(tmp_path: Path) -> None:
    next_turn = [{"$rewindTo": "g1"}, gemini_user(3, "another"), gemini_answer(3, "yes", (12_050, 0, 5, 0))]

    recording = read_recording(tmp_path, *GEMINI_CLI, *next_turn)

    assert len(recording.calls) == 3
    assert history_parts(recording)[-1] == [("user", "read a file"), ("user", "another")]


def test_messages_that_are_replaced_are_sent_instead(tmp_path: Path) -> None:
    replacement = {"$set": {"messages": [gemini_user(3, "a summary")]}}

    recording = read_recording(tmp_path, *GEMINI_CLI, replacement, gemini_answer(4, "yes", (3_000, 0, 5, 0)))

    assert history_parts(recording)[-1] == [("user", "a summary")]


def test_a_response_without_tokens_is_not_a_call(tmp_path: Path) -> None:
    failed_response = gemini_answer(5, "", (0, 0, 0, 0), "b.txt")

    assert len(read_recording(tmp_path, *GEMINI_CLI, failed_response, gemini_answer(6, "", None)).calls) == 2


def test_the_simulated_cost_is_close_to_the_charged_cost_even_if_the_prompt_became_shorter(
    tmp_path: Path,
) -> None:
    """Gemini CLI sends less from the second request on: even the shortest history would be too long."""
    recording = read_recording(
        tmp_path,
        GEMINI_META,
        gemini_user(1, "read a file"),
        gemini_answer(1, "Which?", (12_874, 0, 18, 31)),
        gemini_user(2, "this one"),
        gemini_answer(2, "It is empty.", (11_998, 11_868, 12, 105)),
    )
    check = replay_recording(recording, PriceBook(), ReplayOptions(policies=(Policy.RECORDED,))).check

    assert check.relative_error is not None
    assert abs(check.relative_error) < 0.03
