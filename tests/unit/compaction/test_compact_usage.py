import asyncio
from dataclasses import replace
from decimal import Decimal

from foveate.compaction.store import CompactionOutcome
from foveate.compaction.summarize.summarizer import EXTRACTIVE_MODEL, SummaryFailure, UsageLog
from tests.support.scenarios.compaction_sessions import OPTIONS, claude_body, make_subject
from tests.support.scenarios.compactors import (
    COMPLETE_SUMMARY,
    INCOMPLETE_SUMMARY,
    USAGE,
    make_runner,
    run_compaction,
)
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore, ScriptedSummarizer


async def test_every_attempt_is_charged() -> None:
    summarizer = ScriptedSummarizer(INCOMPLETE_SUMMARY, SummaryFailure(reason="gone"), usage=USAGE, calls=2)
    result = await run_compaction(make_subject(claude_body(12)), summarizer, InMemoryCompactionStore())

    assert result.compaction is not None
    assert result.compaction.cost == Decimal("0.004")
    assert result.usages == (USAGE,) * 4


async def test_the_cost_of_a_failed_compaction_is_stored_and_unknown_is_not_zero() -> None:
    priced_store, unpriced_store = InMemoryCompactionStore(), InMemoryCompactionStore()
    candidate = make_subject(claude_body(12))
    await run_compaction(candidate, ScriptedSummarizer(usage=USAGE, calls=1), priced_store)
    await run_compaction(candidate, ScriptedSummarizer(calls=1), unpriced_store)

    assert [row.cost for row in (*priced_store.compactions, *unpriced_store.compactions)] == [
        Decimal("0.001"),
        None,
    ]


async def test_an_extractive_fallback_includes_the_cost_of_the_failed_model() -> None:
    options = replace(OPTIONS, extractive=True)
    result = await run_compaction(
        make_subject(claude_body(12)),
        ScriptedSummarizer(usage=USAGE, calls=3),
        InMemoryCompactionStore(),
        options,
    )

    assert result.usages == (USAGE,) * 3
    assert result.compaction is not None
    assert (result.compaction.model, result.compaction.cost) == (EXTRACTIVE_MODEL, Decimal("0.003"))


async def test_usage_before_an_attempt_that_hangs_is_recorded() -> None:
    """Regression: only the unknown usage of the hanging call was left, not that of two finished ones."""
    options = replace(OPTIONS, limit_seconds=0.1)
    summarizer = ScriptedSummarizer(COMPLETE_SUMMARY, usage=USAGE, calls=2, seconds=30)
    result = await run_compaction(make_subject(claude_body(12)), summarizer, InMemoryCompactionStore(), options)

    assert result.outcome is CompactionOutcome.FAILED
    assert result.usages == (USAGE, USAGE, None)


async def test_a_cancelled_compaction_leaves_its_usage_with_the_caller() -> None:
    usage_log, summarizer = UsageLog(), ScriptedSummarizer(COMPLETE_SUMMARY, usage=USAGE, calls=2, seconds=30)
    compacting = asyncio.create_task(
        make_runner(InMemoryCompactionStore(), summarizer).compact(make_subject(claude_body(12)), usage_log)
    )
    await summarizer.started.wait()
    compacting.cancel()
    await asyncio.wait((compacting,))

    assert usage_log.usages == (USAGE, USAGE, None)


async def test_usage_is_kept_after_the_lease_is_lost() -> None:
    store, candidate = InMemoryCompactionStore(), make_subject(claude_body(12))
    summarizer = ScriptedSummarizer(COMPLETE_SUMMARY, usage=USAGE, calls=2, seconds=30)
    compacting = asyncio.create_task(
        run_compaction(candidate, summarizer, store, replace(OPTIONS, lock_ttl_seconds=0.3))
    )
    await summarizer.started.wait()
    store.leases[candidate.session_id] = replace(store.leases[candidate.session_id], holder="another", fence=2)
    result = await compacting

    assert result.outcome is CompactionOutcome.LOCK_HELD
    assert result.usages == (USAGE, USAGE, None)
