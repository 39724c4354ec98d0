"""A stream has the same events however it is chunked, and their bytes are the stream."""

import json
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.formats.response.event_streams import (
    AwsFrameSplitter,
    JsonListSplitter,
    ServerSentEvent,
    SseFinder,
    SseSplitter,
)
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.streams import cut, cuts, frame

LINES = [
    "data: ",
    "data:",
    "data",
    "event: ping",
    "event",
    ": a comment",
    "id: 7",
    "retry: 9",
    "[DONE]",
    "\ufeff",
]
ENDS = ["\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n"]
TEXTS = ['{"a": "é漢😀"}', " ", "x", "\u2028", "\x0b"]
fragments = st.sampled_from([*LINES, *ENDS, *TEXTS])
streams = st.lists(fragments, max_size=40).map(lambda parts: "".join(parts).encode())


def split(stream: bytes, at: list[int], most_bytes: int = 10_000) -> list[ServerSentEvent]:
    splitter = SseSplitter(most_bytes)
    events = [event for chunk in cut(stream, at) for event in splitter.feed(chunk)]
    return events + splitter.end()


@settings(max_examples=limit_examples(80))
@given(stream=streams, at=cuts)
def test_where_a_stream_is_cut_changes_no_event(stream: bytes, at: list[int]) -> None:
    assert split(stream, at) == split(stream, []) == split(stream, list(range(len(stream))))


@settings(max_examples=limit_examples(120))
@given(stream=streams, at=cuts, most_bytes=st.sampled_from([5, 20, 10_000]))
def test_the_events_and_the_rest_are_the_stream(stream: bytes, at: list[int], most_bytes: int) -> None:
    splitter = SseSplitter(most_bytes)
    passed = b""
    for chunk in cut(stream, at):
        passed += b"".join(event.raw for event in splitter.feed(chunk))
        assert stream.startswith(passed + splitter.rest)
        assert len(splitter.rest) <= most_bytes

    assert passed + splitter.rest == stream
    assert passed + b"".join(event.raw for event in splitter.end()) == stream
    assert splitter.rest == b""


@settings(max_examples=limit_examples(120))
@given(
    stream=streams,
    at=cuts,
    matters=st.sampled_from([rb"x", rb"ping|DONE", rb"data", rb"nothing"]),
    last=st.sampled_from([None, b"[DONE]", b"x", b":"]),
)
def test_exactly_the_relevant_events_are_found_however_a_stream_is_chunked(
    stream: bytes, at: list[int], matters: bytes, last: bytes | None
) -> None:
    finder = SseFinder(re.compile(matters), last)
    found = [event for chunk in cut(stream, at) for event in finder.feed(chunk)] + finder.end()

    either = matters if last is None else matters + b"|" + re.escape(last)
    expected = [event for event in split(stream, []) if re.search(either, event.raw)]
    assert [(event.name, event.data) for event in found] == [(event.name, event.data) for event in expected]


@pytest.mark.slow  # loading both clients takes seconds
@settings(max_examples=limit_examples(80))
@given(stream=streams, at=cuts)
def test_the_official_clients_see_the_same_events(stream: bytes, at: list[int]) -> None:
    from anthropic._streaming import SSEDecoder as AnthropicDecoder
    from openai._streaming import SSEDecoder as OpenAIDecoder

    stream = stream.removeprefix("\ufeff".encode()) + b"\n\n"  # they know no byte order mark, and no open end
    ours = [(event.name, event.data.decode()) for event in split(stream, at)]

    for decoder in (AnthropicDecoder(), OpenAIDecoder()):
        theirs = [(event.event or "", event.data) for event in decoder.iter_bytes(iter([stream]))]
        assert [pair for pair in ours if any(pair)] == [pair for pair in theirs if any(pair)]


@settings(max_examples=limit_examples(80))
@given(stream=streams, at=cuts, most_bytes=st.integers(4, 60))
def test_an_oversized_event_is_forwarded_unread_and_others_are_read(
    stream: bytes, at: list[int], most_bytes: int
) -> None:
    kept = [event.data for event in split(stream, []) if len(event.raw) <= most_bytes and event.data]

    assert [event.data for event in split(stream, at, most_bytes) if event.data] == kept


def test_the_end_of_an_event_that_is_too_large_is_not_read_either() -> None:
    stream = b": " + b"x" * 50 + b"\ndata: its end\n\ndata: 1\n\n"

    for place in range(len(stream)):
        assert [event.data for event in split(stream, [place], 30) if event.data] == [b"1"]


def test_an_event_is_given_as_soon_as_it_is_whole() -> None:
    splitter = SseSplitter()

    assert splitter.feed(b"event: ping\ndata: {}\n") == []
    assert splitter.feed(b"\ndata: 1") == [ServerSentEvent(b"event: ping\ndata: {}\n\n")]
    assert splitter.feed(b"\r\n\r") == []  # an LF may belong to it
    assert splitter.feed(b"\n") == [ServerSentEvent(b"data: 1\r\n\r\n")]
    assert splitter.feed(b"data: 2\n\ndata: 3\n\n: end") == [
        ServerSentEvent(b"data: 2\n\n"),
        ServerSentEvent(b"data: 3\n\n"),
    ]
    assert splitter.rest == b": end"


