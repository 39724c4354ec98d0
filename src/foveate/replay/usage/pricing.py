"""Prices calls of logs."""

from collections.abc import Iterable
from decimal import Decimal

from foveate.cost.ledger import Charge
from foveate.cost.money import to_picodollars
from foveate.cost.pricing.price_book import PriceBook
from foveate.prompt_cache.rules import rules_for
from foveate.replay.usage.log_scan import LoggedCall
from foveate.replay.usage.records import UsageRecord


def price_calls(agent: str, calls: Iterable[LoggedCall], book: PriceBook) -> list[UsageRecord]:
    """Price calls with the cost that the agent logged, or else with the prices on the day of the call."""
    return [_price_call(agent, call, book) for call in calls]


def _price_call(agent: str, call: LoggedCall, book: PriceBook) -> UsageRecord:
    usage, cache = call.usage, call.usage.cache
    dollars, is_inherited = usage.reported_dollars, False
    if dollars is None:
        provider = call.provider or rules_for(call.model).provider
        dollars = book.dollars(call.model, usage, provider=provider, at=call.at)
        rates = book.rates(call.model, provider=provider, at=call.at)
        is_inherited = dollars is not None and rates is not None and bool(rates.inherited_from)
    return UsageRecord(
        agent=agent,
        key=call.key,
        at=call.at,
        session=call.session,
        project=call.project,
        model=call.model,
        uncached=cache.uncached,
        read=cache.read,
        written_5m=cache.written_5m,
        written_1h=cache.written_1h,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        picodollars=_to_picodollars(dollars),
        has_logged_cost=usage.reported_dollars is not None,
        is_inherited=is_inherited,
    )


def _to_picodollars(dollars: Decimal | None) -> int | None:
    try:
        return None if dollars is None else to_picodollars(dollars)
    except OverflowError:  # no call costs millions: the log is wrong
        return None


def to_record(charge: Charge) -> UsageRecord:
    """Convert a charge of the ledger."""
    call, usage, cache = charge.call, charge.usage, charge.usage.cache
    return UsageRecord(
        agent=call.agent,
        key=call.id,
        at=call.at,
        session=call.session_id,
        project="",
        model=call.model,
        uncached=cache.uncached,
        read=cache.read,
        written_5m=cache.written_5m,
        written_1h=cache.written_1h,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        picodollars=_to_picodollars(charge.dollars),
        is_inherited=charge.is_inherited,
        category=call.category.value,
    )
