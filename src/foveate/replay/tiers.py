"""Calls that were served in a way whose price nobody knows: priority, flex, fast."""

from dataclasses import replace

from msgspec import structs

from foveate.cost.price_book import PriceBook
from foveate.replay.marking import rules_at
from foveate.replay.recordings import MissingPart, RecordedCall, Recording


def drop_unpriced_tiers(recording: Recording, book: PriceBook) -> Recording:
    """The recording with such calls as if they had been served as usual; it then lacks their price."""
    calls = tuple(_drop_unpriced_tier(call, book) for call in recording.calls)
    if all(adjusted is original for adjusted, original in zip(calls, recording.calls, strict=True)):
        return recording
    return replace(recording, calls=calls, missing=recording.missing | {MissingPart.TIER_PRICE})


def _drop_unpriced_tier(call: RecordedCall, book: PriceBook) -> RecordedCall:
    usage = call.usage
    if usage is None or not usage.tier:
        return call
    provider = rules_at(call.model, call.at).provider
    if book.rates(call.model, provider=provider, at=call.at, tier=usage.tier) is not None:
        return call
    return replace(call, usage=structs.replace(usage, tier=""))
