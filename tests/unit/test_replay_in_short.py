"""Calls told in short, each by going on from the one before: the same as if each were told anew."""

from dataclasses import replace
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.replay.in_short import Telling, prompt_of, tail_of
from foveate.replay.sent import sent_in
from tests.sessions_to_replay import MODEL, Turn, recorded
from tests.unit.test_replay_sent import TURNS


@settings(max_examples=25, deadline=None)
@given(turns=TURNS, model=st.sampled_from((MODEL, "gpt-5.1")), skipped=st.integers(0, 13))
def test_a_call_that_goes_on_is_always_told_as_if_it_were_told_anew(
    turns: list[Turn], model: str, skipped: int
) -> None:
    """One call is left out, as one whose price nobody knows is: those behind it are not as they were told."""
    calls = sent_in(recorded(turns * 3, model=model))
    telling, seen = Telling(), set[bytes]()
    for sent in calls[:skipped] + calls[skipped + 1 :]:
        reach = sent.rules.lookback_positions
        anew = prompt_of(tail_of(sent.front, sent.last, seen=seen, lookback_positions=reach), sent.whole)

        short = telling.of(sent)

        assert (short.prompt, short.prompt.keys, short.prompt.ends) == (anew, anew.keys, anew.ends)
        assert short.prompt.ends == list(accumulate(piece.tokens for piece in anew.pieces))
        assert short.prompt.ends[-1] == sent.input_tokens
        telling.told(sent, short)
        seen.update(sent.last.new_keys(sent.front, seen))


def test_what_was_told_once_is_not_told_again() -> None:
    calls = sent_in(recorded([Turn() for _ in range(30)]))
    telling = Telling()
    for sent in calls:
        short = telling.of(sent)
        assert short is sent.short
        telling.told(sent, short)


def test_a_fork_goes_its_own_way_and_leaves_the_other_as_it_is() -> None:
    *before, last = sent_in(recorded([Turn() for _ in range(30)]))
    telling = Telling()
    for sent in before:
        telling.told(sent, telling.of(sent))
    fork = telling.forked()
    assert last.last.before is not None
    other = replace(last, last=last.last.before)

    fork.told(other, fork.of(other))

    assert fork.of(last).number == 30
    assert telling.of(last) is last.short


def test_the_history_of_a_long_session_makes_no_call_longer_to_tell() -> None:
    sizes = [
        len(sent.short.prompt.pieces)
        for sent in sent_in(recorded([Turn(result_chars=40) for _ in range(150)]))
        if sent.short is not None
    ]

    assert max(sizes[100:]) == max(sizes[40:60])
