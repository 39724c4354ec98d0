"""What becomes of a fold: when it is tried, what is kept of it, and that nothing is lost."""

import asyncio
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from foveate import wire
from foveate.fold.boundary import MIN_TURNS_BETWEEN
from foveate.fold.cuts import FoldOptions, Subject
from foveate.fold.folding import Folded, Folder
from foveate.fold.journal import Journal, Outcome
from foveate.fold.replacing import folded_edits, summary_text
from foveate.fold.summariser import EXTRACTIVE, NoSummary, Summariser, Summary
from foveate.sandbox import accept
from foveate.tokens import counter_for
from foveate.values import CacheUsage, Usage
from tests.claude_bodies import claude_bodies
from tests.sessions_to_fold import MODEL, OPTIONS, RULE, claude_body, must_fit, path, subject_of
from tests.unit.fold.journals import InMemory, Scripted
from tests.unit.fold.talks import Body, claude_loops

TOLD = f"The user looks for the slow parser in src/parsers. {RULE} Next was to say which one it was."
DROPPED = "The user looks for the slow parser, and has asked which one it was."
USAGE = Usage(cache=CacheUsage(uncached=1_000), output_tokens=100)


def folder(journal: Journal, summariser: Summariser | None, options: FoldOptions = OPTIONS) -> Folder:
    return Folder(
        journal,
        summariser,
        counter_for(MODEL),
        holder="this one",
        clock=lambda: 100.0,
        options=options,
        price=lambda _model, usage: Decimal(usage.cache.uncached) / 1_000_000,
    )


async def fold(
    subject: Subject, summariser: Summariser | None, journal: InMemory, options: FoldOptions = OPTIONS
) -> Folded:
    folded = await folder(journal, summariser, options).fold(subject)
    assert folded is not None
    return folded


def longer(body: Body, answers: int) -> Body:
    """The conversation after the model has spoken so many times more."""
    more: list[Body] = []
    for number in range(answers):
        more += [
            {"role": "assistant", "content": f"Answer {number}."},
            {"role": "user", "content": f"And then, {number}?"},
        ]
    return {**body, "messages": [*body["messages"], *more]}


async def test_a_request_below_the_trigger_is_left_alone() -> None:
    journal = InMemory()
    subject = replace(subject_of(claude_body(12)), window_tokens=10**6)

    assert await folder(journal, Scripted(TOLD)).fold(subject) is None
    assert journal.rows == []


async def test_a_fold_keeps_its_summary_and_all_that_it_folds() -> None:
    journal, subject = InMemory(), subject_of(claude_body(12))
    folded = await fold(subject, Scripted(TOLD, TOLD), journal)

    assert folded.outcome is Outcome.OK
    assert journal.rows == [folded.fold]
    row = journal.rows[0]
    assert row.summary == TOLD
    assert row.model == "a model"
    assert row.boundary == subject.chain.hashes[row.messages - 1]
    assert row.seen_messages == len(subject.chain)
    assert row.tokens_after < row.tokens_before
    assert journal.turns[row.id] == subject.request.messages[: row.messages]
    assert journal.leases[subject.session_id].holder == ""


async def test_where_there_is_no_place_to_cut_nothing_changes() -> None:
    journal = InMemory()
    body = {**claude_body(1), "messages": [{"role": "user", "content": "x " * 3_000}]}
    folded = await fold(subject_of(body), Scripted(), journal)

    assert folded.outcome is Outcome.NO_BOUNDARY
    assert [row.outcome for row in journal.rows] == [Outcome.NO_BOUNDARY]
    assert journal.leases == {}


@pytest.mark.parametrize("failed", [True, False])
async def test_a_fold_is_not_tried_again_before_the_model_has_spoken_some_times(failed: bool) -> None:
    """Was, elsewhere: 111 folds in one turn."""
    journal, body = InMemory(), claude_body(12)
    await fold(subject_of(body), Scripted() if failed else Scripted(TOLD, TOLD), journal)
    summariser = Scripted(TOLD, TOLD, TOLD, TOLD)
    for answers in range(MIN_TURNS_BETWEEN):
        subject = subject_of(longer(body, answers), journal.rows)
        assert await folder(journal, summariser).fold(subject) is None, answers

    subject = subject_of(longer(body, MIN_TURNS_BETWEEN), journal.rows)
    assert await folder(journal, summariser).fold(subject) is not None


async def test_a_request_that_would_not_fit_is_folded_however_soon() -> None:
    journal, subject = InMemory(), subject_of(claude_body(12))
    await fold(subject, Scripted(), journal)
    again = await fold(must_fit(subject), Scripted(TOLD, TOLD), journal)

    assert again.outcome is Outcome.OK


