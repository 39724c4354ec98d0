import asyncio
import re
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.compaction.apply import build_compaction_edits, summary_text
from foveate.compaction.boundary import MIN_TURNS_BETWEEN
from foveate.compaction.plan import CompactionCandidate
from foveate.compaction.store import CompactionOutcome
from foveate.compaction.summarize.summarizer import EXTRACTIVE_MODEL, SummaryFailure
from foveate.compaction.thinking import required_betas
from foveate.model import Edit
from foveate.sandbox import validate_request
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.compaction_sessions import OPTIONS, RULE, claude_body, make_subject, require_fit
from tests.support.scenarios.compactors import (
    COMPLETE_SUMMARY,
    INCOMPLETE_SUMMARY,
    extend_conversation,
    make_runner,
    run_compaction,
)
from tests.support.stores.memory_compaction_store import (
    InMemoryCompactionStore,
    ScriptedSummarizer,
    SlowCompactionStore,
)
from tests.support.strategies.claude_requests import claude_requests
from tests.support.strategies.tool_conversations import Body, claude_tool_loops


async def test_a_request_below_the_threshold_is_not_compacted() -> None:
    store = InMemoryCompactionStore()
    candidate = replace(make_subject(claude_body(12)), window_tokens=10**6)

    assert await make_runner(store, ScriptedSummarizer(COMPLETE_SUMMARY)).compact(candidate) is None
    assert store.compactions == []


async def test_a_compaction_stores_its_summary_and_original_messages() -> None:
    store, candidate = InMemoryCompactionStore(), make_subject(claude_body(12))
    result = await run_compaction(candidate, ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY), store)

    assert result.outcome is CompactionOutcome.OK
    assert store.compactions == [result.compaction]
    row = store.compactions[0]
    assert row.summary == COMPLETE_SUMMARY
    assert row.model == "a model"
    assert row.boundary == candidate.chain.hashes[row.messages - 1]
    assert row.seen_messages == len(candidate.chain)
    assert row.tokens_after < row.tokens_before
    assert store.messages[row.id] == candidate.original.messages[: row.messages]
    assert store.leases[candidate.session_id].holder == ""


async def test_without_a_boundary_nothing_changes() -> None:
    store = InMemoryCompactionStore()
    body = {**claude_body(1), "messages": [{"role": "user", "content": "x " * 3_000}]}
    result = await run_compaction(make_subject(body), ScriptedSummarizer(), store)

    assert result.outcome is CompactionOutcome.NO_BOUNDARY
    assert [row.outcome for row in store.compactions] == [CompactionOutcome.NO_BOUNDARY]
    assert store.leases == {}


@pytest.mark.parametrize("has_failed", [True, False])
async def test_a_compaction_is_not_retried_within_a_few_turns(has_failed: bool) -> None:
    """Another tool made 111 compactions in one turn."""
    store, body = InMemoryCompactionStore(), claude_body(12)
    await run_compaction(
        make_subject(body),
        ScriptedSummarizer() if has_failed else ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY),
        store,
    )
    summarizer = ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY, COMPLETE_SUMMARY, COMPLETE_SUMMARY)
    for turns in range(MIN_TURNS_BETWEEN):
        candidate = make_subject(extend_conversation(body, turns), store.compactions)
        assert await make_runner(store, summarizer).compact(candidate) is None, turns

    candidate = make_subject(extend_conversation(body, MIN_TURNS_BETWEEN), store.compactions)
    assert await make_runner(store, summarizer).compact(candidate) is not None


async def test_a_missing_boundary_is_not_searched_again_at_every_step() -> None:
    store = InMemoryCompactionStore()
    body = {**claude_body(1), "messages": [{"role": "user", "content": "x " * 3_000}]}
    await run_compaction(make_subject(body), ScriptedSummarizer(), store)

    assert (
        await make_runner(store, ScriptedSummarizer()).compact(make_subject(extend_conversation(body, 1)))
        is None
    )
    assert len(store.compactions) == 1


async def test_attempts_on_a_longer_branch_do_not_delay_a_compaction() -> None:
    """This happens after a client goes back in its conversation."""
    store, body = InMemoryCompactionStore(), claude_body(12)
    await run_compaction(make_subject(extend_conversation(body, 2)), ScriptedSummarizer(), store)

    assert (
        await make_runner(store, ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY)).compact(
            make_subject(body)
        )
        is not None
    )


