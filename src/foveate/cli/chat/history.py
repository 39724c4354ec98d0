"""Input history of chats: a file that several processes may append to at once."""

import json
import os
from pathlib import Path

HISTORY_FILE_NAME = "chat_history.jsonl"
# Only the end of the file is read, and longer messages are not recorded.
_MAX_BYTES = 1_000_000
_MAX_CHARS = 100_000


def read_history(path: Path) -> list[str]:
    """Read messages, oldest first. Skip lines that are invalid; return nothing if the file cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MAX_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    return [text for line in lines if (text := _parse_line(line))]


def _parse_line(line: bytes) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def add_to_history(path: Path, text: str) -> None:
    """Append a message as a line of JSON in one write, so that lines of other processes stay intact.

    Raises:
        OSError: the file cannot be written.
    """
    if len(text) > _MAX_CHARS:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(text).encode() + b"\n")
    finally:
        os.close(descriptor)
