"""Calls and their bills, as short as a test can say them."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from msgspec import structs

from foveate.cost.caps import Cap, Scope, accounts_of
from foveate.cost.ledger import Call, Category, Entry, Ledger, Over, Reservation, Standing
from foveate.values import CacheUsage, Comparison, Savings, Usage

NOON = 1_794_744_000.0
"""Of 2026-11-15, UTC."""

CALL = Call(
    id="call-1",
    agent="ana",
    session_id="s",
    provider="anthropic",
    model="claude-opus-5-5",
    category=Category.MAIN,
    at=NOON,
)
ENTRY = Entry(
    call=CALL,
    usage=Usage(
        cache=CacheUsage(uncached=12, read=34_000, written_5m=560, written_1h=78),
        output_tokens=900,
        reasoning_tokens=100,
        said_dollars=Decimal("0.0612345678901234567890"),
        tier="batch",
        raw=b'{"input_tokens": 12, "cache_read_input_tokens": 34000}',
    ),
    dollars=Decimal("0.061234567891"),
    estimated_input_tokens=35_000,
    estimated_dollars=Decimal("0.2"),
    savings=Savings(
        comparison=Comparison.SIMULATED,
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
    accounts=accounts_of(CALL),
    limits={"agent ana": Decimal(1)},
    expires_at=NOON + 1200,
)


def call(id_: str, *, agent: str = "ana", session_id: str = "s", at: float = NOON) -> Call:
    return structs.replace(CALL, id=id_, agent=agent, session_id=session_id, at=at)


def entry(of: Call, dollars: Decimal | int | str | None) -> Entry:
    """A bill of so much, and nothing else to it."""
    return Entry(
        call=of,
        usage=Usage(cache=CacheUsage(uncached=10), output_tokens=1),
        dollars=None if dollars is None else Decimal(dollars),
    )


def cap(scope: Scope, dollars: Decimal | int | str, agent: str | None = None) -> Cap:
    return Cap(scope=scope, dollars=Decimal(dollars), agent=agent)


def standing(spent: Decimal | int | str, reserved: Decimal | int | str = 0) -> Standing:
    return Standing(spent=Decimal(spent), reserved=Decimal(reserved))


def reservation(
    of: Call, dollars: Decimal | int | str, limits: dict[str, Decimal], *, seconds: float = 1200.0
) -> Reservation:
    """So much for a call, on all of its accounts, for so long."""
    return Reservation(
        call_id=of.id,
        dollars=Decimal(dollars),
        accounts=accounts_of(of),
        limits=limits,
        expires_at=of.at + seconds,
    )


async def reserve(
    ledger: Ledger, of: Call, dollars: Decimal | int | str, *, now: float = NOON, **limits: Decimal | int
) -> bool:
    """Whether there was room for so much; `limits` are on the call's `agent`, `session` or `total`."""
    named = {"agent": f"agent {of.agent}", "session": f"session {of.session_id}", "total": "total"}
    wanted = reservation(of, dollars, {named[name]: Decimal(most) for name, most in limits.items()})
    found = await ledger.reserve(replace(wanted, expires_at=now + 1200), now=now)
    assert isinstance(found, Over) or found.keys() == wanted.limits.keys()
    return not isinstance(found, Over)


async def settle_one(ledger: Ledger, bill: Entry, *, accounts: Sequence[str]) -> bool:
    """Whether a bill is new to a ledger, which keeps it; what is wrong with it is raised."""
    (is_new,) = await ledger.settle_all([(bill, accounts)])
    if isinstance(is_new, Exception):
        raise is_new
    return is_new
