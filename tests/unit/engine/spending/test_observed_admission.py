"""Charges are reported whatever their outcome; a lost one is logged with all its numbers."""

import asyncio
import logging
from decimal import Decimal

import pytest
from msgspec.structs import replace

from foveate.cost.admission import AdmissionOptions, Settlement, SettlementOutcome
from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import Charge
from foveate.engine.observer import NullObserver
from foveate.engine.spending.observed_admission import ObservedAdmission
from foveate.errors import BadOption
from tests.support.scenarios.finished_exchanges import make_exchange_charge
from tests.support.stores.memory_ledger import InMemoryLedger, ManualSleeps


class RecordingObserver(NullObserver):
    def __init__(self) -> None:
        self.charges: list[tuple[str, SettlementOutcome]] = []

    def on_charge(self, charge: Charge, settlement: Settlement) -> None:
        self.charges.append((charge.call.id, settlement.outcome))


def make_admission(
    ledger: InMemoryLedger, *, max_waiting: int = 10
) -> tuple[ObservedAdmission, RecordingObserver, ManualSleeps]:
    observer, sleeps = RecordingObserver(), ManualSleeps()
    options = AdmissionOptions(max_waiting=max_waiting)
    admission = ObservedAdmission(
        ledger, clock=lambda: 0.0, options=options, observer=observer, sleep=sleeps.sleep
    )
    return admission, observer, sleeps


def make_charge(call_id: str) -> Charge:
    charge = make_exchange_charge()
    return replace(charge, call=replace(charge.call, id=call_id))


async def test_every_charge_is_reported_with_its_outcome(caplog: pytest.LogCaptureFixture) -> None:
    ledger = InMemoryLedger(unstorable={"never": BadOption("no such call")}, unpriced={"odd"})
    admission, observer, _ = make_admission(ledger)

    for call_id in ("good", "good", "never", "odd"):
        await admission.settle(make_charge(call_id))
    await admission.close()

    assert observer.charges == [
        ("good", SettlementOutcome.RECORDED),
        ("good", SettlementOutcome.ALREADY_RECORDED),
        ("never", SettlementOutcome.LOST),
        ("odd", SettlementOutcome.RECORDED),
    ]
    (lost,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "never of ana, session s, anthropic claude-opus-4-5, main, 10 uncached, 80 read" in lost
    assert "6 and 4 written, 7 out, 0.5 dollars (no such call)" in lost
    assert "the charge of call odd is recorded: that is no price" in caplog.text


async def test_a_waiting_charge_that_can_never_be_stored_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = InMemoryLedger(failures_left=1, unstorable={"late": BadOption("no such call")})
    admission, observer, sleeps = make_admission(ledger)

    await admission.settle(make_charge("late"))
    assert "the charge of call late is waiting: /data/foveate.sqlite: is locked" in caplog.text
    await sleeps.end()
    await admission.close()

    assert observer.charges == [("late", SettlementOutcome.WAITING)]
    assert admission.lost_count == 1
    assert "a charge is lost: late of ana" in caplog.text


async def test_charges_that_could_not_be_recorded_before_the_end_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = InMemoryLedger(failures_left=float("inf"))
    admission, observer, _ = make_admission(ledger, max_waiting=1)

    for call_id in ("one", "two"):
        await admission.settle(make_charge(call_id))
    unrecorded = await admission.close()

    assert [charge.call.id for charge in unrecorded] == ["one"]
    assert observer.charges == [("one", SettlementOutcome.WAITING), ("two", SettlementOutcome.LOST)]
    assert "a charge is lost: two of ana" in caplog.text
    assert "a charge could not be recorded before shutdown: one of ana" in caplog.text


async def test_the_charge_of_a_cancelled_exchange_is_reported_as_waiting() -> None:
    ledger = InMemoryLedger(pause=asyncio.Event())
    admission, observer, _ = make_admission(ledger)

    settling = asyncio.create_task(admission.settle(make_charge("cut")))
    await asyncio.sleep(0)
    settling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling
    assert observer.charges == [("cut", SettlementOutcome.WAITING)]

    assert ledger.pause is not None
    ledger.pause.set()
    await admission.close()
    assert ledger.charged_ids == ["cut"]


async def test_a_nearly_spent_cap_is_logged_once_per_account(caplog: pytest.LogCaptureFixture) -> None:
    admission, _, _ = make_admission(InMemoryLedger())
    caps = [Cap(scope=CapScope.SESSION, dollars=Decimal(1)), Cap(scope=CapScope.CALL, dollars=Decimal(10))]
    for number, (session_id, ceiling) in enumerate([("s", "0.5"), ("s", "0.4"), ("s", "0.05"), ("t", "0.9")]):
        call = replace(make_exchange_charge().call, id=f"call {number}", session_id=session_id)
        await admission.admit(call, Decimal(ceiling), caps)
    await admission.close()

    messages = [record.getMessage() for record in caplog.records]
    assert [line.partition(" (")[2] for line in messages] == [
        "call call 1 of ana, session s)",
        "call call 3 of ana, session t)",
    ]
    assert messages[0].startswith("the cap on a session is $1.00, of which ")
