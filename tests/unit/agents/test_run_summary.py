"""Summaries of runs."""

from decimal import Decimal

import msgspec
import pytest

from foveate.agents.run_summary import RunSummary, find_advice, summarize_run
from foveate.cost.ledger import Call, Category, Charge
from foveate.model import CacheUsage, ComparisonOutcome, Savings, Usage
from foveate.prompt_cache.misses.causes import MissCause, describe_cause
from foveate.session.traces import CacheMiss
from foveate.store.dashboard import CacheMissRecord


def charge(
    number: int,
    dollars: str | None,
    without: str | None = None,
    *,
    category: Category = Category.MAIN,
    is_subscription: bool = False,
) -> Charge:
    savings = Savings()
    if without is not None and dollars is not None:
        savings = Savings(
            comparison=ComparisonOutcome.SIMULATED,
            without=Decimal(without),
            breakpoints=Decimal(without) - Decimal(dollars),
        )
    return Charge(
        call=Call(
            id=f"req_{number}",
            agent="pi",
            session_id=f"s{number // 2}",
            provider="anthropic",
            model="m",
            category=category,
            at=float(number),
            is_subscription=is_subscription,
        ),
        usage=Usage(cache=CacheUsage(uncached=1)),
        dollars=None if dollars is None else Decimal(dollars),
        savings=savings,
    )


def miss(
    number: int, lost: str | None, *, is_planned: bool = False, cause: str = "date", where: str = "system.0"
) -> CacheMissRecord:
    return CacheMissRecord(
        request_id=f"req_{number}",
        at=1.0,
        agent="pi",
        session_id="s",
        model="m",
        cache_miss=CacheMiss(
            cause=cause,
            where=where,
            lost_tokens=5,
            lost_dollars=None if lost is None else Decimal(lost),
            is_planned=is_planned,
        ),
    )


def test_a_run_without_calls_is_empty() -> None:
    assert summarize_run([], []) == RunSummary()


def test_calls_that_could_not_be_compared_save_nothing() -> None:
    summary = summarize_run([charge(0, "1", "3"), charge(1, "2"), charge(2, None)], [])

    assert (summary.calls, summary.sessions, summary.unknown_calls, summary.compared_calls) == (3, 2, 1, 1)
    assert (summary.dollars, summary.without_dollars) == (Decimal(3), Decimal(5))


def test_nothing_is_said_about_savings_if_no_call_was_compared() -> None:
    assert summarize_run([charge(0, "1")], []).without_dollars is None
    assert summarize_run([charge(0, None)], []).dollars is None


def test_summaries_and_keep_alives_cost_money_but_are_no_calls_of_the_agent() -> None:
    charges = [charge(0, "1", "3"), charge(1, "0.5", "0", category=Category.COMPACTION)]

    summary = summarize_run(charges, [])

    assert summary.calls == 1
    assert (summary.dollars, summary.without_dollars) == (Decimal("1.5"), Decimal(3))


def test_planned_misses_do_not_count() -> None:
    summary = summarize_run([charge(0, "1")], [miss(1, "0.1"), miss(2, "0.3"), miss(3, "9", is_planned=True)])

    assert (summary.misses, summary.lost_dollars) == (2, Decimal("0.4"))
    assert summary.worst_miss == miss(2, "0.3")


def test_a_miss_of_unknown_cost_is_counted() -> None:
    summary = summarize_run([charge(0, "1")], [miss(1, None)])

    assert (summary.misses, summary.lost_dollars, summary.worst_miss) == (1, Decimal(0), miss(1, None))


def test_calls_of_a_subscription_are_counted() -> None:
    assert summarize_run([charge(0, "1", is_subscription=True), charge(1, "1")], []).subscription_calls == 1


def test_advice_is_about_the_cause_that_cost_most_and_not_about_the_dearest_miss() -> None:
    misses = [
        miss(1, "0.2", cause="date"),
        miss(2, "0.2", cause="date"),
        miss(3, "0.3", cause="expired"),
        miss(4, "9", cause="model", is_planned=True),
    ]

    summary = summarize_run([charge(0, "1")], misses)

    assert (summary.worst_miss, summary.worst_cause_dollars) == (misses[0], Decimal("0.4"))
    advice = find_advice(summary)
    assert "57% of it: a date changed in system.0; move it behind the history" in advice
    assert "`foveate explain req_1`" in advice


@pytest.mark.parametrize("cause", [*MissCause, "a_cause_of_a_later_release"])
def test_every_cause_has_advice(cause: str) -> None:
    advice = find_advice(summarize_run([charge(0, "1")], [miss(1, None, cause=cause, where="")]))

    assert describe_cause(cause) in advice
    assert "`foveate explain req_1`" in advice


def test_a_run_without_misses_has_advice_only_if_something_costs_money() -> None:
    long = msgspec.structs.replace(charge(0, "1", "2"), usage=Usage(cache=CacheUsage(read=150_000, uncached=2)))

    assert find_advice(summarize_run([charge(0, "1", "2")], [])) == ""
    assert "cost.prices" in find_advice(summarize_run([charge(0, None)], []))
    assert "150,002 tokens" in find_advice(summarize_run([long], []))
    assert "cost more than without Foveate" in find_advice(summarize_run([charge(0, "2", "1")], []))
