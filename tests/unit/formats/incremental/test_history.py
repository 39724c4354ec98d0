"""A conversation that was seen before is found by its bytes, message by message."""

import gc
import json
import sys
import weakref
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.formats.incremental.envelope import ENVELOPES, EnvelopeCache, get_envelope, get_parameters
from foveate.formats.incremental.history import HistoryCache, HistoryTree, UncachedHistory, count_memoized
from foveate.formats.json_text.parse import parse_fields
from foveate.model import Format
from foveate.tokens import drop_caches
from tests.support.strategies.request_edits import BODIES


def make_messages(*texts: str, role: str = "user") -> tuple[bytes, ...]:
    return tuple(json.dumps({"role": role, "content": text}).encode() for text in texts)


def test_memos_of_a_conversation_are_found_when_it_continues() -> None:
    tree = HistoryTree()
    first = tree.find(Format.CHAT, make_messages("a", "b"))
    first.nodes[1].memo["note"] = 1

    later = tree.find(Format.CHAT, make_messages("a", "b", "c"))

    assert later.nodes[1] is first.nodes[1]
    assert "note" not in later.nodes[2].memo


def test_the_same_message_after_others_is_another_node() -> None:
    tree = HistoryTree()
    node = tree.find(Format.CHAT, make_messages("a", "x")).nodes[1]

    assert tree.find(Format.CHAT, make_messages("b", "x")).nodes[1] is not node
    assert tree.find(Format.ANTHROPIC, make_messages("a", "x")).nodes[1] is not node
    assert tree.find(Format.CHAT, make_messages("a", "x")).nodes[1] is node


def test_leading_system_messages_are_not_part_of_the_history() -> None:
    tree = HistoryTree()
    first = tree.find(Format.CHAT, make_messages("It is 9:00.", role="system") + make_messages("a", "b"))
    second = tree.find(
        Format.CHAT, make_messages("It is 9:01.", "x", role="developer") + make_messages("a", "b")
    )
    later = tree.find(Format.CHAT, make_messages("a") + make_messages("y", role="system"))

    assert (first.leading_system_messages, second.leading_system_messages, later.leading_system_messages) == (
        1,
        2,
        0,
    )
    assert list(first.nodes) == list(second.nodes)
    assert len(later.nodes) == 2
    assert tree.find(Format.CHAT, make_messages("x", role="system")).leading_system_messages == 1


def test_the_least_recently_used_conversation_is_dropped_first() -> None:
    tree = HistoryTree(max_bytes=40 * 1024)
    used_messages = make_messages("kept", "too")
    tree.find(Format.CHAT, used_messages).nodes[1].memo["note"] = 1
    forgotten = tree.find(Format.CHAT, make_messages("forgotten")).nodes[0]
    forgotten.memo["note"] = 1
    for number in range(200):
        tree.find(Format.CHAT, make_messages(f"other {number}"))
        if number % 5 == 0:
            assert tree.find(Format.CHAT, used_messages).nodes[1].memo == {"note": 1}

    assert not tree.find(Format.CHAT, make_messages("forgotten")).nodes[0].memo
    assert tree.held_bytes < 50 * 1024
    tree.clear()
    assert not tree.find(Format.CHAT, used_messages).nodes[1].memo


def test_a_long_conversation_keeps_its_nodes_when_it_continues() -> None:
    tree = HistoryTree()
    words = [str(number) for number in range(40)]
    first = tree.find(Format.CHAT, make_messages(*words))
    longer = tree.find(Format.CHAT, make_messages(*words, "more"))
    edited = tree.find(Format.CHAT, make_messages(*words[:25], "another", *words[26:]))
    with_system = tree.find(
        Format.CHAT, make_messages("It is 9:00.", role="system") + make_messages(*words, "more", "and more")
    )
    shorter = tree.find(Format.CHAT, make_messages(*words[:20]))

    assert list(longer.nodes[:40]) == list(first.nodes)
    assert list(edited.nodes[:25]) == list(first.nodes[:25])
    assert not set(edited.nodes[25:]) & set(first.nodes)
    assert (with_system.leading_system_messages, list(with_system.nodes[:41])) == (1, list(longer.nodes))
    assert list(shorter.nodes) == list(first.nodes[:20])
    assert [node.raw for node in edited.nodes] == list(make_messages(*words[:25], "another", *words[26:]))


