"""Replaces a configuration file, with a backup next to it."""

import os
from datetime import UTC, datetime
from pathlib import Path

from foveate.config.document import MAX_SETTINGS_BYTES
from foveate.config.files import display_path, open_replacement, read_bytes, replace_file
from foveate.errors import UnwritableFile


def write_config(file: Path, before: bytes, after: bytes) -> Path | None:
    """Replace the content of a file atomically, and return the backup of its previous content, if it had any.

    Raises:
        UnwritableFile: it has changed since `before` was read, or cannot be written; it is unchanged.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, after)
        return None
    if read_bytes(file, limit_bytes=MAX_SETTINGS_BYTES) != before:
        raise UnwritableFile(display_path(file), "has changed meanwhile; nothing was changed: try again")
    backup = _backup_path(file)
    with open_replacement(backup, mode=file.stat().st_mode & 0o777) as copy:
        copy.write(before)
    replace_file(file, after)
    return backup


def _backup_path(file: Path) -> Path:
    """A name that does not exist yet: two runs within a second need two backups."""
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    names = (f"{file.name}.bak-{time}{suffix}" for suffix in ("", *(f"-{number}" for number in range(1, 1000))))
    return next(path for name in names if not os.path.lexists(path := file.with_name(name)))
