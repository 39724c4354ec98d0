"""The outbox: no charge is lost while the store is unreachable, and none is recorded twice."""

import asyncio
import os
import resource
import signal
import stat
import zlib
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.cost.admission import Admission, SettlementOutcome
from foveate.cost.caps import CapScope
from foveate.cost.ledger import Charge
from foveate.engine.spending.observed_admission import record_orphans
from foveate.errors import BadOption, UnwritableFile
from foveate.store import open_store
from foveate.store.outbox import FileOutbox, create_locked_file, try_lock
from tests.support.processes.store_workers import SPAWN, WAIT_SECONDS
from tests.support.stores.ledger_records import (
    CALL,
    CHARGE,
    NOON,
    make_call,
    make_cap,
    make_charge,
    make_standing,
)
from tests.support.stores.memory_ledger import InMemoryLedger, ManualSleeps


def make_admission(ledger: InMemoryLedger, outbox: FileOutbox, sleeps: ManualSleeps | None = None) -> Admission:
    return Admission(ledger, clock=lambda: NOON, sleep=(sleeps or ManualSleeps()).sleep, outbox=outbox)


def list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def read_orphans(folder: Path) -> list[Charge]:
    """Return the charges that a new process would find, without removing them."""
    outbox = FileOutbox(folder)
    charges = [charge for orphans in await outbox.orphans() for charge in orphans.charges]
    await outbox.close()
    return charges