def test_a_repeated_long_conversation_is_stored_once() -> None:
    tree = HistoryTree()
    words = [str(number) for number in range(40)]
    tree.find(Format.CHAT, make_messages(*words))
    messages = make_messages(*words, "more")
    count_before = sys.getrefcount(messages)
    history = tree.find(Format.CHAT, messages)
    for other in ("another", "a third"):  # the tree holds the last two as received
        tree.find(Format.CHAT, make_messages(other))
    count_after = sys.getrefcount(messages)

    assert len(history.nodes) == 41
    assert count_after == count_before


def test_memos_of_a_long_conversation_outlive_their_generation_without_gaps() -> None:
    tree = HistoryTree(max_bytes=64 * 1024)
    words = [str(number) for number in range(40)]
    memo = None
    for number in range(300):
        words.append(f"turn {number}")
        for branch in (words, [*words[:30], f"aside {number}", *words[30:]]):
            history = tree.find(Format.CHAT, make_messages(*branch))
            memoized = count_memoized(history.nodes, "note")
            assert all("note" in node.memo for node in history.nodes[:memoized])
            for node in history.nodes[memoized:]:
                node.memo["note"] = number
        if number == 20:
            memo = tree.find(Format.CHAT, make_messages(*words)).nodes[0].memo
        if len(words) > 60:
            del words[41:]

    assert tree.find(Format.CHAT, make_messages(*words)).nodes[0].memo is memo


conversations = st.tuples(
    st.integers(0, 2),  # system messages at the start
    st.lists(st.sampled_from("ab"), max_size=4).map(tuple),
    st.integers(0, 20),  # then this many messages of all conversations
    st.lists(st.sampled_from("abc"), max_size=4).map(tuple),
)


@given(st.lists(st.tuples(st.sampled_from((Format.CHAT, Format.ANTHROPIC)), conversations), max_size=12))
def test_a_cached_history_always_equals_an_uncached_one(
    requests: list[tuple[Format, tuple[int, tuple[str, ...], int, tuple[str, ...]]]],
) -> None:
    """Memos are found again only for the same messages in the same format, in every generation."""
    tree = HistoryTree(max_bytes=16 * 1024)
    for api_format, (system_messages, start, shared, end) in requests:
        words = (*start, *map(str, range(shared)), *end)
        messages = make_messages(*("It is 9:00.",) * system_messages, role="system") + make_messages(*words)
        expected = UncachedHistory.from_messages(messages).history

        history = tree.find(api_format, messages)

        assert history.leading_system_messages == expected.leading_system_messages
        assert [(node.raw, node.role) for node in history.nodes] == [
            (node.raw, node.role) for node in expected.nodes
        ]
        for length, node in enumerate(history.nodes, start=1):
            assert node.memo.setdefault("path", (api_format, words[:length])) == (api_format, words[:length])


@given(
    st.sampled_from(Format).flatmap(lambda api_format: st.tuples(st.just(api_format), BODIES[api_format])),
    st.booleans(),
)
def test_a_request_with_a_cached_envelope_always_equals_one_parsed_anew(
    format_and_body: tuple[Format, Any], has_other_messages: bool
) -> None:
    api_format, body = format_and_body
    drop_caches()
    expected = formats.parse_request(body, api_format)
    drop_caches()
    earlier = {**body, "messages": body["messages"][:1]} if has_other_messages and "messages" in body else body
    formats.parse_request(earlier, api_format)

    request = formats.parse_request(body, api_format)

    assert request == expected
    fields = parse_fields(request.body)
    assert {name: bytes(raw) for name, raw in get_parameters(request).items()}.items() <= {
        name: bytes(raw) for name, raw in fields.items()
    }.items()


def test_the_envelope_of_requests_is_parsed_once() -> None:
    body = {"model": "claude-opus-4-5", "max_tokens": 9, "system": "Be brief.", "messages": []}
    first, second = (
        formats.parse_request(
            json.dumps(body | {"messages": [{"role": "user", "content": text}]}), Format.ANTHROPIC
        )
        for text in ("a", "b")
    )
    with_temperature = formats.parse_request(json.dumps(body | {"temperature": 1}), Format.ANTHROPIC)

    assert get_envelope(first) is not None
    assert get_envelope(first) is get_envelope(second) is not get_envelope(with_temperature)
    assert first.messages != second.messages
    assert first.body != second.body


