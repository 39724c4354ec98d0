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
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.budget.evict import Eviction, HistoryLimit, evict, evict_turns
from foveate.errors import BadOption, BudgetExceeded, MalformedRequest, SectionSize
from foveate.model import Format, Message, Opaque, Part, Text, ToolCall, ToolResult
from tests.support.harness.example_limits import limit_examples
from tests.support.strategies.conversations import (
    BEFORE_ANY_QUESTION,
    SYSTEM,
    Talk,
    long_talk,
    new_orphans,
    talks,
)

PLENTY = 10**6

budgets = st.integers(0, 700)
turn_limits = st.integers(1, 4)
limited = settings(max_examples=limit_examples(60))


def user_message(model_message: str = "And then?") -> Message:
    return Message(role="user", parts=(Text(model_message),))


def model_message(*parts: Part) -> Message:
    return Message(role="assistant", parts=parts or (Text("So."),))


def call(*ids: str) -> Message:
    calls = [ToolCall(name="read", arguments="{}", format=Format.CHAT, id=given) for given in ids]
    return Message(role="assistant", parts=tuple(calls))


def result(given: str) -> Message:
    return Message(role="tool", parts=(ToolResult(parts=(Text("done"),), id=given),))


def result_message(*parts: Part) -> Message:
    return Message(role="user", parts=parts)


def gone(eviction: Eviction) -> list[tuple[int, ...]]:
    return [each.messages for each in eviction.evicted]


def all_but_what_must_stay(messages: Sequence[Message]) -> list[tuple[int, ...]]:
    return gone(evict(messages, [1] * len(messages), token_budget=0))


class Notebook:
    """A listener that records evicted messages."""

    def __init__(self) -> None:
        self.offered: list[list[Message]] = []

    def on_evicted(self, messages: Sequence[Message]) -> None:
        self.offered.append(list(messages))


# Properties


@pytest.mark.slow
@limited
@given(talk=talks(), token_budget=budgets, max_turns=turn_limits)
def test_the_oldest_evictable_messages_are_evicted(talk: Talk, token_budget: int, max_turns: int) -> None:
    eviction = evict(talk.messages, talk.tokens, token_budget=token_budget, max_turns=max_turns)

    assert gone(eviction) == talk.may_go[: len(eviction.evicted)]


@pytest.mark.slow
@limited
@given(talk=talks(), token_budget=budgets, max_turns=turn_limits)
def test_no_call_is_separated_from_its_result(talk: Talk, token_budget: int, max_turns: int) -> None:
    eviction = evict(talk.messages, talk.tokens, token_budget=token_budget, max_turns=max_turns)

    kept = set(eviction.kept)
    assert [pair for pair in talk.pairs if len(kept & set(pair)) == 1] == []
    assert new_orphans(talk.messages, eviction.kept) == Counter()


@pytest.mark.slow
@limited
@given(talk=talks(), token_budget=budgets, max_turns=turn_limits)
def test_every_message_is_kept_or_evicted_once_in_order(talk: Talk, token_budget: int, max_turns: int) -> None:
    eviction = evict(talk.messages, talk.tokens, token_budget=token_budget, max_turns=max_turns)

    went = [place for places in gone(eviction) for place in places]
    assert list(eviction.kept) == sorted(eviction.kept)
    assert went == sorted(went)
    assert sorted((*eviction.kept, *went)) == list(range(len(talk.lines)))
    assert all(talk.lines[place].turn != SYSTEM for place in went)


@pytest.mark.slow
@limited
@given(talk=talks(), token_budget=budgets, max_turns=turn_limits)
def test_both_limits_hold_or_nothing_evictable_is_left(talk: Talk, token_budget: int, max_turns: int) -> None:
    eviction = evict(talk.messages, talk.tokens, token_budget=token_budget, max_turns=max_turns)

    assert eviction.tokens_after == talk.tokens_in(eviction.kept)
    assert eviction.fits == (eviction.tokens_after <= token_budget)
    assert eviction.fits or gone(eviction) == talk.may_go
    assert talk.turns_in(eviction.kept) <= max_turns


@pytest.mark.slow
@limited
@given(talk=talks(), token_budget=budgets, max_turns=turn_limits)
def test_nothing_is_evicted_needlessly_and_every_reason_is_true(
    talk: Talk, token_budget: int, max_turns: int
) -> None:
    eviction = evict(talk.messages, talk.tokens, token_budget=token_budget, max_turns=max_turns)

    left = set(range(len(talk.lines)))
    for each in eviction.evicted:
        reasons = []
        if talk.turns_in(left) > max_turns:
            reasons.append(HistoryLimit.MAX_TURNS)
        if talk.tokens_in(left) > token_budget:
            reasons.append(HistoryLimit.TOKEN_BUDGET)
        assert reasons
        assert each.reasons == tuple(reasons)
        assert each.before == talk.tokens_in(left)
        left -= set(each.messages)
        assert each.after == talk.tokens_in(left)
    assert left == set(eviction.kept)
    assert eviction.tokens_before == sum(talk.tokens)


