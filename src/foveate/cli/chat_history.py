"""What was typed into conversations before, for the up arrow: a file that several of them may write at once."""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import History

NAME = "chat_history.jsonl"
# So much of the file's end is read, and what is longer than the other is no line to be typed again.
_MOST_BYTES = 1_000_000
_LONGEST_CHARS = 100_000


class ChatHistory(History):
    """A line of JSON for each message, only for the user to read; each is written whole or not at all."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        """What was typed, the newest first; a line that cannot be read is left out."""
        return reversed(read_history(self._path))

    def store_string(self, string: str) -> None:
        """Keep a message for later conversations."""
        with suppress(OSError):  # a disk that is full, or cannot be written, is no reason to stop talking
            add_to_history(self._path, string)


def read_history(path: Path) -> list[str]:
    """The messages in a file, the oldest first; none where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return []
    return [text for line in lines if (text := _text(line))]


def _text(line: bytes) -> str:
    try:
        said = json.loads(line)
    except ValueError:
        return ""
    return said if isinstance(said, str) else ""


def add_to_history(path: Path, text: str) -> None:
    """Add a message, in one write, so that lines of others stay whole.

    Raises:
        OSError: it cannot be written.
    """
    if len(text) > _LONGEST_CHARS:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(text).encode() + b"\n")
    finally:
        os.close(descriptor)
