"""Claude Code's logs: a request is everything before its response, and the response's last line has its
usage.
"""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from benchmarks.cache_simulator import run
from foveate.model import CacheUsage
from foveate.replay.recording import MissingPart, RecordedCall, Recording
from foveate.replay.recording_files import read_recordings
from tests.support.scenarios.claude_code_log import (
    SESSION,
    Line,
    answer,
    call,
    clock,
    line,
    result,
    text,
    write_log,
)


def read_recording(folder: Path, *lines: Line | str) -> Recording:
    (recording,) = read_recordings(write_log(folder, *lines))
    return recording


def read_calls(folder: Path, *lines: Line | str) -> tuple[RecordedCall, ...]:
    return read_recording(folder, *lines).calls


def sent_texts(recorded_call: RecordedCall) -> list[tuple[str, list[Any]]]:
    """List the messages of a request: the role, and the text or the tool call id of each block."""
    messages = []
    for message in recorded_call.last_message.history():
        blocks = json.loads(message.raw)["content"]
        names = [block.get("text") or block.get("tool_use_id") or block.get("id") for block in blocks]
        messages.append((message.role, names))
    return messages


def test_the_usage_of_a_request_is_that_of_the_last_line_of_its_response(tmp_path: Path) -> None:
    first, second = read_calls(tmp_path, *SESSION)

    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.cache == CacheUsage(uncached=4, written_5m=5_000)
    assert second.usage.cache == CacheUsage(uncached=4, read=5_000, written_5m=200)
    assert (first.id, second.id, first.model) == ("r1", "r2", "claude-sonnet-4-5")


def test_a_request_contains_everything_before_its_response(tmp_path: Path) -> None:
    first, second = read_calls(tmp_path, *SESSION)

    assert sent_texts(first) == [("user", ["list the files"])]
    assert [role for role, _ in sent_texts(second)] == ["user", "assistant", "user"]
    assert (second.at - first.at, second.response_at - second.at) == (7, 2)
    assert [block["type"] for block in json.loads(first.response)["content"]] == [
        "text",
        "tool_use",
        "tool_use",
    ]


def test_two_requests_share_the_common_part_of_their_histories(tmp_path: Path) -> None:
    first, second = read_calls(tmp_path, *SESSION)

    assert second.last_message.history()[0] is first.last_message


def test_results_are_in_the_order_of_their_calls_even_from_a_side_branch(tmp_path: Path) -> None:
    *_, second = read_calls(tmp_path, *SESSION)

    assert sent_texts(second)[-1] == ("user", ["one", "two"])
    assert second.last_message.last_logged_block == 1


def test_tool_calls_on_a_side_branch_belong_to_the_response(tmp_path: Path) -> None:
    """The parent of the last result is the first of two calls, so the second is not on the path to the root."""
    *_, second = read_calls(
        tmp_path, *SESSION[:-1], answer("a4", "u2", 9, "r2", 5_000, 200, text("Two files."))
    )

    assert sent_texts(second)[1:] == [("assistant", ["I look.", "one", "two"]), ("user", ["one", "two"])]


def test_a_response_that_continued_while_a_tool_ran_is_one_message(tmp_path: Path) -> None:
    lines = (
        line("user", "u1", None, 0, text("go")),
        answer("a1", "u1", 3, "r1", 0, 5_000, call("one")),
        line("user", "u2", "a1", 4, result("one")),
        answer("a2", "u2", 5, "r1", 0, 5_000, call("two")),
        line("user", "u3", "a2", 6, result("two")),
        answer("a3", "u3", 7, "r2", 5_000, 100, text("done")),
    )
    first, second = read_calls(tmp_path, *lines)

    assert sent_texts(first) == [("user", ["go"])]
    assert sent_texts(second)[1:] == [("assistant", ["one", "two"]), ("user", ["one", "two"])]


def test_lines_of_one_request_without_its_id_are_matched_by_message_id(tmp_path: Path) -> None:
    lines = [
        entry | {"requestId": None, "message": entry["message"] | {"id": f"msg_{entry['requestId']}"}}
        if entry["type"] == "assistant"
        else entry
        for entry in SESSION
    ]

    assert [entry.id for entry in read_calls(tmp_path, *lines)] == ["msg_r1", "msg_r2"]


def test_responses_with_the_same_id_are_several_calls(tmp_path: Path) -> None:
    lines = (
        line("user", "u1", None, 0, text("go")),
        answer("a1", "u1", 3, "", 0, 5_000, call("one"), message={"id": "msg"}),
        line("user", "u2", "a1", 4, result("one")),
        answer("a2", "u2", 5, "", 5_000, 300, text("done"), message={"id": "msg"}),
    )
    first, second = read_calls(tmp_path, *lines)

    assert first.id != second.id
    assert sent_texts(second)[1:] == [("assistant", ["one"]), ("user", ["one"])]


