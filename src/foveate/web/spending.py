"""Totals of requests, costs and savings for pages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from foveate.cost.ledger import Category
from foveate.prompt_cache.hit_ratio import HitRatio, HitRatioLevel
from foveate.session.rollups import Totals

_ZERO = Decimal(0)
_NO_HITS = HitRatio(0, 0)
_COUNT_FIELDS = (
    *("planned_rewrites", "rewritten_tokens", "compared", "would_not_fit", "inherited", "subscription"),
    "possibly_charged",
)
_AMOUNT_FIELDS = (
    *("without", "saved_by_compaction", "saved_by_context", "saved_by_breakpoints", "saved_by_keep_alive"),
    *("simulation_error", "would_not_fit_dollars", "inherited_dollars", "subscription_dollars"),
    "possibly_charged_dollars",
)

TotalsRows = Sequence[tuple[tuple[str, ...], Totals]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingTotals:
    """Totals of requests and calls.

    `dollars` is the cost of calls with a known price; `unpriced` calls come on top. `compared` calls would have
    cost `without` without Foveate. Of `dollars`, some are `inherited` (an upper bound by the model's family),
    and some are list-price equivalents of calls that a `subscription` pays for. The hit ratio covers main
    requests, as the metrics do, without summaries and keep-alive requests.
    """

    requests: int = 0
    failed: int = 0
    breaks: int = 0
    lost_tokens: int = 0
    lost_dollars: Decimal = _ZERO
    calls: int = 0
    unpriced: int = 0
    dollars: Decimal = _ZERO
    input_tokens: int = 0
    output_tokens: int = 0
    hits: HitRatio = _NO_HITS
    planned_rewrites: int = 0
    rewritten_tokens: int = 0
    compared: int = 0
    without: Decimal = _ZERO
    saved_by_compaction: Decimal = _ZERO
    saved_by_context: Decimal = _ZERO
    saved_by_breakpoints: Decimal = _ZERO
    saved_by_keep_alive: Decimal = _ZERO
    simulation_error: Decimal = _ZERO
    would_not_fit: int = 0
    would_not_fit_dollars: Decimal = _ZERO
    inherited: int = 0
    inherited_dollars: Decimal = _ZERO
    subscription: int = 0
    subscription_dollars: Decimal = _ZERO
    possibly_charged: int = 0
    possibly_charged_dollars: Decimal = _ZERO

    @property
    def is_empty(self) -> bool:
        return not self.requests and not self.calls

    @property
    def paid(self) -> Decimal | None:
        """The cost; None if no call has a known price."""
        return None if self.calls and self.unpriced >= self.calls else self.dollars

    @property
    def saved(self) -> Decimal:
        """Savings of all mechanisms on the compared calls; a loss is negative."""
        edits = self.saved_by_compaction + self.saved_by_context
        return edits + self.saved_by_breakpoints + self.saved_by_keep_alive

    @property
    def ratio(self) -> float | None:
        return self.hits.ratio

    @property
    def level(self) -> HitRatioLevel:
        return self.hits.level()

    @property
    def failed_share(self) -> float | None:
        return self.failed / self.requests if self.requests else None


NO_SPENDING = SpendingTotals()


def group_by_first(rows: TotalsRows) -> Mapping[str, SpendingTotals]:
    """Sum by the first group of each row; the last group is the category."""
    return _group_by(rows, 0)


def group_by_category(rows: TotalsRows) -> Mapping[str, SpendingTotals]:
    """Sum by the last group of each row."""
    return _group_by(rows, -1)


def sum_spending(parts: Iterable[SpendingTotals]) -> SpendingTotals:
    return _sum_parts(list(parts))


def _group_by(rows: TotalsRows, position: int) -> Mapping[str, SpendingTotals]:
    parts_by_name: dict[str, list[SpendingTotals]] = {}
    for group, totals in rows:
        parts_by_name.setdefault(group[position], []).append(_to_spending(group[-1], totals))
    return {name: _sum_parts(parts) for name, parts in parts_by_name.items()}


def _to_spending(category: str, totals: Totals) -> SpendingTotals:
    is_main = category == Category.MAIN
    return SpendingTotals(
        requests=totals.requests,
        failed=totals.failed,
        breaks=totals.breaks,
        lost_tokens=totals.lost_tokens,
        lost_dollars=totals.lost_dollars,
        calls=totals.calls,
        unpriced=totals.unpriced,
        dollars=totals.dollars,
        input_tokens=totals.cache.input_tokens,
        output_tokens=totals.output_tokens,
        hits=HitRatio(totals.cache.read, totals.cache.input_tokens) if is_main else _NO_HITS,
        **{name: getattr(totals, name) for name in (*_COUNT_FIELDS, *_AMOUNT_FIELDS)},
    )


def _sum_parts(parts: Sequence[SpendingTotals]) -> SpendingTotals:
    amounts: Any = {name: sum((getattr(part, name) for part in parts), _ZERO) for name in _AMOUNT_FIELDS}
    return SpendingTotals(
        requests=sum(part.requests for part in parts),
        failed=sum(part.failed for part in parts),
        breaks=sum(part.breaks for part in parts),
        lost_tokens=sum(part.lost_tokens for part in parts),
        lost_dollars=sum((part.lost_dollars for part in parts), _ZERO),
        calls=sum(part.calls for part in parts),
        unpriced=sum(part.unpriced for part in parts),
        dollars=sum((part.dollars for part in parts), _ZERO),
        input_tokens=sum(part.input_tokens for part in parts),
        output_tokens=sum(part.output_tokens for part in parts),
        hits=HitRatio(
            sum(part.hits.read_tokens for part in parts), sum(part.hits.input_tokens for part in parts)
        ),
        **{name: sum(getattr(part, name) for part in parts) for name in _COUNT_FIELDS},
        **amounts,
    )
