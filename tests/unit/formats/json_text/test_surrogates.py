"""Lone surrogates are read as the replacement character, and forwarded unchanged."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate import formats
from foveate.formats.json_text.surrogates import repair_surrogates
from foveate.model import Area, CacheBreakpoint, Format, Place, ReplaceText
from tests.support.harness.example_limits import limit_examples

pieces = st.lists(
    st.sampled_from(("\\ud83d", "\\uD83D", "\\ude00", "\\uDE00", "\\u00e9", "\\\\", '\\"', "a", "ud83d", "é")),
    max_size=8,
).map("".join)


def mended_one_by_one(text: str) -> str:
    """Oracle that goes through the escapes from the left."""
    made, at = "", 0
    while at < len(text):
        size = 1 if text[at] != "\\" else 6 if text[at + 1] == "u" else 2
        code = int(text[at + 2 : at + 6], 16) if size == 6 else 0
        following = text[at + 6 : at + 12]
        is_pair = following.startswith("\\u") and 0xDC00 <= int(following[2:], 16) <= 0xDFFF
        if 0xD800 <= code <= 0xDBFF and is_pair:
            size = 12
        is_lone = 0xD800 <= code <= 0xDFFF and size == 6
        made += "\\ufffd" if is_lone else text[at : at + size]
        at += size
    return made


@given(pieces)
@settings(max_examples=limit_examples(120))
def test_each_lone_half_is_replaced_and_nothing_else(text: str) -> None:
    assert repair_surrogates(text.encode()) == mended_one_by_one(text).encode()


@pytest.mark.parametrize("half", [r"\ud83d", r"\uD83D", r"\uDE00", r"\udfFf", r"\uDBFF"])
def test_a_half_is_found_in_any_spelling(half: str) -> None:
    assert repair_surrogates(f'"{half}"'.encode()) == rb'"\ufffd"'


def test_text_without_a_half_is_not_copied() -> None:
    for text in (rb'"\ud83d\ude00"', rb'"\\ud83d"', rb'"\\\\ud83d"', rb'"' + rb"\\" * 100 + rb'ud83d"', b""):
        assert repair_surrogates(text) is text
    assert repair_surrogates(rb'"' + rb"\\" * 100 + rb'\ud83d"') == rb'"' + rb"\\" * 100 + rb'\ufffd"'


def body(texts: list[str], system: str) -> bytes:
    said: dict[str, Any] = {"model": "claude-4", "system": system, "tools": [{"name": f"n{system}"}]}
    said["messages"] = [{"role": "user", "content": [{"type": "text", "text": text}]} for text in texts]
    return json.dumps(said).encode()


@pytest.mark.parametrize("at", range(3))
def test_the_messages_around_a_half_are_found_and_none_is_mended(at: int) -> None:
    texts = [f'{number}"\\ 😀' for number in range(3)]
    texts[at] += "\ud83d"
    data = body(texts, "\ude00")
    request = formats.parse_request(data, Format.ANTHROPIC)

    for number in range(3):
        place = Place(Area.MESSAGES, number, 0)
        changed = json.loads(formats.apply_edits(request, [ReplaceText(place=place, text="new", reason="")]))
        assert changed == json.loads(body([*texts[:number], "new", *texts[number + 1 :]], "\ude00"))
    marked = formats.apply_edits(request, [CacheBreakpoint(place=Place(Area.TOOLS, 0), reason="")])
    assert marked == data.replace(rb'"n\ude00"', rb'"n\ude00","cache_control":{"type":"ephemeral"}')
