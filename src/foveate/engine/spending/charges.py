"""The charge of a call: opened before it is sent, completed with its response, persisted in the ledger."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from msgspec.structs import replace

from foveate.cost.admission import Admission
from foveate.cost.ledger import Charge
from foveate.cost.savings import PriceUsage, compare_costs, make_price_function, make_unchanged_savings
from foveate.engine.exchange import Exchange
from foveate.engine.options import SpendingOptions
from foveate.engine.request_context import CostFields, RequestContext
from foveate.engine.session_state import SessionStates
from foveate.engine.steps import CAPS
from foveate.engine.steps.caps import set_cost_ceiling
from foveate.formats.incremental.envelope import get_parameters
from foveate.formats.json_text.parse import parse_json
from foveate.model import CacheUsage, ComparisonOutcome, Savings, Usage


class ChargeRecorder:
    def __init__(self, admission: Admission, options: Callable[[], SpendingOptions]) -> None:
        self._admission = admission
        self._options = options

    def open(self, cost: CostFields) -> None:
        """Note a call before it is sent, in case this process ends before the call does."""
        if cost.call is not None:
            self._admission.announce(
                cost.call, ceiling=cost.ceiling_dollars, estimated_input_tokens=cost.estimated_input_tokens
            )

    def complete(self, exchange: Exchange) -> None:
        """Write the charge to the write-ahead log, so that it survives the end of this process."""
        cost, context = exchange.cost, exchange.context
        call = cost.call
        if call is None:
            return
        has_usage = exchange.has_complete_usage
        if not has_usage and not exchange.may_be_charged:
            self._admission.withdraw(call.id)
            return
        options = self._options()
        prices = options.prices
        price = make_price_function(prices, call)
        usage = exchange.usage or Usage(cache=CacheUsage())
        if exchange.is_subscription and not call.is_subscription:
            call = cost.call = replace(call, is_subscription=True)
        if not has_usage and context is not None:
            _ensure_cost_ceiling(exchange, context, options)
        dollars = price(usage) if has_usage else None
        exchange.charge = Charge(
            call=call,
            usage=usage,
            dollars=dollars,
            estimated_input_tokens=cost.estimated_input_tokens,
            estimated_dollars=cost.ceiling_dollars,
            is_partial=not exchange.is_complete,
            charge=None if has_usage else _estimate_charge(exchange, price, options),
            is_inherited=has_usage
            and prices.is_inherited(call.model, usage, provider=call.provider, at=call.at),
            savings=make_unchanged_savings(dollars) if context is None else Savings(),
        )
        self._admission.log_charge(exchange.charge)

    async def persist(self, exchanges: Sequence[Exchange]) -> None:
        """Write the charges of finished calls to the ledger, and release reservations without a charge."""
        charges = [
            _with_savings(exchange, exchange.charge) for exchange in exchanges if exchange.charge is not None
        ]
        unused = [
            reservation for exchange in exchanges if (reservation := exchange.unused_reservation) is not None
        ]
        try:
            if charges:
                await self._admission.settle_all(charges)
        finally:
            await asyncio.gather(*map(self._admission.release, unused))


def _with_savings(exchange: Exchange, charge: Charge) -> Charge:
    if exchange.context is None:
        return charge
    exchange.charge = replace(charge, estimated_dollars=exchange.cost.ceiling_dollars, savings=exchange.savings)
    return exchange.charge


@dataclass(frozen=True, slots=True)
class CompareCosts:
    """Computes what Foveate saved with a call. The client has its response."""

    options: Callable[[], SpendingOptions]
    session_states: SessionStates

    def __call__(self, exchange: Exchange) -> None:
        context, charge = exchange.context, exchange.charge
        if context is None or charge is None:
            return
        options = self.options()
        _ensure_cost_ceiling(exchange, context, options)
        if not exchange.has_complete_usage:
            return
        if self.session_states.session(charge.call.agent, charge.call.session_id).would_exceed_window:
            exchange.savings = Savings(comparison=ComparisonOutcome.WOULD_NOT_FIT)
            return
        if context.cache.needs_simulation and not (
            exchange.simulated_usage and context.session.state.has_served_all
        ):
            return
        price = make_price_function(options.prices, charge.call)
        exchange.savings = compare_costs(charge.usage, charge.dollars, price, exchange.simulated_usage)


def _ensure_cost_ceiling(exchange: Exchange, context: RequestContext, options: SpendingOptions) -> None:
    if context.cost.reservation is not None or context.cost.ceiling is not None:
        return
    try:
        set_cost_ceiling(context, options)
    except Exception as error:  # noqa: BLE001 - the charge is recorded, with or without a ceiling
        exchange.report_failure(CAPS, error)


def _estimate_charge(exchange: Exchange, price: PriceUsage, options: SpendingOptions) -> Decimal | None:
    """Estimate the cost of a stream without complete usage; None if all that was reserved may be charged."""
    usage, ceiling = exchange.usage, exchange.cost.ceiling
    if usage is not None and usage.is_unreadable:
        return exchange.cost.ceiling_dollars
    output_tokens = exchange.estimated_output_tokens
    if output_tokens is None or ceiling is None or _goes_on_without_reader(exchange):
        return None
    output_tokens = min(output_tokens, ceiling.output_tokens)
    if usage is not None and usage.cache.input_tokens:  # some hosts begin with zeros
        return price(replace(usage, output_tokens=max(usage.output_tokens, output_tokens)))
    return replace(ceiling, output_tokens=output_tokens).dollars(options.prices)


def _goes_on_without_reader(exchange: Exchange) -> bool:
    """Return whether the provider writes the whole response even if nobody reads it (OpenAI's `background`)."""
    context = exchange.context
    return context is not None and parse_json(get_parameters(context.request).get("background")) is True
