"""Totals of requests, costs and savings."""

from decimal import Decimal
from pathlib import Path

from msgspec.structs import replace

from foveate.cost.caps import list_accounts
from foveate.cost.ledger import Category, Charge, GroupBy
from foveate.cost.savings import build_report, required_groups
from foveate.model import CacheUsage, Savings, Usage
from foveate.prompt_cache.hit_ratio import HitRatioLevel
from foveate.session.rollups import Totals, TotalsGroup
from foveate.store import open_store
from foveate.web.spending import NO_SPENDING, SpendingTotals, group_by_category, group_by_first, sum_spending
from tests.support.stores.ledger_records import NOON, make_call, settle_one
from tests.support.stores.templates import ensure_store


def make_charge(
    id_: str, agent: str, category: Category, dollars: str | None, compaction_savings: str | None = None
) -> Charge:
    return Charge(
        call=replace(make_call(id_, agent=agent), category=category),
        usage=Usage(cache=CacheUsage(uncached=10, read=30, written_5m=5), output_tokens=3),
        dollars=None if dollars is None else Decimal(dollars),
        savings=Savings(
            breakpoints=Decimal("0.1"),
            compaction=None if compaction_savings is None else Decimal(compaction_savings),
        ),
    )


CHARGES = (
    make_charge("1", "ana", Category.MAIN, "1.000000000001", compaction_savings="0.7"),
    make_charge("2", "ana", Category.COMPACTION, "0.25"),
    make_charge("3", "ana", Category.PING, None),
    make_charge("4", "bob", Category.MAIN, None),
    make_charge("5", "bob", Category.MAIN, "2"),
    make_charge("6", "eve", Category.COUNTING, None),
)


async def test_totals_agree_with_foveate_cost(tmp_path: Path) -> None:
    async with await open_store(ensure_store(tmp_path / "store.sqlite")) as store:
        for charge in CHARGES:
            await settle_one(store.ledger, charge, accounts=list_accounts(charge.call))
        report = build_report(await store.ledger.sum_charges(required_groups([GroupBy.AGENT])), [GroupBy.AGENT])
        by_agent = group_by_first(
            await store.totals.sum_totals([TotalsGroup.AGENT, TotalsGroup.CATEGORY], since=NOON)
        )

    assert sorted(by_agent) == ["ana", "bob", "eve"]
    for row in (*report.rows, report.total):
        totals = by_agent[row.group[0]] if row.group else sum_spending(by_agent.values())
        assert (totals.calls, totals.unpriced, totals.paid) == (row.calls, row.unknown_calls, row.dollars)
        assert (totals.output_tokens, totals.saved_by_breakpoints) == (row.output_tokens, row.saved.breakpoints)
        assert totals.saved_by_compaction == (row.saved.compaction or 0)
        assert totals.input_tokens == row.uncached + row.read + row.written_5m + row.written_1h


def test_the_hit_ratio_covers_only_main_requests() -> None:
    rows = [
        (("d", "main"), Totals(cache=CacheUsage(uncached=30, read=70))),
        (("d", "compaction"), Totals(cache=CacheUsage(uncached=10_000))),
        (("d", "ping"), Totals(cache=CacheUsage(read=10_000))),
    ]

    totals = group_by_first(rows)["d"]

    assert totals.ratio == 0.7
    assert totals.level is HitRatioLevel.HEALTHY
    assert totals.input_tokens == 20_100
    assert group_by_category(rows)["ping"].ratio is None


def test_empty_totals_have_no_ratio_and_no_cost() -> None:
    assert sum_spending([]) == NO_SPENDING == SpendingTotals()
    assert NO_SPENDING.is_empty
    assert NO_SPENDING.paid == 0
    assert NO_SPENDING.ratio is None
    assert NO_SPENDING.failed_share is None
    assert NO_SPENDING.level is HitRatioLevel.UNKNOWN


def test_calls_of_unknown_price_are_not_free() -> None:
    assert SpendingTotals(calls=2, unpriced=2).paid is None
    assert SpendingTotals(calls=2, unpriced=1, dollars=Decimal(3)).paid == 3
