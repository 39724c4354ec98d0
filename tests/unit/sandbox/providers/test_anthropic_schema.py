"""Fields of Anthropic requests: tables of rejected and of accepted values."""

from typing import Any

import pytest

from foveate.model import Format
from tests.support.scenarios.valid_requests import (
    Json,
    accepts,
    assistant,
    call,
    claude,
    rejection,
    result,
    text,
    tool,
    user,
)

PIXEL_BASE64 = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
IMAGE_SOURCE = {"type": "base64", "media_type": "image/png", "data": PIXEL_BASE64}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
SEARCH_RESULT = {
    "type": "search_result",
    "source": "https://example.com",
    "title": "A page",
    "content": [text("Words")],
}


def image(source: Any) -> Json:
    return {"type": "image", "source": source}


def document(**source: Any) -> Json:
    return {"type": "document", "source": source}


def claude_with_tool_result(*parts: Any, **fields: Any) -> Json:
    """Build a request with a tool result of these parts."""
    return claude(user("Look"), assistant(call()), user(result(content=list(parts), **fields)))


REJECTED: dict[str, tuple[Json, str]] = {
    # parameters
    "top_p over 1": (claude(top_p=2), "top_p: range: 0..1"),
    "temperature not a number": (claude(temperature="hot"), "temperature: Input should be a valid number"),
    "temperature true": (claude(temperature=True), "temperature: Input should be a valid number"),
    "negative top_k": (claude(top_k=-2), "top_k: Input should be greater than or equal to -1"),
    "top_k not an integer": (claude(top_k=1.5), "top_k: Input should be a valid integer"),
    "metadata as a string": (claude(metadata="x"), "metadata: Input should be a valid dictionary"),
    "metadata with an unknown field": (
        claude(metadata={"team": "x"}),
        "metadata.team: Extra inputs are not permitted",
    ),
    "unknown service tier": (claude(service_tier="fast"), "service_tier: Input should be 'auto' or 'standard_"),
    "stop sequence not a string": (
        claude(stop_sequences=[5]),
        "stop_sequences.0: Input should be a valid string",
    ),
    "unknown effort": (
        claude(output_config={"effort": "extreme"}),
        "output_config.effort: Input should be 'low',",
    ),
    "unknown format": (
        claude(output_config={"format": {"type": "yaml"}}),
        "output_config.format.type: Input should be 'json_schema'",
    ),
    "format without schema": (
        claude(output_config={"format": {"type": "json_schema"}}),
        "output_config.format.schema: Field required",
    ),
    "model null": (claude(model=None), "model: Input should be a valid string"),
    # thinking
    "thinking with an unknown field": (
        claude(thinking={"type": "adaptive", "depth": 3}),
        "thinking.adaptive.depth: Extra inputs are not permitted",
    ),
    "thinking with top_k": (claude(**THINKING, top_k=40), "`top_k` must be unset when thinking is enabled"),
    "thinking with low top_p": (claude(**THINKING, top_p=0.9), "`top_p` must be greater than or equal to 0.95"),
    "thinking with top_p 0": (claude(**THINKING, top_p=0), "`top_p` must be greater than or equal to 0.95"),
    # tools
    "tool with an unknown field": (
        claude(tools=[tool(color="red")]),
        "tools.0.custom.color: Extra inputs are not permitted",
    ),
    "tool version with a future date": (
        claude(tools=[{"type": "web_search_20990101", "name": "web_search"}]),
        "tools.0: Input tag 'web_search_20990101'",
    ),
    "tool not an object": (claude(tools=["look"]), "tools.0: Input should be a valid dictionary"),
    "tool with properties as a list": (
        claude(tools=[tool(input_schema={"type": "object", "properties": []})]),
        "tools.0.custom.input_schema.properties: Input should be a valid dictionary",
    ),
    "tool with a number as description": (
        claude(tools=[tool(description=5)]),
        "tools.0.custom.description: Input should be a valid string",
    ),
    "computer tool without a display size": (
        claude(tools=[{"type": "computer_20251124", "name": "computer"}]),
        "tools.0.computer_20251124.display_height_px: Field required",
    ),
    "tool choice with an unknown field": (
        claude(tools=[tool()], tool_choice={"type": "any", "name": "look"}),
        "tool_choice.any.name: Extra inputs are not permitted",
    ),
    "tool choice as a string": (
        claude(tools=[tool()], tool_choice="auto"),
        "tool_choice: Input should be a valid dict",
    ),
    # blocks
    "block as a string": (
        claude(user() | {"content": ["x"]}),
        "messages.0.content.0: Input should be a valid dict",
    ),
    "block without type": (claude(user({"text": "x"})), "messages.0.content.0.type: Field required"),
    "text as a number": (
        claude(user({"type": "text", "text": 5})),
        "messages.0.content.0.text.text: Input should",
    ),
    "null text": (claude(user({"type": "text", "text": None})), "messages.0.content.0.text.text: Input should"),
    "image without source": (claude(user(image({}))), "messages.0.content.0.image.source.type: Field required"),
    "image source as a string": (
        claude(user(image("x"))),
        "messages.0.content.0.image.source: Input should be a",
    ),
    "unsupported image type": (
        claude(user(image(IMAGE_SOURCE | {"media_type": "image/tiff"}))),
        "messages.0.content.0.image.source.base64.media_type: Input should be 'image/jpeg', 'image/png',",
    ),
    "image not in base64": (
        claude(user(image(IMAGE_SOURCE | {"data": "no!"}))),
        "messages.0.content.0.image.source.base64.data: invalid base64 data",
    ),
    "image without data": (
        claude(user(image(IMAGE_SOURCE | {"data": ""}))),
        "messages.0.content.0.image.source.base64.data: invalid base64 data",
    ),
    "image in an assistant message": (
        claude(assistant(image(IMAGE_SOURCE)), user("x")),
        "messages.0.content: 'image' blocks are not permitted within assistant turns.",
    ),
    "unknown document source": (
        claude(user(document(type="nope"))),
        "messages.0.content.0.document.source: Input tag 'nope'",
    ),
    "text document without data": (
        claude(user(document(type="text", media_type="text/plain"))),
        "messages.0.content.0.document.source.text.data: Field required",
    ),
    "search result without fields": (
        claude(user({"type": "search_result"})),
        "messages.0.content.0.search_result.source: Field required",
    ),
    "server tool call without fields": (
        claude(assistant({"type": "server_tool_use"}), user("x")),
        "messages.0.content.0.server_tool_use.id: Field required",
    ),
    "call without input": (
        claude(assistant({"type": "tool_use", "id": "a", "name": "look"}), user(result("a"))),
        "messages.0.content.0.tool_use.input: Field required",
    ),
    "thinking without signature": (
        claude(assistant({"type": "thinking", "thinking": "Hm"}), user("x")),
        "messages.0.content.0.thinking.signature: Field required",
    ),
    "result part as a block": (
        claude(user({"type": "tool_reference", "tool_name": "look"})),
        "messages.0.content.0: Input tag 'tool_reference'",
    ),
    "system text with an unknown field": (
        claude(system=[text("x") | {"lang": "en"}]),
        "system.0.lang: Extra inputs are not permitted",
    ),
    # inside a tool's result
    "empty text in a result": (
        claude_with_tool_result(text("")),
        "messages: text content blocks must be non-empty",
    ),
    "result text without text": (
        claude_with_tool_result({"type": "text"}),
        "messages.2.content.0.tool_result.content.0.text.text: Field required",
    ),
    "result text with an unknown field": (
        claude_with_tool_result(text("x") | {"lang": "en"}),
        "messages.2.content.0.tool_result.content.0.text.lang: Extra inputs",
    ),
    "result part not an object": (
        claude_with_tool_result("x"),
        "messages.2.content.0.tool_result.content.0: Input should be a valid dictionary",
    ),
    "image without source in a result": (
        claude_with_tool_result(image({})),
        "messages.2.content.0.tool_result.content.0.image.source.type: Field required",
    ),
    "is_error not a boolean": (
        claude_with_tool_result(is_error="no"),
        "messages.2.content.0.tool_result.is_error: Input should be a",
    ),
    "error with an image": (
        claude_with_tool_result(text("x"), image(IMAGE_SOURCE), is_error=True),
        "messages.2.content.0: tool_result: all content must be type 'text'",
    ),
    "result as an object": (
        claude(assistant(call()), user(result(content={}))),
        "messages.1.content.0.tool_result.content: Input should be a valid list",
    ),
    "result without a tool call id": (
        claude(assistant(call()), user({"type": "tool_result", "content": "x"})),
        "messages.1.content.0.tool_result.tool_use_id: Field required",
    ),
}

