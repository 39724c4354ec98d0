"""What is kept of calls and what they cost, and the small interface of who keeps it.

Corrections of the ledger and of cap accounts, made by hand and recorded.
"""

from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Protocol

import msgspec

from foveate.model import Savings, Usage


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


class Category(StrEnum):
    """What a call was for."""

    MAIN = "main"
    COMPACTION = "compaction"
    COUNTING = "counting"
    PING = "ping"


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call that is about to be made, or was: by whom, to which model, and when. No two have the same `id`.

    `region` is where the model is served, if that is known before the bill. It is not stored.
    `is_subscription`: it is made with the credentials of a subscription, so that its dollars are what it would
    cost at list prices, and nobody is billed for them.
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


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the ledger: a call, what was billed, and what was expected before.

    `dollars` is None where the price is not known. Then `charge` is what its accounts are charged all the same:
    what was reserved for it, or so many dollars, which may be none. `is_partial`:
    it broke off before its bill was whole. `is_inherited`: its model has no price of its own, and its dollars
    are an upper bound by its family. `is_possibly_charged`: its process ended while it was under way, so nobody
    knows whether it was billed. Dollars are kept to the picodollar.
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
    """What was spent of an account, and what calls that are under way may spend of it, in dollars."""

    spent: Decimal
    reserved: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """So many dollars at most that a call will cost, taken from each of its accounts until it is settled.

    It runs out at `expires_at`, for a process that died. `limits` are what accounts may hold, by their names;
    accounts without a limit are only added to.
    """

    call_id: str
    dollars: Decimal
    accounts: Sequence[str]
    limits: Mapping[str, Decimal]
    expires_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountOverLimit:
    """An account that has no room for a call, as it stands without it."""

    account: str
    limit: Decimal
    balance: AccountBalance


class GroupBy(StrEnum):
    """What a sum can be told by."""

    AGENT = "agent"
    SESSION = "session"
    MODEL = "model"
    CATEGORY = "category"
    DAY = "day"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeTotal:
    """All calls of a group added up; `group` has one value for each of what it was asked by.

    `dollars` are those of calls with a known price, and `unknown_calls` says how many have none. `savings` are
    those of `compared_calls`. Without Foveate `would_not_fit_calls` would not have fitted into the window.
    `inherited_dollars` are at prices of families, and `subscription_dollars` are list-price equivalents of
    calls that subscriptions pay for; both are part of `dollars`. `possibly_charged_calls` were under way when
    their process ended: they are among the `unknown_calls`, and cost at most `possibly_charged_dollars`.
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
    """Keeps bills that wait for the ledger to be back, so that they outlive their process.

    Raises:
        UnwritableFile: it cannot.
    """

    async def put(self, charge: Charge) -> None:
        """Have a bill kept when this returns."""

    async def remove(self, call_id: str) -> None:
        """Have a bill there no longer, at the latest when none waits."""


class Ledger(Protocol):
    """Keeps what calls cost, and what is reserved for those that are under way.

    Raises:
        StoreUnavailable: it cannot be reached, or did not say whether it has done what it was asked for. All of
            it can be asked for again: what was done is not done twice.
        BadOption: dollars that are no number, less than nothing, or more than can be kept.
    """

    async def reserve(
        self, reservation: Reservation, *, now: float
    ) -> Mapping[str, AccountBalance] | AccountOverLimit:
        """Take the dollars from all accounts or from none: then the first that has no room is told.

        How each account with a limit stands then is given back. What was reserved and has run out stands in
        nobody's way. Where something is reserved for the call already, it stays at that.
        """

    async def settle_all(self, charges: Sequence[tuple[Charge, Sequence[str]]]) -> Sequence[bool | Exception]:
        """Keep what calls cost, book each on its accounts and free what was reserved for it, all in one.

        False, and nothing booked, of a call that was settled before; what is reserved for it is freed too.
        A call that was never reserved, or whose reservation has run out, is booked all the same. One of unknown
        price is charged to its accounts as its entry says. What is wrong with a bill that cannot be kept stands
        in its place, and all others are.
        """

    async def release(self, call_id: str) -> bool:
        """Free what was reserved for a call that is not billed; False where nothing is."""

    async def renew(self, call_ids: Sequence[str], *, expires_at: float) -> Set[str]:
        """Those of the calls that something is reserved for; it now runs out at `expires_at`."""

    async def get_balances(self, accounts: Sequence[str], *, now: float) -> Mapping[str, AccountBalance]:
        """How accounts stand; one that nothing was ever booked on is at zero."""

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

    def list_charges(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        agent: str | None = None,
        session_id: str | None = None,
    ) -> AsyncIterator[Charge]:
        """Every call, the oldest first, read a few at a time."""


class WriteAheadLog(Protocol):
    """Holds bills from when they are known until they are booked, beyond the life of the process."""

    def append(self, charge: Charge) -> None:
        """Hold a bill, if that can be. It replaces what was held for the same call."""

    def mark_recorded(self, call_id: str) -> None:
        """It need not be held any longer: the ledger has it."""

    def discard(self, call_id: str) -> None:
        """Nothing may be held for the call any longer: it is not billed, so the ledger never has it."""
