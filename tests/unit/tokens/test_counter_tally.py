"""Tallies add up, drop thinking at a new turn, and share their past with forks."""

from hypothesis import given
from hypothesis import strategies as st

from foveate.tokens.counter import EMPTY_TALLY, Tally
from foveate.tokens.rendering.rendering import MeasuredRendering

measured = st.builds(
    lambda tokens, thinking, opens: MeasuredRendering(
        tokens=tokens, upper=tokens, thinking_tokens=thinking, thinking_upper=thinking, opens_turn=opens
    ),
    st.integers(0, 100),
    st.integers(0, 100),
    st.booleans(),
)


def make_tally(messages: list[MeasuredRendering], *, keeps_thinking: bool) -> Tally:
    tally = EMPTY_TALLY
    for message in messages:
        tally = tally.with_message(message, keeps_thinking=keeps_thinking)
    return tally


@given(messages=st.lists(measured, max_size=20), keeps_thinking=st.booleans())
def test_message_tokens_add_up_to_the_total(messages: list[MeasuredRendering], keeps_thinking: bool) -> None:
    tally = make_tally(messages, keeps_thinking=keeps_thinking)
    message_tokens = tally.message_tokens(keeps_thinking=keeps_thinking)

    assert len(message_tokens) == tally.messages == len(messages)
    assert sum(tokens for tokens, _ in message_tokens) == tally.tokens + tally.thinking_tokens


@given(messages=st.lists(measured, max_size=20))
def test_thinking_counts_until_the_next_turn_begins(messages: list[MeasuredRendering]) -> None:
    opened = max((i for i, message in enumerate(messages) if message.opens_turn), default=0)

    assert make_tally(messages, keeps_thinking=True).thinking_tokens == sum(m.thinking_tokens for m in messages)
    assert make_tally(messages, keeps_thinking=False).thinking_tokens == sum(
        m.thinking_tokens for m in messages[opened:]
    )


def test_forks_share_only_their_past() -> None:
    past = make_tally([MeasuredRendering(tokens=10), MeasuredRendering(tokens=5)], keeps_thinking=False)
    first = past.with_message(MeasuredRendering(tokens=1), keeps_thinking=False)
    second = past.with_message(MeasuredRendering(tokens=2), keeps_thinking=False)

    assert (past.tokens, first.tokens, second.tokens) == (15, 16, 17)
    assert first.previous is second.previous is past


def test_an_uncertain_tally_stays_uncertain() -> None:
    tally = make_tally(
        [MeasuredRendering(certain=False, unexplained=("a",)), MeasuredRendering(unexplained=("a", "b"))],
        keeps_thinking=False,
    )

    assert not tally.certain
    assert tally.unexplained == ("a", "b")


def test_results_are_list_entries_until_all_have_arrived() -> None:
    calls = MeasuredRendering(tokens=10, upper=12, parallel_calls=2)
    result = MeasuredRendering(tokens=5, upper=6, entry_tokens=(100.0, 200.0, 400.0))

    def total(*messages: MeasuredRendering) -> float:
        return make_tally(list(messages), keeps_thinking=False).tokens

    assert total(calls, result) == 110
    assert total(calls, result, result) == 510
    assert total(calls, result, result, result) == 515
    assert total(calls, MeasuredRendering(tokens=1), result) == 16
    assert make_tally([calls, result], keeps_thinking=False).upper == 113


def test_a_guessed_list_entry_is_not_certain() -> None:
    guess = MeasuredRendering(tokens=5, upper=6, entry_tokens=(10.0, 10.0, 10.0), entry_margin_tokens=40)

    alone = make_tally([guess], keeps_thinking=False)
    listed = make_tally([MeasuredRendering(parallel_calls=2), guess], keeps_thinking=False)

    assert (alone.certain, alone.upper) == (True, 6)
    assert (listed.certain, listed.upper) == (False, 51)
