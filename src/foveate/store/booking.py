"""Reserving, renewing, settling and releasing, for many calls in one transaction.

A commit costs many times what a statement does, and on a server whoever books on an account keeps others from
it until then. Rows are always locked in the same order, so that no two wait for each other: those of the
ledger, then reservations, then accounts by their names, then totals (`adding.py`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec

from foveate.cost.ledger import Entry, Over, Reservation, Standing
from foveate.cost.money import LEAST_DOLLARS, MOST_PICODOLLARS, dollars, picodollars_at_most
from foveate.errors import BadOption
from foveate.store.adding import add_bills
from foveate.store.database import Rows, in_groups, in_rows
from foveate.store.ledger_rows import ADD_ENTRIES, CHARGED_AT, amount_of, name_of, names_of, row_of

_ADD_RESERVATIONS = """
INSERT INTO reservations_v1 (call_id, accounts, picodollars, expires_at) VALUES {}
ON CONFLICT (call_id) DO NOTHING RETURNING call_id
"""
_TAKE_RESERVATIONS = (
    "DELETE FROM reservations_v1 WHERE call_id IN ({}) RETURNING call_id, accounts, picodollars"
)
_RENEW = "UPDATE reservations_v1 SET expires_at = ? WHERE call_id IN ({}) RETURNING call_id"
# Not one UPDATE, which locks its rows in no order; these are locked one after the other, as they are listed.
# What is spent ends where it could no longer be added to: no cap is as large.
_BOOK = f"""
INSERT INTO accounts_v1 (name, spent, reserved) VALUES {{}}
ON CONFLICT (name) DO UPDATE
SET spent = CASE WHEN accounts_v1.spent > {MOST_PICODOLLARS} - excluded.spent THEN {MOST_PICODOLLARS}
                 ELSE accounts_v1.spent + excluded.spent END,
    reserved = accounts_v1.reserved + excluded.reserved
