"""Cost of calls without Foveate, the savings of each mechanism, and reports of both.

Both sides are simulated. Every state of a call (see `SimulatedState`) is a usage with the same output, priced
like the call, including tiers. The saving of a mechanism is the price of the state without it minus the price
of the next state. Summaries and keep-alive requests are separate calls, which would not exist without Foveate.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from msgspec.structs import replace

from foveate.cost.ledger import Call, Category, ChargeTotal, GroupBy
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
    """Unknown amounts are ignored."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReportRow:
    """Total of a group of calls: tokens, dollars and savings.

    `dollars` and `estimated_dollars` are None if no call has any: `unknown_calls` have no known price.
    `compared_calls` were simulated without Foveate, were charged `compared_dollars`, and have the savings in
    `saved`: `saved.without` is what they would have cost. `compaction_dollars` is the cost of summaries, of
    which `unknown_compactions` have no known price. Of `dollars`, `inherited_dollars` are at the price of a
    model's family, and `subscription_dollars` are list-price equivalents of calls that a subscription covers.
    `possibly_charged_calls` are among the `unknown_calls`: they were in flight when their process ended, and
    cost at most `possibly_charged_dollars`.
    """

    group: tuple[str, ...] = ()
    calls: int = 0
    unknown_calls: int = 0
    partial_calls: int = 0
    uncached: int = 0
    read: int = 0
    written_5m: int = 0
    written_1h: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    dollars: Decimal | None = None
    estimated_dollars: Decimal | None = None
    compared_calls: int = 0
    compared_dollars: Decimal | None = None
    saved: Savings = field(default_factory=Savings)
    would_not_fit_calls: int = 0
    would_not_fit_dollars: Decimal = ZERO
    compaction_dollars: Decimal = ZERO
    unknown_compactions: int = 0
    inherited_calls: int = 0
    inherited_dollars: Decimal = ZERO
    subscription_calls: int = 0
    subscription_dollars: Decimal = ZERO
    possibly_charged_calls: int = 0
    possibly_charged_dollars: Decimal = ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class CostReport:
    group_by: tuple[GroupBy, ...]
    rows: tuple[CostReportRow, ...]
    total: CostReportRow


def required_groups(group_by: Sequence[GroupBy]) -> tuple[GroupBy, ...]:
    """Return the dimensions to query: also the category, because summaries count against compaction."""
    return (*group_by, GroupBy.CATEGORY) if GroupBy.CATEGORY not in group_by else tuple(group_by)


def build_report(sums: Iterable[ChargeTotal], group_by: Sequence[GroupBy]) -> CostReport:
    """Build a report from totals by `required_groups(group_by)`.

    Days come in order, other groups by cost.
    """
    category_index = required_groups(group_by).index(GroupBy.CATEGORY)
    rows: dict[tuple[str, ...], CostReportRow] = {}
    total = CostReportRow()
    for total_of_group in sums:
        if not total_of_group.calls:
            continue
        row = _make_row(
            total_of_group,
            group=total_of_group.group[: len(group_by)],
            category=total_of_group.group[category_index],
        )
        rows[row.group] = _add_rows(rows.get(row.group, CostReportRow(group=row.group)), row)
        total = _add_rows(total, row)
    days_first = bool(group_by) and group_by[0] is GroupBy.DAY
    ordered = sorted(
        rows.values(), key=lambda row: (row.group[:1] if days_first else (), -(row.dollars or ZERO), row.group)
    )
    return CostReport(group_by=tuple(group_by), rows=tuple(ordered), total=total)


def _make_row(total: ChargeTotal, *, group: tuple[str, ...], category: str) -> CostReportRow:
    is_compaction = category == Category.COMPACTION
    has_price = total.unknown_calls < total.calls
    compaction_dollars = total.dollars if is_compaction and has_price else None
    return CostReportRow(
        group=group,
        calls=total.calls,
        unknown_calls=total.unknown_calls,
        partial_calls=total.partial_calls,
        uncached=total.uncached,
        read=total.read,
        written_5m=total.written_5m,
        written_1h=total.written_1h,
        output_tokens=total.output_tokens,
        reasoning_tokens=total.reasoning_tokens,
        dollars=total.dollars if has_price else None,
        # A sum of 0 means that no call had an estimate: none is estimated to be free.
        estimated_dollars=total.estimated_dollars or None,
        compared_calls=total.compared_calls,
        compared_dollars=_compute_charged_dollars(total.savings),
        saved=total.savings,
        would_not_fit_calls=total.would_not_fit_calls,
        would_not_fit_dollars=total.would_not_fit_dollars,
        compaction_dollars=compaction_dollars or ZERO,
        unknown_compactions=total.unknown_calls if is_compaction else 0,
        inherited_calls=total.inherited_calls,
        inherited_dollars=total.inherited_dollars,
        subscription_calls=total.subscription_calls,
        subscription_dollars=total.subscription_dollars,
        possibly_charged_calls=total.possibly_charged_calls,
        possibly_charged_dollars=total.possibly_charged_dollars,
    )


def _add_rows(left: CostReportRow, right: CostReportRow) -> CostReportRow:
    return CostReportRow(
        group=left.group,
        calls=left.calls + right.calls,
        unknown_calls=left.unknown_calls + right.unknown_calls,
        partial_calls=left.partial_calls + right.partial_calls,
        uncached=left.uncached + right.uncached,
        read=left.read + right.read,
        written_5m=left.written_5m + right.written_5m,
        written_1h=left.written_1h + right.written_1h,
        output_tokens=left.output_tokens + right.output_tokens,
        reasoning_tokens=left.reasoning_tokens + right.reasoning_tokens,
        dollars=_add_known(left.dollars, right.dollars),
        estimated_dollars=_add_known(left.estimated_dollars, right.estimated_dollars),
        compared_calls=left.compared_calls + right.compared_calls,
        compared_dollars=_add_known(left.compared_dollars, right.compared_dollars),
        saved=add_savings((left.saved, right.saved)),
        would_not_fit_calls=left.would_not_fit_calls + right.would_not_fit_calls,
        would_not_fit_dollars=EXACT.add(left.would_not_fit_dollars, right.would_not_fit_dollars),
        compaction_dollars=EXACT.add(left.compaction_dollars, right.compaction_dollars),
        unknown_compactions=left.unknown_compactions + right.unknown_compactions,
        inherited_calls=left.inherited_calls + right.inherited_calls,
        inherited_dollars=EXACT.add(left.inherited_dollars, right.inherited_dollars),
        subscription_calls=left.subscription_calls + right.subscription_calls,
        subscription_dollars=EXACT.add(left.subscription_dollars, right.subscription_dollars),
        possibly_charged_calls=left.possibly_charged_calls + right.possibly_charged_calls,
        possibly_charged_dollars=EXACT.add(left.possibly_charged_dollars, right.possibly_charged_dollars),
    )


def _compute_charged_dollars(savings: Savings) -> Decimal | None:
    without, saved, error = savings.without, savings.total, savings.simulation_error
    if without is None or saved is None or error is None:
        return None
    return EXACT.add(EXACT.subtract(without, saved), error)


def _add_known(left: Decimal | None, right: Decimal | None) -> Decimal | None:
    if left is None or right is None:
        return right if left is None else left
    return EXACT.add(left, right)
