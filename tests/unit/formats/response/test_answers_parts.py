"""Parts that identify an answer, in a response and in a later request."""

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


def stream(*events: dict[str, Any]) -> bytes:
    return b"".join(b"event: x\ndata: " + json.dumps(event).encode() + b"\n\n" for event in events)


def streamed_parts(api_format: Format, answer: bytes, *, chunk_bytes: int = 1 << 20) -> AnswerParts:
    """The parts of a stream in chunks of `size`."""
    parts = StreamPartCollector(api_format)
    for start in range(0, len(answer), chunk_bytes):
        parts.feed(answer[start : start + chunk_bytes])
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
ANTHROPIC_STREAM = stream(
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
CHAT_STREAM = stream(
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
RESPONSES_STREAM = stream(
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
    ("api_format", "whole", "streamed", "sent_back", "id_", "call"),
    [
        (Format.ANTHROPIC, ANTHROPIC, ANTHROPIC_STREAM, [ANTHROPIC], "msg_1", "toolu_1"),
        (Format.CHAT, CHAT, CHAT_STREAM, [CHAT["choices"][0]["message"]], "c1", "call_1"),  # type: ignore[index]
        (Format.RESPONSES, RESPONSES, RESPONSES_STREAM, ITEMS, "resp_1", "call_1"),
        (
            Format.GEMINI,
            GEMINI,
            stream(*GEMINI_CHUNKS),
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
def test_an_answer_has_the_same_parts_whole_streamed_and_sent_back(
    api_format: Format, whole: dict[str, Any], streamed: bytes, sent_back: list[Any], id_: str, call: str
) -> None:
    parts = AnswerParts(id=id_, tool_calls=(call,), text="Iwilllook.")

    assert read_answer_parts(api_format, json.dumps(whole).encode()) == parts
    assert streamed_parts(api_format, streamed) == parts
    again = read_message_parts(api_format, [json.dumps(message).encode() for message in sent_back])
    assert (again.tool_calls, again.text) == (parts.tool_calls, parts.text)


@pytest.mark.parametrize(
    "answer",
    [b"", b"no json", b"[]", b"data: {broken\n\n", b'data: {"content": "\xff"}\n\n', b'{"choices": 7}'],
)
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("api_format", list(Format))
def test_what_cannot_be_read_has_no_parts(api_format: Format, answer: bytes, streams: bool) -> None:
    read = streamed_parts if streams else read_answer_parts

    assert read(api_format, answer) == AnswerParts()


def test_a_stream_that_was_cut_off_has_the_parts_that_came() -> None:
    assert streamed_parts(Format.CHAT, CHAT_STREAM[:-10]).tool_calls == ("call_1",)


CHAT_THINKING = stream({"id": "c1", "choices": [{"delta": {"content": None, "reasoning_content": "hm "}}]})
ANTHROPIC_THINKING = stream(
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm " * 10}}
)
GEMINI_THINKING = stream(
    {"responseId": "r1", "candidates": [{"content": {"role": "model", "parts": GEMINI_PARTS[:1]}}]}
)


@pytest.mark.parametrize("chunk_bytes", [7, 1000, 100_000])
@pytest.mark.parametrize(
    ("api_format", "thinking", "answer"),
    [
        (Format.CHAT, CHAT_THINKING, CHAT_STREAM),
        (Format.ANTHROPIC, ANTHROPIC_THINKING, ANTHROPIC_STREAM),
        (Format.GEMINI, GEMINI_THINKING, stream(*GEMINI_CHUNKS)),
        (Format.RESPONSES, stream({"type": "response.in_progress", "tools": "x" * 400}), RESPONSES_STREAM),
        (Format.BEDROCK, frame(b"contentBlockDelta", b'{"delta":{"reasoningContent":{"text":"hm"}}}'), FRAMES),
    ],
)
def test_thinking_of_any_length_before_the_answer_hides_none_of_its_parts(
    api_format: Format, thinking: bytes, answer: bytes, chunk_bytes: int
) -> None:
    found = streamed_parts(api_format, thinking * 2000 + answer, chunk_bytes=chunk_bytes)

    assert (found.tool_calls, found.text) == (streamed_parts(api_format, answer).tool_calls, "Iwilllook.")


def test_a_tool_call_after_a_long_text_is_found() -> None:
    text = stream({"id": "c1", "choices": [{"delta": {"content": "word "}}]})

    found = streamed_parts(Format.CHAT, text * 5000 + CHAT_STREAM, chunk_bytes=1000)

    assert (found.tool_calls, found.text) == (("call_1",), "word" * (MAX_TEXT_CHARS // 4))


def test_blanks_do_not_count_towards_the_text_that_is_compared() -> None:
    message = json.dumps({"role": "assistant", "content": "a" + " " * 50_000 + "b c" * 1000}).encode()

    assert read_message_parts(Format.CHAT, [message]).text == ("a" + "bc" * 1000)[:MAX_TEXT_CHARS]


def test_a_long_text_is_read_in_about_the_time_of_parsing_it() -> None:
    message = json.dumps({"role": "assistant", "content": "word " * 1_000_000}).encode()

    def seconds(read: Callable[[], object]) -> float:
        start = process_time()
        read()
        return process_time() - start

    reading = min(seconds(lambda: read_message_parts(Format.CHAT, [message])) for _ in range(5))
    parsing = min(seconds(lambda: json.loads(message)) for _ in range(5))
    assert reading < 3 * parsing


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
