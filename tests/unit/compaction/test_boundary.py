import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.compaction.boundary import (
    TurnStructure,
    compaction_threshold_tokens,
    describe_head,
    find_boundary,
    is_compaction_due,
)
from foveate.errors import BadOption
from foveate.model import Format, Message, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from tests.support.strategies.conversations import (
    GeneratedConversation,
    generated_conversations,
    make_long_conversation,
    new_orphans,
)

numbers = st.integers(0, 400)


def user_message() -> Message:
    return Message(role="user", parts=(Text("And then?"),))


def model_message(*parts: Part) -> Message:
    return Message(role="assistant", parts=parts or (Text("So."),))


def call_message(*ids: str) -> Message:
    return model_message(
        *(ToolCall(name="read", arguments="{}", format=Format.CHAT, id=call_id) for call_id in ids)
    )


def result_message(call_id: str) -> Message:
    return Message(role="tool", parts=(ToolResult(parts=(Text("done"),), id=call_id),))


def system_message() -> Message:
    return Message(role="system", parts=(Text("Be brief."),))


def find_test_boundary(
    messages: list[Message],
    *,
    keep_tokens: int,
    threshold_tokens: int = 1000,
    tokens_each: int = 10,
    compacted: int = 0,
) -> int | None:
    tokens = [tokens_each] * len(messages)
    return find_boundary(
        messages,
        tokens,
        tail_keep_tokens=keep_tokens,
        threshold_tokens=threshold_tokens,
        compacted_messages=compacted,
    )


def test_the_tail_is_the_shortest_that_keeps_enough_tokens() -> None:
    messages = [
        user_message(),
        model_message(),
        user_message(),
        model_message(),
        user_message(),
        model_message(),
        user_message(),
    ]
    assert find_test_boundary(messages, keep_tokens=20) == 5
    assert find_test_boundary(messages, keep_tokens=21) == 4
    assert find_test_boundary(messages, keep_tokens=30) == 4


def test_the_tail_needs_at_most_half_the_threshold() -> None:
    messages = [user_message(), model_message()] * 10
    assert find_test_boundary(messages, keep_tokens=20_000, threshold_tokens=100) == 15


def test_a_history_shorter_than_the_tail_has_no_boundary() -> None:
    assert find_test_boundary([user_message(), model_message(), user_message()], keep_tokens=200) is None
    assert find_test_boundary([], keep_tokens=0) is None
    assert find_test_boundary([user_message()], keep_tokens=0) is None


def test_one_long_turn_is_split_between_steps_and_keeps_its_question() -> None:
    steps = [
        message
        for number in range(300)
        for message in (call_message(f"c{number}"), result_message(f"c{number}"))
    ]
    messages = [system_message(), user_message(), *steps]
    cut = find_test_boundary(messages, keep_tokens=100)
    assert cut == len(messages) - 10
    assert cut is not None
    history = TurnStructure(messages)
    assert history.open_question(cut) == (1,)
    assert history.replaced_messages(cut) == tuple(range(2, cut))


def test_a_question_in_two_messages_is_kept_completely() -> None:
    messages = [
        user_message(),
        model_message(),
        user_message(),
        user_message(),
        call_message("a"),
        result_message("a"),
        call_message("b"),
        result_message("b"),
    ]
    assert find_test_boundary(messages, keep_tokens=10) == 6
    assert TurnStructure(messages).open_question(6) == (2, 3)
    assert find_test_boundary(messages, keep_tokens=50) == 2  # not between the two


def test_parallel_calls_stay_with_all_their_results() -> None:
    messages = [
        user_message(),
        call_message("a", "b", "c"),
        result_message("c"),
        result_message("a"),
        result_message("b"),
        call_message("d"),
        result_message("d"),
    ]
    assert (
        find_test_boundary(messages, keep_tokens=30) is None
    )  # only the question could be compacted, and it would stay
    assert find_test_boundary(messages, keep_tokens=20) == 5


def test_a_late_result_keeps_everything_since_its_call_together() -> None:
    messages = [
        user_message(),
        model_message(),
        user_message(),
        call_message("a", "b"),
        result_message("a"),
        user_message(),
        model_message(),
        result_message("b"),
        user_message(),
    ]
    assert TurnStructure(messages).cut_points() == [1, 2, 3, 8]


def test_thinking_is_not_separated_from_the_call_after_it() -> None:
    thinking = model_message(Thinking("", 40))
    messages = [
        user_message(),
        model_message(),
        user_message(),
        thinking,
        call_message("a"),
        call_message("b"),
        result_message("a"),
        result_message("b"),
        user_message(),
    ]
    assert TurnStructure(messages).cut_points() == [1, 2, 3, 8]


