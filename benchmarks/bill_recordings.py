"""Recorded sessions with usage, and the authors of the work in them."""

import re
from pathlib import Path

from foveate.replay.recording import Recording
from foveate.replay.recording_files import find_files, group_sessions, read_session

_SESSION_ID = re.compile(r"[_-]?[0-9a-f]{8}-[0-9a-f]{4}-.*|[_-]agent-[0-9a-f]{8}.*")


def read_recordings(folder: Path) -> tuple[list[tuple[str, Recording]], list[tuple[str, str]]]:
    """The recordings with usage and their sources, and what is left out with the reason."""
    recordings, left_out = [], []
    sessions, unread = group_sessions(find_files([folder]).files)
    left_out += [(item.file, item.reason) for item in unread]
    for session in sessions:
        if session.source is None:
            left_out.append((session.files[0].name, session.unsupported or "unknown format"))
            continue
        for recording in read_session(session):
            if any(call.usage is not None for call in recording.calls):
                recordings.append((_source_name(session.files[0]), recording))
            else:
                left_out.append((recording.name, f"{recording.source}: no usage"))
    return recordings, left_out


def _source_name(path: Path) -> str:
    """The author of the work: the log's name without the session's id, or its folder."""
    stem = path.name.partition(".")[0]
    return _SESSION_ID.sub("", stem) or path.parent.name
