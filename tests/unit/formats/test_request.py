"""All five formats are parsed into the same values."""

import json

import pytest

from foveate import formats
from foveate.errors import MalformedRequest
from foveate.model import (
    Document,
    Format,
    Image,
    MediaSource,
    Message,
    Opaque,
    Request,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)

USER_MESSAGE = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def parse_messages(request: Request) -> list[Message]:
    return [formats.parse_message(request.format, raw) for raw in request.messages]


def parse_tools(request: Request) -> list[Tool]:
    return [formats.parse_tool(request.format, raw) for raw in request.tools]


def test_an_explicit_format_is_not_detected() -> None:
    assert formats.parse_request({"messages": [USER_MESSAGE]}, Format.ANTHROPIC).format is Format.ANTHROPIC


def test_a_body_can_be_a_dict_a_string_or_bytes() -> None:
    body = {
        "model": "gpt-4o",
        "messages": [USER_MESSAGE, {"role": "assistant", "content": "Grüße 👋"}],
        "tools": [],
    }
    as_text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)

    assert (
        formats.parse_request(body) == formats.parse_request(as_text) == formats.parse_request(as_text.encode())
    )


def test_parsed_fields_keep_their_bytes() -> None:
    data = b'{ "messages" : [ {"role":"user",  "content":"\\u00e9"} ], "tools":[ { "function" : {} } ] }'
    request = formats.parse_request(data)

    assert request.body == data
    assert request.messages == (b'{"role":"user",  "content":"\\u00e9"}',)
    assert request.tools == (b'{ "function" : {} }',)


def test_anthropic_messages_are_read() -> None:
    request = formats.parse_request(
        {
            "model": "claude-sonnet-4-5",
            "max_tokens": 100,
            "system": [{"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "tool_choice": {"type": "any"},
            "tools": [
                {"name": "weather", "description": "Says it", "input_schema": SCHEMA},
                {"type": "web_search_20250305", "name": "web_search"},
            ],
            "mcp_servers": [{"url": "x"}],
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "messages": [
                {"role": "user", "content": "Weather?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm", "signature": "abcd"},
                        {"type": "redacted_thinking", "data": "abcdef"},
                        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bonn"}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "is_error": True,
                            "content": [{"type": "text", "text": "no"}],
                        },
                        {"type": "image", "source": {"type": "url", "url": "https://x"}},
                        {"type": "document", "title": "T", "source": {"type": "text", "data": "words"}},
                        {"type": "container_upload", "file_id": "f"},
                    ],
                },
            ],
        }
    )

    assert request.model == "claude-sonnet-4-5"
    assert request.system == (Text("Be brief"),)
    assert (request.thinking, request.tool_choice) == ("enabled", "any")
    assert request.schema is not None
    assert json.loads(request.schema.schema) == SCHEMA
    assert request.unexplained == ("mcp_servers",)
    assert [(tool.kind, tool.name) for tool in parse_tools(request)] == [
        ("function", "weather"),
        ("web_search_20250305", "web_search"),
    ]
    first, second, third = parse_messages(request)
    assert first == Message(role="user", parts=(Text("Weather?"),))
    assert second.parts == (
        Thinking("Hm", 4),
        Thinking("", 6),
        ToolCall(format=Format.ANTHROPIC, id="t1", name="weather", arguments='{"city":"Bonn"}'),
    )
    assert third.parts[0] == ToolResult(id="t1", is_error=True, parts=(Text("no"),))
    assert third.parts[1] == Image(source=MediaSource.URL)
    assert third.parts[2] == Document(source=MediaSource.INLINE, media_type="text/plain", text="T\nwords")
    assert isinstance(third.parts[3], Opaque)
    assert third.parts[3].kind == "container_upload"


