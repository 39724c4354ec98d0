"""Bills that wait for a store that is away, in a file beside it, so that they outlive their process.

Each process has a file of its own and holds a lock on it for as long as it lives. Whoever starts later finds
the files that nobody holds, books what is in them, and removes them: a bill that was booked after all is known
by its call. A line is told by its checksum, so that one which a crash has torn is not taken for a bill. A file
with something in it that can never be booked is moved aside, for somebody to look at.
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

from foveate.cost.ledger import Entry
from foveate.errors import UnwritableFile
from foveate.store.gathering import Gathering
from foveate.store.ledger_rows import names_of

_LOG = logging.getLogger(__name__)

_ENDING = ".bills"
_ASIDE = ".unbooked"
_MOST_TRIES = 8
_MOST_TOGETHER = 256
_CHECKSUM_CHARS = 8
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Done:
    """A call whose bill need not wait any longer."""

    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The bills in a file that a process left which is no more. `is_readable`: there is nothing else in it."""

    path: Path
    bills: tuple[Entry, ...]
    is_readable: bool = True


class BillSpool:
    """The bills of this process that wait, in a file in `folder`, which is made when there is the first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder
        self._file: int | None = None
        self._size = 0
        self._waiting: set[str] = set()
        self._orphans: dict[Path, int] = {}
        self._told: set[Path] = set()
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

    async def orphans(self) -> Sequence[Left]:
        """What processes left which are no more; nobody else finds it until it is let go of."""
        return await asyncio.to_thread(self._found)

    async def let_go(self, *, booked: Collection[Path] = (), unbookable: Collection[Path] = ()) -> None:
        """Remove files that `orphans` has found and that are `booked`, and move aside those that can never be.

        All others are found again.
        """
        await asyncio.to_thread(self._release, booked, unbookable)

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

    def _found(self) -> list[Left]:
        found: list[Left] = []
        for path in sorted(self._folder.glob(f"*{_ENDING}")):
            if path == self._path or path in self._orphans:
                continue
            try:
                left = self._taken(path)
            except FileNotFoundError:
                continue  # its process has just booked all of it, and ended
            except OSError as error:
                if path not in self._told:
                    _LOG.warning("%s: bills that wait there cannot be read: %s", path, error)
                self._told.add(path)
                continue
            if left is not None:
                found.append(left)
        return found

    def _taken(self, path: Path) -> Left | None:
        """What is in a file, from now on held by this process; None where another holds it."""
        file = os.open(path, os.O_RDWR)
        left: Left | None = None
        try:
            if is_held(file):
                left = _bills(path, file)
                self._orphans[path] = file  # not before it is read: what nobody has read is not removed
        finally:
            if left is None:
                os.close(file)
        return left

    def _release(self, booked: Collection[Path], unbookable: Collection[Path]) -> None:
        while self._orphans:
            path, file = self._orphans.popitem()
            try:
                if path in booked:
                    path.unlink(missing_ok=True)
                elif path in unbookable:
                    aside = path.rename(path.with_suffix(_ASIDE))
                    _LOG.error("%s: has bills in it that cannot be booked; all others of it are", aside)
            except OSError as error:
                _LOG.warning("%s: bills that are done with cannot be removed: %s", path, error)
            finally:
                os.close(file)

    def _let_go(self) -> None:
        self._release((), ())
        if self._file is not None:
            if not self._waiting:
                self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def is_held(file: int) -> bool:
    """Whether this process holds a file from now on; nobody does where there are no locks.

    Raises:
        OSError: the file system does not lock files.
    """
    try:
        import fcntl
    except ImportError:  # on Windows, where no gateway is served
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def made_in(
    folder: Path, *, locks: Callable[[int], bool] = is_held, is_synced: bool = True
) -> tuple[Path, int]:
    """A new file that this process holds. Unless it `is_synced`, it survives this process, not a power loss.

    Raises:
        OSError: there can be none.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(_MOST_TRIES):
        path = folder / f"{os.getpid()}-{uuid4().hex[:8]}{_ENDING}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with ExitStack() as undone:
            undone.callback(os.close, file)
            undone.callback(path.unlink, missing_ok=True)
            # Somebody may have taken it for one that was left, before it was locked.
            if locks(file) and path.exists():
                if is_synced:
                    _have_kept(folder)
                undone.pop_all()
                return path, file
    raise OSError(errno.EBUSY, "others take each new file for one that was left")


def _have_kept(folder: Path) -> None:
    """A file is there after a crash only once its folder says so."""
    inside = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(inside)
    finally:
        os.close(inside)


def line_of(entry: Entry) -> bytes:
    call = entry.call
    names = (call.id, call.agent, call.session_id, call.provider, call.model)
    kept = names_of(*names)
    if kept != names:
        id_, agent, session_id, provider, model = kept
        call = replace(call, id=id_, agent=agent, session_id=session_id, provider=provider, model=model)
        entry = replace(entry, call=call)
    return _with_checksum(msgspec.json.encode(entry))


def discarding_line(call_id: str) -> bytes:
    """Return the line that discards all earlier ones for a call."""
    return _with_checksum(msgspec.json.encode(names_of(call_id)[0]))


def _with_checksum(said: bytes) -> bytes:
    return b"%08x %s\n" % (zlib.crc32(said), said)


def _bills(path: Path, file: int) -> Left:
    """Return the bills in a file, without lines that were torn.

    Of several for one call the last counts, and none if a later line discards them.
    """
    found: dict[str, Entry] = {}
    is_readable = True
    for line in _read(file).split(b"\n"):
        checksum, said = line[:_CHECKSUM_CHARS], line[_CHECKSUM_CHARS + 1 :]
        if not line:
            continue
        if not _is_sum(checksum, said):
            _LOG.warning("%s: half a line of %d bytes was no bill any longer", path, len(line))
            continue
        try:
            entry = msgspec.json.decode(said, type=Entry | str)
        except msgspec.MsgspecError:  # whole, but of a version that writes it otherwise
            is_readable = False
            continue
        if isinstance(entry, str):
            found.pop(entry, None)
        else:
            found[entry.call.id] = entry
    return Left(path=path, bills=tuple(found.values()), is_readable=is_readable)


def _is_sum(checksum: bytes, said: bytes) -> bool:
    try:
        return int(checksum, 16) == zlib.crc32(said)
    except ValueError:
        return False


def _read(file: int) -> bytes:
    pieces: list[bytes] = []
    while piece := os.pread(file, _PIECE_BYTES, sum(map(len, pieces))):
        pieces.append(piece)
    return b"".join(pieces)
