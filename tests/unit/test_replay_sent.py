"""What calls had sent, told from a recording and its bills."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from foveate.cost.price_book import PriceBook
from foveate.replay.policies import Policy
from foveate.replay.recordings import Recording
from foveate.replay.replaying import ReplayOptions, replay
from foveate.replay.sent import Told, sent_in
from foveate.values import CacheUsage, Ttl, Usage
from tests.sessions_to_replay import FRONT_TOKENS, Turn, recorded
from tests.support.examples import limit_examples

BOOK = PriceBook()
TURNS = st.lists(
    st.builds(
        Turn,
        result_chars=st.integers(0, 9_000),
        asks=st.booleans(),
        gap_seconds=st.sampled_from((0.5, 10.0, 40.0, 299.0, 320.0, 2_000.0, 4_000.0)),
        changes=st.sampled_from((False, False, False, True)),
        back=st.sampled_from((0, 0, 0, 1, 2)),
    ),
    min_size=1,
    max_size=14,
)


def off_by(recording: Recording) -> float:
    """How far the simulated bill is from the logged one, as a share of that."""
    check = replay(recording, BOOK, ReplayOptions(policies=(Policy.RECORDED,))).check
    assert check.off is not None
    return check.off


@pytest.mark.slow
@settings(max_examples=limit_examples(40), deadline=None)
@given(turns=TURNS, ttl=st.sampled_from((Ttl.FIVE_MINUTES, Ttl.ONE_HOUR)))
def test_the_bill_of_what_was_really_done_is_always_within_three_percent(turns: list[Turn], ttl: Ttl) -> None:
    assert abs(off_by(recorded(turns, ttl=ttl))) <= 0.03


@pytest.mark.slow
@settings(max_examples=limit_examples(40), deadline=None)
@given(turns=TURNS)
def test_the_parts_of_a_call_always_add_up_to_what_was_billed_for_it(turns: list[Turn]) -> None:
    recording = recorded([replace(turn, back=0) for turn in turns])

    for sent in sent_in(recording):
        assert sent.call.billed is not None
        assert sent.input_tokens == sent.call.billed.cache.input_tokens
        assert sent.recorded.input_tokens == sent.input_tokens


def test_a_session_in_which_all_is_shown_needs_nothing_from_its_bills_but_the_sums() -> None:
    sent = sent_in(recorded([Turn() for _ in range(30)]))

    assert {one.told for one in sent} == {Told.NOTHING}
    assert all(abs(one.expected.read - one.recorded.read) == 0 for one in sent)


def test_the_system_prompt_is_what_the_first_bill_has_beyond_its_messages() -> None:
    first, *_ = sent_in(recorded([Turn(), Turn()]))

    assert first.front.tokens == pytest.approx(FRONT_TOKENS, rel=0.01)


def test_what_a_first_call_reads_is_what_sessions_before_it_have_left() -> None:
    recording = recorded([Turn() for _ in range(4)])
    first, *rest = recording.calls
    assert first.billed is not None
    usage = first.billed.cache
    warm = CacheUsage(read=FRONT_TOKENS, written_5m=usage.input_tokens - FRONT_TOKENS)
    recording = replace(recording, calls=(replace(first, billed=Usage(cache=warm)), *rest))

    sent = sent_in(recording)

    assert sent[0].recorded.read == pytest.approx(FRONT_TOKENS, rel=0.01)
    assert sent[0].told is Told.NOTHING


def test_a_system_prompt_that_changed_unseen_is_told_by_the_bill_and_counted() -> None:
    turns = [Turn(changes=number == 10) for number in range(20)]

    sent = sent_in(recorded(turns))

    assert [number for number, one in enumerate(sent) if one.told is Told.CHANGED] == [10]
    assert sent[10].expected.read > 0 == sent[10].recorded.read


def test_an_entry_that_outlives_its_time_unseen_is_told_by_the_bill_and_counted() -> None:
    recording = recorded([Turn(gap_seconds=400.0 if number == 5 else 20.0) for number in range(8)])
    late = recording.calls[5]
    assert late.billed is not None
    total = late.billed.cache.input_tokens
    found = replace(late, billed=Usage(cache=CacheUsage(read=FRONT_TOKENS, written_5m=total - FRONT_TOKENS)))
    recording = replace(recording, calls=(*recording.calls[:5], found, *recording.calls[6:]))

    sent = sent_in(recording)

    assert sent[5].told is Told.KEPT
    assert sent[5].recorded.read == pytest.approx(FRONT_TOKENS, rel=0.01)


def test_a_history_that_became_shorter_unseen_has_the_size_that_is_billed() -> None:
    """Agents clear old results of tools without a word in their logs."""
    recording = recorded([Turn(result_chars=9_000) for _ in range(12)])
    cleared = []
    for number, call in enumerate(recording.calls):
        assert call.billed is not None
        total = call.billed.cache.input_tokens
        if number >= 8:
            total -= 9_000
        usage = (
            CacheUsage(read=FRONT_TOKENS, written_5m=total - FRONT_TOKENS) if number == 8 else call.billed.cache
        )
        usage = structs.replace(usage, read=usage.read - 9_000) if number > 8 else usage
        cleared.append(replace(call, billed=Usage(cache=usage)))
    recording = replace(recording, calls=tuple(cleared))

    sent = sent_in(recording)

    for one in sent[8:]:
        assert one.call.billed is not None
        assert one.input_tokens == pytest.approx(one.call.billed.cache.input_tokens, rel=0.005)
    assert abs(off_by(recording)) < 0.03


def test_marks_for_an_hour_are_told_from_what_was_billed_as_written() -> None:
    sent = sent_in(recorded([Turn(), Turn(gap_seconds=1_200.0), Turn()], ttl=Ttl.ONE_HOUR))

    assert {one.ttls for one in sent} == {(Ttl.ONE_HOUR, Ttl.ONE_HOUR)}
    assert all(one.recorded.written_1h and not one.recorded.written_5m for one in sent)


def test_a_call_that_neither_read_nor_wrote_had_no_marks() -> None:
    recording = recorded([Turn(), Turn()])
    first, second = recording.calls
    assert second.billed is not None
    usage = CacheUsage(uncached=second.billed.cache.input_tokens)
    recording = replace(recording, calls=(first, replace(second, billed=Usage(cache=usage))))

    sent = sent_in(recording)

    assert sent[1].ttls is None
    assert sent[1].recorded == usage


@pytest.mark.parametrize("words", [200, 30_000])
def test_a_system_prompt_that_was_recorded_is_as_long_as_the_bill_leaves_room_for(words: int) -> None:
    """What is counted offline of it is an estimate; the sum of a bill is not."""
    around = b'{"model": "claude-sonnet-4-6", "max_tokens": 900, "system": "' + b"word " * words + b'"}'
    recording = recorded([Turn() for _ in range(6)])
    calls = tuple(replace(call, around=around) for call in recording.calls)

    sent = sent_in(replace(recording, calls=calls))

    for one in sent:
        assert one.call.billed is not None
        assert one.input_tokens == pytest.approx(one.call.billed.cache.input_tokens, abs=2)
        assert one.reserve_tokens == 900
    assert abs(off_by(replace(recording, calls=calls))) < 0.03


def test_calls_without_bills_are_counted() -> None:
    sent = sent_in(recorded([Turn(result_chars=4_000) for _ in range(3)], has_bills=False))

    assert sent[0].front.tokens == 0
    assert 600 < sent[1].last.end - sent[0].last.end < 1_600
    assert all(one.output_tokens > 0 for one in sent)


def test_a_message_that_cannot_be_read_is_weighed_by_its_bytes() -> None:
    recording = recorded([Turn()], has_bills=False)
    (call,) = recording.calls
    broken = replace(call, last=replace(call.last, raw=b'{"role": "user", "content": ' + b"[" * 5_000))

    (sent,) = sent_in(replace(recording, calls=(broken,)))

    assert sent.input_tokens > 1_000


def test_an_empty_recording_has_sent_nothing() -> None:
    assert sent_in(recorded([])) == []
