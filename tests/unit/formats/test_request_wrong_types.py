"""Content of the wrong type is kept or rejected, and never dropped."""

import json
from typing import Any

import pytest

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.model import Format, Message, Opaque, Request, Text

USER_MESSAGE = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}

WRONG_CONTENTS: list[Any] = [{"text": "Hi"}, 5, True, [5], [["Hi"]]]


def parse_messages(request: Request) -> list[Message]:
    return [formats.parse_message(request.format, raw) for raw in request.messages]


@pytest.mark.parametrize("content", WRONG_CONTENTS)
@pytest.mark.parametrize("api_format", [Format.ANTHROPIC, Format.CHAT, Format.RESPONSES, Format.BEDROCK])
def test_content_of_the_wrong_type_is_kept(api_format: Format, content: Any) -> None:
    raw = json.dumps({"role": "user", "content": content}).encode()
    (part,) = formats.parse_message(api_format, raw).parts

    assert isinstance(part, Opaque)
    assert json.loads(part.raw) == (content[0] if isinstance(content, list) else content)


@pytest.mark.parametrize("parts", ["Hi", 5, ["Hi"], [5], [["Hi"]], True])
def test_parts_of_the_wrong_type_are_kept(parts: Any) -> None:
    (part,) = formats.parse_message(Format.GEMINI, json.dumps({"parts": parts}).encode()).parts

    assert isinstance(part, Opaque)
    assert json.loads(part.raw) == (parts[0] if isinstance(parts, list) else parts)


@pytest.mark.parametrize(
    ("api_format", "text"),
    [
        (Format.ANTHROPIC, {"type": "text", "text": {"deep": "Hi"}}),
        (Format.CHAT, {"type": "text", "text": {"deep": "Hi"}}),
        (Format.RESPONSES, {"type": "input_text", "text": ["Hi"]}),
        (Format.BEDROCK, {"text": {"deep": "Hi"}}),
    ],
)
def test_a_text_that_is_not_a_string_is_kept(api_format: Format, text: dict[str, Any]) -> None:
    (part,) = formats.parse_message(api_format, json.dumps({"role": "user", "content": [text]}).encode()).parts

    assert isinstance(part, Opaque)
    assert json.loads(part.raw) == text


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"messages": [], "system": {"text": "Be brief"}}, "an object"),
        ({"messages": [], "modelId": "x", "system": {"text": "Be brief"}}, "an object"),
        ({"input": [], "instructions": {"text": "Be brief"}}, "an object"),
        ({"contents": [], "systemInstruction": {"text": "Be brief"}}, "an object"),
        ({"contents": [], "systemInstruction": ["Be brief"]}, "a list"),
    ],
)
def test_a_system_prompt_of_the_wrong_type_is_kept(body: dict[str, Any], name: str) -> None:
    (part,) = formats.parse_request(body).system

    assert isinstance(part, Opaque)
    assert (part.kind, b"Be brief" in part.raw) == (name, True)


def test_gemini_accepts_a_single_content_and_a_single_part_instead_of_a_list() -> None:
    single = formats.parse_request({"contents": {"role": "user", "parts": {"text": "Hi"}}})

    assert parse_messages(single) == [Message(role="user", parts=(Text("Hi"),))]


@pytest.mark.parametrize("api_format", list(Format))
@pytest.mark.parametrize("raw", [b'"Hi"', b"5", b"[]", b"null"])
def test_a_message_that_is_not_an_object_is_rejected(api_format: Format, raw: bytes) -> None:
    with pytest.raises(MalformedRequest, match="must be an object"):
        formats.parse_message(api_format, raw)
