"""Cost reports, with and without Foveate, by agent, session, model, category or day."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from foveate.cost.ledger import Category, ChargeTotal, GroupBy
from foveate.cost.pricing.rates import EXACT, ZERO
from foveate.cost.savings import add_savings
from foveate.model import Savings


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
