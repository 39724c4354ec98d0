"""Calls that were served in a way whose price nobody knows: priority, flex, fast."""

from dataclasses import replace

from msgspec import structs

from foveate.cost.price_book import PriceBook
from foveate.replay.marking import rules_then
from foveate.replay.recordings import Call, Lacking, Recording


def usual_tiers(recording: Recording, book: PriceBook) -> Recording:
    """The recording with such calls as if they had been served as usual; it then lacks their price."""
    calls = tuple(_usual(call, book) for call in recording.calls)
    if all(one is other for one, other in zip(calls, recording.calls, strict=True)):
        return recording
    return replace(recording, calls=calls, lacks=recording.lacks | {Lacking.TIER_PRICE})


def _usual(call: Call, book: PriceBook) -> Call:
    billed = call.billed
    if billed is None or not billed.tier:
        return call
    provider = rules_then(call.model, call.at).provider
    if book.rates(call.model, provider=provider, at=call.at, tier=billed.tier) is not None:
        return call
    return replace(call, billed=structs.replace(billed, tier=""))
