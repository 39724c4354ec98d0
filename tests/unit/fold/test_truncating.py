"""Tool results that are cut: in the same way each time they are sent, whatever the limit is then."""

from dataclasses import replace
from typing import Any

from foveate import wire
from foveate.fold.clearing import truncated_results
from foveate.fold.journal import Outcome
from foveate.fold.truncating import Truncated, truncate
from foveate.session.chain import chain_of
from foveate.tokens import counter_for
from foveate.values import Format, Request
from tests.unit.fold.journals import InMemory

Body = dict[str, Any]

COUNTER = counter_for("gpt-4.1")
LIMIT = 200
LINES = "\n".join(f"line {number} of the file" for number in range(500))
ASKED: list[Body] = [
    {"role": "system", "content": "It is 12:04."},
    {"role": "user", "content": "Look."},
    {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "read", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": LINES},
]
ANSWERED: list[Body] = [*ASKED, {"role": "assistant", "content": "Seen."}, {"role": "user", "content": "And?"}]


async def cut(
    journal: InMemory, messages: list[Body], limit_tokens: int = LIMIT, **more: Any
) -> tuple[Request, Truncated]:
    request = wire.read({"model": "gpt-4.1", "messages": messages}, Format.CHAT)
    chain = chain_of(request)
    truncated = await truncate(
        request,
        chain,
        more.pop("folds", None) or await journal.folds("ana", chain.hashes),
        COUNTER,
        journal,
        agent="ana",
        session_id="s",
        limit_tokens=limit_tokens,
        now=100.0,
        **more,
    )
    return request, truncated


async def test_a_new_result_that_is_too_long_is_cut_and_that_is_a_row() -> None:
    journal = InMemory()

    request, made = await cut(journal, ASKED)

    assert made.edits == truncated_results(request, COUNTER, {3: LIMIT})
    (row,) = journal.rows
    assert made.rows == (row,)
    assert (row.outcome, row.messages, row.limit_tokens) == (Outcome.TOOL_RESULT_TRUNCATED, 3, LIMIT)
    assert row.tokens_before == COUNTER.text(LINES).tokens
    assert row.tokens_after == COUNTER.text(made.edits[0].text).tokens <= LIMIT


async def test_it_is_cut_the_same_when_it_comes_again_whatever_the_limit_is_then() -> None:
    journal = InMemory()
    _, first = await cut(journal, ASKED)

    for messages in (ASKED, ANSWERED):
        for limit in (50, 10**6):
            _, again = await cut(journal, messages, limit)
            assert again == Truncated(edits=first.edits)
    assert len(journal.rows) == 1


async def test_what_the_model_has_answered_whole_stays_whole() -> None:
    _, made = await cut(InMemory(), ANSWERED)

    assert made == Truncated()


async def test_a_request_that_is_sent_again_before_it_was_answered_is_cut_all_the_same() -> None:
    """As after a crash between the first try and the row."""
    _, first = await cut(InMemory(), ASKED)
    _, second = await cut(InMemory(), ASKED)

    assert first.edits == second.edits != ()


async def test_a_cut_that_was_undone_is_not_made_again() -> None:
    journal = InMemory()
    await cut(journal, ASKED)
    assert await journal.undo(journal.rows[0].id, now=200.0)

    for messages in (ASKED, ANSWERED):
        assert (await cut(journal, messages))[1] == Truncated()


async def test_of_two_gateways_that_cut_it_at_once_with_other_limits_the_first_one_decides() -> None:
    journal = InMemory()
    _, first = await cut(journal, ASKED)

    _, second = await cut(journal, ASKED, 90, folds=[replace(journal.rows[0], boundary=b"elsewhere")])

    assert second == Truncated(edits=first.edits)


async def test_where_the_store_is_gone_it_is_cut_and_that_it_was_not_kept_is_told() -> None:
    _, made = await cut(InMemory(gone=("record",)), ASKED)

    assert len(made.edits) == len(made.rows) == 1
    assert "it is gone" in made.problem


async def test_what_is_folded_is_not_cut() -> None:
    _, made = await cut(InMemory(), ASKED, start=4)

    assert made == Truncated()


async def test_a_client_that_edited_its_past_is_not_taken_for_another() -> None:
    journal = InMemory()
    await cut(journal, ASKED)
    edited = [ASKED[0], {"role": "user", "content": "Look again."}, *ANSWERED[2:]]

    _, made = await cut(journal, edited, folds=journal.rows)

    assert made == Truncated()