async def test_a_request_that_would_not_fit_is_compacted_at_once_without_a_model() -> None:
    """Regression: a model was called at every step, 10 times in 10 steps."""
    store, body = InMemoryCompactionStore(), claude_body(12)
    await run_compaction(make_subject(body), ScriptedSummarizer(), store)
    summarizer = ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY)
    first = await run_compaction(require_fit(make_subject(extend_conversation(body, 1))), summarizer, store)

    assert first.outcome is CompactionOutcome.OK
    assert first.compaction is not None
    assert (first.compaction.model, first.compaction.cost) == (EXTRACTIVE_MODEL, Decimal(0))
    assert "only recently" in first.reason
    assert summarizer.inputs == []

    second = await run_compaction(
        require_fit(make_subject(extend_conversation(body, 1 + MIN_TURNS_BETWEEN), store.compactions)),
        summarizer,
        store,
    )
    assert second.compaction is not None
    assert second.compaction.model == "a model", "after some turns it may be asked again"


async def test_a_summary_that_omits_a_constraint_is_redrafted() -> None:
    summarizer = ScriptedSummarizer(INCOMPLETE_SUMMARY, COMPLETE_SUMMARY)
    result = await run_compaction(make_subject(claude_body(12)), summarizer, InMemoryCompactionStore())

    assert result.compaction is not None
    assert result.compaction.summary == COMPLETE_SUMMARY
    assert len(summarizer.missing) == 1
    assert RULE in summarizer.missing[0]
    assert RULE not in result.compaction.carried


async def test_facts_omitted_by_the_redraft_are_listed_after_the_first_draft() -> None:
    summarizer = ScriptedSummarizer(
        INCOMPLETE_SUMMARY, "Another text on the slow parser that leaves it out just as well.", COMPLETE_SUMMARY
    )
    result = await run_compaction(make_subject(claude_body(12)), summarizer, InMemoryCompactionStore())

    assert result.compaction is not None
    assert result.compaction.summary == INCOMPLETE_SUMMARY
    assert RULE in result.compaction.carried
    assert f"- {RULE}" in summary_text(result.compaction)
    assert len(summarizer.missing) == 1, "it is retried once"


async def test_a_full_list_contains_the_number_of_missing_facts() -> None:
    body = claude_body(12)
    rules = [f"Never touch the table number {number} of the database." for number in range(60)]
    question = {"role": "user", "content": f"Find the slow parser. {' '.join(rules)}"}
    summarizer = ScriptedSummarizer(INCOMPLETE_SUMMARY)
    result = await run_compaction(
        make_subject({**body, "messages": [question, *body["messages"][1:]]}),
        summarizer,
        InMemoryCompactionStore(),
    )

    assert result.compaction is not None
    *listed, last = result.compaction.carried
    unlisted_rules = len(set(rules) - set(listed))
    note = re.fullmatch(r"and (\d+) more that may be needed, for which there is no room here", last)
    assert 0 < unlisted_rules < len(rules)
    assert note is not None
    assert int(note[1]) >= unlisted_rules
    assert last in summary_text(result.compaction)
    assert set(rules) <= set(summarizer.missing[0])


@pytest.mark.parametrize("redraft", ["", "<html>", "I can't help with that.", SummaryFailure(reason="gone")])
async def test_a_failed_redraft_leaves_the_first_draft(redraft: str | SummaryFailure) -> None:
    result = await run_compaction(
        make_subject(claude_body(12)),
        ScriptedSummarizer(INCOMPLETE_SUMMARY, redraft),
        InMemoryCompactionStore(),
    )

    assert result.outcome is CompactionOutcome.OK
    assert result.compaction is not None
    assert result.compaction.summary == INCOMPLETE_SUMMARY


async def test_a_redraft_that_hangs_leaves_the_first_draft() -> None:
    options = replace(OPTIONS, limit_seconds=0.4)
    result = await run_compaction(
        make_subject(claude_body(12)),
        ScriptedSummarizer(INCOMPLETE_SUMMARY, COMPLETE_SUMMARY, redraft_seconds=30),
        InMemoryCompactionStore(),
        options,
    )

    assert result.outcome is CompactionOutcome.OK
    assert result.compaction is not None
    assert result.compaction.summary == INCOMPLETE_SUMMARY
    assert result.compaction.cost is None, "what the second try cost is not known"


async def test_a_summary_that_takes_too_long_is_abandoned() -> None:
    store, candidate = InMemoryCompactionStore(), make_subject(claude_body(12))
    result = await run_compaction(
        candidate, ScriptedSummarizer(COMPLETE_SUMMARY, seconds=30), store, replace(OPTIONS, limit_seconds=0.1)
    )

    assert result.outcome is CompactionOutcome.FAILED
    assert "within" in result.reason
    assert [(row.outcome, row.cost) for row in store.compactions] == [(CompactionOutcome.FAILED, None)]
    assert store.leases[candidate.session_id].holder == ""


async def test_a_lease_is_renewed_while_a_summary_is_written() -> None:
    store = InMemoryCompactionStore()
    options = replace(OPTIONS, lock_ttl_seconds=0.03)
    result = await run_compaction(
        make_subject(claude_body(12)),
        ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY, seconds=0.2),
        store,
        options,
    )

    assert result.outcome is CompactionOutcome.OK
    assert store.renewed >= 3