async def test_a_waiting_charge_is_on_disk_until_it_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "spool"
    ledger, sleeps, outbox = InMemoryLedger(failures_left=2), ManualSleeps(), FileOutbox(folder)
    admission = make_admission(ledger, outbox, sleeps)
    unusual = replace(CHARGE, call=replace(CALL, id="odd \ud83d\n", agent="a\0"))
    for charge in (CHARGE, unusual):
        assert (await admission.settle(charge)).outcome is SettlementOutcome.WAITING

    (path,) = list_files(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().count(b"\n") == 2
    assert await read_orphans(folder) == []  # its process is alive

    await sleeps.end()
    await sleeps.end()
    for _ in range(1000):
        await asyncio.sleep(0.01)
        if not path.stat().st_size:
            break
    assert ledger.charged_ids == [CHARGE.call.id, unusual.call.id]
    assert path.stat().st_size == 0
    assert await admission.close() == ()
    await outbox.close()
    assert list_files(folder) == []


async def test_no_file_exists_without_an_outage(tmp_path: Path) -> None:
    outbox = FileOutbox(tmp_path / "spool")
    admission = make_admission(InMemoryLedger(), outbox)
    await admission.settle(CHARGE)
    await admission.close()
    await outbox.close()

    assert list_files(tmp_path) == []


async def test_unrecorded_charges_are_recorded_by_the_next_process(tmp_path: Path) -> None:
    outbox = FileOutbox(tmp_path)
    admission = make_admission(InMemoryLedger(failures_left=10**6), outbox)
    charges = [CHARGE, make_charge(make_call("b"), None)]
    for charge in charges:
        await admission.settle(charge)
    assert list(await admission.close()) == charges
    await outbox.close()

    ledger, next_outbox = InMemoryLedger(), FileOutbox(tmp_path)
    assert await record_orphans(next_outbox, make_admission(ledger, next_outbox)) == 2
    assert ledger.stored_charges == charges
    await next_outbox.close()
    assert list_files(tmp_path) == []
    assert await read_orphans(tmp_path) == []


async def test_charges_stay_for_the_next_process_if_the_store_is_still_unreachable(tmp_path: Path) -> None:
    for _ in range(3):
        outbox = FileOutbox(tmp_path)
        admission = make_admission(InMemoryLedger(failures_left=10**6), outbox)
        await record_orphans(outbox, admission)
        await admission.settle(CHARGE)
        await admission.close()
        await outbox.close()

    ledger, outbox = InMemoryLedger(), FileOutbox(tmp_path)
    assert await record_orphans(outbox, make_admission(ledger, outbox)) == 1
    assert ledger.stored_charges == [CHARGE]
    await outbox.close()
    assert list_files(tmp_path) == []


async def test_another_process_charges_a_call_of_unknown_price_what_was_reserved(
    tmp_path: Path,
) -> None:
    ledger, outbox = InMemoryLedger(), FileOutbox(tmp_path)
    admission = make_admission(ledger, outbox)
    await admission.admit(CALL, Decimal("0.8"), [make_cap(CapScope.DAY, 1)])
    ledger.failures_left = 10**6
    await admission.settle(make_charge(CALL, None))
    await admission.close()
    await outbox.close()

    (orphans,) = await read_orphans(tmp_path)
    assert (orphans.dollars, orphans.charge) == (None, Decimal("0.8"))


async def test_an_unreadable_file_does_not_keep_others_from_being_recorded(tmp_path: Path) -> None:
    """Regression: files found before it stayed claimed but unread, and were removed 20 seconds later."""
    await write_charges(tmp_path, [CHARGE])
    unreadable = tmp_path / "zzz.bills"
    unreadable.symlink_to("/proc/self/mem")  # it can be opened and locked, but not read
    ledger, outbox = InMemoryLedger(), FileOutbox(tmp_path)
    for _ in range(2):
        with suppress(OSError):
            await record_orphans(outbox, make_admission(ledger, outbox))
        unreadable.unlink(missing_ok=True)
    await outbox.close()

    assert ledger.stored_charges == [CHARGE]
    assert list_files(tmp_path) == []


async def test_waiting_charges_stay_in_place_until_they_are_recorded(tmp_path: Path) -> None:
    """Regression: the next check, 20 seconds later, found nothing else and removed it."""
    await write_charges(tmp_path, [CHARGE, make_charge(make_call("b"), "0.5")])
    (path,) = list_files(tmp_path)
    ledger, sleeps, outbox = InMemoryLedger(failures_left=10**6), ManualSleeps(), FileOutbox(tmp_path)
    admission = make_admission(ledger, outbox, sleeps)
    for _ in range(3):
        assert await record_orphans(outbox, admission) == 0
    assert admission.waiting_count == 1  # the others stay in place
    assert path.exists()

    ledger.failures_left = 0
    await admission.close()
    assert await record_orphans(outbox, admission) == 1
    assert [charge.call.id for charge in ledger.stored_charges] == [CHARGE.call.id, "b"]
    assert not path.exists()
    await outbox.close()


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_file_with_an_invalid_charge_is_renamed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_lost: bool
) -> None:
    """Regression: its file was removed, as was one with a line that another version had written."""
    await write_charges(tmp_path, [CHARGE, make_charge(make_call("never"), "0.5")])
    (path,) = list_files(tmp_path)
    if not is_lost:
        record = b'{"of": "another version"}'
        path.write_bytes(path.read_bytes() + b"%08x %s\n" % (zlib.crc32(record), record))
    complete = path.read_bytes()
    ledger, outbox = (
        InMemoryLedger(unstorable={"never": BadOption("no such call")} if is_lost else {}),
        FileOutbox(tmp_path),
    )
    for _ in range(2):
        await record_orphans(outbox, make_admission(ledger, outbox))
    await outbox.close()

    assert [charge.call.id for charge in ledger.stored_charges] == [CHARGE.call.id, "never"][: 2 - is_lost]
    (renamed,) = list_files(tmp_path)
    assert (renamed.suffix, renamed.read_bytes()) == (".unbooked", complete)
    assert caplog.text.count(str(renamed)) == 1


def test_a_file_system_without_locks_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    """Regression: the error was taken for another process's lock, and files were created forever."""
    for lock in (lambda _: try_lock(10**8), lambda _: False):  # not a valid descriptor
        with pytest.raises(OSError):  # noqa: PT011 - any reason
            create_locked_file(tmp_path, lock=lock)

    assert list_files(tmp_path) == []


CHARGES = [
    replace(CHARGE, call=make_call("a\nb")),
    make_charge(make_call("b"), None),
    make_charge(make_call("c"), "0.5"),
]


@given(data=st.data())
def test_a_truncated_last_line_never_loses_earlier_charges(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    asyncio.run(write_charges(folder, CHARGES))
    (path,) = folder.iterdir()
    complete = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(complete) if byte == ord("\n")]
    size = data.draw(st.integers(0, len(complete)))
    path.write_bytes(complete[:size] + data.draw(st.sampled_from([b"", b"\0" * 9, b"\nx", b"00000000 {}\n"])))

    charges = asyncio.run(read_orphans(folder))

    # A line that lacks only its line end is complete.
    assert charges in (
        CHARGES[: sum(end <= size for end in ends)],
        CHARGES[: sum(end - 1 <= size for end in ends)],
    )


