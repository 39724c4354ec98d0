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

HI = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def messages(request: Request) -> list[Message]:
    return [formats.parse_message(request.format, raw) for raw in request.messages]


def tools(request: Request) -> list[Tool]:
    return [formats.parse_tool(request.format, raw) for raw in request.tools]


def test_a_given_format_is_not_detected() -> None:
    assert formats.parse_request({"messages": [HI]}, Format.ANTHROPIC).format is Format.ANTHROPIC


def test_a_body_is_the_same_as_dict_text_and_bytes() -> None:
    body = {"model": "gpt-4o", "messages": [HI, {"role": "assistant", "content": "Grüße 👋"}], "tools": []}
    as_text = json.dumps(body, separators=(",", ":"), ensure_ascii=False)

    assert (
        formats.parse_request(body) == formats.parse_request(as_text) == formats.parse_request(as_text.encode())
    )


def test_what_is_passed_on_keeps_its_bytes() -> None:
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
    assert [(tool.kind, tool.name) for tool in tools(request)] == [
        ("function", "weather"),
        ("web_search_20250305", "web_search"),
    ]
    first, second, third = messages(request)
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
    assert [(tool.kind, tool.name, tool.description) for tool in tools(request)] == [
        ("function", "weather", "Says it")
    ] * 2
    system, user, called, result, answer, older = messages(request)
    assert system == Message(role="system", parts=(Text("Be brief"),))
    assert user == Message(role="user", name="ada", parts=(Text("Weather?"),))
    wanted = ToolCall(format=Format.CHAT, id="c1", name="weather", arguments='{"city": "Bonn"}')
    assert called.parts == (wanted,)
    assert result.parts == (ToolResult(id="c1", parts=(Text("sunny"),)),)
    assert answer.parts == (Thinking("Hm"), Text("Sun"), Text("No"))
    assert [part.name for part in older.parts if isinstance(part, ToolCall)] == ["weather"]


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
    assert [tool.kind for tool in tools(request)] == ["function", "web_search"]
    user, thought, called, result, searched = messages(request)
    assert user == Message(role="user", parts=(Text("Weather?"),))
    assert thought.parts == (Thinking("", 6),)
    wanted = ToolCall(format=Format.RESPONSES, id="c1", item_id="fc", name="weather", arguments="{}")
    assert called.parts == (wanted,)
    assert result.parts == (ToolResult(id="c1", parts=(Text("sunny"),)),)
    assert isinstance(searched.parts[0], Opaque)


def test_a_plain_input_is_one_user_message() -> None:
    assert messages(formats.parse_request({"input": "Weather?"})) == [
        Message(role="user", parts=(Text("Weather?"),))
    ]


@pytest.mark.parametrize("snake", [False, True])
def test_gemini_is_read_in_both_spellings(snake: bool) -> None:
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
    for camel, other in names.items():
        text = text.replace(f'"{camel}"', f'"{other}"') if snake else text
    request = formats.parse_request(text)

    assert request.model == "gemini-2.5-flash"
    assert request.system == (Text("Be brief"),)
    assert request.tool_choice == "any"
    assert [tool.kind for tool in tools(request)] == ["function", "google_search" if snake else "googleSearch"]
    asked, called, answered = messages(request)
    assert asked == Message(role="user", parts=(Text("Weather?"),))
    assert called.parts == (
        Thinking("Hm"),
        ToolCall(format=Format.GEMINI, name="weather", arguments='{"city":"Bonn"}'),
        Thinking("", 4),
    )
    assert answered.parts == (ToolResult(name="weather", parts=(Text('{"sky":"blue"}'),)),)


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
    assert [(tool.kind, tool.name) for tool in tools(request)] == [("function", "weather")]
    asked, called, answered = messages(request)
    assert asked.parts == (Text("Weather?"),)
    assert called.parts[0] == Thinking("Hm", 4)
    assert called.parts[1] == ToolCall(
        format=Format.BEDROCK, id="t1", name="weather", arguments='{"city":"Bonn"}'
    )
    assert answered.parts == (ToolResult(id="t1", is_error=True, parts=(Text('{"sky":"blue"}'),)),)


@pytest.mark.slow  # loading the client takes seconds
def test_anthropics_own_message_objects_can_be_sent_back() -> None:
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
    blocks = formats.parse_request({**body, "messages": [HI, {"role": "assistant", "content": answer.content}]})
    whole = formats.parse_request({**body, "messages": [HI, answer]})

    assert messages(blocks)[1] == messages(whole)[1]
    assert messages(blocks)[1].parts == (
        Thinking("Hm", 4),
        Text("Sure"),
        ToolCall(format=Format.ANTHROPIC, id="t1", name="weather", arguments='{"city":"Bonn"}'),
    )


@pytest.mark.slow  # loading the client takes seconds
def test_openais_own_message_objects_can_be_sent_back() -> None:
    from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageFunctionToolCall
    from openai.types.chat.chat_completion_message_function_tool_call import Function
    from openai.types.responses import ResponseFunctionToolCall

    call = ChatCompletionMessageFunctionToolCall(
        id="c1", type="function", function=Function(name="weather", arguments="{}")
    )
    answer = ChatCompletionMessage(role="assistant", content="Sure", tool_calls=[call])
    chat = formats.parse_request({"model": "gpt-4o", "messages": [HI, answer]})
    item = ResponseFunctionToolCall(call_id="c1", name="weather", arguments="{}", type="function_call")
    responses = formats.parse_request({"model": "gpt-5", "input": [HI, item]})

    assert chat.format is Format.CHAT
    assert messages(chat)[1].parts == (
        Text("Sure"),
        ToolCall(format=Format.CHAT, id="c1", name="weather", arguments="{}"),
    )
    assert messages(responses)[1].parts == (
        ToolCall(format=Format.RESPONSES, id="c1", name="weather", arguments="{}"),
    )


def test_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(MalformedRequest, match="Unsayable is not JSON"):
        formats.parse_request({"messages": [Unsayable()]})


class Unsayable:
    pass


@pytest.mark.parametrize("api_format", list(Format))
def test_a_model_that_the_path_names_takes_the_place_of_that_in_the_body(api_format: Format) -> None:
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
