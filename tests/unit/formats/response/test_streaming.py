"""Streamed responses of each format, however the network chunks them."""

import json
import time
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.formats.response.streaming import StreamError, StreamReader, UsageChunkFilter
from foveate.model import CacheUsage, Format
from tests.support.harness.example_limits import limit_examples
from tests.support.scenarios.streams import cut, cuts, frame


def build_stream(*event_bodies: Any, line_end: str = "\n") -> bytes:
    """Write a stream as the providers do: each event has a name if its JSON has a type."""
    lines = []
    for body in event_bodies:
        name = f"event: {body['type']}{line_end}" if isinstance(body, dict) and "type" in body else ""
        text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
        lines.append(f"{name}data: {text}{line_end}{line_end}")
    return "".join(lines).encode()


def read_stream(api_format: Format, stream: bytes, cut_points: list[int] | None = None) -> StreamReader:
    reader = StreamReader(api_format)
    for chunk in cut(stream, cut_points or []):
        reader.feed(chunk)
    reader.end()
    return reader


def summarize(reader: StreamReader) -> tuple[object, ...]:
    return reader.usage, reader.model, reader.id, reader.stop_reason, reader.error, reader.is_complete


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5", "content": []}
START_USAGE = {
    "input_tokens": 4,
    "cache_creation_input_tokens": 1_165,
    "cache_read_input_tokens": 90,
    "cache_creation": {"ephemeral_5m_input_tokens": 165, "ephemeral_1h_input_tokens": 1_000},
    "output_tokens": 1,
}
ANTHROPIC_START = {"type": "message_start", "message": {**MESSAGE, "stop_reason": None, "usage": START_USAGE}}
ANTHROPIC_TEXT = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": 'The "error" is é漢😀\n'},
    },
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": '"message_stop"'}},
    {"type": "content_block_stop", "index": 0},
]
ANTHROPIC_END = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 289},
}
ANTHROPIC = build_stream(ANTHROPIC_START, *ANTHROPIC_TEXT, ANTHROPIC_END, {"type": "message_stop"})


def chat_chunk(content: str = "", finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "gpt-4o",
        "choices": [choice],
        **fields,
    }


CHAT_USAGE = {
    "prompt_tokens": 2_006,
    "completion_tokens": 30,
    "total_tokens": 2_036,
    "prompt_tokens_details": {"cached_tokens": 1_920, "audio_tokens": 0},
}
USAGE_CHUNK = {**chat_chunk(), "choices": [], "usage": CHAT_USAGE}
CHAT = build_stream(
    chat_chunk("Hel", usage=None),
    chat_chunk('"usage": {}', usage=None),
    chat_chunk("", "stop", usage=None),
    USAGE_CHUNK,
    "[DONE]",
)

RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "model": "gpt-5.6-sol",
    "output": [],
    "usage": None,
    "error": None,
}
RESPONSES_USAGE = {
    "input_tokens": 37,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens": 11,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 48,
}
RESPONSES_START = [
    {"type": "response.created", "sequence_number": 0, "response": {**RESPONSE, "status": "in_progress"}},
    {"type": "response.output_text.delta", "item_id": "msg_1", "delta": 'an "error"'},
]


def response_end(status: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": f"response.{status}",
        "response": {**RESPONSE, "status": status, "usage": RESPONSES_USAGE, **fields},
    }


RESPONSES = build_stream(*RESPONSES_START, response_end("completed"))

