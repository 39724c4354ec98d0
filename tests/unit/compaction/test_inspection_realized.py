"""What edits have saved, from the charges of their session."""

from collections.abc import AsyncIterator
from dataclasses import replace
from decimal import Decimal

import pytest
from msgspec.structs import replace as replace_struct

from foveate.compaction.inspection import EditGain, RealizedGain, load_gains, realized_gains
from foveate.compaction.store import Compaction, CompactionOutcome, EditDecision
from foveate.cost.ledger import Category, Charge
from foveate.model import CacheUsage, Savings, Usage
from tests.support.oracles.event_loop import turns_while
from tests.support.stores.ledger_records import CHARGE
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore
from tests.support.stores.memory_ledger import InMemoryLedger
from tests.support.stores.records import CLEARED_COMPACTION, COMPACTION, MOVED_SECTIONS

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

    assert EditGain(CompactionOutcome.OK, decision, RealizedGain(dollars=Decimal("-0.2"))).sentences() == (
        "Made after a response, because it was expected to save $2.0000 in about 30 more requests and to cost"
        " $0.5000, so $1.5000 in all.",
        "So far it has lost $0.2000 in 0 requests, summary included.",
    )
    assert EditGain(CompactionOutcome.OK, None, RealizedGain()).sentences() == ()


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


# It costs $0.03125, and each later request with a warm cache saves $0.0108.
MOVE = replace(MOVED_SECTIONS, id="move", compacted_at=100.0)
MOVE_COST, SAVED_PER_REQUEST = Decimal("0.03125"), Decimal("0.0108")


def read_charge(at: float, *, read: int = 8_800, uncached: int = 200) -> Charge:
    cache = CacheUsage(read=read, uncached=uncached)
    return replace_struct(charge(at, None), usage=Usage(cache=cache, output_tokens=5))


def test_each_request_with_a_warm_cache_saves_money_after_a_move_of_sections() -> None:
    charges = [read_charge(80), read_charge(100, read=400), *(read_charge(at) for at in (120, 140, 160, 180))]

    gains = realized_gains([MOVE], charges)

    assert gains == {"move": RealizedGain(dollars=4 * SAVED_PER_REQUEST - MOVE_COST, requests=4)}
    assert EditGain(MOVE.outcome, MOVE.decision, gains["move"]).sentences() == (
        "Made before a request was sent, because it was expected to save $0.2500 in about 20 more requests and"
        " to cost $0.0312, so $0.2188 in all.",
        "So far it has saved $0.0120 in 4 requests, writing the history again included.",
    )


def test_a_move_of_sections_is_a_loss_if_the_session_ends_at_once() -> None:
    gain = realized_gains([MOVE], [read_charge(100, read=400)])["move"]

    assert gain == RealizedGain(dollars=-MOVE_COST)
    assert EditGain(MOVE.outcome, None, gain).sentences() == (
        "So far it has lost $0.0312 in 0 requests, writing the history again included.",
    )


@pytest.mark.parametrize("preamble", [0, 1_000])
def test_a_move_of_sections_saves_nothing_more_once_the_cache_has_expired(preamble: int) -> None:
    """Another session of the agent may keep the system prompt in the cache."""
    charges = [read_charge(120), read_charge(4_000, read=preamble, uncached=9_500), read_charge(4_020)]

    assert realized_gains([MOVE], charges)["move"].requests == 1


def test_a_move_of_sections_saves_nothing_more_once_the_history_is_written_again() -> None:
    charges = [read_charge(at) for at in (120, 140, 160, 180)]
    second_move = replace(MOVE, id="second", compacted_at=140.0)
    compaction = replace(FIRST, compacted_at=150.0)
    truncation = replace(FIRST, id="cut", outcome=CompactionOutcome.TOOL_RESULT_TRUNCATED, compacted_at=110.0)

    assert realized_gains([MOVE, compaction], charges)["move"].requests == 2
    assert realized_gains([MOVE, truncation], charges)["move"].requests == 4
    gains = realized_gains([second_move, MOVE], charges)
    assert (gains["move"].requests, gains["second"].requests) == (1, 2)


def test_other_requests_of_the_session_do_not_count_for_a_move_of_sections() -> None:
    title_request = read_charge(130, read=0, uncached=300)
    rejected = replace_struct(charge(140, None), usage=Usage(cache=CacheUsage()))
    keep_alive = replace_struct(
        read_charge(150), call=replace_struct(CHARGE.call, at=150, category=Category.PING)
    )
    charges = [read_charge(120), title_request, rejected, keep_alive, read_charge(160)]

    assert realized_gains([MOVE], charges)["move"].requests == 2


class _ManyCharges(InMemoryLedger):
    async def list_charges(self, **_: object) -> AsyncIterator[Charge]:
        for number in range(2_000):
            yield charge(100 + number, "1")


class _ManyEdits(InMemoryCompactionStore):
    async def list_compactions(self, **_: object) -> list[Compaction]:
        return [replace(FIRST, id=f"edit {number}", compacted_at=100.0 + number) for number in range(100)]


async def test_gains_of_a_long_session_do_not_block_the_event_loop() -> None:
    charges = _ManyCharges()
    reading_turns = await turns_while(_read_all(charges))

    turns = await turns_while(load_gains(_ManyEdits(), charges, "s"))

    assert turns > reading_turns + 10
    assert len(await load_gains(_ManyEdits(), None, "s")) == 100


async def _read_all(charges: _ManyCharges) -> None:
    async for _ in charges.list_charges():
        pass