def test_lines_of_which_only_the_last_has_the_input_tokens_are_one_call(tmp_path: Path) -> None:
    zero_usage = {"usage": {"input_tokens": 0, "output_tokens": 0}, "id": "msg"}
    lines = (
        line("user", "u1", None, 0, text("go")),
        answer("a1", "u1", 3, "", 0, 0, call("one"), message=zero_usage),
        line("user", "u2", "a1", 4, result("one")),
        answer("a2", "u2", 5, "", 0, 300, text("done"), message={"id": "msg"}),
    )
    (recorded_call,) = read_calls(tmp_path, *lines)

    assert recorded_call.usage is not None
    assert recorded_call.usage.cache.written_5m == 300


def test_repeated_user_messages_are_sent_twice(tmp_path: Path) -> None:
    lines = (
        line("user", "u1", None, 0, text("go on")),
        line("user", "u2", "u1", 1, text("go on")),
        answer("a1", "u2", 3, "r", 0, 300, text("yes")),
    )

    assert sent_texts(read_calls(tmp_path, *lines)[0]) == [("user", ["go on", "go on"])]


def test_messages_that_the_agent_wrote_itself_are_not_calls(tmp_path: Path) -> None:
    usage = {"input_tokens": 0, "output_tokens": 0}
    synthetic = {"model": "<synthetic>", "usage": usage}
    lines = (
        *SESSION,
        line("assistant", "e1", "a4", 10, text("API Error: 529"), message=synthetic, isApiErrorMessage=True),
        line("user", "u9", "e1", 11, text("again")),
        answer("a9", "u9", 12, "r9", 5_200, 10, text("yes")),
    )
    *_, last = read_calls(tmp_path, *lines)

    assert [recorded_call.id for recorded_call in read_calls(tmp_path, *lines)] == ["r1", "r2", "r9"]
    assert sent_texts(last)[-2:] == [("assistant", ["Two files."]), ("user", ["again"])]


def test_after_a_compaction_a_request_begins_with_the_summary(tmp_path: Path) -> None:
    boundary = {
        "type": "system",
        "subtype": "compact_boundary",
        "uuid": "b",
        "parentUuid": None,
        "logicalParentUuid": "a4",
        "sessionId": "s",
        "timestamp": clock(20),
        "compactMetadata": {"trigger": "auto", "preTokens": 9_000},
    }
    lines = (
        *SESSION,
        boundary,
        line("user", "u5", "b", 21, text("the summary"), isCompactSummary=True),
        answer("a5", "u5", 22, "r3", 0, 700, text("on we go")),
    )
    *_, last = read_calls(tmp_path, *lines)

    assert sent_texts(last) == [("user", ["the summary"])]


def test_lines_that_a_compaction_preserved_follow_the_summary(tmp_path: Path) -> None:
    segment = {"headUuid": "a4", "anchorUuid": "u5", "tailUuid": "a4"}
    boundary = {
        "type": "system",
        "subtype": "compact_boundary",
        "uuid": "b",
        "parentUuid": None,
        "sessionId": "s",
        "timestamp": clock(20),
        "compactMetadata": {"preservedSegment": segment},
    }
    lines = (
        *SESSION,
        boundary,
        line("user", "u5", "b", 21, text("the summary"), isCompactSummary=True),
        line("user", "u6", "u5", 22, text("go on")),
        answer("a5", "u6", 23, "r3", 0, 700, text("on we go")),
    )
    *_, last = read_calls(tmp_path, *lines)

    assert sent_texts(last) == [
        ("user", ["the summary"]),
        ("assistant", ["Two files."]),
        ("user", ["go on"]),
    ]


def test_preserved_lines_are_attached_again_and_were_requested_before_the_compaction(tmp_path: Path) -> None:
    """A preserved line is logged once more after the summary, or only there."""
    preserved = {"anchorUuid": "u5", "uuids": ["u7", "a7"]}
    boundary = {
        "type": "system",
        "subtype": "compact_boundary",
        "uuid": "b",
        "parentUuid": None,
        "sessionId": "s",
        "compactMetadata": {"preservedSegment": {"headUuid": "u7"}, "preservedMessages": preserved},
    }
    lines = (
        *SESSION,
        line("user", "u7", "a4", 15, text("and now?")),
        boundary,
        line("user", "u5", "b", 21, text("the summary"), isCompactSummary=True),
        answer("a7", "u5", 16, "r3", 0, 700, text("wait")),
        line("user", "u8", "a7", 30, text("go on")),
        answer("a8", "u8", 31, "r4", 0, 500, text("on we go")),
    )
    *_, preserved_call, last = read_calls(tmp_path, *lines)

    assert sent_texts(preserved_call)[-2:] == [("assistant", ["Two files."]), ("user", ["and now?"])]
    assert sent_texts(last) == [
        ("user", ["the summary", "and now?"]),
        ("assistant", ["wait"]),
        ("user", ["go on"]),
    ]


