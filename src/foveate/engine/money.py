"""Money on the way of a call: a cap is held before it is made, and its bill is booked after."""

from collections.abc import Callable
from decimal import Decimal

from msgspec.structs import replace

from foveate.cost.admission import Admission
from foveate.cost.ledger import Entry
from foveate.cost.price_book import PriceBook
from foveate.cost.savings import PriceOf, compare, pricing
from foveate.engine.exchange import Exchange
from foveate.engine.options import MoneyOptions
from foveate.engine.remembered import Remembered
from foveate.engine.steps.caps import expect
from foveate.engine.steps.names import COST
from foveate.engine.work import Work
from foveate.values import CacheUsage, Comparison, Savings, Usage


class Book:
    """What a call was billed goes into the ledger.

    It is noted before the client has all of the answer. What was saved on it is added afterwards.
    """

    def __init__(
        self, admission: Admission, options: Callable[[], MoneyOptions], remembered: Remembered
    ) -> None:
        self._admission = admission
        self._options = options
        self._remembered = remembered

    def announce(self, work: Work) -> None:
        """Note a call before it is sent, so that it is not lost if this process ends before it does."""
        if work.call is not None:
            self._admission.announce(
                work.call,
                ceiling=work.ceiling,
                estimated_input_tokens=work.count.tokens if work.count is not None else None,
            )

    def note(self, exchange: Exchange) -> None:
        """Jot down what it was billed: whatever becomes of this process, it will be booked."""
        work = exchange.work
        if work is None or work.call is None:
            return
        has_bill = exchange.has_bill
        if not has_bill and not exchange.may_be_billed:
            self._admission.withdraw(work.call.id)
            return
        options = self._options()
        prices = options.prices
        price = pricing(prices, work.call)
        usage = exchange.usage or Usage(cache=CacheUsage())
        call = work.call
        if exchange.is_subscription and not call.is_subscription:
            call = work.call = replace(call, is_subscription=True)
        exchange.entry = Entry(
            call=call,
            usage=usage,
            dollars=price(usage) if has_bill else None,
            estimated_input_tokens=work.count.tokens if work.count is not None else None,
            estimated_dollars=work.ceiling,
            is_partial=not exchange.is_whole,
            charge=None if has_bill else _charge(exchange, work, price, options),
            is_inherited=has_bill
            and prices.is_inherited(call.model, usage, provider=call.provider, at=call.at),
        )
        self._admission.jot(exchange.entry)

    def __call__(self, exchange: Exchange) -> None:
        """Add to the bill what nobody waits for."""
        work, entry = exchange.work, exchange.entry
        if work is None or entry is None:
            return
        options = self._options()
        _know_most(exchange, work, options)
        exchange.entry = replace(
            entry, estimated_dollars=work.ceiling, savings=self._compare(exchange, work, entry, options.prices)
        )

    def _compare(self, exchange: Exchange, work: Work, entry: Entry, prices: PriceBook) -> Savings:
        if not exchange.has_bill:
            return Savings()
        if self._remembered.session(entry.call.agent, entry.call.session_id).would_not_fit:
            return Savings(comparison=Comparison.WOULD_NOT_FIT)
        if work.needs_simulation and not (exchange.simulated and work.state.is_whole):
            return Savings()
        return compare(entry.usage, entry.dollars, pricing(prices, entry.call), exchange.simulated)


def _know_most(exchange: Exchange, work: Work, options: MoneyOptions) -> None:
    """Work out what a call can come to where no cap wanted to know it before."""
    if work.admitted is not None or work.at_most is not None:
        return
    try:
        expect(work, options)
    except Exception as error:  # noqa: BLE001 - a border: what is billed is booked, whatever was expected
        exchange.failed(COST, error)


def _charge(exchange: Exchange, work: Work, price: PriceOf, options: MoneyOptions) -> Decimal | None:
    """What a stream without a whole bill has cost by then; None where all that was reserved may be billed."""
    _know_most(exchange, work, options)
    said = exchange.usage
    if said is not None and said.is_unreadable:
        return work.ceiling
    written, most = exchange.written_tokens, work.at_most
    if written is None or most is None:
        return None
    written = min(written, most.output_tokens)
    if said is not None:
        return price(replace(said, output_tokens=max(said.output_tokens, written)))
    return replace(most, output_tokens=written).dollars(options.prices)
