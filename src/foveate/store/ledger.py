"""What calls cost and what is reserved for them, as `foveate.cost` asks to have it kept.

Each is one short transaction, in which rows are always written in the same order, so that no two wait for each
other: of the ledger, then reservations by their calls, then accounts by their names.
"""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from foveate.cost.ledger import By, Entry, Over, Reservation, Standing, Sum
from foveate.cost.money import MOST_PICODOLLARS, dollars, picodollars_at_most
from foveate.errors import BadOption
from foveate.store.database import Database, Rows
from foveate.store.ledger_rows import (
    ADD_ENTRY,
    COLUMNS,
    amount_of,
    condition,
    entry_of,
    name_of,
    row_of,
    sum_of,
    summing,
)

_AT_ONCE = 64
"""So many reservations that have run out are freed in one transaction, so that nobody else waits long."""
_FREED_EVERY_SECONDS = 60.0
"""And whenever they stand in the way."""
_PAGE = 500

_ADD_RESERVATION = """
INSERT INTO reservations_v1 (call_id, accounts, picodollars, expires_at) VALUES (?, ?, ?, ?)
ON CONFLICT (call_id) DO NOTHING
"""
_TAKE_RESERVATION = "DELETE FROM reservations_v1 WHERE call_id = ? RETURNING accounts, picodollars"
_FIND_EXPIRED = f"""
SELECT call_id FROM reservations_v1 WHERE expires_at <= ? ORDER BY expires_at LIMIT {_AT_ONCE}
"""
# Not one UPDATE, which locks its rows in no order; these are locked one after the other, as they are listed.
# What is spent ends where it could no longer be added to: no cap is as large.
_BOOK = f"""
INSERT INTO accounts_v1 (name, spent, reserved) VALUES {{}}
ON CONFLICT (name) DO UPDATE
SET spent = CASE WHEN accounts_v1.spent > {MOST_PICODOLLARS} - excluded.spent THEN {MOST_PICODOLLARS}
                 ELSE accounts_v1.spent + excluded.spent END,
    reserved = accounts_v1.reserved + excluded.reserved
"""
_TELLING = "RETURNING name, spent, reserved"
_FIND_ACCOUNTS = "SELECT name, spent, reserved FROM accounts_v1 WHERE name IN ({})"


class KeptLedger:
    """Implements `foveate.cost.ledger.Ledger` on a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._freed_at = -math.inf

    async def reserve(self, reservation: Reservation, *, now: float) -> Mapping[str, Standing] | Over:
        """Take the dollars from all accounts or from none: then the first that has no room is told."""
        wanted = _Wanted.of(reservation)
        if not self._freed_at <= now < self._freed_at + _FREED_EVERY_SECONDS:
            self._freed_at = now
            await self._free_expired(now)
        while True:
            try:
                return await self._database.write(lambda rows: _reserve(rows, wanted), again=True)
            except _Full as full:
                if not await self._free_expired(now):
                    return full.over

    async def settle(self, entry: Entry, *, accounts: Sequence[str]) -> bool:
        """Keep what a call cost, book it on its accounts and free what was reserved for it, all in one."""
        row = row_of(entry)
        spent = 0 if entry.dollars is None else amount_of(entry.dollars)
        booked = {name_of(account): spent for account in accounts}

        def write(rows: Rows) -> bool:
            if not rows.change(ADD_ENTRY, row):
                return False
            _, reserved = _freed(rows, [row[1]])
            _book(rows, booked, reserved)
            return True

        return await self._database.write(write, again=True)

    async def release(self, call_id: str) -> bool:
        """Free what was reserved for a call that is not billed; False where nothing is."""

        def write(rows: Rows) -> bool:
            freed, reserved = _freed(rows, [name_of(call_id)])
            _book(rows, {}, reserved)
            return freed > 0

        return await self._database.write(write, again=True)

    async def standing(self, accounts: Sequence[str], *, now: float) -> Mapping[str, Standing]:
        """How accounts stand; one that nothing was ever booked on is at zero."""
        names = {name_of(account): account for account in accounts}
        while await self._free_expired(now):
            pass
        return await self._database.read(lambda rows: _standings(rows, names))

    async def sums(
        self,
        by: Sequence[By],
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[Sum]:
        """What calls cost, from `since` up to, not with, `until`; days are those of UTC. The dearest first."""
        where, values = condition(since, until, agent, session_id)
        found = await self._read(summing(by, where), values)
        sums = [sum_of(row[: len(by)], *row[len(by) :]) for row in found]
        return sorted(sums, key=lambda one: (-one.dollars, one.group))

    async def entries(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Entry]:
        """Every call, the oldest first, read a few at a time."""
        last: tuple[float, str] | None = None
        while True:
            where, values = condition(since, until, agent, session_id, after=last)
            statement = f"SELECT {COLUMNS} FROM ledger_v1 {where} ORDER BY at, call_id LIMIT {_PAGE}"
            found = await self._read(statement, values)
            for row in found:
                yield entry_of(*row)
            if len(found) < _PAGE:
                return
            last = found[-1][1], found[-1][0]

    async def _free_expired(self, now: float) -> int:
        """How many reservations that have run out were freed; there may be more."""
        found = await self._read(_FIND_EXPIRED, (now,))

        def write(rows: Rows) -> int:
            freed, reserved = _freed(rows, [call_id for (call_id,) in found])
            _book(rows, {}, reserved)
            return freed

        return await self._database.write(write, again=True) if found else 0

    async def _read(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return await self._database.read(lambda rows: rows.all(statement, values))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A reservation in whole picodollars and in names that can be kept.

    `limited` leads from these to the names of the accounts that have a limit.
    """

    call_id: str
    amount: int
    names: Sequence[str]
    limits: Mapping[str, int]
    limited: Mapping[str, str]
    expires_at: float

    @classmethod
    def of(cls, reservation: Reservation) -> "_Wanted":
        return cls(
            call_id=name_of(reservation.call_id),
            amount=amount_of(reservation.dollars, rounded=picodollars_at_most),
            names=[name_of(account) for account in reservation.accounts],
            limits={name_of(name): _limit(most) for name, most in reservation.limits.items()},
            limited={name_of(name): name for name in reservation.limits},
            expires_at=reservation.expires_at,
        )


