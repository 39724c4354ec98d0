"""Calls billed on their way back: as the simulator bills a prompt of all that was sent."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.cache.entries import Entries, written
from foveate.cache.simulate import Cache
from foveate.replay.in_short import prompt_of, tail_of
from foveate.replay.marking import fixed_places
from foveate.replay.sent import recorded_marks, recorded_spots, sent_in, serve, serve_on_way
from foveate.replay.serving import Spot, fixed_spots, is_served_by_marks, serve_spots
from foveate.values import Ttl
from tests.sessions_to_replay import MODEL, Turn, recorded
from tests.support.examples import limit_examples
from tests.unit.test_replay_sent import TURNS


@settings(max_examples=limit_examples(25), deadline=None)
@given(
    turns=TURNS,
    model=st.sampled_from((MODEL, "claude-sonnet-4-5")),
    ttl=st.sampled_from((Ttl.FIVE_MINUTES, Ttl.ONE_HOUR)),
    has_bills=st.booleans(),
)
def test_marks_on_the_way_back_are_always_billed_as_those_of_a_whole_prompt(
    turns: list[Turn], model: str, ttl: Ttl, *, has_bills: bool
) -> None:
    client, client_whole, fixed, fixed_whole = (Cache() for _ in range(4))
    for sent in sent_in(recorded(turns * 2, model=model, ttl=ttl, has_bills=has_bills)):
        rules = sent.rules
        reach = rules.lookback_positions
        whole = prompt_of(tail_of(sent.front, sent.last, lookback_positions=reach), sent.whole)
        assert is_served_by_marks(rules)

        by_client = serve_on_way(client, sent, recorded_spots(sent))
        by_hand = serve_on_way(fixed, sent, fixed_spots(sent.front, sent.last, ttl))

        places = fixed_places(whole, sent.front, minimum_tokens=rules.minimum_tokens)
        in_whole = serve(client_whole, sent, whole, recorded_marks(sent, whole))
        by_hand_whole = serve(fixed_whole, sent, whole, dict.fromkeys(places, ttl))
        assert by_client.usage == in_whole.usage
        assert by_client.cache == in_whole.cache
        assert by_hand.usage == by_hand_whole.usage
        assert by_hand.cache == by_hand_whole.cache
        client, client_whole, fixed, fixed_whole = (
            one.cache for one in (by_client, in_whole, by_hand, by_hand_whole)
        )


def test_what_has_no_marks_is_sent_whole_and_leaves_nothing() -> None:
    (sent,) = sent_in(recorded([Turn()]))

    served = serve_on_way(Cache(), sent, ())

    assert served.usage.uncached == served.usage.input_tokens == sent.input_tokens
    assert not served.cache.entries


@pytest.mark.slow
def test_a_message_that_takes_no_mark_is_not_looked_for_through_the_whole_history() -> None:
    sent = sent_in(recorded([Turn(result_chars=10) for _ in range(120)], model="gpt-5.1"))[-1]
    assert not any(piece.markable for piece in sent.last.pieces)

    assert [spot for spot in fixed_spots(sent.front, sent.last, Ttl.FIVE_MINUTES) if spot.stretch] == []


def test_what_is_kept_at_a_mark_that_is_not_long_enough_is_found_by_one_that_is() -> None:
    """It raised: the entry stood at a mark that asks for nothing."""
    (sent,) = sent_in(recorded([Turn()]))
    rules = replace(sent.rules, minimum_tokens=sent.front.tokens + 1)
    (front_mark,) = (Spot(None, at, Ttl.FIVE_MINUTES) for at in sent.front.marks)
    here, at = Spot(sent.last, 0, Ttl.FIVE_MINUTES), sent.call.at
    entry = written(sent.front.tokens, Ttl.FIVE_MINUTES, at=at, readable_at=at)
    cache = Cache(Entries({sent.front.keys[front_mark.number]: entry}))

    served = serve_spots(cache, sent.front, sent.last, (front_mark, here), rules, at=at, answers_at=at)

    assert served.usage.read == sent.front.tokens
