"""Memory in which the workers at one socket tell each other of their requests.

Each worker writes to a ring of its own, and all others read it. A ring has two positions, which only grow: its
records lie between `starts` and `ends`. The writer moves `starts` before it overwrites a record, so a reader
that finds it moved after copying knows which of its records are torn; and it moves `ends` after a record is
complete, so nothing is seen of a record that a killed process was writing. A checksum covers processors that
show writes in another order: it includes the position, so that neither an old record nor empty memory is taken
for a new record.
"""

import mmap
import os
import secrets
import struct
import tempfile
import zlib
from collections.abc import Iterator

from foveate.session.recent_sessions import Sender

# About 1,000 requests. A request of a worker that was idle for longer than these took has to read all of them.
RING_BYTES = 512 * 1024
# At the end of the memory.
_ID_BYTES = 4
# Start and end of the ring, and the generation of the process that writes to it.
_POSITION_BYTES = 3 * 8
# Bytes of the record, its checksum, and the generation; a multiple of the alignment, so it never wraps.
_HEAD = struct.Struct("<IIQ")
_ALIGNMENT = _HEAD.size


class WorkerBroadcast:
    """The rings of all workers at one socket, seen by `worker`. For one event loop."""

    def __init__(self, descriptor: int, worker: int = 0, *, ring_bytes: int = RING_BYTES) -> None:
        self.descriptor = descriptor
        self._worker = worker
        self._ring_bytes = ring_bytes
        memory = memoryview(mmap.mmap(descriptor, 0))
        workers = len(memory) // (_POSITION_BYTES + ring_bytes)
        positions = memory[: workers * _POSITION_BYTES].cast("Q")
        self._starts, self._ends, self._generations = (
            positions[first : first + workers] for first in range(0, 3 * workers, workers)
        )
        self._rings = [
            memory[first : first + ring_bytes]
            for first in range(len(positions) * 8, len(memory) - _ID_BYTES, ring_bytes)
        ]
        self.gateway_id = memory[-_ID_BYTES:].hex()
        self._generation = self._generations[worker]
        self._seen = self._starts.tolist()
        self.missed = 0

    @classmethod
    def create(cls, workers: int, *, ring_bytes: int = RING_BYTES) -> "WorkerBroadcast":
        descriptor = _create_memory_file()
        os.truncate(descriptor, workers * (_POSITION_BYTES + ring_bytes))
        with open(descriptor, "ab", closefd=False) as file:
            file.write(secrets.token_bytes(_ID_BYTES))
        return cls(descriptor, ring_bytes=ring_bytes)

    def mark_ended(self, worker: int) -> None:
        """Let the others know that the process of a worker has ended, before another one replaces it."""
        self._generations[worker] += 1

    def is_running(self, sender: Sender) -> bool:
        return self._generations[sender.worker] == sender.generation

    def publish(self, record: bytes) -> None:
        """Add a record to the ring of this worker, in place of its oldest ones if there is no room."""
        start, end, ring = self._starts[self._worker], self._ends[self._worker], self._rings[self._worker]
        checksum = _compute_checksum(record, end, self._generation)
        data = _HEAD.pack(len(record), checksum, self._generation) + record + bytes(-len(record) % _ALIGNMENT)
        if len(data) > self._ring_bytes:
            return
        while end + len(data) - start > self._ring_bytes:
            start += _padded_bytes(_HEAD.unpack_from(ring, start % self._ring_bytes)[0])
        self._starts[self._worker] = start
        first = end % self._ring_bytes
        size = min(len(data), self._ring_bytes - first)
        ring[first : first + size] = data[:size]
        ring[: len(data) - size] = data[size:]
        self._ends[self._worker] = self._seen[self._worker] = end + len(data)

    def receive(self) -> Iterator[tuple[Sender, bytes]]:
        """Yield new records of the other workers, and at first those of this worker's previous process."""
        ends = self._ends.tolist()
        if ends != self._seen:
            for worker, end in enumerate(ends):
                if end != self._seen[worker]:
                    yield from self._read(worker, end)

    def _read(self, worker: int, end: int) -> Iterator[tuple[Sender, bytes]]:
        seen, size = self._seen[worker], self._ring_bytes
        start = min(max(seen, self._starts[worker]), end)
        first, last = start % size, start % size + end - start
        data = bytes(self._rings[worker][first:last]) + bytes(self._rings[worker][: max(0, last - size)])
        intact = min(max(start, self._starts[worker]), end)  # the worker may have gone on meanwhile
        self.missed += intact != seen
        while intact < end:
            length, checksum, generation = _HEAD.unpack_from(data, intact - start)
            at = intact - start + _HEAD.size
            record = data[at : at + length]
            if _compute_checksum(record, intact, generation) != checksum:  # not visible yet
                break
            intact += _padded_bytes(length)
            yield Sender(worker, generation), record
        self._seen[worker] = intact

    def close(self) -> None:
        os.close(self.descriptor)


def _create_memory_file() -> int:
    if hasattr(os, "memfd_create"):  # Linux
        return os.memfd_create("foveate-broadcast")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _compute_checksum(record: bytes, position: int, generation: int) -> int:
    return zlib.crc32(record, (position + 1 + generation) & 0xFFFF_FFFF)  # of 0, that of nothing would be 0


def _padded_bytes(length: int) -> int:
    return _HEAD.size + length + -length % _ALIGNMENT