def test_an_event_says_its_name_and_its_data() -> None:
    event = ServerSentEvent(
        b": note\r\nevent: delta\r\ndata: one\r\ndata:two\r\ndata\r\nid: 4\r\ndatum: 5\r\n\r\n"
    )

    assert (event.name, event.data, event.is_done) == ("delta", b"one\ntwo\n", False)
    assert ServerSentEvent(b"data: [DONE]\n\n").is_done
    assert (ServerSentEvent(b": ping\n\n").name, ServerSentEvent(b": ping\n\n").data) == ("", b"")


def test_a_byte_order_mark_is_skipped_at_the_start_only() -> None:
    stream = b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\ndata: 3"

    for at in ([], [1, 2], list(range(len(stream)))):
        assert [event.data for event in split(stream, at)] == [b"1", b"", b"3"]


def test_the_first_event_after_a_byte_order_mark_is_found_after_an_empty_chunk() -> None:
    finder = SseFinder(re.compile(b"1"))

    found = finder.feed(b"") + finder.feed(b"\xef\xbb\xbfdata: 1\n\n")

    assert [event.data for event in found] == [b"1"]


def feed_all(splitter: SseSplitter | JsonListSplitter | AwsFrameSplitter, stream: bytes, size: int) -> int:
    return sum(len(splitter.feed(stream[at : at + size])) for at in range(0, len(stream), size))


@pytest.mark.parametrize("splits", [SseSplitter, JsonListSplitter, AwsFrameSplitter])
def test_a_long_event_in_tiny_chunks_takes_time_in_proportion(splits: Callable[[], SseSplitter]) -> None:
    def seconds(size: int) -> float:
        text = b"x" * size
        stream = {
            SseSplitter: b"data: " + text + b"\n\n",
            JsonListSplitter: b'[{"text": "' + text + b'"}]',
            AwsFrameSplitter: frame(b"chunk", text),
        }[splits]  # type: ignore[index]
        started = time.process_time()
        assert feed_all(splits(), stream, 7) == 1
        return time.process_time() - started

    assert min(seconds(400_000) for _ in range(3)) < 30 * min(seconds(40_000) for _ in range(3))


json_texts = st.text(st.sampled_from('ab"\\{}[],:漢\n'), max_size=8)
json_objects = st.dictionaries(
    json_texts,
    json_texts | st.lists(json_texts, max_size=2) | st.dictionaries(json_texts, json_texts, max_size=2),
)


@settings(max_examples=limit_examples(60))
@given(objects=st.lists(json_objects, max_size=4), at=cuts, indent=st.sampled_from([None, 2]))
def test_the_objects_of_a_list_are_found_however_it_is_cut(
    objects: list[dict[str, object]], at: list[int], indent: int | None
) -> None:
    stream = json.dumps(objects, indent=indent, ensure_ascii=False).encode()
    for places in (at, list(range(len(stream)))):
        splitter = JsonListSplitter()
        found = [item.data for chunk in cut(stream, places) for item in splitter.feed(chunk)]
        assert [json.loads(item) for item in found + [item.data for item in splitter.end()]] == objects


def test_an_object_that_is_too_large_is_left_out_of_a_list() -> None:
    stream = json.dumps([{"a": 1}, {"b": "x" * 50}, {"c": 2}]).encode()
    for at in ([], list(range(len(stream)))):
        splitter = JsonListSplitter(max_bytes=30)
        found = [json.loads(item.data) for chunk in cut(stream, at) for item in splitter.feed(chunk)]
        assert found == [{"a": 1}, {"c": 2}]


@settings(max_examples=limit_examples(50))
@given(at=cuts, most_bytes=st.sampled_from([200, 10_000]))
def test_frames_are_found_however_they_are_cut(at: list[int], most_bytes: int) -> None:
    stream = (
        frame(b"messageStop", b'{"a":1}') + frame(b"big", b'"%b"' % (b"x" * 300)) + frame(b"metadata", b"{}")
    )
    splitter = AwsFrameSplitter(most_bytes)

    found = [piece.data for chunk in cut(stream, at) for piece in splitter.feed(chunk)]

    large = [b'{"big":"%b"}' % (b"x" * 300)] if most_bytes > 300 else []
    assert found == [b'{"messageStop":{"a":1}}', *large, b'{"metadata":{}}']


@settings(max_examples=limit_examples(50))
@given(stream=st.binary(max_size=200), at=cuts)
def test_invalid_frames_do_no_harm(stream: bytes, at: list[int]) -> None:
    splitter = AwsFrameSplitter()
    for chunk in cut(b"\0\0\0\x30" + stream, at):
        for piece in splitter.feed(chunk):
            assert isinstance(piece.data, bytes)
    assert AwsFrameSplitter().feed(b"data: {}\n\n" * 1_000) == []