def test_chat_completions_are_read() -> None:
    function = {"name": "weather", "description": "Says it", "parameters": SCHEMA}
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    request = formats.parse_request(
        {
            "model": "gpt-4o",
            "reasoning_effort": "low",
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "tools": [{"type": "function", "function": function}],
            "functions": [function],
            "response_format": {"type": "json_schema", "json_schema": {"name": "out", "schema": SCHEMA}},
            "messages": [
                {"role": "system", "content": "Be brief"},
                {"role": "user", "name": "ada", "content": [{"type": "text", "text": "Weather?"}]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
                {"role": "assistant", "reasoning_content": "Hm", "content": "Sun", "refusal": "No"},
                {"role": "assistant", "content": "", "function_call": call["function"]},
            ],
        }
    )

    assert (request.thinking, request.tool_choice) == ("low", "weather")
    assert request.schema is not None
    assert request.schema.name == "out"
    assert [(tool.kind, tool.name, tool.description) for tool in parse_tools(request)] == [
        ("function", "weather", "Says it")
    ] * 2
    system, user, call_message, result_message, answer_message, legacy_message = parse_messages(request)
    assert system == Message(role="system", parts=(Text("Be brief"),))
    assert user == Message(role="user", name="ada", parts=(Text("Weather?"),))
    expected_call = ToolCall(format=Format.CHAT, id="c1", name="weather", arguments='{"city": "Bonn"}')
    assert call_message.parts == (expected_call,)
    assert result_message.parts == (ToolResult(id="c1", parts=(Text("sunny"),)),)
    assert answer_message.parts == (Thinking("Hm"), Text("Sun"), Text("No"))
    assert [part.name for part in legacy_message.parts if isinstance(part, ToolCall)] == ["weather"]


def test_responses_are_read() -> None:
    request = formats.parse_request(
        {
            "model": "gpt-5",
            "instructions": "Be brief",
            "previous_response_id": "r0",
            "reasoning": {"effort": "high"},
            "tools": [{"type": "function", "name": "weather", "parameters": SCHEMA}, {"type": "web_search"}],
            "text": {"format": {"type": "json_schema", "name": "out", "schema": SCHEMA}},
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
                {"type": "reasoning", "summary": [], "encrypted_content": "abcdef"},
                {"type": "function_call", "id": "fc", "call_id": "c1", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
                {"type": "web_search_call", "id": "w"},
            ],
        }
    )

    assert request.system == (Text("Be brief"),)
    assert request.thinking == "high"
    assert request.unexplained == ("previous_response_id",)
    assert request.schema is not None
    assert request.schema.name == "out"
    assert [tool.kind for tool in parse_tools(request)] == ["function", "web_search"]
    user, reasoning_message, call_message, result_message, search_message = parse_messages(request)
    assert user == Message(role="user", parts=(Text("Weather?"),))
    assert reasoning_message.parts == (Thinking("", 6),)
    expected_call = ToolCall(format=Format.RESPONSES, id="c1", item_id="fc", name="weather", arguments="{}")
    assert call_message.parts == (expected_call,)
    assert result_message.parts == (ToolResult(id="c1", parts=(Text("sunny"),)),)
    assert isinstance(search_message.parts[0], Opaque)


def test_a_plain_input_is_one_user_message() -> None:
    assert parse_messages(formats.parse_request({"input": "Weather?"})) == [
        Message(role="user", parts=(Text("Weather?"),))
    ]


@pytest.mark.parametrize("is_snake_case", [False, True])
def test_gemini_is_read_in_both_spellings(is_snake_case: bool) -> None:
    names = {
        "systemInstruction": "system_instruction",
        "functionDeclarations": "function_declarations",
        "functionCall": "function_call",
        "functionResponse": "function_response",
        "googleSearch": "google_search",
        "toolConfig": "tool_config",
        "functionCallingConfig": "function_calling_config",
        "thoughtSignature": "thought_signature",
    }
    body = {
        "model": "models/gemini-2.5-flash",
        "systemInstruction": {"parts": {"text": "Be brief"}},
        "tools": [{"functionDeclarations": [{"name": "weather", "parameters": SCHEMA}]}, {"googleSearch": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "contents": [
            {"parts": [{"text": "Weather?"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "Hm", "thought": True},
                    {"functionCall": {"name": "weather", "args": {"city": "Bonn"}}, "thoughtSignature": "abcd"},
                ],
            },
            {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"sky": "blue"}}}]},
        ],
    }
    text = json.dumps(body)
    for camel_name, snake_name in names.items():
        text = text.replace(f'"{camel_name}"', f'"{snake_name}"') if is_snake_case else text
    request = formats.parse_request(text)

    assert request.model == "gemini-2.5-flash"
    assert request.system == (Text("Be brief"),)
    assert request.tool_choice == "any"
    assert [tool.kind for tool in parse_tools(request)] == [
        "function",
        "google_search" if is_snake_case else "googleSearch",
    ]
    user_message, call_message, result_message = parse_messages(request)
    assert user_message == Message(role="user", parts=(Text("Weather?"),))
    assert call_message.parts == (
        Thinking("Hm"),
        ToolCall(format=Format.GEMINI, name="weather", arguments='{"city":"Bonn"}'),
        Thinking("", 4),
    )
    assert result_message.parts == (ToolResult(name="weather", parts=(Text('{"sky":"blue"}'),)),)


