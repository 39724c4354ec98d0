"""A request that a provider accepts is still accepted with an inserted text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.model import Area, Edit, Format, InsertParts, Place, ReplaceText, Text
from foveate.sandbox import validate_request

NEW_TEXT = Text("new")


def insert_at(*place: Any) -> InsertParts:
    return InsertParts(place=Place(*place), parts=(NEW_TEXT,), reason="", role="user")


def apply_to(api_format: Format, body: dict[str, Any], *edits: Edit) -> Any:
    return json.loads(formats.apply_edits(formats.parse_request(body, api_format), edits))


BLOCK = {"type": "text", "text": "new"}
USER_MESSAGE = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_text_inserted_next_to_a_blank_string_replaces_it(blank: str, index: int) -> None:
    """Anthropic accepts such a system prompt as a string, and rejects it as a block."""
    empty = {"role": "user", "content": blank}
    chat = {"messages": [empty]}

    assert apply_to(Format.ANTHROPIC, {"system": blank, "messages": []}, insert_at(Area.SYSTEM, index))[
        "system"
    ] == [BLOCK]
    assert apply_to(Format.CHAT, chat, insert_at(Area.MESSAGES, 0, index))["messages"][0]["content"] == [BLOCK]
    assert apply_to(Format.RESPONSES, {"input": blank}, insert_at(Area.MESSAGES, 0, index))["input"] == [
        {"role": "user", "content": [{"type": "input_text", "text": "new"}]}
    ]
    gemini = apply_to(
        Format.GEMINI, {"systemInstruction": blank, "contents": []}, insert_at(Area.SYSTEM, index)
    )
    assert gemini["systemInstruction"] == {"parts": [{"text": "new"}]}


def test_a_text_inserted_next_to_an_emptied_or_filled_string_is_placed_by_the_new_string() -> None:
    body = {"system": "old", "messages": []}
    place = Place(Area.SYSTEM, 0)
    clear, fill = (ReplaceText(place=place, text=text, reason="") for text in ("", "now"))

    assert apply_to(Format.ANTHROPIC, body, clear, insert_at(Area.SYSTEM, 1))["system"] == [BLOCK]
    assert apply_to(Format.ANTHROPIC, {**body, "system": ""}, fill, insert_at(Area.SYSTEM, 0))["system"] == [
        BLOCK,
        {"type": "text", "text": "now"},
    ]


texts = st.sampled_from(("", " ", "a", "b c", "\n"))
TEXT_TYPES = {Format.ANTHROPIC: "text", Format.CHAT: "text", Format.RESPONSES: "input_text"}


@st.composite
def text_requests(draw: st.DrawFn, api_format: Format) -> dict[str, Any]:
    """Generate a request of strings and text blocks, many of which are accepted."""
    block = st.fixed_dictionaries({"type": st.just(TEXT_TYPES[api_format]), "text": texts})
    content = texts | st.lists(block, max_size=2)
    roles = ["user", "user", "system"] if api_format is Format.CHAT else ["user"]
    message = st.fixed_dictionaries({"role": st.sampled_from(roles), "content": content})
    messages: Any = draw(st.lists(message, min_size=1, max_size=2))
    match api_format:
        case Format.ANTHROPIC:
            system = draw(st.fixed_dictionaries({}, optional={"system": content}))
            return {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages, **system}
        case Format.CHAT:
            return {"model": "gpt-4o", "messages": messages}
        case _:
            system = draw(st.fixed_dictionaries({}, optional={"instructions": texts}))
            return {"model": "gpt-4o", "input": draw(st.just(messages) | texts), **system}


@pytest.mark.parametrize("api_format", list(TEXT_TYPES))
@given(st.data())
def test_an_accepted_request_is_accepted_with_an_inserted_text(api_format: Format, data: st.DataObject) -> None:
    request = formats.parse_request(data.draw(text_requests(api_format)), api_format)
    places = [Place(Area.MESSAGES, number) for number in range(len(request.messages) + 1)]
    for block in formats.request_blocks(request):
        place = block.place
        places.append(place)
        next_place = (place.index + 1, None) if place.block is None else (place.index, place.block + 1)
        places.append(Place(place.area, *next_place))
    edit = InsertParts(place=data.draw(st.sampled_from(places)), parts=(NEW_TEXT,), reason="", role="user")

    if validate_request(request) is None:
        assert validate_request(formats.parse_request(formats.apply_edits(request, [edit]), api_format)) is None