async def test_nothing_is_stored_after_the_lease_is_lost() -> None:
    store, candidate = InMemoryCompactionStore(), make_subject(claude_body(12))
    summarizer = ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY, seconds=0.2)
    task = asyncio.create_task(run_compaction(candidate, summarizer, store))
    await summarizer.started.wait()
    other_lease = replace(store.leases[candidate.session_id], holder="another", fence=2)
    store.leases[candidate.session_id] = other_lease
    result = await task

    assert (result.outcome, result.compaction) == (CompactionOutcome.LOCK_HELD, None)
    assert store.compactions == []
    assert store.leases[candidate.session_id] == other_lease


async def test_a_concurrent_compaction_is_not_repeated() -> None:
    store, candidate = InMemoryCompactionStore(), make_subject(claude_body(12))
    first = await run_compaction(candidate, ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY), store)
    second = await run_compaction(
        require_fit(candidate), ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY), store
    )

    assert (second.outcome, second.compaction) == (CompactionOutcome.LOCK_HELD, first.compaction)
    assert store.compactions == [first.compaction]


async def test_a_request_that_must_fit_waits_for_a_concurrent_compaction() -> None:
    store, candidate = InMemoryCompactionStore(), make_subject(claude_body(12))
    slow = ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY, seconds=0.2)
    first = asyncio.create_task(run_compaction(candidate, slow, store))
    await slow.started.wait()
    second = await run_compaction(
        require_fit(candidate), ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY), store
    )

    assert second.compaction is not None
    assert (second.outcome, second.compaction) == (CompactionOutcome.LOCK_HELD, (await first).compaction)


@pytest.mark.parametrize("must_fit", [False, True], ids=["fits", "must fit"])
async def test_the_wait_for_a_concurrent_compaction_is_short(must_fit: bool) -> None:
    store, candidate = InMemoryCompactionStore(), make_subject(claude_body(12))
    assert await store.acquire_lease(candidate.session_id, "another", ttl_seconds=300, now=100.0)
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    runner = make_runner(store, ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY), sleep=sleep)
    result = await runner.compact(require_fit(candidate) if must_fit else candidate)

    assert result is not None
    assert result.outcome is CompactionOutcome.LOCK_HELD
    assert bool(delays) == must_fit
    assert sum(delays) < 2


@pytest.mark.parametrize("operation", ["listed", "lease", "folds", "record"])
async def test_an_unavailable_store_is_a_failed_compaction_and_not_an_error(operation: str) -> None:
    store = InMemoryCompactionStore(unavailable=[operation])
    result = await run_compaction(
        make_subject(claude_body(12)), ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY), store
    )

    assert result.outcome is CompactionOutcome.FAILED
    assert "it is gone" in result.reason
    assert store.compactions == []


@pytest.mark.parametrize("operation", ["renew", "release"])
async def test_a_store_that_is_unavailable_for_a_moment_does_not_stop_a_compaction(operation: str) -> None:
    options = replace(OPTIONS, lock_ttl_seconds=0.03)
    store = InMemoryCompactionStore(unavailable=[operation])
    result = await run_compaction(
        make_subject(claude_body(12)),
        ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY, seconds=0.1),
        store,
        options,
    )

    assert result.outcome is CompactionOutcome.OK


async def test_a_cancelled_compaction_releases_its_lease() -> None:
    store, candidate = InMemoryCompactionStore(), make_subject(claude_body(12))
    summarizer = ScriptedSummarizer(COMPLETE_SUMMARY, seconds=30)
    compacting = asyncio.create_task(run_compaction(candidate, summarizer, store))
    await summarizer.started.wait()
    compacting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compacting

    assert store.leases[candidate.session_id].holder == ""
    assert store.compactions == []


async def test_a_compaction_cancelled_while_acquiring_its_lease_releases_it() -> None:
    store, candidate = SlowCompactionStore(), make_subject(claude_body(12))
    compacting = asyncio.create_task(
        run_compaction(candidate, ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY), store)
    )
    await store.lease_requested.wait()
    compacting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compacting

    assert store.leases[candidate.session_id].holder == ""


