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


def cap(
    scope: CapScope,
    of: str = "1",
    agent: str | None = None,
    unknown: UnknownPricePolicy = UnknownPricePolicy.REFUSE,
) -> Cap:
    return Cap(scope=scope, dollars=Decimal(of), agent=agent, unknown=unknown)


def standing(spent: str, reserved: str = "0") -> AccountBalance:
    return AccountBalance(spent=Decimal(spent), reserved=Decimal(reserved))


def test_every_cap_is_on_one_of_the_accounts_that_a_call_is_booked_on() -> None:
    caps = [cap(scope, agent=agent) for scope in CapScope for agent in (None, "ana")]
    accounts = {one.find_account(CALL) for one in caps} - {None}

    assert accounts == set(list_accounts(CALL))
    assert list(list_accounts(CALL)) == sorted(list_accounts(CALL))


def test_an_agents_cap_is_on_that_agent_alone() -> None:
    own = cap(CapScope.DAY, agent="ana")
    bob = structs.replace(CALL, agent="bob")

    assert own.applies_to(CALL)
    assert not own.applies_to(bob)
    assert claim_reservation([own], bob, Decimal(100)) is None
    assert own.find_account(CALL) != cap(CapScope.DAY).find_account(CALL)
    assert cap(CapScope.DAY).find_account(CALL) == cap(CapScope.DAY).find_account(bob)


def test_days_are_those_of_utc() -> None:
    assert utc_day(CALL.at) == "2026-11-15"
    assert utc_day(CALL.at + 1) == "2026-11-16"
    assert cap(CapScope.DAY).find_account(CALL) != cap(CapScope.DAY).find_account(
        structs.replace(CALL, at=CALL.at + 1)
    )


def test_without_caps_and_for_what_costs_nothing_there_is_nothing_to_reserve() -> None:
    assert claim_reservation([], CALL, None) is None
    assert claim_reservation([], CALL, Decimal(5)) is None
    assert claim_reservation([cap(CapScope.CALL)], CALL, Decimal("0.5")) is None
    assert claim_reservation([cap(CapScope.DAY, "0")], CALL, Decimal(0)) is None


def test_of_several_caps_on_one_account_the_tightest_holds() -> None:
    tight, loose = cap(CapScope.AGENT, "2", agent="ana"), cap(CapScope.TOTAL, "3", agent="ana")

    for caps in ([tight, loose], [loose, tight]):
        claimed = claim_reservation(caps, CALL, Decimal("0.1"))
        assert claimed
        assert claimed.caps == {"agent ana": tight}
        assert claimed.dollars == Decimal("0.1")


def test_a_call_that_costs_more_than_the_cap_on_a_call_is_refused_without_a_ledger() -> None:
    assert claim_reservation([cap(CapScope.CALL)], CALL, Decimal(1)) is None
    with pytest.raises(CapExceeded) as refused:
        claim_reservation([cap(CapScope.CALL)], CALL, Decimal("1.000000000001"))

    assert str(refused.value) == (
        "this call may cost $1.000001, and the cap on a call is $1.00;"
        " send less, ask for fewer output tokens, or raise the cap"
    )


@pytest.mark.parametrize("scope", CapScope)
def test_a_call_of_unknown_price_is_refused_unless_every_cap_allows_it(scope: CapScope) -> None:
    with pytest.raises(
        CapUncheckable, match=r"price of claude-opus-5-5 is not known.*unknown: allow"
    ) as refused:
        claim_reservation([cap(CapScope.TOTAL, "9", unknown=UnknownPricePolicy.ALLOW), cap(scope)], CALL, None)

    assert (refused.value.limit, refused.value.code) == (Decimal(1), "cap_uncheckable")


def test_where_unknown_prices_are_allowed_something_is_reserved_all_the_same() -> None:
    """A spent cap has no room, not even for a call of unknown price."""
    claimed = claim_reservation([cap(CapScope.DAY, unknown=UnknownPricePolicy.ALLOW)], CALL, None)

    assert claimed
    assert to_picodollars(claimed.dollars) == 1
    told = make_cap_exceeded(cap(CapScope.DAY), standing("1"), None)
    assert "costs nobody knows how much, and the cap on a day is $1.00, of which $1.00 are spent;" in str(told)


@pytest.mark.parametrize(
    ("scope", "agent", "words", "remedy"),
    [
        (CapScope.SESSION, None, "the cap on a session is", "begin another session"),
        (CapScope.SESSION, "ana", "the cap on a session of ana is", "begin another session"),
        (CapScope.AGENT, None, "the cap on an agent is", "raise the cap"),
        (CapScope.AGENT, "ana", "the cap on agent ana is", "raise the cap"),
        (CapScope.DAY, "ana", "the cap on a day of ana is", "wait for the next day"),
        (CapScope.TOTAL, None, "the cap on all that is spent is", "raise the cap"),
        (CapScope.TOTAL, "ana", "the cap on agent ana is", "raise the cap"),
    ],
)
def test_a_refusal_names_the_cap_and_all_the_dollars(
    scope: CapScope, agent: str | None, words: str, remedy: str
) -> None:
    told = make_cap_exceeded(cap(scope, "5", agent=agent), standing("4.9", "0.05"), Decimal("0.2"))

    assert f"this call may cost $0.20, and {words} $5.00, of which $4.90 are spent and $0.05 reserved" in str(
        told
    )
    assert remedy in told.remedy
    assert (told.limit, told.spent, told.reserved, told.ceiling) == tuple(
        map(Decimal, ("5", "4.9", "0.05", "0.2"))
    )


