"""Eviction removes the oldest messages, as few as possible, and never half of a call."""

import gzip
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.budget.trim import Eviction, HistoryLimit, evict, evict_turns
from foveate.errors import BadOption, BudgetExceeded, MalformedRequest, SectionSize
from foveate.model import Format, Message, Opaque, Part, Text, ToolCall, ToolResult
from tests.support.strategies.conversations import (
    BEFORE_ANY_QUESTION,
    SYSTEM,
    GeneratedConversation,
    generated_conversations,
    make_long_conversation,
    new_orphans,
)

PLENTY = 10**6

budgets = st.integers(0, 700)
turn_limits = st.integers(1, 4)


def user_message(text: str = "And then?") -> Message:
    return Message(role="user", parts=(Text(text),))


def model_message(*parts: Part) -> Message:
    return Message(role="assistant", parts=parts or (Text("So."),))


def call(*ids: str) -> Message:
    calls = [ToolCall(name="read", arguments="{}", format=Format.CHAT, id=call_id) for call_id in ids]
    return Message(role="assistant", parts=tuple(calls))


def result(call_id: str) -> Message:
    return Message(role="tool", parts=(ToolResult(parts=(Text("done"),), id=call_id),))


def result_message(*parts: Part) -> Message:
    return Message(role="user", parts=parts)


def evicted_positions(eviction: Eviction) -> list[tuple[int, ...]]:
    return [eviction_step.messages for eviction_step in eviction.evicted]


def evict_everything(messages: Sequence[Message]) -> list[tuple[int, ...]]:
    return evicted_positions(evict(messages, [1] * len(messages), token_budget=0))


class RecordingListener:
    """A listener that records evicted messages."""

    def __init__(self) -> None:
        self.offered: list[list[Message]] = []

    def on_evicted(self, messages: Sequence[Message]) -> None:
        self.offered.append(list(messages))


# Properties


@pytest.mark.slow
@given(conversation=generated_conversations(), token_budget=budgets, max_turns=turn_limits)
def test_the_oldest_evictable_messages_are_evicted(
    conversation: GeneratedConversation, token_budget: int, max_turns: int
) -> None:
    eviction = evict(conversation.messages, conversation.tokens, token_budget=token_budget, max_turns=max_turns)

    assert evicted_positions(eviction) == conversation.evictable[: len(eviction.evicted)]


@pytest.mark.slow
@given(conversation=generated_conversations(), token_budget=budgets, max_turns=turn_limits)
def test_no_call_is_separated_from_its_result(
    conversation: GeneratedConversation, token_budget: int, max_turns: int
) -> None:
    eviction = evict(conversation.messages, conversation.tokens, token_budget=token_budget, max_turns=max_turns)

    kept_positions = set(eviction.kept)
    assert [pair for pair in conversation.pairs if len(kept_positions & set(pair)) == 1] == []
    assert new_orphans(conversation.messages, eviction.kept) == Counter()


@pytest.mark.slow
@given(conversation=generated_conversations(), token_budget=budgets, max_turns=turn_limits)
def test_every_message_is_kept_or_evicted_once_in_order(
    conversation: GeneratedConversation, token_budget: int, max_turns: int
) -> None:
    eviction = evict(conversation.messages, conversation.tokens, token_budget=token_budget, max_turns=max_turns)

    evicted = [position for positions in evicted_positions(eviction) for position in positions]
    assert list(eviction.kept) == sorted(eviction.kept)
    assert evicted == sorted(evicted)
    assert sorted((*eviction.kept, *evicted)) == list(range(len(conversation.lines)))
    assert all(conversation.lines[position].turn != SYSTEM for position in evicted)


@pytest.mark.slow
@given(conversation=generated_conversations(), token_budget=budgets, max_turns=turn_limits)
def test_both_limits_hold_or_nothing_evictable_is_left(
    conversation: GeneratedConversation, token_budget: int, max_turns: int
) -> None:
    eviction = evict(conversation.messages, conversation.tokens, token_budget=token_budget, max_turns=max_turns)

    assert eviction.tokens_after == conversation.tokens_in(eviction.kept)
    assert eviction.fits == (eviction.tokens_after <= token_budget)
    assert eviction.fits or evicted_positions(eviction) == conversation.evictable
    assert conversation.turns_in(eviction.kept) <= max_turns


