"""Chat recordings of Gemini CLI, as one document and as lines."""

import json
from pathlib import Path
from typing import Any

from foveate.replay.reading import read
from foveate.replay.recordings import Lacking, Recording
from foveate.values import CacheUsage
from tests.support.agent_logs import GEMINI_CLI, GEMINI_META, Record, gemini_answer, gemini_user
from tests.unit.replay_lines import written


def recording(folder: Path, *lines: Record) -> Recording:
    (only,) = read(written(folder, *lines))
    return only


def histories(only: Recording) -> list[list[tuple[str, str]]]:
    return [[_told(json.loads(said.raw)) for said in call.last.history()] for call in only.calls]


def _told(content: Any) -> tuple[str, str]:
    part = content["parts"][-1]
    return content["role"], part.get("text") or next(iter(part))


HISTORIES = [
    [("user", "read a file")],
    [("user", "read a file"), ("model", "functionCall"), ("user", "functionResponse")],
]


def test_a_recording_of_lines_is_read(tmp_path: Path) -> None:
    only = recording(tmp_path, *GEMINI_CLI)

    assert only.name == "gemini-1"
    assert only.lacks == {Lacking.SYSTEM, Lacking.TOOLS}
    assert histories(only) == HISTORIES
    assert [(call.billed.cache, call.billed.output_tokens) for call in only.calls if call.billed] == [
        (CacheUsage(uncached=12_000), 120),
        (CacheUsage(uncached=200, read=11_900), 10),
    ]
    assert only.calls[1].at - only.calls[0].answers_at == 2  # when the tool was done


def test_a_recording_that_is_one_document_is_read(tmp_path: Path) -> None:
    path = tmp_path / "session-1.json"
    path.write_text(json.dumps({**GEMINI_META, "messages": GEMINI_CLI[1:]}, indent=2))
    (only,) = read(path)

    assert histories(only) == HISTORIES


def test_a_message_that_is_written_again_is_one_message(tmp_path: Path) -> None:
    started = gemini_answer(1, "I read it.", None)

    only = recording(tmp_path, *GEMINI_CLI[:2], started, *GEMINI_CLI[2:])

    assert histories(only) == HISTORIES


def test_a_call_that_was_rewound_is_still_charged_and_no_longer_sent(tmp_path: Path) -> None:
    more = [{"$rewindTo": "g1"}, gemini_user(3, "another"), gemini_answer(3, "yes", (12_050, 0, 5, 0))]

    only = recording(tmp_path, *GEMINI_CLI, *more)

    assert len(only.calls) == 3
    assert histories(only)[-1] == [("user", "read a file"), ("user", "another")]


def test_messages_that_are_replaced_are_sent_instead(tmp_path: Path) -> None:
    replaced = {"$set": {"messages": [gemini_user(3, "a summary")]}}

    only = recording(tmp_path, *GEMINI_CLI, replaced, gemini_answer(4, "yes", (3_000, 0, 5, 0)))

    assert histories(only)[-1] == [("user", "a summary")]


def test_a_response_without_tokens_is_not_a_call(tmp_path: Path) -> None:
    failed = gemini_answer(5, "", (0, 0, 0, 0), "b.txt")

    assert len(recording(tmp_path, *GEMINI_CLI, failed, gemini_answer(6, "", None)).calls) == 2
