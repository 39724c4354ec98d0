"""Bills jotted down before the client has its whole answer, so that none is lost with its process.

A bill is booked behind the answer, with others in one transaction. A process that is killed in that moment
leaves it here, in the form in which bills wait for a store that is away: whoever looks for those finds it.
Nothing waits for the disk: what a process has written outlives it, if not the machine.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path

from foveate.cost.ledger import Entry
from foveate.store.spool import line_of, made_in

_LOG = logging.getLogger(__name__)

# A file that has grown to this is written anew with what is still to be booked.
_MOST_BYTES = 1024 * 1024


class BillNotes:
    """The bills of this process that are about to be booked, in a file in `folder`. For one thread."""

    def __init__(self, folder: Path, *, most_bytes: int = _MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._path = folder
        self._file: int | None = None
        self._size = 0
        self._lines: dict[str, bytes] = {}
        self._is_unwritable = False

    def open(self) -> None:
        """Have the file there before the first bill comes, which then need not wait for the disk."""
        try:
            if self._file is None:
                self._path, self._file = made_in(self._folder)
        except OSError as error:
            self._tell(error)

    def jot(self, entry: Entry) -> None:
        """Have a bill outlive this process. Where that cannot be, it is told once, and booked all the same."""
        line = line_of(entry)
        try:
            if self._file is None:
                self._path, self._file = made_in(self._folder)
            if self._size > self._most_bytes:
                self._size = 0
                self._append(b"".join(self._lines.values()))
                os.ftruncate(self._file, self._size)
            self._append(line)
        except OSError as error:
            self._tell(error)
            return
        self._is_unwritable = False
        self._lines[entry.call.id] = line

    def cross_out(self, call_id: str) -> None:
        """A bill is booked, or waits elsewhere."""
        if self._lines.pop(call_id, None) is None or self._lines or self._file is None:
            return
        with suppress(OSError):  # what is left there is known by its call
            os.ftruncate(self._file, 0)
            self._size = 0

    def close(self) -> None:
        """Let go of the file; one with bills in it stays for whoever looks next."""
        if self._file is None:
            return
        if not self._lines:
            self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = None

    def _tell(self, error: OSError) -> None:
        if not self._is_unwritable:
            _LOG.error("%s: bills cannot be jotted down before they are booked: %s", self._folder, error)
        self._is_unwritable = True

    def _append(self, lines: bytes) -> None:
        assert self._file is not None
        written = 0
        while written < len(lines):
            written += os.pwrite(self._file, lines[written:], self._size + written)
        self._size += len(lines)
