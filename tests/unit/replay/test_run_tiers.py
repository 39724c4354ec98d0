"""A service tier of unknown price costs the standard price and is reported; it is never free."""

from dataclasses import replace

from msgspec import structs

from foveate.cost.pricing.price_book import PriceBook
from foveate.replay.recording import MissingPart, Recording
from foveate.replay.run import ReplayOptions, replay_recording
from tests.support.scenarios.recorded_sessions import PlannedTurn, make_recording

BOOK = PriceBook()


def make_tier_recording(tier: str) -> Recording:
    recording = make_recording([PlannedTurn(), PlannedTurn()])
    calls = [
        replace(call, usage=structs.replace(call.usage, tier=tier)) for call in recording.calls if call.usage
    ]
    return replace(recording, calls=tuple(calls))


def test_a_tier_of_unknown_price_costs_the_standard_price_and_is_reported() -> None:
    standard, priority = (
        replay_recording(make_tier_recording(tier), BOOK, ReplayOptions()) for tier in ("", "priority")
    )

    assert priority.outcomes == standard.outcomes
    assert priority.check.logged == standard.check.logged > 0
    assert MissingPart.TIER_PRICE in priority.missing
    assert MissingPart.TIER_PRICE not in standard.missing


def test_a_tier_of_known_price_has_that_price() -> None:
    standard, batch = (
        replay_recording(make_tier_recording(tier), BOOK, ReplayOptions()) for tier in ("", "batch")
    )

    assert batch.check.logged * 2 == standard.check.logged
    assert MissingPart.TIER_PRICE not in batch.missing
