"""A file with the usage of logs that have not changed, so that a second report takes a fraction of the time.

It contains no text of messages. A file that cannot be read is ignored, and replaced.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from foveate.errors import UnwritableFile
from foveate.replay.usage.records import UsageRecord

_PARSER_VERSION = 1  # increased whenever the same log would give other records
FileStamp = tuple[int, ...]
"""Size and modification time of a log, and of the write-ahead log of a database."""


class CachedLog(msgspec.Struct, frozen=True, array_like=True):
    stamp: FileStamp
    unreadable_lines: int
    records: list[UsageRecord]


class _CacheFile(msgspec.Struct):
    version: str
    logs: dict[str, CachedLog]


_DECODER = msgspec.msgpack.Decoder(_CacheFile)


class UsageCache:
    """Usage by log; without a path, it is not kept. With other prices than last time, nothing is reused."""

    def __init__(self, path: Path | None = None, *, prices: str = "") -> None:
        self._path = path
        self._version = f"{_PARSER_VERSION} {prices}"
        self._logs = {} if path is None else _read_logs(path, self._version)
        self._is_changed = False

    def find(self, log: str, stamp: FileStamp) -> CachedLog | None:
        known = self._logs.get(log)
        return known if known is not None and known.stamp == stamp else None

    def add(self, log: str, cached: CachedLog) -> None:
        self._logs[log] = cached
        self._is_changed = True

    def remove_missing(self, folders: Iterable[Path], logs: Iterable[str]) -> None:
        """Remove what is in one of the folders, but not among the logs."""
        prefixes = tuple(f"{folder}/" for folder in folders)
        for log in self._logs.keys() - set(logs):
            if log.startswith(prefixes):
                del self._logs[log]
                self._is_changed = True

    def save(self) -> None:
        """Write the file if something has changed. A full disk only means that nothing is reused."""
        if self._path is None or not self._is_changed:
            return
        from foveate.config.files import open_replacement  # takes a while, and is needed once

        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open_replacement(self._path, mode=0o600) as file:
                file.write(msgspec.msgpack.encode(_CacheFile(self._version, self._logs)))
        except (UnwritableFile, OSError):
            return


def _read_logs(path: Path, version: str) -> dict[str, CachedLog]:
    try:
        file = _DECODER.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return file.logs if file.version == version else {}
