"""Texts of a response, as a client sends them in its next request."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.formats.response.answers import read_complete_texts


def response_body(*blocks: dict[str, str], stop_reason: str = "end_turn") -> bytes:
    return msgspec.json.encode({"content": blocks, "stop_reason": stop_reason})


def stream_body(*texts: str, stop_reason: str = "end_turn", kind: str = "text") -> bytes:
    events: list[object] = [{"type": "message_start", "message": {}}]
    for index, text in enumerate(texts):
        content_block = {"type": kind, "text": ""} if kind == "text" else {"type": kind}
        events.append({"type": "content_block_start", "index": index, "content_block": content_block})
        for letter in text:
            delta = {"type": "text_delta", "text": letter}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": stop_reason}}, {"type": "message_stop"}]
    return b"".join(b"event: x\ndata: " + msgspec.json.encode(event) + b"\n\n" for event in events)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1, max_size=3))
def test_a_stream_has_the_texts_of_the_complete_response(texts: list[str]) -> None:
    body = response_body(*({"type": "text", "text": text} for text in texts))

    assert read_complete_texts(body, streams=False) == tuple(texts)
    assert read_complete_texts(stream_body(*texts), streams=True) == tuple(texts)


@pytest.mark.parametrize(
    ("response", "is_stream"),
    [
        (response_body({"type": "text", "text": "Yes."}, {"type": "tool_use", "id": "t"}), False),
        (response_body({"type": "text", "text": "Yes."}, stop_reason="max_tokens"), False),
        (response_body({"type": "thinking", "thinking": "Hm."}), False),
        (response_body(), False),
        (b"<html>", False),
        (stream_body("Yes.", stop_reason="tool_use"), True),
        (stream_body("Yes.", kind="tool_use"), True),
        (stream_body("Yes.")[:-120], True),
        (b"", True),
    ],
)
def test_a_response_with_other_blocks_or_a_truncated_one_has_no_texts(response: bytes, is_stream: bool) -> None:
    assert read_complete_texts(response, streams=is_stream) == ()