def test_unused_envelopes_are_dropped() -> None:
    cache = EnvelopeCache(max_bytes=20 * 1024)
    used_fields, unused_fields = (
        parse_fields(json.dumps({"model": name, "messages": []}).encode()) for name in "ab"
    )
    used_envelope, unused_envelope = cache.get(Format.CHAT, used_fields), cache.get(Format.CHAT, unused_fields)
    for number in range(60):
        cache.get(Format.CHAT, parse_fields(json.dumps({"model": f"{number}", "messages": []}).encode()))
        assert cache.get(Format.CHAT, used_fields) is used_envelope

    assert cache.get(Format.CHAT, unused_fields) is not unused_envelope


def test_an_envelope_is_freed_with_its_last_reference() -> None:
    """Regression: a reference cycle kept envelopes until the next garbage collection."""
    request = formats.parse_request(
        {"model": "short-lived", "messages": [{"role": "user", "content": "a"}]}, Format.CHAT
    )
    envelope = get_envelope(request)
    assert envelope is not None
    assert envelope.request is not None
    reference = weakref.ref(envelope)
    gc.disable()
    try:
        ENVELOPES.clear()
        del request, envelope
        assert reference() is None
    finally:
        gc.enable()


def test_memos_that_clients_can_multiply_are_dropped_in_time() -> None:
    """Regression: one conversation with ever new model names took unlimited memory."""
    tree = HistoryTree(max_bytes=100 * 1024)
    messages = make_messages(*map(str, range(20)))
    max_memos = 0
    for number in range(400):
        history = tree.find(Format.CHAT, (*messages,))
        for node in history.nodes:
            node.memo[f"model {number}"] = number
        max_memos = max(max_memos, max(len(node.memo) for node in history.nodes))
        # A memo of a message exists for all messages before it.
        for key in history.nodes[-1].memo:
            assert count_memoized(history.nodes, key) == len(history.nodes)

    assert max_memos < 60
    assert tree.held_bytes < 120 * 1024


def test_a_cached_value_is_found_for_the_next_turns_of_its_conversation_only() -> None:
    tree, cache = HistoryTree(), HistoryCache[str]()
    first_nodes = tree.find(Format.CHAT, make_messages("a", "b")).nodes
    longer_nodes = tree.find(Format.CHAT, make_messages("a", "b", "c", "d")).nodes
    other_nodes = tree.find(Format.CHAT, make_messages("a", "x", "c", "d")).nodes
    cache.put(first_nodes, "ab")

    assert cache.find_prefix(longer_nodes) == (2, "ab")
    assert cache.find_prefix(longer_nodes, "another note") is None
    assert cache.find_prefix(other_nodes) is None

    cache.put(longer_nodes, "abcd", replaces=2)

    assert cache.find_prefix(longer_nodes) == (4, "abcd")
    assert cache.find_prefix(first_nodes) is None


def test_values_of_the_latest_conversations_are_cached() -> None:
    tree, cache = HistoryTree(), HistoryCache[int](max_size=3)
    histories = [tree.find(Format.CHAT, make_messages(str(number))).nodes for number in range(5)]
    for number, nodes in enumerate(histories):
        cache.put(nodes, number)

    assert [cache.find_prefix(nodes) for nodes in histories] == [None, None, (1, 2), (1, 3), (1, 4)]


def test_a_message_has_a_twin_in_the_other_of_the_last_two_conversations_of_one_format() -> None:
    tree = HistoryTree()
    longer = tree.find(Format.CHAT, make_messages("a", "b", "z"))
    assert tree.find_twin(longer, 2) is None

    shorter = tree.find(Format.CHAT, make_messages("summary", "z"))
    assert tree.find_twin(longer, 2) is shorter.nodes[1]
    assert tree.find_twin(shorter, 1) is longer.nodes[2]
    assert tree.find_twin(longer, 1) is None  # the other conversation has another message at this position
    assert tree.find_twin(longer, 0) is None

    other = tree.find(Format.ANTHROPIC, make_messages("b", "z"))
    assert tree.find_twin(other, 1) is None
    assert tree.find_twin(longer, 2) is None  # no longer one of the last two
