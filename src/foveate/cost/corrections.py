"""Corrections of the ledger and of cap accounts, made by hand and recorded."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A change of what one call cost, or of what one cap account has spent.

    `call_id` is empty if an account was corrected, `account` if a call was. `before` is None for a call of
    unknown cost. `charged` is what the accounts of a call had been charged; None if that is not known, and then
    they are left as they are.
    """

    id: str
    at: float
    call_id: str = ""
    agent: str = ""
    session_id: str = ""
    account: str = ""
    before: Decimal | None
    charged: Decimal | None = None
    after: Decimal
    reason: str
