"""Any input is parsed, or rejected with a clear error."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.model import Format, SetParameter, Text

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.text(st.sampled_from("ab漢\ud83d\ude00\udfff")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)

# Every field and every type that a parser reads, so that wrong values are put where they matter.
_FIELD_NAMES = """
model modelId messages input contents system systemInstruction instructions tools toolConfig toolSpec
tool_choice toolChoice functions function functionDeclarations function_declarations name description
parameters input_schema inputSchema parametersJsonSchema json type role content parts text thinking signature
data source media_type mimeType image image_url url detail document file file_data filename file_url file_id
tool_use tool_result tool_use_id is_error id call_id tool_call_id tool_calls function_call functionCall
functionResponse function_call_output output arguments args response inlineData inline_data fileData thought
thoughtSignature toolUse toolResult toolUseId cachePoint reasoningContent reasoningText status format bytes
response_format json_schema schema generationConfig responseSchema responseJsonSchema output_config
output_format reasoning reasoning_effort effort summary encrypted_content refusal reasoning_content
cachedContent generateContentRequest additionalModelRequestFields outputConfig textFormat structure jsonSchema
title context mediaResolution level cache_control functionCallingConfig mode any defer_loading properties
required enum anyOf items $ref $defs
"""
FIELD_NAMES = _FIELD_NAMES.split()
_FIELD_VALUES = """
text input_text output_text image image_url input_image document file input_file base64 url content thinking
tool_use redacted_thinking tool_result function custom message function_call function_call_output
custom_tool_call reasoning refusal json_schema user assistant system tool image/png application/pdf text/plain
pdf txt iVBORw0KGgo= object data:image/png;base64,iVBORw0KGgo= /9j/4AAQ UklGRg== string required auto
web_search_20250305 web_search enabled
"""
FIELD_VALUES = _FIELD_VALUES.split()

wire_values = st.recursive(
    json_values | st.sampled_from(FIELD_VALUES),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(FIELD_NAMES), children, min_size=1, max_size=5)
    ),
    max_leaves=25,
)
body_fields = st.dictionaries(st.sampled_from(FIELD_NAMES), wire_values, max_size=8)
message_lists = st.lists(wire_values, min_size=1, max_size=3)
MESSAGE_FIELDS = ("messages", "input", "contents")
OTHER_FIELDS = [name for name in FIELD_NAMES if name not in (*MESSAGE_FIELDS, "generateContentRequest")]


def parse_completely(body: Any, api_format: Format | None = None) -> None:
    request = formats.parse_request(body, api_format)
    for raw in request.messages:
        formats.parse_message(request.format, raw)
        formats.strip_breakpoints(raw)
    for raw in request.tools:
        formats.parse_tool(request.format, raw)


@pytest.mark.slow
@given(
    body=body_fields,
    field=st.sampled_from(MESSAGE_FIELDS),
    message_list=message_lists,
    api_format=st.sampled_from(list(Format)),
)
def test_any_json_in_any_field_is_parsed_or_rejected(
    body: dict[str, Any], field: str, message_list: list[Any], api_format: Format
) -> None:
    for candidate in (body, {**body, field: message_list}):
        for given_format in (None, api_format):
            with suppress(MalformedRequest):
                parse_completely(candidate, given_format)


@given(value=wire_values, name=st.sampled_from(OTHER_FIELDS), api_format=st.sampled_from(list(Format)))
def test_any_value_in_a_valid_body_is_parsed(value: Any, name: str, api_format: Format) -> None:
    body = {**VALID_BODIES[api_format], name: value}
    parse_completely(body, api_format)


VALID_BODIES: dict[Format, dict[str, Any]] = {
    Format.ANTHROPIC: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    Format.CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    Format.RESPONSES: {"input": "Hi"},
    Format.GEMINI: {"contents": [{"parts": [{"text": "Hi"}]}]},
    Format.BEDROCK: {"messages": [{"role": "user", "content": [{"text": "Hi"}]}]},
}


@given(data=st.binary())
def test_any_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        formats.parse_request(data)


@pytest.mark.slow
@given(body=body_fields, cut_offset=st.integers(0, 400))
def test_a_truncated_body_is_rejected(body: dict[str, Any], cut_offset: int) -> None:
    data = json.dumps({**VALID_BODIES[Format.CHAT], **body}).encode()

    with pytest.raises(MalformedRequest):
        formats.parse_request(data[: min(cut_offset, len(data) - 1)])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("", "not JSON"),
        ("Hello!", "not JSON"),
        ("[]", "not an object"),
        ('"messages"', "not an object"),
        ("null", "not an object"),
        ("17", "not an object"),
        ("{}", "no messages"),
        ('{"prompt": "Hi"}', "no messages"),
        ('{"messages": [}', "not JSON"),
        ('{"messages": []} trailing', "not JSON"),
        ('{"messages": [], "model": 1e999}', "Number out of range"),
        ('{"messages": [], "model": 1' + "0" * 5000 + "}", "out of range"),
        (b"\x89PNG\r\n\x1a\n", "not JSON"),
        ({"messages": [object()]}, "object is not JSON"),
        ({"messages": "hello " * 100}, "`messages` must be a list, not a string"),
        ({"messages": None}, "`messages` must be a list, not null"),
        ({"messages": {"role": "user"}, "system": ""}, "`messages` must be a list, not an object"),
        ({"messages": "Hi", "inferenceConfig": {}}, "`messages` must be a list, not a string"),
        ({"messages": [{"role": "user"}, "a string", 5]}, r"`messages\[1\]` must be an object, not a string"),
        ({"messages": [5], "system": ""}, r"`messages\[0\]` must be an object, not a number"),
        ({"messages": [None], "modelId": "x"}, r"`messages\[0\]` must be an object, not null"),
        ({"input": {"role": "user", "content": "Hi"}}, "`input` must be a list, not an object"),
        ({"input": 5}, "`input` must be a list, not a number"),
        ({"input": ["Hi"]}, r"`input\[0\]` must be an object, not a string"),
        ({"contents": "Hi"}, "`contents` must be a list, not a string"),
        ({"contents": [True]}, r"`contents\[0\]` must be an object, not a boolean"),
        ({"generateContentRequest": "Hi"}, "`generateContentRequest` is not an object"),
        ({"generateContentRequest": [{}, {}]}, "`generateContentRequest` is not an object"),
    ],
)
def test_problems_are_reported(data: Any, reason: str) -> None:
    with pytest.raises(MalformedRequest, match=reason):
        formats.parse_request(data)


@pytest.mark.parametrize("opening_text", ["[", '{"a":', '[{"content":'])
@pytest.mark.parametrize("name", ["messages", "input", "contents", "tools", "system", "any"])
@pytest.mark.parametrize("is_closed", [True, False])
def test_deep_nesting_is_rejected_without_a_stack_overflow(
    opening_text: str, name: str, is_closed: bool
) -> None:
    depth = 100_000
    closing = "".join("}" if char == "{" else "]" for char in reversed(opening_text) if char in "[{")
    nested = opening_text * depth + ("1" + closing * depth if is_closed else "")
    body = f'{{"contents":[],"{name}":{nested}' + ("}" if is_closed else "")

    with pytest.raises(MalformedRequest, match="nested too deeply"):
        parse_completely(body)


@pytest.mark.parametrize("depth", range(400, 1100, 50))
def test_nesting_near_the_recursion_limit_is_parsed_or_rejected(depth: int) -> None:
    lists = "[" * depth + "]" * depth
    blocks = '{"type":"tool_result","content":[' * depth + "]}" * depth
    for content in (lists, f"[{blocks}]", f'[{{"cache_control":{{}},"content":{lists}}}]'):
        for other_fields in ("", '"system":"",', '"tools":[{"function":{"parameters":' + lists + "}}],"):
            with suppress(MalformedRequest):
                parse_completely(f'{{{other_fields}"messages":[{{"role":"user","content":{content}}}]}}')


def test_invalid_utf_8_is_rejected_when_it_is_parsed() -> None:
    for body in (b'{"messages": [{"content": "\xff"}]}', b'{"messages": [{"content": "\xed\xa0\x80"}]}'):
        with pytest.raises(MalformedRequest, match="not UTF-8"):
            parse_completely(body)


def test_a_body_that_contains_itself_is_rejected() -> None:
    body: dict[str, Any] = {"messages": []}
    body["messages"].append(body)

    with pytest.raises(MalformedRequest):
        formats.parse_request(body)


@pytest.mark.slow
def test_a_body_nested_too_deeply_for_python_is_rejected() -> None:
    nested: Any = "end"
    for _ in range(50_000):
        nested = [nested]

    with pytest.raises(MalformedRequest):
        formats.parse_request({"messages": nested})


@pytest.mark.parametrize(
    "encode",
    [
        lambda body: body,
        json.dumps,
        lambda body: json.dumps(body, ensure_ascii=False),
        lambda body: json.dumps(body).encode(),
    ],
    ids=["dict", "escapes", "str", "bytes"],
)
def test_a_lone_surrogate_is_read_as_the_replacement_character(encode: Callable[[Any], Any]) -> None:
    content = "a\ud83db \\ud83d \U0001f600 \udc00"
    request = formats.parse_request(
        encode({"model": "gpt-4o", "messages": [{"role": "user", "content": content}]})
    )

    (message,) = (formats.parse_message(request.format, raw) for raw in request.messages)

    (text,) = message.parts
    assert isinstance(text, Text)
    assert text.text == "a\ufffdb \\ud83d \U0001f600 \ufffd"


@pytest.mark.parametrize("encode", [lambda text: "\ufeff" + text, lambda text: b"\xef\xbb\xbf" + text.encode()])
def test_a_byte_order_mark_is_forwarded_and_not_parsed(encode: Callable[[str], Any]) -> None:
    """Unchanged bytes are forwarded, and edits are written after the byte order mark."""
    text = '{"messages":[{"role":"user","content":"Hi"}]}'
    request = formats.parse_request(encode(text))
    edit = SetParameter(path=("n",), value=1, reason="")

    assert replace(request, body=b"") == replace(formats.parse_request(text), body=b"")
    assert formats.apply_edits(request, []) == b"\xef\xbb\xbf" + text.encode()
    assert formats.apply_edits(request, [edit]) == b"\xef\xbb\xbf" + text[:-1].encode() + b',"n":1}'
    assert [block.kind for block in formats.request_blocks(request)] == ["text"]
