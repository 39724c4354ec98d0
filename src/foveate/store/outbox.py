"""Charges that are not in the store yet, in files that outlive the process.

The outbox has charges that wait for an unreachable store. The write-ahead log has calls in flight and charges
about to be recorded, in the same format. Each process has its own files and keeps them locked. A process that
starts later claims files that nobody holds, records their charges and removes them; a charge that is already
recorded is recognized by its call id. Each line has a checksum, so that a line truncated by a crash is ignored.
A file with charges that can never be recorded is renamed for inspection.
"""

import asyncio
import errno
import logging
import os
import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from foveate.cost.ledger import Charge
from foveate.errors import UnwritableFile
from foveate.store.batching import BatchExecutor
from foveate.store.repositories.ledger_rows import to_storable_names

_LOG = logging.getLogger(__name__)

_SUFFIX = ".bills"
_REJECTED_SUFFIX = ".unbooked"
_MAX_ATTEMPTS = 8
_MAX_BATCH_SIZE = 256
_CHECKSUM_CHARS = 8
_CHUNK_BYTES = 1024 * 1024
# A log that exceeds this, and twice the lines in use, is replaced by one with only these lines.
_MAX_LOG_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Removal:
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedFile:
    """Charges in the file of a process that has ended; unless `is_readable`, not all could be decoded."""

    path: Path
    charges: tuple[Charge, ...]
    is_readable: bool = True