GEMINI_REPLIES = [
    {
        "candidates": [{"content": {"parts": [{"text": "Hi [{"}], "role": "model"}, "index": 0}],
        "usageMetadata": {"promptTokenCount": 87, "totalTokenCount": 165, "thoughtsTokenCount": 78},
        "modelVersion": "gemini-3-flash-preview",
        "responseId": "r1",
    },
    {
        "candidates": [{"content": {"parts": [{"text": '"} é'}], "role": "model"}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 87, "candidatesTokenCount": 21, "thoughtsTokenCount": 78},
        "modelVersion": "gemini-3-flash-preview",
        "responseId": "r1",
    },
    {"usageMetadata": {"trafficType": "ON_DEMAND"}},
]
GEMINI = build_stream(*GEMINI_REPLIES, line_end="\r\n")
GEMINI_LIST = json.dumps(GEMINI_REPLIES, indent=2).encode()

BEDROCK = (
    frame(b"messageStart", b'{"role":"assistant"}')
    + frame(b"contentBlockDelta", b'{"delta":{"text":"metadata, messageStop"},"contentBlockIndex":0}')
    + frame(b"messageStop", b'{"stopReason":"end_turn"}')
    + frame(
        b"metadata", b'{"usage":{"inputTokens":22,"outputTokens":13,"cacheReadInputTokens":2492},"metrics":{}}'
    )
)

STREAMS = [
    pytest.param(Format.ANTHROPIC, ANTHROPIC, id="anthropic"),
    pytest.param(Format.CHAT, CHAT, id="chat"),
    pytest.param(Format.RESPONSES, RESPONSES, id="responses"),
    pytest.param(Format.GEMINI, GEMINI, id="gemini"),
    pytest.param(Format.GEMINI, GEMINI_LIST, id="gemini as a list"),
    pytest.param(Format.BEDROCK, BEDROCK, id="bedrock"),
]
ANTHROPIC_CACHE_USAGE = CacheUsage(uncached=4, read=90, written_5m=165, written_1h=1_000)
EXPECTED = {
    Format.ANTHROPIC: (ANTHROPIC_CACHE_USAGE, 289, "claude-sonnet-5", "msg_1", "end_turn"),
    Format.CHAT: (CacheUsage(uncached=86, read=1_920), 30, "gpt-4o", "chatcmpl-1", "stop"),
    Format.RESPONSES: (CacheUsage(uncached=29, read=8), 11, "gpt-5.6-sol", "resp_1", "completed"),
    Format.GEMINI: (CacheUsage(uncached=87), 99, "gemini-3-flash-preview", "r1", "STOP"),
    Format.BEDROCK: (CacheUsage(uncached=22, read=2_492), 13, "", "", "end_turn"),
}


@pytest.mark.parametrize(("api_format", "stream"), STREAMS)
def test_a_complete_stream_has_usage_and_a_stop_reason(api_format: Format, stream: bytes) -> None:
    reader = read_stream(api_format, stream)

    assert reader.usage is not None
    summary = (reader.usage.cache, reader.usage.output_tokens, reader.model, reader.id, reader.stop_reason)
    assert summary == EXPECTED[api_format]
    assert reader.is_complete
    assert reader.error is None


@pytest.mark.parametrize(("api_format", "stream"), STREAMS)
@settings(max_examples=limit_examples(25))
@given(cut_points=cuts)
def test_chunking_does_not_change_the_result(api_format: Format, stream: bytes, cut_points: list[int]) -> None:
    assert summarize(read_stream(api_format, stream, cut_points)) == summarize(read_stream(api_format, stream))


@pytest.mark.parametrize(("api_format", "stream"), STREAMS)
def test_a_stream_is_complete_with_its_last_event_and_not_before(api_format: Format, stream: bytes) -> None:
    reader = StreamReader(api_format)
    for byte in stream[:-1]:
        reader.feed(bytes([byte]))
        assert not reader.has_ended
    reader.feed(stream[-1:])

    assert reader.has_ended is (api_format is not Format.GEMINI)


@pytest.mark.parametrize(("api_format", "stream"), STREAMS)
def test_a_truncated_stream_is_not_complete(api_format: Format, stream: bytes) -> None:
    reader = read_stream(api_format, stream[: len(stream) // 3])

    assert not reader.is_complete
    assert reader.stop_reason == ""


@pytest.mark.parametrize("api_format", Format)
@settings(max_examples=limit_examples(40))
@given(
    stream=st.binary(max_size=80),
    cut_points=cuts,
    prefix=st.sampled_from([b"", b"data: {", b"[{", b"data: [DONE", b"[]]"]),
)
def test_bytes_that_are_not_a_stream_have_no_usage(
    api_format: Format, stream: bytes, cut_points: list[int], prefix: bytes
) -> None:
    assert read_stream(api_format, prefix + stream, cut_points).usage is None


EVENT_FIELDS = (
    "message",
    "usage",
    "delta",
    "choices",
    "error",
    "response",
    "candidates",
    "usageMetadata",
    "x_groq",
)
WRONG_VALUES: list[Any] = [
    None,
    1,
    "x",
    [],
    ["x"],
    {},
    {"a": None},
    {"type": 3},
    {"usage": []},
    {"choices": {}},
    {"error": []},
]


@pytest.mark.parametrize("api_format", Format)
@pytest.mark.parametrize("name", EVENT_FIELDS)
def test_an_event_of_the_wrong_shape_is_ignored(api_format: Format, name: str) -> None:
    kinds = ("message_start", "message_delta", "response.completed", "error")
    for wrong_value in WRONG_VALUES:
        reader = read_stream(
            api_format,
            build_stream(
                *({"type": kind, name: wrong_value, "id": wrong_value, "model": wrong_value} for kind in kinds)
            ),
        )

        assert reader.usage is None
        assert (reader.id, reader.model) in (("", ""), ("x", "x"))


@pytest.mark.slow
@pytest.mark.parametrize("api_format", Format)
def test_nesting_near_the_recursion_limit_is_no_error(api_format: Format) -> None:
    for depth in range(100, 1_100, 25):
        nested = '{"a":' + "[" * depth + "]" * depth + "}"
        fields = ",".join(f'"{name}":{nested}' for name in EVENT_FIELDS)
        for kind in ("message_start", "message_delta", "response.completed"):
            message = f'"message":{{"usage":{nested}}},"usage":{nested}'
            read_stream(api_format, f'data: {{"type":"{kind}",{fields},{message}}}\n\n'.encode())
        read_stream(api_format, frame(b"metadata", f'{{"usage":{nested}}}'.encode()))


def test_the_last_event_needs_no_blank_line_after_it() -> None:
    for api_format, stream in (
        (Format.ANTHROPIC, ANTHROPIC),
        (Format.CHAT, CHAT),
        (Format.RESPONSES, RESPONSES),
    ):
        assert summarize(read_stream(api_format, stream.rstrip(b"\n"))) == summarize(
            read_stream(api_format, stream)
        )


def test_later_usage_of_anthropic_wins_except_zeros() -> None:
    def merge_usage(start: dict[str, Any], end: dict[str, Any]) -> CacheUsage:
        start_event = {"type": "message_start", "message": {**MESSAGE, "usage": start}}
        reader = read_stream(Format.ANTHROPIC, build_stream(start_event, {**ANTHROPIC_END, "usage": end}))
        assert reader.usage is not None
        return reader.usage.cache

    larger = {"input_tokens": 40, "cache_read_input_tokens": 900, "cache_creation_input_tokens": None}
    zeros = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 7}

    assert merge_usage({"input_tokens": 4}, larger) == CacheUsage(uncached=40, read=900)
    assert merge_usage(START_USAGE, {"input_tokens": 5, "cache_read_input_tokens": None}).read == 90
    assert merge_usage({"input_tokens": 0, "output_tokens": 0}, larger) == CacheUsage(uncached=40, read=900)
    assert merge_usage(START_USAGE, zeros) == ANTHROPIC_CACHE_USAGE
    assert merge_usage({"input_tokens": 4}, {"output_tokens": 9, "iterations": [
        {"type": "compaction", "input_tokens": 100}, {"type": "message", "input_tokens": 4}
    ]}) == CacheUsage(uncached=104)  # fmt: skip


@pytest.mark.parametrize(
    ("last", "read_tokens"),
    [
        pytest.param({"usage": CHAT_USAGE}, 1_920, id="in the last choice's chunk"),
        pytest.param({"x_groq": {"id": "req_1", "usage": CHAT_USAGE}}, 1_920, id="groq"),
        pytest.param({"timings": {"prompt_n": 6, "cache_n": 2_000, "predicted_n": 30}}, 2_000, id="llama.cpp"),
    ],
)
def test_a_chat_host_may_put_usage_elsewhere(last: dict[str, Any], read_tokens: int) -> None:
    reader = read_stream(
        Format.CHAT,
        b": OPENROUTER PROCESSING\n\n" + build_stream(chat_chunk("Hi"), chat_chunk("", "stop", **last)),
    )

    assert reader.usage is not None
    assert (reader.usage.cache.input_tokens, reader.usage.cache.read) == (2_006, read_tokens)
    assert reader.is_complete  # not every host sends [DONE]


def test_moonshot_puts_usage_in_the_choice() -> None:
    last = chat_chunk("", "stop")
    last["choices"][0]["usage"] = {"prompt_tokens": 19, "completion_tokens": 13, "cached_tokens": 9}
    reader = read_stream(Format.CHAT, build_stream(chat_chunk("Hi"), last, "[DONE]"))

    assert reader.usage is not None
    assert reader.usage.cache == CacheUsage(uncached=10, read=9)


OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}


@pytest.mark.parametrize(
    ("api_format", "stream", "error"),
    [
        (
            Format.ANTHROPIC,
            build_stream(ANTHROPIC_START, {"type": "error", "error": OVERLOADED}),
            StreamError("overloaded_error", "Overloaded"),
        ),
        (
            Format.CHAT,
            build_stream(
                chat_chunk("Hi"), chat_chunk("", "error", error={"code": 502, "message": "gone"}), "[DONE]"
            ),
            StreamError("502", "gone"),
        ),
        (Format.CHAT, build_stream({"error": "no more memory"}), StreamError("", "no more memory")),
        (
            Format.RESPONSES,
            build_stream(RESPONSES_START[0], {"type": "error", "code": "server_error", "message": "sorry"}),
            StreamError("server_error", "sorry"),
        ),
        (
            Format.RESPONSES,
            build_stream(
                RESPONSES_START[0], response_end("failed", error={"code": "server_error", "message": "sorry"})
            ),
            StreamError("server_error", "sorry"),
        ),
        (
            Format.GEMINI,
            b'[{"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}]',
            StreamError("UNAVAILABLE", "busy"),
        ),
        (
            Format.BEDROCK,
            frame(b"throttlingException", b'{"message":"slow down"}', b":exception-type"),
            StreamError("throttlingException", "slow down"),
        ),
    ],
)
def test_an_error_in_the_stream_is_reported(api_format: Format, stream: bytes, error: StreamError) -> None:
    reader = read_stream(api_format, stream)

    assert reader.error == error
    assert not reader.is_complete


def test_a_truncated_response_has_its_stop_reason() -> None:
    incomplete = response_end("incomplete", incomplete_details={"reason": "max_output_tokens"})
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}

    assert (
        read_stream(Format.RESPONSES, build_stream(*RESPONSES_START, incomplete)).stop_reason
        == "max_output_tokens"
    )
    assert read_stream(Format.GEMINI, build_stream(blocked)).stop_reason == "SAFETY"