@pytest.mark.slow
@limited
@given(talk=talks(), token_budget=budgets, max_turns=turn_limits)
def test_the_rest_begins_with_a_user_message_and_roles_alternate(
    talk: Talk, token_budget: int, max_turns: int
) -> None:
    eviction = evict(talk.messages, talk.tokens, token_budget=token_budget, max_turns=max_turns)

    kept = [place for place in eviction.kept if talk.lines[place].turn != SYSTEM]
    if eviction.evicted and talk.lines[kept[0]].turn != BEFORE_ANY_QUESTION:
        assert talk.opens_with_question(kept)
        assert not talk.lines[kept[0]].answers
    followed = dict(pairwise(talk.api_format))
    for one, other in pairwise(kept):
        if followed[one] != other:
            assert not talk.is_model(one)
            assert talk.is_model(other)


@pytest.mark.slow
@limited
@given(talk=talks(), token_budget=budgets, max_turns=turn_limits)
def test_a_listener_gets_all_evicted_messages_once_oldest_first(
    talk: Talk, token_budget: int, max_turns: int
) -> None:
    notebook = Notebook()
    decided = evict(talk.messages, talk.tokens, token_budget=token_budget, max_turns=max_turns)
    act = partial(
        evict_turns,
        talk.messages,
        talk.tokens,
        token_budget=token_budget,
        max_turns=max_turns,
        listener=notebook,
    )
    if decided.fits:
        assert act() == decided
        assert notebook.offered == [[talk.messages[place] for place in places] for places in gone(decided)]
    else:
        with pytest.raises(BudgetExceeded) as caught:
            act()
        assert notebook.offered == []
        assert caught.value.tokens == sum(section.after for section in caught.value.sections)
        assert talk.tokens_in(range(len(talk.lines))) == sum(
            section.before for section in caught.value.sections
        )


# Turns and steps


def test_forty_turns_are_kept_by_default() -> None:
    talk = long_talk(turns=42, steps=0)

    eviction = evict(talk.messages, talk.tokens, token_budget=PLENTY)

    assert gone(eviction) == [(0, 1), (2, 3)]
    assert {each.reasons for each in eviction.evicted} == {(HistoryLimit.MAX_TURNS,)}


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

    assert all_but_what_must_stay(messages) == [(0, 1, 2, 3, 4), (5, 6)]


def test_a_user_text_next_to_a_result_belongs_to_the_current_turn() -> None:
    beside = result_message(ToolResult(parts=(), id="b"), Text("Now do the other thing."))
    messages = [
        user_message(),
        call("a"),
        result("a"),
        call("b"),
        beside,
        call("c"),
        result("c"),
        call("d"),
        result("d"),
    ]

    assert all_but_what_must_stay(messages) == [(1, 2), (5, 6)]


def test_a_user_message_after_a_text_next_to_a_result_opens_a_turn() -> None:
    beside = result_message(ToolResult(parts=(), id="a"), Text("Interrupted."))
    messages = [user_message(), call("a"), beside, user_message("Do this instead."), model_message()]

    assert all_but_what_must_stay(messages) == [(0, 1, 2)]


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

    assert all_but_what_must_stay(messages) == [(1, 2), (3, 4, 5)]


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

    assert all_but_what_must_stay(messages) == [(1, 2, 3, 4, 5)]


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

    assert all_but_what_must_stay(messages) == [(1, 2, 3, 4, 5)]


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

    assert all_but_what_must_stay(messages) == [(0, 1), (2, 3, 4, 5)]


def test_a_result_without_a_call_belongs_to_the_last_model_message() -> None:
    custom = model_message(Opaque("custom", b'{"id":"a"}'))
    messages = [user_message(), custom, user_message("Hurry!"), result("a"), model_message(), user_message()]

    assert all_but_what_must_stay(messages) == [(0, 1, 2, 3, 4)]


