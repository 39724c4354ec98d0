"""Texts joined to a plain string, so that no list is created."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.model import Area, Format, InsertParts, Place, Text
from tests.support.harness.example_limits import limit_examples


def joining(place: Place, text: str) -> InsertParts:
    return InsertParts(place=place, parts=(Text(text),), reason="a test", join_texts=True)


def after(body: dict[str, Any], api_format: Format, *edits: InsertParts) -> dict[str, Any]:
    written = formats.apply_edits(formats.parse_request(json.dumps(body).encode(), api_format), edits)
    found: dict[str, Any] = json.loads(written)
    return found


def test_texts_join_a_plain_string_each_after_a_blank_line() -> None:
    place = Place(Area.MESSAGES, 0, 1)

    found = after(
        {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Hi"}]},
        Format.CHAT,
        joining(place, "one"),
        joining(place, "two"),
    )

    assert found["messages"] == [{"role": "user", "content": "Hi\n\none\n\ntwo"}]


def test_a_list_of_blocks_stays_one() -> None:
    blocks = [{"type": "text", "text": "Hi"}]

    found = after(
        {"model": "gpt-4.1", "messages": [{"role": "user", "content": blocks}]},
        Format.CHAT,
        joining(Place(Area.MESSAGES, 0, 1), "one"),
    )

    assert found["messages"][0]["content"] == [*blocks, {"type": "text", "text": "one"}]


def test_inserted_messages_are_joined() -> None:
    place = Place(Area.MESSAGES, 1)

    found = after(
        {"model": "gpt-4.1", "messages": [{"role": "user", "content": "Hi"}]},
        Format.CHAT,
        joining(place, "one"),
        joining(place, "two"),
    )

    assert found["messages"][1:] == [{"role": "user", "content": "one\n\ntwo"}]


def test_an_input_that_is_one_string_stays_one() -> None:
    found = after(
        {"model": "gpt-4.1", "input": "Hi"}, Format.RESPONSES, joining(Place(Area.MESSAGES, 0, 1), "one")
    )

    assert found["input"] == "Hi\n\none"


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_string_that_says_nothing_gives_way(blank: str) -> None:
    found = after(
        {"model": "gpt-4.1", "messages": [{"role": "user", "content": blank}]},
        Format.CHAT,
        joining(Place(Area.MESSAGES, 0, 1), "one"),
    )

    assert found["messages"] == [{"role": "user", "content": "one"}]


@settings(max_examples=limit_examples(60), deadline=None)
@given(said=st.text(min_size=1), added=st.text(min_size=1), as_input=st.booleans())
def test_what_stood_there_is_always_the_beginning_byte_for_byte(said: str, added: str, as_input: bool) -> None:
    body: dict[str, Any] = (
        {"model": "m", "input": said} if as_input else {"messages": [{"role": "user", "content": said}]}
    )
    api_format = Format.RESPONSES if as_input else Format.CHAT
    request = formats.parse_request(json.dumps(body).encode("utf-8", "surrogatepass"), api_format)

    written = formats.apply_edits(request, (joining(Place(Area.MESSAGES, 0, 1), added),))

    found = json.loads(written)
    text = found["input"] if as_input else found["messages"][0]["content"]
    assert text == (f"{said}\n\n{added}" if said.strip() else added)
    if said.strip():
        assert written.startswith(request.body[: request.body.rindex(b'"')])