class FileOutbox:
    """The waiting charges of this process, in a file in `folder`. The file is created with the first charge."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder
        self._file: int | None = None
        self._size = 0
        self._waiting: set[str] = set()
        self._orphans: dict[Path, int] = {}
        self._reported: set[Path] = set()
        self._batches: BatchExecutor[Charge | _Removal, bool] = BatchExecutor(
            self._write_batch, max_items=_MAX_BATCH_SIZE
        )

    async def put(self, charge: Charge) -> None:
        """Write a charge to disk, and sync.

        Raises:
            UnwritableFile: the charge cannot be written.
        """
        await self._batches.submit(charge)

    async def remove(self, call_id: str) -> None:
        await self._batches.submit(_Removal(call_id))

    async def orphans(self) -> Sequence[OrphanedFile]:
        """Claim the files of processes that have ended. No other process finds them until `release`."""
        return await asyncio.to_thread(self._claim_orphans)

    async def release(self, *, recorded: Collection[Path] = (), unrecordable: Collection[Path] = ()) -> None:
        """Remove claimed files that are `recorded`, rename `unrecordable` ones, and unlock the rest."""
        await asyncio.to_thread(self._release_orphans, recorded, unrecordable)

    async def close(self) -> None:
        """Unlock all files. A file with waiting charges stays for the next process."""
        await asyncio.to_thread(self._close_files)

    async def _write_batch(self, operations: Sequence[Charge | _Removal]) -> list[bool | Exception]:
        return await asyncio.to_thread(self._write, operations)

    def _write(self, operations: Sequence[Charge | _Removal]) -> list[bool | Exception]:
        """Apply all operations with a single sync."""
        charges = [operation for operation in operations if isinstance(operation, Charge)]
        problem: Exception | None = None
        if charges:
            try:
                self._append(b"".join(map(encode_charge, charges)))
                self._waiting.update(charge.call.id for charge in charges)
            except OSError as error:
                problem = UnwritableFile(str(self._path), error.strerror or str(error))
        self._waiting.difference_update(
            operation.call_id for operation in operations if isinstance(operation, _Removal)
        )
        if not self._waiting and self._size and self._file is not None:
            with suppress(OSError):  # remaining charges are recognized by their call ids
                os.ftruncate(self._file, 0)
                self._size = 0
        return [
            problem if problem is not None and isinstance(operation, Charge) else True
            for operation in operations
        ]

    def _append(self, lines: bytes) -> None:
        if self._file is None:
            self._path, self._file = create_locked_file(self._folder)
        try:
            written_bytes = 0
            while written_bytes < len(lines):
                written_bytes += os.pwrite(self._file, lines[written_bytes:], self._size + written_bytes)
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):  # remove the partial line
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(lines)

    def _claim_orphans(self) -> list[OrphanedFile]:
        orphans: list[OrphanedFile] = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if path == self._path or path in self._orphans:
                continue
            try:
                orphan = self._claim_file(path)
            except FileNotFoundError:
                continue  # its process has just recorded everything and ended
            except OSError as error:
                if path not in self._reported:
                    _LOG.warning("%s: the charges in this file cannot be read, retrying later: %s", path, error)
                self._reported.add(path)
                continue
            if orphan is not None:
                orphans.append(orphan)
        return orphans

    def _claim_file(self, path: Path) -> OrphanedFile | None:
        """Lock and read a file; None if another process holds it.

        Raises:
            FileNotFoundError: its process replaced or removed it before it was locked here.
        """
        file = os.open(path, os.O_RDWR)
        orphan: OrphanedFile | None = None
        try:
            if try_lock(file) and os.path.samestat(path.stat(), os.fstat(file)):
                orphan = _read_charges(path, file)
                self._orphans[path] = file  # only after reading: an unread file must not be removed
        finally:
            if orphan is None:
                os.close(file)
        return orphan

    def _release_orphans(self, recorded: Collection[Path], unrecordable: Collection[Path]) -> None:
        while self._orphans:
            path, file = self._orphans.popitem()
            try:
                if path in recorded:
                    path.unlink(missing_ok=True)
                elif path in unrecordable:
                    moved_path = path.rename(path.with_suffix(_REJECTED_SUFFIX))
                    _LOG.error(
                        "%s: some charges in this file cannot be recorded, set aside; the others are recorded",
                        moved_path,
                    )
            except OSError as error:
                _LOG.warning("%s: this file of recorded charges cannot be removed: %s", path, error)
            finally:
                os.close(file)

    def _close_files(self) -> None:
        self._release_orphans((), ())
        if self._file is not None:
            if not self._waiting:
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


class FileWriteAheadLog:
    """The calls of this process that are not recorded yet, in a file in `folder`. For use by one thread.

    A call is logged before it is sent, and its charge before the client has the whole response. Charges are
    recorded after the response, several in one transaction. Nothing waits for the disk: what is written
    survives the process, but not a power loss.
    """

    def __init__(self, folder: Path, *, max_bytes: int = _MAX_LOG_BYTES) -> None:
        self._folder = folder
        self._max_bytes = self._rewrite_at_bytes = max_bytes
        self._path = folder
        self._file: int | None = None
        self._size = 0
        self._lines: dict[str, bytes] = {}
        self._is_unwritable = False

    def open(self) -> None:
        """Create the file ahead of time, so that the first call does not wait for the disk."""
        try:
            if self._file is None:
                self._path, self._file = create_locked_file(self._folder)
        except OSError as error:
            self._report_error(error)

    def append(self, charge: Charge) -> None:
        """Log a call. If that fails, report it once and go on: the charge is recorded all the same."""
        line = encode_charge(charge)
        if self._write(line):
            self._lines[charge.call.id] = line

    def mark_recorded(self, call_id: str) -> None:
        if self._lines.pop(call_id, None) is not None and not self._lines:
            self._truncate()

    def discard(self, call_id: str) -> None:
        """Remove a call that is not charged, so that a process that claims the file does not record it."""
        if self._lines.pop(call_id, None) is None:
            return
        if self._lines:
            self._write(encode_discard(call_id))
        else:
            self._truncate()

    def close(self) -> None:
        """A file with charges stays for the process that claims it next."""
        if self._file is None:
            return
        if not self._lines:
            self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = None

    def _write(self, line: bytes) -> bool:
        try:
            if self._file is None:
                self._path, self._file = create_locked_file(self._folder)
            if self._size > self._rewrite_at_bytes:
                self._rewrite()
            self._append(line)
        except OSError as error:
            self._report_error(error)
            return False
        self._is_unwritable = False
        return True

    def _rewrite(self) -> None:
        """Copy the lines in use to a new file; the old one stays until the new one is complete."""
        old_path, old_file, old_size = self._path, self._file, self._size
        try:
            self._path, self._file = create_locked_file(self._folder, is_synced=False)
            self._size = 0
            self._append(b"".join(self._lines.values()))
        except OSError:
            if self._file is not None and self._file != old_file:
                self._path.unlink(missing_ok=True)
                os.close(self._file)
            self._path, self._file, self._size = old_path, old_file, old_size
            self._rewrite_at_bytes *= 2
            return
        self._rewrite_at_bytes = max(self._max_bytes, 2 * self._size)
        assert old_file is not None
        old_path.unlink(missing_ok=True)
        os.close(old_file)

    def _truncate(self) -> None:
        if self._file is None:
            return
        with suppress(OSError):  # remaining charges are recognized by their call ids
            os.ftruncate(self._file, 0)
            self._size = 0

    def _report_error(self, error: OSError) -> None:
        if not self._is_unwritable:
            message = "%s: running calls cannot be logged here, so a crash would lose their charges: %s"
            _LOG.error(message, self._folder, error)
        self._is_unwritable = True

    def _append(self, lines: bytes) -> None:
        assert self._file is not None
        written_bytes = 0
        while written_bytes < len(lines):
            written_bytes += os.pwrite(self._file, lines[written_bytes:], self._size + written_bytes)
        self._size += len(lines)


def try_lock(file: int) -> bool:
    """Lock a file without waiting, and return whether that succeeded; always True on Windows.

    Raises:
        OSError: the file system does not support locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows, where the gateway does not run
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def create_locked_file(
    folder: Path, *, lock: Callable[[int], bool] = try_lock, is_synced: bool = True
) -> tuple[Path, int]:
    """Create a new locked file. Unless it `is_synced`, it survives a crash, but not a power loss.

    Raises:
        OSError: the file cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(_MAX_ATTEMPTS):
        path = folder / f"{os.getpid()}-{uuid4().hex[:8]}{_SUFFIX}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with ExitStack() as cleanup:
            cleanup.callback(os.close, file)
            cleanup.callback(path.unlink, missing_ok=True)
            # Another process may have claimed it before it was locked.
            if lock(file) and path.exists():
                if is_synced:
                    _sync_folder(folder)
                cleanup.pop_all()
                return path, file
    raise OSError(errno.EBUSY, "other processes claim every new file before it is locked")


def _sync_folder(folder: Path) -> None:
    """A new file survives a power loss only once its directory entry is on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def encode_charge(charge: Charge) -> bytes:
    call = charge.call
    names = (call.id, call.agent, call.session_id, call.provider, call.model)
    storable = to_storable_names(*names)
    if storable != names:
        id_, agent, session_id, provider, model = storable
        call = replace(call, id=id_, agent=agent, session_id=session_id, provider=provider, model=model)
        charge = replace(charge, call=call)
    return _add_checksum(msgspec.json.encode(charge))


