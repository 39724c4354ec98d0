"""Parts that identify a response, in the response itself and in a later request."""

import json
from base64 import b64encode
from collections.abc import Callable
from time import process_time
from typing import Any

import pytest

from foveate.formats.response.answers import (
    MAX_TEXT_CHARS,
    AnswerParts,
    StreamPartCollector,
    is_from_model,
    read_answer_parts,
    read_message_parts,
)
from foveate.model import Format
from tests.support.scenarios.streams import frame


def encode_stream(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events)


def streamed_parts(api_format: Format, response: bytes, *, chunk_bytes: int = 1 << 20) -> AnswerParts:
    """Read the parts of a stream in chunks of `chunk_bytes`."""
    parts = StreamPartCollector(api_format)
    for start in range(0, len(response), chunk_bytes):
        parts.feed(response[start : start + chunk_bytes])
    return parts.end()


ANTHROPIC = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I will look."},
        {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
    ],
}
ANTHROPIC_STREAM = encode_stream(
    {"type": "message_start", "message": {"id": "msg_1", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I will "}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "look."}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "toolu_1"}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
)
CALLS = [{"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}]
CHAT = {
    "id": "c1",
    "choices": [{"message": {"role": "assistant", "content": "I will look.", "tool_calls": CALLS}}],
}
CHAT_STREAM = encode_stream(
    {"id": "c1", "choices": [{"delta": {"role": "assistant", "content": "I will "}}]},
    {"id": "c1", "choices": [{"delta": {"content": "look."}}]},
    {"id": "c1", "choices": [{"delta": {"tool_calls": [{"index": 0, "id": "call_1"}]}}]},
    {"id": "c1", "choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}}]},
)
ITEMS = [
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I will look."}]},
    {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"},
]
RESPONSES = {"id": "resp_1", "object": "response", "output": ITEMS}
RESPONSES_STREAM = encode_stream(
    {"type": "response.created", "response": {"id": "resp_1"}},
    {"type": "response.output_text.delta", "delta": "I will "},
    {"type": "response.output_text.delta", "delta": "look."},
    {"type": "response.output_item.done", "item": ITEMS[1]},
    {"type": "response.output_item.added", "item": ITEMS[2]},
    {"type": "response.output_item.done", "item": ITEMS[2]},
)
GEMINI_PARTS = [
    {"text": "Hm.", "thought": True},
    {"text": "I will look."},
    {"functionCall": {"name": "read", "args": {}}, "thoughtSignature": "c2ln+/=="},
]
GEMINI = {"responseId": "r1", "candidates": [{"content": {"role": "model", "parts": GEMINI_PARTS}}]}
GEMINI_CHUNKS = [
    {"responseId": "r1", "candidates": [{"content": {"role": "model", "parts": [{"text": "I will "}]}}]},
    {"responseId": "r1", "candidates": [{"content": {"role": "model", "parts": [{"text": "look."}]}}]},
    {"responseId": "r1", "candidates": [{"content": {"role": "model", "parts": GEMINI_PARTS[2:]}}]},
]
CONTENT = [{"text": "I will look."}, {"toolUse": {"toolUseId": "tooluse_1", "name": "read", "input": {}}}]
BEDROCK = {"output": {"message": {"role": "assistant", "content": CONTENT}}}
FRAMES = (
    frame(b"messageStart", b'{"role":"assistant"}')
    + frame(b"contentBlockDelta", b'{"delta":{"text":"I will "},"contentBlockIndex":0}')
    + frame(b"contentBlockDelta", b'{"delta":{"text":"look."},"contentBlockIndex":0}')
    + frame(b"contentBlockStart", b'{"start":{"toolUse":{"toolUseId":"tooluse_1"}},"contentBlockIndex":1}')
)


def chunk_frame(event: dict[str, Any]) -> bytes:
    return frame(b"chunk", json.dumps({"bytes": b64encode(json.dumps(event).encode()).decode()}).encode())


ANTHROPIC_FRAMES = b"".join(
    chunk_frame(event)
    for event in (
        {"type": "message_start", "message": {"id": "msg_1", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "I will look."}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "toolu_1"}},
    )
)


@pytest.mark.parametrize(
    ("api_format", "response", "stream_bytes", "later_messages", "id_", "call"),
    [
        (Format.ANTHROPIC, ANTHROPIC, ANTHROPIC_STREAM, [ANTHROPIC], "msg_1", "toolu_1"),
        (Format.CHAT, CHAT, CHAT_STREAM, [CHAT["choices"][0]["message"]], "c1", "call_1"),
        (Format.RESPONSES, RESPONSES, RESPONSES_STREAM, ITEMS, "resp_1", "call_1"),
        (
            Format.GEMINI,
            GEMINI,
            encode_stream(*GEMINI_CHUNKS),
            [{"role": "model", "parts": GEMINI_PARTS[1:]}],
            "r1",
            "c2ln",
        ),
        (
            Format.GEMINI,
            GEMINI,
            json.dumps(GEMINI_CHUNKS).encode(),
            [{"role": "model", "parts": GEMINI_PARTS}],
            "r1",
            "c2ln",
        ),
        (Format.BEDROCK, BEDROCK, FRAMES, [{"role": "assistant", "content": CONTENT}], "", "tooluse_1"),
        (Format.ANTHROPIC, ANTHROPIC, ANTHROPIC_FRAMES, [ANTHROPIC], "msg_1", "toolu_1"),
    ],
)
def test_a_response_has_the_same_parts_whole_streamed_and_in_a_later_request(
    api_format: Format,
    response: dict[str, Any],
    stream_bytes: bytes,
    later_messages: list[Any],
    id_: str,
    call: str,
) -> None:
    parts = AnswerParts(id=id_, tool_calls=(call,), text="Iwilllook.")

    assert read_answer_parts(api_format, json.dumps(response).encode()) == parts
    assert streamed_parts(api_format, stream_bytes) == parts
    later_parts = read_message_parts(api_format, [json.dumps(message).encode() for message in later_messages])
    assert (later_parts.tool_calls, later_parts.text) == (parts.tool_calls, parts.text)


@pytest.mark.parametrize(
    "response",
    [b"", b"no json", b"[]", b"data: {broken\n\n", b'data: {"content": "\xff"}\n\n', b'{"choices": 7}'],
)
@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("api_format", list(Format))
def test_an_unreadable_response_has_no_parts(api_format: Format, response: bytes, is_stream: bool) -> None:
    read_parts = streamed_parts if is_stream else read_answer_parts

    assert read_parts(api_format, response) == AnswerParts()


def test_a_truncated_stream_has_the_parts_received_so_far() -> None:
    assert streamed_parts(Format.CHAT, CHAT_STREAM[:-10]).tool_calls == ("call_1",)


CHAT_THINKING = encode_stream(
    {"id": "c1", "choices": [{"delta": {"content": None, "reasoning_content": "hm "}}]}
)
ANTHROPIC_THINKING = encode_stream(
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm " * 10}}
)
GEMINI_THINKING = encode_stream(
    {"responseId": "r1", "candidates": [{"content": {"role": "model", "parts": GEMINI_PARTS[:1]}}]}
)


@pytest.mark.parametrize("chunk_bytes", [7, 1000, 100_000])
@pytest.mark.parametrize(
    ("api_format", "thinking", "response"),
    [
        (Format.CHAT, CHAT_THINKING, CHAT_STREAM),
        (Format.ANTHROPIC, ANTHROPIC_THINKING, ANTHROPIC_STREAM),
        (Format.GEMINI, GEMINI_THINKING, encode_stream(*GEMINI_CHUNKS)),
        (
            Format.RESPONSES,
            encode_stream({"type": "response.in_progress", "tools": "x" * 400}),
            RESPONSES_STREAM,
        ),
        (Format.BEDROCK, frame(b"contentBlockDelta", b'{"delta":{"reasoningContent":{"text":"hm"}}}'), FRAMES),
    ],
)
def test_thinking_of_any_length_before_the_text_hides_none_of_its_parts(
    api_format: Format, thinking: bytes, response: bytes, chunk_bytes: int
) -> None:
    parts = streamed_parts(api_format, thinking * 2000 + response, chunk_bytes=chunk_bytes)

    assert (parts.tool_calls, parts.text) == (streamed_parts(api_format, response).tool_calls, "Iwilllook.")


def test_a_tool_call_after_a_long_text_is_found() -> None:
    text = encode_stream({"id": "c1", "choices": [{"delta": {"content": "word "}}]})

    parts = streamed_parts(Format.CHAT, text * 5000 + CHAT_STREAM, chunk_bytes=1000)

    assert (parts.tool_calls, parts.text) == (("call_1",), "word" * (MAX_TEXT_CHARS // 4))


def test_spaces_do_not_count_towards_the_compared_text() -> None:
    message = json.dumps({"role": "assistant", "content": "a" + " " * 50_000 + "b c" * 1000}).encode()

    assert read_message_parts(Format.CHAT, [message]).text == ("a" + "bc" * 1000)[:MAX_TEXT_CHARS]


def test_a_long_text_is_read_in_about_the_time_of_parsing_it() -> None:
    message = json.dumps({"role": "assistant", "content": "word " * 1_000_000}).encode()

    def measure_seconds(function: Callable[[], object]) -> float:
        start = process_time()
        function()
        return process_time() - start

    read_seconds = min(measure_seconds(lambda: read_message_parts(Format.CHAT, [message])) for _ in range(5))
    parse_seconds = min(measure_seconds(lambda: json.loads(message)) for _ in range(5))
    assert read_seconds < 3 * parse_seconds


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "assistant", "content": "x"}, True),
        ({"role": "user", "content": "x"}, False),
        ({"type": "function_call", "call_id": "c"}, True),
        ({"type": "function_call_output", "call_id": "c"}, False),
        ({"role": 7}, False),
    ],
)
def test_messages_of_a_model_are_recognized_by_role_or_type(message: dict[str, Any], expected: bool) -> None:
    assert is_from_model(json.dumps(message).encode()) is expected
