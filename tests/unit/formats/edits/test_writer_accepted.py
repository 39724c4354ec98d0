"""A request that a provider accepts is still accepted with an inserted text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.model import Area, Edit, Format, InsertParts, Place, ReplaceText, Text
from foveate.sandbox import validate_request
from tests.support.harness.example_limits import limit_examples

NEW = Text("new")


def insert(*place: Any) -> InsertParts:
    return InsertParts(place=Place(*place), parts=(NEW,), reason="", role="user")


def written(api_format: Format, body: dict[str, Any], *edits: Edit) -> Any:
    return json.loads(formats.apply_edits(formats.parse_request(body, api_format), edits))


BLOCK = {"type": "text", "text": "new"}
HI = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_a_text_beside_a_string_that_says_nothing_stands_alone(blank: str, at: int) -> None:
    """Anthropic accepts such a system prompt as a string, and rejects it as a block."""
    empty = {"role": "user", "content": blank}
    chat = {"messages": [empty]}

    assert written(Format.ANTHROPIC, {"system": blank, "messages": []}, insert(Area.SYSTEM, at))["system"] == [
        BLOCK
    ]
    assert written(Format.CHAT, chat, insert(Area.MESSAGES, 0, at))["messages"][0]["content"] == [BLOCK]
    assert written(Format.RESPONSES, {"input": blank}, insert(Area.MESSAGES, 0, at))["input"] == [
        {"role": "user", "content": [{"type": "input_text", "text": "new"}]}
    ]
    gemini = written(Format.GEMINI, {"systemInstruction": blank, "contents": []}, insert(Area.SYSTEM, at))
    assert gemini["systemInstruction"] == {"parts": [{"text": "new"}]}


def test_a_text_beside_a_string_that_is_emptied_or_filled_stands_as_it_would_have() -> None:
    body = {"system": "old", "messages": []}
    place = Place(Area.SYSTEM, 0)
    emptied, filled = (ReplaceText(place=place, text=text, reason="") for text in ("", "now"))

    assert written(Format.ANTHROPIC, body, emptied, insert(Area.SYSTEM, 1))["system"] == [BLOCK]
    assert written(Format.ANTHROPIC, {**body, "system": ""}, filled, insert(Area.SYSTEM, 0))["system"] == [
        BLOCK,
        {"type": "text", "text": "now"},
    ]


texts = st.sampled_from(("", " ", "a", "b c", "\n"))
SPOKEN = {Format.ANTHROPIC: "text", Format.CHAT: "text", Format.RESPONSES: "input_text"}


@st.composite
def asked(draw: st.DrawFn, api_format: Format) -> dict[str, Any]:
    """A request of strings and text blocks, many of which are accepted."""
    block = st.fixed_dictionaries({"type": st.just(SPOKEN[api_format]), "text": texts})
    content = texts | st.lists(block, max_size=2)
    roles = ["user", "user", "system"] if api_format is Format.CHAT else ["user"]
    message = st.fixed_dictionaries({"role": st.sampled_from(roles), "content": content})
    said: Any = draw(st.lists(message, min_size=1, max_size=2))
    match api_format:
        case Format.ANTHROPIC:
            system = draw(st.fixed_dictionaries({}, optional={"system": content}))
            return {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": said, **system}
        case Format.CHAT:
            return {"model": "gpt-4o", "messages": said}
        case _:
            system = draw(st.fixed_dictionaries({}, optional={"instructions": texts}))
            return {"model": "gpt-4o", "input": draw(st.just(said) | texts), **system}


@pytest.mark.parametrize("api_format", list(SPOKEN))
@given(st.data())
@settings(max_examples=limit_examples(60))
def test_a_request_that_is_taken_is_taken_with_a_text_more(api_format: Format, data: st.DataObject) -> None:
    request = formats.parse_request(data.draw(asked(api_format)), api_format)
    places = [Place(Area.MESSAGES, number) for number in range(len(request.messages) + 1)]
    for block in formats.request_blocks(request):
        place = block.place
        places.append(place)
        behind = (place.index + 1, None) if place.block is None else (place.index, place.block + 1)
        places.append(Place(place.area, *behind))
    edit = InsertParts(place=data.draw(st.sampled_from(places)), parts=(NEW,), reason="", role="user")

    if validate_request(request) is None:
        assert validate_request(formats.parse_request(formats.apply_edits(request, [edit]), api_format)) is None