def encode_discard(call_id: str) -> bytes:
    return _add_checksum(msgspec.json.encode(to_storable_names(call_id)[0]))


def _add_checksum(payload: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(payload), payload)


def _read_charges(path: Path, file: int) -> OrphanedFile:
    """Read the charges in a file, ignoring truncated lines.

    The last line of a call counts, and none if a later line discards it.
    """
    charges: dict[str, Charge] = {}
    is_readable = True
    for line in _read_all(file).split(b"\n"):
        checksum, payload = line[:_CHECKSUM_CHARS], line[_CHECKSUM_CHARS + 1 :]
        if not line:
            continue
        if not _is_checksum_valid(checksum, payload):
            _LOG.warning("%s: ignored a truncated record (%d bytes)", path, len(line))
            continue
        try:
            charge = msgspec.json.decode(payload, type=Charge | str)
        except msgspec.MsgspecError:  # complete, but written by another version
            is_readable = False
            continue
        if isinstance(charge, str):
            charges.pop(charge, None)
        else:
            charges[charge.call.id] = charge
    return OrphanedFile(path=path, charges=tuple(charges.values()), is_readable=is_readable)


def _is_checksum_valid(checksum: bytes, payload: bytes) -> bool:
    try:
        return int(checksum, 16) == zlib.crc32(payload)
    except ValueError:
        return False


def _read_all(file: int) -> bytes:
    chunks: list[bytes] = []
    while chunk := os.pread(file, _CHUNK_BYTES, sum(map(len, chunks))):
        chunks.append(chunk)
    return b"".join(chunks)
