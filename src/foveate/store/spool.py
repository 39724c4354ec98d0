"""Bills that wait for a store that is away, in a file beside it, so that they outlive their process.

Each process has a file of its own and holds a lock on it for as long as it lives. Whoever starts later finds
the files that nobody holds, books what is in them, and removes them: a bill that was booked after all is known
by its call. A line is told by its checksum, so that one which a crash has torn is not taken for a bill.
"""

import asyncio
import logging
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import msgspec

from foveate.cost.ledger import Entry
from foveate.errors import UnwritableFile
from foveate.store.gathering import Gathering
from foveate.store.ledger_rows import name_of

_LOG = logging.getLogger(__name__)

_ENDING = ".bills"
_MOST_TOGETHER = 256
_CHECKSUM_CHARS = 8


@dataclass(frozen=True, slots=True)
class _Done:
    """A call whose bill need not wait any longer."""

    call_id: str


class BillSpool:
    """The bills of this process that wait, in a file in `folder`, which is made when there is the first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder
        self._file: int | None = None
        self._size = 0
        self._waiting: set[str] = set()
        self._orphans: list[tuple[Path, int]] = []
        self._together: Gathering[Entry | _Done, bool] = Gathering(self._do, most=_MOST_TOGETHER)

    async def put(self, entry: Entry) -> None:
        """Have a bill on the disk when this returns.

        Raises:
            UnwritableFile: it cannot be.
        """
        await self._together.done(entry)

    async def done(self, call_id: str) -> None:
        """Have a bill there no longer, at the latest when none waits."""
        await self._together.done(_Done(call_id))

    async def orphans(self) -> Sequence[Entry]:
        """The bills that processes left which are no more; nobody else finds them while this one lives."""
        return await asyncio.to_thread(self._found)

    async def forget_orphans(self) -> None:
        """Remove what `orphans` has found: all of it is booked."""
        await asyncio.to_thread(self._removed)

    async def close(self) -> None:
        """Let go of the files; one with bills in it stays for whoever starts next."""
        await asyncio.to_thread(self._let_go)

    async def _do(self, asked: Sequence[Entry | _Done]) -> list[bool | Exception]:
        return await asyncio.to_thread(self._write, asked)

    def _write(self, asked: Sequence[Entry | _Done]) -> list[bool | Exception]:
        """Do all of it with one wait for the disk."""
        bills = [one for one in asked if isinstance(one, Entry)]
        problem: Exception | None = None
        if bills:
            try:
                self._append(b"".join(map(line_of, bills)))
                self._waiting.update(bill.call.id for bill in bills)
            except OSError as error:
                problem = UnwritableFile(str(self._path), error.strerror or str(error))
        self._waiting.difference_update(one.call_id for one in asked if isinstance(one, _Done))
        if not self._waiting and self._size and self._file is not None:
            with suppress(OSError):  # what is left is known by its calls
                os.ftruncate(self._file, 0)
                self._size = 0
        return [problem if problem is not None and isinstance(one, Entry) else True for one in asked]

    def _append(self, lines: bytes) -> None:
        if self._file is None:
            self._path, self._file = made_in(self._folder)
        try:
            written = 0
            while written < len(lines):
                written += os.pwrite(self._file, lines[written:], self._size + written)
            os.fsync(self._file)
        except OSError:
            with suppress(OSError):  # half a line is no bill
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(lines)

    def _found(self) -> list[Entry]:
        found: list[Entry] = []
        for path in sorted(self._folder.glob(f"*{_ENDING}")):
            try:
                file = os.open(path, os.O_RDWR)
            except OSError as error:
                _LOG.warning("%s: bills that wait there cannot be read: %s", path, error)
                continue
            if path == self._path or not _is_locked(file):
                os.close(file)
                continue
            self._orphans.append((path, file))
            found += _bills(path)
        return found

    def _removed(self) -> None:
        while self._orphans:
            path, file = self._orphans.pop()
            path.unlink(missing_ok=True)
            os.close(file)

    def _let_go(self) -> None:
        for _, file in self._orphans:
            os.close(file)
        self._orphans.clear()
        if self._file is not None:
            if not self._waiting:
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def made_in(folder: Path) -> tuple[Path, int]:
    """A new file that this process holds."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    while True:
        path = folder / f"{os.getpid()}-{uuid4().hex[:8]}{_ENDING}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        # Somebody may have taken it for one that was left, before it was locked.
        if _is_locked(file) and path.exists() and os.stat(path).st_ino == os.fstat(file).st_ino:  # noqa: PTH116
            break
        os.close(file)
    inside = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(inside)  # a file is there after a crash only once its folder says so
    finally:
        os.close(inside)
    return path, file


def _is_locked(file: int) -> bool:
    """Whether this process holds a file from now on; nobody does where there are no locks."""
    try:
        import fcntl
    except ImportError:  # on Windows, where no gateway is served
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def line_of(entry: Entry) -> bytes:
    call = entry.call
    names = (call.id, call.agent, call.session_id, call.provider, call.model)
    kept = tuple(map(name_of, names))
    if kept != names:
        id_, agent, session_id, provider, model = kept
        call = replace(call, id=id_, agent=agent, session_id=session_id, provider=provider, model=model)
        entry = replace(entry, call=call)
    said = msgspec.json.encode(entry)
    return b"%08x %s\n" % (zlib.crc32(said), said)


def _bills(path: Path) -> list[Entry]:
    """The bills in a file, but for lines that were torn."""
    found: list[Entry] = []
    for line in path.read_bytes().split(b"\n"):
        checksum, said = line[:_CHECKSUM_CHARS], line[_CHECKSUM_CHARS + 1 :]
        try:
            if int(checksum, 16) == zlib.crc32(said):
                found.append(msgspec.json.decode(said, type=Entry))
                continue
        except (ValueError, msgspec.MsgspecError):
            pass
        if line:
            _LOG.warning("%s: half a line of %d bytes was no bill any longer", path, len(line))
    return found
