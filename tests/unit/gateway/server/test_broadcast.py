"""Records that workers send each other arrive complete and in order, or are known to be missed."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.gateway.server.broadcast import WorkerBroadcast
from foveate.session.recent_sessions import Sender
from tests.support.harness.example_limits import limit_examples

RING_BYTES = 1024
# With 16 bytes before it, such a record fills a quarter of the ring.
QUARTER = RING_BYTES // 4 - 16

OpenWorker = Callable[[int], WorkerBroadcast]


@pytest.fixture
def supervisor() -> Iterator[WorkerBroadcast]:
    with closing(WorkerBroadcast.create(3, ring_bytes=RING_BYTES)) as created:
        yield created


@pytest.fixture
def open_worker(supervisor: WorkerBroadcast) -> OpenWorker:
    return lambda number: WorkerBroadcast(supervisor.descriptor, number, ring_bytes=RING_BYTES)


def received(worker: WorkerBroadcast) -> list[bytes]:
    return [record for _, record in worker.receive()]


def test_every_other_worker_receives_each_record_once(open_worker: OpenWorker) -> None:
    first, second, third = open_worker(0), open_worker(1), open_worker(2)
    first.publish(b"one")
    second.publish(b"two")

    assert received(first) == [b"two"]
    assert received(second) == [b"one"]
    assert received(third) == [b"one", b"two"]
    assert received(third) == []
    first.publish(b"")
    assert list(third.receive()) == [(Sender(0, 0), b"")]
    assert third.missed == 0


def test_a_slow_worker_receives_the_latest_records_and_knows_that_it_missed_others(
    open_worker: OpenWorker,
) -> None:
    writer, reader = open_worker(0), open_worker(1)
    records = [bytes([number]) * QUARTER for number in range(9)]
    for record in records:
        writer.publish(record)

    assert received(reader) == records[-4:]
    assert reader.missed == 1
    writer.publish(b"next")
    assert received(reader) == [b"next"]
    assert reader.missed == 1


def test_a_record_that_fits_no_ring_is_not_sent(open_worker: OpenWorker) -> None:
    writer, reader = open_worker(0), open_worker(1)
    writer.publish(b"before")
    writer.publish(bytes(RING_BYTES))

    assert received(reader) == [b"before"]


def test_a_record_overwritten_while_it_is_read_is_never_returned(
    open_worker: OpenWorker,
) -> None:
    """The writer, in a thread, laps the reader again and again."""
    writer, reader = open_worker(0), open_worker(1)
    count = 20_000
    sizes = [number * 7 % 300 for number in range(count)]

    def write() -> None:
        for number, size in enumerate(sizes):
            writer.publish(number.to_bytes(4, "big") + bytes([number % 256]) * size)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=write)
    thread.start()
    numbers = []
    try:
        while thread.is_alive() or not numbers or numbers[-1] != count - 1:
            for record in received(reader):
                number = int.from_bytes(record[:4], "big")
                assert record[4:] == bytes([number % 256]) * sizes[number]
                numbers.append(number)
    finally:
        thread.join()
        sys.setswitchinterval(interval)

    assert numbers == sorted(set(numbers))
    assert reader.missed


def test_a_damaged_record_ends_the_reading_until_it_is_overwritten(
    supervisor: WorkerBroadcast, open_worker: OpenWorker
) -> None:
    """On some processors, the end of the ring can be seen before the record."""
    writer, reader = open_worker(0), open_worker(1)
    writer.publish(b"good")
    writer.publish(b"late")
    at = 3 * 3 * 8 + 2 * 16 + 16  # after three positions of three workers, a record, and a head
    stored = os.pread(supervisor.descriptor, 4, at)
    os.pwrite(supervisor.descriptor, b"????", at)

    assert stored == b"late"
    assert received(reader) == [b"good"]
    assert received(reader) == []
    os.pwrite(supervisor.descriptor, stored, at)
    assert received(reader) == [b"late"]


@pytest.mark.parametrize("published_before", [0, 4])
def test_memory_that_does_not_show_a_new_record_yet_is_not_taken_for_it(
    supervisor: WorkerBroadcast, open_worker: OpenWorker, published_before: int
) -> None:
    """On some processors, the end of the ring can be seen before the record: an old one or none is there."""
    writer, reader = open_worker(0), open_worker(1)
    for number in range(published_before):
        writer.publish(bytes([number]) * QUARTER)
    assert len(received(reader)) == published_before
    at = 3 * 3 * 8  # after three positions of three workers
    old = os.pread(supervisor.descriptor, RING_BYTES, at)
    writer.publish(b"n" * QUARTER)
    new = os.pread(supervisor.descriptor, RING_BYTES, at)
    os.pwrite(supervisor.descriptor, old, at)

    assert received(reader) == []
    os.pwrite(supervisor.descriptor, new, at)
    assert received(reader) == [b"n" * QUARTER]
    assert reader.missed == 0


def test_a_new_process_of_a_worker_learns_what_the_old_one_sent(
    supervisor: WorkerBroadcast, open_worker: OpenWorker
) -> None:
    old, other = open_worker(0), open_worker(1)
    old.publish(b"mine")
    other.publish(b"yours")
    supervisor.mark_ended(0)
    new = open_worker(0)

    assert not other.is_running(Sender(0, 0))
    assert list(new.receive()) == [(Sender(0, 0), b"mine"), (Sender(1, 0), b"yours")]
    new.publish(b"new")
    assert list(other.receive()) == [(Sender(0, 0), b"mine"), (Sender(0, 1), b"new")]
    assert other.is_running(Sender(0, 1))
    assert received(new) == []


@settings(max_examples=limit_examples(200))
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(0, 2), st.integers(0, RING_BYTES)),
            st.tuples(st.just("receive"), st.integers(0, 2), st.just(0)),
            st.tuples(st.just("restart"), st.integers(0, 2), st.just(0)),
        ),
        max_size=80,
    )
)
def test_records_arrive_in_order_and_completely_unless_some_are_missed(
    steps: list[tuple[str, int, int]],
) -> None:
    with closing(WorkerBroadcast.create(3, ring_bytes=RING_BYTES)) as supervisor:

        def open_worker(number: int) -> WorkerBroadcast:
            return WorkerBroadcast(supervisor.descriptor, number, ring_bytes=RING_BYTES)

        workers = [open_worker(number) for number in range(3)]
        generations = [0, 0, 0]
        # What each worker has to receive of each other one, with the first one that it must not miss.
        unread: list[list[list[tuple[int, bytes]]]] = [[[] for _ in range(3)] for _ in range(3)]
        for number, (step, worker, size) in enumerate(steps):
            if step == "publish":
                record = number.to_bytes(2, "big") * (size // 2)
                workers[worker].publish(record)
                for reader in range(3):
                    if reader != worker and len(record) + 16 <= RING_BYTES:
                        unread[reader][worker].append((generations[worker], record))
                unread[worker][worker].clear()
            elif step == "receive":
                missed_before = workers[worker].missed
                arrived: list[list[tuple[int, bytes]]] = [[], [], []]
                for sender, record in workers[worker].receive():
                    arrived[sender.worker].append((sender.generation, record))
                for other in range(3):
                    expected = unread[worker][other]
                    assert arrived[other] == expected[len(expected) - len(arrived[other]) :]
                    if workers[worker].missed == missed_before:
                        assert arrived[other] == expected
                    unread[worker][other] = []
            else:
                supervisor.mark_ended(worker)
                generations[worker] += 1
                workers[worker] = open_worker(worker)
                unread[worker] = [list(workers_records) for workers_records in _in_rings(supervisor)]


def _in_rings(supervisor: WorkerBroadcast) -> list[list[tuple[int, bytes]]]:
    """Return what a process that starts now can receive."""
    fresh = WorkerBroadcast(supervisor.descriptor, ring_bytes=RING_BYTES)
    records: list[list[tuple[int, bytes]]] = [[], [], []]
    for sender, record in fresh.receive():
        records[sender.worker].append((sender.generation, record))
    return records
