"""Undoing compactions in a real store."""

from dataclasses import replace
from typing import Any

import pytest

from foveate.cli.compactions.undo import undo_compaction
from foveate.compaction.store import Compaction, CompactionOutcome
from foveate.errors import BadOption
from foveate.store import Store
from foveate.tokens import counter_for
from tests.support.scenarios.compaction_sessions import (
    MODEL,
    apply_compactions,
    claude_body,
    make_subject,
)
from tests.support.scenarios.stored_compactions import compact_session, record_all
from tests.support.stores.records import CLEARED_COMPACTION, COMPACTION, MOVED_SECTIONS

TRUNCATED = replace(
    COMPACTION, id="cut", outcome=CompactionOutcome.TOOL_RESULT_TRUNCATED, summary="", limit_tokens=700
)


async def next_request(store: Store, body: Any) -> tuple[bytes, int]:
    """Return the request as it is sent, and its tokens."""
    subject = make_subject(body)
    request = apply_compactions(
        subject.original, await store.compactions.find_compactions("ana", subject.chain.hashes)
    )
    return request.body, counter_for(MODEL).count_request(request).total.tokens


async def test_the_next_request_grows_by_the_reported_tokens(store: Store) -> None:
    body = claude_body(24)
    compaction = await compact_session(store, body)
    _, before = await next_request(store, body)

    result = await undo_compaction(store, compaction.id[:6], now=50.0)

    sent_body, after = await next_request(store, body)
    assert sent_body == make_subject(body).original.body
    assert result.more_tokens == pytest.approx(after - before, rel=0.02)
    assert result.compaction == replace(compaction, undone_at=50.0)
    assert await store.compactions.get_compaction(compaction.id) == result.compaction


async def test_an_earlier_compaction_is_in_force_again_and_its_saving_is_not_counted(store: Store) -> None:
    first = await compact_session(store, claude_body(12))
    second = await compact_session(store, claude_body(30), first)
    _, before = await next_request(store, claude_body(30))

    result = await undo_compaction(store, second.id, now=50.0)

    _, after = await next_request(store, claude_body(30))
    assert result.restored == first
    assert result.first_message == first.messages + 1
    assert result.more_tokens == pytest.approx(after - before, rel=0.05)


async def test_undoing_a_compaction_covered_by_a_longer_one_changes_nothing(store: Store) -> None:
    first = await compact_session(store, claude_body(12))
    second = await compact_session(store, claude_body(30), first)
    before = await next_request(store, claude_body(30))

    result = await undo_compaction(store, first.id, now=50.0)

    assert result.still_in_force == second
    assert result.more_tokens == 0
    assert await next_request(store, claude_body(30)) == before


@pytest.mark.parametrize("messages_before_the_boundary", [0, 3])
@pytest.mark.parametrize("edit", [CLEARED_COMPACTION, TRUNCATED])
async def test_undoing_an_edit_of_results_that_a_summary_replaces_changes_nothing(
    store: Store, edit: Compaction, messages_before_the_boundary: int
) -> None:
    body = claude_body(12)
    compaction = await compact_session(store, body)
    messages = compaction.messages - messages_before_the_boundary
    hashes = make_subject(body).chain.hashes
    edit = replace(
        edit,
        agent=compaction.agent,
        session_id=compaction.session_id,
        boundary=hashes[messages - 1],
        messages=messages,
    )
    await record_all(store, edit)
    before = await next_request(store, body)

    result = await undo_compaction(store, edit.id, now=50.0)

    assert (result.still_in_force, result.more_tokens) == (compaction, 0)
    assert await next_request(store, body) == before


async def test_another_conversation_of_the_same_session_is_ignored(store: Store) -> None:
    """A session that a header names may contain unrelated conversations."""
    longer = claude_body(30)
    longer["messages"][0] = {"role": "user", "content": "Something else."}
    own_compaction, other_compaction = (
        await compact_session(store, claude_body(12)),
        await compact_session(store, longer),
    )
    assert own_compaction.session_id == other_compaction.session_id

    result = await undo_compaction(store, own_compaction.id, now=50.0)

    assert (result.still_in_force, result.restored) == (None, None)
    assert result.more_tokens > 0


async def test_of_two_compactions_of_the_same_messages_the_later_one_stays_in_force(store: Store) -> None:
    first = await compact_session(store, claude_body(12))
    later = replace(first, id="later", summary="Shorter.", compacted_at=first.compacted_at + 1)
    await store.compactions.record(later, await store.compactions.load_messages(first.id), lease=None)

    assert (await undo_compaction(store, first.id, now=50.0)).still_in_force == later
    result = await undo_compaction(store, "later", now=60.0)
    assert (result.still_in_force, result.restored) == (None, None)


async def test_undoing_twice_is_the_same_as_undoing_once(store: Store) -> None:
    compaction = await compact_session(store, claude_body(12))
    await undo_compaction(store, compaction.id, now=50.0)

    second = await undo_compaction(store, compaction.id, now=60.0)

    assert second.was_undone_before
    assert second.compaction.undone_at == 50.0
    assert second.more_tokens == 0


@pytest.mark.parametrize(
    "outcome", [CompactionOutcome.FAILED, CompactionOutcome.LOCK_HELD, CompactionOutcome.NO_BOUNDARY]
)
async def test_a_compaction_that_changed_nothing_cannot_be_undone(
    store: Store, outcome: CompactionOutcome
) -> None:
    await record_all(store, replace(COMPACTION, outcome=outcome))

    with pytest.raises(BadOption, match=f"nothing to undo: compaction fold-1 has the outcome {outcome}"):
        await undo_compaction(store, COMPACTION.id, now=50.0)
    assert await store.compactions.get_compaction(COMPACTION.id) == replace(COMPACTION, outcome=outcome)


async def test_a_move_of_sections_cannot_be_undone(store: Store) -> None:
    await record_all(store, MOVED_SECTIONS)

    with pytest.raises(BadOption, match="move-1 is a move of sections, which cannot be undone"):
        await undo_compaction(store, MOVED_SECTIONS.id, now=50.0)
    assert await store.compactions.get_compaction(MOVED_SECTIONS.id) == MOVED_SECTIONS


async def test_a_truncated_tool_result_can_be_undone(store: Store) -> None:
    await record_all(
        store, replace(COMPACTION, outcome=CompactionOutcome.TOOL_RESULT_TRUNCATED, limit_tokens=700)
    )

    result = await undo_compaction(store, COMPACTION.id, now=50.0)

    assert (result.first_message, result.more_tokens) == (4, 8_300)
