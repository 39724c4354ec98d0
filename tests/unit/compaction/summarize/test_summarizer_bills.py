
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


async def test_all_tries_are_paid_for() -> None:
    summarizer = ScriptedSummarizer(INCOMPLETE_SUMMARY, SummaryFailure(reason="gone"), usage=USAGE, calls=2)
    result = await run_compaction(make_subject(claude_body(12)), summarizer, InMemoryCompactionStore())

    assert result.compaction is not None
    assert result.compaction.cost == Decimal("0.004")
    assert result.usages == (USAGE,) * 4


async def test_what_a_failed_fold_cost_is_kept_too_and_unknown_is_not_zero() -> None:
    known, unknown = InMemoryCompactionStore(), InMemoryCompactionStore()
    candidate = make_subject(claude_body(12))
    await run_compaction(candidate, ScriptedSummarizer(usage=USAGE, calls=1), known)
    await run_compaction(candidate, ScriptedSummarizer(calls=1), unknown)

    assert [row.cost for row in (*known.compactions, *unknown.compactions)] == [Decimal("0.001"), None]


async def test_what_a_model_was_paid_in_vain_is_on_the_bill_of_the_rules_that_fold_instead() -> None:
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


async def test_what_was_answered_before_a_try_that_hangs_is_on_the_bill() -> None:
    """Regression: only the unknown usage of the hanging call was left, not that of two finished ones."""
    options = replace(OPTIONS, limit_seconds=0.1)
    summarizer = ScriptedSummarizer(COMPLETE_SUMMARY, usage=USAGE, calls=2, seconds=30)
    result = await run_compaction(make_subject(claude_body(12)), summarizer, InMemoryCompactionStore(), options)

    assert result.outcome is CompactionOutcome.FAILED
    assert result.usages == (USAGE, USAGE, None)


async def test_the_bills_of_a_fold_that_is_cancelled_are_with_whoever_wanted_it() -> None:
    usage_log, summarizer = UsageLog(), ScriptedSummarizer(COMPLETE_SUMMARY, usage=USAGE, calls=2, seconds=30)
    folding = asyncio.create_task(
        make_runner(InMemoryCompactionStore(), summarizer).compact(make_subject(claude_body(12)), usage_log)
    )
    await summarizer.started.wait()
    folding.cancel()
    await asyncio.wait((folding,))

    assert usage_log.usages == (USAGE, USAGE, None)


async def test_who_loses_the_right_to_fold_still_has_the_bills() -> None:
    store, candidate = InMemoryCompactionStore(), make_subject(claude_body(12))
    summarizer = ScriptedSummarizer(COMPLETE_SUMMARY, usage=USAGE, calls=2, seconds=30)
    folding = asyncio.create_task(
        run_compaction(candidate, summarizer, store, replace(OPTIONS, lock_ttl_seconds=0.3))
    )
    await summarizer.started.wait()
    store.leases[candidate.session_id] = replace(store.leases[candidate.session_id], holder="another", fence=2)
    result = await folding

    assert result.outcome is CompactionOutcome.LOCK_HELD
    assert result.usages == (USAGE, USAGE, None)
