"""Lone surrogates are read as the replacement character, and forwarded unchanged."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.formats.json_text.surrogates import repair_surrogates
from foveate.model import Area, CacheBreakpoint, Format, Place, ReplaceText

escaped_texts = st.lists(
    st.sampled_from(("\\ud83d", "\\uD83D", "\\ude00", "\\uDE00", "\\u00e9", "\\\\", '\\"', "a", "ud83d", "é")),
    max_size=8,
).map("".join)


def repair_one_by_one(text: str) -> str:
    """Repair the escapes one by one from the left, as an oracle."""
    repaired, offset = "", 0
    while offset < len(text):
        size = 1 if text[offset] != "\\" else 6 if text[offset + 1] == "u" else 2
        code = int(text[offset + 2 : offset + 6], 16) if size == 6 else 0
        next_escape = text[offset + 6 : offset + 12]
        is_pair = next_escape.startswith("\\u") and 0xDC00 <= int(next_escape[2:], 16) <= 0xDFFF
        if 0xD800 <= code <= 0xDBFF and is_pair:
            size = 12
        is_lone = 0xD800 <= code <= 0xDFFF and size == 6
        repaired += "\\ufffd" if is_lone else text[offset : offset + size]
        offset += size
    return repaired


@given(escaped_texts)
def test_only_lone_surrogates_are_replaced(text: str) -> None:
    assert repair_surrogates(text.encode()) == repair_one_by_one(text).encode()


@pytest.mark.parametrize("surrogate", [r"\ud83d", r"\uD83D", r"\uDE00", r"\udfFf", r"\uDBFF"])
def test_a_lone_surrogate_is_found_in_any_spelling(surrogate: str) -> None:
    assert repair_surrogates(f'"{surrogate}"'.encode()) == rb'"\ufffd"'


def test_text_without_lone_surrogates_is_not_copied() -> None:
    for text in (rb'"\ud83d\ude00"', rb'"\\ud83d"', rb'"\\\\ud83d"', rb'"' + rb"\\" * 100 + rb'ud83d"', b""):
        assert repair_surrogates(text) is text
    assert repair_surrogates(rb'"' + rb"\\" * 100 + rb'\ud83d"') == rb'"' + rb"\\" * 100 + rb'\ufffd"'


def make_body(texts: list[str], system: str) -> bytes:
    fields: dict[str, Any] = {"model": "claude-4", "system": system, "tools": [{"name": f"n{system}"}]}
    fields["messages"] = [{"role": "user", "content": [{"type": "text", "text": text}]} for text in texts]
    return json.dumps(fields).encode()


@pytest.mark.parametrize("index", range(3))
def test_the_messages_around_a_lone_surrogate_are_found_and_none_is_repaired(index: int) -> None:
    texts = [f'{number}"\\ 😀' for number in range(3)]
    texts[index] += "\ud83d"
    data = make_body(texts, "\ude00")
    request = formats.parse_request(data, Format.ANTHROPIC)

    for number in range(3):
        place = Place(Area.MESSAGES, number, 0)
        edited_body = json.loads(
            formats.apply_edits(request, [ReplaceText(place=place, text="new", reason="")])
        )
        assert edited_body == json.loads(make_body([*texts[:number], "new", *texts[number + 1 :]], "\ude00"))
    with_breakpoint = formats.apply_edits(request, [CacheBreakpoint(place=Place(Area.TOOLS, 0), reason="")])
    assert with_breakpoint == data.replace(rb'"n\ude00"', rb'"n\ude00","cache_control":{"type":"ephemeral"}')
