"""A conversation that was seen before is found by its bytes, message by message."""

import gc
import json
import sys
import weakref

from foveate import formats
from foveate.formats.incremental.envelope import ENVELOPES, EnvelopeCache, get_envelope
from foveate.formats.incremental.history import HistoryCache, HistoryTree, count_memoized
from foveate.formats.json_text.parse import parse_fields
from foveate.model import Format


def said(*texts: str, role: str = "user") -> tuple[bytes, ...]:
    return tuple(json.dumps({"role": role, "content": text}).encode() for text in texts)


def test_what_is_noted_of_a_conversation_is_there_when_it_goes_on() -> None:
    trails = HistoryTree()
    first = trails.find(Format.CHAT, said("a", "b"))
    first.nodes[1].memo["note"] = 1

    later = trails.find(Format.CHAT, said("a", "b", "c"))

    assert later.nodes[1] is first.nodes[1]
    assert "note" not in later.nodes[2].memo


def test_the_same_message_after_others_is_another_node() -> None:
    trails = HistoryTree()
    one = trails.find(Format.CHAT, said("a", "x")).nodes[1]

    assert trails.find(Format.CHAT, said("b", "x")).nodes[1] is not one
    assert trails.find(Format.ANTHROPIC, said("a", "x")).nodes[1] is not one
    assert trails.find(Format.CHAT, said("a", "x")).nodes[1] is one


def test_system_messages_at_the_start_are_no_part_of_it() -> None:
    trails = HistoryTree()
    one = trails.find(Format.CHAT, said("It is 9:00.", role="system") + said("a", "b"))
    other = trails.find(Format.CHAT, said("It is 9:01.", "x", role="developer") + said("a", "b"))
    later = trails.find(Format.CHAT, said("a") + said("y", role="system"))

    assert (one.leading_system_messages, other.leading_system_messages, later.leading_system_messages) == (
        1,
        2,
        0,
    )
    assert list(one.nodes) == list(other.nodes)
    assert len(later.nodes) == 2
    assert trails.find(Format.CHAT, said("x", role="system")).leading_system_messages == 1


def test_what_is_used_outlives_what_is_not() -> None:
    trails = HistoryTree(max_bytes=40 * 1024)
    kept = said("kept", "too")
    trails.find(Format.CHAT, kept).nodes[1].memo["note"] = 1
    forgotten = trails.find(Format.CHAT, said("forgotten")).nodes[0]
    forgotten.memo["note"] = 1
    for number in range(200):
        trails.find(Format.CHAT, said(f"other {number}"))
        if number % 5 == 0:
            assert trails.find(Format.CHAT, kept).nodes[1].memo == {"note": 1}

    assert not trails.find(Format.CHAT, said("forgotten")).nodes[0].memo
    assert trails.held_bytes < 50 * 1024
    trails.clear()
    assert not trails.find(Format.CHAT, kept).nodes[1].memo


def test_a_long_conversation_keeps_its_links_however_it_goes_on() -> None:
    trails = HistoryTree()
    words = [str(number) for number in range(40)]
    first = trails.find(Format.CHAT, said(*words))
    grown = trails.find(Format.CHAT, said(*words, "more"))
    changed = trails.find(Format.CHAT, said(*words[:25], "another", *words[26:]))
    again = trails.find(Format.CHAT, said("It is 9:00.", role="system") + said(*words, "more", "and more"))
    short = trails.find(Format.CHAT, said(*words[:20]))

    assert list(grown.nodes[:40]) == list(first.nodes)
    assert list(changed.nodes[:25]) == list(first.nodes[:25])
    assert not set(changed.nodes[25:]) & set(first.nodes)
    assert (again.leading_system_messages, list(again.nodes[:41])) == (1, list(grown.nodes))
    assert list(short.nodes) == list(first.nodes[:20])
    assert [link.raw for link in changed.nodes] == list(said(*words[:25], "another", *words[26:]))


def test_a_repeated_long_conversation_is_stored_once() -> None:
    trails = HistoryTree()
    words = [str(number) for number in range(40)]
    trails.find(Format.CHAT, said(*words))
    again = said(*words, "more")
    before = sys.getrefcount(again)
    trail = trails.find(Format.CHAT, again)
    for other in ("another", "a third"):  # the last two are held as they came
        trails.find(Format.CHAT, said(other))
    after = sys.getrefcount(again)

    assert len(trail.nodes) == 41
    assert after == before


def test_memos_of_a_long_conversation_outlive_their_generation_without_gaps() -> None:
    trails = HistoryTree(max_bytes=64 * 1024)
    words = [str(number) for number in range(40)]
    for number in range(300):
        words.append(f"turn {number}")
        for api_format in (words, [*words[:30], f"aside {number}", *words[30:]]):
            trail = trails.find(Format.CHAT, said(*api_format))
            known = count_memoized(trail.nodes, "note")
            assert all("note" in link.memo for link in trail.nodes[:known])
            for link in trail.nodes[known:]:
                link.memo["note"] = number
        if number == 20:
            kept = trails.find(Format.CHAT, said(*words)).nodes[0].memo
        if len(words) > 60:
            del words[41:]

    assert trails.find(Format.CHAT, said(*words)).nodes[0].memo is kept