class _Full(Exception):
    """An account has no room."""

    def __init__(self, over: Over) -> None:
        super().__init__()
        self.over = over


def _reserve(rows: Rows, wanted: _Wanted) -> Mapping[str, Standing]:
    """How the accounts with a limit stand then.

    Raises:
        _Full: one of them has no room.
    """
    row = (wanted.call_id, _joined(wanted.names), wanted.amount, wanted.expires_at)
    if not rows.change(_ADD_RESERVATION, row):
        return _standings(rows, wanted.limited)
    statement, values = _booking({}, dict.fromkeys(wanted.names, wanted.amount))
    found = {name: (spent, reserved) for name, spent, reserved in rows.all(statement + _TELLING, values)}
    for name in wanted.names:
        spent, reserved = found[name]
        if reserved > MOST_PICODOLLARS:
            raise BadOption(f"more dollars are reserved of {name} than can be kept")
        if spent + reserved > wanted.limits.get(name, math.inf):
            raise _Full(
                Over(
                    account=wanted.limited[name],
                    limit=dollars(wanted.limits[name]),
                    standing=_standing(spent, reserved - wanted.amount),
                )
            )
    return {account: _standing(*found[name]) for name, account in wanted.limited.items()}


def _freed(rows: Rows, call_ids: Sequence[str]) -> tuple[int, dict[str, int]]:
    """For how many of these calls something was reserved, which it no longer is, and what that changes."""
    taken = [row for call_id in sorted(call_ids) for row in rows.all(_TAKE_RESERVATION, (call_id,))]
    changes: dict[str, int] = {}
    for accounts, amount in taken:
        for name in _parted(accounts):
            changes[name] = changes.get(name, 0) - amount
    return len(taken), changes


def _book(rows: Rows, spent: Mapping[str, int], reserved: Mapping[str, int]) -> None:
    """Have so much more spent and reserved of accounts."""
    if spent or reserved:
        rows.change(*_booking(spent, reserved))


def _booking(spent: Mapping[str, int], reserved: Mapping[str, int]) -> tuple[str, list[Any]]:
    names = sorted(spent.keys() | reserved.keys())
    values = [one for name in names for one in (name, spent.get(name, 0), reserved.get(name, 0))]
    return _book_statement(len(names)), values


@lru_cache(maxsize=64)
def _book_statement(accounts: int) -> str:
    return _BOOK.format(", ".join(["(?, ?, ?)"] * accounts))


@lru_cache(maxsize=256)
def _limit(most: Decimal) -> int:
    """A cap in whole picodollars, of which there are few."""
    return -picodollars_at_most(-most)


def _standings(rows: Rows, names: Mapping[str, str]) -> dict[str, Standing]:
    """How accounts stand, by what `names` lead to."""
    marks = ", ".join("?" * len(names))
    found = {name: rest for name, *rest in rows.all(_FIND_ACCOUNTS.format(marks), list(names))} if names else {}
    return {account: _standing(*found.get(name, (0, 0))) for name, account in names.items()}


def _standing(spent: int, reserved: int) -> Standing:
    return Standing(spent=dollars(spent), reserved=dollars(reserved))


def _joined(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


def _parted(names: str) -> list[str]:
    return msgspec.json.decode(names, type=list[str])