@pytest.mark.slow
@given(conversation=generated_conversations(), token_budget=budgets, max_turns=turn_limits)
def test_nothing_is_evicted_needlessly_and_every_reason_is_true(
    conversation: GeneratedConversation, token_budget: int, max_turns: int
) -> None:
    eviction = evict(conversation.messages, conversation.tokens, token_budget=token_budget, max_turns=max_turns)

    remaining = set(range(len(conversation.lines)))
    for step in eviction.evicted:
        reasons = []
        if conversation.turns_in(remaining) > max_turns:
            reasons.append(HistoryLimit.MAX_TURNS)
        if conversation.tokens_in(remaining) > token_budget:
            reasons.append(HistoryLimit.TOKEN_BUDGET)
        assert reasons
        assert step.reasons == tuple(reasons)
        assert step.before == conversation.tokens_in(remaining)
        remaining -= set(step.messages)
        assert step.after == conversation.tokens_in(remaining)
    assert remaining == set(eviction.kept)
    assert eviction.tokens_before == sum(conversation.tokens)


@pytest.mark.slow
@given(conversation=generated_conversations(), token_budget=budgets, max_turns=turn_limits)
def test_the_rest_begins_with_a_user_message_and_roles_alternate(
    conversation: GeneratedConversation, token_budget: int, max_turns: int
) -> None:
    eviction = evict(conversation.messages, conversation.tokens, token_budget=token_budget, max_turns=max_turns)

    kept_positions = [position for position in eviction.kept if conversation.lines[position].turn != SYSTEM]
    if eviction.evicted and conversation.lines[kept_positions[0]].turn != BEFORE_ANY_QUESTION:
        assert conversation.opens_with_question(kept_positions)
        assert not conversation.lines[kept_positions[0]].answers
    next_position = dict(pairwise(conversation.non_system_indexes))
    for position, following in pairwise(kept_positions):
        if next_position[position] != following:
            assert not conversation.is_model(position)
            assert conversation.is_model(following)


@pytest.mark.slow
@given(conversation=generated_conversations(), token_budget=budgets, max_turns=turn_limits)
def test_a_listener_gets_all_evicted_messages_once_oldest_first(
    conversation: GeneratedConversation, token_budget: int, max_turns: int
) -> None:
    listener = RecordingListener()
    expected = evict(conversation.messages, conversation.tokens, token_budget=token_budget, max_turns=max_turns)
    run_eviction = partial(
        evict_turns,
        conversation.messages,
        conversation.tokens,
        token_budget=token_budget,
        max_turns=max_turns,
        listener=listener,
    )
    if expected.fits:
        assert run_eviction() == expected
        assert listener.offered == [
            [conversation.messages[position] for position in positions]
            for positions in evicted_positions(expected)
        ]
    else:
        with pytest.raises(BudgetExceeded) as caught:
            run_eviction()
        assert listener.offered == []
        assert caught.value.tokens == sum(section.after for section in caught.value.sections)
        assert conversation.tokens_in(range(len(conversation.lines))) == sum(
            section.before for section in caught.value.sections
        )


# Turns and steps


def test_forty_turns_are_kept_by_default() -> None:
    conversation = make_long_conversation(turns=42, steps=0)

    eviction = evict(conversation.messages, conversation.tokens, token_budget=PLENTY)

    assert evicted_positions(eviction) == [(0, 1), (2, 3)]
    assert {eviction_step.reasons for eviction_step in eviction.evicted} == {(HistoryLimit.MAX_TURNS,)}


def test_a_call_is_evicted_with_its_result_despite_a_user_message_in_between() -> None:
    messages = [
        user_message(),
        call("a"),
        user_message("Hurry!"),
        result("a"),
        model_message(),
        user_message(),
        model_message(),
        user_message(),
    ]

    assert evict_everything(messages) == [(0, 1, 2, 3, 4), (5, 6)]


def test_a_user_text_next_to_a_result_belongs_to_the_current_turn() -> None:
    result_with_text = result_message(ToolResult(parts=(), id="b"), Text("Now do the other thing."))
    messages = [
        user_message(),
        call("a"),
        result("a"),
        call("b"),
        result_with_text,
        call("c"),
        result("c"),
        call("d"),
        result("d"),
    ]

    assert evict_everything(messages) == [(1, 2), (5, 6)]


