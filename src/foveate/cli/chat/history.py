"""What was typed into conversations before: a file that several of them may write at once."""

import json
import os
from pathlib import Path

HISTORY_FILE_NAME = "chat_history.jsonl"
# So much of the file's end is read, and what is longer than the other is no line to be typed again.
_MAX_BYTES = 1_000_000
_MAX_CHARS = 100_000


def read_history(path: Path) -> list[str]:
    """The messages in a file, the oldest first; none where it cannot be read, and no line that cannot be."""
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
    """Add a message as a line of JSON that only the user can read, in one write, so that others stay whole.

    Raises:
        OSError: it cannot be written.
    """
    if len(text) > _MAX_CHARS:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(text).encode() + b"\n")
    finally:
        os.close(descriptor)