@given(cut_points=cuts, before=st.sampled_from([b"", b": hello\n\n", b"\xef\xbb\xbf", b"event: x\r\n"]))
def test_only_the_extra_usage_chunk_is_stripped(cut_points: list[int], before: bytes) -> None:
    usage_chunk = build_stream(USAGE_CHUNK)
    azure_chunk = {**chat_chunk(), "choices": [], "prompt_filter_results": [], "usage": None}
    with_usage = chat_chunk("", "stop", usage=CHAT_USAGE)
    other_events = (
        before + build_stream(azure_chunk, chat_chunk('"usage"', usage=None), with_usage),
        build_stream("[DONE]") + b": bye",
    )

    chunk_filter = UsageChunkFilter()
    forwarded = (
        b"".join(map(chunk_filter.feed, cut(usage_chunk.join(other_events), cut_points))) + chunk_filter.end()
    )

    assert forwarded == b"".join(other_events)


@given(stream=st.binary(max_size=60), cut_points=cuts)
def test_bytes_that_are_not_a_stream_pass_the_filter_unchanged(stream: bytes, cut_points: list[int]) -> None:
    chunk_filter = UsageChunkFilter()

    assert b"".join(map(chunk_filter.feed, cut(stream, cut_points))) + chunk_filter.end() == stream