def test_a_cap_full_of_reservations_suggests_to_wait() -> None:
    told = make_cap_exceeded(cap(CapScope.SESSION, "5"), standing("1", "3.9"), Decimal("0.2"))

    assert told.remedy == "try again when calls under way are done, or raise the cap"


def test_there_is_a_warning_from_the_share_on_that_the_cap_says() -> None:
    caps = [replace(cap(CapScope.DAY), warn_at=Decimal("0.5")), cap(CapScope.SESSION), cap(CapScope.CALL)]

    def warned(spent: str, reserved: str, ceiling: str) -> list[CapScope]:
        standings = dict.fromkeys(list_accounts(CALL), standing(spent, reserved))
        return [one.cap.scope for one in find_cap_warnings(caps, CALL, Decimal(ceiling), standings)]

    assert warned("0.3", "0.199", "0.1") == []
    assert warned("0.3", "0.2", "0.1") == [CapScope.DAY]
    assert warned("0.8", "0.0", "0.1") == [CapScope.DAY, CapScope.SESSION]
    assert warned("0.8", "0.0", "0.8") == [CapScope.DAY, CapScope.SESSION, CapScope.CALL]
    assert find_cap_warnings([cap(CapScope.DAY, agent="bob")], CALL, Decimal(9), {}) == ()


def test_a_warning_says_how_the_account_stands() -> None:
    (warning,) = find_cap_warnings(
        [cap(CapScope.DAY)], CALL, Decimal(1), {"day 2026-11-15": standing("0.95", "0.02")}
    )

    assert str(warning) == (
        "the cap on a day is $1.00, of which $0.95 are spent and $0.02 reserved for calls under way"
    )


def test_a_cap_that_cannot_be_checked_says_why() -> None:
    told = make_cap_uncheckable(cap(CapScope.DAY), "the store is gone", "bring it back")

    assert str(told) == "the cap on a day ($1.00) cannot be checked: the store is gone; bring it back"
    assert (told.cap, told.reason) == ("the cap on a day", "the store is gone")


@pytest.mark.parametrize("wrong", ["-0.01", "NaN", "Infinity", "5000000", "1e300"])
def test_a_cap_of_no_such_dollars_is_refused(wrong: str) -> None:
    with pytest.raises(BadOption, match="from 0 to four million"):
        cap(CapScope.DAY, wrong)


@pytest.mark.parametrize("wrong", ["-0.01", "1.01", "NaN", "Infinity"])
def test_a_warning_beyond_the_cap_is_refused(wrong: str) -> None:
    with pytest.raises(BadOption, match="from 0 to 1"):
        Cap(scope=CapScope.DAY, dollars=Decimal(1), warn_at=Decimal(wrong))


@pytest.mark.parametrize("wrong", ["-0.01", "NaN", "sNaN", "Infinity"])
def test_a_call_that_costs_no_such_dollars_is_refused_also_without_caps(wrong: str) -> None:
    for caps in ([], [cap(CapScope.CALL)], [cap(CapScope.DAY)]):
        with pytest.raises(BadOption, match="some dollars at most"):
            claim_reservation(caps, CALL, Decimal(wrong))


def test_an_amount_too_large_to_store_exceeds_every_cap() -> None:
    claimed = claim_reservation([cap(CapScope.DAY)], CALL, Decimal("1e30"))

    assert claimed
    assert to_picodollars(claimed.dollars) == 2**62 - 1


SUMS = st.decimals("-4000000", "4000000", places=20)


@given(SUMS)
def test_dollars_are_exact_to_the_picodollar_in_any_context(money: Decimal) -> None:
    kept = to_picodollars(money)

    assert abs(to_dollars(kept) - money) <= Decimal("5e-13")
    assert 0 <= to_dollars(to_picodollars_rounded_up(money)) - money < Decimal("1e-12")


@given(st.integers(-(2**62) + 1, 2**62 - 1))
def test_picodollars_go_through_dollars_and_back(whole: int) -> None:
    assert to_picodollars(to_dollars(whole)) == to_picodollars_rounded_up(to_dollars(whole)) == whole


@pytest.mark.parametrize("wrong", ["5e6", "-5e6", "NaN", "sNaN", "-Infinity", "1e999999"])
def test_amounts_too_large_to_store_are_rejected(wrong: str) -> None:
    with pytest.raises(OverflowError, match="more than can be kept"):
        to_picodollars(Decimal(wrong))


@pytest.mark.parametrize(
    ("money", "words"),
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
def test_dollars_are_written_as_people_do_and_are_never_nothing_where_they_are_something(
    money: str, words: str
) -> None:
    assert format_dollars(Decimal(money)) == words