def test_a_user_message_after_a_text_next_to_a_result_opens_a_turn() -> None:
    result_with_text = result_message(ToolResult(parts=(), id="a"), Text("Interrupted."))
    messages = [user_message(), call("a"), result_with_text, user_message("Do this instead."), model_message()]

    assert evict_everything(messages) == [(0, 1, 2)]


def test_a_long_turn_loses_its_oldest_steps_and_keeps_user_message_and_last_step() -> None:
    messages = [
        user_message(),
        call("a"),
        result("a"),
        call("b", "c"),
        result("b"),
        result("c"),
        call("d"),
        result("d"),
    ]

    assert evict_everything(messages) == [(1, 2), (3, 4, 5)]


def test_a_result_after_another_call_joins_both_steps() -> None:
    messages = [
        user_message(),
        call("a", "b"),
        result("a"),
        call("c"),
        result("b"),
        result("c"),
        call("d"),
        result("d"),
    ]

    assert evict_everything(messages) == [(1, 2, 3, 4, 5)]


def test_a_second_result_of_a_call_stays_with_it() -> None:
    messages = [
        user_message(),
        call("a"),
        result("a"),
        call("b"),
        result("b"),
        result("a"),
        call("c"),
        result("c"),
    ]

    assert evict_everything(messages) == [(1, 2, 3, 4, 5)]


def test_a_call_without_a_result_does_not_keep_later_turns() -> None:
    model = Message(role="model", parts=(ToolCall(name="read", arguments="{}", format=Format.GEMINI),))
    answer = result_message(ToolResult(parts=(), name="read"))
    messages = [
        user_message(),
        model,
        user_message(),
        model,
        answer,
        model_message(),
        user_message(),
        model,
        answer,
    ]

    assert evict_everything(messages) == [(0, 1), (2, 3, 4, 5)]


def test_a_result_without_a_call_belongs_to_the_last_model_message() -> None:
    custom = model_message(Opaque("custom", b'{"id":"a"}'))
    messages = [user_message(), custom, user_message("Hurry!"), result("a"), model_message(), user_message()]

    assert evict_everything(messages) == [(0, 1, 2, 3, 4)]


def test_provider_tool_calls_are_evicted_with_their_outputs() -> None:
    computer_call, computer_output = (
        model_message(Opaque("computer_call", b"{}")),
        model_message(Opaque("computer_call_output", b"{}")),
    )
    search_call, search_output = (
        model_message(Opaque("tool_search_call", b"{}")),
        model_message(Opaque("tool_search_output", b"{}")),
    )
    approval_request, approval_response = (
        model_message(Opaque("mcp_approval_request", b"{}")),
        model_message(Opaque("mcp_approval_response", b"{}")),
    )

    assert evict_everything(
        [
            user_message(),
            computer_call,
            computer_output,
            computer_call,
            computer_output,
            search_call,
            search_output,
        ]
    ) == [(1, 2), (3, 4)]
    assert evict_everything(
        [
            user_message(),
            approval_request,
            user_message("Why?"),
            model_message(),
            approval_response,
            user_message(),
        ]
    ) == [(0, 1, 2, 3, 4)]
    assert evict_everything(
        [user_message(), search_call, user_message("Why?"), model_message(), search_output, user_message()]
    ) == [(0, 1, 2, 3, 4)]


def test_a_history_without_user_messages_loses_its_oldest_steps() -> None:
    messages = [result("lost"), model_message(), call("a"), result("a"), call("b"), result("b")]

    assert evict_everything(messages) == [(0,), (1, 2, 3)]


def test_messages_before_the_first_user_message_are_evicted_first_and_are_not_a_turn() -> None:
    messages = [model_message(), user_message(), model_message(), user_message()]

    assert evict(messages, [1] * 4, token_budget=4, max_turns=2).evicted == ()
    assert evicted_positions(evict(messages, [1] * 4, token_budget=4, max_turns=1)) == [(0,), (1, 2)]