def test_results_of_provider_tools_stay_with_their_calls() -> None:
    computer = (
        model_message(Opaque("computer_call", b"{}")),
        model_message(Opaque("computer_call_output", b"{}")),
    )
    messages = [user_message(), model_message(), user_message(), *computer, model_message()]
    assert 4 not in TurnStructure(messages).cut_points()


def test_a_step_above_half_the_threshold_is_compacted_if_something_follows_it() -> None:
    messages = [
        user_message(),
        model_message(),
        user_message(),
        call_message("a"),
        result_message("a"),
        call_message("b"),
        result_message("b"),
    ]
    tokens = [10, 10, 10, 10, 700, 10, 10]
    assert find_boundary(messages, tokens, tail_keep_tokens=100, threshold_tokens=1000) == 5
    # The last step has to stay, and the messages before it are compacted.
    assert find_boundary(messages[:5], tokens[:5], tail_keep_tokens=100, threshold_tokens=1000) == 3


def test_a_later_compaction_covers_more_than_the_one_before() -> None:
    messages = [user_message(), model_message()] * 6
    first = find_test_boundary(messages[:8], keep_tokens=20)
    assert first == 6
    assert find_test_boundary(messages[:8], keep_tokens=20, compacted=first) is None
    assert find_test_boundary(messages, keep_tokens=20, compacted=first) == 10
    assert TurnStructure(messages).replaced_messages(10, compacted_messages=6) == (6, 7, 8, 9)


def test_a_later_compaction_includes_the_question_that_an_earlier_one_kept() -> None:
    messages = [
        user_message(),
        call_message("a"),
        result_message("a"),
        call_message("b"),
        result_message("b"),
        model_message(),
        user_message(),
        model_message(),
    ]
    assert TurnStructure(messages).open_question(3) == (0,)
    assert TurnStructure(messages).replaced_messages(6, compacted_messages=3) == (0, 3, 4, 5)


def test_system_messages_are_never_compacted() -> None:
    messages = [
        system_message(),
        user_message(),
        model_message(),
        system_message(),
        user_message(),
        model_message(),
        system_message(),
        user_message(),
    ]
    cut = find_test_boundary(messages, keep_tokens=10)
    assert cut == 7
    assert TurnStructure(messages).replaced_messages(cut) == (1, 2, 4, 5)


def test_the_open_question_stays_whoever_speaks_next() -> None:
    """A summary written between two steps does not contain it, and a fork may continue with another one."""
    open_turn = [user_message(), call_message("a"), result_message("a")]
    for next_message in (call_message("b"), user_message()):
        history = TurnStructure([*open_turn, next_message])
        assert (history.open_question(3), history.replaced_messages(3)) == ((0,), (1, 2))
        junction = describe_head(open_turn).join_tail([next_message])
        assert junction is not None
        assert (junction.kept_indexes, junction.replaced_indexes) == ((0,), (1, 2))
    assert TurnStructure([*open_turn, model_message(), user_message()]).open_question(4) == ()


def test_results_of_stored_calls_stay() -> None:
    messages = [
        result_message("stored"),
        model_message(),
        call_message("a"),
        result_message("a"),
        user_message(),
        model_message(),
        user_message(),
    ]
    assert TurnStructure(messages).replaced_messages(4) == (1, 2, 3)
    junction = describe_head(messages[:4]).join_tail(messages[4:])
    assert junction is not None
    assert junction.replaced_indexes == (1, 2, 3)


def test_a_readable_compaction_of_the_provider_is_compacted_like_any_message() -> None:
    summary_message = model_message(Opaque("compaction", b'{"content":"A parser is wanted."}'), Text("So."))
    messages = [summary_message, user_message(), model_message(), user_message()]
    assert TurnStructure(messages).replaced_messages(3) == (0, 1, 2)
    assert describe_head(messages[:3]).turn_indexes == (0, 1, 2)
    assert describe_head(messages[:3]).join_tail(messages[3:]) is not None
    lone_summary = model_message(Opaque("compaction", b'{"content":"A parser is wanted."}'))
    assert TurnStructure([lone_summary, user_message(), model_message(), user_message()]).replaced_messages(
        3
    ) == (0, 1, 2)


def test_an_encrypted_compaction_of_the_provider_stays() -> None:
    messages = [model_message(Opaque("compaction", b"{}")), user_message(), model_message(), user_message()]
    assert TurnStructure(messages).replaced_messages(3) == (1, 2)


def test_the_threshold_is_a_share_of_the_window_without_the_output() -> None:
    assert compaction_threshold_tokens(200_000, 40_000) == 120_000
    assert compaction_threshold_tokens(200_000, 0, 0.5) == 100_000
    assert compaction_threshold_tokens(1000, 4000) == 0
    with pytest.raises(BadOption, match="compact_at_pct"):
        compaction_threshold_tokens(1000, 0, 75)


