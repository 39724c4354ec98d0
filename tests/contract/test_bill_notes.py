"""Bills that are jotted down before they are booked: none is lost with its process, none is booked twice."""

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.cost.admission import Admission, Outcome
from foveate.cost.ledger import Entry
from foveate.engine.billing import book_orphans
from foveate.store.notes import BillNotes
from foveate.store.spool import BillSpool
from foveate.values import Savings
from tests.billed import CALL, ENTRY, NOON
from tests.unit.cost.books import Books, Naps


def bill(name: str) -> Entry:
    return replace(ENTRY, call=replace(CALL, id=name))


async def left_in(folder: Path) -> list[str]:
    """The calls whose bills somebody who looks now finds there."""
    spool = BillSpool(folder)
    found = [bill.call.id for left in await spool.orphans() for bill in left.bills]
    await spool.close()
    return found


def killed(notes: BillNotes) -> None:
    """As if its process were no more: nothing of it is tidied up."""
    assert notes._file is not None
    os.close(notes._file)
    notes._file = None


async def test_a_bill_outlives_its_process_until_it_is_booked(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    notes, books = BillNotes(folder), Books()
    ours = Admission(books, clock=lambda: NOON, notes=notes)
    for name in ("booked", "lost"):
        ours.jot(bill(name))
    assert await left_in(folder) == []  # its process lives
    assert (await ours.settle(bill("booked"))).outcome is Outcome.BOOKED
    killed(notes)

    spool = BillSpool(folder)
    assert await book_orphans(spool, Admission(books, clock=lambda: NOON)) == 1
    await spool.close()
    assert sorted(books.booked) == ["booked", "lost"]
    assert list(folder.iterdir()) == []


async def test_a_bill_of_a_process_that_died_too_early_is_booked_as_not_compared(
    tmp_path: Path,
) -> None:
    noted, notes, books = replace(ENTRY, savings=Savings()), BillNotes(tmp_path), Books()
    notes.jot(noted)
    killed(notes)

    spool = BillSpool(tmp_path)
    assert await book_orphans(spool, Admission(books, clock=lambda: NOON)) == 1
    await spool.close()
    assert books.entries_ == [noted]


async def test_a_bill_that_waits_for_the_store_waits_in_one_place(tmp_path: Path) -> None:
    notes, spool = BillNotes(tmp_path), BillSpool(tmp_path)
    ours = Admission(Books(gone=9), clock=lambda: NOON, sleep=Naps().sleep, spool=spool, notes=notes)
    ours.jot(ENTRY)
    assert (await ours.settle(ENTRY)).outcome is Outcome.WAITING
    killed(notes)
    await spool.close()

    assert await left_in(tmp_path) == [ENTRY.call.id]


def test_nothing_is_left_of_what_was_booked(tmp_path: Path) -> None:
    notes = BillNotes(tmp_path)
    for number in range(3):
        notes.jot(bill(f"{number}"))
        notes.cross_out(f"{number}")
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size == 0
    notes.close()

    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60))
@settings(max_examples=60)
async def test_whatever_comes_and_goes_what_is_not_booked_is_found(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("notes")
    notes = BillNotes(folder, most_bytes=2_000)
    open_bills: set[str] = set()
    for number, is_new in steps:
        if is_new:
            notes.jot(bill(f"{number}"))
            open_bills.add(f"{number}")
        else:
            notes.cross_out(f"{number}")
            open_bills.discard(f"{number}")
        sizes = [path.stat().st_size for path in folder.iterdir()]
        assert sum(sizes) < 2_000 + 11 * 1_000
    if notes._file is not None:
        killed(notes)

    assert open_bills <= set(await left_in(folder))


async def test_where_nothing_can_be_written_it_is_told_once_and_the_bill_is_booked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spool").write_text("no folder")
    books = Books()
    ours = Admission(books, clock=lambda: NOON, notes=BillNotes(tmp_path / "spool"))
    with caplog.at_level(logging.ERROR):
        for name in ("one", "two"):
            ours.jot(bill(name))
            assert (await ours.settle(bill(name))).outcome is Outcome.BOOKED

    assert len(caplog.records) == 1
    assert books.booked == ["one", "two"]


async def test_the_file_is_there_before_the_first_bill(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Defect: the first client waited for the disk, and had its answer before its bill was in the file."""
    notes = BillNotes(tmp_path / "spool")
    notes.open()
    (made,) = (tmp_path / "spool").iterdir()
    notes.jot(ENTRY)
    assert list((tmp_path / "spool").iterdir()) == [made]
    killed(notes)
    assert await left_in(tmp_path / "spool") == [ENTRY.call.id]

    nowhere = BillNotes(made)
    nowhere.open()
    nowhere.jot(ENTRY)
    assert len(caplog.records) == 1
