"""Charges, reservations and corrections, and the interfaces of the ledger, outbox and write-ahead log."""

from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

import msgspec

from foveate.model import Savings, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A manual correction of the cost of a call, or of the amount spent from an account.

    `call_id` is empty if an account was corrected, `account` if a call was. `before` is None for a call of
    unknown cost. `charged` is what the accounts of a call had been charged; if it is None, they are not
    changed.
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


class Category(StrEnum):
    MAIN = "main"
    COMPACTION = "compaction"
    COUNTING = "counting"
    PING = "ping"


class Call(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A call that is being made or was made. Its `id` is unique.

    `region` is where the model is served, if known before the usage is; it is not stored. `is_subscription`:
    the call uses a subscription, so its dollars are list-price equivalents that nobody is charged.
    """

    id: str
    agent: str
    session_id: str
    provider: str
    model: str
    category: Category
    at: float
    region: str = ""
    is_subscription: bool = False


class Charge(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of the ledger: a call, its usage and cost, and the estimates before.

    `dollars` is None if the price is unknown. Then `charge` is what its accounts are charged: an amount, or
    None for what was reserved. `is_partial`: the response was cut off before its usage was complete.
    `is_inherited`: the model has no price, and its dollars are an upper bound by its family.
    `is_possibly_charged`: the process ended while the call was in flight. Dollars are stored in picodollars.

    The outbox and the write-ahead log encode charges as JSON, so the names of these fields, and of those of the
    structs in them, are a file format.
    """

    call: Call
    usage: Usage
    dollars: Decimal | None
    estimated_input_tokens: int | None = None
    estimated_dollars: Decimal | None = None
    savings: Savings = Savings()
    is_partial: bool = False
    charge: Decimal | None = None
    is_inherited: bool = False
    is_possibly_charged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountBalance:
    spent: Decimal
    reserved: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """The cost ceiling of a call, reserved on each of its accounts until the call is settled.

    It expires at `expires_at`, in case the process dies. `limits` are the maximum balances by account; accounts
    without one are not limited.
    """

    call_id: str
    dollars: Decimal
    accounts: Sequence[str]
    limits: Mapping[str, Decimal]
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountOverLimit:
    account: str
    limit: Decimal
    balance: AccountBalance


class GroupBy(StrEnum):
    AGENT = "agent"
    SESSION = "session"
    MODEL = "model"
    CATEGORY = "category"
    DAY = "day"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeTotal:
    """Total of a group of calls; `group` has one value per dimension.

    `dollars` are those of calls with a known price; `unknown_calls` have none. `savings` are those of
    `compared_calls`. Without Foveate, `would_not_fit_calls` would have exceeded the window. `inherited_dollars`
    are at prices of families, and `subscription_dollars` are list-price equivalents; both are part of
    `dollars`. `possibly_charged_calls` were in flight when their process ended: they are among the
    `unknown_calls`, and cost at most `possibly_charged_dollars`.
    """

    group: tuple[str, ...]
    calls: int
    unknown_calls: int
    uncached: int
    read: int
    written_5m: int
    written_1h: int
    output_tokens: int
    reasoning_tokens: int
    dollars: Decimal
    estimated_dollars: Decimal
    savings: Savings
    partial_calls: int = 0
    compared_calls: int = 0
    would_not_fit_calls: int = 0
    would_not_fit_dollars: Decimal = Decimal(0)
    inherited_calls: int = 0
    inherited_dollars: Decimal = Decimal(0)
    subscription_calls: int = 0
    subscription_dollars: Decimal = Decimal(0)
    possibly_charged_calls: int = 0
    possibly_charged_dollars: Decimal = Decimal(0)


class Outbox(Protocol):
    """Stores charges on disk while the ledger cannot be reached.

    Raises:
        UnwritableFile: it cannot be written.
    """

    async def put(self, charge: Charge) -> None:
        """Store a charge durably before returning."""

    async def remove(self, call_id: str) -> None:
        """Remove a charge, at the latest when none is waiting."""


class Ledger(Protocol):
    """Stores charges, and reservations of calls in flight.

    Raises:
        StoreUnavailable: it cannot be reached, or the outcome of an operation is unknown. Operations can be
            repeated: they take effect once.
        BadOption: an amount that is not a number, negative, or too large.
    """

    async def reserve(
        self, reservation: Reservation, *, now: float
    ) -> Mapping[str, AccountBalance] | AccountOverLimit:
        """Reserve on all accounts or on none; return the first one without room.

        Returns the balances of limited accounts. Expired reservations are ignored. An existing reservation of
        the call is kept unchanged.
        """

    async def settle_all(self, charges: Sequence[tuple[Charge, Sequence[str]]]) -> Sequence[bool | Exception]:
        """Record charges on their accounts, and free the reservations, in one transaction.

        Returns False for a call that was settled before; its reservation is freed too. Calls without a
        reservation are recorded all the same. A call of unknown price is charged as its entry says. A charge
        that cannot be stored yields its error, and all others are recorded.
        """

    async def release(self, call_id: str) -> bool:
        """Free the reservation of a call that is not charged; False if there is none."""

    async def renew(self, call_ids: Sequence[str], *, expires_at: float) -> Set[str]:
        """Extend reservations to `expires_at`, and return the calls that still have one."""

    async def get_balances(self, accounts: Sequence[str], *, now: float) -> Mapping[str, AccountBalance]:
        """The balances of unknown accounts are zero."""

    async def sum_charges(
        self,
        group_by: Sequence[GroupBy],
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> Sequence[ChargeTotal]:
        """Return totals from `since` to `until`, exclusive, most expensive first. Days are UTC."""

    def list_charges(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Charge]:
        """Yield all charges, oldest first, reading a few at a time."""


class WriteAheadLog(Protocol):
    """Logs charges until they are recorded, so that they survive the process."""

    def append(self, charge: Charge) -> None:
        """Log a charge if possible, replacing an earlier one of the same call."""

    def mark_recorded(self, call_id: str) -> None:
        """Drop a charge that the ledger has."""

    def discard(self, call_id: str) -> None:
        """Drop a charge that must never reach the ledger, because the call is not charged."""
