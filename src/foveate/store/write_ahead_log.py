"""Calls under way and bills about to be booked, noted in a file so that none is lost with its process.

A call is noted before it is sent, and its bill before the client has the whole answer. A bill is booked behind
the answer, with others in one transaction. A process that is killed leaves its notes here, in the form in which
bills wait for a store that is away: whoever looks for those finds them. Nothing waits for the disk: what a
process has written outlives it, if not the machine.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path

from foveate.cost.ledger import Charge
from foveate.store.outbox import create_locked_file, encode_charge, encode_discard

_LOG = logging.getLogger(__name__)

# A file that has grown to this, and to twice what is still held, is replaced by one with only that.
_MAX_BYTES = 1024 * 1024


class FileWriteAheadLog:
    """The calls of this process that are not booked yet, in a file in `folder`. For one thread."""

    def __init__(self, folder: Path, *, max_bytes: int = _MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = self._rewrite_at_bytes = max_bytes
        self._path = folder
        self._file: int | None = None
        self._size = 0
        self._lines: dict[str, bytes] = {}
        self._is_unwritable = False

    def open(self) -> None:
        """Have the file there before the first call comes, which then need not wait for the disk."""
        try:
            if self._file is None:
                self._path, self._file = create_locked_file(self._folder)
        except OSError as error:
            self._report_error(error)

    def append(self, charge: Charge) -> None:
        """Have a call outlive this process. If that cannot be, it is told once, and booked all the same."""
        line = encode_charge(charge)
        if self._write(line):
            self._lines[charge.call.id] = line

    def mark_recorded(self, call_id: str) -> None:
        """A bill is booked, or waits elsewhere."""
        if self._lines.pop(call_id, None) is not None and not self._lines:
            self._truncate()

    def discard(self, call_id: str) -> None:
        """Remove what is held for a call that is not billed: nothing else tells whoever finds the file."""
        if self._lines.pop(call_id, None) is None:
            return
        if self._lines:
            self._write(encode_discard(call_id))
        else:
            self._truncate()

    def close(self) -> None:
        """Let go of the file; one with bills in it stays for whoever looks next."""
        if self._file is None:
            return
        if not self._lines:
            self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = None

    def _write(self, line: bytes) -> bool:
        """Append a line; whether it is written."""
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
        """Go on in a new file with what is held; until it is complete, the old one is still there."""
        old_path, old_file, old_size = self._path, self._file, self._size
        self._path, self._file = create_locked_file(self._folder, is_synced=False)
        self._size = 0
        try:
            self._append(b"".join(self._lines.values()))
        except OSError:
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
        with suppress(OSError):  # bills that are left there are known by their calls
            os.ftruncate(self._file, 0)
            self._size = 0

    def _report_error(self, error: OSError) -> None:
        if not self._is_unwritable:
            _LOG.error("%s: calls cannot be noted before they are sent and booked: %s", self._folder, error)
        self._is_unwritable = True

    def _append(self, lines: bytes) -> None:
        assert self._file is not None
        written = 0
        while written < len(lines):
            written += os.pwrite(self._file, lines[written:], self._size + written)
        self._size += len(lines)
