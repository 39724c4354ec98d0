
from dataclasses import replace
from typing import Any

from foveate import formats
from foveate.compaction.store import CompactionOutcome
from foveate.compaction.tool_results import TruncationResult, build_truncation_edits, truncate_tool_results
from foveate.model import Format, Request
from foveate.session.hash_chain import compute_chain
from foveate.tokens import counter_for
from tests.support.stores.memory_compaction_store import InMemoryCompactionStore

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
    store: InMemoryCompactionStore, messages: list[Body], limit_tokens: int = LIMIT, **more: Any
) -> tuple[Request, TruncationResult]:
    request = formats.parse_request({"model": "gpt-4.1", "messages": messages}, Format.CHAT)
    chain = compute_chain(request)
    truncated = await truncate_tool_results(
        request,
        chain,
        more.pop("folds", None) or await store.find_compactions("ana", chain.hashes),
        COUNTER,
        store,
        agent="ana",
        session_id="s",
        limit_tokens=limit_tokens,
        now=100.0,
        **more,
    )
    return request, truncated


async def test_a_new_result_that_is_too_long_is_cut_and_that_is_a_row() -> None:
    store = InMemoryCompactionStore()

    request, made = await cut(store, ASKED)

    assert made.edits == build_truncation_edits(request, COUNTER, {3: LIMIT})
    (row,) = store.compactions
    assert made.new_records == (row,)
    assert (row.outcome, row.messages, row.limit_tokens) == (CompactionOutcome.TOOL_RESULT_TRUNCATED, 3, LIMIT)
    assert row.tokens_before == COUNTER.text(LINES).tokens
    assert row.tokens_after == COUNTER.text(made.edits[0].text).tokens <= LIMIT


async def test_it_is_cut_the_same_when_it_comes_again_whatever_the_limit_is_then() -> None:
    store = InMemoryCompactionStore()
    _, first = await cut(store, ASKED)

    for messages in (ASKED, ANSWERED):
        for limit in (50, 10**6):
            _, again = await cut(store, messages, limit)
            assert again == TruncationResult(edits=first.edits)
    assert len(store.compactions) == 1


async def test_what_the_model_has_answered_whole_stays_whole() -> None:
    _, made = await cut(InMemoryCompactionStore(), ANSWERED)

    assert made == TruncationResult()


async def test_a_request_that_is_sent_again_before_it_was_answered_is_cut_all_the_same() -> None:
    """As after a crash before the record was stored."""
    _, first = await cut(InMemoryCompactionStore(), ASKED)
    _, second = await cut(InMemoryCompactionStore(), ASKED)

    assert first.edits == second.edits != ()


async def test_a_cut_that_was_undone_is_not_made_again() -> None:
    store = InMemoryCompactionStore()
    await cut(store, ASKED)
    assert await store.undo(store.compactions[0].id, now=200.0)

    for messages in (ASKED, ANSWERED):
        assert (await cut(store, messages))[1] == TruncationResult()


async def test_of_two_gateways_that_cut_it_at_once_with_other_limits_the_first_one_decides() -> None:
    store = InMemoryCompactionStore()
    _, first = await cut(store, ASKED)

    _, second = await cut(store, ASKED, 90, folds=[replace(store.compactions[0], boundary=b"elsewhere")])

    assert second == TruncationResult(edits=first.edits)


async def test_where_the_store_is_gone_it_is_cut_and_that_it_was_not_kept_is_told() -> None:
    _, made = await cut(InMemoryCompactionStore(unavailable=("record",)), ASKED)

    assert len(made.edits) == len(made.new_records) == 1
    assert "it is gone" in made.problem


async def test_what_is_folded_is_not_cut() -> None:
    _, made = await cut(InMemoryCompactionStore(), ASKED, start=4)

    assert made == TruncationResult()


async def test_a_client_that_edited_its_past_is_not_taken_for_another() -> None:
    store = InMemoryCompactionStore()
    await cut(store, ASKED)
    edited = [ASKED[0], {"role": "user", "content": "Look again."}, *ANSWERED[2:]]

    _, made = await cut(store, edited, folds=store.compactions)

    assert made == TruncationResult()