def test_what_stands_around_the_messages_is_read_once() -> None:
    body = {"model": "claude-opus-4-5", "max_tokens": 9, "system": "Be brief.", "messages": []}
    one, other = (
        formats.parse_request(
            json.dumps(body | {"messages": [{"role": "user", "content": text}]}), Format.ANTHROPIC
        )
        for text in ("a", "b")
    )
    hotter = formats.parse_request(json.dumps(body | {"temperature": 1}), Format.ANTHROPIC)

    assert get_envelope(one) is not None
    assert get_envelope(one) is get_envelope(other) is not get_envelope(hotter)
    assert one.messages != other.messages
    assert one.body != other.body


def test_what_stands_around_is_forgotten_when_it_is_not_used() -> None:
    kept = EnvelopeCache(max_bytes=20 * 1024)
    used, unused = (parse_fields(json.dumps({"model": name, "messages": []}).encode()) for name in "ab")
    first, forgotten = kept.get(Format.CHAT, used), kept.get(Format.CHAT, unused)
    for number in range(60):
        kept.get(Format.CHAT, parse_fields(json.dumps({"model": f"{number}", "messages": []}).encode()))
        assert kept.get(Format.CHAT, used) is first

    assert kept.get(Format.CHAT, unused) is not forgotten


def test_what_stood_around_a_request_is_gone_with_the_last_who_has_it() -> None:
    """Regression: a reference cycle kept them until the next garbage collection."""
    request = formats.parse_request(
        {"model": "gone soon", "messages": [{"role": "user", "content": "a"}]}, Format.CHAT
    )
    around = get_envelope(request)
    assert around is not None
    assert around.request is not None
    left = weakref.ref(around)
    gc.disable()
    try:
        ENVELOPES.clear()
        del request, around
        assert left() is None
    finally:
        gc.enable()


def test_memos_that_clients_can_multiply_are_dropped_in_time() -> None:
    """Regression: one conversation with ever new model names took unlimited memory."""
    trails = HistoryTree(max_bytes=100 * 1024)
    messages = said(*map(str, range(20)))
    most = 0
    for number in range(400):
        trail = trails.find(Format.CHAT, (*messages,))
        for link in trail.nodes:
            link.memo[f"model {number}"] = number
        most = max(most, max(len(link.memo) for link in trail.nodes))
        # What is noted of a message is noted of all before it.
        for key in trail.nodes[-1].memo:
            assert count_memoized(trail.nodes, key) == len(trail.nodes)

    assert most < 60
    assert trails.held_bytes < 120 * 1024


def test_a_cached_value_is_found_for_the_next_turns_of_its_conversation_only() -> None:
    trails, latest = HistoryTree(), HistoryCache[str]()
    begun = trails.find(Format.CHAT, said("a", "b")).nodes
    grown = trails.find(Format.CHAT, said("a", "b", "c", "d")).nodes
    other = trails.find(Format.CHAT, said("a", "x", "c", "d")).nodes
    latest.put(begun, "ab")

    assert latest.find_prefix(grown) == (2, "ab")
    assert latest.find_prefix(grown, "another note") is None
    assert latest.find_prefix(other) is None

    latest.put(grown, "abcd", replaces=2)

    assert latest.find_prefix(grown) == (4, "abcd")
    assert latest.find_prefix(begun) is None


def test_values_of_the_latest_conversations_are_cached() -> None:
    trails, latest = HistoryTree(), HistoryCache[int](max_size=3)
    rows = [trails.find(Format.CHAT, said(str(number))).nodes for number in range(5)]
    for number, links in enumerate(rows):
        latest.put(links, number)

    assert [latest.find_prefix(links) for links in rows] == [None, None, (1, 2), (1, 3), (1, 4)]


def test_a_message_has_a_twin_in_the_other_of_the_last_two_conversations_of_one_format() -> None:
    trails = HistoryTree()
    long = trails.find(Format.CHAT, said("a", "b", "z"))
    assert trails.find_twin(long, 2) is None

    short = trails.find(Format.CHAT, said("summary", "z"))
    assert trails.find_twin(long, 2) is short.nodes[1]
    assert trails.find_twin(short, 1) is long.nodes[2]
    assert trails.find_twin(long, 1) is None  # the other has another message there
    assert trails.find_twin(long, 0) is None

    other = trails.find(Format.ANTHROPIC, said("b", "z"))
    assert trails.find_twin(other, 1) is None
    assert trails.find_twin(long, 2) is None  # no longer one of the last two
