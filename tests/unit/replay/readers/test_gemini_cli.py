"""Chat recordings of Gemini CLI, as one document and as lines."""

import json
from pathlib import Path
from typing import Any

from foveate.cost.pricing.price_book import PriceBook
from foveate.model import CacheUsage
from foveate.replay.policies import Policy
from foveate.replay.recording import MissingPart, Recording
from foveate.replay.recording_files import read_recordings
from foveate.replay.run import ReplayOptions, replay_recording
from tests.support.scenarios.agent_logs import GEMINI_CLI, GEMINI_META, Record, gemini_answer, gemini_user
from tests.support.scenarios.claude_code_log import write_log


def recording(folder: Path, *lines: Record) -> Recording:
    (only,) = read_recordings(write_log(folder, *lines))
    return only


def histories(only: Recording) -> list[list[tuple[str, str]]]:
    return [[_told(json.loads(said.raw)) for said in call.last_message.history()] for call in only.calls]


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
    assert only.missing == {MissingPart.SYSTEM, MissingPart.TOOLS}
    assert histories(only) == HISTORIES
    assert [(call.usage.cache, call.usage.output_tokens) for call in only.calls if call.usage] == [
        (CacheUsage(uncached=12_000), 120),
        (CacheUsage(uncached=200, read=11_900), 10),
    ]
    assert only.calls[1].at - only.calls[0].response_at == 2  # when the tool was done


def test_a_recording_that_is_one_document_is_read(tmp_path: Path) -> None:
    path = tmp_path / "session-1.json"
    path.write_text(json.dumps({**GEMINI_META, "messages": GEMINI_CLI[1:]}, indent=2))
    (only,) = read_recordings(path)

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


def test_the_simulation_comes_near_what_was_charged_also_if_the_prompt_became_shorter(tmp_path: Path) -> None:
    """Gemini CLI sends less from the second request on: even the shortest history would be too long."""
    only = recording(
        tmp_path,
        GEMINI_META,
        gemini_user(1, "read a file"),
        gemini_answer(1, "Which?", (12_874, 0, 18, 31)),
        gemini_user(2, "this one"),
        gemini_answer(2, "It is empty.", (11_998, 11_868, 12, 105)),
    )
    check = replay_recording(only, PriceBook(), ReplayOptions(policies=(Policy.RECORDED,))).check

    assert check.off is not None
    assert abs(check.off) < 0.03
