"""Usage of single calls with their cost, as reports sum it."""

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

MAIN = "main"
"""The category of calls that agents make themselves, as in the ledger."""
MAX_MATCH_SECONDS = 900.0
"""The most time between a call in the ledger and its response in a log."""


class UsageRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The usage and cost of one call.

    `picodollars` is None if the price is unknown. `has_logged_cost`: the agent logged it. `is_inherited`: it is
    an upper bound by the model's family. Calls that the gateway made itself have other categories than `main`.
    """

    agent: str
    key: str
    at: float
    session: str
    project: str
    model: str
    uncached: int
    read: int
    written_5m: int
    written_1h: int
    output_tokens: int
    reasoning_tokens: int
    picodollars: int | None
    has_logged_cost: bool = False
    is_inherited: bool = False
    category: str = MAIN

    @property
    def tokens(self) -> int:
        return self.uncached + self.read + self.written_5m + self.written_1h + self.output_tokens


def remove_copies(records: Iterable[UsageRecord]) -> list[UsageRecord]:
    """Keep one record of each call: the one with the most tokens, since others were logged while the response
    was streamed, and of equal ones the earliest.
    """
    by_key: dict[tuple[str, str], UsageRecord] = {}
    for record in records:
        key = record.agent, record.key
        known = by_key.get(key)
        if known is None or (known.tokens, -known.at) < (record.tokens, -record.at):
            by_key[key] = record
    return list(by_key.values())


def merge_ledger(records: Iterable[UsageRecord], charged: Iterable[UsageRecord]) -> list[UsageRecord]:
    """Add the calls of the ledger that are in no log.

    A call through the gateway is in the ledger and in the log of its agent. No id is in both, so they are
    matched by their input tokens, of which the cached ones alone are nearly unique, and by time. The log knows
    session and project of such a call, and the ledger its final output and its cost. Calls that the gateway
    made itself are only in the ledger.
    """
    merged = sorted(records, key=lambda record: record.at)
    unmatched: dict[tuple[int, int, int], list[int]] = {}
    for index, record in enumerate(merged):
        unmatched.setdefault(_input_tokens(record), []).append(index)
    for charge in charged:
        candidates = unmatched.get(_input_tokens(charge), []) if charge.category == MAIN else []
        place = bisect_left(candidates, charge.at, key=lambda index: merged[index].at)
        nearest = min(
            (number for number in (place - 1, place) if 0 <= number < len(candidates)),
            key=lambda number: abs(merged[candidates[number]].at - charge.at),
            default=-1,
        )
        if nearest < 0 or abs(merged[candidates[nearest]].at - charge.at) > MAX_MATCH_SECONDS:
            merged.append(charge)
            continue
        index = candidates.pop(nearest)
        is_priced = charge.picodollars is not None
        merged[index] = msgspec.structs.replace(
            merged[index],
            output_tokens=max(charge.output_tokens, merged[index].output_tokens),
            picodollars=charge.picodollars if is_priced else merged[index].picodollars,
            has_logged_cost=merged[index].has_logged_cost and not is_priced,
            is_inherited=charge.is_inherited if is_priced else merged[index].is_inherited,
        )
    return merged


def _input_tokens(record: UsageRecord) -> tuple[int, int, int]:
    """Not by TTL, which some agents do not log."""
    return record.uncached, record.read, record.written_5m + record.written_1h
