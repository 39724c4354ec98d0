"""Reports on what calls cost, with and without Foveate, by agent, session, model, category or day."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from foveate.cost.ledger import By, Category, Sum
from foveate.cost.prices import EXACT, ZERO
from foveate.cost.savings import add_savings
from foveate.values import Savings


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All calls of a group added up: tokens, dollars, and what was saved.

    `dollars` and `estimated_dollars` are those of calls that have any, and None where none does:
    `unknown_calls` have no known price. `compared_calls` are those that were simulated without Foveate, were
    charged `compared_dollars`, and have the savings in `saved`: `saved.without` is what they would have cost.
    `compaction_dollars` is what calls for summaries cost, of which `unknown_compactions` have no known price.
    Of `dollars`, `inherited_dollars` are at the price of a model's family, and `subscription_dollars` are
    list-price equivalents of calls that a subscription pays for. `possibly_charged_calls` are among the
    `unknown_calls`: they were under way when their process ended, and cost at most `possibly_charged_dollars`.
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
class Report:
    """Rows by what was asked for, and the total of them all."""

    by: tuple[By, ...]
    rows: tuple[Row, ...]
    total: Row


def asked_of(by: Sequence[By]) -> tuple[By, ...]:
    """What to ask a ledger for: categories too, since calls for summaries count against folds."""
    return (*by, By.CATEGORY) if By.CATEGORY not in by else tuple(by)


def report_of(sums: Iterable[Sum], by: Sequence[By]) -> Report:
    """The report by `by`, of sums by `asked_of(by)`: days in their order, all else the dearest first."""
    place = asked_of(by).index(By.CATEGORY)
    rows: dict[tuple[str, ...], Row] = {}
    total = Row()
    for one in sums:
        if not one.calls:
            continue
        row = _row(one, group=one.group[: len(by)], category=one.group[place])
        rows[row.group] = _added(rows.get(row.group, Row(group=row.group)), row)
        total = _added(total, row)
    days_first = bool(by) and by[0] is By.DAY
    ordered = sorted(
        rows.values(), key=lambda row: (row.group[:1] if days_first else (), -(row.dollars or ZERO), row.group)
    )
    return Report(by=tuple(by), rows=tuple(ordered), total=total)


def _row(one: Sum, *, group: tuple[str, ...], category: str) -> Row:
    is_compaction = category == Category.COMPACTION
    has_price = one.unknown_calls < one.calls
    spent = one.dollars if is_compaction and has_price else None
    return Row(
        group=group,
        calls=one.calls,
        unknown_calls=one.unknown_calls,
        partial_calls=one.partial_calls,
        uncached=one.uncached,
        read=one.read,
        written_5m=one.written_5m,
        written_1h=one.written_1h,
        output_tokens=one.output_tokens,
        reasoning_tokens=one.reasoning_tokens,
        dollars=one.dollars if has_price else None,
        # A sum does not tell none from nothing, and nobody expects a call to be free.
        estimated_dollars=one.estimated_dollars or None,
        compared_calls=one.compared_calls,
        compared_dollars=_charged(one.savings),
        saved=one.savings,
        would_not_fit_calls=one.would_not_fit_calls,
        would_not_fit_dollars=one.would_not_fit_dollars,
        compaction_dollars=spent or ZERO,
        unknown_compactions=one.unknown_calls if is_compaction else 0,
        inherited_calls=one.inherited_calls,
        inherited_dollars=one.inherited_dollars,
        subscription_calls=one.subscription_calls,
        subscription_dollars=one.subscription_dollars,
        possibly_charged_calls=one.possibly_charged_calls,
        possibly_charged_dollars=one.possibly_charged_dollars,
    )


def _added(one: Row, other: Row) -> Row:
    return Row(
        group=one.group,
        calls=one.calls + other.calls,
        unknown_calls=one.unknown_calls + other.unknown_calls,
        partial_calls=one.partial_calls + other.partial_calls,
        uncached=one.uncached + other.uncached,
        read=one.read + other.read,
        written_5m=one.written_5m + other.written_5m,
        written_1h=one.written_1h + other.written_1h,
        output_tokens=one.output_tokens + other.output_tokens,
        reasoning_tokens=one.reasoning_tokens + other.reasoning_tokens,
        dollars=_sum(one.dollars, other.dollars),
        estimated_dollars=_sum(one.estimated_dollars, other.estimated_dollars),
        compared_calls=one.compared_calls + other.compared_calls,
        compared_dollars=_sum(one.compared_dollars, other.compared_dollars),
        saved=add_savings((one.saved, other.saved)),
        would_not_fit_calls=one.would_not_fit_calls + other.would_not_fit_calls,
        would_not_fit_dollars=EXACT.add(one.would_not_fit_dollars, other.would_not_fit_dollars),
        compaction_dollars=EXACT.add(one.compaction_dollars, other.compaction_dollars),
        unknown_compactions=one.unknown_compactions + other.unknown_compactions,
        inherited_calls=one.inherited_calls + other.inherited_calls,
        inherited_dollars=EXACT.add(one.inherited_dollars, other.inherited_dollars),
        subscription_calls=one.subscription_calls + other.subscription_calls,
        subscription_dollars=EXACT.add(one.subscription_dollars, other.subscription_dollars),
        possibly_charged_calls=one.possibly_charged_calls + other.possibly_charged_calls,
        possibly_charged_dollars=EXACT.add(one.possibly_charged_dollars, other.possibly_charged_dollars),
    )


def _charged(savings: Savings) -> Decimal | None:
    """What the compared calls were charged."""
    without, saved, error = savings.without, savings.total, savings.simulation_error
    if without is None or saved is None or error is None:
        return None
    return EXACT.add(EXACT.subtract(without, saved), error)


def _sum(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """What is known of two amounts together; None where neither is known."""
    if one is None or other is None:
        return other if one is None else one
    return EXACT.add(one, other)
