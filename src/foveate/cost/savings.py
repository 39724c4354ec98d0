"""Cost of a call without Foveate, and the savings of each mechanism.

Both sides are simulated. Every state of a call (see `SimulatedState`) is a usage with the same output, priced
like the call, including tiers. The saving of a mechanism is the price of the state without it minus the price
of the next state. Summaries and keep-alive requests are separate calls, which would not exist without Foveate.
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal

from msgspec.structs import replace

from foveate.cost.ledger import Call, Category
from foveate.cost.money import MAX_DOLLARS, to_dollars, to_picodollars
from foveate.cost.pricing.price_book import PriceBook
from foveate.cost.pricing.rates import EXACT, ZERO
from foveate.formats.json_text.parse import to_json
from foveate.formats.response.usage import split_usage
from foveate.model import CacheUsage, ComparisonOutcome, Savings, SimulatedState, Usage

PriceUsage = Callable[[Usage], Decimal | None]
"""Returns the dollars of a usage; None if its price is unknown."""

_SENT_STATE = SimulatedState.KEEP_ALIVE
_ONE = Decimal(1)
_AMOUNTS = ("without", "compaction", "context", "breakpoints", "keep_alive", "simulation_error")
_NO_DIFFERENCE = Savings(
    comparison=ComparisonOutcome.SIMULATED,
    without=ZERO,
    compaction=ZERO,
    context=ZERO,
    breakpoints=ZERO,
    keep_alive=ZERO,
    simulation_error=ZERO,
)


def compare_costs(
    usage: Usage, charged: Decimal | None, price: PriceUsage, simulated: Mapping[SimulatedState, CacheUsage]
) -> Savings:
    """Compare the states of a call that was charged `charged` dollars.

    `simulated` has the estimated input tokens of every state. They are scaled so that those of the sent request
    match the reported usage. An empty mapping means that nothing Foveate did could have changed the price.
    """
    if charged is None:
        return Savings()
    sent_tokens = simulated[_SENT_STATE].input_tokens if simulated else 0
    if not sent_tokens:
        return make_unchanged_savings(charged)
    reported, prices = usage.cache, _UsagePrices(usage, price, charged)
    scale, discount = reported.input_tokens / sent_tokens, prices.discount(charged)
    cost: dict[CacheUsage, Decimal] = {}  # most states have the same usage
    for state_usage in set(simulated.values()):
        more = prices.difference(_scale_usage(state_usage, scale), reported)
        if more is None:
            return Savings()
        cost[state_usage] = _round_to_picodollars(EXACT.add(charged, more * discount))
    client, with_compaction, with_context, with_breakpoints, with_keep_alive = (
        cost[simulated[state]] for state in SimulatedState
    )
    return Savings(
        comparison=ComparisonOutcome.SIMULATED,
        without=client,
        compaction=EXACT.subtract(client, with_compaction),
        context=EXACT.subtract(with_compaction, with_context),
        breakpoints=EXACT.subtract(with_context, with_breakpoints),
        keep_alive=EXACT.subtract(with_breakpoints, with_keep_alive),
        simulation_error=EXACT.subtract(_round_to_picodollars(charged), with_keep_alive),
    )


def make_unchanged_savings(charged: Decimal | None) -> Savings:
    if charged is None:
        return Savings()
    return replace(_NO_DIFFERENCE, without=_round_to_picodollars(charged))


def make_own_call_savings(call: Call, charged: Decimal | None) -> Savings:
    """Return the savings of a call that Foveate makes itself: its cost counts against its purpose."""
    if charged is None:
        return Savings()
    charged = _round_to_picodollars(charged)
    match call.category:
        case Category.COMPACTION:
            return replace(_NO_DIFFERENCE, compaction=EXACT.minus(charged))
        case Category.PING:
            return replace(_NO_DIFFERENCE, keep_alive=EXACT.minus(charged))
    return make_unchanged_savings(charged)


def add_savings(savings: Iterable[Savings]) -> Savings:
    """Add up savings; unknown amounts are ignored."""
    added: dict[str, Decimal | None] = dict.fromkeys(_AMOUNTS)
    for call_savings in savings:
        for name in _AMOUNTS:
            amount, so_far = getattr(call_savings, name), added[name]
            if amount is not None:
                added[name] = amount if so_far is None else EXACT.add(so_far, amount)
    return Savings(comparison=ComparisonOutcome.SIMULATED, **added)


def make_price_function(book: PriceBook, call: Call) -> PriceUsage:
    """Return a function that prices a usage as if it were that of `call`; None if it is too large to store."""

    def price(usage: Usage) -> Decimal | None:
        dollars = book.dollars(call.model, usage, provider=call.provider, at=call.at, region=call.region)
        return dollars if dollars is None or dollars <= MAX_DOLLARS else None

    return price


class _UsagePrices:
    """Prices of a usage with other input tokens, each computed once.

    They include tokens only: a price stated by the provider, inner calls and other units belong to the request
    that was really sent. The region applies to all of them.
    """

    def __init__(self, usage: Usage, price: PriceUsage, charged: Decimal) -> None:
        first = split_usage(usage)[0]
        self._usage = usage
        self._raw = to_json({"inference_geo": first.region}) if first.region else b""
        self._price = price
        self._prices: dict[CacheUsage, Decimal | None] = {}
        if first.usage is usage and not first.units and usage.reported_dollars is None:
            self._prices[usage.cache] = charged

    def discount(self, charged: Decimal) -> Decimal:
        """Return the charged share of the token prices, if the provider states a lower price.

        A call that was free saves nothing.
        """
        list_price = self._price_input(self._usage.cache) if self._usage.reported_dollars is not None else None
        return charged / list_price if list_price and charged < list_price else _ONE

    def difference(self, first: CacheUsage, second: CacheUsage) -> Decimal | None:
        if first == second:
            return ZERO
        high, low = self._price_input(first), self._price_input(second)
        return None if high is None or low is None else EXACT.subtract(high, low)

    def _price_input(self, cache: CacheUsage) -> Decimal | None:
        if cache not in self._prices:
            self._prices[cache] = self._price(
                Usage(
                    cache=cache,
                    output_tokens=self._usage.output_tokens,
                    reasoning_tokens=self._usage.reasoning_tokens,
                    tier=self._usage.tier,
                    raw=self._raw,
                )
            )
        return self._prices[cache]


def _scale_usage(usage: CacheUsage, scale: float) -> CacheUsage:
    total = round(usage.input_tokens * scale)
    read = min(round(usage.read * scale), total)
    written_1h = min(round(usage.written_1h * scale), total - read)
    written_5m = min(round(usage.written_5m * scale), total - read - written_1h)
    return CacheUsage(
        uncached=total - read - written_1h - written_5m, read=read, written_5m=written_5m, written_1h=written_1h
    )


def _round_to_picodollars(amount: Decimal) -> Decimal:
    """Round an amount as the ledger stores it, so that parts add up to the whole."""
    return to_dollars(to_picodollars(amount))