async def test_a_summary_that_drops_a_constraint_is_asked_for_once_more() -> None:
    summariser = Scripted(DROPPED, TOLD)
    folded = await fold(subject_of(claude_body(12)), summariser, InMemory())

    assert folded.fold is not None
    assert folded.fold.summary == TOLD
    assert len(summariser.missing) == 1
    assert RULE in summariser.missing[0]
    assert RULE not in folded.fold.carried


async def test_what_it_drops_again_is_listed_after_the_first_one() -> None:
    summariser = Scripted(DROPPED, "Another text that leaves it out just as well as the first one did.", TOLD)
    folded = await fold(subject_of(claude_body(12)), summariser, InMemory())

    assert folded.fold is not None
    assert folded.fold.summary == DROPPED
    assert RULE in folded.fold.carried
    assert f"- {RULE}" in summary_text(folded.fold)
    assert len(summariser.missing) == 1, "it is retried once"


@pytest.mark.parametrize("again", ["", "<html>", "I can't help with that.", NoSummary(reason="gone")])
async def test_a_second_try_that_fails_leaves_the_first_one(again: str | NoSummary) -> None:
    folded = await fold(subject_of(claude_body(12)), Scripted(DROPPED, again), InMemory())

    assert folded.outcome is Outcome.OK
    assert folded.fold is not None
    assert folded.fold.summary == DROPPED


async def test_a_second_try_that_hangs_leaves_the_first_one() -> None:
    options = replace(OPTIONS, limit_seconds=0.4)
    folded = await fold(
        subject_of(claude_body(12)), Scripted(DROPPED, TOLD, redraft_seconds=30), InMemory(), options
    )

    assert folded.outcome is Outcome.OK
    assert folded.fold is not None
    assert folded.fold.summary == DROPPED
    assert folded.fold.cost is None, "what the second try cost is not known"


async def test_a_summary_that_takes_too_long_is_given_up() -> None:
    journal, subject = InMemory(), subject_of(claude_body(12))
    folded = await fold(subject, Scripted(TOLD, seconds=30), journal, replace(OPTIONS, limit_seconds=0.1))

    assert folded.outcome is Outcome.FAILED
    assert "within" in folded.reason
    assert [(row.outcome, row.cost) for row in journal.rows] == [(Outcome.FAILED, None)]
    assert journal.leases[subject.session_id].holder == ""


async def test_a_lease_is_renewed_while_a_summary_is_under_way() -> None:
    journal = InMemory()
    options = replace(OPTIONS, lock_ttl_seconds=0.03)
    folded = await fold(subject_of(claude_body(12)), Scripted(TOLD, TOLD, seconds=0.2), journal, options)

    assert folded.outcome is Outcome.OK
    assert journal.renewed >= 3


async def test_a_lease_that_was_lost_at_the_end_writes_nothing() -> None:
    journal, subject = InMemory(), subject_of(claude_body(12))
    summariser = Scripted(TOLD, TOLD, seconds=0.2)
    folding = asyncio.create_task(fold(subject, summariser, journal))
    await summariser.asked.wait()
    theirs = replace(journal.leases[subject.session_id], holder="another", fence=2)
    journal.leases[subject.session_id] = theirs
    folded = await folding

    assert (folded.outcome, folded.fold) == (Outcome.LOCK_HELD, None)
    assert journal.rows == []
    assert journal.leases[subject.session_id] == theirs


async def test_who_was_late_makes_no_second_fold_of_the_same() -> None:
    journal, subject = InMemory(), subject_of(claude_body(12))
    first = await fold(subject, Scripted(TOLD, TOLD), journal)
    late = await fold(must_fit(subject), Scripted(TOLD, TOLD), journal)

    assert (late.outcome, late.fold) == (Outcome.LOCK_HELD, first.fold)
    assert journal.rows == [first.fold]


@pytest.mark.parametrize("what", ["listed", "lease", "folds", "record"])
async def test_a_store_that_is_gone_is_a_failed_fold_and_no_error(what: str) -> None:
    journal = InMemory(gone=[what])
    folded = await fold(subject_of(claude_body(12)), Scripted(TOLD, TOLD), journal)

    assert folded.outcome is Outcome.FAILED
    assert "it is gone" in folded.reason
    assert journal.rows == []


@pytest.mark.parametrize("what", ["renew", "release"])
async def test_a_store_that_is_gone_for_a_moment_does_not_stop_a_fold(what: str) -> None:
    options = replace(OPTIONS, lock_ttl_seconds=0.03)
    journal = InMemory(gone=[what])
    folded = await fold(subject_of(claude_body(12)), Scripted(TOLD, TOLD, seconds=0.1), journal, options)

    assert folded.outcome is Outcome.OK


async def test_a_fold_that_is_cancelled_gives_its_lease_back() -> None:
    journal, subject = InMemory(), subject_of(claude_body(12))
    summariser = Scripted(TOLD, seconds=30)
    folding = asyncio.create_task(fold(subject, summariser, journal))
    await summariser.asked.wait()
    folding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await folding

    assert journal.leases[subject.session_id].holder == ""
    assert journal.rows == []