def test_the_filter_passes_an_event_as_soon_as_it_is_complete() -> None:
    chunk_filter, first, second = (
        UsageChunkFilter(),
        build_stream(chat_chunk("a")),
        build_stream(chat_chunk("b")),
    )
    assert chunk_filter.feed(first + second[:9]) == first
    assert chunk_filter.feed(second[9:]) == second


# Regression: after each `[DONE]` in a text, the rest of the stream was searched again.
@pytest.mark.parametrize(("word", "chunk_bytes"), [("a", 40), ("[DONE]", 10**9)])
def test_a_long_stream_takes_linear_time(word: str, chunk_bytes: int) -> None:
    def measure_seconds(count: int) -> float:
        stream = build_stream(*[chat_chunk(word)] * count)
        start_seconds = time.process_time()
        read_stream(Format.CHAT, stream, list(range(0, len(stream), chunk_bytes)))
        return time.process_time() - start_seconds

    assert min(measure_seconds(3_000) for _ in range(2)) < 30 * min(measure_seconds(300) for _ in range(2))


def chunk_frame(event_body: object) -> bytes:
    """Write a provider's event in an AWS frame, as InvokeModel streams it."""
    encoded = b64encode(json.dumps(event_body).encode())
    return frame(b"chunk", b'{"bytes":"%b","p":"abc"}' % encoded)


@given(cuts)
def test_an_anthropic_stream_in_frames_is_read_like_one_in_events(cut_points: list[int]) -> None:
    event_bodies = [
        ANTHROPIC_START,
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
        {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 4}},
    ]
    reader = StreamReader(Format.ANTHROPIC, is_framed=True)
    for chunk in cut(b"".join(map(chunk_frame, event_bodies)), cut_points):
        reader.feed(chunk)
    reader.end()

    assert summarize(reader) == summarize(read_stream(Format.ANTHROPIC, build_stream(*event_bodies)))
    assert reader.is_complete


@pytest.mark.parametrize("payload", [b"{}", b'{"bytes":3}', b'{"bytes":"?"}', b"[]", b"no JSON", b""])
def test_a_chunk_without_an_event_changes_nothing(payload: bytes) -> None:
    reader = StreamReader(Format.ANTHROPIC, is_framed=True)
    reader.feed(chunk_frame(ANTHROPIC_START) + frame(b"chunk", payload))
    reader.end()

    assert (reader.id, reader.error, reader.is_complete) == ("msg_1", None, False)


def test_an_exception_in_frames_is_the_error_of_any_format() -> None:
    reader = StreamReader(Format.ANTHROPIC, is_framed=True)
    reader.feed(frame(b"throttlingException", b'{"message":"slowly"}', kind=b":exception-type"))
    reader.end()

    assert reader.error == StreamError("throttlingException", "slowly")