def test_a_rewound_session_forks_at_the_point_it_was_rewound_to(tmp_path: Path) -> None:
    lines = (
        *SESSION,
        line("user", "u6", "a4", 30, text("wrong way")),
        answer("a6", "u6", 31, "r3", 5_200, 10, text("so?")),
        line("user", "u7", "a4", 40, text("right way")),
        answer("a7", "u7", 41, "r4", 5_200, 12, text("yes")),
    )
    *_, first_branch, second_branch = read_calls(tmp_path, *lines)

    assert sent_texts(second_branch)[-1] == ("user", ["right way"])
    assert first_branch.last_message.previous is second_branch.last_message.previous


def test_a_sub_agent_in_the_log_is_a_conversation_of_its_session(tmp_path: Path) -> None:
    lines = (
        *SESSION,
        line("user", "x1", None, 6, text("look there"), isSidechain=True),
        answer("x2", "x1", 7, "r7", 0, 3_000, text("seen"), isSidechain=True),
    )
    recording = read_recording(tmp_path, *lines)

    assert {recorded_call.id: recorded_call.conversation for recorded_call in recording.calls} == {
        "r1": "s",
        "r2": "s",
        "r7": "x1",
    }


def test_lines_without_messages_change_nothing(tmp_path: Path) -> None:
    progress = {"type": "progress", "uuid": "p", "parentUuid": "u3", "sessionId": "s", "data": {"message": 1}}
    others: tuple[Line | str, ...] = (
        {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}},
        {"type": "queue-operation", "operation": "enqueue", "sessionId": "s"},
        {"type": "something-new", "uuid": 7, "parentUuid": ["odd"]},
        progress,
    )
    *_, expected = read_calls(tmp_path, *SESSION)
    *_, interleaved = read_calls(
        tmp_path, *others[:3], *SESSION[:-1], progress, SESSION[-1] | {"parentUuid": "p"}
    )

    assert sent_texts(interleaved) == sent_texts(expected)


def test_an_unreadable_line_is_skipped_and_reported_by_number(tmp_path: Path) -> None:
    lines = (*SESSION, '{"type": "user", "uu', "[1]", "", '{"a": "\x00"}')
    recording = read_recording(tmp_path, *lines)

    assert len(recording.calls) == 2
    assert [(problem.line, problem.reason) for problem in recording.unreadable] == [
        (8, "is truncated"),
        (9, "is JSON, but not an object"),
        (11, "contains NUL bytes, possibly from a crash"),
    ]


def test_a_line_with_a_cut_emoji_is_read(tmp_path: Path) -> None:
    cut_line = json.dumps(line("user", "u0", None, 0, text("see "))).replace("see ", "see \\ud83d")
    recording = read_recording(tmp_path, cut_line, answer("a0", "u0", 1, "r0", 0, 9, text("ok")))

    assert recording.unreadable == ()
    assert sent_texts(recording.calls[0]) == [("user", ["see �"])]


def test_a_line_that_is_written_twice_is_sent_once(tmp_path: Path) -> None:
    doubled = [entry for entry in SESSION for _ in range(2)]

    assert [sent_texts(entry) for entry in read_calls(tmp_path, *doubled)] == [
        sent_texts(entry) for entry in read_calls(tmp_path, *SESSION)
    ]


def test_thinking_in_one_response_of_a_turn_counts_for_the_whole_turn(tmp_path: Path) -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
    lines = (
        *SESSION[:1],
        answer("a0", "u1", 2, "r1", 0, 5_000, thinking),
        *SESSION[1:],
        line("user", "u9", "a4", 20, text("thanks")),
        answer("a9", "u9", 21, "r9", 5_200, 10, text("sure")),
    )

    assert [recorded_call.has_thinking for recorded_call in read_calls(tmp_path, *lines)] == [True, True, False]