def test_additional_tools_of_the_developer_are_kept() -> None:
    additional_tools = model_message(Opaque("additional_tools", b"{}"))
    messages = [user_message(), model_message(), additional_tools, user_message(), model_message()]

    assert evict(messages, [1] * 5, token_budget=3).kept == (2, 3, 4)


def test_an_empty_history_is_within_any_budget() -> None:
    assert evict([], [], token_budget=0).fits


# Errors


def test_a_system_prompt_that_is_too_large_is_an_error_with_its_sizes() -> None:
    messages = [
        Message(role="system", parts=(Text("Be brief."),)),
        user_message(),
        model_message(),
        user_message(),
    ]
    listener = RecordingListener()

    message = r"budget is 50 tokens.* take 107: system \(required\) 100, history \(high\) 7; raise the budget"
    with pytest.raises(BudgetExceeded, match=message) as caught:
        evict_turns(messages, [100, 5, 6, 7], token_budget=50, listener=listener)

    assert (caught.value.limit_tokens, caught.value.tokens) == (50, 107)
    assert caught.value.sections == (
        SectionSize("system", "required", 100, 100),
        SectionSize("history", "high", 18, 7),
    )
    assert listener.offered == []


@pytest.mark.parametrize(
    ("tokens", "max_turns", "token_budget", "reason"),
    [
        ([1, 1], 40, 10, "one number for each message: 1, not 2"),
        ([1], 0, 10, "max_turns must be a number of turns, 1 or more, not 0"),
        ([1], True, 10, "max_turns must be a number of turns, 1 or more, not True"),
        ([1], 40, -1, "token_budget must be a number of tokens, 0 or more, not -1"),
        ([1], 40, 0.5, "token_budget must be a number of tokens, 0 or more, not 0.5"),
    ],
)
def test_an_invalid_limit_is_rejected(
    tokens: list[int], max_turns: int, token_budget: int, reason: str
) -> None:
    with pytest.raises(BadOption, match=reason):
        evict([user_message()], tokens, token_budget=token_budget, max_turns=max_turns)


# Long and recorded conversations


@pytest.mark.slow
@pytest.mark.parametrize(("turns", "steps"), [(2_000, 4), (1, 10_000)])
def test_the_cost_is_linear_in_the_messages(turns: int, steps: int) -> None:
    """Quadratic time would be more than half a minute."""
    conversation = make_long_conversation(turns, steps)
    started = time.process_time()

    eviction = evict(conversation.messages, conversation.tokens, token_budget=40, max_turns=40)

    assert time.process_time() - started < 15
    assert evicted_positions(eviction) == conversation.evictable[: len(eviction.evicted)]
    assert len(eviction.kept) <= 4


@pytest.mark.slow
def test_no_recorded_request_gets_an_orphaned_call_or_result(shared_data: Path) -> None:
    evictions = 0
    for messages, tokens in read_recorded_requests(shared_data):
        for share in (0.0, 0.25, 0.5, 0.9):
            for max_turns in (1, 3, 40):
                budget = int(sum(tokens) * share)
                eviction = evict(messages, tokens, token_budget=budget, max_turns=max_turns)
                evictions += bool(eviction.evicted)
                assert new_orphans(messages, eviction.kept) == Counter()
    assert evictions > 1_000


def read_recorded_requests(path: Path) -> Iterator[tuple[list[Message], list[int]]]:
    """Requests in all formats, and whole coding sessions, with approximate counts."""
    with gzip.open(path / "usage_pairs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for body in (json.loads(line)["request"] for line in lines):
            try:
                request = formats.parse_request(body)
            except MalformedRequest:  # embeddings and the like
                continue
            yield parse_messages(request.format, request.messages)
    for session in sorted((path / "sessions" / "claude_code").glob("*.jsonl.gz")):
        with gzip.open(session, "rt", encoding="utf-8") as lines:
            entries = [json.loads(line) for line in lines]
        messages = [entry["message"] for entry in entries if entry["type"] in ("user", "assistant")]
        yield parse_messages(Format.ANTHROPIC, [json.dumps(message).encode() for message in messages])


def parse_messages(api_format: Format, raw: Sequence[bytes]) -> tuple[list[Message], list[int]]:
    return [formats.parse_message(api_format, message) for message in raw], [
        len(message) // 4 for message in raw
    ]
