"""A stream has the same events however it is chunked, and their bytes are the stream."""

import json
import re
import time

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

SSE_LINES = [
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
LINE_ENDS = ["\n", "\r", "\r\n", "\n\n", "\r\r", "\r\n\r\n"]
DATA_TEXTS = ['{"a": "é漢😀"}', " ", "x", "\u2028", "\x0b"]
fragments = st.sampled_from([*SSE_LINES, *LINE_ENDS, *DATA_TEXTS])
streams = st.lists(fragments, max_size=40).map(lambda parts: "".join(parts).encode())


def split_events(stream: bytes, cut_points: list[int], max_bytes: int = 10_000) -> list[ServerSentEvent]:
    splitter = SseSplitter(max_bytes)
    events = [event for chunk in cut(stream, cut_points) for event in splitter.feed(chunk)]
    return events + splitter.end()


@given(stream=streams, cut_points=cuts)
def test_chunk_boundaries_do_not_change_the_events(stream: bytes, cut_points: list[int]) -> None:
    assert (
        split_events(stream, cut_points)
        == split_events(stream, [])
        == split_events(stream, list(range(len(stream))))
    )


@given(stream=streams, cut_points=cuts, max_bytes=st.sampled_from([5, 20, 10_000]))
def test_the_events_and_the_rest_add_up_to_the_stream(
    stream: bytes, cut_points: list[int], max_bytes: int
) -> None:
    splitter = SseSplitter(max_bytes)
    forwarded = b""
    for chunk in cut(stream, cut_points):
        forwarded += b"".join(event.raw for event in splitter.feed(chunk))
        assert stream.startswith(forwarded + splitter.rest)
        assert len(splitter.rest) <= max_bytes

    assert forwarded + splitter.rest == stream
    assert forwarded + b"".join(event.raw for event in splitter.end()) == stream
    assert splitter.rest == b""


@given(
    stream=streams,
    cut_points=cuts,
    relevant=st.sampled_from([rb"x", rb"ping|DONE", rb"data", rb"nothing"]),
    last_marker=st.sampled_from([None, b"[DONE]", b"x", b":"]),
)
def test_exactly_the_relevant_events_are_found_whatever_the_chunk_boundaries(
    stream: bytes, cut_points: list[int], relevant: bytes, last_marker: bytes | None
) -> None:
    finder = SseFinder(re.compile(relevant), last_marker)
    events = [event for chunk in cut(stream, cut_points) for event in finder.feed(chunk)] + finder.end()

    pattern = relevant if last_marker is None else relevant + b"|" + re.escape(last_marker)
    expected = [event for event in split_events(stream, []) if re.search(pattern, event.raw)]
    assert [(event.name, event.data) for event in events] == [(event.name, event.data) for event in expected]


@pytest.mark.slow  # loading both clients takes seconds
@given(stream=streams, cut_points=cuts)
def test_the_official_clients_see_the_same_events(stream: bytes, cut_points: list[int]) -> None:
    from anthropic._streaming import SSEDecoder as AnthropicDecoder
    from openai._streaming import SSEDecoder as OpenAIDecoder

    stream = (
        stream.removeprefix("\ufeff".encode()) + b"\n\n"
    )  # they support neither a byte order mark nor an unfinished last event
    events = [(event.name, event.data.decode()) for event in split_events(stream, cut_points)]

    for decoder in (AnthropicDecoder(), OpenAIDecoder()):
        client_events = [(event.event or "", event.data) for event in decoder.iter_bytes(iter([stream]))]
        assert [pair for pair in events if any(pair)] == [pair for pair in client_events if any(pair)]


@given(stream=streams, cut_points=cuts, max_bytes=st.integers(4, 60))
def test_an_oversized_event_is_forwarded_unread_and_others_are_read(
    stream: bytes, cut_points: list[int], max_bytes: int
) -> None:
    expected = [event.data for event in split_events(stream, []) if len(event.raw) <= max_bytes and event.data]

    assert [event.data for event in split_events(stream, cut_points, max_bytes) if event.data] == expected


def test_the_end_of_an_oversized_event_is_not_parsed_either() -> None:
    stream = b": " + b"x" * 50 + b"\ndata: its end\n\ndata: 1\n\n"

    for cut_point in range(len(stream)):
        assert [event.data for event in split_events(stream, [cut_point], 30) if event.data] == [b"1"]


def test_an_event_is_returned_as_soon_as_it_is_complete() -> None:
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


def test_an_event_has_a_name_and_data() -> None:
    event = ServerSentEvent(
        b": note\r\nevent: delta\r\ndata: one\r\ndata:two\r\ndata\r\nid: 4\r\ndatum: 5\r\n\r\n"
    )

    assert (event.name, event.data, event.is_done) == ("delta", b"one\ntwo\n", False)
    assert ServerSentEvent(b"data: [DONE]\n\n").is_done
    assert (ServerSentEvent(b": ping\n\n").name, ServerSentEvent(b": ping\n\n").data) == ("", b"")


def test_a_byte_order_mark_is_skipped_at_the_start_only() -> None:
    stream = b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\ndata: 3"

    for cut_points in ([], [1, 2], list(range(len(stream)))):
        assert [event.data for event in split_events(stream, cut_points)] == [b"1", b"", b"3"]


def test_the_first_event_after_a_byte_order_mark_is_found_after_an_empty_chunk() -> None:
    finder = SseFinder(re.compile(b"1"))

    events = finder.feed(b"") + finder.feed(b"\xef\xbb\xbfdata: 1\n\n")

    assert [event.data for event in events] == [b"1"]


def feed_all(
    splitter: SseSplitter | JsonListSplitter | AwsFrameSplitter, stream: bytes, chunk_bytes: int
) -> int:
    return sum(
        len(splitter.feed(stream[start : start + chunk_bytes])) for start in range(0, len(stream), chunk_bytes)
    )


@pytest.mark.parametrize("splitter_type", [SseSplitter, JsonListSplitter, AwsFrameSplitter])
def test_a_long_event_in_tiny_chunks_takes_linear_time(
    splitter_type: type[SseSplitter | JsonListSplitter | AwsFrameSplitter],
) -> None:
    def measure_seconds(size: int) -> float:
        text = b"x" * size
        stream = {
            SseSplitter: b"data: " + text + b"\n\n",
            JsonListSplitter: b'[{"text": "' + text + b'"}]',
            AwsFrameSplitter: frame(b"chunk", text),
        }[splitter_type]
        start_seconds = time.process_time()
        assert feed_all(splitter_type(), stream, 7) == 1
        return time.process_time() - start_seconds

    assert min(measure_seconds(400_000) for _ in range(3)) < 30 * min(measure_seconds(40_000) for _ in range(3))


json_texts = st.text(st.sampled_from('ab"\\{}[],:漢\n'), max_size=8)
json_objects = st.dictionaries(
    json_texts,
    json_texts | st.lists(json_texts, max_size=2) | st.dictionaries(json_texts, json_texts, max_size=2),
)


@given(objects=st.lists(json_objects, max_size=4), cut_points=cuts, indent=st.sampled_from([None, 2]))
def test_the_objects_of_a_list_are_found_whatever_the_chunk_boundaries(
    objects: list[dict[str, object]], cut_points: list[int], indent: int | None
) -> None:
    stream = json.dumps(objects, indent=indent, ensure_ascii=False).encode()
    for points in (cut_points, list(range(len(stream)))):
        splitter = JsonListSplitter()
        parsed = [item.data for chunk in cut(stream, points) for item in splitter.feed(chunk)]
        assert [json.loads(item) for item in parsed + [item.data for item in splitter.end()]] == objects


def test_an_oversized_object_is_left_out_of_a_list() -> None:
    stream = json.dumps([{"a": 1}, {"b": "x" * 50}, {"c": 2}]).encode()
    for cut_points in ([], list(range(len(stream)))):
        splitter = JsonListSplitter(max_bytes=30)
        parsed = [json.loads(item.data) for chunk in cut(stream, cut_points) for item in splitter.feed(chunk)]
        assert parsed == [{"a": 1}, {"c": 2}]


@settings(max_examples=limit_examples(50))
@given(cut_points=cuts, max_bytes=st.sampled_from([200, 10_000]))
def test_frames_are_found_whatever_the_chunk_boundaries(cut_points: list[int], max_bytes: int) -> None:
    stream = (
        frame(b"messageStop", b'{"a":1}') + frame(b"big", b'"%b"' % (b"x" * 300)) + frame(b"metadata", b"{}")
    )
    splitter = AwsFrameSplitter(max_bytes)

    parsed = [event.data for chunk in cut(stream, cut_points) for event in splitter.feed(chunk)]

    large_event = [b'{"big":"%b"}' % (b"x" * 300)] if max_bytes > 300 else []
    assert parsed == [b'{"messageStop":{"a":1}}', *large_event, b'{"metadata":{}}']


@settings(max_examples=limit_examples(50))
@given(stream=st.binary(max_size=200), cut_points=cuts)
def test_invalid_frames_are_ignored(stream: bytes, cut_points: list[int]) -> None:
    splitter = AwsFrameSplitter()
    for chunk in cut(b"\0\0\0\x30" + stream, cut_points):
        for event in splitter.feed(chunk):
            assert isinstance(event.data, bytes)
    assert AwsFrameSplitter().feed(b"data: {}\n\n" * 1_000) == []
