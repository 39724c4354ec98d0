"""The write-ahead log: no call is lost with its process, and none is recorded twice."""

import asyncio
import errno
import logging
import os
from decimal import Decimal
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.cost.admission import Admission, SettlementOutcome
from foveate.cost.ledger import Call, Charge
from foveate.engine.spending.observed_admission import record_orphans
from foveate.model import CacheUsage, Savings, Usage
from foveate.store.outbox import FileOutbox, FileWriteAheadLog, try_lock
from tests.support.harness.example_limits import limit_examples
from tests.support.stores.ledger_records import CALL, CHARGE, NOON
from tests.support.stores.memory_ledger import InMemoryLedger, ManualSleeps


def make_named_charge(name: str) -> Charge:
    return replace(CHARGE, call=replace(CALL, id=name))


async def read_orphaned_calls(folder: Path) -> list[str]:
    """Return the calls whose charges another process would find now."""
    outbox = FileOutbox(folder)
    call_ids = [charge.call.id for orphans in await outbox.orphans() for charge in orphans.charges]
    await outbox.close()
    return call_ids


def simulate_kill(log: FileWriteAheadLog) -> None:
    """Simulate a killed process: nothing is cleaned up."""
    assert log._file is not None
    os.close(log._file)
    log._file = None


async def test_a_charge_outlives_its_process_until_it_is_recorded(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    log, ledger = FileWriteAheadLog(folder), InMemoryLedger()
    admission = Admission(ledger, clock=lambda: NOON, write_ahead_log=log)
    for name in ("booked", "lost"):
        admission.log_charge(make_named_charge(name))
    assert await read_orphaned_calls(folder) == []  # its process is alive
    assert (await admission.settle(make_named_charge("booked"))).outcome is SettlementOutcome.RECORDED
    simulate_kill(log)

    outbox = FileOutbox(folder)
    assert await record_orphans(outbox, Admission(ledger, clock=lambda: NOON)) == 1
    await outbox.close()
    assert sorted(ledger.charged_ids) == ["booked", "lost"]
    assert list(folder.iterdir()) == []


async def test_a_charge_of_a_crashed_process_is_recorded_as_not_compared(
    tmp_path: Path,
) -> None:
    charge, log, ledger = replace(CHARGE, savings=Savings()), FileWriteAheadLog(tmp_path), InMemoryLedger()
    log.append(charge)
    simulate_kill(log)

    outbox = FileOutbox(tmp_path)
    assert await record_orphans(outbox, Admission(ledger, clock=lambda: NOON)) == 1
    await outbox.close()
    assert ledger.stored_charges == [charge]


async def test_a_charge_that_waits_for_the_store_is_in_one_place(tmp_path: Path) -> None:
    log, outbox = FileWriteAheadLog(tmp_path), FileOutbox(tmp_path)
    admission = Admission(
        InMemoryLedger(failures_left=9),
        clock=lambda: NOON,
        sleep=ManualSleeps().sleep,
        outbox=outbox,
        write_ahead_log=log,
    )
    admission.log_charge(CHARGE)
    assert (await admission.settle(CHARGE)).outcome is SettlementOutcome.WAITING
    simulate_kill(log)
    await outbox.close()

    assert await read_orphaned_calls(tmp_path) == [CHARGE.call.id]


@pytest.mark.parametrize("has_outbox", [True, False])
async def test_a_waiting_charge_stays_in_the_log_if_no_outbox_has_it(tmp_path: Path, has_outbox: bool) -> None:
    no_folder = tmp_path / "no folder"
    no_folder.touch()
    log, sleeps, ledger = FileWriteAheadLog(tmp_path / "spool"), ManualSleeps(), InMemoryLedger(failures_left=1)
    admission = Admission(
        ledger,
        clock=lambda: NOON,
        sleep=sleeps.sleep,
        outbox=FileOutbox(no_folder) if has_outbox else None,
        write_ahead_log=log,
    )
    admission.log_charge(CHARGE)
    assert (await admission.settle(CHARGE)).outcome is SettlementOutcome.WAITING
    (path,) = list_files(tmp_path / "spool")
    assert CHARGE.call.id.encode() in path.read_bytes()

    await sleeps.end()
    assert ledger.charged_ids == [CHARGE.call.id]
    log.close()
    assert list_files(tmp_path / "spool") == []


async def test_a_cancelled_settlement_leaves_nothing_in_the_log_once_it_is_recorded(tmp_path: Path) -> None:
    log, sleeps, ledger = FileWriteAheadLog(tmp_path), ManualSleeps(), InMemoryLedger(pause=asyncio.Event())
    admission = Admission(ledger, clock=lambda: NOON, sleep=sleeps.sleep, write_ahead_log=log)
    admission.log_charge(CHARGE)
    settlement = asyncio.create_task(admission.settle(CHARGE))
    await asyncio.sleep(0)
    settlement.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settlement
    assert ledger.pause is not None
    ledger.pause.set()

    await sleeps.end()
    assert ledger.charged_ids == [CHARGE.call.id]
    log.close()
    assert list_files(tmp_path) == []


async def test_calls_in_a_log_that_is_replaced_while_it_is_claimed_are_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, outbox = FileWriteAheadLog(tmp_path, max_bytes=1), FileOutbox(tmp_path)
    log.append(make_named_charge("in flight"))

    def lock_replaced_file(file: int) -> bool:
        """Lock a file that was opened just before its process replaced it."""
        log.append(make_named_charge("another"))
        return try_lock(file)

    monkeypatch.setattr("foveate.store.outbox.try_lock", lock_replaced_file)
    assert await outbox.orphans() == []
    await outbox.close()
    log.close()


def test_recorded_charges_leave_nothing_in_the_log(tmp_path: Path) -> None:
    log = FileWriteAheadLog(tmp_path)
    for number in range(3):
        log.append(make_named_charge(f"{number}"))
        log.mark_recorded(f"{number}")
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == 0
    log.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60))
