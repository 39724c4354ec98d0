"""Usage read from the logs of each agent: the same calls as the readers that reconstruct conversations find."""

import gzip
import json
import sqlite3
from decimal import Decimal
from pathlib import Path

import pytest

from foveate.model import CacheUsage
from foveate.replay.readers.usage_scan import LoggedCall
from foveate.replay.recording import RecordingSource
from foveate.replay.recording_files import read_recordings
from foveate.replay.usage.collect import scan_log
from tests.support.scenarios.agent_logs import (
    CODEX,
    GEMINI_CLI,
    QWEN_CODE,
    Record,
    codex_meta,
    codex_model,
    codex_token_count,
)
from tests.support.scenarios.usage_logs import (
    MESSAGE_ID,
    claude_line,
    write_lines,
    write_opencode_database,
    write_opencode_storage,
)


def scan_claude(tmp_path: Path, *records: Record) -> list[LoggedCall]:
    path = write_lines(tmp_path / "projects" / "-home-ana-my-repo" / "session-1.jsonl", records)
    return scan_log(RecordingSource.CLAUDE_CODE, path).calls


def test_a_call_of_claude_code_has_usage_session_and_project(tmp_path: Path) -> None:
    (call,) = scan_claude(tmp_path, claude_line())
    assert (call.session, call.project, call.model) == (
        "session-1",
        "/home/ana/my.repo",
        "claude-sonnet-4-5",
    )
    assert call.usage.cache == CacheUsage(uncached=10, read=2_000, written_5m=100, written_1h=200)
    assert call.usage.output_tokens == 5
    assert call.at == 1_780_653_600.0


def test_lines_of_a_streamed_response_are_one_call_with_the_last_usage(tmp_path: Path) -> None:
    (call,) = scan_claude(
        tmp_path, claude_line(1, output=1), claude_line(2, output=1), claude_line(3, output=70)
    )
    assert call.usage.output_tokens == 70


@pytest.mark.parametrize("output", [0, 1])
def test_a_later_copy_with_less_usage_does_not_replace_a_call(tmp_path: Path, output: int) -> None:
    later = claude_line(2, output=output)
    if not output:
        later["message"]["usage"] = None
    (call,) = scan_claude(tmp_path, claude_line(1, output=70), later)
    assert call.usage.output_tokens == 70


@pytest.mark.parametrize(
    ("agent", "line"),
    [
        (RecordingSource.CLAUDE_CODE, claude_line(uncached=-1)),
        (RecordingSource.QWEN_CODE, QWEN_CODE[1] | {"usageMetadata": {"promptTokenCount": -1}}),
    ],
)
def test_a_line_with_impossible_usage_is_unreadable(
    tmp_path: Path, agent: RecordingSource, line: Record
) -> None:
    scanned = scan_log(agent, write_lines(tmp_path / "log.jsonl", [line]))
    assert (scanned.calls, scanned.unreadable_lines) == ([], 1)


def test_a_message_that_a_side_conversation_copies_is_one_call(tmp_path: Path) -> None:
    copied = claude_line(2, request_id="req_2", isSidechain=True)
    assert len(scan_claude(tmp_path, claude_line(1), copied)) == 1


def test_equal_short_message_ids_of_other_hosts_are_different_calls(tmp_path: Path) -> None:
    lines = [claude_line(n, message_id="msg_1", request_id="", uncached=n) for n in (1, 2, 2)]
    assert len(scan_claude(tmp_path, *lines)) == 2


def test_lines_that_are_no_calls_are_ignored(tmp_path: Path) -> None:
    synthetic = claude_line(1)
    synthetic["message"] |= {"model": "<synthetic>"}
    task = {"type": "user", "toolUseResult": {"usage": {"input_tokens": 9}}, "message": {"role": "user"}}
    progress = {"type": "progress", "data": {"message": claude_line(2)}}
    assert scan_claude(tmp_path, synthetic, task, progress) == []


def test_the_cost_that_old_versions_log_is_kept(tmp_path: Path) -> None:
    (call,) = scan_claude(tmp_path, claude_line(costUSD=0.25))
    assert call.usage.reported_dollars == Decimal("0.25")


