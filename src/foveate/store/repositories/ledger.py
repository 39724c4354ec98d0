"""Stores charges, account balances, reservations and corrections.

Many operations are applied in one transaction: a commit costs far more than a statement, and on a server
an update of an account blocks others until the commit. Rows are always locked in the same order, so that
there are no deadlocks: ledger, reservations, accounts by name, totals (`rollups.py`). A correction is
recorded in the transaction that applies it.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast
from uuid import uuid4

import msgspec

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import (
    AccountBalance,
    AccountOverLimit,
    Charge,
    ChargeTotal,
    Correction,
    GroupBy,
    Reservation,
)
from foveate.cost.money import MAX_PICODOLLARS, MIN_DOLLARS, to_dollars, to_picodollars_rounded_up
from foveate.errors import BadOption
from foveate.store.batching import BatchExecutor
from foveate.store.database import (
    Database,
    Transaction,
    batch_inserts,
    build_where_clause,
    enqueue_inserts,
    group_placeholders,
)
from foveate.store.repositories.ledger_rows import (
    ADD_CHARGES,
    CHARGED_INDEX,
    LEDGER_COLUMNS,
    build_condition,
    build_sum_query,
    from_ledger_row,
    read_amount,
    to_ledger_row,
    to_storable_name,
    to_storable_names,
    to_sum,
)
from foveate.store.repositories.rollups import add_charges, change_charge

_ADD_RESERVATIONS = """
INSERT INTO reservations_v1 (call_id, accounts, picodollars, expires_at) VALUES {}
ON CONFLICT (call_id) DO NOTHING RETURNING call_id
"""
_TAKE_RESERVATIONS = (
    "DELETE FROM reservations_v1 WHERE call_id IN ({}) RETURNING call_id, accounts, picodollars"
)
_EXTEND_RESERVATIONS = "UPDATE reservations_v1 SET expires_at = ? WHERE call_id IN ({}) RETURNING call_id"
# Not an UPDATE, which locks rows in any order; an INSERT locks them in the order of its values.
# The spent amount is clamped to the largest value that can still be added to; no cap is that large.
_UPDATE_ACCOUNTS = f"""
INSERT INTO accounts_v1 (name, spent, reserved) VALUES {{}}
ON CONFLICT (name) DO UPDATE
SET spent = CASE WHEN accounts_v1.spent > {MAX_PICODOLLARS} - excluded.spent THEN {MAX_PICODOLLARS}
                 ELSE accounts_v1.spent + excluded.spent END,
    reserved = accounts_v1.reserved + excluded.reserved
