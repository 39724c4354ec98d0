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


def exported(folder: Path, *messages: Record) -> Recording:
    path = folder / "export.json"
    path.write_text(json.dumps(OPENCODE | {"messages": list(messages or OPENCODE_MESSAGES)}, indent=2))
    (only,) = read_recordings(path)
    return only


def stored(folder: Path) -> Recording:
    """The same session as files, as opencode stored it until version 1.1."""
    for message in OPENCODE_MESSAGES:
        info = message["info"]
        _write(folder / "message" / "ses_1" / f"{info['id']}.json", info)
        for part in message["parts"]:
            _write(folder / "part" / info["id"] / f"{part['id']}.json", part)
    _write(folder / "session" / "project" / "ses_1.json", OPENCODE["info"])
    (session,), broken = group_sessions(find_files([folder]).files)
    assert not broken
    (only,) = read_session(session)
    return only


def _write(path: Path, record: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=2))


def database(folder: Path) -> Path:
    path = folder / "opencode.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE message (id TEXT, session_id TEXT, time_created INTEGER, data TEXT)")
        made.execute("CREATE TABLE part (id TEXT, message_id TEXT, session_id TEXT, data TEXT)")
        for message in OPENCODE_MESSAGES:
            info = {key: value for key, value in message["info"].items() if key not in ("id", "sessionID")}
            at = info["time"]["created"]
            own = message["info"]["id"]
            made.execute("INSERT INTO message VALUES (?, 'ses_1', ?, ?)", (own, at, json.dumps(info)))
            for part in message["parts"]:
                data = {key: part[key] for key in part if key not in ("id", "messageID", "sessionID")}
                made.execute("INSERT INTO part VALUES (?, ?, 'ses_1', ?)", (part["id"], own, json.dumps(data)))
        made.commit()
    return path


def kinds(call: RecordedCall) -> list[str]:
    contents = [json.loads(said.raw)["content"] for said in call.last_message.history()]
    return ["text" if isinstance(content, str) else content[0]["type"] for content in contents]


def test_every_finished_step_is_a_call_with_its_cost(tmp_path: Path) -> None:
    only = exported(tmp_path)

    assert (only.name, only.source, only.reported_dollars) == (
        "ses_1",
        RecordingSource.OPENCODE,
        Decimal("0.037749"),
    )
    assert [call.usage.cache for call in only.calls if call.usage] == [
        CacheUsage(uncached=4, written_5m=9_000),
        CacheUsage(uncached=4, read=9_000, written_5m=100),
    ]
    assert kinds(only.calls[1])[1:] == ["tool_use", "tool_result"]
    assert only.calls[1].at - only.calls[0].at == 8


def test_an_export_a_folder_and_a_database_give_the_same(tmp_path: Path) -> None:
    (from_database,) = read_recordings(database(tmp_path))
    from_folder = stored(tmp_path / "storage")
    from_export = exported(tmp_path)

    for other in (from_database, from_folder):
        assert [call.id for call in other.calls] == [call.id for call in from_export.calls]
        assert [kinds(call) for call in other.calls] == [kinds(call) for call in from_export.calls]
        assert other.reported_dollars == from_export.reported_dollars


def test_old_versions_put_all_responses_into_one_message(tmp_path: Path) -> None:
    both = opencode_message(
        "2", "assistant", 1,
        opencode_tool("a"), opencode_finish(4, 0, 9_000, 0.03),
        opencode_tool("b"), opencode_finish(4, 9_000, 100, 0.01),
    )  # fmt: skip

    only = exported(tmp_path, OPENCODE_MESSAGES[0], both)

    assert [kinds(call) for call in only.calls] == [["text"], ["text", "tool_use", "tool_result"]]


def test_a_summary_replaces_all_before_it(tmp_path: Path) -> None:
    text = {"type": "text", "text": "what was done"}
    summary = opencode_message("4", "assistant", 20, text, opencode_finish(9_200, 0, 0, 0.03), summary=True)
    more = [
        opencode_message("5", "user", 30, {"type": "text", "text": "go on"}),
        opencode_message(
            "6", "assistant", 31, {"type": "text", "text": "yes"}, opencode_finish(4, 0, 3_000, 0.01)
        ),
    ]

    only = exported(tmp_path, *OPENCODE_MESSAGES, summary, *more)

    assert [json.loads(said.raw)["content"] for said in only.calls[-1].last_message.history()][1:] == [
        "what was done",
        "go on",
    ]


def test_another_database_is_not_one_of_opencode(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE message (id TEXT)")
        made.commit()

    assert peek_file(path).source is None
    with pytest.raises(UnreadableInput):
        list(read_recordings(path))