def test_the_folder_names_the_project_if_the_working_folder_does_not(tmp_path: Path) -> None:
    (call,) = scan_claude(tmp_path, claude_line(cwd="/elsewhere"))
    assert call.project == "-home-ana-my-repo"


def test_a_sub_agent_in_a_deeper_folder_belongs_to_the_project(tmp_path: Path) -> None:
    path = tmp_path / "projects" / "-home-ana-my-repo" / "session-1" / "subagents" / "agent-1.jsonl"
    (call,) = scan_log(RecordingSource.CLAUDE_CODE, write_lines(path, [claude_line()])).calls
    assert call.project == "/home/ana/my.repo"


def test_corrupt_lines_are_counted_but_not_a_last_line_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    whole = json.dumps(claude_line()).encode()
    path.write_bytes(b'{"usage": nonsense\n' + b"\0" * 50 + b"\n" + whole + b"\n" + whole[:-20])
    scanned = scan_log(RecordingSource.CLAUDE_CODE, path)
    assert (len(scanned.calls), scanned.unreadable_lines) == (1, 1)


def test_a_last_line_without_a_line_break_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(claude_line()))
    assert len(scan_log(RecordingSource.CLAUDE_CODE, path).calls) == 1


@pytest.mark.parametrize("length", [1, 100, 4 * 1024 * 1024 - 400, 4 * 1024 * 1024, 9_000_000])
def test_lines_are_found_across_chunks(tmp_path: Path, length: int) -> None:
    filler = {"type": "user", "text": "x" * length}
    lines = [claude_line(1, message_id=MESSAGE_ID + "1"), filler, claude_line(2, message_id=MESSAGE_ID + "2")]
    assert len(scan_claude(tmp_path, *lines, filler)) == 2


def test_a_line_that_never_ends_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.truncate(130_000_000)
    scanned = scan_log(RecordingSource.CLAUDE_CODE, path)
    assert (scanned.calls, scanned.unreadable_lines) == ([], 1)


def test_codex_counts_each_response_once(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "rollout-1.jsonl", CODEX)
    calls = scan_log(RecordingSource.CODEX, path).calls
    assert [(call.usage.cache.uncached, call.usage.cache.read, call.usage.output_tokens) for call in calls] == [
        (12_000, 0, 50),
        (196, 11_904, 10),
    ]
    assert {(call.session, call.project, call.model) for call in calls} == {
        ("session-1", "/repo", "gpt-5.1-codex")
    }


def test_codex_without_the_last_usage_counts_differences_and_a_restart(tmp_path: Path) -> None:
    counts = [(100, 0, 10), (250, 50, 30), (40, 0, 4)]  # the last one after a restart
    records = [
        codex_meta(),
        codex_model(1),
        *(codex_token_count(n, count, None) for n, count in enumerate(counts)),
    ]
    calls = scan_log(RecordingSource.CODEX, write_lines(tmp_path / "r.jsonl", records)).calls
    assert [call.usage.cache.input_tokens for call in calls] == [100, 150, 40]
    assert [call.usage.output_tokens for call in calls] == [10, 20, 4]


SPAWNED: Record = {"source": {"subagent": {"thread_spawn": {"parent_thread_id": "session-1", "depth": 1}}}}


@pytest.mark.parametrize(
    ("fork", "copied"),
    [({"forked_from_id": "session-1"}, CODEX[1:]), ({"forked_from_id": "session-1"}, CODEX), (SPAWNED, CODEX)],
    ids=["without the metadata of its origin", "with it", "sub-agent"],
)
def test_calls_that_a_forked_codex_session_copies_have_the_same_keys(
    tmp_path: Path, fork: Record, copied: list[Record]
) -> None:
    original = scan_log(RecordingSource.CODEX, write_lines(tmp_path / "a.jsonl", CODEX)).calls
    new = codex_token_count(70, (50_000, 23_000, 90), (25_900, 11_096, 30))
    records = [codex_meta(60, "session-2", **fork), *copied, new]
    forked = scan_log(RecordingSource.CODEX, write_lines(tmp_path / "b.jsonl", records)).calls
    assert {call.session for call in forked} == {"session-2"}
    assert [call.key for call in forked[:2]] == [call.key for call in original]
    assert len({call.key for call in (*original, *forked)}) == 3


