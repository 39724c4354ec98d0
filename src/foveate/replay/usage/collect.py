"""Collects the usage in the logs of agents: unchanged logs from a cache, others in several processes.

The cache is a file, so that a second report takes a fraction of the time. It contains no text of messages. A
file that cannot be read is ignored, and replaced.
"""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from foveate.errors import UnwritableFile
from foveate.replay.local_logs import LogPlace, list_log_files
from foveate.replay.recording import RecordingSource
from foveate.replay.usage.report import UsageRecord, price_calls, remove_copies

if TYPE_CHECKING:
    from concurrent.futures import Future

    from foveate.cost.pricing.price_book import PriceBook
    from foveate.replay.readers.usage_scan import LoggedCall, ScannedLog

_PARSER_VERSION = 2  # increased whenever the same log would give other records
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


_DATABASE_SUFFIXES = ("", "-wal")


@dataclass(slots=True)
class CollectedUsage:
    """Calls in logs, each once, and what could not be read."""

    records: list[UsageRecord] = field(default_factory=list)
    logs: int = 0
    unreadable_logs: list[str] = field(default_factory=list)
    unreadable_lines: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """A file, a database or, of opencode, a storage folder. `stamp` is None if the usage is not kept."""

    agent: RecordingSource
    path: Path
    stamp: FileStamp | None
    size_bytes: int
    modified_at: int


class LogCollector:
    """The logs at some places. `pending_bytes` is the size of those that have to be read."""

    def __init__(self, places: Sequence[LogPlace], cache: UsageCache) -> None:
        self._cache = cache
        self._collected = CollectedUsage()
        logs = [log for place in places for log in self._list_logs(place)]
        # The original of a forked session comes first, so its calls count there.
        logs.sort(key=lambda log: log.modified_at)
        self._known: dict[int, CachedLog] = {}
        for number, log in enumerate(logs):
            known = None if log.stamp is None else cache.find(str(log.path), log.stamp)
            if known is not None:
                self._known[number] = known
        self._logs = logs
        self._collected.logs = len(logs)
        cache.remove_missing((place.path for place in places), (str(log.path) for log in logs))
        self.pending_bytes = sum(log.size_bytes for number, log in enumerate(logs) if number not in self._known)

    def collect(
        self,
        load_prices: "Callable[[], PriceBook]",
        *,
        processes: int | None = None,
        on_progress: Callable[[int], None] = lambda _bytes: None,
    ) -> CollectedUsage:
        """Read all logs. `load_prices` is only called if a log has to be read; `on_progress` receives bytes."""
        pending = [number for number in range(len(self._logs)) if number not in self._known]
        if pending:
            with _Scanner([self._logs[number] for number in pending], self.pending_bytes, processes) as scanner:
                book = load_prices()  # while other processes read
                for place, scanned in scanner.results():
                    log = self._logs[pending[place]]
                    on_progress(log.size_bytes)
                    if scanned is None:
                        self._collected.unreadable_logs.append(str(log.path))
                        continue
                    cached = CachedLog(
                        log.stamp or (), scanned.unreadable_lines, price_calls(log.agent, scanned.calls, book)
                    )
                    self._known[pending[place]] = cached
                    if log.stamp is not None:
                        self._cache.add(str(log.path), cached)
            self._cache.save()
        found = [self._known[number] for number in sorted(self._known)]
        self._collected.unreadable_lines = sum(cached.unreadable_lines for cached in found)
        self._collected.records = remove_copies(record for cached in found for record in cached.records)
        return self._collected

    def _list_logs(self, place: LogPlace) -> Iterator[_Log]:
        if place.agent is RecordingSource.OPENCODE and place.path.is_dir():
            yield _Log(agent=place.agent, path=place.path, stamp=None, size_bytes=0, modified_at=0)
            return
        for path in list_log_files(place, lambda folder: self._collected.unreadable_logs.append(str(folder))):
            try:
                status = path.stat()
            except OSError:  # deleted meanwhile, a broken link
                status = None
            if status is None or not stat.S_ISREG(status.st_mode):  # reading a pipe could wait forever
                self._collected.unreadable_logs.append(str(path))
                continue
            yield _Log(
                agent=place.agent,
                path=path,
                stamp=_read_stamp(path) if _is_utf_8(str(path)) else None,
                size_bytes=status.st_size,
                modified_at=status.st_mtime_ns,
            )


