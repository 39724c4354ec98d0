"""Tallies add up, drop thinking at a new turn, and share their past with forks."""

from hypothesis import given
from hypothesis import strategies as st

from foveate.tokens.rendering.rendering import MeasuredRendering
from foveate.tokens.tally import EMPTY_TALLY, Tally

measured = st.builds(
    lambda tokens, thought, opens: MeasuredRendering(
        tokens=tokens, upper=tokens, thinking_tokens=thought, thinking_upper=thought, opens_turn=opens
    ),
    st.integers(0, 100),
    st.integers(0, 100),
    st.booleans(),
)


def tallied(messages: list[MeasuredRendering], *, keeps_thoughts: bool) -> Tally:
    tally = EMPTY_TALLY
    for message in messages:
        tally = tally.with_message(message, keeps_thinking=keeps_thoughts)
    return tally


@given(messages=st.lists(measured, max_size=20), keeps_thoughts=st.booleans())
def test_message_tokens_add_up_to_the_total(messages: list[MeasuredRendering], keeps_thoughts: bool) -> None:
    tally = tallied(messages, keeps_thoughts=keeps_thoughts)
    each = tally.message_tokens(keeps_thinking=keeps_thoughts)

    assert len(each) == tally.messages == len(messages)
    assert sum(tokens for tokens, _ in each) == tally.tokens + tally.thinking_tokens


@given(messages=st.lists(measured, max_size=20))
def test_thinking_counts_until_the_next_turn_begins(messages: list[MeasuredRendering]) -> None:
    opened = max((i for i, message in enumerate(messages) if message.opens_turn), default=0)

    assert tallied(messages, keeps_thoughts=True).thinking_tokens == sum(m.thinking_tokens for m in messages)
    assert tallied(messages, keeps_thoughts=False).thinking_tokens == sum(
        m.thinking_tokens for m in messages[opened:]
    )


def test_forks_share_only_their_past() -> None:
    past = tallied([MeasuredRendering(tokens=10), MeasuredRendering(tokens=5)], keeps_thoughts=False)
    one = past.with_message(MeasuredRendering(tokens=1), keeps_thinking=False)
    other = past.with_message(MeasuredRendering(tokens=2), keeps_thinking=False)

    assert (past.tokens, one.tokens, other.tokens) == (15, 16, 17)
    assert one.previous is other.previous is past


def test_an_uncertain_tally_stays_uncertain() -> None:
    tally = tallied(
        [MeasuredRendering(certain=False, unexplained=("a",)), MeasuredRendering(unexplained=("a", "b"))],
        keeps_thoughts=False,
    )

    assert not tally.certain
    assert tally.unexplained == ("a", "b")


def test_results_are_list_entries_until_all_have_arrived() -> None:
    calls = MeasuredRendering(tokens=10, upper=12, parallel_calls=2)
    result = MeasuredRendering(tokens=5, upper=6, entry_tokens=(100.0, 200.0, 400.0))

    def total(*messages: MeasuredRendering) -> float:
        return tallied(list(messages), keeps_thoughts=False).tokens

    assert total(calls, result) == 110
    assert total(calls, result, result) == 510
    assert total(calls, result, result, result) == 515
    assert total(calls, MeasuredRendering(tokens=1), result) == 16
    assert tallied([calls, result], keeps_thoughts=False).upper == 113


def test_a_guessed_list_entry_is_not_certain() -> None:
    guess = MeasuredRendering(tokens=5, upper=6, entry_tokens=(10.0, 10.0, 10.0), entry_margin_tokens=40)

    alone = tallied([guess], keeps_thoughts=False)
    listed = tallied([MeasuredRendering(parallel_calls=2), guess], keeps_thoughts=False)

    assert (alone.certain, alone.upper) == (True, 6)
    assert (listed.certain, listed.upper) == (False, 51)
