"""A conversation that was seen before is found by its bytes, message by message."""

import gc
import json
import sys
import weakref

from foveate import wire
from foveate.values import Format
from foveate.wire.around import AROUNDS, Arounds, around_of
from foveate.wire.body import fields
from foveate.wire.trails import Latest, Trails, noted


def said(*texts: str, role: str = "user") -> tuple[bytes, ...]:
    return tuple(json.dumps({"role": role, "content": text}).encode() for text in texts)


def test_what_is_noted_of_a_conversation_is_there_when_it_goes_on() -> None:
    trails = Trails()
    first = trails.of(Format.CHAT, said("a", "b"))
    first.links[1].known["note"] = 1

    later = trails.of(Format.CHAT, said("a", "b", "c"))

    assert later.links[1] is first.links[1]
    assert "note" not in later.links[2].known


def test_the_same_words_after_others_are_another_link() -> None:
    trails = Trails()
    one = trails.of(Format.CHAT, said("a", "x")).links[1]

    assert trails.of(Format.CHAT, said("b", "x")).links[1] is not one
    assert trails.of(Format.ANTHROPIC, said("a", "x")).links[1] is not one
    assert trails.of(Format.CHAT, said("a", "x")).links[1] is one


def test_system_messages_at_the_start_are_no_part_of_it() -> None:
    trails = Trails()
    one = trails.of(Format.CHAT, said("It is 9:00.", role="system") + said("a", "b"))
    other = trails.of(Format.CHAT, said("It is 9:01.", "x", role="developer") + said("a", "b"))
    later = trails.of(Format.CHAT, said("a") + said("y", role="system"))

    assert (one.head, other.head, later.head) == (1, 2, 0)
    assert list(one.links) == list(other.links)
    assert len(later.links) == 2
    assert trails.of(Format.CHAT, said("x", role="system")).head == 1


def test_what_is_used_outlives_what_is_not() -> None:
    trails = Trails(most_bytes=40 * 1024)
    kept = said("kept", "too")
    trails.of(Format.CHAT, kept).links[1].known["note"] = 1
    forgotten = trails.of(Format.CHAT, said("forgotten")).links[0]
    forgotten.known["note"] = 1
    for number in range(200):
        trails.of(Format.CHAT, said(f"other {number}"))
        if number % 5 == 0:
            assert trails.of(Format.CHAT, kept).links[1].known == {"note": 1}

    assert not trails.of(Format.CHAT, said("forgotten")).links[0].known
    assert trails.held_bytes < 50 * 1024
    trails.drop()
    assert not trails.of(Format.CHAT, kept).links[1].known


def test_a_long_conversation_keeps_its_links_however_it_goes_on() -> None:
    trails = Trails()
    words = [str(number) for number in range(40)]
    first = trails.of(Format.CHAT, said(*words))
    grown = trails.of(Format.CHAT, said(*words, "more"))
    changed = trails.of(Format.CHAT, said(*words[:25], "another", *words[26:]))
    again = trails.of(Format.CHAT, said("It is 9:00.", role="system") + said(*words, "more", "and more"))
    short = trails.of(Format.CHAT, said(*words[:20]))

    assert list(grown.links[:40]) == list(first.links)
    assert list(changed.links[:25]) == list(first.links[:25])
    assert not set(changed.links[25:]) & set(first.links)
    assert (again.head, list(again.links[:41])) == (1, list(grown.links))
    assert list(short.links) == list(first.links[:20])
    assert [link.raw for link in changed.links] == list(said(*words[:25], "another", *words[26:]))


def test_a_long_conversation_that_comes_again_is_held_once() -> None:
    trails = Trails()
    words = [str(number) for number in range(40)]
    trails.of(Format.CHAT, said(*words))
    again = said(*words, "more")
    before = sys.getrefcount(again)
    trail = trails.of(Format.CHAT, again)
    for other in ("another", "a third"):  # the last two are held as they came
        trails.of(Format.CHAT, said(other))
    after = sys.getrefcount(again)

    assert len(trail.links) == 41
    assert after == before


def test_notes_of_a_long_conversation_outlive_their_generation_and_have_no_gaps() -> None:
    trails = Trails(most_bytes=64 * 1024)
    words = [str(number) for number in range(40)]
    for number in range(300):
        words.append(f"turn {number}")
        for spoken in (words, [*words[:30], f"aside {number}", *words[30:]]):
            trail = trails.of(Format.CHAT, said(*spoken))
            known = noted(trail.links, "note")
            assert all("note" in link.known for link in trail.links[:known])
            for link in trail.links[known:]:
                link.known["note"] = number
        if number == 20:
            kept = trails.of(Format.CHAT, said(*words)).links[0].known
        if len(words) > 60:
            del words[41:]

    assert trails.of(Format.CHAT, said(*words)).links[0].known is kept