"""
_BOOK_AND_TELL = _BOOK + "RETURNING name, spent, reserved"
# In one statement, so that both are as they were at one moment.
_FIND_STANDINGS = """
SELECT name, spent, reserved, 0 FROM accounts_v1 WHERE name IN ({})
UNION ALL SELECT accounts, 0, picodollars, 1 FROM reservations_v1 WHERE expires_at <= ?
"""

_KEEP_CHARGED = "UPDATE ledger_v1 SET charged_picodollars = ? WHERE call_id = ?"

_LEAST = picodollars_at_most(LEAST_DOLLARS)

Amounts = dict[str, int]
_Taken = tuple[Sequence[str], int]
"""Accounts, and what is reserved of each of them."""
Standings = dict[str, tuple[int, int]]
"""By the names of accounts: what is spent and what is reserved, in picodollars."""


class Settlement(msgspec.Struct, frozen=True):
    """A bill as a row, and what it adds to accounts; None: what was reserved for it."""

    row: tuple[Any, ...]
    names: Sequence[str]
    spent: int | None

    @classmethod
    def of(cls, entry: Entry, accounts: Sequence[str]) -> "Settlement":
        """The same of an entry."""
        row = row_of(entry)
        return cls(row, names_of(*accounts), row[CHARGED_AT])

    @property
    def call_id(self) -> str:
        """The call that it is for."""
        return str(self.row[1])


@dataclass(frozen=True, slots=True)
class Release:
    """A call that is not billed."""

    call_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
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
    def of(cls, reservation: Reservation) -> "Wanted":
        """The same of a reservation."""
        if not math.isfinite(reservation.expires_at):
            raise BadOption(f"a reservation runs out at some time, not at {reservation.expires_at}")
        return cls(
            call_id=name_of(reservation.call_id),
            amount=amount_of(reservation.dollars, rounded=picodollars_at_most),
            names=names_of(*reservation.accounts),
            limits={name_of(name): _limit(most) for name, most in reservation.limits.items()},
            limited={name_of(name): name for name in reservation.limits},
            expires_at=reservation.expires_at,
        )


@dataclass(frozen=True, slots=True)
class Renewal:
    """Calls that are still under way, and until when what is reserved for them holds from now on."""

    call_ids: Sequence[str]
    expires_at: float


Asked = Settlement | Release | Wanted | Renewal
Answer = bool | Mapping[str, Standing] | Over | frozenset[str]


def book(rows: Rows, asked: Sequence[Asked]) -> list[Answer | Exception]:
    """What came of each: whether it is settled or released now, and how accounts stand, or which has no room.

    Of a renewal: for which of its calls something is reserved. What is settled and released is, before anything
    is renewed or reserved.
    """
    settlements = [one for one in asked if isinstance(one, Settlement)]
    wanted = [one for one in asked if isinstance(one, Wanted)]
    settled = _add_entries(rows, settlements) if settlements else {}
    released = {one.call_id for one in asked if isinstance(one, Release)}
    freed = _take(rows, {one.call_id for one in settlements} | released)
    _keep_charged(rows, settled.values(), freed)
    renewed = {id(one): _renew(rows, one) for one in asked if isinstance(one, Renewal)}
    new = _add_reservations(rows, wanted) if wanted else {}
    less = _less_reserved(freed.values())
    accounts = _Accounts(rows, _spent(settled.values(), freed), less, wanted, new.values())
    taken = {call_id: accounts.take(one) for call_id, one in new.items()}
    _take(rows, [call_id for call_id, found in taken.items() if isinstance(found, Over | BadOption)])
    accounts.keep(rows)
    bills = [one.row for one in settled.values()]

    answers: list[Answer | Exception] = []
    for one in asked:
        match one:
            case Settlement():
                # Of two for the same call in one transaction, the first is the one.
                answers.append(settled.pop(one.call_id, None) is not None)
            case Release():
                answers.append(freed.pop(one.call_id, None) is not None)
            case Wanted():
                answers.append(taken[one.call_id] if one.call_id in taken else accounts.tell(one))
            case Renewal():
                answers.append(renewed[id(one)])
    if bills:
        add_bills(rows, bills)
    return answers


def free(rows: Rows, call_ids: Iterable[str]) -> int:
    """For how many of these calls something was reserved; it no longer is."""
    freed = _take(rows, call_ids)
    _book(rows, {}, _less_reserved(freed.values()))
    return len(freed)


def find_standings(rows: Rows, names: Iterable[str], now: float) -> Standings:
    """How accounts stand; those that nothing was booked on are left out.

    What has run out by `now` is not counted, and stays for those who reserve: their clock may be another.
    """
    standings: Standings = {}
    for marks, some in in_groups(sorted(names)):
        found = rows.all(_FIND_STANDINGS.format(marks), (*some, now))
        over = _less_reserved((_parted(names), amount) for names, _, amount, is_over in found if is_over)
        standings |= {
            name: (spent, reserved + over.get(name, 0))
            for name, spent, reserved, is_over in found
            if not is_over
        }
    return standings


def standing_of(spent: int, reserved: int) -> Standing:
    """How an account stands, in dollars."""
    return Standing(spent=dollars(spent), reserved=dollars(reserved))


class _Accounts:
    """The accounts that something is to be reserved of, as they stand after all that was settled and released.

    Nobody else can change them until the transaction is through.
    """

    def __init__(
        self,
        rows: Rows,
        spent: Amounts,
        reserved: Amounts,
        wanted: Sequence[Wanted],
        new: Iterable[Wanted],
    ) -> None:
        """What is `wanted` for calls that are `new` is reserved in the same statement.

        There is room for most of it, and what there is none for is given back.
        """
        self._taken: Amounts = {}
        self._advance: Amounts = {}
        self._standings: Standings = {}
        if not wanted:
            _book(rows, spent, reserved)
            return
        advance = _summed((one.names, one.amount) for one in new)
        if max(advance.values(), default=0) <= MOST_PICODOLLARS:  # as much as a database can add at once
            self._advance = advance
        # Those that nothing is added to are held this way too.
        for name in {name for one in wanted for name in one.names}:
            reserved[name] = reserved.get(name, 0) + self._advance.get(name, 0)
        for name, (has_spent, has_reserved) in _book_and_tell(rows, spent, reserved).items():
            self._standings[name] = has_spent, has_reserved - self._advance.get(name, 0)

    def take(self, wanted: Wanted) -> Mapping[str, Standing] | Over | BadOption:
        """How the accounts with a limit stand with it, if there is room."""
        after = {name: self._with(name, wanted.amount) for name in wanted.names}
        for name, (spent, reserved) in after.items():
            if spent + reserved > wanted.limits.get(name, math.inf):
                before = standing_of(*self._standings[name])
                return Over(account=wanted.limited[name], limit=dollars(wanted.limits[name]), standing=before)
            if reserved > MOST_PICODOLLARS:
                return BadOption(f"more dollars are reserved of {name} than can be kept")
        self._standings.update(after)
        for name in wanted.names:
            self._taken[name] = self._taken.get(name, 0) + wanted.amount
        return self.tell(wanted)

    def tell(self, wanted: Wanted) -> Mapping[str, Standing]:
        """How the accounts with a limit stand."""
        return {account: standing_of(*self._standings[name]) for name, account in wanted.limited.items()}

    def keep(self, rows: Rows) -> None:
        """Write down what was taken, where that is not what was reserved in advance."""
        if self._taken == self._advance:
            return
        names = self._taken.keys() | self._advance.keys()
        _book(rows, {}, {name: self._taken.get(name, 0) - self._advance.get(name, 0) for name in names})

    def _with(self, name: str, amount: int) -> tuple[int, int]:
        spent, reserved = self._standings[name]
        return spent, reserved + amount


def _add_reservations(rows: Rows, wanted: Sequence[Wanted]) -> dict[str, Wanted]:
    """What is reserved from now on for calls that nothing was reserved for before, by these."""
    first: dict[str, Wanted] = {}
    for one in wanted:
        first.setdefault(one.call_id, one)
    new = [
        (one.call_id, _joined(one.names), one.amount, one.expires_at)
        for one in sorted(first.values(), key=lambda one: one.call_id)
    ]
    groups = in_rows(_ADD_RESERVATIONS, new)
    added = {call_id for statement, some in groups for (call_id,) in rows.all(statement, some)}
    return {call_id: one for call_id, one in first.items() if call_id in added}


def _add_entries(rows: Rows, settlements: Sequence[Settlement]) -> dict[str, Settlement]:
    """Those that were not settled before, by their calls."""
    first: dict[str, Settlement] = {}
    for one in settlements:
        first.setdefault(one.call_id, one)
    groups = in_rows(ADD_ENTRIES, [first[call_id].row for call_id in sorted(first)])
    new = [call_id for statement, some in groups for (call_id,) in rows.all(statement, some)]
    return {call_id: first[call_id] for call_id in new}


def _take(rows: Rows, call_ids: Iterable[str]) -> dict[str, _Taken]:
    """The accounts and the amounts of what was reserved for these calls; it no longer is."""
    groups = in_groups(sorted(call_ids))
    taken = [row for marks, some in groups for row in rows.all(_TAKE_RESERVATIONS.format(marks), some)]
    return {call_id: (_parted(accounts), amount) for call_id, accounts, amount in taken}


def _renew(rows: Rows, renewal: Renewal) -> frozenset[str]:
    """Those of the calls that something is reserved for, from now on for longer."""
    groups = in_groups(sorted(renewal.call_ids))
    found = [
        row for marks, some in groups for row in rows.all(_RENEW.format(marks), (renewal.expires_at, *some))
    ]
    return frozenset(call_id for (call_id,) in found)


def _spent(settled: Iterable[Settlement], freed: Mapping[str, _Taken]) -> Amounts:
    spent: Amounts = {}
    for one in settled:
        amount = _charged(freed.get(one.call_id)) if one.spent is None else one.spent
        for name in one.names:
            spent[name] = min(spent.get(name, 0) + amount, MOST_PICODOLLARS)
    return spent


def _keep_charged(rows: Rows, settled: Iterable[Settlement], freed: Mapping[str, _Taken]) -> None:
    """Record what accounts are charged for calls of unknown price, if that is what was reserved for them."""
    for one in settled:
        if one.spent is None:
            rows.change(_KEEP_CHARGED, (_charged(freed.get(one.call_id)), one.call_id))


def _charged(reserved: _Taken | None) -> int:
    """What is charged for a call whose price is not known: it may have cost all that was reserved for it."""
    _, amount = reserved or ((), 0)
    return amount if amount > _LEAST else 0


def _less_reserved(freed: Iterable[_Taken]) -> Amounts:
    return _summed((names, -amount) for names, amount in freed)


def _summed(amounts: Iterable[_Taken]) -> Amounts:
    """What comes to each account."""
    sums: Amounts = {}
    for names, amount in amounts:
        for name in names:
            sums[name] = sums.get(name, 0) + amount
    return sums


def _book(rows: Rows, spent: Amounts, reserved: Amounts) -> None:
    """Have so much more spent and reserved of accounts."""
    for statement, some in in_rows(_BOOK, _amounts(spent, reserved)):
        rows.change(statement, some)


def _book_and_tell(rows: Rows, spent: Amounts, reserved: Amounts) -> Standings:
    """How accounts stand once so much more is spent and reserved of them."""
    groups = in_rows(_BOOK_AND_TELL, _amounts(spent, reserved))
    found = [row for statement, some in groups for row in rows.all(statement, some)]
    return {name: (spent, reserved) for name, spent, reserved in found}


def _amounts(spent: Amounts, reserved: Amounts) -> list[tuple[str, int, int]]:
    return [
        (name, spent.get(name, 0), reserved.get(name, 0)) for name in sorted(spent.keys() | reserved.keys())
    ]


@lru_cache(maxsize=256)
def _limit(most: Decimal) -> int:
    """A cap in whole picodollars, of which there are few."""
    return -picodollars_at_most(-most)


def _joined(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()


def _parted(names: str) -> list[str]:
    return msgspec.json.decode(names, type=list[str])
