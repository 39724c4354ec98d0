"""Corrects charges and account balances, and records each correction in the same transaction."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import uuid4

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Correction
from foveate.cost.money import MAX_PICODOLLARS, to_dollars
from foveate.store.database import Database, Transaction, build_where_clause
from foveate.store.repositories.ledger_rows import (
    LEDGER_COLUMNS,
    from_ledger_row,
    read_amount,
    to_ledger_row,
    to_storable_name,
    to_storable_names,
)
from foveate.store.repositories.rollups import change_charge

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
        found = await self._database.read(lambda transaction: transaction.fetch_all(statement, values))
        return [_to_correction(*row) for row in found]


class _CorrectionNote:
    """The id, time and reason of a new correction."""

    def __init__(self, id_: str, at: float, reason: str) -> None:
        self.id, self.at, self.reason = id_, at, reason.encode("utf-8", "replace")


def _correct_call(
    transaction: Transaction, call_id: str, amount: int, note: _CorrectionNote
) -> Correction | None:
    transaction.execute(_LOCK_CALL, (call_id,))
    found = transaction.fetch_all(_FIND_CALL, (call_id,))
    if not found:
        return None
    columns = dict(zip(_LEDGER_COLUMN_NAMES, found[0], strict=True))
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
    charge = from_ledger_row(*found[0])
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
    found = transaction.fetch_all(_FIND_ACCOUNT, (account,))
    if not found:
        return None
    ((before,),) = found
    transaction.execute(_SET_ACCOUNT, (amount, account))
    return _record_correction(transaction, note, ("", "", "", account, before, None, amount))


def _record_correction(transaction: Transaction, note: _CorrectionNote, values: tuple[Any, ...]) -> Correction:
    row = (note.id, note.at, *values, note.reason)
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
