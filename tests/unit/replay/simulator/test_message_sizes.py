"""Blocks of recorded messages equal those of the general parser."""

import json
from typing import Any

import pytest

from foveate import formats
from foveate.model import Area, Format, Place
from foveate.prompt_cache.prompt.blocks import BlockFacts
from foveate.replay.recording import RecordedMessage
from foveate.replay.simulator.message_sizes import read_blocks

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk" * 90}}
CONTENTS: list[Any] = [
    "hello",
    "",
    None,
    [],
    [{"type": "text", "text": " \n"}, {"type": "text", "text": "a cut 🙂"}],
    [{"type": "text", "text": "marked", "cache_control": {"type": "ephemeral"}}],
    [
        {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": [{"type": "text", "text": "x", "cache_control": {}}],
        }
    ],
    [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE, {"type": "text", "text": "an image"}]}],
    [{"type": "tool_use", "id": "t", "name": "Read", "input": {"cache_control": 1, "at": 1.50, "image": None}}],
    [
        {"type": "thinking", "thinking": "hm" * 40, "signature": "c2Vhb" * 60},
        "bare",
        7,
        None,
        {"text": "no type"},
    ],
    {"type": "text", "text": "alone"},
    12,
]


def make_message(raw: bytes) -> RecordedMessage:
    return RecordedMessage(previous=None, role="user", raw=raw, depth=3)


@pytest.mark.parametrize("number", range(len(CONTENTS)))
@pytest.mark.parametrize("api_format", [Format.ANTHROPIC, Format.CHAT, Format.BEDROCK])
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_message_has_the_blocks_that_the_general_parser_finds(
    api_format: Format, number: int, *, is_ascii: bool
) -> None:
    message = make_message(
        json.dumps({"role": "user", "content": CONTENTS[number]}, ensure_ascii=is_ascii).encode()
    )
    blocks = formats.message_blocks(api_format, message.raw, message.depth)

    parts = read_blocks(api_format, message)

    if not blocks:
        assert [part.kind for part in parts] == ["opaque"]
        return
    expected = [(BlockFacts(block).digest, block.kind, block.place, block.is_empty) for block in blocks]
    assert [(part.digest, part.kind, part.place, part.is_empty) for part in parts] == expected


def test_encoded_data_in_a_block_has_no_token_weight() -> None:
    thinking_block = {"type": "thinking", "thinking": "hm", "signature": "s" * 40_000}
    tool_result = {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE | {"more": "m" * 90_000}]}
    message = make_message(json.dumps({"role": "user", "content": [thinking_block, tool_result]}).encode())

    thinking, result = read_blocks(Format.ANTHROPIC, message)

    assert thinking.approximate_tokens < 30
    assert result.approximate_tokens == 1_500


@pytest.mark.parametrize("raw", [b"{", b"[" * 5_000, b'{"content": "image', b'"\xff"'])
def test_an_unreadable_message_is_one_block_that_accepts_no_breakpoint(raw: bytes) -> None:
    (part,) = read_blocks(Format.ANTHROPIC, make_message(raw))

    assert (part.kind, part.place) == ("opaque", Place(Area.MESSAGES, 3, 0))
    assert part.approximate_tokens == 8 + len(raw) // 4
