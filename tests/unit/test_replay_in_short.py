"""Calls told in short, each by going on from the one before: the same as if each were told anew."""

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from foveate.replay.in_short import Telling, prompt_of, tail_of
from foveate.replay.sent import sent_in
from tests.sessions_to_replay import MODEL, Turn, recorded
from tests.support.examples import limit_examples
from tests.unit.test_replay_sent import TURNS


@settings(max_examples=limit_examples(25), deadline=None)
@given(
    turns=TURNS,
    model=st.sampled_from((MODEL, "gpt-5.1")),
    skipped=st.integers(0, 13),
    is_told_first=st.booleans(),
)
def test_a_call_that_goes_on_is_always_told_as_if_it_were_told_anew(
    turns: list[Turn], model: str, skipped: int, *, is_told_first: bool
) -> None:
    """Also where a call is left out, as one whose price nobody knows is, or is told before it is asked for."""
    calls = sent_in(recorded(turns * 3, model=model))
    telling, seen = Telling(), set[bytes]()
    for sent in calls[:skipped] + calls[skipped + 1 :]:
        reach = sent.rules.lookback_positions
        anew = prompt_of(tail_of(sent.front, sent.last, seen=seen, lookback_positions=reach), sent.whole)
        if is_told_first:
            telling.told(sent)

        prompt = telling.of(sent)

        assert (prompt, prompt.keys, prompt.ends) == (anew, anew.keys, anew.ends)
        assert prompt.ends == list(accumulate(piece.tokens for piece in anew.pieces))
        assert prompt.ends[-1] == sent.input_tokens
        telling.told(sent)
        assert telling.of(sent) == prompt
        seen.update(sent.last.new_keys(sent.front, seen))


def test_a_call_that_nobody_asked_for_is_known_to_those_behind_it() -> None:
    *before, last = sent_in(recorded([Turn() for _ in range(30)]))
    asked, quiet = Telling(), Telling()
    for sent in before:
        asked.of(sent)
        asked.told(sent)
        quiet.told(sent)

    assert quiet.of(last) == asked.of(last)


def test_a_fork_goes_its_own_way_and_leaves_the_other_as_it_is() -> None:
    *before, last = sent_in(recorded([Turn() for _ in range(30)]))
    telling = Telling()
    for sent in before:
        telling.told(sent)
    fork, other = telling.forked(), telling.forked()
    assert last.last.before is not None
    shorter = replace(last, last=last.last.before)

    fork.of(shorter)
    fork.told(shorter)

    assert fork.of(last) != telling.of(last)
    assert telling.of(last) == other.of(last)


@pytest.mark.slow
def test_the_history_of_a_long_session_makes_no_call_longer_to_tell() -> None:
    telling, sizes = Telling(), []
    for sent in sent_in(recorded([Turn(result_chars=40) for _ in range(150)])):
        sizes.append(len(telling.of(sent).pieces))
        telling.told(sent)

    assert max(sizes[100:]) == max(sizes[40:60])
