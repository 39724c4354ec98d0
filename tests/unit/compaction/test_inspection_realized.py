"""What edits have saved, from the charges of their session."""

from dataclasses import replace
from decimal import Decimal

from msgspec.structs import replace as replace_struct

from foveate.compaction.inspection import RealizedGain, realized_gains
from foveate.compaction.store import CompactionOutcome
from foveate.cost.ledger import Category, Charge
from foveate.model import Savings
from tests.support.stores.ledger_records import CHARGE
from tests.support.stores.records import CLEARED_COMPACTION, COMPACTION

FIRST = replace(COMPACTION, id="first", compacted_at=100.0, tokens_before=10_000, tokens_after=1_000)
EXTENSION = replace(
    COMPACTION, id="second", earlier_id="first", compacted_at=200.0, tokens_before=15_000, tokens_after=3_000
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


def test_losses_count_and_summaries_and_keep_alives_do_not() -> None:
    charges = [charge(150, "-0.5"), charge(160, "-7", Category.COMPACTION), charge(170, "0", Category.PING)]

    assert realized_gains([FIRST], charges) == {"first": RealizedGain(dollars=Decimal("-0.5"), requests=1)}


def test_an_edit_saves_only_while_it_is_in_force() -> None:
    undone = replace(FIRST, undone_at=200.0)
    failed = replace(FIRST, id="failed", outcome=CompactionOutcome.FAILED)
    cleared = replace(CLEARED_COMPACTION, id="cleared", compacted_at=300.0)

    gains = realized_gains([undone, failed, cleared], [charge(150, "1"), charge(250, "1"), charge(350, "4")])

    assert gains == {
        "first": RealizedGain(dollars=Decimal(1), requests=1),
        "cleared": RealizedGain(dollars=Decimal(4), requests=1),
    }