async def test_charges_that_are_not_recorded_are_always_found(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("notes")
    log = FileWriteAheadLog(folder, max_bytes=2_000)
    open_charges: set[str] = set()
    for number, is_new in steps:
        if is_new:
            log.append(make_named_charge(f"{number}"))
            open_charges.add(f"{number}")
        else:
            log.mark_recorded(f"{number}")
            open_charges.discard(f"{number}")
        sizes = [path.stat().st_size for path in folder.iterdir()]
        assert sum(sizes) < 2_000 + 11 * 1_000
    if log._file is not None:
        simulate_kill(log)

    assert open_charges <= set(await read_orphaned_calls(folder))


async def test_an_unwritable_log_is_reported_once_and_charges_are_still_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spool").write_text("no folder")
    ledger = InMemoryLedger()
    admission = Admission(ledger, clock=lambda: NOON, write_ahead_log=FileWriteAheadLog(tmp_path / "spool"))
    with caplog.at_level(logging.ERROR):
        for name in ("one", "two"):
            admission.log_charge(make_named_charge(name))
            assert (await admission.settle(make_named_charge(name))).outcome is SettlementOutcome.RECORDED

    assert len(caplog.records) == 1
    assert ledger.charged_ids == ["one", "two"]


async def test_the_file_exists_before_the_first_charge(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the first client waited for the disk, and got its response before its charge was logged."""
    log = FileWriteAheadLog(tmp_path / "spool")
    log.open()
    (file,) = (tmp_path / "spool").iterdir()
    log.append(CHARGE)
    assert list((tmp_path / "spool").iterdir()) == [file]
    simulate_kill(log)
    assert await read_orphaned_calls(tmp_path / "spool") == [CHARGE.call.id]

    unwritable = FileWriteAheadLog(file)
    unwritable.open()
    unwritable.append(CHARGE)
    assert len(caplog.records) == 1


def make_named_call(name: str) -> Call:
    return replace(CALL, id=name)


def list_files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def recover_twice(folder: Path, ledger: InMemoryLedger) -> int:
    """Start another process twice, and return how many calls were recorded."""
    number = 0
    for _ in range(2):
        outbox = FileOutbox(folder)
        number += await record_orphans(outbox, Admission(ledger, clock=lambda: NOON))
        await outbox.close()
    return number


async def test_a_stream_in_flight_at_kill_9_is_recorded_once_as_possibly_charged(tmp_path: Path) -> None:
    """Regression: a process killed with streams in flight left nothing of them in the ledger."""
    log, ledger = FileWriteAheadLog(tmp_path), InMemoryLedger()
    admission = Admission(ledger, clock=lambda: NOON, write_ahead_log=log)
    for name in ("streams", "refused", "finished"):
        admission.announce(make_named_call(name), estimated_input_tokens=7)
    admission.announce_ceiling("streams", Decimal("0.25"))
    admission.withdraw("refused")
    admission.log_charge(make_named_charge("finished"))
    await admission.settle(make_named_charge("finished"))
    simulate_kill(log)

    assert await recover_twice(tmp_path, ledger) == 1
    finished, streams = ledger.stored_charges
    assert finished.call.id == "finished"
    assert not finished.is_possibly_charged
    assert streams == Charge(
        call=make_named_call("streams"),
        usage=Usage(cache=CacheUsage()),
        dollars=None,
        estimated_input_tokens=7,
        estimated_dollars=Decimal("0.25"),
        is_partial=True,
        charge=Decimal("0.25"),
        is_possibly_charged=True,
    )
    assert list_files(tmp_path) == []


class CallStage(StrEnum):
    """The stages of a call, in order."""

    ANNOUNCED = "announced"
    CEILING = "ceiling"
    CHARGED = "charged"
    SETTLED = "settled"
    WITHDRAWN = "withdrawn"


NEXT_STAGES = {
    None: [CallStage.ANNOUNCED],
    CallStage.ANNOUNCED: [CallStage.CEILING, CallStage.CHARGED, CallStage.WITHDRAWN],
    CallStage.CEILING: [CallStage.CHARGED, CallStage.WITHDRAWN],
    CallStage.CHARGED: [CallStage.SETTLED],
}


@pytest.mark.slow
@given(data=st.data(), max_bytes=st.sampled_from([500, 3_000, 100_000]))
@settings(max_examples=limit_examples(150))
async def test_a_killed_process_leaves_each_call_recorded_once_with_what_was_known(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, max_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("notes")
    log, ledger = FileWriteAheadLog(folder, max_bytes=max_bytes), InMemoryLedger()
    admission = Admission(ledger, clock=lambda: NOON, write_ahead_log=log)
    stages: dict[str, CallStage | None] = {f"{number}": None for number in range(data.draw(st.integers(1, 6)))}
    before, last, sizes = dict(stages), "0", dict[Path, int]()
    for _ in range(data.draw(st.integers(0, 25))):
        open_calls = [name for name, stage in stages.items() if stage in NEXT_STAGES]
        if not open_calls:
            break
        before, sizes = dict(stages), {path: path.stat().st_size for path in folder.iterdir()}
        last = data.draw(st.sampled_from(open_calls))
        stages[last] = stage = data.draw(st.sampled_from(NEXT_STAGES[stages[last]]))
        match stage:
            case CallStage.ANNOUNCED:
                admission.announce(make_named_call(last))
            case CallStage.CEILING:
                admission.announce_ceiling(last, Decimal(1))
            case CallStage.CHARGED:
                admission.log_charge(make_named_charge(last))
            case CallStage.SETTLED:
                await admission.settle(make_named_charge(last))
            case CallStage.WITHDRAWN:
                admission.withdraw(last)
    if log._file is not None:
        simulate_kill(log)
    # The last line may be truncated, as if the process had been killed while writing it.
    is_truncated = False
    for path in folder.iterdir():
        written = path.stat().st_size - sizes.get(path, path.stat().st_size)
        if written > 0 and data.draw(st.booleans()):
            os.truncate(path, path.stat().st_size - data.draw(st.integers(1, written)))
            is_truncated = True

    await recover_twice(folder, ledger)
    recorded = {charge.call.id: charge for charge in ledger.stored_charges}
    assert len(recorded) == len(ledger.stored_charges)
    for name, reached in stages.items():
        recorded_stage = (
            None
            if name not in recorded
            else CallStage.ANNOUNCED
            if recorded[name].is_possibly_charged
            else CallStage.CHARGED
        )
        possible = [reached, before[name]] if is_truncated and name == last else [reached]
        assert recorded_stage in [RECORDED_STAGES[possible_stage] for possible_stage in possible], (
            name,
            reached,
        )
    assert list_files(folder) == []


RECORDED_STAGES = {
    None: None,
    CallStage.ANNOUNCED: CallStage.ANNOUNCED,
    CallStage.CEILING: CallStage.ANNOUNCED,
    CallStage.CHARGED: CallStage.CHARGED,
    CallStage.SETTLED: CallStage.CHARGED,
    CallStage.WITHDRAWN: None,
}


async def test_on_a_full_disk_calls_continue_and_the_error_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spool").write_text("not a folder")
    ledger = InMemoryLedger()
    admission = Admission(ledger, clock=lambda: NOON, write_ahead_log=FileWriteAheadLog(tmp_path / "spool"))
    for name in ("one", "two"):
        admission.announce(make_named_call(name))
    admission.withdraw("two")
    admission.log_charge(make_named_charge("one"))
    assert (await admission.settle(make_named_charge("one"))).outcome is SettlementOutcome.RECORDED
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_calls_are_logged_in_the_old_file_if_no_new_one_can_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FileWriteAheadLog(tmp_path, max_bytes=1)
    log.append(make_named_charge("first"))

    def fail(*_: object, **__: object) -> tuple[Path, int]:
        raise OSError(errno.EMFILE, "no descriptors are left")

    monkeypatch.setattr("foveate.store.outbox.create_locked_file", fail)
    log.append(make_named_charge("second"))
    (path,) = tmp_path.iterdir()
    lines = path.read_bytes()
    log.close()

    assert b'"first"' in lines
    assert b'"second"' in lines


def test_the_file_stays_small_with_many_calls_in_flight(tmp_path: Path) -> None:
    log = FileWriteAheadLog(tmp_path, max_bytes=2_000)
    for number in range(200):
        log.append(make_named_charge(f"{number}"))
    in_flight = sum(path.stat().st_size for path in tmp_path.iterdir())
    for number in range(200, 1_000):
        log.append(make_named_charge(f"{number}"))
        log.mark_recorded(f"{number - 200}")
        (path,) = tmp_path.iterdir()
        assert path.stat().st_size < 3 * in_flight
    log.close()
