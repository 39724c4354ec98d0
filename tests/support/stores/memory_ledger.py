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
from foveate.errors import BadOption, StoreUnavailable
from tests.support.stores.ledger_records import NOON, make_standing


@dataclass
class Books:
    """A ledger in memory; `gone` is the number of further operations that fail as unreachable.

    Charges in `never` cannot be stored, and those in `unpriced` only without their dollars.
    """

    gone: float = 0
    entries_: list[Charge] = field(default_factory=list)
    reserved: dict[str, Reservation] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    never: dict[str, Exception] = field(default_factory=dict)
    unpriced: set[str] = field(default_factory=set)
    pause: asyncio.Event | None = None

    async def _reach(self, what: str) -> None:
        self.asked.append(what)
        if self.pause is not None:
            await self.pause.wait()
        if self.gone:
            self.gone -= 1
            raise StoreUnavailable("/data/foveate.sqlite", "is locked by another process")

    def _standing(self, account: str) -> AccountBalance:
        spent = [item.dollars for item in self.entries_ if item.dollars and account in list_accounts(item.call)]
        held = [item.dollars for item in self.reserved.values() if account in item.accounts]
        return make_standing(sum(spent, Decimal(0)), sum(held, Decimal(0)))

    async def reserve(
        self, reservation: Reservation, *, now: float
    ) -> Mapping[str, AccountBalance] | AccountOverLimit:
        await self._reach(f"reserve {reservation.call_id}")
        for account, limit in reservation.limits.items():
            stands = self._standing(account)
            if stands.spent + stands.reserved + reservation.dollars > limit:
                return AccountOverLimit(account=account, limit=limit, balance=stands)
        self.reserved[reservation.call_id] = reservation
        return {account: self._standing(account) for account in reservation.limits}

    async def settle_all(self, charges: Sequence[tuple[Charge, Sequence[str]]]) -> Sequence[bool | Exception]:
        await self._reach(f"settle {' '.join(entry.call.id for entry, _ in charges)}")
        return [self._settled(entry, accounts) for entry, accounts in charges]

    def _settled(self, entry: Charge, accounts: Sequence[str]) -> bool | Exception:
        assert accounts == list_accounts(entry.call)
        if entry.call.id in self.never:
            return self.never[entry.call.id]
        if entry.call.id in self.unpriced and entry.dollars is not None:
            return BadOption("that is no price")
        if any(item.call.id == entry.call.id for item in self.entries_):
            return False
        self.entries_.append(entry)
        self.reserved.pop(entry.call.id, None)
        return True

    async def release(self, call_id: str) -> bool:
        await self._reach(f"release {call_id}")
        return self.reserved.pop(call_id, None) is not None

    async def renew(self, call_ids: Sequence[str], *, expires_at: float) -> Set[str]:
        await self._reach(f"renew {' '.join(sorted(call_ids))}")
        there = {call_id: self.reserved[call_id] for call_id in call_ids if call_id in self.reserved}
        self.reserved |= {call_id: replace(item, expires_at=expires_at) for call_id, item in there.items()}
        return there.keys()

    async def get_balances(self, accounts: Sequence[str], *, now: float) -> Mapping[str, AccountBalance]:
        return {account: self._standing(account) for account in accounts}

    async def sum_charges(
        self, group_by: Sequence[GroupBy], *, since: float | None = None, **_filters: object
    ) -> Sequence[ChargeTotal]:
        return []

    async def list_charges(self, **_filters: object) -> AsyncIterator[Charge]:
        for item in self.entries_:
            yield item

    @property
    def booked(self) -> list[str]:
        return [item.call.id for item in self.entries_]


@dataclass
class Naps:
    """Sleeps that end when a test says so."""

    asked: list[float] = field(default_factory=list)
    over: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def sleep(self, seconds: float) -> None:
        self.asked.append(seconds)
        await self.over.acquire()

    async def end(self) -> None:
        """End one sleep, and wait until its consequences are processed."""
        self.over.release()
        for _ in range(50):
            await asyncio.sleep(0)


def admission(books: Ledger, naps: Naps | None = None, *, most_waiting: int = 10) -> Admission:
    return Admission(
        books,
        clock=lambda: NOON,
        options=AdmissionOptions(lifetime_seconds=60.0, max_waiting=most_waiting),
        sleep=(naps or Naps()).sleep,
    )
