"""Corrects calls in the ledger and cap accounts, and records each correction in the same transaction."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import uuid4

from foveate.cost.caps import accounts_of
from foveate.cost.corrections import Correction
from foveate.cost.money import MOST_PICODOLLARS, dollars
from foveate.store.adding import change_bill
from foveate.store.database import Database, Rows, where_of
from foveate.store.ledger_rows import COLUMNS, amount_of, entry_of, name_of, names_of, row_of

# Changes nothing, and has others wait until this transaction is through.
_LOCK_CALL = "UPDATE ledger_v1 SET at = at WHERE call_id = ?"
_LOCK_ACCOUNT = "UPDATE accounts_v1 SET spent = spent WHERE name = ?"
_FIND_CALL = f"SELECT {COLUMNS} FROM ledger_v1 WHERE call_id = ?"
_CORRECT_CALL = """
UPDATE ledger_v1 SET picodollars = ?, charged_picodollars = ?, simulation_error = ?, is_inherited = 0,
    is_possibly_charged = 0
WHERE call_id = ?
"""
_CHANGE_ACCOUNT = f"""
INSERT INTO accounts_v1 (name, spent, reserved) VALUES (?, ?, 0)
ON CONFLICT (name) DO UPDATE
SET spent = CASE WHEN accounts_v1.spent + ? < 0 THEN 0
                 WHEN accounts_v1.spent > {MOST_PICODOLLARS} - ? THEN {MOST_PICODOLLARS}
                 ELSE accounts_v1.spent + ? END
"""
_FIND_ACCOUNT = "SELECT spent FROM accounts_v1 WHERE name = ?"
_SET_ACCOUNT = "UPDATE accounts_v1 SET spent = ? WHERE name = ?"
_CORRECTION = (
    "id, at, call_id, agent, session_id, account, before_picodollars, charged_picodollars,"
    " after_picodollars, reason"
)
_RECORD = f"""
INSERT INTO corrections_v1 ({_CORRECTION}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING
"""


class Corrections:
    """Makes and lists corrections in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def correct_call(self, call_id: str, to: Decimal, *, reason: str, at: float) -> Correction | None:
        """Set what a call cost, and change its accounts by the difference; None if the ledger has no such call.

        Raises:
            BadOption: `to` is not an amount that somebody can be charged.
        """
        amount, id_ = amount_of(to), uuid4().hex
        return await self._database.write(
            lambda rows: _correct_call(rows, name_of(call_id), amount, _New(id_, at, reason)), again=True
        )

    async def correct_account(self, account: str, to: Decimal, *, reason: str, at: float) -> Correction | None:
        """Set what a cap account has spent; None if nothing was ever charged to it.

        Raises:
            BadOption: `to` is not an amount that somebody can be charged.
        """
        amount, id_ = amount_of(to), uuid4().hex
        return await self._database.write(
            lambda rows: _correct_account(rows, name_of(account), amount, _New(id_, at, reason)), again=True
        )

    async def listed(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        call_id: str | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[Correction]:
        """Return corrections made from `since` up to, not with, `until`, the oldest first."""
        where, values = where_of(
            {
                "at >= ?": None if since is None else (since,),
                "at < ?": None if until is None else (until,),
                "call_id = ?": None if call_id is None else (name_of(call_id),),
                "agent = ?": None if agent is None else (name_of(agent),),
                "session_id = ?": None if session_id is None else (name_of(session_id),),
            }
        )
        statement = f"SELECT {_CORRECTION} FROM corrections_v1 {where} ORDER BY at, id"
        found = await self._database.read(lambda rows: rows.all(statement, values))
        return [_correction(*row) for row in found]


class _New:
    """The id, the time and the reason of a correction that is being made."""

    def __init__(self, id_: str, at: float, reason: str) -> None:
        self.id, self.at, self.reason = id_, at, reason.encode("utf-8", "replace")


def _correct_call(rows: Rows, call_id: str, amount: int, new: _New) -> Correction | None:
    rows.change(_LOCK_CALL, (call_id,))
    found = rows.all(_FIND_CALL, (call_id,))
    if not found:
        return None
    columns = dict(zip(_NAMES, found[0], strict=True))
    before, charged = columns["picodollars"], columns["charged_picodollars"]
    charged = before if charged is None else charged  # rows of earlier versions say only what a call cost
    error = columns["simulation_error"]
    if error is not None and before is not None:  # it is what was charged beyond what was simulated
        error += amount - before
    corrected = columns | {
        "picodollars": amount,
        "charged_picodollars": amount,
        "simulation_error": error,
        "is_inherited": 0,
        "is_possibly_charged": 0,
    }
    rows.change(_CORRECT_CALL, (amount, amount, error, call_id))
    entry = entry_of(*found[0])
    if charged is not None:
        change = amount - charged
        for name in sorted(names_of(*accounts_of(entry.call))):
            rows.change(_CHANGE_ACCOUNT, (name, max(change, 0), change, change, change))
    change_bill(rows, row_of(entry), row_of(entry_of(*corrected.values())))
    call = entry.call
    return _recorded(rows, new, (call.id, call.agent, call.session_id, "", before, charged, amount))


_NAMES = [name.strip() for name in COLUMNS.split(",")]


def _correct_account(rows: Rows, account: str, amount: int, new: _New) -> Correction | None:
    rows.change(_LOCK_ACCOUNT, (account,))
    found = rows.all(_FIND_ACCOUNT, (account,))
    if not found:
        return None
    ((before,),) = found
    rows.change(_SET_ACCOUNT, (amount, account))
    return _recorded(rows, new, ("", "", "", account, before, None, amount))


def _recorded(rows: Rows, new: _New, values: tuple[Any, ...]) -> Correction:
    row = (new.id, new.at, *values, new.reason)
    rows.change(_RECORD, row)
    return _correction(*row)


def _correction(
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
        before=None if before is None else dollars(before),
        charged=None if charged is None else dollars(charged),
        after=dollars(after),
        reason=reason.decode("utf-8", "replace"),
    )
