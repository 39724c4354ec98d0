"""Logs of agents with the usage of calls, and records of usage."""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from foveate.replay.usage.report import UsageRecord
from tests.support.scenarios.agent_logs import OPENCODE_MESSAGES, Record, clock

MESSAGE_ID = "msg_0123456789abcdefghij"


def write_lines(path: Path, records: Iterable[Record]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def claude_line(
    second: int = 0,
    *,
    message_id: str = MESSAGE_ID,
    request_id: str = "req_1",
    output: int = 5,
    uncached: int = 10,
    **more: object,
) -> Record:
    usage = {
        "input_tokens": uncached,
        "cache_read_input_tokens": 2_000,
        "cache_creation_input_tokens": 300,
        "cache_creation": {"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200},
        "output_tokens": output,
    }
    return {
        "type": "assistant",
        "uuid": f"line-{second}",
        "timestamp": clock(second),
        "sessionId": "session-1",
        "requestId": request_id,
        "cwd": "/home/ana/my.repo/src",
        "message": {"id": message_id, "model": "claude-sonnet-4-5", "content": [], "usage": usage},
        **more,
    }


def write_opencode_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE message (id TEXT, session_id TEXT, time_created INTEGER, data TEXT)")
        connection.execute("CREATE TABLE part (id TEXT, message_id TEXT, session_id TEXT, data TEXT)")
        for message in OPENCODE_MESSAGES:
            info = message["info"] | {"path": {"cwd": "/repo/src", "root": "/repo"}}
            data = json.dumps(info)
            connection.execute("INSERT INTO message VALUES (?, 'ses_1', 0, ?)", (info["id"], data))
            for part in message["parts"]:
                values = part["id"], info["id"], json.dumps(part)
                connection.execute("INSERT INTO part VALUES (?, ?, 'ses_1', ?)", values)


def write_opencode_storage(folder: Path) -> None:
    for message in OPENCODE_MESSAGES:
        info = message["info"] | {"path": {"cwd": "/repo/src", "root": "/repo"}}
        for path, record in [
            (folder / "message" / "ses_1" / f"{info['id']}.json", info),
            *((folder / "part" / info["id"] / f"{part['id']}.json", part) for part in message["parts"]),
        ]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record, indent=2))


def make_record(
    key: str = "call",
    *,
    at: float = 1_000.0,
    agent: str = "claude-code",
    session: str = "s",
    uncached: int = 10,
    read: int = 0,
    output_tokens: int = 5,
    picodollars: int | None = 100,
    has_logged_cost: bool = False,
    category: str = "main",
) -> UsageRecord:
    return UsageRecord(
        agent=agent,
        key=key,
        at=at,
        session=session,
        project="p",
        model="claude-sonnet-4-5",
        uncached=uncached,
        read=read,
        written_5m=0,
        written_1h=0,
        output_tokens=output_tokens,
        reasoning_tokens=0,
        picodollars=picodollars,
        has_logged_cost=has_logged_cost,
        category=category,
    )
