"""A tally adds up, forgets reasoning when a turn opens, and shares its past with its forks."""

from hypothesis import given
from hypothesis import strategies as st

from foveate.tokens.rendering import Measured
from foveate.tokens.tally import EMPTY, Tally

measured = st.builds(
    lambda tokens, thought, opens: Measured(
        tokens=tokens, upper=tokens, thought_tokens=thought, thought_upper=thought, opens_turn=opens
    ),
    st.integers(0, 100),
    st.integers(0, 100),
    st.booleans(),
)


def tallied(messages: list[Measured], *, keeps_thoughts: bool) -> Tally:
    tally = EMPTY
    for message in messages:
        tally = tally.plus(message, keeps_thoughts=keeps_thoughts)
    return tally


@given(messages=st.lists(measured, max_size=20), keeps_thoughts=st.booleans())
def test_what_each_message_adds_is_the_whole(messages: list[Measured], keeps_thoughts: bool) -> None:
    tally = tallied(messages, keeps_thoughts=keeps_thoughts)
    each = tally.each(keeps_thoughts=keeps_thoughts)

    assert len(each) == tally.messages == len(messages)
    assert sum(tokens for tokens, _ in each) == tally.tokens + tally.thought_tokens


@given(messages=st.lists(measured, max_size=20))
def test_reasoning_counts_until_the_next_turn_opens(messages: list[Measured]) -> None:
    opened = max((i for i, message in enumerate(messages) if message.opens_turn), default=0)

    assert tallied(messages, keeps_thoughts=True).thought_tokens == sum(m.thought_tokens for m in messages)
    assert tallied(messages, keeps_thoughts=False).thought_tokens == sum(
        m.thought_tokens for m in messages[opened:]
    )


def test_forks_share_their_past_and_nothing_else() -> None:
    past = tallied([Measured(tokens=10), Measured(tokens=5)], keeps_thoughts=False)
    one = past.plus(Measured(tokens=1), keeps_thoughts=False)
    other = past.plus(Measured(tokens=2), keeps_thoughts=False)

    assert (past.tokens, one.tokens, other.tokens) == (15, 16, 17)
    assert one.before is other.before is past


def test_what_is_uncertain_stays_so() -> None:
    tally = tallied(
        [Measured(certain=False, unexplained=("a",)), Measured(unexplained=("a", "b"))], keeps_thoughts=False
    )

    assert not tally.certain
    assert tally.unexplained == ("a", "b")
