"""Readable titles of sessions: the agent, its working directory or the first words, and the time."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from foveate.errors import MalformedRequest
from foveate.values import Request
from foveate.wire.around import parameters_of
from foveate.wire.body import as_list, as_record, as_text, record, role_of, value

_MAX_FOLDER_CHARS = 400
_MAX_OPENING_CHARS = 60
_FIRST_MESSAGES = 8
_MAX_BYTES = 256 * 1024
# What agents tell of their working directory (Claude Code 2.1, Codex 0.166, opencode 1.18, Gemini CLI, Qwen),
# as JSON has it: up to the end of the line or the tag.
_FOLDER = re.compile(
    rb"(?:[Ww]orking directory: |working in the directory: |<cwd>)((?:[^\"\\<\n]|\\\\){1,400})"
)
# One of these stands in whatever the pattern finds. They are found in a sixth of the time.
_FOLDER_SIGNS = (b"orking directory: ", b"working in the directory: ", b"<cwd>")


def working_folder(request: Request, head: int) -> str | None:
    """Return the working directory that a client tells its model, if it does.

    `head` is how many of the messages are system messages at the beginning.
    """
    fields = parameters_of(request)
    system = (fields.get("system"), fields.get("instructions"))
    for said in (*system, *request.messages[: head + _FIRST_MESSAGES]):
        text = bytes(said or b"")[:_MAX_BYTES]
        found = _FOLDER.search(text) if any(sign in text for sign in _FOLDER_SIGNS) else None
        if found is not None:
            return _as_text(found[1])
    return None


def opening_words(messages: Sequence[bytes]) -> str | None:
    """Return the first words of a user, without what a client puts in tags before them."""
    for raw in messages[:_FIRST_MESSAGES]:
        try:
            words = _user_words(raw) if len(raw) < _MAX_BYTES else ""
        except MalformedRequest:
            return None
        if words:
            is_cut = len(words) > _MAX_OPENING_CHARS
            return f"{words[: _MAX_OPENING_CHARS - 1].rstrip()}…" if is_cut else words
    return None


def session_title(agent: str, started_at: float, folder: str | None = None, opening: str | None = None) -> str:
    """Return a title for a session, such as `claude-code in garden, 17 Nov 09:12`; times are UTC."""
    what = f"{agent} in {folder_name(folder)}" if folder else f"{agent}: {opening}" if opening else agent
    return f"{what}, {datetime.fromtimestamp(started_at, UTC):%-d %b %H:%M}"


def folder_name(folder: str) -> str:
    """Return the last part of a path."""
    return re.split(r"[/\\]", folder.rstrip("/\\"))[-1] or folder


def _user_words(raw: bytes) -> str:
    if role_of(raw) != "user":
        return ""
    content = record(raw).get("content")
    texts = [as_text(content)] if isinstance(content, str) else [_text(block) for block in as_list(content)]
    return next((" ".join(text.split()) for text in texts if text.strip() and text.strip()[0] != "<"), "")


def _text(block: object) -> str:
    return as_text(as_record(block).get("text"))


def _as_text(found: bytes) -> str | None:
    try:
        text = as_text(value(b'"' + found + b'"')).strip()
    except MalformedRequest:
        return None
    return text[:_MAX_FOLDER_CHARS] or None
