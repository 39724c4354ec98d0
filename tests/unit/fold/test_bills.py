"""Whatever becomes of a fold, what was billed for it is known to whoever wanted it."""

import asyncio
from dataclasses import replace
from decimal import Decimal

from foveate.fold.journal import Outcome
from foveate.fold.summariser import EXTRACTIVE, Bills, NoSummary
from tests.sessions_to_fold import OPTIONS, claude_body, subject_of
from tests.unit.fold.folders import DROPPED, TOLD, USAGE, fold, folder
from tests.unit.fold.journals import InMemory, Scripted


async def test_all_tries_are_paid_for() -> None:
    summariser = Scripted(DROPPED, NoSummary(reason="gone"), usage=USAGE, calls=2)
    folded = await fold(subject_of(claude_body(12)), summariser, InMemory())

    assert folded.fold is not None
    assert folded.fold.cost == Decimal("0.004")
    assert folded.usages == (USAGE,) * 4


async def test_what_a_failed_fold_cost_is_kept_too_and_unknown_is_not_zero() -> None:
    known, unknown = InMemory(), InMemory()
    subject = subject_of(claude_body(12))
    await fold(subject, Scripted(usage=USAGE, calls=1), known)
    await fold(subject, Scripted(calls=1), unknown)

    assert [row.cost for row in (*known.rows, *unknown.rows)] == [Decimal("0.001"), None]


async def test_what_a_model_was_paid_in_vain_is_on_the_bill_of_the_rules_that_fold_instead() -> None:
    options = replace(OPTIONS, extractive=True)
    folded = await fold(subject_of(claude_body(12)), Scripted(usage=USAGE, calls=3), InMemory(), options)

    assert folded.usages == (USAGE,) * 3
    assert folded.fold is not None
    assert (folded.fold.model, folded.fold.cost) == (EXTRACTIVE, Decimal("0.003"))


async def test_what_was_answered_before_a_try_that_hangs_is_on_the_bill() -> None:
    """Was: two answers were billed, a third hung, and all that was left was one of which nothing is known."""
    options = replace(OPTIONS, limit_seconds=0.1)
    summariser = Scripted(TOLD, usage=USAGE, calls=2, seconds=30)
    folded = await fold(subject_of(claude_body(12)), summariser, InMemory(), options)

    assert folded.outcome is Outcome.FAILED
    assert folded.usages == (USAGE, USAGE, None)


async def test_the_bills_of_a_fold_that_is_cancelled_are_with_whoever_wanted_it() -> None:
    bills, summariser = Bills(), Scripted(TOLD, usage=USAGE, calls=2, seconds=30)
    folding = asyncio.create_task(folder(InMemory(), summariser).fold(subject_of(claude_body(12)), bills))
    await summariser.asked.wait()
    folding.cancel()
    await asyncio.wait((folding,))

    assert bills.usages == (USAGE, USAGE, None)


async def test_who_loses_the_right_to_fold_still_has_the_bills() -> None:
    journal, subject = InMemory(), subject_of(claude_body(12))
    summariser = Scripted(TOLD, usage=USAGE, calls=2, seconds=30)
    folding = asyncio.create_task(fold(subject, summariser, journal, replace(OPTIONS, lock_ttl_seconds=0.3)))
    await summariser.asked.wait()
    journal.leases[subject.session_id] = replace(journal.leases[subject.session_id], holder="another", fence=2)
    folded = await folding

    assert folded.outcome is Outcome.LOCK_HELD
    assert folded.usages == (USAGE, USAGE, None)
