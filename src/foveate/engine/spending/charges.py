"""Recording the charge of a call in the ledger."""

from collections.abc import Callable
from decimal import Decimal

from msgspec.structs import replace

from foveate.cost.admission import Admission
from foveate.cost.ledger import Charge
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.savings import PriceUsage, compare_costs, make_price_function
from foveate.engine.context import RequestContext
from foveate.engine.exchange import Exchange
from foveate.engine.options import SpendingOptions
from foveate.engine.session_state import SessionStates
from foveate.engine.steps.caps import set_cost_ceiling
from foveate.engine.steps.names import CAPS
from foveate.model import CacheUsage, ComparisonOutcome, Savings, Usage


class RecordCharges:
    """Records the charge of a call before the client has the whole response; adds its savings afterwards."""

    def __init__(
        self, admission: Admission, options: Callable[[], SpendingOptions], session_states: SessionStates
    ) -> None:
        self._admission = admission
        self._options = options
        self._session_states = session_states

    def announce_call(self, context: RequestContext) -> None:
        """Note a call before it is sent, in case this process ends before the call does."""
        if context.cost.call is not None:
            self._admission.announce(
                context.cost.call,
                ceiling=context.cost.ceiling_dollars,
                estimated_input_tokens=context.count.total.tokens if context.count.total is not None else None,
            )

    def record_charge(self, exchange: Exchange) -> None:
        """Write the charge to the write-ahead log, so that it survives the end of this process."""
        context = exchange.context
        if context is None or context.cost.call is None:
            return
        has_usage = exchange.has_complete_usage
        if not has_usage and not exchange.may_be_charged:
            self._admission.withdraw(context.cost.call.id)
            return
        options = self._options()
        prices = options.prices
        price = make_price_function(prices, context.cost.call)
        usage = exchange.usage or Usage(cache=CacheUsage())
        call = context.cost.call
        if exchange.is_subscription and not call.is_subscription:
            call = context.cost.call = replace(call, is_subscription=True)
        exchange.charge = Charge(
            call=call,
            usage=usage,
            dollars=price(usage) if has_usage else None,
            estimated_input_tokens=context.count.total.tokens if context.count.total is not None else None,
            estimated_dollars=context.cost.ceiling_dollars,
            is_partial=not exchange.is_complete,
            charge=None if has_usage else _estimate_charge(exchange, context, price, options),
            is_inherited=has_usage
            and prices.is_inherited(call.model, usage, provider=call.provider, at=call.at),
        )
        self._admission.log_charge(exchange.charge)

    def __call__(self, exchange: Exchange) -> None:
        """Add savings to the charge; nobody waits for them."""
        context, charge = exchange.context, exchange.charge
        if context is None or charge is None:
            return
        options = self._options()
        _ensure_cost_ceiling(exchange, context, options)
        exchange.charge = replace(
            charge,
            estimated_dollars=context.cost.ceiling_dollars,
            savings=self._compare_cost(exchange, context, charge, options.prices),
        )

    def _compare_cost(
        self, exchange: Exchange, context: RequestContext, charge: Charge, prices: PriceBook
    ) -> Savings:
        if not exchange.has_complete_usage:
            return Savings()
        if self._session_states.session(charge.call.agent, charge.call.session_id).would_exceed_window:
            return Savings(comparison=ComparisonOutcome.WOULD_NOT_FIT)
        if context.cache.needs_simulation and not (
            exchange.simulated_usage and context.session.state.has_served_all
        ):
            return Savings()
        return compare_costs(
            charge.usage, charge.dollars, make_price_function(prices, charge.call), exchange.simulated_usage
        )


def _ensure_cost_ceiling(exchange: Exchange, context: RequestContext, options: SpendingOptions) -> None:
    if context.cost.reservation is not None or context.cost.ceiling is not None:
        return
    try:
        set_cost_ceiling(context, options)
    except Exception as error:  # noqa: BLE001 - the charge is recorded, with or without a ceiling
        exchange.report_failure(CAPS, error)


def _estimate_charge(
    exchange: Exchange, context: RequestContext, price: PriceUsage, options: SpendingOptions
) -> Decimal | None:
    """Estimate the cost of a stream without complete usage; None if all that was reserved may be charged."""
    _ensure_cost_ceiling(exchange, context, options)
    usage = exchange.usage
    if usage is not None and usage.is_unreadable:
        return context.cost.ceiling_dollars
    output_tokens, ceiling = exchange.estimated_output_tokens, context.cost.ceiling
    if output_tokens is None or ceiling is None:
        return None
    output_tokens = min(output_tokens, ceiling.output_tokens)
    if usage is not None:
        return price(replace(usage, output_tokens=max(usage.output_tokens, output_tokens)))
    return replace(ceiling, output_tokens=output_tokens).dollars(options.prices)
