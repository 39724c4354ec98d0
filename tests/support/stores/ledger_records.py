"""Short builders of calls, charges, caps and reservations."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from msgspec import structs

from foveate.cost.caps import Cap, CapScope, list_accounts
from foveate.cost.ledger import AccountBalance, AccountOverLimit, Call, Category, Charge, Ledger, Reservation
from foveate.model import CacheUsage, ComparisonOutcome, Savings, Usage

NOON = 1_794_744_000.0
"""2026-11-15 12:00 UTC."""

CALL = Call(
    id="call-1",
    agent="ana",
    session_id="s",
    provider="anthropic",
    model="claude-opus-5-5",
    category=Category.MAIN,
    at=NOON,
)
CHARGE = Charge(
    call=CALL,
    usage=Usage(
        cache=CacheUsage(uncached=12, read=34_000, written_5m=560, written_1h=78),
        output_tokens=900,
        reasoning_tokens=100,
        reported_dollars=Decimal("0.0612345678901234567890"),
        tier="batch",
        raw=b'{"input_tokens": 12, "cache_read_input_tokens": 34000}',
    ),
    dollars=Decimal("0.061234567891"),
    estimated_input_tokens=35_000,
    estimated_dollars=Decimal("0.2"),
    savings=Savings(
        comparison=ComparisonOutcome.SIMULATED,
        without=Decimal("0.214"),
        compaction=Decimal("-0.000000000001"),
        context=Decimal(0),
        breakpoints=Decimal("0.153"),
        keep_alive=Decimal(0),
        simulation_error=Decimal("0.00023456789"),
    ),
    is_partial=True,
)
RESERVATION = Reservation(
    call_id="call-2",
    dollars=Decimal("0.25"),
    accounts=list_accounts(CALL),
    limits={"agent ana": Decimal(1)},
    expires_at=NOON + 1200,
)


def make_call(id_: str, *, agent: str = "ana", session_id: str = "s", at: float = NOON) -> Call:
    return structs.replace(CALL, id=id_, agent=agent, session_id=session_id, at=at)


def make_charge(call: Call, dollars: Decimal | int | str | None) -> Charge:
    return Charge(
        call=call,
        usage=Usage(cache=CacheUsage(uncached=10), output_tokens=1),
        dollars=None if dollars is None else Decimal(dollars),
    )


def make_cap(scope: CapScope, dollars: Decimal | int | str, agent: str | None = None) -> Cap:
    return Cap(scope=scope, dollars=Decimal(dollars), agent=agent)


def make_standing(spent: Decimal | int | str, reserved: Decimal | int | str = 0) -> AccountBalance:
    return AccountBalance(spent=Decimal(spent), reserved=Decimal(reserved))


def make_reservation(
    call: Call, dollars: Decimal | int | str, limits: dict[str, Decimal], *, seconds: float = 1200.0
) -> Reservation:
    """Reserve dollars for a call on all of its accounts."""
    return Reservation(
        call_id=call.id,
        dollars=Decimal(dollars),
        accounts=list_accounts(call),
        limits=limits,
        expires_at=call.at + seconds,
    )


async def reserve(
    ledger: Ledger, call: Call, dollars: Decimal | int | str, *, now: float = NOON, **limits: Decimal | int
) -> bool:
    """Try to reserve dollars; `limits` are on the call's `agent`, `session` or `total`."""
    accounts = {"agent": f"agent {call.agent}", "session": f"session {call.session_id}", "total": "total"}
    reservation = make_reservation(
        call, dollars, {accounts[name]: Decimal(limit) for name, limit in limits.items()}
    )
    result = await ledger.reserve(replace(reservation, expires_at=now + 1200), now=now)
    assert isinstance(result, AccountOverLimit) or result.keys() == reservation.limits.keys()
    return not isinstance(result, AccountOverLimit)


async def settle_one(ledger: Ledger, charge: Charge, *, accounts: Sequence[str]) -> bool:
    """Settle one charge and return whether it is new. Raises the error of the ledger, if any."""
    (is_new,) = await ledger.settle_all([(charge, accounts)])
    if isinstance(is_new, Exception):
        raise is_new
    return is_new