async def write_charges(folder: Path, charges: Sequence[Charge]) -> None:
    outbox = FileOutbox(folder)
    for charge in charges:
        await outbox.put(charge)
    await outbox.close()


async def test_many_concurrent_charges_share_one_sync_and_all_are_stored(tmp_path: Path) -> None:
    outbox = FileOutbox(tmp_path)
    charges = [make_charge(make_call(f"{number:03}"), number) for number in range(600)]
    await asyncio.gather(*(outbox.put(charge) for charge in charges))
    await asyncio.gather(*(outbox.remove(charge.call.id) for charge in charges[:300]))
    await outbox.close()

    stored_ids = {charge.call.id for charge in await read_orphans(tmp_path)}
    assert {charge.call.id for charge in charges[300:]} <= stored_ids


def put_until_killed(folder: Path, connection: Connection, name: str) -> None:
    """Put charges for a store that never returns, and print which are stored, until the process is killed."""

    async def put_all() -> None:
        admission = make_admission(InMemoryLedger(failures_left=10**9), FileOutbox(folder))
        for number in range(10**6):
            charge = make_charge(make_call(f"{name} {number}"), "0.25")
            assert (await admission.settle(charge)).outcome in (
                SettlementOutcome.WAITING,
                SettlementOutcome.LOST,
            )
            connection.send(charge.call.id)

    asyncio.run(put_all())


@pytest.mark.slow
@pytest.mark.process
def test_kill_9_of_two_processes_loses_no_waiting_charge(tmp_path: Path, database_url: str) -> None:
    folder = tmp_path / "spool"
    pipes = [SPAWN.Pipe(duplex=False) for _ in range(2)]
    processes = [
        SPAWN.Process(target=put_until_killed, args=(folder, sender, f"w{number}"))
        for number, (_, sender) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    stored_ids: set[str] = set()
    for receiver, sender in pipes:
        sender.close()
        for _ in range(30):
            assert receiver.poll(WAIT_SECONDS)
            stored_ids.add(receiver.recv())
    assert asyncio.run(read_orphans(folder)) == []
    for process in processes:
        assert process.pid
        os.kill(process.pid, signal.SIGKILL)
        process.join(WAIT_SECONDS)

    async def record_all() -> None:
        async with await open_store(database_url) as store:
            for _ in range(2):  # the second finds none
                outbox = FileOutbox(folder)
                admission = Admission(store.ledger, clock=lambda: NOON, outbox=outbox)
                await record_orphans(outbox, admission)
                await admission.close()
                await outbox.close()
            recorded_ids = [charge.call.id async for charge in store.ledger.list_charges()]
            assert stored_ids <= set(recorded_ids)
            assert len(recorded_ids) == len(set(recorded_ids))
            spent = await store.ledger.get_balances(["total"], now=NOON)
            assert spent == {"total": make_standing(len(recorded_ids) * Decimal("0.25"))}

    asyncio.run(record_all())
    assert list_files(folder) == []


def put_until_disk_is_full(folder: Path, connection: Connection) -> None:
    """Put charges on a disk that fills up, and print the result of each."""

    async def put_all() -> list[str]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.RLIM_INFINITY))
        outbox = FileOutbox(folder)
        stored: list[str] = []
        for number in range(20):
            try:
                await outbox.put(make_charge(make_call(f"{number}"), "0.25"))
                stored.append(f"{number}")
            except UnwritableFile as error:
                assert "large" in str(error)  # noqa: PT017 - in another process
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await outbox.put(make_charge(make_call("last"), "0.25"))
        await outbox.close()
        return [*stored, "last"]

    connection.send(asyncio.run(put_all()))


@pytest.mark.slow
@pytest.mark.process
def test_a_full_disk_does_not_damage_charges_before_and_after(tmp_path: Path) -> None:
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=put_until_disk_is_full, args=(tmp_path, sender))
    process.start()
    sender.close()
    assert receiver.poll(WAIT_SECONDS)
    stored = receiver.recv()
    process.join(WAIT_SECONDS)

    assert 1 < len(stored) < 15
    assert [charge.call.id for charge in asyncio.run(read_orphans(tmp_path))] == stored
