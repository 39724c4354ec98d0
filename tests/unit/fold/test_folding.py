"""What becomes of a fold: when it is tried, what is kept of it, and that nothing is lost."""

import asyncio
import re
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from foveate import wire
from foveate.fold.boundary import MIN_TURNS_BETWEEN
from foveate.fold.cuts import Subject
from foveate.fold.journal import Outcome
from foveate.fold.replacing import folded_edits, summary_text
from foveate.fold.summariser import EXTRACTIVE, NoSummary
from foveate.fold.thoughts import betas_of
from foveate.sandbox import accept
from foveate.values import Edit
from tests.claude_bodies import claude_bodies
from tests.sessions_to_fold import OPTIONS, RULE, claude_body, must_fit, subject_of
from tests.support.examples import limit_examples
from tests.unit.fold.folders import DROPPED, TOLD, fold, folder, longer
from tests.unit.fold.journals import InMemory, Scripted, Slow
from tests.unit.fold.talks import Body, claude_loops


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


async def test_where_there_was_no_place_to_cut_none_is_looked_for_at_each_step() -> None:
    journal = InMemory()
    body = {**claude_body(1), "messages": [{"role": "user", "content": "x " * 3_000}]}
    await fold(subject_of(body), Scripted(), journal)

    assert await folder(journal, Scripted()).fold(subject_of(longer(body, 1))) is None
    assert len(journal.rows) == 1


async def test_what_was_tried_beyond_the_end_of_what_is_sent_keeps_nobody_from_folding() -> None:
    """As after a client went back in its conversation: something else was said there then."""
    journal, body = InMemory(), claude_body(12)
    await fold(subject_of(longer(body, 2)), Scripted(), journal)

    assert await folder(journal, Scripted(TOLD, TOLD)).fold(subject_of(body)) is not None


async def test_a_request_that_would_not_fit_is_folded_however_soon_but_no_model_is_asked() -> None:
    """Was: a model was asked at every step, 10 times in 10 steps."""
    journal, body = InMemory(), claude_body(12)
    await fold(subject_of(body), Scripted(), journal)
    summariser = Scripted(TOLD, TOLD)
    again = await fold(must_fit(subject_of(longer(body, 1))), summariser, journal)

    assert again.outcome is Outcome.OK
    assert again.fold is not None
    assert (again.fold.model, again.fold.cost) == (EXTRACTIVE, Decimal(0))
    assert "just before" in again.reason
    assert summariser.spans == []

    later = await fold(
        must_fit(subject_of(longer(body, 1 + MIN_TURNS_BETWEEN), journal.rows)), summariser, journal
    )
    assert later.fold is not None
    assert later.fold.model == "a model", "after some turns it may be asked again"


async def test_a_summary_that_drops_a_constraint_is_asked_for_once_more() -> None:
    summariser = Scripted(DROPPED, TOLD)
    folded = await fold(subject_of(claude_body(12)), summariser, InMemory())

    assert folded.fold is not None
    assert folded.fold.summary == TOLD
    assert len(summariser.missing) == 1
    assert RULE in summariser.missing[0]
    assert RULE not in folded.fold.carried


async def test_what_it_drops_again_is_listed_after_the_first_one() -> None:
    summariser = Scripted(DROPPED, "Another text on the slow parser that leaves it out just as well.", TOLD)
    folded = await fold(subject_of(claude_body(12)), summariser, InMemory())

    assert folded.fold is not None
    assert folded.fold.summary == DROPPED
    assert RULE in folded.fold.carried
    assert f"- {RULE}" in summary_text(folded.fold)
    assert len(summariser.missing) == 1, "it is retried once"


async def test_where_the_list_has_no_room_for_all_that_is_missing_it_says_how_many_more_there_are() -> None:
    body = claude_body(12)
    rules = [f"Never touch the table number {number} of the database." for number in range(60)]
    asked = {"role": "user", "content": f"Find the slow parser. {' '.join(rules)}"}
    summariser = Scripted(DROPPED)
    folded = await fold(
        subject_of({**body, "messages": [asked, *body["messages"][1:]]}), summariser, InMemory()
    )

    assert folded.fold is not None
    *listed, last = folded.fold.carried
    left = len(set(rules) - set(listed))
    more = re.fullmatch(r"and (\d+) more that may be needed, for which there is no room here", last)
    assert 0 < left < len(rules)
    assert more is not None
    assert int(more[1]) >= left
    assert last in summary_text(folded.fold)
    assert set(rules) <= set(summariser.missing[0])


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


