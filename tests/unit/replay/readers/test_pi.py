"""Sessions of pi: the request of a response is everything before it on its branch, after compaction."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from foveate.model import CacheUsage
from foveate.replay.recording import MissingPart, RecordedCall, Recording
from foveate.replay.recording_files import read_recordings
from tests.support.scenarios.claude_code_log import Line, text, write_log

HEADER: Line = {"type": "session", "version": 3, "id": "session-1", "timestamp": "2026-01-05T10:00:00Z"}
USAGE = {"input": 3, "output": 7, "cacheRead": 10, "cacheWrite": 20, "cost": {"total": 0.25}}


def message_entry(entry_id: str, parent: str | None, role: str, *blocks: Any, **fields: Any) -> Line:
    message = {"role": role, "content": list(blocks), "timestamp": 1_767_607_200_000, **fields}
    return {"type": "message", "id": entry_id, "parentId": parent, "message": message}


def response_entry(entry_id: str, parent: str | None, *blocks: Any, **overrides: Any) -> Line:
    fields = {"model": "claude-sonnet-4-5", "usage": USAGE, "stopReason": "stop"} | overrides
    return message_entry(entry_id, parent, "assistant", *blocks, **fields)


def without_ids(*lines: Line) -> list[Line]:
    """Return the lines in the first version of the format, which had neither ids nor parents."""
    return [{key: value for key, value in entry.items() if key not in ("id", "parentId")} for entry in lines]


def read_recording(folder: Path, *lines: Line) -> Recording:
    (recording,) = read_recordings(write_log(folder, *lines))
    return recording


def sent_texts(call: RecordedCall) -> list[tuple[str, list[Any]]]:
    messages = []
    for message in call.last_message.history():
        blocks = json.loads(message.raw)["content"]
        messages.append(
            (message.role, [block.get("text") or block.get("tool_use_id") or block["id"] for block in blocks])
        )
    return messages


CALL = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}}
SESSION = (
    HEADER,
    message_entry("1", None, "user", text("old")),
    response_entry("2", "1", text("I look"), CALL, stopReason="toolUse"),
    message_entry("3", "2", "toolResult", text("a b"), toolCallId="c1", toolName="bash", isError=False),
    response_entry("4", "3", text("two files")),
    message_entry("5", "4", "user", text("new")),
)


def test_a_response_was_requested_with_everything_before_it(tmp_path: Path) -> None:
    recording = read_recording(tmp_path, *SESSION, response_entry("6", "5", text("yes")))

    assert [sent_texts(call) for call in recording.calls][1:] == [
        [("user", ["old"]), ("assistant", ["I look", "c1"]), ("user", ["c1"])],
        [
            ("user", ["old"]),
            ("assistant", ["I look", "c1"]),
            ("user", ["c1"]),
            ("assistant", ["two files"]),
            ("user", ["new"]),
        ],
    ]
    assert recording.name == "session-1"
    assert recording.missing == {MissingPart.SYSTEM, MissingPart.TOOLS}


def test_usage_is_what_pi_reports(tmp_path: Path) -> None:
    recording = read_recording(tmp_path, *SESSION)

    assert all(
        call.usage is not None
        and call.usage.cache == CacheUsage(uncached=3, read=10, written_5m=20)
        and call.usage.output_tokens == 7
        for call in recording.calls
    )
    assert recording.reported_dollars == Decimal("0.5")


def test_a_summary_is_sent_instead_of_what_it_replaces(tmp_path: Path) -> None:
    compaction = {
        "type": "compaction",
        "id": "6",
        "parentId": "5",
        "summary": "what was",
        "firstKeptEntryId": "4",
    }
    *_, last = read_recording(tmp_path, *SESSION, compaction, response_entry("7", "6", text("yes"))).calls

    assert sent_texts(last) == [("user", ["what was"]), ("assistant", ["two files"]), ("user", ["new"])]


def test_kept_entries_may_begin_with_one_without_content(tmp_path: Path) -> None:
    setting_entry = {"type": "thinking_level_change", "id": "5b", "parentId": "4", "thinkingLevel": "low"}
    compaction = {"type": "compaction", "id": "6", "parentId": "5", "summary": "was", "firstKeptEntryId": "5b"}
    lines = (
        *SESSION[:-1],
        setting_entry,
        SESSION[-1] | {"parentId": "5b"},
        compaction,
        response_entry("7", "6", text("yes")),
    )
    *_, last = read_recording(tmp_path, *lines).calls

    assert sent_texts(last) == [("user", ["was", "new"])]


def test_the_first_version_has_no_ids_and_names_kept_entries_by_line(tmp_path: Path) -> None:
    compaction = {"type": "compaction", "summary": "what was", "firstKeptEntryIndex": 4}
    lines = [
        HEADER,
        *without_ids(*SESSION[1:]),
        compaction,
        *without_ids(response_entry("7", "6", text("yes"))),
    ]
    *_, last = read_recording(tmp_path, *lines).calls

    assert sent_texts(last) == [("user", ["what was"]), ("assistant", ["two files"]), ("user", ["new"])]


def test_a_branch_begins_at_its_parent(tmp_path: Path) -> None:
    lines = (
        *SESSION,
        response_entry("6", "5", text("one way")),
        {"type": "branch_summary", "id": "7", "parentId": "4", "fromId": "6", "summary": "went one way"},
        message_entry("8", "7", "user", text("the other way")),
        response_entry("9", "8", text("fine")),
    )
    *_, last = read_recording(tmp_path, *lines).calls

    assert sent_texts(last)[-2:] == [("assistant", ["two files"]), ("user", ["went one way", "the other way"])]


def test_entries_that_are_not_sent_to_the_model_are_left_out(tmp_path: Path) -> None:
    lines = (
        *SESSION,
        {"type": "custom", "id": "6", "parentId": "5", "customType": "x", "data": {}},
        {"type": "label", "id": "7", "parentId": "6", "targetId": "1", "label": "here"},
        message_entry("8", "7", "bashExecution", command="secret", output="x", excludeFromContext=True),
        response_entry("9", "8", text("cut"), stopReason="aborted"),
        {"type": "custom_message", "id": "a", "parentId": "9", "content": "by the way"},
        message_entry("b", "a", "bashExecution", command="ls", output="a b"),
        {"type": "something_new", "id": "c", "parentId": "b", "content": 5},
        response_entry("d", "c", text("done")),
    )
    *_, last = read_recording(tmp_path, *lines).calls

    assert sent_texts(last)[-1] == ("user", ["new", "by the way", "Ran `ls`\na b"])


def test_a_response_without_usage_is_not_a_call(tmp_path: Path) -> None:
    zero_usage = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    recording = read_recording(
        tmp_path, *SESSION, response_entry("6", "5", usage=zero_usage, stopReason="error")
    )

    assert len(recording.calls) == 2


def test_calls_that_a_fork_copied_have_the_same_ids(tmp_path: Path) -> None:
    fork = HEADER | {"id": "session-2", "parentSession": "x"}
    copied = [entry | {"id": f"n{entry['id']}", "parentId": None} for entry in SESSION[1:]]
    first, second = read_recording(tmp_path, *SESSION), read_recording(tmp_path, fork, *copied)

    assert first.calls[0].id == second.calls[0].id
    assert len({call.id for call in first.calls}) == len(first.calls)


def test_images_and_thinking_are_converted_to_the_anthropic_format(tmp_path: Path) -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    thinking = {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"}
    lines = (HEADER, message_entry("1", None, "user", image), response_entry("2", "1", thinking, text("seen")))
    (call,) = read_recording(tmp_path, *lines).calls

    assert json.loads(call.last_message.raw)["content"][0]["source"] == {
        "type": "base64",
        "media_type": "image/png",
        "data": "aGk=",
    }
    assert json.loads(call.response)["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "sig"}
    assert call.has_thinking