def test_what_stands_around_the_messages_is_read_once() -> None:
    body = {"model": "claude-opus-4-5", "max_tokens": 9, "system": "Be brief.", "messages": []}
    one, other = (
        wire.read(json.dumps(body | {"messages": [{"role": "user", "content": text}]}), Format.ANTHROPIC)
        for text in ("a", "b")
    )
    hotter = wire.read(json.dumps(body | {"temperature": 1}), Format.ANTHROPIC)

    assert around_of(one) is not None
    assert around_of(one) is around_of(other) is not around_of(hotter)
    assert one.messages != other.messages
    assert one.body != other.body


def test_what_stands_around_is_forgotten_when_it_is_not_used() -> None:
    kept = Arounds(most_bytes=20 * 1024)
    used, unused = (fields(json.dumps({"model": name, "messages": []}).encode()) for name in "ab")
    first, forgotten = kept.of(Format.CHAT, used), kept.of(Format.CHAT, unused)
    for number in range(60):
        kept.of(Format.CHAT, fields(json.dumps({"model": f"{number}", "messages": []}).encode()))
        assert kept.of(Format.CHAT, used) is first

    assert kept.of(Format.CHAT, unused) is not forgotten


def test_what_stood_around_a_request_is_gone_with_the_last_who_has_it() -> None:
    """Defect: each led back to itself, and was there until garbage was looked for, which is seldom done."""
    request = wire.read({"model": "gone soon", "messages": [{"role": "user", "content": "a"}]}, Format.CHAT)
    around = around_of(request)
    assert around is not None
    assert around.request is not None
    left = weakref.ref(around)
    gc.disable()
    try:
        AROUNDS.drop()
        del request, around
        assert left() is None
    finally:
        gc.enable()


def test_notes_that_clients_can_make_without_end_are_forgotten_in_time() -> None:
    """Defect: one conversation under ever new names of models took ever more memory, and nobody counted it."""
    trails = Trails(most_bytes=100 * 1024)
    messages = said(*map(str, range(20)))
    most = 0
    for number in range(400):
        trail = trails.of(Format.CHAT, (*messages,))
        for link in trail.links:
            link.known[f"model {number}"] = number
        most = max(most, max(len(link.known) for link in trail.links))
        # What is noted of a message is noted of all before it.
        for key in trail.links[-1].known:
            assert noted(trail.links, key) == len(trail.links)

    assert most < 60
    assert trails.held_bytes < 120 * 1024


def test_what_was_made_of_a_conversation_is_there_for_its_next_turns_and_for_no_other() -> None:
    trails, latest = Trails(), Latest[str]()
    begun = trails.of(Format.CHAT, said("a", "b")).links
    grown = trails.of(Format.CHAT, said("a", "b", "c", "d")).links
    other = trails.of(Format.CHAT, said("a", "x", "c", "d")).links
    latest.put(begun, "ab")

    assert latest.before(grown) == (2, "ab")
    assert latest.before(grown, "another note") is None
    assert latest.before(other) is None

    latest.put(grown, "abcd", instead_of=2)

    assert latest.before(grown) == (4, "abcd")
    assert latest.before(begun) is None


def test_of_many_conversations_the_last_ones_are_held() -> None:
    trails, latest = Trails(), Latest[int](most=3)
    rows = [trails.of(Format.CHAT, said(str(number))).links for number in range(5)]
    for number, links in enumerate(rows):
        latest.put(links, number)

    assert [latest.before(links) for links in rows] == [None, None, (1, 2), (1, 3), (1, 4)]


def test_a_message_has_a_twin_in_the_other_of_the_last_two_conversations_of_one_format() -> None:
    trails = Trails()
    long = trails.of(Format.CHAT, said("a", "b", "z"))
    assert trails.twin(long, 2) is None

    short = trails.of(Format.CHAT, said("summary", "z"))
    assert trails.twin(long, 2) is short.links[1]
    assert trails.twin(short, 1) is long.links[2]
    assert trails.twin(long, 1) is None  # the other has another message there
    assert trails.twin(long, 0) is None

    other = trails.of(Format.ANTHROPIC, said("b", "z"))
    assert trails.twin(other, 1) is None
    assert trails.twin(long, 2) is None  # no longer one of the last two
