"""What edits have saved, from the charges of their session."""

from dataclasses import replace
from decimal import Decimal

from msgspec.structs import replace as replace_struct

from foveate.compaction.inspection import EditGain, RealizedGain, realized_gains
from foveate.compaction.store import CompactionOutcome, EditDecision
from foveate.cost.ledger import Category, Charge
from foveate.model import Savings
from tests.support.stores.ledger_records import CHARGE
from tests.support.stores.records import CLEARED_COMPACTION, COMPACTION

FIRST = replace(
    COMPACTION, id="first", compacted_at=100.0, tokens_before=10_000, tokens_after=1_000, cost=Decimal(0)
)
EXTENSION = replace(
    FIRST, id="second", earlier_id="first", compacted_at=200.0, tokens_before=15_000, tokens_after=3_000
)


def charge(at: float, saved: str | None, category: Category = Category.MAIN) -> Charge:
    call = replace_struct(CHARGE.call, at=at, category=category)
    savings = Savings(compaction=None if saved is None else Decimal(saved))
    return replace_struct(CHARGE, call=call, savings=savings)


def test_the_saving_of_a_request_is_shared_by_the_tokens_that_each_edit_freed() -> None:
    charges = [charge(50, "9"), charge(150, "2"), charge(250, "12"), charge(260, None)]

    gains = realized_gains([FIRST, EXTENSION], charges)

    # 9,000 tokens freed by the first, 3,000 more by its extension
    assert gains["first"] == RealizedGain(dollars=Decimal(11), requests=2)
    assert gains["second"] == RealizedGain(dollars=Decimal(3), requests=1)


def test_the_price_of_the_summary_is_subtracted() -> None:
    paid = replace(FIRST, cost=Decimal("0.25"))

    assert realized_gains([paid], [charge(150, "2")])["first"].dollars == Decimal("1.75")
    assert realized_gains([paid], []) == {"first": RealizedGain(dollars=Decimal("-0.25"))}


def test_a_request_that_waited_for_an_edit_counts() -> None:
    decision = EditDecision(
        moment="arrival", gain_dollars=2.0, cost_dollars=0.5, expected_requests=3.0, growth_tokens=900.0
    )
    cleared = replace(CLEARED_COMPACTION, id="cleared", compacted_at=100.5, decision=decision)

    gains = realized_gains([cleared], [charge(60, "9"), charge(100, "3"), charge(120, "4")])

    assert gains["cleared"] == RealizedGain(dollars=Decimal(7), requests=2)


def test_expected_and_realized_gain_are_both_after_all_costs() -> None:
    decision = EditDecision(
        moment="response", gain_dollars=2.0, cost_dollars=0.5, expected_requests=30.0, growth_tokens=900.0
    )

    assert EditGain(decision, RealizedGain(dollars=Decimal("-0.2"))).sentences() == (
        "Made after a response, because it was expected to save $2.0000 in about 30 more requests and to cost"
        " $0.5000, so $1.5000 in all.",
        "So far it has lost $0.2000 in 0 requests, summary included.",
    )
    assert EditGain(None, RealizedGain()).sentences() == ()


def test_losses_count_and_summaries_and_keep_alives_do_not() -> None:
    charges = [charge(150, "-0.5"), charge(160, "-7", Category.COMPACTION), charge(170, "0", Category.PING)]

    assert realized_gains([FIRST], charges) == {"first": RealizedGain(dollars=Decimal("-0.5"), requests=1)}


def test_an_edit_saves_only_while_it_is_in_force() -> None:
    undone = replace(FIRST, undone_at=200.0)
    failed = replace(FIRST, id="failed", outcome=CompactionOutcome.FAILED)
    cleared = replace(CLEARED_COMPACTION, id="cleared", compacted_at=300.0, decision=None)

    gains = realized_gains([undone, failed, cleared], [charge(150, "1"), charge(250, "1"), charge(350, "4")])

    assert gains == {
        "first": RealizedGain(dollars=Decimal(1), requests=1),
        "cleared": RealizedGain(dollars=Decimal(4), requests=1),
    }
