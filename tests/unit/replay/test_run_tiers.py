"""A service tier of unknown price costs the standard price and is reported; it is never free."""

from dataclasses import replace

from msgspec import structs

from foveate.cost.pricing.price_book import PriceBook
from foveate.replay.recording import MissingPart, Recording
from foveate.replay.run import ReplayOptions, replay_recording
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_recording

BOOK = PriceBook()


def served(tier: str) -> Recording:
    usual = make_recording([PlannedTurn(), PlannedTurn()])
    calls = [replace(call, usage=structs.replace(call.usage, tier=tier)) for call in usual.calls if call.usage]
    return replace(usual, calls=tuple(calls))


def test_a_tier_of_unknown_price_costs_the_standard_price_and_is_reported() -> None:
    usual, fast = (replay_recording(served(tier), BOOK, ReplayOptions()) for tier in ("", "priority"))

    assert fast.outcomes == usual.outcomes
    assert fast.check.logged == usual.check.logged > 0
    assert MissingPart.TIER_PRICE in fast.missing
    assert MissingPart.TIER_PRICE not in usual.missing


def test_a_tier_of_known_price_has_that_price() -> None:
    usual, batch = (replay_recording(served(tier), BOOK, ReplayOptions()) for tier in ("", "batch"))

    assert batch.check.logged * 2 == usual.check.logged
    assert MissingPart.TIER_PRICE not in batch.missing
