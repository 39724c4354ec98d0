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


def events(*said: Any, end: str = "\n") -> bytes:
    """A stream as the providers write it: each event under its name, where its JSON has a type."""
    written = []
    for one in said:
        name = f"event: {one['type']}{end}" if isinstance(one, dict) and "type" in one else ""
        text = one if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
        written.append(f"{name}data: {text}{end}{end}")
    return "".join(written).encode()


def read(api_format: Format, stream: bytes, at: list[int] | None = None) -> StreamReader:
    reader = StreamReader(api_format)
    for chunk in cut(stream, at or []):
        reader.feed(chunk)
    reader.end()
    return reader


def told(reader: StreamReader) -> tuple[object, ...]:
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
ANTHROPIC = events(ANTHROPIC_START, *ANTHROPIC_TEXT, ANTHROPIC_END, {"type": "message_stop"})


def chunk(content: str = "", finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "gpt-4o",
        "choices": [choice],
        **more,
    }


CHAT_USAGE = {
    "prompt_tokens": 2_006,
    "completion_tokens": 30,
    "total_tokens": 2_036,
    "prompt_tokens_details": {"cached_tokens": 1_920, "audio_tokens": 0},
}
USAGE_CHUNK = {**chunk(), "choices": [], "usage": CHAT_USAGE}
CHAT = events(
    chunk("Hel", usage=None),
    chunk('"usage": {}', usage=None),
    chunk("", "stop", usage=None),
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
RESPONSES_BILL = {
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


def response_end(status: str, **more: Any) -> dict[str, Any]:
    return {
        "type": f"response.{status}",
        "response": {**RESPONSE, "status": status, "usage": RESPONSES_BILL, **more},
    }


RESPONSES = events(*RESPONSES_START, response_end("completed"))

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
GEMINI = events(*GEMINI_REPLIES, end="\r\n")
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
WRITTEN = CacheUsage(uncached=4, read=90, written_5m=165, written_1h=1_000)
EXPECTED = {
    Format.ANTHROPIC: (WRITTEN, 289, "claude-sonnet-5", "msg_1", "end_turn"),
    Format.CHAT: (CacheUsage(uncached=86, read=1_920), 30, "gpt-4o", "chatcmpl-1", "stop"),
    Format.RESPONSES: (CacheUsage(uncached=29, read=8), 11, "gpt-5.6-sol", "resp_1", "completed"),
    Format.GEMINI: (CacheUsage(uncached=87), 99, "gemini-3-flash-preview", "r1", "STOP"),
    Format.BEDROCK: (CacheUsage(uncached=22, read=2_492), 13, "", "", "end_turn"),
}


@pytest.mark.parametrize(("api_format", "stream"), STREAMS)
def test_a_whole_stream_has_its_usage_and_its_end(api_format: Format, stream: bytes) -> None:
    reader = read(api_format, stream)

    assert reader.usage is not None
    found = (reader.usage.cache, reader.usage.output_tokens, reader.model, reader.id, reader.stop_reason)
    assert found == EXPECTED[api_format]
    assert reader.is_complete
    assert reader.error is None


@pytest.mark.parametrize(("api_format", "stream"), STREAMS)
@settings(max_examples=limit_examples(25))
@given(at=cuts)
def test_chunking_does_not_change_the_result(api_format: Format, stream: bytes, at: list[int]) -> None:
    assert told(read(api_format, stream, at)) == told(read(api_format, stream))


@pytest.mark.parametrize(("api_format", "stream"), STREAMS)
def test_a_stream_has_ended_with_its_last_event_and_not_before(api_format: Format, stream: bytes) -> None:
    reader = StreamReader(api_format)
    for byte in stream[:-1]:
        reader.feed(bytes([byte]))
        assert not reader.has_ended
    reader.feed(stream[-1:])

    assert reader.has_ended is (api_format is not Format.GEMINI)


@pytest.mark.parametrize(("api_format", "stream"), STREAMS)
def test_a_stream_that_breaks_off_is_not_complete(api_format: Format, stream: bytes) -> None:
    reader = read(api_format, stream[: len(stream) // 3])

    assert not reader.is_complete
    assert reader.stop_reason == ""


@pytest.mark.parametrize("api_format", Format)
@settings(max_examples=limit_examples(40))
@given(
    stream=st.binary(max_size=80),
    at=cuts,
    opening=st.sampled_from([b"", b"data: {", b"[{", b"data: [DONE", b"[]]"]),
)
def test_bytes_that_are_no_stream_tell_nothing(
    api_format: Format, stream: bytes, at: list[int], opening: bytes
) -> None:
    assert read(api_format, opening + stream, at).usage is None


HELD = ("message", "usage", "delta", "choices", "error", "response", "candidates", "usageMetadata", "x_groq")
ODD: list[Any] = [
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
@pytest.mark.parametrize("name", HELD)
def test_an_event_of_a_wrong_shape_is_passed_over(api_format: Format, name: str) -> None:
    kinds = ("message_start", "message_delta", "response.completed", "error")
    for odd in ODD:
        reader = read(
            api_format, events(*({"type": kind, name: odd, "id": odd, "model": odd} for kind in kinds))
        )

        assert reader.usage is None
        assert (reader.id, reader.model) in (("", ""), ("x", "x"))


@pytest.mark.slow
@pytest.mark.parametrize("api_format", Format)
def test_nesting_near_the_recursion_limit_does_no_harm(api_format: Format) -> None:
    for depth in range(100, 1_100, 25):
        deep = '{"a":' + "[" * depth + "]" * depth + "}"
        held = ",".join(f'"{name}":{deep}' for name in HELD)
        for kind in ("message_start", "message_delta", "response.completed"):
            message = f'"message":{{"usage":{deep}}},"usage":{deep}'
            read(api_format, f'data: {{"type":"{kind}",{held},{message}}}\n\n'.encode())
        read(api_format, frame(b"metadata", f'{{"usage":{deep}}}'.encode()))


def test_the_last_event_needs_no_empty_line_after_it() -> None:
    for api_format, stream in (
        (Format.ANTHROPIC, ANTHROPIC),
        (Format.CHAT, CHAT),
        (Format.RESPONSES, RESPONSES),
    ):
        assert told(read(api_format, stream.rstrip(b"\n"))) == told(read(api_format, stream))


def test_the_later_numbers_of_anthropic_win_but_a_zero_unsays_nothing() -> None:
    def usage(start: dict[str, Any], end: dict[str, Any]) -> CacheUsage:
        started = {"type": "message_start", "message": {**MESSAGE, "usage": start}}
        reader = read(Format.ANTHROPIC, events(started, {**ANTHROPIC_END, "usage": end}))
        assert reader.usage is not None
        return reader.usage.cache

    grown = {"input_tokens": 40, "cache_read_input_tokens": 900, "cache_creation_input_tokens": None}
    emptied = {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 7}

    assert usage({"input_tokens": 4}, grown) == CacheUsage(uncached=40, read=900)
    assert usage(START_USAGE, {"input_tokens": 5, "cache_read_input_tokens": None}).read == 90
    assert usage({"input_tokens": 0, "output_tokens": 0}, grown) == CacheUsage(uncached=40, read=900)
    assert usage(START_USAGE, emptied) == WRITTEN
    assert usage({"input_tokens": 4}, {"output_tokens": 9, "iterations": [
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
    reader = read(Format.CHAT, b": OPENROUTER PROCESSING\n\n" + events(chunk("Hi"), chunk("", "stop", **last)))

    assert reader.usage is not None
    assert (reader.usage.cache.input_tokens, reader.usage.cache.read) == (2_006, read_tokens)
    assert reader.is_complete  # not every host says [DONE]


def test_moonshot_puts_usage_in_the_choice() -> None:
    last = chunk("", "stop")
    last["choices"][0]["usage"] = {"prompt_tokens": 19, "completion_tokens": 13, "cached_tokens": 9}
    reader = read(Format.CHAT, events(chunk("Hi"), last, "[DONE]"))

    assert reader.usage is not None
    assert reader.usage.cache == CacheUsage(uncached=10, read=9)


OVERLOADED = {"type": "overloaded_error", "message": "Overloaded"}


@pytest.mark.parametrize(
    ("api_format", "stream", "error"),
    [
        (
            Format.ANTHROPIC,
            events(ANTHROPIC_START, {"type": "error", "error": OVERLOADED}),
            StreamError("overloaded_error", "Overloaded"),
        ),
        (
            Format.CHAT,
            events(chunk("Hi"), chunk("", "error", error={"code": 502, "message": "gone"}), "[DONE]"),
            StreamError("502", "gone"),
        ),
        (Format.CHAT, events({"error": "no more memory"}), StreamError("", "no more memory")),
        (
            Format.RESPONSES,
            events(RESPONSES_START[0], {"type": "error", "code": "server_error", "message": "sorry"}),
            StreamError("server_error", "sorry"),
        ),
        (
            Format.RESPONSES,
            events(
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
    reader = read(api_format, stream)

    assert reader.error == error
    assert not reader.is_complete


def test_a_truncated_answer_has_its_stop_reason() -> None:
    cut_short = response_end("incomplete", incomplete_details={"reason": "max_output_tokens"})
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}

    assert read(Format.RESPONSES, events(*RESPONSES_START, cut_short)).stop_reason == "max_output_tokens"
    assert read(Format.GEMINI, events(blocked)).stop_reason == "SAFETY"


@settings(max_examples=limit_examples(60))
@given(at=cuts, before=st.sampled_from([b"", b": hello\n\n", b"\xef\xbb\xbf", b"event: x\r\n"]))
def test_only_the_extra_chunk_of_usage_is_stripped(at: list[int], before: bytes) -> None:
    extra = events(USAGE_CHUNK)
    azure = {**chunk(), "choices": [], "prompt_filter_results": [], "usage": None}
    with_usage = chunk("", "stop", usage=CHAT_USAGE)
    rest = (before + events(azure, chunk('"usage"', usage=None), with_usage), events("[DONE]") + b": bye")

    taken = UsageChunkFilter()
    passed = b"".join(map(taken.feed, cut(extra.join(rest), at))) + taken.end()

    assert passed == b"".join(rest)


@settings(max_examples=limit_examples(60))
@given(stream=st.binary(max_size=60), at=cuts)
def test_what_is_no_stream_passes_the_filter_unchanged(stream: bytes, at: list[int]) -> None:
    taken = UsageChunkFilter()

    assert b"".join(map(taken.feed, cut(stream, at))) + taken.end() == stream


def test_the_filter_passes_an_event_as_soon_as_it_is_whole() -> None:
    taken, first, second = UsageChunkFilter(), events(chunk("a")), events(chunk("b"))
    assert taken.feed(first + second[:9]) == first
    assert taken.feed(second[9:]) == second


# For each last word in a text, what else matters was looked for in all that came behind it.
@pytest.mark.parametrize(("word", "chunk_bytes"), [("a", 40), ("[DONE]", 10**9)])
def test_a_long_stream_takes_time_in_proportion(word: str, chunk_bytes: int) -> None:
    def seconds(count: int) -> float:
        stream = events(*[chunk(word)] * count)
        started = time.process_time()
        read(Format.CHAT, stream, list(range(0, len(stream), chunk_bytes)))
        return time.process_time() - started

    assert min(seconds(3_000) for _ in range(2)) < 30 * min(seconds(300) for _ in range(2))


def chunk_frame(said: object) -> bytes:
    """A provider's event in an AWS frame, as InvokeModel streams it."""
    packed = b64encode(json.dumps(said).encode())
    return frame(b"chunk", b'{"bytes":"%b","p":"abc"}' % packed)


@given(cuts)
def test_an_anthropic_stream_in_frames_is_read_like_one_in_events(at: list[int]) -> None:
    said = [
        ANTHROPIC_START,
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
        {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 4}},
    ]
    reader = StreamReader(Format.ANTHROPIC, is_framed=True)
    for chunk in cut(b"".join(map(chunk_frame, said)), at):
        reader.feed(chunk)
    reader.end()

    assert told(reader) == told(read(Format.ANTHROPIC, events(*said)))
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
