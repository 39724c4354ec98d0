"""A tier whose price nobody knows costs what is usual, and that is said; it never costs nothing."""

from dataclasses import replace

from msgspec import structs

from foveate.cost.price_book import PriceBook
from foveate.replay.recordings import Lacking, Recording
from foveate.replay.replaying import ReplayOptions, replay
from tests.sessions_to_replay import Turn, recorded

BOOK = PriceBook()


def served(tier: str) -> Recording:
    usual = recorded([Turn(), Turn()])
    calls = [
        replace(call, billed=structs.replace(call.billed, tier=tier)) for call in usual.calls if call.billed
    ]
    return replace(usual, calls=tuple(calls))


def test_a_tier_of_unknown_price_costs_what_is_usual_and_that_is_said() -> None:
    usual, fast = (replay(served(tier), BOOK, ReplayOptions()) for tier in ("", "priority"))

    assert fast.outcomes == usual.outcomes
    assert fast.check.logged == usual.check.logged > 0
    assert Lacking.TIER_PRICE in fast.lacks
    assert Lacking.TIER_PRICE not in usual.lacks


def test_a_tier_of_known_price_has_that() -> None:
    usual, batch = (replay(served(tier), BOOK, ReplayOptions()) for tier in ("", "batch"))

    assert batch.check.logged * 2 == usual.check.logged
    assert Lacking.TIER_PRICE not in batch.lacks
