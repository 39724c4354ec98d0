"""Readable titles of sessions: agent, working directory or first words, and time."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from foveate.errors import MalformedRequest
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.parse import as_dict, as_list, as_text, parse_json, parse_object, read_role
from foveate.model import Request

_MAX_FOLDER_CHARS = 400
_MAX_OPENING_CHARS = 60
_MAX_MESSAGES = 8
_MAX_MESSAGE_BYTES = 256 * 1024
# How agents state their working directory (Claude Code 2.1, Codex 0.166, opencode 1.18, Gemini CLI, Qwen), as
# JSON: up to the end of the line or the tag.
_FOLDER = re.compile(
    rb"(?:[Ww]orking directory: |working in the directory: |<cwd>)((?:[^\"\\<\n]|\\\\){1,400})"
)
# Every match of the pattern contains one of these, which are found in a sixth of the time.
_FOLDER_MARKERS = (b"orking directory: ", b"working in the directory: ", b"<cwd>")


def find_working_folder(request: Request, leading_system_messages: int) -> str | None:
    fields = get_parameters(request)
    system = (fields.get("system"), fields.get("instructions"))
    for raw in (*system, *request.messages[: leading_system_messages + _MAX_MESSAGES]):
        text = bytes(memoryview(raw or b"")[:_MAX_MESSAGE_BYTES])
        match = _FOLDER.search(text) if any(sign in text for sign in _FOLDER_MARKERS) else None
        if match is not None:
            return _decode_folder(match[1])
    return None


def find_opening_words(messages: Sequence[bytes]) -> str | None:
    """Return the first words of the user, without tagged text that clients add before them."""
    for raw in messages[:_MAX_MESSAGES]:
        try:
            words = _read_user_words(raw) if len(raw) < _MAX_MESSAGE_BYTES else ""
        except MalformedRequest:
            return None
        if words:
            is_cut = len(words) > _MAX_OPENING_CHARS
            return f"{words[: _MAX_OPENING_CHARS - 1].rstrip()}…" if is_cut else words
    return None


def make_session_title(
    agent: str, started_at: float, folder: str | None = None, opening: str | None = None
) -> str:
    """Return a title such as `claude-code in garden, 17 Nov 09:12`; times are UTC."""
    subject = f"{agent} in {folder_name(folder)}" if folder else f"{agent}: {opening}" if opening else agent
    return f"{subject}, {datetime.fromtimestamp(started_at, UTC):%-d %b %H:%M}"


def folder_name(folder: str) -> str:
    return re.split(r"[/\\]", folder.rstrip("/\\"))[-1] or folder


def _read_user_words(raw: bytes) -> str:
    if read_role(raw) != "user":
        return ""
    content = parse_object(raw).get("content")
    texts = (
        [as_text(content)] if isinstance(content, str) else [_read_text(block) for block in as_list(content)]
    )
    return next((" ".join(text.split()) for text in texts if text.strip() and text.strip()[0] != "<"), "")


def _read_text(block: object) -> str:
    return as_text(as_dict(block).get("text"))


def _decode_folder(raw: bytes) -> str | None:
    try:
        text = as_text(parse_json(b'"' + raw + b'"')).strip()
    except MalformedRequest:
        return None
    return text[:_MAX_FOLDER_CHARS] or None
