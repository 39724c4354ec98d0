"""Texts of an answer, as a client sends them back."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.formats.response.answers import read_complete_texts


def whole(*blocks: dict[str, str], stop: str = "end_turn") -> bytes:
    return msgspec.json.encode({"content": blocks, "stop_reason": stop})


def streamed(*texts: str, stop: str = "end_turn", kind: str = "text") -> bytes:
    events: list[object] = [{"type": "message_start", "message": {}}]
    for index, text in enumerate(texts):
        started = {"type": kind, "text": ""} if kind == "text" else {"type": kind}
        events.append({"type": "content_block_start", "index": index, "content_block": started})
        for letter in text:
            delta = {"type": "text_delta", "text": letter}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events += [{"type": "message_delta", "delta": {"stop_reason": stop}}, {"type": "message_stop"}]
    return b"".join(b"event: x\ndata: " + msgspec.json.encode(event) + b"\n\n" for event in events)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), min_size=1, max_size=3))
def test_a_stream_says_what_the_whole_answer_says(texts: list[str]) -> None:
    said = whole(*({"type": "text", "text": text} for text in texts))

    assert read_complete_texts(said, streams=False) == tuple(texts)
    assert read_complete_texts(streamed(*texts), streams=True) == tuple(texts)


@pytest.mark.parametrize(
    ("answer", "streams"),
    [
        (whole({"type": "text", "text": "Yes."}, {"type": "tool_use", "id": "t"}), False),
        (whole({"type": "text", "text": "Yes."}, stop="max_tokens"), False),
        (whole({"type": "thinking", "thinking": "Hm."}), False),
        (whole(), False),
        (b"<html>", False),
        (streamed("Yes.", stop="tool_use"), True),
        (streamed("Yes.", kind="tool_use"), True),
        (streamed("Yes.")[:-120], True),
        (b"", True),
    ],
)
def test_what_is_more_than_text_or_was_cut_off_says_nothing_that_can_be_repeated(
    answer: bytes, streams: bool
) -> None:
    assert read_complete_texts(answer, streams=streams) == ()
