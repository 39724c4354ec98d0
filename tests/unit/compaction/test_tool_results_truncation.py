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
UNANSWERED: list[Body] = [
    {"role": "system", "content": "It is 12:04."},
    {"role": "user", "content": "Look."},
    {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "read", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": LINES},
]
ANSWERED: list[Body] = [
    *UNANSWERED,
    {"role": "assistant", "content": "Seen."},
    {"role": "user", "content": "And?"},
]


async def truncate(
    store: InMemoryCompactionStore, messages: list[Body], limit_tokens: int = LIMIT, **options: Any
) -> tuple[Request, TruncationResult]:
    request = formats.parse_request({"model": "gpt-4.1", "messages": messages}, Format.CHAT)
    chain = compute_chain(request)
    truncated = await truncate_tool_results(
        request,
        chain,
        options.pop("compactions", None) or await store.find_compactions("ana", chain.hashes),
        COUNTER,
        store,
        agent="ana",
        session_id="s",
        limit_tokens=limit_tokens,
        now=100.0,
        **options,
    )
    return request, truncated


async def test_a_new_long_result_is_truncated_and_recorded() -> None:
    store = InMemoryCompactionStore()

    request, result = await truncate(store, UNANSWERED)

    assert result.edits == build_truncation_edits(request, COUNTER, {3: LIMIT})
    (row,) = store.compactions
    assert result.new_records == (row,)
    assert (row.outcome, row.messages, row.limit_tokens) == (CompactionOutcome.TOOL_RESULT_TRUNCATED, 3, LIMIT)
    assert row.tokens_before == COUNTER.text(LINES).tokens
    assert row.tokens_after == COUNTER.text(result.edits[0].text).tokens <= LIMIT


async def test_a_result_is_truncated_as_before_whatever_the_limit_is_now() -> None:
    store = InMemoryCompactionStore()
    _, first = await truncate(store, UNANSWERED)

    for messages in (UNANSWERED, ANSWERED):
        for limit in (50, 10**6):
            _, repeated = await truncate(store, messages, limit)
            assert repeated == TruncationResult(edits=first.edits)
    assert len(store.compactions) == 1


async def test_a_result_that_the_model_saw_completely_is_never_truncated() -> None:
    _, result = await truncate(InMemoryCompactionStore(), ANSWERED)

    assert result == TruncationResult()


async def test_a_request_repeated_before_its_response_is_truncated_too() -> None:
    """This happens after a crash before the record was stored."""
    _, first = await truncate(InMemoryCompactionStore(), UNANSWERED)
    _, second = await truncate(InMemoryCompactionStore(), UNANSWERED)

    assert first.edits == second.edits != ()


async def test_an_undone_truncation_is_not_repeated() -> None:
    store = InMemoryCompactionStore()
    await truncate(store, UNANSWERED)
    assert await store.undo(store.compactions[0].id, now=200.0)

    for messages in (UNANSWERED, ANSWERED):
        assert (await truncate(store, messages))[1] == TruncationResult()


async def test_of_two_concurrent_truncations_the_first_one_counts() -> None:
    store = InMemoryCompactionStore()
    _, first = await truncate(store, UNANSWERED)

    _, second = await truncate(
        store, UNANSWERED, 90, compactions=[replace(store.compactions[0], boundary=b"elsewhere")]
    )

    assert second == TruncationResult(edits=first.edits)


async def test_without_the_store_results_are_truncated_and_the_problem_is_reported() -> None:
    _, result = await truncate(InMemoryCompactionStore(unavailable=("record",)), UNANSWERED)

    assert len(result.edits) == len(result.new_records) == 1
    assert "it is gone" in result.problem


async def test_compacted_messages_are_not_truncated() -> None:
    _, result = await truncate(InMemoryCompactionStore(), UNANSWERED, start=4)

    assert result == TruncationResult()


async def test_a_truncation_does_not_apply_to_an_edited_history() -> None:
    store = InMemoryCompactionStore()
    await truncate(store, UNANSWERED)
    edited = [UNANSWERED[0], {"role": "user", "content": "Look again."}, *ANSWERED[2:]]

    _, result = await truncate(store, edited, compactions=store.compactions)

    assert result == TruncationResult()