def test_a_session_is_not_compacted_again_within_a_few_turns() -> None:
    assert is_compaction_due(750, threshold_tokens=750)
    assert not is_compaction_due(749, threshold_tokens=750)
    assert not is_compaction_due(900, threshold_tokens=750, turns_since_compaction=3)
    assert is_compaction_due(900, threshold_tokens=750, turns_since_compaction=4)
    assert is_compaction_due(900, threshold_tokens=750, turns_since_compaction=1, min_turns_between=1)


def test_every_message_needs_a_token_count() -> None:
    with pytest.raises(BadOption, match="tokens"):
        find_boundary([user_message()], [], threshold_tokens=10)


@pytest.mark.slow
@given(generated_conversations(), numbers, numbers)
def test_a_boundary_never_separates_a_call_from_its_result(
    conversation: GeneratedConversation, keep_tokens: int, threshold_tokens: int
) -> None:
    cut = find_boundary(
        conversation.messages,
        conversation.tokens,
        tail_keep_tokens=keep_tokens,
        threshold_tokens=threshold_tokens,
    )
    for boundary in {*TurnStructure(conversation.messages).cut_points(), *([cut] if cut is not None else [])}:
        assert all(
            call_index >= boundary or result_index < boundary for call_index, result_index in conversation.pairs
        )
        kept_indexes = (
            *TurnStructure(conversation.messages).open_question(boundary),
            *range(boundary, len(conversation.messages)),
        )
        assert not new_orphans(conversation.messages, kept_indexes)


@pytest.mark.slow
@given(generated_conversations(), numbers, numbers)
def test_the_tail_is_long_enough_unless_a_step_is_too_long(
    conversation: GeneratedConversation, keep_tokens: int, threshold_tokens: int
) -> None:
    cut = find_boundary(
        conversation.messages,
        conversation.tokens,
        tail_keep_tokens=keep_tokens,
        threshold_tokens=threshold_tokens,
    )
    if cut is None:
        return
    min_tokens, max_tokens = min(keep_tokens, threshold_tokens // 2), threshold_tokens // 2
    history = TurnStructure(conversation.messages)
    assert history.replaced_messages(cut)
    if sum(conversation.tokens[cut:]) < min_tokens:
        earlier = [boundary for boundary in history.cut_points() if boundary < cut]
        assert sum(conversation.tokens[earlier[-1] :]) > max_tokens
    for later in (boundary for boundary in history.cut_points() if boundary > cut):
        assert sum(conversation.tokens[later:]) < min_tokens or sum(conversation.tokens[cut:]) < min_tokens


@pytest.mark.slow
@given(generated_conversations())
def test_the_open_question_and_all_system_messages_stay(conversation: GeneratedConversation) -> None:
    history = TurnStructure(conversation.messages)
    for cut in history.cut_points():
        last = max(boundary for boundary in conversation.non_system_indexes if boundary < cut)
        turn = next(turn for turn in conversation.turns if last in turn)
        if conversation.is_model(last):
            assert not history.open_question(cut)
        elif conversation.opens_with_question(turn):
            assert history.open_question(cut)[0] == turn[0]
        kept = {*history.open_question(cut), *range(cut, len(conversation.lines))}
        assert {*range(len(conversation.lines))} - kept - set(conversation.non_system_indexes).intersection(
            history.replaced_messages(cut)
        ) == {boundary for boundary in range(cut) if boundary not in conversation.non_system_indexes}


@pytest.mark.slow
@given(generated_conversations(), st.data())
def test_a_described_head_accepts_exactly_the_tails_that_may_follow(
    conversation: GeneratedConversation, data: st.DataObject
) -> None:
    messages = conversation.messages
    boundary = data.draw(st.integers(0, len(messages)))
    history, junction = (
        TurnStructure(messages),
        describe_head(messages[:boundary]).join_tail(messages[boundary:]),
    )
    if not history.is_cut_point(boundary) or not history.replaced_messages(boundary):
        assert junction is None
    else:
        assert junction is not None
        assert (junction.kept_indexes, junction.replaced_indexes) == (
            history.open_question(boundary),
            history.replaced_messages(boundary),
        )


@pytest.mark.slow
def test_finding_a_boundary_takes_linear_time() -> None:
    def seconds(turn_count: int) -> float:
        conversation = make_long_conversation(20, turn_count)
        start_seconds = time.process_time()
        assert find_boundary(
            conversation.messages, conversation.tokens, tail_keep_tokens=2_000, threshold_tokens=10_000
        )
        return time.process_time() - start_seconds

    assert min(seconds(200) for _ in range(3)) < 12 * min(seconds(50) for _ in range(3))
