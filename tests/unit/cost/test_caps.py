"""Caps: accounts of a call, reservations, and error messages."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from foveate.cost.caps import (
    Cap,
    CapScope,
    UnknownPricePolicy,
    claim_reservation,
    find_cap_warnings,
    list_accounts,
    make_cap_exceeded,
    make_cap_uncheckable,
    utc_day,
)
from foveate.cost.ledger import AccountBalance, Call, Category
from foveate.cost.money import format_dollars, to_dollars, to_picodollars, to_picodollars_rounded_up
from foveate.errors import BadOption, CapExceeded, CapUncheckable

CALL = Call(
    id="c1",
    agent="ana",
    session_id="s1",
    provider="anthropic",
    model="claude-opus-5-5",
    category=Category.MAIN,
    at=1_794_787_199.5,  # half a second before midnight, 2026-11-15
)


def make_cap(
    scope: CapScope,
    dollars: str = "1",
    agent: str | None = None,
    unknown: UnknownPricePolicy = UnknownPricePolicy.REJECT,
) -> Cap:
    return Cap(scope=scope, dollars=Decimal(dollars), agent=agent, unknown=unknown)


def make_balance(spent: str, reserved: str = "0") -> AccountBalance:
    return AccountBalance(spent=Decimal(spent), reserved=Decimal(reserved))


def test_every_cap_limits_an_account_of_the_call() -> None:
    caps = [make_cap(scope, agent=agent) for scope in CapScope for agent in (None, "ana")]
    accounts = {cap.find_account(CALL) for cap in caps} - {None}

    assert accounts == set(list_accounts(CALL))
    assert list(list_accounts(CALL)) == sorted(list_accounts(CALL))


def test_an_agents_cap_applies_to_that_agent_only() -> None:
    agent_cap = make_cap(CapScope.DAY, agent="ana")
    bob = structs.replace(CALL, agent="bob")

    assert agent_cap.applies_to(CALL)
    assert not agent_cap.applies_to(bob)
    assert claim_reservation([agent_cap], bob, Decimal(100)) is None
    assert agent_cap.find_account(CALL) != make_cap(CapScope.DAY).find_account(CALL)
    assert make_cap(CapScope.DAY).find_account(CALL) == make_cap(CapScope.DAY).find_account(bob)


def test_days_are_utc_days() -> None:
    assert utc_day(CALL.at) == "2026-11-15"
    assert utc_day(CALL.at + 1) == "2026-11-16"
    assert make_cap(CapScope.DAY).find_account(CALL) != make_cap(CapScope.DAY).find_account(
        structs.replace(CALL, at=CALL.at + 1)
    )


def test_nothing_is_reserved_without_caps_or_for_free_calls() -> None:
    assert claim_reservation([], CALL, None) is None
    assert claim_reservation([], CALL, Decimal(5)) is None
    assert claim_reservation([make_cap(CapScope.CALL)], CALL, Decimal("0.5")) is None
    assert claim_reservation([make_cap(CapScope.DAY, "0")], CALL, Decimal(0)) is None


def test_the_tightest_of_several_caps_on_an_account_applies() -> None:
    tight, loose = make_cap(CapScope.AGENT, "2", agent="ana"), make_cap(CapScope.TOTAL, "3", agent="ana")

    for caps in ([tight, loose], [loose, tight]):
        claim = claim_reservation(caps, CALL, Decimal("0.1"))
        assert claim
        assert claim.caps == {"agent ana": tight}
        assert claim.dollars == Decimal("0.1")


def test_a_call_above_the_cap_on_a_call_is_rejected_without_a_ledger() -> None:
    assert claim_reservation([make_cap(CapScope.CALL)], CALL, Decimal(1)) is None
    with pytest.raises(CapExceeded) as failure:
        claim_reservation([make_cap(CapScope.CALL)], CALL, Decimal("1.000000000001"))

    assert str(failure.value) == (
        "this call may cost $1.000001, and the cap on a call is $1.00;"
        " send less input, request fewer output tokens, or raise the cap"
    )


@pytest.mark.parametrize("scope", CapScope)
def test_a_call_of_unknown_price_is_rejected_unless_every_cap_allows_it(scope: CapScope) -> None:
    with pytest.raises(CapUncheckable, match=r"price of claude-opus-5-5 is unknown.*unknown: allow") as failure:
        claim_reservation(
            [make_cap(CapScope.TOTAL, "9", unknown=UnknownPricePolicy.ALLOW), make_cap(scope)], CALL, None
        )

    assert (failure.value.limit, failure.value.code) == (Decimal(1), "cap_uncheckable")


def test_a_call_of_unknown_price_still_reserves_the_smallest_amount() -> None:
    """A spent cap has no room, not even for a call of unknown price."""
    claim = claim_reservation([make_cap(CapScope.DAY, unknown=UnknownPricePolicy.ALLOW)], CALL, None)

    assert claim
    assert to_picodollars(claim.dollars) == 1
    error = make_cap_exceeded(make_cap(CapScope.DAY), make_balance("1"), None)
    assert "has an unknown cost, and the cap on a day is $1.00, of which $1.00 is spent;" in str(error)


@pytest.mark.parametrize(
    ("scope", "agent", "expected", "remedy"),
    [
        (CapScope.SESSION, None, "the cap on a session is", "start another session"),
        (CapScope.SESSION, "ana", "the cap on a session of ana is", "start another session"),
        (CapScope.AGENT, None, "the cap on an agent is", "raise the cap"),
        (CapScope.AGENT, "ana", "the cap on agent ana is", "raise the cap"),
        (CapScope.DAY, "ana", "the cap on a day of ana is", "wait for the next day"),
        (CapScope.TOTAL, None, "the cap on total spending is", "raise the cap"),
        (CapScope.TOTAL, "ana", "the cap on agent ana is", "raise the cap"),
    ],
)
def test_an_exceeded_cap_is_reported_with_all_amounts(
    scope: CapScope, agent: str | None, expected: str, remedy: str
) -> None:
    error = make_cap_exceeded(make_cap(scope, "5", agent=agent), make_balance("4.9", "0.05"), Decimal("0.2"))

    assert (
        f"this call may cost $0.20, and {expected} $5.00, of which $4.90 is spent and $0.05 is reserved"
        in str(error)
    )
    assert remedy in error.remedy
    assert (error.limit, error.spent, error.reserved, error.ceiling) == tuple(
        map(Decimal, ("5", "4.9", "0.05", "0.2"))
    )


def test_the_remedy_for_a_cap_full_of_reservations_is_to_wait() -> None:
    error = make_cap_exceeded(make_cap(CapScope.SESSION, "5"), make_balance("1", "3.9"), Decimal("0.2"))

    assert error.remedy == "try again when running calls are finished, or raise the cap"


def test_warnings_start_at_the_share_set_by_the_cap() -> None:
    caps = [
        replace(make_cap(CapScope.DAY), warn_at=Decimal("0.5")),
        make_cap(CapScope.SESSION),
        make_cap(CapScope.CALL),
    ]

    def warned_scopes(spent: str, reserved: str, ceiling: str) -> list[CapScope]:
        balances = dict.fromkeys(list_accounts(CALL), make_balance(spent, reserved))
        return [warning.cap.scope for warning in find_cap_warnings(caps, CALL, Decimal(ceiling), balances)]

    assert warned_scopes("0.3", "0.199", "0.1") == []
    assert warned_scopes("0.3", "0.2", "0.1") == [CapScope.DAY]
    assert warned_scopes("0.8", "0.0", "0.1") == [CapScope.DAY, CapScope.SESSION]
    assert warned_scopes("0.8", "0.0", "0.8") == [CapScope.DAY, CapScope.SESSION, CapScope.CALL]
    assert find_cap_warnings([make_cap(CapScope.DAY, agent="bob")], CALL, Decimal(9), {}) == ()


def test_a_warning_contains_the_balance() -> None:
    (warning,) = find_cap_warnings(
        [make_cap(CapScope.DAY)], CALL, Decimal(1), {"day 2026-11-15": make_balance("0.95", "0.02")}
    )

    assert str(warning) == (
        "the cap on a day is $1.00, of which $0.95 is spent and $0.02 is reserved for running calls"
    )


def test_a_cap_that_cannot_be_checked_is_reported_with_a_reason() -> None:
    error = make_cap_uncheckable(make_cap(CapScope.DAY), "the store is gone", "bring it back")

    assert str(error) == "the cap on a day ($1.00) cannot be checked: the store is gone; bring it back"
    assert (error.cap, error.reason) == ("the cap on a day", "the store is gone")


@pytest.mark.parametrize("value", ["-0.01", "NaN", "Infinity", "5000000", "1e300"])
def test_a_cap_with_invalid_dollars_is_rejected(value: str) -> None:
    with pytest.raises(BadOption, match="from 0 to 4,000,000 dollars"):
        make_cap(CapScope.DAY, value)


@pytest.mark.parametrize("value", ["-0.01", "1.01", "NaN", "Infinity"])
def test_a_warning_level_outside_0_to_1_is_rejected(value: str) -> None:
    with pytest.raises(BadOption, match="from 0 to 1"):
        Cap(scope=CapScope.DAY, dollars=Decimal(1), warn_at=Decimal(value))


@pytest.mark.parametrize("value", ["-0.01", "NaN", "sNaN", "Infinity"])
def test_an_invalid_ceiling_is_rejected_even_without_caps(value: str) -> None:
    for caps in ([], [make_cap(CapScope.CALL)], [make_cap(CapScope.DAY)]):
        with pytest.raises(BadOption, match="0 or more dollars"):
            claim_reservation(caps, CALL, Decimal(value))


def test_an_amount_too_large_to_store_exceeds_every_cap() -> None:
    claim = claim_reservation([make_cap(CapScope.DAY)], CALL, Decimal("1e30"))

    assert claim
    assert to_picodollars(claim.dollars) == 2**62 - 1


SUMS = st.decimals("-4000000", "4000000", places=20)


@given(SUMS)
def test_dollars_are_exact_to_the_picodollar_in_any_context(money: Decimal) -> None:
    picodollars = to_picodollars(money)

    assert abs(to_dollars(picodollars) - money) <= Decimal("5e-13")
    assert 0 <= to_dollars(to_picodollars_rounded_up(money)) - money < Decimal("1e-12")


@given(st.integers(-(2**62) + 1, 2**62 - 1))
def test_picodollars_survive_a_round_trip_through_dollars(picodollars: int) -> None:
    assert (
        to_picodollars(to_dollars(picodollars))
        == to_picodollars_rounded_up(to_dollars(picodollars))
        == picodollars
    )


@pytest.mark.parametrize("value", ["5e6", "-5e6", "NaN", "sNaN", "-Infinity", "1e999999"])
def test_amounts_too_large_to_store_are_rejected(value: str) -> None:
    with pytest.raises(OverflowError, match="too large to be stored"):
        to_picodollars(Decimal(value))


@pytest.mark.parametrize(
    ("money", "expected"),
    [
        ("0", "$0.00"),
        ("5", "$5.00"),
        ("0.1", "$0.10"),
        ("0.01234", "$0.01234"),
        ("1234567.5", "$1,234,567.50"),
        ("-0.3", "-$0.30"),
        ("0.000000000001", "$0.000001"),
        ("-0.0000001", "-$0.000001"),
    ],
)
def test_dollars_are_formatted_for_people_and_small_amounts_are_never_zero(money: str, expected: str) -> None:
    assert format_dollars(Decimal(money)) == expected
