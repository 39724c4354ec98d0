"""Sessions of opencode: an export, a storage folder and a database give the same."""

import json
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from foveate.errors import UnreadableInput
from foveate.model import CacheUsage
from foveate.replay.recording import RecordedCall, Recording, RecordingSource
from foveate.replay.recording_files import find_files, group_sessions, peek_file, read_recordings, read_session
from tests.support.scenarios.agent_logs import (
    OPENCODE,
    OPENCODE_MESSAGES,
    Record,
    opencode_finish,
    opencode_message,
    opencode_tool,
)


def read_export(folder: Path, *messages: Record) -> Recording:
    path = folder / "export.json"
    path.write_text(json.dumps(OPENCODE | {"messages": list(messages or OPENCODE_MESSAGES)}, indent=2))
    (recording,) = read_recordings(path)
    return recording


def read_storage_folder(folder: Path) -> Recording:
    """Read the same session as files, as opencode stored it until version 1.1."""
    for message in OPENCODE_MESSAGES:
        info = message["info"]
        _write_json(folder / "message" / "ses_1" / f"{info['id']}.json", info)
        for part in message["parts"]:
            _write_json(folder / "part" / info["id"] / f"{part['id']}.json", part)
    _write_json(folder / "session" / "project" / "ses_1.json", OPENCODE["info"])
    (session,), problems = group_sessions(find_files([folder]).files)
    assert not problems
    (recording,) = read_session(session)
    return recording


def _write_json(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2))


def write_database(folder: Path) -> Path:
    path = folder / "opencode.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE message (id TEXT, session_id TEXT, time_created INTEGER, data TEXT)")
        connection.execute("CREATE TABLE part (id TEXT, message_id TEXT, session_id TEXT, data TEXT)")
        for message in OPENCODE_MESSAGES:
            info = {key: value for key, value in message["info"].items() if key not in ("id", "sessionID")}
            created = info["time"]["created"]
            message_id = message["info"]["id"]
            connection.execute(
                "INSERT INTO message VALUES (?, 'ses_1', ?, ?)", (message_id, created, json.dumps(info))
            )
            for part in message["parts"]:
                data = {key: part[key] for key in part if key not in ("id", "messageID", "sessionID")}
                connection.execute(
                    "INSERT INTO part VALUES (?, ?, 'ses_1', ?)", (part["id"], message_id, json.dumps(data))
                )
        connection.commit()
    return path


def content_kinds(call: RecordedCall) -> list[str]:
    contents = [json.loads(message.raw)["content"] for message in call.last_message.history()]
    return ["text" if isinstance(content, str) else content[0]["type"] for content in contents]


def test_every_finished_step_is_a_call_with_its_cost(tmp_path: Path) -> None:
    recording = read_export(tmp_path)

    assert (recording.name, recording.source, recording.reported_dollars) == (
        "ses_1",
        RecordingSource.OPENCODE,
        Decimal("0.037749"),
    )
    assert [call.usage.cache for call in recording.calls if call.usage] == [
        CacheUsage(uncached=4, written_5m=9_000),
        CacheUsage(uncached=4, read=9_000, written_5m=100),
    ]
    assert content_kinds(recording.calls[1])[1:] == ["tool_use", "tool_result"]
    assert recording.calls[1].at - recording.calls[0].at == 8


def test_an_export_a_folder_and_a_database_give_the_same(tmp_path: Path) -> None:
    (from_database,) = read_recordings(write_database(tmp_path))
    from_folder = read_storage_folder(tmp_path / "storage")
    from_export = read_export(tmp_path)

    for other in (from_database, from_folder):
        assert [call.id for call in other.calls] == [call.id for call in from_export.calls]
        assert [content_kinds(call) for call in other.calls] == [
            content_kinds(call) for call in from_export.calls
        ]
        assert other.reported_dollars == from_export.reported_dollars


def test_old_versions_put_all_responses_into_one_message(tmp_path: Path) -> None:
    combined = opencode_message(
        "2", "assistant", 1,
        opencode_tool("a"), opencode_finish(4, 0, 9_000, 0.03),
        opencode_tool("b"), opencode_finish(4, 9_000, 100, 0.01),
    )  # fmt: skip

    recording = read_export(tmp_path, OPENCODE_MESSAGES[0], combined)

    assert [content_kinds(call) for call in recording.calls] == [["text"], ["text", "tool_use", "tool_result"]]


def test_a_summary_replaces_all_before_it(tmp_path: Path) -> None:
    text = {"type": "text", "text": "what was done"}
    summary = opencode_message("4", "assistant", 20, text, opencode_finish(9_200, 0, 0, 0.03), summary=True)
    next_turn = [
        opencode_message("5", "user", 30, {"type": "text", "text": "go on"}),
        opencode_message(
            "6", "assistant", 31, {"type": "text", "text": "yes"}, opencode_finish(4, 0, 3_000, 0.01)
        ),
    ]

    recording = read_export(tmp_path, *OPENCODE_MESSAGES, summary, *next_turn)

    assert [json.loads(message.raw)["content"] for message in recording.calls[-1].last_message.history()][
        1:
    ] == [
        "what was done",
        "go on",
    ]


def test_another_database_is_not_one_of_opencode(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE message (id TEXT)")
        connection.commit()

    assert peek_file(path).source is None
    with pytest.raises(UnreadableInput):
        list(read_recordings(path))
