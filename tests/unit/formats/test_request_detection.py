"""The format of a body is detected from as little of it as possible."""

from typing import Any

import pytest

from foveate import formats
from foveate.formats.json_text.parse import parse_fields
from foveate.model import Format, SetParameter

USER_MESSAGE = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("body", "api_format"),
    [
        ({"messages": [USER_MESSAGE]}, Format.CHAT),
        ({"messages": []}, Format.CHAT),
        ({"model": "gpt-4o", "messages": [USER_MESSAGE], "max_tokens": 5}, Format.CHAT),
        ({"model": "claude-sonnet-4-5", "messages": [USER_MESSAGE], "max_tokens": 5}, Format.ANTHROPIC),
        ({"model": "claude-sonnet-4-5", "messages": [USER_MESSAGE], "response_format": {}}, Format.CHAT),
        (
            {"model": "anthropic/claude-4", "messages": [{"role": "system", "content": "Be"}, USER_MESSAGE]},
            Format.CHAT,
        ),
        ({"messages": [USER_MESSAGE], "system": "Be brief"}, Format.ANTHROPIC),
        ({"messages": [USER_MESSAGE], "system": "Be brief", "n": 1}, Format.ANTHROPIC),
        ({"messages": [USER_MESSAGE], "tools": [{"name": "f", "input_schema": {}}]}, Format.ANTHROPIC),
        ({"messages": [USER_MESSAGE], "tools": [{"type": "function", "function": {"name": "f"}}]}, Format.CHAT),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, Format.ANTHROPIC),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, Format.CHAT),
        ({"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}, Format.BEDROCK),
        ({"messages": [USER_MESSAGE] * 50 + [{"role": "tool", "content": "r"}]}, Format.CHAT),
        (
            {"messages": [USER_MESSAGE] * 50 + [{"role": "user", "content": [{"type": "tool_result"}]}]},
            Format.ANTHROPIC,
        ),
        ({"messages": [USER_MESSAGE], "inferenceConfig": {}}, Format.BEDROCK),
        ({"messages": [USER_MESSAGE], "toolConfig": {"tools": []}}, Format.BEDROCK),
        ({"messages": [USER_MESSAGE], "input": "Hi"}, Format.CHAT),
        ({"input": "Hi"}, Format.RESPONSES),
        ({"input": [USER_MESSAGE], "instructions": "Be brief"}, Format.RESPONSES),
        ({"contents": []}, Format.GEMINI),
        ({"contents": [], "toolConfig": {}}, Format.GEMINI),
        ({"generateContentRequest": {"contents": []}}, Format.GEMINI),
    ],
)
def test_a_format_is_detected_by_its_fields(body: dict[str, Any], api_format: Format) -> None:
    assert formats.parse_request(body).format is api_format


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"assistant","content":[{"type":"tool_use","input":{"n":1e999}}]}]}',
        b'{"messages":[],"tools":[{"cache_control":1e999,"input_schema":{"maximum":1e999}}]}',
        b'{"messages":[],"system":[{"type":"text","n":1e999,"text":"a"}]}',
    ],
)
def test_a_format_is_detected_despite_numbers_too_large_to_parse(body: bytes) -> None:
    """Only the distinguishing fields are parsed."""
    assert formats.detect_format(parse_fields(body)) is Format.ANTHROPIC


def test_a_request_with_a_very_large_number_can_be_parsed_and_edited() -> None:
    body = b'{"messages":[{"role":"assistant","content":[{"type":"tool_use","input":{"n":1e999}}]}]}'
    request = formats.parse_request(body)

    assert request.format is Format.ANTHROPIC
    assert (
        formats.apply_edits(request, [SetParameter(path=("n",), value=1, reason="")]) == body[:-1] + b',"n":1}'
    )