def test_output_tokens_too_few_for_the_response_are_not_trusted(tmp_path: Path) -> None:
    sentences = "a sentence of some length, and nothing in it. " * 40
    user = line("user", "u1", None, 0, text("tell me"))
    complete, placeholder, finished = (
        read_calls(
            tmp_path, user, answer("a1", "u1", 3, "r1", 0, 900, text(sentences), output=output, message=message)
        )[0]
        for output, message in ((450, {}), (3, {}), (450, {"stop_reason": "end_turn"}))
    )

    assert (complete.output_is_known, placeholder.output_is_known, finished.output_is_known) == (
        True,
        False,
        True,
    )


def test_if_a_log_never_has_final_counts_none_is_trusted(tmp_path: Path) -> None:
    lines = (
        line("user", "u1", None, 0, text("tell me")),
        answer("a1", "u1", 3, "r1", 0, 900, text("long words " * 90), output=3),
        line("user", "u2", "a1", 5, text("and?")),
        answer("a2", "u2", 6, "r2", 900, 5, text("short"), output=3),
    )

    assert [recorded_call.output_is_known for recorded_call in read_calls(tmp_path, *lines)] == [False, False]


def test_one_hour_writes_are_distinguished_from_five_minute_writes(tmp_path: Path) -> None:
    write_split = {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 800}
    usage = {
        "input_tokens": 4,
        "cache_creation_input_tokens": 900,
        "cache_creation": write_split,
        "output_tokens": 5,
    }
    lines = (
        line("user", "u1", None, 0, text("hi")),
        answer("a1", "u1", 3, "r1", 0, 900, text("ho"), message={"usage": usage}),
    )
    (recorded_call,) = read_calls(tmp_path, *lines)

    assert recorded_call.usage is not None
    assert recorded_call.usage.cache == CacheUsage(uncached=4, written_5m=100, written_1h=800)


def test_missing_parts_are_listed(tmp_path: Path) -> None:
    without_times = [{key: value for key, value in entry.items() if key != "timestamp"} for entry in SESSION]

    assert read_recording(tmp_path, *SESSION).missing == {MissingPart.SYSTEM, MissingPart.TOOLS}
    assert read_recording(tmp_path, *without_times).missing == {
        MissingPart.SYSTEM,
        MissingPart.TOOLS,
        MissingPart.TIME,
    }


def test_the_cost_that_old_versions_report_is_read(tmp_path: Path) -> None:
    lines = [entry | {"costUSD": 0.25} if entry["type"] == "assistant" else entry for entry in SESSION]

    assert read_recording(tmp_path, *lines).reported_dollars == Decimal("0.5")


def test_a_log_of_two_sessions_is_two_recordings(tmp_path: Path) -> None:
    later = answer("a5", "u5", 22, "r3", 5_200, 7, text("back"), sessionId="t")
    lines = (*SESSION, line("user", "u5", "a4", 20, text("resumed"), sessionId="t"), later)
    recordings = list(read_recordings(write_log(tmp_path, *lines)))

    assert [(recording.name, len(recording.calls)) for recording in recordings] == [("s", 2), ("t", 1)]
    assert len(sent_texts(recordings[1].calls[0])) == 5


def test_streamed_output_of_the_agent_is_read_too(tmp_path: Path) -> None:
    """As written by `--output-format stream-json`: without parents, and user lines without ids."""
    init_line: Line = {"type": "system", "subtype": "init", "session_id": "s", "uuid": "i"}
    main = [
        {
            key: value
            for key, value in entry.items()
            if key not in ("parentUuid", "sessionId", "uuid", "requestId")
        }
        | {"session_id": "s", "parent_tool_use_id": None}
        for entry in (*SESSION[:6], SESSION[6] | {"message": SESSION[6]["message"] | {"id": "msg_2"}})
    ]
    for entry in main[1:4]:
        entry["message"] = entry["message"] | {"id": "msg_1"}
    sub_agent_line = main[0] | {"parent_tool_use_id": "tool"}
    recording = read_recording(
        tmp_path, init_line, *main[:4], sub_agent_line, *main[4:], {"type": "result", "session_id": "s"}
    )

    assert [(entry.id, entry.conversation) for entry in recording.calls] == [("msg_1", "s"), ("msg_2", "s")]
    assert sent_texts(recording.calls[1])[1:] == [
        ("assistant", ["I look.", "one", "two"]),
        ("user", ["one", "two"]),
    ]


def test_the_simulator_is_checked_against_any_such_log(tmp_path: Path) -> None:
    write_log(tmp_path, *SESSION)
    figures = run(tmp_path).figures

    assert (figures["requests"], figures["scored"], figures["within_2pct"]) == (2, 1, 1.0)