async def test_an_exception_of_a_summarizer_is_a_failed_compaction(caplog: pytest.LogCaptureFixture) -> None:
    """Regression: the exception was not caught, nothing was recorded, and every request tried again."""
    store, candidate = InMemoryCompactionStore(), make_subject(claude_body(12))
    result = await run_compaction(candidate, ScriptedSummarizer(RuntimeError("a bug of theirs")), store)

    assert (result.outcome, result.reason) == (CompactionOutcome.FAILED, "a bug of theirs")
    assert [row.outcome for row in store.compactions] == [CompactionOutcome.FAILED]
    assert "RuntimeError: a bug of theirs" in caplog.text
    assert store.leases[candidate.session_id].holder == ""


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
async def test_an_error_text_of_a_summarizer_never_replaces_the_history(text: str) -> None:
    store = InMemoryCompactionStore()
    result = await run_compaction(make_subject(claude_body(12)), ScriptedSummarizer(text), store)

    assert result.outcome is CompactionOutcome.FAILED
    assert [row.summary for row in store.compactions] == [""]


async def test_an_extractive_summary_replaces_a_failed_model_if_enabled() -> None:
    options = replace(OPTIONS, extractive=True)
    result = await run_compaction(
        make_subject(claude_body(12)), ScriptedSummarizer(), InMemoryCompactionStore(), options
    )

    assert result.outcome is CompactionOutcome.OK
    assert result.compaction is not None
    assert result.compaction.model == EXTRACTIVE_MODEL
    assert RULE in result.compaction.summary
    assert result.reason == "nothing more to say"


async def test_without_a_model_summaries_are_extractive() -> None:
    result = await run_compaction(make_subject(claude_body(12)), None, InMemoryCompactionStore())

    assert result.compaction is not None
    assert (result.outcome, result.compaction.model, result.compaction.cost) == (
        CompactionOutcome.OK,
        EXTRACTIVE_MODEL,
        Decimal(0),
    )


async def test_the_model_gets_the_facts_that_the_tail_does_not_contain() -> None:
    body = claude_body(12)
    question = {"role": "user", "content": "Which one was it, parse_9_0?"}
    for last, is_included in ((body["messages"][-1], True), (question, False)):
        summarizer = ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY)
        await run_compaction(
            make_subject({**body, "messages": [*body["messages"][:-1], last]}),
            summarizer,
            InMemoryCompactionStore(),
        )
        (summary_input,) = summarizer.inputs

        assert RULE in summary_input.facts
        assert ("parse_9_0" in summary_input.facts) is is_included


async def test_a_later_compaction_covers_new_messages_and_the_earlier_summary() -> None:
    body = claude_body(30)
    store = InMemoryCompactionStore()
    shorter = {**body, "messages": body["messages"][:31]}
    first = await run_compaction(
        make_subject(shorter), ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY), store
    )
    assert first.compaction is not None
    summarizer = ScriptedSummarizer(COMPLETE_SUMMARY, COMPLETE_SUMMARY)
    second = await run_compaction(make_subject(body, store.compactions), summarizer, store)

    assert second.outcome is CompactionOutcome.OK, second.reason
    assert second.compaction is not None
    assert second.compaction.messages > first.compaction.messages
    (summary_input,) = summarizer.inputs
    assert COMPLETE_SUMMARY in summary_input.earlier_summary
    assert len(summary_input.new_messages) < len(summary_input.head)
    assert second.compaction.earlier_id == first.compaction.id
    messages = make_subject(body).original.messages[: second.compaction.messages]
    assert store.messages[second.compaction.id] == messages[first.compaction.messages :]
    assert await store.load_messages(second.compaction.id) == messages


@pytest.mark.slow
@settings(max_examples=limit_examples(40))
@given(st.one_of(claude_tool_loops(), claude_requests()), st.integers(1, 60))
def test_providers_accept_a_compacted_request_and_undo_restores_the_original(
    body: Body, tail_tokens: int
) -> None:
    store = InMemoryCompactionStore()
    candidate = require_fit(make_subject(body))
    result = asyncio.run(run_compaction(candidate, None, store, replace(OPTIONS, tail_keep_tokens=tail_tokens)))

    betas = required_betas(compaction_edits(candidate, store))
    assert (
        validate_request(
            formats.parse_request(compacted_body(candidate, store), candidate.original.format), betas=betas
        )
        is None
    )
    event(result.outcome)
    if result.outcome is CompactionOutcome.OK:
        assert result.compaction is not None
        tail = candidate.original.messages[result.compaction.messages :]
        assert store.messages[result.compaction.id] + tail == candidate.original.messages
        asyncio.run(store.undo(result.compaction.id, now=1))
    assert compacted_body(candidate, store) == candidate.original.body


def compaction_edits(candidate: CompactionCandidate, store: InMemoryCompactionStore) -> tuple[Edit, ...]:
    compactions = asyncio.run(store.find_compactions(candidate.agent, candidate.chain.hashes))
    return tuple(build_compaction_edits(candidate.original, candidate.chain, compactions))


def compacted_body(candidate: CompactionCandidate, store: InMemoryCompactionStore) -> bytes:
    return formats.apply_edits(candidate.original, compaction_edits(candidate, store))
