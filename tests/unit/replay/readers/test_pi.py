"""pi's sessions: a response was requested with everything before it on its branch, after compaction."""

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


def said(entry: str, parent: str | None, role: str, *blocks: Any, **more: Any) -> Line:
    message = {"role": role, "content": list(blocks), "timestamp": 1_767_607_200_000, **more}
    return {"type": "message", "id": entry, "parentId": parent, "message": message}


def answered(entry: str, parent: str | None, *blocks: Any, **more: Any) -> Line:
    told = {"model": "claude-sonnet-4-5", "usage": USAGE, "stopReason": "stop"} | more
    return said(entry, parent, "assistant", *blocks, **told)


def linear(*lines: Line) -> list[Line]:
    """The same lines in the first version of the format, which had neither ids nor parents."""
    return [{key: value for key, value in one.items() if key not in ("id", "parentId")} for one in lines]


def recording(folder: Path, *lines: Line) -> Recording:
    (one,) = read_recordings(write_log(folder, *lines))
    return one


def sent(asked: RecordedCall) -> list[tuple[str, list[Any]]]:
    found = []
    for one in asked.last_message.history():
        blocks = json.loads(one.raw)["content"]
        found.append(
            (one.role, [block.get("text") or block.get("tool_use_id") or block["id"] for block in blocks])
        )
    return found


CALL = {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "ls"}}
TALK = (
    HEADER,
    said("1", None, "user", text("old")),
    answered("2", "1", text("I look"), CALL, stopReason="toolUse"),
    said("3", "2", "toolResult", text("a b"), toolCallId="c1", toolName="bash", isError=False),
    answered("4", "3", text("two files")),
    said("5", "4", "user", text("new")),
)


def test_a_response_was_requested_with_everything_before_it(tmp_path: Path) -> None:
    found = recording(tmp_path, *TALK, answered("6", "5", text("yes")))

    assert [sent(call) for call in found.calls][1:] == [
        [("user", ["old"]), ("assistant", ["I look", "c1"]), ("user", ["c1"])],
        [
            ("user", ["old"]),
            ("assistant", ["I look", "c1"]),
            ("user", ["c1"]),
            ("assistant", ["two files"]),
            ("user", ["new"]),
        ],
    ]
    assert found.name == "session-1"
    assert found.missing == {MissingPart.SYSTEM, MissingPart.TOOLS}


def test_usage_is_what_pi_reports(tmp_path: Path) -> None:
    found = recording(tmp_path, *TALK)

    assert all(
        call.usage is not None
        and call.usage.cache == CacheUsage(uncached=3, read=10, written_5m=20)
        and call.usage.output_tokens == 7
        for call in found.calls
    )
    assert found.reported_dollars == Decimal("0.5")


def test_a_summary_is_sent_instead_of_what_it_replaces(tmp_path: Path) -> None:
    compaction = {
        "type": "compaction",
        "id": "6",
        "parentId": "5",
        "summary": "what was",
        "firstKeptEntryId": "4",
    }
    *_, last = recording(tmp_path, *TALK, compaction, answered("7", "6", text("yes"))).calls

    assert sent(last) == [("user", ["what was"]), ("assistant", ["two files"]), ("user", ["new"])]


def test_kept_entries_may_begin_with_one_without_content(tmp_path: Path) -> None:
    changed = {"type": "thinking_level_change", "id": "5b", "parentId": "4", "thinkingLevel": "low"}
    compaction = {"type": "compaction", "id": "6", "parentId": "5", "summary": "was", "firstKeptEntryId": "5b"}
    lines = (*TALK[:-1], changed, TALK[-1] | {"parentId": "5b"}, compaction, answered("7", "6", text("yes")))
    *_, last = recording(tmp_path, *lines).calls

    assert sent(last) == [("user", ["was", "new"])]


def test_the_first_version_has_no_ids_and_names_kept_entries_by_line(tmp_path: Path) -> None:
    compaction = {"type": "compaction", "summary": "what was", "firstKeptEntryIndex": 4}
    lines = [HEADER, *linear(*TALK[1:]), compaction, *linear(answered("7", "6", text("yes")))]
    *_, last = recording(tmp_path, *lines).calls

    assert sent(last) == [("user", ["what was"]), ("assistant", ["two files"]), ("user", ["new"])]


def test_a_branch_begins_at_its_parent(tmp_path: Path) -> None:
    lines = (
        *TALK,
        answered("6", "5", text("one way")),
        {"type": "branch_summary", "id": "7", "parentId": "4", "fromId": "6", "summary": "went one way"},
        said("8", "7", "user", text("the other way")),
        answered("9", "8", text("fine")),
    )
    *_, last = recording(tmp_path, *lines).calls

    assert sent(last)[-2:] == [("assistant", ["two files"]), ("user", ["went one way", "the other way"])]


def test_entries_that_are_not_sent_to_the_model_are_left_out(tmp_path: Path) -> None:
    lines = (
        *TALK,
        {"type": "custom", "id": "6", "parentId": "5", "customType": "x", "data": {}},
        {"type": "label", "id": "7", "parentId": "6", "targetId": "1", "label": "here"},
        said("8", "7", "bashExecution", command="secret", output="x", excludeFromContext=True),
        answered("9", "8", text("cut"), stopReason="aborted"),
        {"type": "custom_message", "id": "a", "parentId": "9", "content": "by the way"},
        said("b", "a", "bashExecution", command="ls", output="a b"),
        {"type": "something_new", "id": "c", "parentId": "b", "content": 5},
        answered("d", "c", text("done")),
    )
    *_, last = recording(tmp_path, *lines).calls

    assert sent(last)[-1] == ("user", ["new", "by the way", "Ran `ls`\na b"])


def test_a_response_without_usage_is_not_a_call(tmp_path: Path) -> None:
    nothing = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}
    found = recording(tmp_path, *TALK, answered("6", "5", usage=nothing, stopReason="error"))

    assert len(found.calls) == 2


def test_calls_that_a_fork_copied_have_the_same_ids(tmp_path: Path) -> None:
    fork = HEADER | {"id": "session-2", "parentSession": "x"}
    copied = [one | {"id": f"n{one['id']}", "parentId": None} for one in TALK[1:]]
    first, second = recording(tmp_path, *TALK), recording(tmp_path, fork, *copied)

    assert first.calls[0].id == second.calls[0].id
    assert len({call.id for call in first.calls}) == len(first.calls)


def test_images_and_thinking_are_converted_to_the_anthropic_format(tmp_path: Path) -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    thinking = {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"}
    lines = (HEADER, said("1", None, "user", image), answered("2", "1", thinking, text("seen")))
    (call,) = recording(tmp_path, *lines).calls

    assert json.loads(call.last_message.raw)["content"][0]["source"] == {
        "type": "base64",
        "media_type": "image/png",
        "data": "aGk=",
    }
    assert json.loads(call.response)["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "sig"}
    assert call.has_thinking
