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

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE = {"type": "base64", "media_type": "image/png", "data": PIXEL}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
FOUND = {
    "type": "search_result",
    "source": "https://example.com",
    "title": "A page",
    "content": [text("Words")],
}


def image(source: Any) -> Json:
    return {"type": "image", "source": source}


def document(**source: Any) -> Json:
    return {"type": "document", "source": source}


def tool_result_with(*parts: Any, **more: Any) -> Json:
    """Return a tool result with these parts."""
    return claude(user("Look"), assistant(call()), user(result(content=list(parts), **more)))


REJECTED: dict[str, tuple[Json, str]] = {
    # parameters
    "top_p over 1": (claude(top_p=2), "top_p: range: 0..1"),
    "temperature no number": (claude(temperature="hot"), "temperature: Input should be a valid number"),
    "temperature true": (claude(temperature=True), "temperature: Input should be a valid number"),
    "top_k below any": (claude(top_k=-2), "top_k: Input should be greater than or equal to -1"),
    "top_k no integer": (claude(top_k=1.5), "top_k: Input should be a valid integer"),
    "metadata a string": (claude(metadata="x"), "metadata: Input should be a valid dictionary"),
    "metadata with more": (claude(metadata={"team": "x"}), "metadata.team: Extra inputs are not permitted"),
    "unknown service tier": (claude(service_tier="fast"), "service_tier: Input should be 'auto' or 'standard_"),
    "stop sequence no string": (claude(stop_sequences=[5]), "stop_sequences.0: Input should be a valid string"),
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
    "thinking with more": (
        claude(thinking={"type": "adaptive", "depth": 3}),
        "thinking.adaptive.depth: Extra inputs are not permitted",
    ),
    "thinking with top_k": (claude(**THINKING, top_k=40), "`top_k` must be unset when thinking is enabled"),
    "thinking with low top_p": (claude(**THINKING, top_p=0.9), "`top_p` must be greater than or equal to 0.95"),
    "thinking with top_p 0": (claude(**THINKING, top_p=0), "`top_p` must be greater than or equal to 0.95"),
    # tools
    "tool with more": (
        claude(tools=[tool(color="red")]),
        "tools.0.custom.color: Extra inputs are not permitted",
    ),
    "tool of a day to come": (
        claude(tools=[{"type": "web_search_20990101", "name": "web_search"}]),
        "tools.0: Input tag 'web_search_20990101'",
    ),
    "tool no object": (claude(tools=["look"]), "tools.0: Input should be a valid dictionary"),
    "tool with properties in a list": (
        claude(tools=[tool(input_schema={"type": "object", "properties": []})]),
        "tools.0.custom.input_schema.properties: Input should be a valid dictionary",
    ),
    "tool with a number for a description": (
        claude(tools=[tool(description=5)]),
        "tools.0.custom.description: Input should be a valid string",
    ),
    "computer without a screen": (
        claude(tools=[{"type": "computer_20251124", "name": "computer"}]),
        "tools.0.computer_20251124.display_height_px: Field required",
    ),
    "choice with more": (
        claude(tools=[tool()], tool_choice={"type": "any", "name": "look"}),
        "tool_choice.any.name: Extra inputs are not permitted",
    ),
    "choice a string": (
        claude(tools=[tool()], tool_choice="auto"),
        "tool_choice: Input should be a valid dict",
    ),
    # blocks
    "block a string": (
        claude(user() | {"content": ["x"]}),
        "messages.0.content.0: Input should be a valid dict",
    ),
    "block without type": (claude(user({"text": "x"})), "messages.0.content.0.type: Field required"),
    "text a number": (
        claude(user({"type": "text", "text": 5})),
        "messages.0.content.0.text.text: Input should",
    ),
    "text null": (claude(user({"type": "text", "text": None})), "messages.0.content.0.text.text: Input should"),
    "image without source": (claude(user(image({}))), "messages.0.content.0.image.source.type: Field required"),
    "image from a string": (claude(user(image("x"))), "messages.0.content.0.image.source: Input should be a"),
    "image of a kind that is not read": (
        claude(user(image(PICTURE | {"media_type": "image/tiff"}))),
        "messages.0.content.0.image.source.base64.media_type: Input should be 'image/jpeg', 'image/png',",
    ),
    "image that is no base64": (
        claude(user(image(PICTURE | {"data": "no!"}))),
        "messages.0.content.0.image.source.base64.data: invalid base64 data",
    ),
    "image without data": (
        claude(user(image(PICTURE | {"data": ""}))),
        "messages.0.content.0.image.source.base64.data: invalid base64 data",
    ),
    "image by the assistant": (
        claude(assistant(image(PICTURE)), user("x")),
        "messages.0.content: 'image' blocks are not permitted within assistant turns.",
    ),
    "document from nowhere": (
        claude(user(document(type="nope"))),
        "messages.0.content.0.document.source: Input tag 'nope'",
    ),
    "document without words": (
        claude(user(document(type="text", media_type="text/plain"))),
        "messages.0.content.0.document.source.text.data: Field required",
    ),
    "bare search result": (
        claude(user({"type": "search_result"})),
        "messages.0.content.0.search_result.source: Field required",
    ),
    "bare call of a server's tool": (
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
    "part of a result as a block": (
        claude(user({"type": "tool_reference", "tool_name": "look"})),
        "messages.0.content.0: Input tag 'tool_reference'",
    ),
    "system text with more": (
        claude(system=[text("x") | {"lang": "en"}]),
        "system.0.lang: Extra inputs are not permitted",
    ),
    # inside a tool's result
    "empty text in a result": (tool_result_with(text("")), "messages: text content blocks must be non-empty"),
    "text without text in a result": (
        tool_result_with({"type": "text"}),
        "messages.2.content.0.tool_result.content.0.text.text: Field required",
    ),
    "text with more in a result": (
        tool_result_with(text("x") | {"lang": "en"}),
        "messages.2.content.0.tool_result.content.0.text.lang: Extra inputs",
    ),
    "part of a result no object": (
        tool_result_with("x"),
        "messages.2.content.0.tool_result.content.0: Input should be a valid dictionary",
    ),
    "image without source in a result": (
        tool_result_with(image({})),
        "messages.2.content.0.tool_result.content.0.image.source.type: Field required",
    ),
    "is_error no boolean": (
        tool_result_with(is_error="no"),
        "messages.2.content.0.tool_result.is_error: Input should be a",
    ),
    "error with an image": (
        tool_result_with(text("x"), image(PICTURE), is_error=True),
        "messages.2.content.0: tool_result: all content must be type 'text'",
    ),
    "result an object": (
        claude(assistant(call()), user(result(content={}))),
        "messages.1.content.0.tool_result.content: Input should be a valid list",
    ),
    "result without the id of a call": (
        claude(assistant(call()), user({"type": "tool_result", "content": "x"})),
        "messages.1.content.0.tool_result.tool_use_id: Field required",
    ),
}

ACCEPTED: dict[str, Json] = {
    "bounds": claude(temperature=0, top_p=1, top_k=0),
    "nulls where nothing has to be": claude(
        temperature=None, system=None, tools=None, metadata=None, stream=None
    ),
    "top_k left unset by a number": claude(top_k=-1, **THINKING),
    "thinking with a high top_p": claude(**THINKING, top_p=0.95),
    "effort and format": claude(
        output_config={"effort": "xhigh", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    ),
    "service tier": claude(service_tier="standard_only"),
    "image by base64, url and file": claude(
        user(
            image(PICTURE),
            image({"type": "url", "url": "https://x.org/a.png"}),
            image({"type": "file", "file_id": "f"}),
        )
    ),
    "base64 in lines": claude(user(image(PICTURE | {"data": f"{PIXEL[:40]}\n{PIXEL[40:]}\n"}))),
    "documents of all kinds": claude(
        user(
            document(type="base64", media_type="application/pdf", data=PIXEL),
            document(type="text", media_type="text/plain", data="Words")
            | {"title": "A", "citations": {"enabled": True}},
            document(type="content", content=[text("Words"), image(PICTURE)]),
            document(type="url", url="https://x.org/a.pdf"),
        )
    ),
    "search result": claude(user(FOUND)),
    "result with all that it may hold": tool_result_with(
        text("Words"), image(PICTURE), FOUND, {"type": "tool_reference", "tool_name": "look"}
    ),
    "result without content": claude(
        assistant(call()), user({"type": "tool_result", "tool_use_id": "toolu_1"})
    ),
    "result with an empty string": claude(assistant(call()), user(result(content=""))),
    "result with an empty list": tool_result_with(),
    "blank text in a result": tool_result_with(text(" \n")),
    "error in words": tool_result_with(text("no such file"), is_error=True),
    "tools of the provider": claude(
        tools=[
            {"type": "bash_20250124", "name": "bash"},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": None, "user_location": None},
            {"type": "mcp_toolset", "mcp_server_name": "files"},
        ]
    ),
    "tool with everything": claude(
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
    "turn of a server's tool": claude(
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
    problem = rejection(Format.ANTHROPIC, body)

    assert problem.message.startswith(message)
    assert (problem.status, problem.kind) == (400, "invalid_request_error")


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
