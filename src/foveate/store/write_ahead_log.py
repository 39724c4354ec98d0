"""Calls in flight and charges about to be recorded, in a file so that none is lost with its process.

A call is logged before it is sent, and its charge before the client has the whole response. Charges are
recorded after the response, several in one transaction. A killed process leaves its log in the format of the
outbox, so the process that claims outbox files finds it. Nothing waits for the disk: what is written survives
the process, but not a power loss.
"""

import logging
import os
from contextlib import suppress
from pathlib import Path

from foveate.cost.ledger import Charge
from foveate.store.outbox import create_locked_file, encode_charge, encode_discard

_LOG = logging.getLogger(__name__)

# A file that exceeds this, and twice the lines in use, is replaced by one with only these lines.
_MAX_BYTES = 1024 * 1024


class FileWriteAheadLog:
    """The calls of this process that are not recorded yet, in a file in `folder`. For use by one thread."""

    def __init__(self, folder: Path, *, max_bytes: int = _MAX_BYTES) -> None:
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
        """Close the file. If it has charges, it stays for the process that claims it next."""
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
