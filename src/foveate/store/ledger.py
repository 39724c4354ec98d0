"""What calls cost and what is reserved for them, as `foveate.cost` asks to have it kept."""

import math
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import Any, cast

from foveate.cost.ledger import AccountBalance, AccountOverLimit, Charge, ChargeTotal, GroupBy, Reservation
from foveate.errors import BadOption
from foveate.store.booking import (
    LedgerOperation,
    LedgerResult,
    Release,
    Renewal,
    ReservationRequest,
    Settlement,
    apply_operations,
    find_balances,
    release_reservations,
    to_balance,
)
from foveate.store.database import Database
from foveate.store.gathering import BatchExecutor
from foveate.store.ledger_rows import (
    LEDGER_COLUMNS,
    build_condition,
    build_sum_query,
    from_ledger_row,
    to_storable_name,
    to_sum,
)

_MAX_BATCH_SIZE = 256
_MAX_EXPIRED_PER_TRANSACTION = 64
"""So many reservations that have run out are freed in one transaction, so that nobody else waits long."""
_EXPIRY_INTERVAL_SECONDS = 60.0
"""And whenever they stand in the way."""
_PAGE_SIZE = 500

_FIND_EXPIRED = f"""
SELECT call_id FROM reservations_v1 WHERE expires_at <= ? ORDER BY expires_at LIMIT {_MAX_EXPIRED_PER_TRANSACTION}
"""

_COUNT_BEFORE = "SELECT count(*) FROM ledger_v1 WHERE at < ?"
_DELETE_BEFORE = f"""
DELETE FROM ledger_v1 WHERE call_id IN (
    SELECT call_id FROM ledger_v1 WHERE at < ? ORDER BY at, call_id LIMIT {_PAGE_SIZE}
)
"""


class SqlLedger:
    """Implements `foveate.cost.ledger.Ledger` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batches: BatchExecutor[LedgerOperation, LedgerResult] = BatchExecutor(
            self._apply, max_items=_MAX_BATCH_SIZE
        )
        self._expired_at = -math.inf

    async def reserve(
        self, reservation: Reservation, *, now: float
    ) -> Mapping[str, AccountBalance] | AccountOverLimit:
        """Take the dollars from all accounts or from none: then the first that has no room is told."""
        request = ReservationRequest.from_reservation(reservation)
        if not self._expired_at <= now < self._expired_at + _EXPIRY_INTERVAL_SECONDS:
            self._expired_at = now
            await self._release_expired(now)
        while True:
            found = cast("Mapping[str, AccountBalance] | AccountOverLimit", await self._batches.submit(request))
            if not isinstance(found, AccountOverLimit) or not await self._release_expired(now):
                return found

    async def settle_all(self, charges: Sequence[tuple[Charge, Sequence[str]]]) -> Sequence[bool | Exception]:
        """Keep what calls cost, book each on its accounts and free what was reserved for it, all in one."""
        settlements = [_to_settlement(charge, accounts) for charge, accounts in charges]
        results = iter(
            await self._batches.submit_all(
                [settlement for settlement in settlements if isinstance(settlement, Settlement)]
            )
        )
        found = [
            settlement if isinstance(settlement, Exception) else next(results) for settlement in settlements
        ]
        return cast("list[bool | Exception]", found)

    async def release(self, call_id: str) -> bool:
        """Free what was reserved for a call that is not billed; False where nothing is."""
        return bool(await self._batches.submit(Release(to_storable_name(call_id))))

    async def renew(self, call_ids: Sequence[str], *, expires_at: float) -> Set[str]:
        """Those of the calls that something is reserved for; it now runs out at `expires_at`."""
        names = {to_storable_name(call_id): call_id for call_id in call_ids}
        found = cast("frozenset[str]", await self._batches.submit(Renewal(list(names), expires_at)))
        return {names[name] for name in found}

    async def get_balances(self, accounts: Sequence[str], *, now: float) -> Mapping[str, AccountBalance]:
        """How accounts stand; one that nothing was ever booked on is at zero."""
        names = {to_storable_name(account): account for account in accounts}
        found = await self._database.read(lambda transaction: find_balances(transaction, names, now))
        return {account: to_balance(*found.get(name, (0, 0))) for name, account in names.items()}

    async def sum_charges(
        self,
        group_by: Sequence[GroupBy],
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[ChargeTotal]:
        """What calls cost, from `since` up to, not with, `until`; days are those of UTC. The dearest first."""
        where_clause, values = build_condition(since, until, agent, session_id)
        found = await self._read(build_sum_query(group_by, where_clause), values)
        sums = [to_sum(row[: len(group_by)], *row[len(group_by) :]) for row in found]
        return sorted(sums, key=lambda total: (-total.dollars, total.group))

    async def list_charges(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Charge]:
        """Every call, the oldest first, read a few at a time."""
        last: tuple[float, str] | None = None
        while True:
            where_clause, values = build_condition(since, until, agent, session_id, after=last)
            statement = (
                f"SELECT {LEDGER_COLUMNS} FROM ledger_v1 {where_clause} ORDER BY at, call_id LIMIT {_PAGE_SIZE}"
            )
            found = await self._read(statement, values)
            for row in found:
                yield from_ledger_row(*row)
            if len(found) < _PAGE_SIZE:
                return
            last = found[-1][1], found[-1][0]

    async def get_charge(self, call_id: str) -> Charge | None:
        """Return one call; None if it is not in the ledger."""
        found = await self._read(
            f"SELECT {LEDGER_COLUMNS} FROM ledger_v1 WHERE call_id = ?", (to_storable_name(call_id),)
        )
        return from_ledger_row(*found[0]) if found else None

    async def count_before(self, *, before: float) -> int:
        """How many calls there are from before that time."""
        ((number,),) = await self._read(_COUNT_BEFORE, (before,))
        return int(number)

    async def delete_before(self, *, before: float) -> int:
        """How many calls from before that time were forgotten, a few at a time. Accounts stand as they did."""
        deleted = 0
        while batch := await self._database.write(
            lambda transaction: transaction.execute(_DELETE_BEFORE, (before,)), is_idempotent=True
        ):
            deleted += batch
        return deleted

    async def _apply(self, operations: Sequence[LedgerOperation]) -> list[LedgerResult | Exception]:
        return await self._database.write(
            lambda transaction: apply_operations(transaction, operations), is_idempotent=True
        )

    async def _release_expired(self, now: float) -> int:
        """How many reservations that have run out were freed; there may be more."""
        found = [call_id for (call_id,) in await self._read(_FIND_EXPIRED, (now,))]
        return (
            await self._database.write(
                lambda transaction: release_reservations(transaction, found), is_idempotent=True
            )
            if found
            else 0
        )

    async def _read(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._database.read(lambda transaction: transaction.fetch_all(statement, values))


def _to_settlement(charge: Charge, accounts: Sequence[str]) -> Settlement | BadOption:
    try:
        return Settlement.from_charge(charge, accounts)
    except BadOption as error:
        return error
