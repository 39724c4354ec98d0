"""A minimal in-memory ledger that records all operations."""

from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import replace
from decimal import Decimal

from foveate.cost.ledger import AccountBalance, AccountOverLimit, Charge, ChargeTotal, GroupBy, Reservation

ZERO = Decimal(0)


class RecordingLedger:
    """Implements `Ledger`; charges of unknown price count as the protocol requires."""

    def __init__(self) -> None:
        self.reserved: list[Reservation] = []
        self.settled: list[Charge] = []
        self.released: list[str] = []
        self.open: dict[str, Reservation] = {}
        self.spent: dict[str, Decimal] = {}

    async def reserve(
        self, reservation: Reservation, *, now: float
    ) -> Mapping[str, AccountBalance] | AccountOverLimit:
        for account, limit in reservation.limits.items():
            standing = self._standing(account)
            if standing.spent + standing.reserved + reservation.dollars > limit:
                return AccountOverLimit(account=account, limit=limit, balance=standing)
        self.reserved.append(reservation)
        self.open[reservation.call_id] = reservation
        return {account: self._standing(account) for account in reservation.limits}

    async def settle_all(self, charges: Sequence[tuple[Charge, Sequence[str]]]) -> Sequence[bool | Exception]:
        return [self._settle(charge, accounts) for charge, accounts in charges]

    def _settle(self, charge: Charge, accounts: Sequence[str]) -> bool:
        if any(known.call.id == charge.call.id for known in self.settled):
            return False
        self.settled.append(charge)
        held = self.open.pop(charge.call.id, None)
        known = charge.charge if charge.dollars is None else charge.dollars
        cost = known if known is not None else held.dollars if held is not None else ZERO
        for account in accounts:
            self.spent[account] = self.spent.get(account, ZERO) + cost
        return True

    async def release(self, call_id: str) -> bool:
        self.released.append(call_id)
        return self.open.pop(call_id, None) is not None

    async def renew(self, call_ids: Sequence[str], *, expires_at: float) -> Set[str]:
        renewed = {call_id: self.open[call_id] for call_id in call_ids if call_id in self.open}
        self.open |= {
            call_id: replace(reservation, expires_at=expires_at) for call_id, reservation in renewed.items()
        }
        return renewed.keys()

    async def get_balances(self, accounts: Sequence[str], *, now: float) -> Mapping[str, AccountBalance]:
        return {account: self._standing(account) for account in accounts}

    async def sum_charges(
        self,
        group_by: Sequence[GroupBy],
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[ChargeTotal]:
        raise NotImplementedError

    def list_charges(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Charge]:
        raise NotImplementedError

    def _standing(self, account: str) -> AccountBalance:
        held = (reservation.dollars for reservation in self.open.values() if account in reservation.accounts)
        return AccountBalance(spent=self.spent.get(account, ZERO), reserved=sum(held, ZERO))