def test_equal_calls_of_two_codex_sub_agents_are_two_calls(tmp_path: Path) -> None:
    keys = [
        scan_log(RecordingSource.CODEX, write_lines(tmp_path / f"{session}.jsonl", records)).calls[0].key
        for session in ("session-2", "session-3")
        for records in [
            [codex_meta(0, session, **SPAWNED), codex_model(1), codex_token_count(2, (9, 0, 1), None)]
        ]
    ]
    assert len(set(keys)) == 2


def find_usage_as_replay_does(path: Path) -> list[tuple[CacheUsage, int]]:
    calls = [call for recording in read_recordings(path) for call in recording.calls]
    return [(call.usage.cache, call.usage.output_tokens) for call in calls if call.usage is not None]


@pytest.mark.parametrize(
    ("agent", "name", "records"),
    [
        (RecordingSource.CODEX, "rollout-1.jsonl", CODEX),
        (RecordingSource.GEMINI_CLI, "session-1.jsonl", GEMINI_CLI),
        (RecordingSource.QWEN_CODE, "1.jsonl", QWEN_CODE),
    ],
)
def test_the_scan_finds_the_same_usage_as_replay(
    tmp_path: Path, agent: RecordingSource, name: str, records: list[Record]
) -> None:
    path = write_lines(tmp_path / "chats" / name, records)
    calls = scan_log(agent, path).calls
    assert [(call.usage.cache, call.usage.output_tokens) for call in calls] == find_usage_as_replay_does(path)
    assert all(call.at and call.session and call.model for call in calls)


def test_recorded_sessions_have_the_same_usage_as_in_replay(shared_data: Path, tmp_path: Path) -> None:
    count = 0
    for agent in (RecordingSource.CLAUDE_CODE, RecordingSource.PI):
        for source in sorted((shared_data / "sessions" / agent.value.replace("-", "_")).glob("*.jsonl.gz")):
            path = tmp_path / source.stem
            path.write_bytes(gzip.decompress(source.read_bytes()))
            calls = scan_log(agent, path).calls
            by_scan = sorted((call.usage.cache.input_tokens, call.usage.output_tokens) for call in calls)
            by_replay = sorted(
                (cache.input_tokens, output) for cache, output in find_usage_as_replay_does(path)
            )
            assert by_scan == by_replay, source
            count += len(calls)
    assert count > 800


def test_a_gemini_recording_of_one_document_is_read(tmp_path: Path) -> None:
    document = GEMINI_CLI[0] | {"messages": GEMINI_CLI[1:]}
    path = tmp_path / "hash" / "chats" / "session-1.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document, indent=2))
    (tmp_path / "hash" / ".project_root").write_text("/home/ana/repo\n")
    calls = scan_log(RecordingSource.GEMINI_CLI, path).calls
    assert [call.usage.output_tokens for call in calls] == [120, 10]
    assert {call.project for call in calls} == {"/home/ana/repo"}


def test_a_broken_gemini_document_counts_as_one_unreadable_line(tmp_path: Path) -> None:
    path = tmp_path / "session-1.json"
    path.write_text('{"sessionId": ')
    assert scan_log(RecordingSource.GEMINI_CLI, path).unreadable_lines == 1


def test_database_and_storage_of_opencode_have_the_same_calls_with_logged_cost(tmp_path: Path) -> None:
    write_opencode_database(tmp_path / "opencode.db")
    write_opencode_storage(tmp_path / "storage")
    calls = scan_log(RecordingSource.OPENCODE, tmp_path / "opencode.db").calls
    assert calls == scan_log(RecordingSource.OPENCODE, tmp_path / "storage").calls
    assert [call.usage.reported_dollars for call in calls] == [Decimal("0.034212"), Decimal("0.003537")]
    assert {(call.session, call.project, call.provider) for call in calls} == {("ses_1", "/repo", "anthropic")}


def test_a_file_that_is_no_database_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "opencode.db").write_text("nothing")
    with pytest.raises(sqlite3.Error):
        scan_log(RecordingSource.OPENCODE, tmp_path / "opencode.db")
