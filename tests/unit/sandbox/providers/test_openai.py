"""Validation of chat completion and Responses API requests."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveate.model import Format
from foveate.sandbox.models import list_model_names
from tests.support.scenarios.valid_requests import GPT, Json, accepts, chat, rejection, response, validate

HELLO = {"role": "user", "content": "Hello"}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CODEX_METADATA = {"internal_chat_message_metadata_passthrough": {"turn_id": "t"}}
RESPONSES_FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def assistant_calls(*ids: str) -> Json:
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": call_id, "type": "function", "function": function} for call_id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def tool_message(call_id: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "found"}


def assistant_call(call_id: str = "c1") -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}


def call_output(call_id: str = "c1") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": "found"}


@pytest.mark.parametrize(
    "body",
    [
        chat(),
        chat({"role": "developer", "content": "Be brief."}, HELLO, max_tokens=16_384),
        chat(HELLO, assistant_calls("a", "b"), tool_message("b"), tool_message("a"), HELLO),
        chat(HELLO, assistant_calls("a"), tool_message("a"), assistant_calls("a"), tool_message("a")),
        chat(tools=[FUNCTION], tool_choice={"type": "function", "function": {"name": "look"}}),
        chat(stream=True, stream_options={"include_usage": True}),
        chat({"role": "user", "content": ""}),
        chat(model="gpt-5.4", max_completion_tokens=100),
        chat(model="o3", reasoning_effort="high"),
        chat(search_parameters={"mode": "auto"}),
        chat(HELLO, {**assistant_calls("a"), "provider_specific_fields": {"refusal": None}}, tool_message("a")),
    ],
)
def test_valid_chat_requests_are_accepted(body: Json) -> None:
    assert accepts(Format.CHAT, body)


@pytest.mark.parametrize("name", list_model_names(Format.CHAT))
def test_every_model_on_the_list_is_known_to_both_formats(name: str) -> None:
    assert accepts(Format.CHAT, chat(model=name))
    assert accepts(Format.RESPONSES, response(model=name))


@pytest.mark.parametrize(
    ("body", "message", "param", "code"),
    [
        ({"messages": [HELLO]}, "Missing required parameter: 'model'.", "model", "missing_required_parameter"),
        ({"model": GPT}, "Missing required parameter: 'messages'.", "messages", "missing_required_parameter"),
        (chat() | {"messages": []}, "Invalid 'messages': empty array.", "messages", "empty_array"),
        (chat(foveate=1), "Unknown parameter: 'foveate'.", "foveate", "unknown_parameter"),
        (chat({"role": "king", "content": "x"}), "Invalid value: 'king'.", "messages[0].role", "invalid_value"),
        (
            chat({"role": "user"}),
            "Invalid value for 'content': expected a string",
            "messages.[0].content",
            None,
        ),
        (chat({"role": "user", "content": 5}), "Invalid type for", "messages[0].content", "invalid_type"),
        (
            chat({"role": "user", "content": [{"type": "song"}]}),
            "Invalid value: 'song'.",
            "messages[0].content[0].type",
            "invalid_value",
        ),
        (chat(HELLO | {"mood": "good"}), "Unknown parameter", "messages[0].mood", "unknown_parameter"),
        (
            chat(stream_options={"include_usage": True}),
            "The 'stream_options' parameter",
            "stream_options",
            None,
        ),
        (chat(max_tokens=16_385), "max_tokens is too large: 16385.", "max_tokens", "invalid_value"),
        (chat(max_tokens=0), "Invalid 'max_tokens': integer below", "max_tokens", "integer_below_min_value"),
        (chat(model="gpt-5.4", max_tokens=5), "Unsupported parameter", "max_tokens", "unsupported_parameter"),
        (chat(tools=[]), "Invalid 'tools': empty array.", "tools", "empty_array"),
        (chat(tool_choice="required"), "Invalid value for 'tool_choice'", "tool_choice", None),
        (
            chat(tools=[{"type": "function", "function": {"name": "no spaces"}}]),
            "Invalid 'tools[0].function.name'",
            "tools[0].function.name",
            "invalid_value",
        ),
        (
            chat(response_format={"type": "json_object"}),
            "'messages' must contain the word 'json'",
            "messages",
            None,
        ),
    ],
)
def test_errors_of_chat_requests_name_the_parameter(
    body: Json, message: str, param: str, code: str | None
) -> None:
    error = rejection(Format.CHAT, body)

    assert error.message.startswith(message)
    assert (error.status, error.kind, error.param, error.code) == (400, "invalid_request_error", param, code)


def test_an_unknown_model_is_not_found() -> None:
    error = rejection(Format.CHAT, chat(model="claude-opus-5-5"))

    assert (error.status, error.code) == (404, "model_not_found")


MUST_BE_FOLLOWED = "An assistant message with 'tool_calls' must be followed by tool messages"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([HELLO, tool_message("a")], "Invalid parameter: messages with role 'tool' must be a response"),
        ([assistant_calls("a"), HELLO, tool_message("a")], MUST_BE_FOLLOWED),
        ([assistant_calls("a")], MUST_BE_FOLLOWED),
        ([assistant_calls("a", "b"), tool_message("a"), HELLO], MUST_BE_FOLLOWED),
        (
            [assistant_calls("a"), tool_message("b")],
            "Invalid parameter: 'tool_call_id' of 'b' not found in 'tool_calls'",
        ),
        (
            [assistant_calls("a"), tool_message("a"), tool_message("a")],
            "Duplicate value for 'tool_call_id' of 'a'",
        ),
        ([assistant_calls("a", "a"), tool_message("a")], "Duplicate value for 'tool_call_id' in 'tool_calls'"),
        ([{"role": "tool", "content": "x"}], "Missing required parameter: 'messages[0].tool_call_id'."),
    ],
)
def test_a_tool_call_is_followed_by_its_tool_messages(messages: list[Json], message: str) -> None:
    assert rejection(Format.CHAT, chat(*messages)).message.startswith(message)


def test_tool_calls_without_a_result_are_named() -> None:
    error = rejection(Format.CHAT, chat(assistant_calls("a", "b", "c"), tool_message("b"), HELLO))

    assert error.message.endswith("did not have response messages: a, c")


@pytest.mark.parametrize("api_format", [Format.CHAT, Format.RESPONSES])
def test_a_prompt_over_the_window_is_rejected(api_format: Format) -> None:
    body: Any = chat() if api_format is Format.CHAT else response()

    assert accepts(api_format, body, prompt_tokens=128_000)
    error = rejection(api_format, body, prompt_tokens=128_001)
    assert error.code == "context_length_exceeded"
    assert "maximum context length is 128000 tokens" in error.message
    assert "128001" in error.message


def test_prompt_and_output_limit_must_fit_the_window_together() -> None:
    body = chat(max_tokens=1000)

    assert accepts(Format.CHAT, body, prompt_tokens=127_000)
    assert (
        "(127001 in the messages, 1000 in the completion)"
        in rejection(Format.CHAT, body, prompt_tokens=127_001).message
    )


@pytest.mark.parametrize(
    "body",
    [
        response(),
        response(HELLO, assistant_call(), call_output()),
        response(
            HELLO,
            assistant_call("a"),
            assistant_call("b"),
            call_output("b"),
            call_output("a"),
            tools=[RESPONSES_FUNCTION],
        ),
        response({"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}, HELLO),
        response(HELLO, {"type": "reasoning", "id": "rs_1", "summary": []}, assistant_call(), call_output()),
        response(call_output(), previous_response_id="resp_1"),
        response(max_output_tokens=16, store=False, include=["reasoning.encrypted_content"]),
        response(client_metadata={"x-codex-installation-id": "i"}),
        response(HELLO | CODEX_METADATA, assistant_call() | CODEX_METADATA, call_output() | CODEX_METADATA),
    ],
)
def test_valid_responses_requests_are_accepted(body: Json) -> None:
    assert accepts(Format.RESPONSES, body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": GPT}, "One of 'input', 'previous_response_id'"),
        (response(messages=[HELLO]), "Unknown parameter: 'messages'."),
        (response(HELLO, call_output()), "No tool call found for function call output with call_id c1."),
        (
            response(call_output(), assistant_call()),
            "No tool call found for function call output with call_id c1.",
        ),
        (response(HELLO, assistant_call()), "No tool output found for function call c1."),
        (response(assistant_call(), assistant_call(), call_output()), "Duplicate call_id c1 in input."),
        (response(assistant_call(), call_output(), call_output()), "Duplicate output for function call c1"),
        (response({"type": "song"}), "Invalid value: 'song'."),
        (response({"role": "tool", "content": "x"}), "Invalid value: 'tool'."),
        (response({"role": "user", "content": [{"type": "text", "text": "x"}]}), "Invalid value: 'text'."),
        (response(max_output_tokens=15), "Invalid 'max_output_tokens': integer below minimum value."),
        (
            response(HELLO, {"type": "reasoning", "id": "rs_1", "summary": []}, HELLO),
            "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        ),
        (
            response(HELLO, {"type": "reasoning", "id": "rs_1", "summary": []}),
            "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
        ),
        (response(previous_response_id="a", conversation="b"), "Mutually exclusive parameters"),
    ],
)
def test_errors_of_responses_requests_name_the_parameter(body: Json, message: str) -> None:
    assert rejection(Format.RESPONSES, body).message.startswith(message)


Turn = tuple[list[str], list[str]]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from("abc"), max_size=3, unique=True),
            st.lists(st.sampled_from("abc"), max_size=3, unique=True),
        ),
        max_size=4,
    )
)
def test_a_chat_is_accepted_exactly_if_each_turn_answers_its_own_calls(turns: list[Turn]) -> None:
    messages: list[Json] = [HELLO]
    for calls, results in turns:
        messages.append(assistant_calls(*calls) if calls else {"role": "assistant", "content": "x"})
        messages += [tool_message(call_id) for call_id in results]

    are_all_answered = all(sorted(calls) == sorted(results) for calls, results in turns)
    assert (validate(Format.CHAT, chat(*messages)) is None) == are_all_answered
