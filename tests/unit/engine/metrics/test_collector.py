"""Metrics: required names, bounded labels, and nothing counted twice."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.compaction.compact import TOO_SOON, CompactionResult
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.context.workspace_cache import WorkspaceCacheStats
from foveate.cost.admission import Settlement, SettlementOutcome
from foveate.engine.metrics import definitions
from foveate.engine.metrics.collector import (
    MAX_LABEL_SETS,
    MAX_VALUES,
    OTHER,
    CardinalityLimiter,
    MetricsCollector,
    replace_unprintable,
)
from foveate.engine.request import StepFailure
from foveate.errors import DoesNotFit
from foveate.model import TokenCount
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.finished_exchanges import finish_exchange, make_exchange_charge, metric_values

CALL_LABELS = "agent=ana exact=%s model=claude-opus-4-5 provider=anthropic"
DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"


def make_collector(now: float = 102.0) -> MetricsCollector:
    return MetricsCollector(version="1.2.3", clock=lambda: now)


async def test_an_exchange_is_counted_under_the_required_names() -> None:
    collector = make_collector()

    await finish_exchange(collector)

    values = metric_values(collector)
    assert values["llm_cache_read_tokens_total " + CALL_LABELS % "true"] == 80
    assert values["llm_cache_creation_tokens_total " + CALL_LABELS % "true"] == 10
    assert values["llm_cache_hit_ratio agent=ana"] == 0.8
    assert values["llm_prompt_tokens_estimated_count " + CALL_LABELS % "false"] == 1
    assert values["llm_prompt_tokens_estimated_sum " + CALL_LABELS % "false"] == 80
    assert values["llm_prompt_tokens_drift_count " + CALL_LABELS % "false"] == 1
    by_percent = (
        "llm_prompt_tokens_drift_bucket agent=ana exact=false le=%s model=claude-opus-4-5 provider=anthropic"
    )
    assert (values[by_percent % "20.0"], values[by_percent % "50.0"]) == (0, 1)  # 100 reported, 80 counted: 25%
    assert values["foveate_edits_total step=cache"] == 2
    assert values["foveate_upstream_first_byte_seconds_sum provider=anthropic"] == pytest.approx(0.499)
    assert values["foveate_request_duration_seconds_sum provider=anthropic"] == pytest.approx(2.0)
    assert values["foveate_added_seconds_sum"] == pytest.approx(0.001)


async def test_exact_counts_are_never_mixed_with_estimates() -> None:
    collector = make_collector()

    await finish_exchange(collector, counted=TokenCount(100, True, 100))
    await finish_exchange(collector)

    values = metric_values(collector)
    assert values["llm_prompt_tokens_estimated_sum " + CALL_LABELS % "true"] == 100
    assert values["llm_prompt_tokens_estimated_sum " + CALL_LABELS % "false"] == 80


async def test_a_rejected_request_has_no_tokens() -> None:
    collector = make_collector()

    await finish_exchange(collector, status=529)

    assert not [name for name in metric_values(collector) if name.startswith("llm_")]


async def test_the_hit_ratio_covers_the_last_hour() -> None:
    now = [102.0]
    collector = MetricsCollector(version="1", clock=lambda: now[0])
    await finish_exchange(collector)
    assert metric_values(collector)["llm_cache_hit_ratio agent=ana"] == 0.8

    now[0] += 2 * 3600

    assert "llm_cache_hit_ratio agent=ana" not in metric_values(collector)


def test_dollars_are_counted_once_and_losses_are_separate_from_savings() -> None:
    collector = make_collector()

    collector.on_charge(make_exchange_charge(), Settlement(outcome=SettlementOutcome.RECORDED))
    collector.on_charge(make_exchange_charge(), Settlement(outcome=SettlementOutcome.ALREADY_RECORDED))
    collector.on_charge(make_exchange_charge(dollars=None), Settlement(outcome=SettlementOutcome.WAITING))

    values = metric_values(collector)
    labels = " agent=ana category=main model=claude-opus-4-5 provider=anthropic"
    assert values["foveate_cost_dollars_total" + labels] == 0.5
    assert values["foveate_unpriced_calls_total" + labels] == 1
    assert values["foveate_saved_dollars_total agent=ana by=breakpoints"] == 0.25
    assert values["foveate_overpaid_dollars_total agent=ana by=compaction"] == 0.125
    costs = {"charged": 0.5, "simulated": 0.4375, "without": 0.5625}
    for cost, dollars in costs.items():
        assert values[f"foveate_compared_dollars_total agent=ana cost={cost}"] == dollars
    assert [values[f"foveate_bills_total outcome={word}"] for word in ("booked", "known", "waiting")] == [
        1,
        1,
        1,
    ]


def make_compaction(outcome: CompactionOutcome, seconds: float) -> Compaction:
    return Compaction(
        id="f",
        agent="ana",
        session_id="s",
        boundary=b"",
        messages=1,
        summary="",
        carried=(),
        tokens_before=1,
        tokens_after=1,
        model="m",
        cost=None,
        duration_seconds=seconds,
        outcome=outcome,
        compacted_at=0.0,
    )


async def test_compactions_and_truncations_are_counted_by_outcome_with_their_duration() -> None:
    collector = make_collector()

    collector.on_compaction(
        "ana",
        CompactionResult(outcome=CompactionOutcome.OK, compaction=make_compaction(CompactionOutcome.OK, 3.0)),
    )
    collector.on_compaction(
        "ana",
        CompactionResult(
            outcome=CompactionOutcome.LOCK_HELD, compaction=make_compaction(CompactionOutcome.OK, 9.0)
        ),
    )
    move = CompactionOutcome.SECTIONS_MOVED
    collector.on_compaction("ana", CompactionResult(outcome=move, compaction=make_compaction(move, 0.0)))
    collector.on_compaction("ana", CompactionResult(outcome=CompactionOutcome.FAILED, reason="no store"))
    await finish_exchange(collector, cut_results=2)

    values = metric_values(collector)
    triggered = {
        word: values[f"llm_compaction_triggered_total agent=ana outcome={word}"]
        for word in CompactionOutcome
        if f"llm_compaction_triggered_total agent=ana outcome={word}" in values
    }
    assert triggered == {"ok": 1, "lock_held": 1, "failed": 1, "tool_result_truncated": 2, "sections_moved": 1}
    assert values["llm_compaction_duration_seconds_sum agent=ana outcome=ok"] == 3.0
    assert "llm_compaction_duration_seconds_sum agent=ana outcome=lock_held" not in values
    assert "llm_compaction_duration_seconds_sum agent=ana outcome=sections_moved" not in values


@pytest.mark.parametrize(
    ("outcome", "reason", "failures"),
    [
        (CompactionOutcome.OK, "", {}),
        (CompactionOutcome.OK, TOO_SOON, {}),
        (CompactionOutcome.OK, "rules wrote it, since the model answered 529", {"compaction": 1}),
        (CompactionOutcome.FAILED, "the response is a refusal", {"compaction": 1}),
        (CompactionOutcome.LOCK_HELD, "another process is compacting this session", {}),
        (CompactionOutcome.NO_BOUNDARY, "there is no place to cut", {}),
    ],
)
def test_a_failed_summary_is_a_recent_failure(
    outcome: CompactionOutcome, reason: str, failures: dict[str, int]
) -> None:
    collector = make_collector()

    collector.on_compaction("ana", CompactionResult(outcome=outcome, reason=reason))

    assert collector.recent_failures.count_by_step(102.0) == failures


async def test_failures_and_rejections_are_counted_by_name() -> None:
    collector = make_collector()
    exchange = await finish_exchange()

    collector.on_failure(exchange.incoming, StepFailure("session", "no store"))
    collector.on_rejected("ana", DoesNotFit("too long", tokens=2, limit_tokens=1, window_tokens=1))
    collector.on_step("session", 0.002)
    collector.count_response("ana", "anthropic", "claude-opus-4-5", 400)

    values = metric_values(collector)
    assert values["foveate_step_failures_total step=session"] == 1
    assert values["foveate_refusals_total agent=ana code=does_not_fit"] == 1
    assert values["foveate_step_duration_seconds_sum step=session"] == 0.002
    assert values["foveate_requests_total agent=ana model=other provider=anthropic status=400"] == 1
    assert collector.recent_failures.count_by_step(102.0) == {"session": 1}
    assert collector.recent_failures.count_by_step(102.0 + 301) == {}


def test_all_durations_of_steps_are_counted() -> None:
    collector = make_collector()

    for _ in range(2_000):
        collector.on_step("session", 0.5)
        collector.on_step("cache", -0.5)  # a clock that was set back

    values = metric_values(collector)
    assert values["foveate_step_duration_seconds_sum step=session"] == 1_000
    assert values["foveate_step_duration_seconds_count step=cache"] == 2_000
    assert values["foveate_step_duration_seconds_sum step=cache"] == 0


def test_totals_from_elsewhere_are_counted_by_their_growth() -> None:
    collector = make_collector()
    lost = [0]
    collector.add_poll(lambda: collector.set_charges(waiting=3, lost=lost[0], expired=0))
    lost[0] = 2
    collector.samples()
    for hits in (5, 5, 7):
        collector.set_workspace_counts({"/w": WorkspaceCacheStats(hits=hits, misses=1, invalidations=0)})

    values = metric_values(collector)
    assert (values["foveate_bills_waiting"], values["foveate_bills_lost_total"]) == (3, 2)
    assert values["workspace_cache_hits_total path=/w"] == 7
    assert values["workspace_cache_misses_total path=/w"] == 1
    assert values["workspace_cache_invalidations_total path=/w"] == 0


def test_a_known_name_is_shown_after_any_number_of_others() -> None:
    limiter = CardinalityLimiter(["ana"])
    for number in range(10 * MAX_VALUES):
        limiter.label(f"x{number}")

    assert limiter.label("ana") == "ana"
    assert limiter.label("x1") == "x1"
    assert limiter.label("late") == OTHER


@settings(max_examples=limit_examples(50))
@given(st.lists(st.text(max_size=120), max_size=30), st.integers(0, 5))
def test_a_label_has_a_bounded_number_of_printable_values(values: list[str], limit: int) -> None:
    limiter = CardinalityLimiter(max_values=limit)

    labels = {limiter.label(value) for value in values}

    assert len(labels - {OTHER, ""}) <= limit
    assert all(value.encode() is not None and len(value) <= 80 for value in labels)


@given(st.text(alphabet=st.characters(categories=("Cs", "Cc", "L", "Zl")), max_size=20))
def test_any_text_can_be_a_label(value: str) -> None:
    assert replace_unprintable(value).encode() is not None
    assert "\n" not in replace_unprintable(value)


@pytest.mark.slow
async def test_any_number_of_agents_and_models_makes_a_bounded_number_of_series() -> None:
    collector = make_collector()
    collector.add_known_agents(["ana"])
    names = random.Random(7)
    for number in range(600):
        await finish_exchange(collector, agent=f"agent {number}", model=f"model-{names.randrange(500)}")
    await finish_exchange(collector, agent="ana", model="model-0")

    series_names = [name for name in metric_values(collector) if name.startswith("llm_cache_read_tokens_total")]
    assert len(series_names) <= MAX_LABEL_SETS + 1
    assert len({re.findall("agent=(.*?) exact", name)[0] for name in series_names}) <= MAX_VALUES + 2
    assert "agent=other" in "".join(series_names)


def test_agents_and_models_together_make_a_bounded_number_of_series() -> None:
    collector = make_collector()
    for number in range(60 * 60):
        collector.count_response(f"agent {number % 60}", "anthropic", f"model {number // 60}", 200)

    values = {
        name: count
        for name, count in metric_values(collector).items()
        if name.startswith("foveate_requests_total")
    }
    assert len(values) == MAX_LABEL_SETS + 1
    assert sum(values.values()) == 60 * 60


def test_every_required_metric_exists_with_its_labels() -> None:
    call_labels = ("agent", "provider", "model", "exact")
    required = {
        "llm_cache_read_tokens_total": call_labels,
        "llm_cache_creation_tokens_total": call_labels,
        "llm_cache_hit_ratio": ("agent",),
        "llm_compaction_triggered_total": ("agent", "outcome"),
        "llm_compaction_duration_seconds": ("agent", "outcome"),
        "llm_prompt_tokens_estimated": call_labels,
        "llm_prompt_tokens_drift": call_labels,
        "workspace_cache_hits_total": ("path",),
        "workspace_cache_misses_total": ("path",),
        "workspace_cache_invalidations_total": ("path",),
    }
    assert {metric.name: metric.labels for metric in definitions.METRICS if metric.name in required} == required


def test_the_documentation_lists_all_metrics() -> None:
    rows = re.findall(
        r"^\| `([a-z_]+)` \| (counter|gauge|histogram) \| ([^|]*)\|",
        DOCUMENT.read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    documented = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}

    assert documented == {metric.name: (metric.kind.value, metric.labels) for metric in definitions.METRICS}