def test_bedrock_is_read() -> None:
    request = formats.parse_request(
        {
            "modelId": "anthropic.claude-sonnet-4",
            "system": [{"text": "Be brief"}, {"cachePoint": {"type": "default"}}],
            "inferenceConfig": {"maxTokens": 5},
            "toolConfig": {
                "tools": [
                    {"toolSpec": {"name": "weather", "inputSchema": {"json": SCHEMA}}},
                    {"cachePoint": {"type": "default"}},
                ],
                "toolChoice": {"any": {}},
            },
            "messages": [
                {"role": "user", "content": [{"text": "Weather?"}, {"cachePoint": {"type": "default"}}]},
                {
                    "role": "assistant",
                    "content": [
                        {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "abcd"}}},
                        {"toolUse": {"toolUseId": "t1", "name": "weather", "input": {"city": "Bonn"}}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "toolResult": {
                                "toolUseId": "t1",
                                "status": "error",
                                "content": [{"json": {"sky": "blue"}}],
                            }
                        }
                    ],
                },
            ],
        }
    )

    assert request.model == "anthropic.claude-sonnet-4"
    assert request.system == (Text("Be brief"),)
    assert request.tool_choice == "any"
    assert [(tool.kind, tool.name) for tool in parse_tools(request)] == [("function", "weather")]
    user_message, call_message, result_message = parse_messages(request)
    assert user_message.parts == (Text("Weather?"),)
    assert call_message.parts[0] == Thinking("Hm", 4)
    assert call_message.parts[1] == ToolCall(
        format=Format.BEDROCK, id="t1", name="weather", arguments='{"city":"Bonn"}'
    )
    assert result_message.parts == (ToolResult(id="t1", is_error=True, parts=(Text('{"sky":"blue"}'),)),)


@pytest.mark.slow  # loading the client takes seconds
def test_message_objects_of_the_anthropic_library_can_be_sent_back() -> None:
    from anthropic.types import Message as AnthropicMessage
    from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock, Usage

    answer = AnthropicMessage(
        id="m",
        type="message",
        role="assistant",
        model="claude-sonnet-4-5",
        content=[
            ThinkingBlock(type="thinking", thinking="Hm", signature="abcd"),
            TextBlock(type="text", text="Sure"),
            ToolUseBlock(type="tool_use", id="t1", name="weather", input={"city": "Bonn"}),
        ],
        usage=Usage(input_tokens=1, output_tokens=1),
    )
    body = {"model": "claude-sonnet-4-5", "max_tokens": 1, "system": "Be"}
    with_blocks = formats.parse_request(
        {**body, "messages": [USER_MESSAGE, {"role": "assistant", "content": answer.content}]}
    )
    with_message = formats.parse_request({**body, "messages": [USER_MESSAGE, answer]})

    assert parse_messages(with_blocks)[1] == parse_messages(with_message)[1]
    assert parse_messages(with_blocks)[1].parts == (
        Thinking("Hm", 4),
        Text("Sure"),
        ToolCall(format=Format.ANTHROPIC, id="t1", name="weather", arguments='{"city":"Bonn"}'),
    )


@pytest.mark.slow  # loading the client takes seconds
def test_message_objects_of_the_openai_library_can_be_sent_back() -> None:
    from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageFunctionToolCall
    from openai.types.chat.chat_completion_message_function_tool_call import Function
    from openai.types.responses import ResponseFunctionToolCall

    call = ChatCompletionMessageFunctionToolCall(
        id="c1", type="function", function=Function(name="weather", arguments="{}")
    )
    answer = ChatCompletionMessage(role="assistant", content="Sure", tool_calls=[call])
    chat = formats.parse_request({"model": "gpt-4o", "messages": [USER_MESSAGE, answer]})
    item = ResponseFunctionToolCall(call_id="c1", name="weather", arguments="{}", type="function_call")
    responses = formats.parse_request({"model": "gpt-5", "input": [USER_MESSAGE, item]})

    assert chat.format is Format.CHAT
    assert parse_messages(chat)[1].parts == (
        Text("Sure"),
        ToolCall(format=Format.CHAT, id="c1", name="weather", arguments="{}"),
    )
    assert parse_messages(responses)[1].parts == (
        ToolCall(format=Format.RESPONSES, id="c1", name="weather", arguments="{}"),
    )


def test_values_that_are_not_json_are_rejected() -> None:
    with pytest.raises(MalformedRequest, match="NotSerializable is not JSON"):
        formats.parse_request({"messages": [NotSerializable()]})


class NotSerializable:
    pass


@pytest.mark.parametrize("api_format", list(Format))
def test_a_model_in_the_path_overrides_the_one_in_the_body(api_format: Format) -> None:
    bodies = {
        Format.GEMINI: b'{"contents":[{"parts":[{"text":"Hi"}]}],"model":"models/x"}',
        Format.RESPONSES: b'{"model":"x","input":"Hi"}',
    }
    body = bodies.get(api_format, b'{"model":"x","modelId":"x","messages":[{"role":"user","content":"Hi"}]}')

    assert formats.parse_request(body, api_format).model == "x"
    for model in ("one", "another"):
        request = formats.parse_request(body, api_format, model=model)
        assert (request.model, request.body) == (model, body)
    assert formats.parse_request(body, api_format).model == "x"