async def test_a_request_that_must_fit_waits_for_the_fold_that_another_is_making() -> None:
    journal, subject = InMemory(), subject_of(claude_body(12))
    slow = Scripted(TOLD, TOLD, seconds=0.2)
    first = asyncio.create_task(fold(subject, slow, journal))
    await slow.asked.wait()
    second = await fold(must_fit(subject), Scripted(TOLD, TOLD), journal)

    assert second.fold is not None
    assert (second.outcome, second.fold) == (Outcome.LOCK_HELD, (await first).fold)


@pytest.mark.parametrize("must", [False, True], ids=["it fits", "it must fit"])
async def test_nobody_waits_long_for_who_folds_the_same(must: bool) -> None:
    journal, subject = InMemory(), subject_of(claude_body(12))
    assert await journal.lease(subject.session_id, "another", ttl_seconds=300, now=100.0)
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    late = folder(journal, Scripted(TOLD, TOLD), sleep=sleep)
    folded = await late.fold(must_fit(subject) if must else subject)

    assert folded is not None
    assert folded.outcome is Outcome.LOCK_HELD
    assert bool(waited) == must
    assert sum(waited) < 2


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


async def test_a_fold_that_is_cancelled_while_it_takes_its_lease_gives_it_back() -> None:
    journal, subject = Slow(), subject_of(claude_body(12))
    folding = asyncio.create_task(fold(subject, Scripted(TOLD, TOLD), journal))
    await journal.asked.wait()
    folding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await folding

    assert journal.leases[subject.session_id].holder == ""


async def test_a_summariser_that_raises_anything_is_a_failed_fold(caplog: pytest.LogCaptureFixture) -> None:
    """Was: it went right through, there was no row, and it was tried again with each request."""
    journal, subject = InMemory(), subject_of(claude_body(12))
    folded = await fold(subject, Scripted(RuntimeError("a bug of theirs")), journal)

    assert (folded.outcome, folded.reason) == (Outcome.FAILED, "a bug of theirs")
    assert [row.outcome for row in journal.rows] == [Outcome.FAILED]
    assert "RuntimeError: a bug of theirs" in caplog.text
    assert journal.leases[subject.session_id].holder == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Internal Server Error",
        "word " * 9_000,
        "Sure! Let me go on with that now.",
        '{"code": "slow_down"}',
    ],
)
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
    named = {"role": "user", "content": "Which one was it, parse_9_0?"}
    for last, is_told in ((body["messages"][-1], True), (named, False)):
        summariser = Scripted(TOLD, TOLD)
        await fold(subject_of({**body, "messages": [*body["messages"][:-1], last]}), summariser, InMemory())
        (span,) = summariser.spans

        assert RULE in span.facts
        assert ("parse_9_0" in span.facts) is is_told


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


@pytest.mark.slow
@settings(max_examples=limit_examples(40))
@given(st.one_of(claude_loops(), claude_bodies()), st.integers(1, 60))
def test_what_is_sent_after_a_fold_is_taken_and_undone_gives_all_of_it_back(body: Body, tail: int) -> None:
    journal = InMemory()
    subject = must_fit(subject_of(body))
    folded = asyncio.run(fold(subject, None, journal, replace(OPTIONS, tail_keep_tokens=tail)))

    betas = betas_of(edits(subject, journal))
    assert accept(wire.read(sent(subject, journal), subject.request.format), betas=betas) is None
    event(folded.outcome)
    if folded.outcome is Outcome.OK:
        assert folded.fold is not None
        kept = subject.request.messages[folded.fold.messages :]
        assert journal.turns[folded.fold.id] + kept == subject.request.messages
        asyncio.run(journal.undo(folded.fold.id, now=1))
    assert sent(subject, journal) == subject.request.body


def edits(subject: Subject, journal: InMemory) -> tuple[Edit, ...]:
    folds = asyncio.run(journal.folds(subject.agent, subject.chain.hashes))
    return tuple(folded_edits(subject.request, subject.chain, folds))


def sent(subject: Subject, journal: InMemory) -> bytes:
    """The request as it goes out."""
    return wire.write(subject.request, edits(subject, journal))