ACCEPTED: dict[str, Json] = {
    "bounds": claude(temperature=0, top_p=1, top_k=0),
    "nulls for optional fields": claude(temperature=None, system=None, tools=None, metadata=None, stream=None),
    "top_k of -1": claude(top_k=-1, **THINKING),
    "thinking with a high top_p": claude(**THINKING, top_p=0.95),
    "effort and format": claude(
        output_config={"effort": "xhigh", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    ),
    "service tier": claude(service_tier="standard_only"),
    "image by base64, url and file": claude(
        user(
            image(IMAGE_SOURCE),
            image({"type": "url", "url": "https://x.org/a.png"}),
            image({"type": "file", "file_id": "f"}),
        )
    ),
    "base64 with line breaks": claude(
        user(image(IMAGE_SOURCE | {"data": f"{PIXEL_BASE64[:40]}\n{PIXEL_BASE64[40:]}\n"}))
    ),
    "all document sources": claude(
        user(
            document(type="base64", media_type="application/pdf", data=PIXEL_BASE64),
            document(type="text", media_type="text/plain", data="Words")
            | {"title": "A", "citations": {"enabled": True}},
            document(type="content", content=[text("Words"), image(IMAGE_SOURCE)]),
            document(type="url", url="https://x.org/a.pdf"),
        )
    ),
    "search result": claude(user(SEARCH_RESULT)),
    "result with every kind of part": claude_with_tool_result(
        text("Words"), image(IMAGE_SOURCE), SEARCH_RESULT, {"type": "tool_reference", "tool_name": "look"}
    ),
    "result without content": claude(
        assistant(call()), user({"type": "tool_result", "tool_use_id": "toolu_1"})
    ),
    "result with an empty string": claude(assistant(call()), user(result(content=""))),
    "result with an empty list": claude_with_tool_result(),
    "blank text in a result": claude_with_tool_result(text(" \n")),
    "error as text": claude_with_tool_result(text("no such file"), is_error=True),
    "provider tools": claude(
        tools=[
            {"type": "bash_20250124", "name": "bash"},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": None, "user_location": None},
            {"type": "mcp_toolset", "mcp_server_name": "files"},
        ]
    ),
    "tool with every field": claude(
        tools=[
            tool(
                type="custom",
                strict=True,
                defer_loading=False,
                input_examples=[{}],
                input_schema={"type": "object", "properties": {}, "required": [], "$defs": {}},
            )
        ]
    ),
    "turn with a server tool": claude(
        user("Search"),
        assistant(
            {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
            "Nothing.",
        ),
        user("Again"),
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_invalid_fields_get_the_error_text_of_anthropic(name: str) -> None:
    body, message = REJECTED[name]
    error = rejection(Format.ANTHROPIC, body)

    assert error.message.startswith(message)
    assert (error.status, error.kind) == (400, "invalid_request_error")


@pytest.mark.parametrize("name", ACCEPTED)
def test_valid_fields_are_accepted(name: str) -> None:
    assert accepts(Format.ANTHROPIC, ACCEPTED[name])


def test_of_two_unknown_fields_the_first_is_named() -> None:
    for first, second in (("a", "b"), ("b", "a")):
        assert rejection(Format.ANTHROPIC, claude(**{first: 1, second: 2})).message.startswith(
            f"{first}: Extra"
        )
        error = text("x") | {first: 1, second: 2}
        assert f".text.{first}: Extra" in rejection(Format.ANTHROPIC, claude(user(error))).message
        field = {"type": "ephemeral", first: 1, second: 2}
        assert f".{first}: Extra" in rejection(Format.ANTHROPIC, claude(user(text("x", field)))).message