"""
_UPDATE_AND_RETURN_ACCOUNTS = _UPDATE_ACCOUNTS + "RETURNING name, spent, reserved"
# One statement, so that both parts are consistent.
_FIND_BALANCES = """
SELECT name, spent, reserved, 0 FROM accounts_v1 WHERE name IN ({})
UNION ALL SELECT accounts, 0, picodollars, 1 FROM reservations_v1 WHERE expires_at <= ?
"""
_SET_CHARGED_AMOUNT = "UPDATE ledger_v1 SET charged_picodollars = ? WHERE call_id = ?"
_MIN_AMOUNT = to_picodollars_rounded_up(MIN_DOLLARS)
Amounts = dict[str, int]
_ReservedAmount = tuple[Sequence[str], int]
"""Accounts, and the amount reserved in each of them."""
Balances = dict[str, tuple[int, int]]
"""Spent and reserved picodollars, by account name."""
_MAX_BATCH_SIZE = 256
_MAX_EXPIRED_PER_TRANSACTION = 64
"""Keeps transactions short."""
_EXPIRY_INTERVAL_SECONDS = 60.0
"""Expired reservations are also released when a reservation does not fit."""
_PAGE_SIZE = 500
_FIND_EXPIRED = f"""
SELECT call_id FROM reservations_v1 WHERE expires_at <= ? ORDER BY expires_at
LIMIT {_MAX_EXPIRED_PER_TRANSACTION}
"""
_COUNT_BEFORE = "SELECT count(*) FROM ledger_v1 WHERE at < ?"
_DELETE_BEFORE = f"""
DELETE FROM ledger_v1 WHERE call_id IN (
    SELECT call_id FROM ledger_v1 WHERE at < ? ORDER BY at, call_id LIMIT {_PAGE_SIZE}
)
"""


class LedgerSettlement(msgspec.Struct, frozen=True):
    """A charge as a ledger row, and what it adds to its accounts; None means the reserved amount."""

    row: tuple[Any, ...]
    names: Sequence[str]
    spent: int | None

    @classmethod
    def from_charge(cls, charge: Charge, accounts: Sequence[str]) -> "LedgerSettlement":
        row = to_ledger_row(charge)
        return cls(row, to_storable_names(*accounts), row[CHARGED_INDEX])

    @property
    def call_id(self) -> str:
        return str(self.row[1])


@dataclass(frozen=True, slots=True)
class Release:
    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationRequest:
    """A reservation in whole picodollars, with storable names.

    `account_by_name` maps these names back to the accounts that have a limit.
    """

    call_id: str
    amount: int
    names: Sequence[str]
    limits: Mapping[str, int]
    account_by_name: Mapping[str, str]
    expires_at: float

    @classmethod
    def from_reservation(cls, reservation: Reservation) -> "ReservationRequest":
        if not math.isfinite(reservation.expires_at):
            raise BadOption(f"a reservation must expire at a finite time, not at {reservation.expires_at}")
        return cls(
            call_id=to_storable_name(reservation.call_id),
            amount=read_amount(reservation.dollars, convert=to_picodollars_rounded_up),
            names=to_storable_names(*reservation.accounts),
            limits={
                to_storable_name(name): _limit_picodollars(limit) for name, limit in reservation.limits.items()
            },
            account_by_name={to_storable_name(name): name for name in reservation.limits},
            expires_at=reservation.expires_at,
        )


@dataclass(frozen=True, slots=True)
class Renewal:
    call_ids: Sequence[str]
    expires_at: float


LedgerOperation = LedgerSettlement | Release | ReservationRequest | Renewal
LedgerResult = bool | Mapping[str, AccountBalance] | AccountOverLimit | frozenset[str]


def apply_operations(
    transaction: Transaction, operations: Sequence[LedgerOperation]
) -> list[LedgerResult | Exception]:
    """Apply operations and return a result for each.

    The result of a settlement or release is whether it was new; of a reservation, the balances of limited
    accounts or the account that is over its limit; of a renewal, the calls that have a reservation. Settlements
    and releases are applied before renewals and reservations. A reservation that is released later in the batch
    is not made: its caller was cancelled while the store did not respond.
    """
    settlements = [operation for operation in operations if isinstance(operation, LedgerSettlement)]
    requests = [operation for operation in operations if isinstance(operation, ReservationRequest)]
    new_settlements = _add_charges(transaction, settlements) if settlements else {}
    released = {operation.call_id for operation in operations if isinstance(operation, Release)}
    removed_reservations = _remove_reservations(
        transaction, {operation.call_id for operation in settlements} | released
    )
    _record_charged_amounts(transaction, new_settlements.values(), removed_reservations)
    renewed = {
        id(operation): _extend_reservations(transaction, operation)
        for operation in operations
        if isinstance(operation, Renewal)
    }
    new = _add_reservations(transaction, requests) if requests else {}
    reserved = _negate_reserved(removed_reservations.values())
    accounts = _LockedAccounts(
        transaction,
        _sum_spent(new_settlements.values(), removed_reservations),
        reserved,
        requests,
        new.values(),
    )
    withdrawn = _find_withdrawn(operations) & new.keys()
    reserved_results = {
        call_id: accounts.reserve(operation) for call_id, operation in new.items() if call_id not in withdrawn
    }
    rejected = {
        call_id
        for call_id, reservation_result in reserved_results.items()
        if isinstance(reservation_result, AccountOverLimit | BadOption)
    }
    _remove_reservations(transaction, withdrawn | rejected)
    accounts.save(transaction)
    charge_rows = [operation.row for operation in new_settlements.values()]

    results: list[LedgerResult | Exception] = []
    for operation in operations:
        match operation:
            case LedgerSettlement():
                # Of two settlements of one call in a transaction, the first counts.
                results.append(new_settlements.pop(operation.call_id, None) is not None)
            case Release():
                is_removed = removed_reservations.pop(operation.call_id, None) is not None
                results.append(is_removed or operation.call_id in withdrawn)
            case ReservationRequest():
                results.append(
                    reserved_results[operation.call_id]
                    if operation.call_id in reserved_results
                    else accounts.limited_balances(operation)
                )
            case Renewal():
                results.append(renewed[id(operation)])
    if charge_rows:
        add_charges(transaction, charge_rows)
    return results


def _decode_charges(rows: Sequence[tuple[Any, ...]]) -> list[Charge]:
    return [from_ledger_row(*row) for row in rows]


def _find_withdrawn(operations: Sequence[LedgerOperation]) -> set[str]:
    """Return the calls that are reserved and then released."""
    requested: set[str] = set()
    withdrawn: set[str] = set()
    for operation in operations:
        if isinstance(operation, ReservationRequest):
            requested.add(operation.call_id)
        elif isinstance(operation, Release) and operation.call_id in requested:
            withdrawn.add(operation.call_id)
    return withdrawn


def release_reservations(transaction: Transaction, call_ids: Iterable[str]) -> int:
    removed_reservations = _remove_reservations(transaction, call_ids)
    _update_accounts(transaction, {}, _negate_reserved(removed_reservations.values()))
    return len(removed_reservations)


def find_balances(transaction: Transaction, names: Iterable[str], now: float) -> Balances:
    """Return the balances of accounts that have one.

    Reservations that have expired by `now` are not counted. They are not deleted here, since the clock of the
    process that made them may differ.
    """
    balances: Balances = {}
    for placeholders, group in group_placeholders(sorted(names)):
        rows = transaction.fetch_all(_FIND_BALANCES.format(placeholders), (*group, now))
        expired = _negate_reserved(
            (_decode_names(names), amount) for names, _, amount, is_expired in rows if is_expired
        )
        balances |= {
            name: (spent, reserved + expired.get(name, 0))
            for name, spent, reserved, is_expired in rows
            if not is_expired
        }
    return balances


def to_balance(spent: int, reserved: int) -> AccountBalance:
    return AccountBalance(spent=to_dollars(spent), reserved=to_dollars(reserved))


class _LockedAccounts:
    """The accounts of reservations after settlements and releases, locked until the transaction ends."""

    def __init__(
        self,
        transaction: Transaction,
        spent: Amounts,
        reserved: Amounts,
        requests: Sequence[ReservationRequest],
        new: Iterable[ReservationRequest],
    ) -> None:
        """Update and lock the accounts, and reserve the amounts of `new` requests in the same statement.

        Most requests fit within their limits; `save` gives back what does not.
        """
        self._reserved: Amounts = {}
        self._reserved_in_advance: Amounts = {}
        self._balances: Balances = {}
        if not requests:
            _update_accounts(transaction, spent, reserved)
            return
        advance = _sum_by_account((request.names, request.amount) for request in new)
        if max(advance.values(), default=0) <= MAX_PICODOLLARS:  # the largest value that a database can add
            self._reserved_in_advance = advance
        # This locks accounts that do not change, too.
        for name in {name for request in requests for name in request.names}:
            reserved[name] = reserved.get(name, 0) + self._reserved_in_advance.get(name, 0)
        for name, (has_spent, has_reserved) in _update_and_read_accounts(transaction, spent, reserved).items():
            self._balances[name] = has_spent, has_reserved - self._reserved_in_advance.get(name, 0)

    def reserve(
        self, request: ReservationRequest
    ) -> Mapping[str, AccountBalance] | AccountOverLimit | BadOption:
        after = {name: self._balance_with(name, request.amount) for name in request.names}
        for name, (spent, reserved) in after.items():
            if spent + reserved > request.limits.get(name, math.inf):
                before = to_balance(*self._balances[name])
                return AccountOverLimit(
                    account=request.account_by_name[name],
                    limit=to_dollars(request.limits[name]),
                    balance=before,
                )
            if reserved > MAX_PICODOLLARS:
                return BadOption(f"the reservations of {name} exceed the largest amount that can be stored")
        self._balances.update(after)
        for name in request.names:
            self._reserved[name] = self._reserved.get(name, 0) + request.amount
        return self.limited_balances(request)

    def limited_balances(self, request: ReservationRequest) -> Mapping[str, AccountBalance]:
        return {account: to_balance(*self._balances[name]) for name, account in request.account_by_name.items()}

    def save(self, transaction: Transaction) -> None:
        """Write the reserved amounts where they differ from what was reserved in advance."""
        if self._reserved == self._reserved_in_advance:
            return
        names = self._reserved.keys() | self._reserved_in_advance.keys()
        _update_accounts(
            transaction,
            {},
            {name: self._reserved.get(name, 0) - self._reserved_in_advance.get(name, 0) for name in names},
        )

    def _balance_with(self, name: str, amount: int) -> tuple[int, int]:
        spent, reserved = self._balances[name]
        return spent, reserved + amount


def _add_reservations(
    transaction: Transaction, requests: Sequence[ReservationRequest]
) -> dict[str, ReservationRequest]:
    """Insert reservations, and return those that are new, by call id."""
    first: dict[str, ReservationRequest] = {}
    for request in requests:
        first.setdefault(request.call_id, request)
    new = [
        (request.call_id, _encode_names(request.names), request.amount, request.expires_at)
        for request in sorted(first.values(), key=lambda request: request.call_id)
    ]
    groups = batch_inserts(_ADD_RESERVATIONS, new)
    added = {call_id for statement, batch in groups for (call_id,) in transaction.fetch_all(statement, batch)}
    return {call_id: request for call_id, request in first.items() if call_id in added}


def _add_charges(
    transaction: Transaction, settlements: Sequence[LedgerSettlement]
) -> dict[str, LedgerSettlement]:
    """Insert charges, and return those that are new, by call id."""
    first: dict[str, LedgerSettlement] = {}
    for settlement in settlements:
        first.setdefault(settlement.call_id, settlement)
    groups = batch_inserts(ADD_CHARGES, [first[call_id].row for call_id in sorted(first)])
    new = [call_id for statement, batch in groups for (call_id,) in transaction.fetch_all(statement, batch)]
    return {call_id: first[call_id] for call_id in new}


def _remove_reservations(transaction: Transaction, call_ids: Iterable[str]) -> dict[str, _ReservedAmount]:
    groups = group_placeholders(sorted(call_ids))
    removed = [
        row
        for placeholders, group in groups
        for row in transaction.fetch_all(_TAKE_RESERVATIONS.format(placeholders), group)
    ]
    return {call_id: (_decode_names(accounts), amount) for call_id, accounts, amount in removed}


def _extend_reservations(transaction: Transaction, renewal: Renewal) -> frozenset[str]:
    groups = group_placeholders(sorted(renewal.call_ids))
    rows = [
        row
        for placeholders, group in groups
        for row in transaction.fetch_all(
            _EXTEND_RESERVATIONS.format(placeholders), (renewal.expires_at, *group)
        )
    ]
    return frozenset(call_id for (call_id,) in rows)


def _sum_spent(
    settlements: Iterable[LedgerSettlement], removed_reservations: Mapping[str, _ReservedAmount]
) -> Amounts:
    spent: Amounts = {}
    for settlement in settlements:
        amount = (
            _charged_amount(removed_reservations.get(settlement.call_id))
            if settlement.spent is None
            else settlement.spent
        )
        for name in settlement.names:
            spent[name] = min(spent.get(name, 0) + amount, MAX_PICODOLLARS)
    return spent


def _record_charged_amounts(
    transaction: Transaction,
    settlements: Iterable[LedgerSettlement],
    removed_reservations: Mapping[str, _ReservedAmount],
) -> None:
    for settlement in settlements:
        if settlement.spent is None:
            transaction.enqueue(
                _SET_CHARGED_AMOUNT,
                (_charged_amount(removed_reservations.get(settlement.call_id)), settlement.call_id),
            )


def _charged_amount(reserved: _ReservedAmount | None) -> int:
    """Return the charge of a call of unknown price: all that was reserved, since it may have cost that much."""
    _, amount = reserved or ((), 0)
    return amount if amount > _MIN_AMOUNT else 0


def _negate_reserved(removed_reservations: Iterable[_ReservedAmount]) -> Amounts:
    return _sum_by_account((names, -amount) for names, amount in removed_reservations)


def _sum_by_account(amounts: Iterable[_ReservedAmount]) -> Amounts:
    sums: Amounts = {}
    for names, amount in amounts:
        for name in names:
            sums[name] = sums.get(name, 0) + amount
    return sums


def _update_accounts(transaction: Transaction, spent: Amounts, reserved: Amounts) -> None:
    enqueue_inserts(transaction, _UPDATE_ACCOUNTS, _account_rows(spent, reserved))


def _update_and_read_accounts(transaction: Transaction, spent: Amounts, reserved: Amounts) -> Balances:
    groups = batch_inserts(_UPDATE_AND_RETURN_ACCOUNTS, _account_rows(spent, reserved))
    rows = [row for statement, batch in groups for row in transaction.fetch_all(statement, batch)]
    return {name: (spent, reserved) for name, spent, reserved in rows}


def _account_rows(spent: Amounts, reserved: Amounts) -> list[tuple[str, int, int]]:
    return [
        (name, spent.get(name, 0), reserved.get(name, 0)) for name in sorted(spent.keys() | reserved.keys())
    ]


@lru_cache(maxsize=256)
def _limit_picodollars(limit: Decimal) -> int:
    """Convert a limit to whole picodollars, rounding down. Cached, because there are few limits."""
    return -to_picodollars_rounded_up(-limit)


def _encode_names(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


def _decode_names(names: str) -> list[str]:
    return msgspec.json.decode(names, type=list[str])


class SqlLedger:
    """`foveate.cost.ledger.Ledger` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._batches: BatchExecutor[LedgerOperation, LedgerResult] = BatchExecutor(
            self._apply, max_items=_MAX_BATCH_SIZE
        )
        self._expired_at = -math.inf

    async def reserve(
        self, reservation: Reservation, *, now: float
    ) -> Mapping[str, AccountBalance] | AccountOverLimit:
        request = ReservationRequest.from_reservation(reservation)
        if not self._expired_at <= now < self._expired_at + _EXPIRY_INTERVAL_SECONDS:
            self._expired_at = now
            await self._release_expired(now)
        while True:
            result = cast(
                "Mapping[str, AccountBalance] | AccountOverLimit", await self._batches.submit(request)
            )
            if not isinstance(result, AccountOverLimit) or not await self._release_expired(now):
                return result

    async def settle_all(self, charges: Sequence[tuple[Charge, Sequence[str]]]) -> Sequence[bool | Exception]:
        settlements = [_to_settlement(charge, accounts) for charge, accounts in charges]
        results = iter(
            await self._batches.submit_all(
                [settlement for settlement in settlements if isinstance(settlement, LedgerSettlement)]
            )
        )
        found = [
            settlement if isinstance(settlement, Exception) else next(results) for settlement in settlements
        ]
        return cast("list[bool | Exception]", found)

    async def release(self, call_id: str) -> bool:
        return bool(await self._batches.submit(Release(to_storable_name(call_id))))

    async def renew(self, call_ids: Sequence[str], *, expires_at: float) -> Set[str]:
        names = {to_storable_name(call_id): call_id for call_id in call_ids}
        renewed_names = cast("frozenset[str]", await self._batches.submit(Renewal(list(names), expires_at)))
        return {names[name] for name in renewed_names}

    async def get_balances(self, accounts: Sequence[str], *, now: float) -> Mapping[str, AccountBalance]:
        names = {to_storable_name(account): account for account in accounts}
        balances = await self._database.read(lambda transaction: find_balances(transaction, names, now))
        return {account: to_balance(*balances.get(name, (0, 0))) for name, account in names.items()}

    async def sum_charges(
        self,
        group_by: Sequence[GroupBy],
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[ChargeTotal]:
        where_clause, values = build_condition(since, until, agent, session_id)
        rows = await self._read(build_sum_query(group_by, where_clause), values)
        sums = [to_sum(row[: len(group_by)], *row[len(group_by) :]) for row in rows]
        return sorted(sums, key=lambda total: (-total.dollars, total.group))

    async def list_charges(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Charge]:
        last: tuple[float, str] | None = None
        while True:
            where_clause, values = build_condition(since, until, agent, session_id, after=last)
            statement = (
                f"SELECT {LEDGER_COLUMNS} FROM ledger_v1 {where_clause} ORDER BY at, call_id LIMIT {_PAGE_SIZE}"
            )
            rows = await self._read(statement, values)
            # Decoding a page blocks the event loop for up to 50 ms.
            for charge in await asyncio.to_thread(_decode_charges, rows):
                yield charge
            if len(rows) < _PAGE_SIZE:
                return
            last = rows[-1][1], rows[-1][0]

    async def get_charge(self, call_id: str) -> Charge | None:
        rows = await self._read(
            f"SELECT {LEDGER_COLUMNS} FROM ledger_v1 WHERE call_id = ?", (to_storable_name(call_id),)
        )
        return from_ledger_row(*rows[0]) if rows else None

    async def count_before(self, *, before: float) -> int:
        ((number,),) = await self._read(_COUNT_BEFORE, (before,))
        return int(number)

    async def delete_before(self, *, before: float) -> int:
        """Delete the charges before a time, in batches, and return how many. Account balances do not change."""
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
        call_ids = [call_id for (call_id,) in await self._read(_FIND_EXPIRED, (now,))]
        return (
            await self._database.write(
                lambda transaction: release_reservations(transaction, call_ids), is_idempotent=True
            )
            if call_ids
            else 0
        )

    async def _read(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._database.read(lambda transaction: transaction.fetch_all(statement, values))


def _to_settlement(charge: Charge, accounts: Sequence[str]) -> LedgerSettlement | BadOption:
    try:
        return LedgerSettlement.from_charge(charge, accounts)
    except BadOption as error:
        return error


# Change nothing, but lock the row until this transaction ends.
_LOCK_CALL = "UPDATE ledger_v1 SET at = at WHERE call_id = ?"
_LOCK_ACCOUNT = "UPDATE accounts_v1 SET spent = spent WHERE name = ?"
_FIND_CALL = f"SELECT {LEDGER_COLUMNS} FROM ledger_v1 WHERE call_id = ?"
_CORRECT_CALL = """
UPDATE ledger_v1 SET picodollars = ?, charged_picodollars = ?, simulation_error = ?, is_inherited = 0,
    is_possibly_charged = 0
WHERE call_id = ?
"""
_CHANGE_ACCOUNT = f"""
INSERT INTO accounts_v1 (name, spent, reserved) VALUES (?, ?, 0)
ON CONFLICT (name) DO UPDATE
SET spent = CASE WHEN accounts_v1.spent + ? < 0 THEN 0
                 WHEN accounts_v1.spent > {MAX_PICODOLLARS} - ? THEN {MAX_PICODOLLARS}
                 ELSE accounts_v1.spent + ? END
"""
_FIND_ACCOUNT = "SELECT spent FROM accounts_v1 WHERE name = ?"
_SET_ACCOUNT = "UPDATE accounts_v1 SET spent = ? WHERE name = ?"
_CORRECTION_COLUMNS = (
    "id, at, call_id, agent, session_id, account, before_picodollars, charged_picodollars,"
    " after_picodollars, reason"
)
_ADD_CORRECTION = f"""
INSERT INTO corrections_v1 ({_CORRECTION_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO NOTHING
"""


class SqlCorrections:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def correct_call(self, call_id: str, to: Decimal, *, reason: str, at: float) -> Correction | None:
        """Set what a call cost, and change its accounts by the difference; None if there is no such call.

        Raises:
            BadOption: `to` is not a valid amount.
        """
        amount, id_ = read_amount(to), uuid4().hex
        return await self._database.write(
            lambda transaction: _correct_call(
                transaction, to_storable_name(call_id), amount, _CorrectionNote(id_, at, reason)
            ),
            is_idempotent=True,
        )

    async def correct_account(self, account: str, to: Decimal, *, reason: str, at: float) -> Correction | None:
        """Set what an account has spent; None if nothing was ever charged to it.

        Raises:
            BadOption: `to` is not a valid amount.
        """
        amount, id_ = read_amount(to), uuid4().hex
        return await self._database.write(
            lambda transaction: _correct_account(
                transaction, to_storable_name(account), amount, _CorrectionNote(id_, at, reason)
            ),
            is_idempotent=True,
        )

    async def find(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        call_id: str | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[Correction]:
        """Return corrections made from `since` until before `until`, oldest first."""
        where_clause, values = build_where_clause(
            {
                "at >= ?": None if since is None else (since,),
                "at < ?": None if until is None else (until,),
                "call_id = ?": None if call_id is None else (to_storable_name(call_id),),
                "agent = ?": None if agent is None else (to_storable_name(agent),),
                "session_id = ?": None if session_id is None else (to_storable_name(session_id),),
            }
        )
        statement = f"SELECT {_CORRECTION_COLUMNS} FROM corrections_v1 {where_clause} ORDER BY at, id"
        rows = await self._database.read(lambda transaction: transaction.fetch_all(statement, values))
        return [_to_correction(*row) for row in rows]


class _CorrectionNote:
    def __init__(self, id_: str, at: float, reason: str) -> None:
        self.id, self.at, self.reason = id_, at, reason.encode("utf-8", "replace")


def _correct_call(
    transaction: Transaction, call_id: str, amount: int, note: _CorrectionNote
) -> Correction | None:
    transaction.execute(_LOCK_CALL, (call_id,))
    rows = transaction.fetch_all(_FIND_CALL, (call_id,))
    if not rows:
        return None
    columns = dict(zip(_LEDGER_COLUMN_NAMES, rows[0], strict=True))
    before, charged = columns["picodollars"], columns["charged_picodollars"]
    charged = before if charged is None else charged  # earlier versions only stored the cost
    simulation_error = columns["simulation_error"]
    if simulation_error is not None and before is not None:  # the cost beyond what was simulated
        simulation_error += amount - before
    corrected = columns | {
        "picodollars": amount,
        "charged_picodollars": amount,
        "simulation_error": simulation_error,
        "is_inherited": 0,
        "is_possibly_charged": 0,
    }
    transaction.execute(_CORRECT_CALL, (amount, amount, simulation_error, call_id))
    charge = from_ledger_row(*rows[0])
    if charged is not None:
        change = amount - charged
        for name in sorted(to_storable_names(*list_accounts(charge.call))):
            transaction.execute(_CHANGE_ACCOUNT, (name, max(change, 0), change, change, change))
    change_charge(transaction, to_ledger_row(charge), to_ledger_row(from_ledger_row(*corrected.values())))
    call = charge.call
    return _record_correction(
        transaction, note, (call.id, call.agent, call.session_id, "", before, charged, amount)
    )


_LEDGER_COLUMN_NAMES = [name.strip() for name in LEDGER_COLUMNS.split(",")]


def _correct_account(
    transaction: Transaction, account: str, amount: int, note: _CorrectionNote
) -> Correction | None:
    transaction.execute(_LOCK_ACCOUNT, (account,))
    rows = transaction.fetch_all(_FIND_ACCOUNT, (account,))
    if not rows:
        return None
    ((before,),) = rows
    transaction.execute(_SET_ACCOUNT, (amount, account))
    return _record_correction(transaction, note, ("", "", "", account, before, None, amount))


def _record_correction(transaction: Transaction, note: _CorrectionNote, values: tuple[Any, ...]) -> Correction:
    row: tuple[Any, ...] = (note.id, note.at, *values, note.reason)
    transaction.execute(_ADD_CORRECTION, row)
    return _to_correction(*row)


def _to_correction(
    id_: str,
    at: float,
    call_id: str,
    agent: str,
    session_id: str,
    account: str,
    before: int | None,
    charged: int | None,
    after: int,
    reason: bytes,
) -> Correction:
    return Correction(
        id=id_,
        at=at,
        call_id=call_id,
        agent=agent,
        session_id=session_id,
        account=account,
        before=None if before is None else to_dollars(before),
        charged=None if charged is None else to_dollars(charged),
        after=to_dollars(after),
        reason=reason.decode("utf-8", "replace"),
    )
