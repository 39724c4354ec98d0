"""Texts joined to a plain string, so that no list is created."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.model import Area, Format, InsertParts, Place, Text


def join_text(place: Place, text: str) -> InsertParts:
    return InsertParts(place=place, parts=(Text(text),), reason="a test", join_texts=True)


def apply_to(body: dict[str, Any], api_format: Format, *edits: InsertParts) -> dict[str, Any]:
    edited = formats.apply_edits(formats.parse_request(json.dumps(body).encode(), api_format), edits)
    edited_body: dict[str, Any] = json.loads(edited)
    return edited_body


def test_texts_join_a_plain_string_each_after_a_blank_line() -> None:
    place = Place(Area.MESSAGES, 0, 1)

    edited = apply_to(
        {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Hi"}]},
        Format.CHAT,
        join_text(place, "one"),
        join_text(place, "two"),
    )

    assert edited["messages"] == [{"role": "user", "content": "Hi\n\none\n\ntwo"}]


def test_a_list_of_blocks_stays_one() -> None:
    blocks = [{"type": "text", "text": "Hi"}]

    edited = apply_to(
        {"model": "gpt-4.1", "messages": [{"role": "user", "content": blocks}]},
        Format.CHAT,
        join_text(Place(Area.MESSAGES, 0, 1), "one"),
    )

    assert edited["messages"][0]["content"] == [*blocks, {"type": "text", "text": "one"}]


def test_inserted_messages_are_joined() -> None:
    place = Place(Area.MESSAGES, 1)

    edited = apply_to(
        {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Hi"}]},
        Format.CHAT,
        join_text(place, "one"),
        join_text(place, "two"),
    )

    assert edited["messages"][1:] == [{"role": "user", "content": "one\n\ntwo"}]


def test_an_input_that_is_one_string_stays_a_string() -> None:
    edited = apply_to(
        {"model": "gpt-4.1", "input": "Hi"}, Format.RESPONSES, join_text(Place(Area.MESSAGES, 0, 1), "one")
    )

    assert edited["input"] == "Hi\n\none"


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_blank_string_is_replaced(blank: str) -> None:
    edited = apply_to(
        {"model": "gpt-4.1", "messages": [{"role": "user", "content": blank}]},
        Format.CHAT,
        join_text(Place(Area.MESSAGES, 0, 1), "one"),
    )

    assert edited["messages"] == [{"role": "user", "content": "one"}]


@given(text=st.text(min_size=1), added_text=st.text(min_size=1), is_input=st.booleans())
def test_the_original_text_is_always_the_beginning_byte_for_byte(
    text: str, added_text: str, is_input: bool
) -> None:
    body: dict[str, Any] = (
        {"model": "m", "input": text} if is_input else {"messages": [{"role": "user", "content": text}]}
    )
    api_format = Format.RESPONSES if is_input else Format.CHAT
    request = formats.parse_request(json.dumps(body).encode("utf-8", "surrogatepass"), api_format)

    edited_bytes = formats.apply_edits(request, (join_text(Place(Area.MESSAGES, 0, 1), added_text),))

    edited = json.loads(edited_bytes)
    result = edited["input"] if is_input else edited["messages"][0]["content"]
    assert result == (f"{text}\n\n{added_text}" if text.strip() else added_text)
    if text.strip():
        assert edited_bytes.startswith(request.body[: request.body.rindex(b'"')])
