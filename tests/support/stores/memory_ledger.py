"""An in-memory ledger that can become unreachable, and sleeps that a test controls."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from decimal import Decimal

from foveate.cost.admission import Admission, AdmissionOptions
from foveate.cost.caps import list_accounts
from foveate.cost.ledger import (
    AccountBalance,
    AccountOverLimit,
    Charge,
    ChargeTotal,
    GroupBy,
    Ledger,
    Reservation,
)
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import SpendingOptions
from foveate.engine.spending.charges import ChargeRecorder
from foveate.errors import BadOption, StoreUnavailable
from tests.support.stores.ledger_records import NOON, make_standing


@dataclass
class InMemoryLedger:
    """A ledger in memory; `failures_left` is the number of further operations that fail as unreachable.

    Charges in `unstorable` cannot be stored, and those in `unpriced` only without their dollars.
    """

    failures_left: float = 0
    stored_charges: list[Charge] = field(default_factory=list)
    reserved: dict[str, Reservation] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)
    unstorable: dict[str, Exception] = field(default_factory=dict)
    unpriced: set[str] = field(default_factory=set)
    pause: asyncio.Event | None = None

    async def _reach(self, what: str) -> None:
        self.operations.append(what)
        if self.pause is not None:
            await self.pause.wait()
        if self.failures_left:
            self.failures_left -= 1
            raise StoreUnavailable("/data/foveate.sqlite", "is locked by another process")

    def _standing(self, account: str) -> AccountBalance:
        spent = [
            item.dollars for item in self.stored_charges if item.dollars and account in list_accounts(item.call)
        ]
        reserved = [item.dollars for item in self.reserved.values() if account in item.accounts]
        return make_standing(sum(spent, Decimal(0)), sum(reserved, Decimal(0)))

    async def reserve(
        self, reservation: Reservation, *, now: float
    ) -> Mapping[str, AccountBalance] | AccountOverLimit:
        await self._reach(f"reserve {reservation.call_id}")
        for account, limit in reservation.limits.items():
            balance = self._standing(account)
            if balance.spent + balance.reserved + reservation.dollars > limit:
                return AccountOverLimit(account=account, limit=limit, balance=balance)
        self.reserved[reservation.call_id] = reservation
        return {account: self._standing(account) for account in reservation.limits}

    async def settle_all(self, charges: Sequence[tuple[Charge, Sequence[str]]]) -> Sequence[bool | Exception]:
        await self._reach(f"settle {' '.join(charge.call.id for charge, _ in charges)}")
        return [self._settle(charge, accounts) for charge, accounts in charges]

    def _settle(self, charge: Charge, accounts: Sequence[str]) -> bool | Exception:
        assert accounts == list_accounts(charge.call)
        if charge.call.id in self.unstorable:
            return self.unstorable[charge.call.id]
        if charge.call.id in self.unpriced and charge.dollars is not None:
            return BadOption("that is no price")
        if any(item.call.id == charge.call.id for item in self.stored_charges):
            return False
        self.stored_charges.append(charge)
        self.reserved.pop(charge.call.id, None)
        return True

    async def release(self, call_id: str) -> bool:
        await self._reach(f"release {call_id}")
        return self.reserved.pop(call_id, None) is not None

    async def renew(self, call_ids: Sequence[str], *, expires_at: float) -> Set[str]:
        await self._reach(f"renew {' '.join(sorted(call_ids))}")
        renewed = {call_id: self.reserved[call_id] for call_id in call_ids if call_id in self.reserved}
        self.reserved |= {call_id: replace(item, expires_at=expires_at) for call_id, item in renewed.items()}
        return renewed.keys()

    async def get_balances(self, accounts: Sequence[str], *, now: float) -> Mapping[str, AccountBalance]:
        return {account: self._standing(account) for account in accounts}

    async def sum_charges(
        self, group_by: Sequence[GroupBy], *, since: float | None = None, **_filters: object
    ) -> Sequence[ChargeTotal]:
        return []

    async def list_charges(self, **_filters: object) -> AsyncIterator[Charge]:
        for item in self.stored_charges:
            yield item

    @property
    def charged_ids(self) -> list[str]:
        return [item.call.id for item in self.stored_charges]


@dataclass
class ManualSleeps:
    """Sleeps that end when a test says so."""

    seconds: list[float] = field(default_factory=list)
    over: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await self.over.acquire()

    async def end(self) -> None:
        """End one sleep, and wait until its consequences are processed."""
        self.over.release()
        for _ in range(50):
            await asyncio.sleep(0)


def make_admission(ledger: Ledger, sleeps: ManualSleeps | None = None, *, max_waiting: int = 10) -> Admission:
    return Admission(
        ledger,
        clock=lambda: NOON,
        options=AdmissionOptions(lifetime_seconds=60.0, max_waiting=max_waiting),
        sleep=(sleeps or ManualSleeps()).sleep,
    )


def make_recorder(admission: Admission) -> ChargeRecorder:
    """Return a recorder that knows no prices and no caps."""
    return ChargeRecorder(admission, lambda: SpendingOptions(caps=(), prices=PriceBook()))