def _read_stamp(path: Path) -> FileStamp:
    """A database changes its write-ahead log first."""
    stamp: list[int] = []
    for suffix in _DATABASE_SUFFIXES if path.suffix == ".db" else ("",):
        try:
            status = os.stat(f"{path}{suffix}")  # noqa: PTH116 - runs for thousands of files
        except OSError:
            continue
        stamp += (status.st_size, status.st_mtime_ns)
    return tuple(stamp)


class _Scanner:
    """Reads logs in this process or, if they are large, in several."""

    def __init__(self, logs: Sequence[_Log], size_bytes: int, processes: int | None) -> None:
        from foveate.replay.worker_pool import choose_processes, open_worker_pool

        self._logs = logs
        processes = choose_processes(size_bytes) if processes is None else processes
        self._pool = open_worker_pool(processes, preload=self._preload) if processes > 1 else None

    def __enter__(self) -> "_Scanner":
        from foveate.replay.worker_pool import make_batches

        self._batches: dict[Future[list[bytes]], tuple[int, ...]] = {}
        if self._pool is not None:
            for batch in make_batches([log.size_bytes for log in self._logs]):
                future = self._pool.submit(_scan_batch, [self._logs[place] for place in batch])
                self._batches[future] = batch
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _preload(self) -> None:
        for agent in {log.agent for log in self._logs}:
            _find_scanner(agent)  # once, not in each process

    def results(self) -> "Iterator[tuple[int, ScannedLog | None]]":
        """The place and content of each log, as soon as it is read; None if it cannot be read."""
        from concurrent.futures import BrokenExecutor, as_completed

        from foveate.replay.readers.usage_scan import ScannedLog

        if self._pool is None:
            yield from ((place, _scan(log)) for place, log in enumerate(self._logs))
            return
        decoder = msgspec.msgpack.Decoder(ScannedLog | None)
        for future in as_completed(self._batches):
            batch = self._batches.pop(future)
            try:
                yield from zip(batch, map(decoder.decode, future.result()), strict=True)
            except BrokenExecutor:  # killed for lack of memory
                yield from ((place, _scan(self._logs[place])) for place in batch)


def _scan_batch(logs: Sequence[_Log]) -> list[bytes]:
    return [msgspec.msgpack.encode(_scan(log)) for log in logs]  # sent faster than as objects


def _scan(log: _Log) -> "ScannedLog | None":
    try:
        return scan_log(log.agent, log.path)
    except (OSError, sqlite3.Error):
        return None


def scan_log(agent: RecordingSource, path: Path) -> "ScannedLog":
    """Read the calls of a file, a database or, of opencode, a storage folder.

    Raises:
        OSError: it cannot be opened.
        sqlite3.Error: it is not a database.
    """
    scanned = _find_scanner(agent)(path)
    if _is_utf_8(str(path)):
        return scanned
    return msgspec.structs.replace(scanned, calls=list(map(_escape_names, scanned.calls)))


def _is_utf_8(name: str) -> bool:
    """Return whether the name of a file is UTF-8; other bytes are surrogates, which cannot be encoded."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _escape_names(call: "LoggedCall") -> "LoggedCall":
    key, session, project = (
        name.encode(errors="backslashreplace").decode() for name in (call.key, call.session, call.project)
    )
    return msgspec.structs.replace(call, key=key, session=session, project=project)


def _find_scanner(agent: RecordingSource) -> "Callable[[Path], ScannedLog]":
    """The function that scans the logs of an agent. Only the reader of that agent is imported."""
    match agent:
        case RecordingSource.CLAUDE_CODE:
            from foveate.replay.readers.claude_code import scan_claude_code

            return scan_claude_code
        case RecordingSource.CODEX:
            from foveate.replay.readers.codex import scan_codex

            return scan_codex
        case RecordingSource.GEMINI_CLI:
            from foveate.replay.readers.gemini_cli import scan_gemini_cli

            return scan_gemini_cli
        case RecordingSource.QWEN_CODE:
            from foveate.replay.readers.qwen_code import scan_qwen_code

            return scan_qwen_code
        case RecordingSource.PI:
            from foveate.replay.readers.pi import scan_pi

            return scan_pi
        case RecordingSource.OPENCODE:
            from foveate.replay.readers.opencode import scan_opencode

            return scan_opencode
        case _:
            raise ValueError(f"there is no scan of the logs of {agent}")