async def test_all_tries_are_paid_for() -> None:
    tried = Summary(text=DROPPED, model=MODEL, usages=(USAGE, USAGE))
    journal = InMemory()
    folded = await fold(
        subject_of(claude_body(12)),
        Scripted(tried, NoSummary(reason="gone", usages=(USAGE,))),
        journal,
    )

    assert folded.fold is not None
    assert folded.fold.cost == Decimal("0.003")
    assert folded.usages == (USAGE, USAGE, USAGE)


async def test_what_a_failed_fold_cost_is_kept_too_and_unknown_is_not_zero() -> None:
    known, unknown = InMemory(), InMemory()
    subject = subject_of(claude_body(12))
    await fold(subject, Scripted(NoSummary(reason="x", usages=(USAGE,))), known)
    await fold(subject, Scripted(NoSummary(reason="x", usages=(USAGE, None))), unknown)

    assert [row.cost for row in (*known.rows, *unknown.rows)] == [Decimal("0.001"), None]


@pytest.mark.parametrize("text", ["", "Internal Server Error", "word " * 9_000])
async def test_no_summarisers_error_becomes_the_history(text: str) -> None:
    journal = InMemory()
    folded = await fold(subject_of(claude_body(12)), Scripted(text), journal)

    assert folded.outcome is Outcome.FAILED
    assert [row.summary for row in journal.rows] == [""]


async def test_rules_fold_where_no_model_does_and_it_is_wanted() -> None:
    options = replace(OPTIONS, extractive=True)
    folded = await fold(subject_of(claude_body(12)), Scripted(), InMemory(), options)

    assert folded.outcome is Outcome.OK
    assert folded.fold is not None
    assert folded.fold.model == EXTRACTIVE
    assert RULE in folded.fold.summary
    assert folded.reason == "nothing more to say"


async def test_without_any_model_rules_fold() -> None:
    folded = await fold(subject_of(claude_body(12)), None, InMemory())

    assert folded.fold is not None
    assert (folded.outcome, folded.fold.model, folded.fold.cost) == (Outcome.OK, EXTRACTIVE, Decimal(0))


async def test_the_model_is_told_the_facts_that_the_tail_does_not_tell() -> None:
    body = claude_body(12)
    named = {"role": "user", "content": f"Which one was it, {path(9)}?"}
    for last, is_told in ((body["messages"][-1], True), (named, False)):
        summariser = Scripted(TOLD, TOLD)
        await fold(subject_of({**body, "messages": [*body["messages"][:-1], last]}), summariser, InMemory())
        (span,) = summariser.spans

        assert RULE in span.facts
        assert (path(9) in span.facts) is is_told


async def test_a_later_fold_folds_only_what_is_new_and_the_earlier_summary() -> None:
    body = claude_body(30)
    journal = InMemory()
    begun = {**body, "messages": body["messages"][:31]}
    first = await fold(subject_of(begun), Scripted(TOLD, TOLD), journal)
    assert first.fold is not None
    summariser = Scripted(TOLD, TOLD)
    second = await fold(subject_of(body, journal.rows), summariser, journal)

    assert second.outcome is Outcome.OK, second.reason
    assert second.fold is not None
    assert second.fold.messages > first.fold.messages
    (span,) = summariser.spans
    assert TOLD in span.earlier
    assert len(span.new) < len(span.head)
    assert second.fold.earlier_id == first.fold.id
    messages = subject_of(body).request.messages[: second.fold.messages]
    assert journal.turns[second.fold.id] == messages[first.fold.messages :]
    assert await journal.folded(second.fold.id) == messages


@settings(max_examples=40)
@given(st.one_of(claude_loops(), claude_bodies()), st.integers(1, 60))
def test_what_is_sent_after_a_fold_is_taken_and_undone_gives_all_of_it_back(body: Body, tail: int) -> None:
    journal = InMemory()
    subject = must_fit(subject_of(body))
    folded = asyncio.run(fold(subject, None, journal, replace(OPTIONS, tail_keep_tokens=tail)))

    assert accept(wire.read(sent(subject, journal), subject.request.format)) is None
    event(folded.outcome)
    if folded.outcome is Outcome.OK:
        assert folded.fold is not None
        kept = subject.request.messages[folded.fold.messages :]
        assert journal.turns[folded.fold.id] + kept == subject.request.messages
        asyncio.run(journal.undo(folded.fold.id, now=1))
    assert sent(subject, journal) == subject.request.body


def sent(subject: Subject, journal: InMemory) -> bytes:
    """The request as it goes out."""
    folds = asyncio.run(journal.folds(subject.agent, subject.chain.hashes))
    return wire.write(subject.request, folded_edits(subject.request, subject.chain, folds))