def test_provider_tool_calls_are_evicted_with_their_outputs() -> None:
    moved, seen = (
        model_message(Opaque("computer_call", b"{}")),
        model_message(Opaque("computer_call_output", b"{}")),
    )
    found, tools = (
        model_message(Opaque("tool_search_call", b"{}")),
        model_message(Opaque("tool_search_output", b"{}")),
    )
    may, yes = (
        model_message(Opaque("mcp_approval_request", b"{}")),
        model_message(Opaque("mcp_approval_response", b"{}")),
    )

    assert all_but_what_must_stay([user_message(), moved, seen, moved, seen, found, tools]) == [(1, 2), (3, 4)]
    assert all_but_what_must_stay(
        [user_message(), may, user_message("Why?"), model_message(), yes, user_message()]
    ) == [(0, 1, 2, 3, 4)]
    assert all_but_what_must_stay(
        [user_message(), found, user_message("Why?"), model_message(), tools, user_message()]
    ) == [(0, 1, 2, 3, 4)]


def test_a_history_without_user_messages_loses_its_oldest_steps() -> None:
    messages = [result("lost"), model_message(), call("a"), result("a"), call("b"), result("b")]

    assert all_but_what_must_stay(messages) == [(0,), (1, 2, 3)]


def test_messages_before_the_first_user_message_are_evicted_first_and_are_no_turn() -> None:
    messages = [model_message(), user_message(), model_message(), user_message()]

    assert evict(messages, [1] * 4, token_budget=4, max_turns=2).evicted == ()
    assert gone(evict(messages, [1] * 4, token_budget=4, max_turns=1)) == [(0,), (1, 2)]


def test_additional_tools_of_the_developer_are_kept() -> None:
    more = model_message(Opaque("additional_tools", b"{}"))
    messages = [user_message(), model_message(), more, user_message(), model_message()]

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
    notebook = Notebook()

    words = r"budget is 50 tokens.* has 107: system \(required\) 100, history \(high\) 7; give it"
    with pytest.raises(BudgetExceeded, match=words) as caught:
        evict_turns(messages, [100, 5, 6, 7], token_budget=50, listener=notebook)

    assert (caught.value.limit_tokens, caught.value.tokens) == (50, 107)
    assert caught.value.sections == (
        SectionSize("system", "required", 100, 100),
        SectionSize("history", "high", 18, 7),
    )
    assert notebook.offered == []


@pytest.mark.parametrize(
    ("tokens", "max_turns", "token_budget", "reason"),
    [
        ([1, 1], 40, 10, "one number for each message: 1, not 2"),
        ([1], 0, 10, "max_turns is a number of turns, 1 or more, not 0"),
        ([1], True, 10, "max_turns is a number of turns, 1 or more, not True"),
        ([1], 40, -1, "token_budget is a number of tokens, 0 or more, not -1"),
        ([1], 40, 0.5, "token_budget is a number of tokens, 0 or more, not 0.5"),
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
    """Quadratic time would be half a minute."""
    talk = long_talk(turns, steps)
    started = time.process_time()

    eviction = evict(talk.messages, talk.tokens, token_budget=40, max_turns=40)

    assert time.process_time() - started < 2
    assert gone(eviction) == talk.may_go[: len(eviction.evicted)]
    assert len(eviction.kept) <= 4


@pytest.mark.slow
def test_no_recorded_request_gets_an_orphaned_call_or_result(shared_data: Path) -> None:
    evictions = 0
    for messages, tokens in recorded(shared_data):
        for share in (0.0, 0.25, 0.5, 0.9):
            for max_turns in (1, 3, 40):
                budget = int(sum(tokens) * share)
                eviction = evict(messages, tokens, token_budget=budget, max_turns=max_turns)
                evictions += bool(eviction.evicted)
                assert new_orphans(messages, eviction.kept) == Counter()
    assert evictions > 1_000


def recorded(path: Path) -> Iterator[tuple[list[Message], list[int]]]:
    """Requests in all formats, and whole coding sessions, with approximate counts."""
    with gzip.open(path / "usage_pairs.jsonl.gz", "rt", encoding="utf-8") as lines:
        for body in (json.loads(line)["request"] for line in lines):
            try:
                request = formats.parse_request(body)
            except MalformedRequest:  # embeddings and the like
                continue
            yield read(request.format, request.messages)
    for session in sorted((path / "sessions" / "claude_code").glob("*.jsonl.gz")):
        with gzip.open(session, "rt", encoding="utf-8") as lines:
            entries = [json.loads(line) for line in lines]
        api_format = [entry["message"] for entry in entries if entry["type"] in ("user", "assistant")]
        yield read(Format.ANTHROPIC, [json.dumps(message).encode() for message in api_format])


def read(api_format: Format, raw: Sequence[bytes]) -> tuple[list[Message], list[int]]:
    return [formats.parse_message(api_format, message) for message in raw], [
        len(message) // 4 for message in raw
    ]
