"""Recordings are found in folders and their formats detected; a session includes its sub-agents."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from foveate.errors import UnreadableInput
from foveate.replay.readers.log_file import LogFile, parse_time
from foveate.replay.recording import Recording, RecordingSource
from foveate.replay.recording_files import (
    find_files,
    group_sessions,
    parse_store_url,
    peek_file,
    read_recordings,
    read_session,
)
from tests.support.scenarios.agent_logs import CODEX, GEMINI_CLI, OPENCODE, OPENHANDS, QWEN_CODE, TAU_BENCH
from tests.support.scenarios.claude_code_log import SESSION, Line, answer, line, text, write_log


def sub_agent_lines(name: str, session: str = "s", second: int = 6) -> list[Line]:
    fields: dict[str, Any] = {"isSidechain": True, "agentId": name, "sessionId": session}
    return [
        line("user", f"{name}-1", None, second, text("look there"), **fields),
        answer(f"{name}-2", f"{name}-1", second + 1, f"r-{name}", 0, 3_000, text("seen"), **fields),
    ]


def read_folder(folder: Path) -> list[Recording]:
    sessions, _ = group_sessions(find_files([folder]).files)
    return [recording for session in sessions for recording in read_session(session)]


@pytest.mark.parametrize(
    "name",
    ["agent-x.jsonl", "s/subagents/agent-x.jsonl"],
    ids=["next to the session", "in a subfolder"],
)
def test_a_session_includes_the_calls_of_its_sub_agents(tmp_path: Path, name: str) -> None:
    write_log(tmp_path, *SESSION, name="s.jsonl")
    write_log(tmp_path, *sub_agent_lines("x"), name=name)
    (recording,) = read_folder(tmp_path)

    assert recording.name == "s"
    assert [(call.id, call.conversation) for call in recording.calls] == [
        ("r1", "s"),
        ("r-x", "x"),
        ("r2", "s"),
    ]
    assert recording.size_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.jsonl"))


def test_a_response_that_a_side_conversation_copies_with_another_request_id_is_one_call(tmp_path: Path) -> None:
    message, fields = {"message": {"id": "msg_0123456789abcdefghij"}}, {"isSidechain": True, "agentId": "x"}
    write_log(
        tmp_path,
        line("user", "u1", None, 0, text("hi")),
        answer("a1", "u1", 1, "r1", 0, 9, text("yes"), **message),
    )
    copied = line("user", "x1", None, 0, text("hi"), **fields)
    copy = answer("x2", "x1", 1, "r2", 0, 9, text("yes"), **message, **fields)
    write_log(tmp_path, copied, copy, name="agent-x.jsonl")

    (recording,) = read_folder(tmp_path)
    assert [call.conversation for call in recording.calls] == ["s"]


def test_a_resumed_session_includes_its_sub_agents_though_it_begins_with_lines_of_another(
    tmp_path: Path,
) -> None:
    next_turn = (
        line("user", "u5", "a4", 60, text("go on"), sessionId="t"),
        answer("a5", "u5", 61, "r3", 5_200, 9, text("yes"), sessionId="t"),
    )
    write_log(tmp_path, *SESSION, *next_turn, name="t.jsonl")
    write_log(tmp_path, *sub_agent_lines("x", session="t", second=70), name="agent-x.jsonl")

    assert {recording.name: [call.id for call in recording.calls] for recording in read_folder(tmp_path)} == {
        "s": ["r1", "r2"],
        "t": ["r3", "r-x"],
    }


def test_sub_agents_without_their_session_are_a_recording_of_their_own(tmp_path: Path) -> None:
    write_log(tmp_path, *sub_agent_lines("x"), name="agent-x.jsonl")
    write_log(tmp_path, *sub_agent_lines("y"), name="agent-y.jsonl")
    write_log(tmp_path, *sub_agent_lines("z", session="t"), name="agent-z.jsonl")

    assert {recording.name: len(recording.calls) for recording in read_folder(tmp_path)} == {"s": 2, "t": 1}


def test_calls_that_a_resumed_session_copied_have_the_same_ids(tmp_path: Path) -> None:
    copied = [entry | {"sessionId": "t"} for entry in SESSION]
    next_turn = (
        line("user", "u5", "a4", 60, text("go on"), sessionId="t"),
        answer("a5", "u5", 61, "r3", 5_200, 9, text("yes"), sessionId="t"),
    )
    write_log(tmp_path, *SESSION, name="1.jsonl")
    write_log(tmp_path, *copied, *next_turn, name="2.jsonl")

    assert [[call.id for call in recording.calls] for recording in read_folder(tmp_path)] == [
        ["r1", "r2"],
        ["r1", "r2", "r3"],
    ]


FIRST_LINES: dict[RecordingSource, Any] = {
    RecordingSource.CLAUDE_CODE: SESSION[0],
    RecordingSource.PI: {"type": "session", "id": "x", "timestamp": "2026-01-05T10:00:00Z", "cwd": "/"},
    RecordingSource.SWE_AGENT: {"trajectory": [], "history": [{"role": "user", "content": "x"}], "info": {}},
    RecordingSource.MESSAGES: {
        "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    },
    RecordingSource.REQUESTS: {"model": "gpt-5.1", "messages": [{"role": "user", "content": "x"}]},
    RecordingSource.CODEX: CODEX[0],
    RecordingSource.GEMINI_CLI: GEMINI_CLI[0],
    RecordingSource.QWEN_CODE: QWEN_CODE[0],
    RecordingSource.OPENCODE: OPENCODE,
    RecordingSource.OPENHANDS: OPENHANDS[0],
    RecordingSource.TAU_BENCH: TAU_BENCH[0],
}


@pytest.mark.parametrize(("source", "head"), FIRST_LINES.items(), ids=list(FIRST_LINES))
def test_the_format_of_a_file_is_detected_by_its_content(
    tmp_path: Path, source: RecordingSource, head: Any
) -> None:
    for name, content in {
        "a.log": json.dumps(head),
        "b.jsonl": "\n\ufeff\n{half a li\n" + json.dumps(head) + "\n" + json.dumps(head),
        "c.json": json.dumps(head, indent=2),
    }.items():
        path = tmp_path / name
        path.write_text(content)
        assert peek_file(path).source is source, name


def test_a_request_log_may_begin_with_a_prefilled_response(tmp_path: Path) -> None:
    user, prefilled = {"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}
    bodies = [{"model": "m", "max_tokens": 5, "messages": messages} for messages in ([user, prefilled], [user])]

    assert peek_file(write_log(tmp_path, *bodies)).source is RecordingSource.REQUESTS


def test_a_summary_line_may_come_first(tmp_path: Path) -> None:
    path = write_log(tmp_path, {"type": "summary", "summary": "x", "leafUuid": "u"}, *SESSION)

    assert (peek_file(path).source, peek_file(path).session) == (RecordingSource.CLAUDE_CODE, "s")


def test_an_unknown_format_is_rejected_with_a_list_of_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"a": 1}')

    (tmp_path / "empty.jsonl").write_text("\n \n")

    with pytest.raises(UnreadableInput, match=r"empty\.jsonl: is empty$"):
        list(read_recordings(tmp_path / "empty.jsonl"))
    with pytest.raises(UnreadableInput, match=r"Claude Code.*set the format with --format \(claude-code, pi"):
        list(read_recordings(path))


def test_unknown_files_have_no_source_and_unreadable_files_are_reported(tmp_path: Path) -> None:
    write_log(tmp_path, *SESSION, name="s.jsonl")
    write_log(tmp_path, {"version": 1, "entries": []}, name="sessions-index.json")
    (tmp_path / "broken.jsonl.gz").write_bytes(b"\x1f\x8bno gzip")
    sessions, problems = group_sessions([*find_files([tmp_path]).files, tmp_path / "gone.jsonl"])

    assert {session.files[0].name: session.source for session in sessions} == {
        "broken.jsonl.gz": None,
        "s.jsonl": RecordingSource.CLAUDE_CODE,
        "sessions-index.json": None,
    }
    assert [Path(problem.file).name for problem in problems] == ["gone.jsonl"]


def test_a_folder_is_read_completely_and_hidden_files_are_reported(tmp_path: Path) -> None:
    for name in ("a/b/c.jsonl", "a/d.traj.gz", "e.JSON", "f.db", ".hidden/g.jsonl", ".h.jsonl", "notes.md"):
        write_log(tmp_path, "{}", name=name)
    (tmp_path / "a" / "round").symlink_to(tmp_path)
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nothing")
    result = find_files([tmp_path])

    assert [str(path.relative_to(tmp_path)) for path in result.files] == [
        "a/b/c.jsonl",
        "a/d.traj.gz",
        "e.JSON",
        "f.db",
    ]
    assert {path.name for path, _ in result.ignored} == {".hidden", ".h.jsonl", "gone.jsonl", "round"}


def test_a_folder_without_recordings_and_a_missing_path_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match=r"contains no recordings: no file is named \*\.jsonl"):
        find_files([tmp_path])
    with pytest.raises(UnreadableInput, match="does not exist"):
        find_files([tmp_path / "x.jsonl"])


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    path = write_log(tmp_path, *SESSION)

    assert find_files([path, tmp_path, str(path)]).files == (path,)


def test_a_damaged_file_is_rejected_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(b"\x1f\x8bno gzip")

    with pytest.raises(UnreadableInput, match=r"known format \(line 1: the compressed file ends early"):
        list(read_recordings(path))


def test_a_truncated_compressed_file_is_read_as_far_as_possible(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    filler = [line("user", f"x{number}", "a4", 99, text(os.urandom(300).hex())) for number in range(200)]
    compressed = gzip.compress("\n".join(map(json.dumps, [*SESSION, *filler])).encode())
    path.write_bytes(compressed[: len(compressed) // 2])
    (recording,) = read_recordings(path)

    assert len(recording.calls) == 2
    assert "the compressed file ends early" in recording.unreadable[-1].reason


def test_a_file_without_readable_lines_is_reported(tmp_path: Path) -> None:
    path = write_log(tmp_path, '{"type": "user", "uu', "7")
    (recording,) = read_recordings(path, source=RecordingSource.CLAUDE_CODE)

    assert recording.calls == ()
    assert [problem.line for problem in recording.unreadable] == [1, 2]


def test_a_line_that_is_too_long_is_skipped_and_later_ones_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"{}\n" + b"x" * 1_000 + b"\n{}\n" + b"y" * 64)
    file = LogFile(path, max_line_bytes=64)

    assert [number for number, _ in file.lines()] == [1, 3]
    assert [(problem.line, problem.reason) for problem in file.unreadable] == [
        (2, "is longer than 64 bytes"),
        (4, "is longer than 64 bytes"),
    ]
    assert file.size_bytes == path.stat().st_size


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-01-05T10:00:00Z", 1_767_607_200.0),
        ("2026-01-05T12:00:00.500+02:00", 1_767_607_200.5),
        ("2026-01-05 10:00:00", 1_767_607_200.0),
        (1_767_607_200, 1_767_607_200.0),
        (1_767_607_200_500, 1_767_607_200.5),
        ("1767607200000", 1_767_607_200.0),
        (None, 0.0),
        (True, 0.0),
        ("soon", 0.0),
        (-5, 0.0),
        (float("nan"), 0.0),
        (10**40, 0.0),
        ("9999-12-31T23:59:59Z", 0.0),  # not a date in all time zones
        ({}, 0.0),
    ],
    ids=repr,
)
def test_times_are_parsed_in_any_notation(value: object, expected: float) -> None:
    assert parse_time(value) == expected


def test_stores_are_named_by_their_urls(tmp_path: Path) -> None:
    url = "postgresql://me@host:5432/foveate?sslmode=require"

    assert parse_store_url(find_files([url]).files[0]) == url
    assert parse_store_url(find_files(["postgresql:///foveate"]).files[0]) == "postgresql:///foveate"
    assert parse_store_url(tmp_path) is None
    with pytest.raises(UnreadableInput, match="does not exist"):
        find_files([f"sqlite:///{tmp_path}/none.sqlite"])


def test_every_recorded_session_is_read(shared_data: Path) -> None:
    recordings = read_folder(shared_data / "sessions")

    assert {recording.source for recording in recordings} == {
        RecordingSource.CLAUDE_CODE,
        RecordingSource.PI,
        RecordingSource.SWE_AGENT,
    }
    assert not [problem for recording in recordings for problem in recording.unreadable]
    assert all(recording.calls for recording in recordings)
    calls_with_usage = [
        call
        for recording in recordings
        if recording.source is not RecordingSource.SWE_AGENT
        for call in recording.calls
    ]
    assert len(calls_with_usage) == 889
    assert all(call.usage is not None and call.at and call.model for call in calls_with_usage)


UNSUPPORTED: dict[str, Any] = {
    "Codex": {"session_id": "s", "ts": 1_780_000_000, "text": "hi"},
    "Gemini CLI": [
        {"sessionId": "s", "messageId": 0, "type": "user", "message": "hi", "timestamp": "2026-01-05"}
    ],
    "codex exec --json": {"type": "thread.started", "thread_id": "t"},
    "Copilot": {"type": "session.start", "data": {"sessionId": "s"}, "id": "1", "timestamp": "2026-01-05"},
    "Agent Trajectory Interchange Format": {"schema_version": "ATIF-v1.4", "agent": {}, "steps": []},
    "tau2-bench": {"timestamp": "2026-01-05", "tasks": [], "simulations": []},
    "LLM logs": {"id": 1, "timestamp": "2026-01-05", "source": "agent", "action": "run", "args": {}},
}


@pytest.mark.parametrize(("name", "head"), UNSUPPORTED.items(), ids=list(UNSUPPORTED))
def test_a_known_format_that_cannot_be_replayed_is_named(tmp_path: Path, name: str, head: Any) -> None:
    path = write_log(tmp_path, head)

    with pytest.raises(UnreadableInput, match=f"{name}.*; this format is not supported"):
        list(read_recordings(path))
    (session,), _ = group_sessions([path])
    assert (session.source, name in session.unsupported) == (None, True)
