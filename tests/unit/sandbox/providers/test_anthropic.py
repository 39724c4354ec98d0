"""Validation of Anthropic requests."""

import pytest

from foveate.model import Format
from foveate.sandbox.models import find_model, list_model_names
from tests.support.scenarios.valid_requests import (
    BINDING,
    BREAKPOINT,
    CLAUDE,
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
    validate,
)

ANTHROPIC = Format.ANTHROPIC
VALID_BODY = claude()


@pytest.mark.parametrize(
    "body",
    [
        VALID_BODY,
        claude({"role": "user", "content": "Hello"}),
        claude(assistant("I speak first."), user("So you do.")),
        claude(user("One"), user("Two"), assistant("Three"), assistant("Four"), user("Five")),
        claude(user("Complete:"), assistant("The answer is")),
        claude(user("Go on:"), {"role": "assistant", "content": ""}),
        claude(system=""),
        claude(system="Be brief."),
        claude(system=[text("Be brief.")]),
        claude(max_tokens=0),
        claude(user("Look"), assistant("I will.", call()), user(result(), "And?"), tools=[tool()]),
        claude(
            user("Look"), assistant(call("a"), call("b")), user(result("b"), result("a", content=[text("x")]))
        ),
        claude(assistant(call("a")), user(result("a")), tools=[tool()]),
        claude(assistant(call("a")), assistant(call("b")), user(result("a")), user(result("b"), "And?")),
        claude(assistant(call("a")), user(result("a")), assistant(call("a")), user(result("a"))),
        claude(user("x"), thinking={"type": "adaptive"}, tools=[tool()], tool_choice={"type": "any"}),
        claude(tools=[tool(), {"type": "web_search_20250305", "name": "web_search"}]),
        claude(tools=[tool()], tool_choice={"type": "tool", "name": "look"}),
        claude(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1025),
        claude(thinking={"type": "disabled"}, temperature=0.2),
        claude(stop_sequences=["END"], metadata={"user_id": "x"}, stream=True),
    ],
)
def test_valid_requests_are_accepted(body: Json) -> None:
    assert accepts(ANTHROPIC, body)


def test_every_model_on_the_list_is_known() -> None:
    for name in list_model_names(ANTHROPIC):
        assert accepts(ANTHROPIC, VALID_BODY | {"model": name})
        model = find_model(ANTHROPIC, name)
        assert model is not None
        assert model.max_output_tokens >= 32_000


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": CLAUDE, "max_tokens": 5}, "messages: Field required"),
        ({"model": CLAUDE, "messages": [user("x")]}, "max_tokens: Field required"),
        ({"max_tokens": 5, "messages": [user("x")]}, "model: Field required"),
        (VALID_BODY | {"foveate": 1}, "foveate: Extra inputs are not permitted"),
        (VALID_BODY | {"model": 5}, "model: Input should be a valid string"),
        (VALID_BODY | {"messages": []}, "messages: at least one message is required"),
        (VALID_BODY | {"max_tokens": "many"}, "max_tokens: Input should be a valid integer"),
        (VALID_BODY | {"max_tokens": -1}, "max_tokens: Input should be greater than or equal to 0"),
        (VALID_BODY | {"max_tokens": 64_001}, "max_tokens: 64001 > 64000, which is the maximum allowed"),
        (VALID_BODY | {"max_tokens": 0, "stream": True}, "max_tokens: 0 is not supported with streaming"),
        (VALID_BODY | {"temperature": 1.5}, "temperature: range: 0..1"),
        (VALID_BODY | {"stream": "yes"}, "stream: Input should be a valid boolean"),
        (
            VALID_BODY | {"stop_sequences": [" "]},
            "stop_sequences: each stop sequence must contain non-whitespace",
        ),
        (VALID_BODY | {"system": [text("")]}, "system: text content blocks must be non-empty"),
        (VALID_BODY | {"system": [{"type": "image"}]}, "system.0.type: Input should be 'text'"),
    ],
)
def test_an_invalid_parameter_is_named(body: Json, message: str) -> None:
    assert rejection(ANTHROPIC, body).message.startswith(message)


@pytest.mark.parametrize("name", ["gpt-4o", "claude", "mistral-large", ""])
def test_an_unknown_model_is_not_found(name: str) -> None:
    error = rejection(ANTHROPIC, VALID_BODY | {"model": name})

    assert (error.status, error.kind, error.message) == (404, "not_found_error", f"model: {name}")


@pytest.mark.parametrize(
    ("invalid_message", "expected"),
    [
        ({"role": "tool", "content": "x"}, 'messages: Unexpected role "tool"'),
        ({"role": "user"}, "messages.0.content: Field required"),
        ({"content": "x"}, "messages.0.role: Field required"),
        ({"role": "user", "content": 5}, "messages.0.content: Input should be a valid list"),
        ({"role": "user", "content": "x", "name": "Ana"}, "messages.0.name: Extra inputs are not permitted"),
        ({"role": "user", "content": ""}, "messages.0: all messages must have non-empty content"),
        ({"role": "user", "content": []}, "messages.0: all messages must have non-empty content"),
        ({"role": "user", "content": " \n"}, "messages: text content blocks must contain non-whitespace text"),
        (user(""), "messages: text content blocks must be non-empty"),
        (
            user(text("", BREAKPOINT)),
            "messages.0.content.0.text: cache_control cannot be set for empty text blocks",
        ),
        (user({"type": "song"}), "messages.0.content.0: Input tag 'song' found using 'type' does not match"),
        (user({"type": "text"}), "messages.0.content.0.text.text: Field required"),
        (user(text("x") | {"lang": "en"}), "messages.0.content.0.text.lang: Extra inputs are not permitted"),
        (user(call()), "messages.0.content.0: `tool_use` blocks can only be in `assistant` messages"),
        (assistant(result()), "messages.0.content.0: `tool_result` blocks can only be in `user` messages"),
        (assistant(call("no spaces")), "messages.0.content.0.tool_use.id: String should match pattern"),
        (assistant(call(input="{}")), "messages.0.content.0.tool_use.input: Input should be a valid dict"),
        (user(result(content=[call()])), "messages.0.content.0.tool_result.content.0: Input tag 'tool_use'"),
        (user(result(is_error=True, content="")), "messages.0.content.0: tool_result: content cannot be empty"),
        (assistant("Trailing "), "messages: final assistant content cannot end with trailing whitespace"),
    ],
)
def test_an_invalid_message_is_named(invalid_message: Json, expected: str) -> None:
    assert rejection(ANTHROPIC, claude(invalid_message)).message.startswith(expected)


def test_only_the_last_message_may_be_an_empty_assistant_message() -> None:
    empty = {"role": "assistant", "content": []}

    assert accepts(ANTHROPIC, claude(user("x"), empty))
    assert "messages.1: all messages" in rejection(ANTHROPIC, claude(user("x"), empty, user("y"))).message


MISSING_RESULT = "`tool_use` ids were found without `tool_result` blocks immediately after: toolu_1. Each"
MISSING_CALL = "unexpected `tool_use_id` found in `tool_result` blocks: toolu_1. Each"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([user("x"), assistant(call())], f"messages.1: {MISSING_RESULT}"),
        ([user("x"), assistant(call()), user("no answer")], f"messages.1: {MISSING_RESULT}"),
        ([user("x"), assistant(call()), user("first", result())], f"messages.1: {MISSING_RESULT}"),
        ([user(result())], f"messages.0.content.0: {MISSING_CALL}"),
        ([user("x"), assistant("y"), user("z", result())], f"messages.2.content.1: {MISSING_CALL}"),
        (
            [assistant(call()), user(result()), assistant("so"), user(result())],
            f"messages.3.content.0: {MISSING_CALL}",
        ),
        ([assistant(call(), call()), user(result())], "messages.0: `tool_use` ids must be unique"),
        ([assistant(call()), assistant(call()), user(result())], "messages.1: `tool_use` ids must be unique"),
        (
            [assistant(call()), user(result(), result())],
            "messages.1.content.1: each tool_use must have a single result",
        ),
    ],
)
def test_a_tool_call_is_followed_by_its_result(messages: list[Json], message: str) -> None:
    assert rejection(ANTHROPIC, claude(*messages)).message.startswith(message)


def test_all_tool_calls_without_a_result_are_named() -> None:
    messages = [assistant(call("a"), call("b"), call("c")), user(result("b"))]

    assert "immediately after: a, c. Each" in rejection(ANTHROPIC, claude(*messages)).message


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [{"name": "look"}]}, "tools.0.custom.input_schema: Field required"),
        ({"tools": [{"input_schema": {"type": "object"}}]}, "tools.0.custom.name: Field required"),
        ({"tools": [tool("no spaces")]}, "tools.0.custom.name: String should match pattern"),
        ({"tools": [tool(), tool()]}, "tools: Tool names must be unique."),
        ({"tools": [tool(input_schema={})]}, "tools.0.custom.input_schema.type: Field required"),
        ({"tools": [tool()], "tool_choice": {"type": "tool", "name": "y"}}, "tool_choice: Tool 'y' not found"),
        ({"tools": [tool()], "tool_choice": {"type": "most"}}, "tool_choice: Input tag 'most'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: tool_choice may only be specified while"),
    ],
)
def test_an_invalid_tool_is_named(fields: Json, message: str) -> None:
    assert rejection(ANTHROPIC, claude(**fields)).message.startswith(message)


THINKING = {"type": "enabled", "budget_tokens": 1024}
MUST_START_WITH_THINKING = (
    "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`."
)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (claude(thinking={"type": "hard"}), "thinking: Input tag 'hard'"),
        (claude(thinking={"type": "enabled"}), "thinking.enabled.budget_tokens: Field required"),
        (
            claude(thinking=THINKING | {"budget_tokens": 1023}),
            "thinking.enabled.budget_tokens: Input should be",
        ),
        (claude(thinking=THINKING, max_tokens=1024), "`max_tokens` must be greater than `thinking.budget_tok"),
        (claude(thinking={"type": "adaptive"}, max_tokens=0), "max_tokens: 0 is not supported when thinking"),
        (claude(thinking=THINKING, max_tokens=2048, temperature=0.5), "`temperature` may only be set to 1"),
        (
            claude(thinking=THINKING, max_tokens=2048, tools=[tool()], tool_choice={"type": "any"}),
            "Thinking may not be enabled when tool_choice forces tool use.",
        ),
        (
            claude(user("x"), assistant("Prefilled"), thinking={"type": "adaptive"}),
            "Prefilling assistant messages is not supported when `thinking` is enabled.",
        ),
        (
            claude(user("x"), assistant(call()), user(result()), thinking=THINKING, max_tokens=2048),
            MUST_START_WITH_THINKING,
        ),
        (
            claude(user("x"), assistant("Prefilled"), model=BINDING),
            "This model does not support assistant message prefill.",
        ),
    ],
)
def test_parameters_that_conflict_with_thinking_are_rejected(body: Json, message: str) -> None:
    assert rejection(ANTHROPIC, body).message.startswith(message)


def test_an_adaptive_model_may_call_a_tool_without_thinking() -> None:
    loop = [user("x"), assistant(call()), user(result())]

    assert accepts(ANTHROPIC, claude(*loop, thinking={"type": "adaptive"}))


def test_a_prompt_over_the_window_is_rejected() -> None:
    assert accepts(ANTHROPIC, VALID_BODY, prompt_tokens=200_000)
    assert (
        rejection(ANTHROPIC, VALID_BODY, prompt_tokens=200_001).message
        == "prompt is too long: 200001 tokens > 200000 maximum"
    )
    assert accepts(ANTHROPIC, VALID_BODY | {"model": BINDING}, prompt_tokens=1_000_000)
    assert validate(ANTHROPIC, VALID_BODY | {"model": BINDING}, prompt_tokens=1_000_001)


def test_older_models_count_the_output_limit_against_the_window() -> None:
    old = VALID_BODY | {"model": "claude-opus-4-1", "max_tokens": 32_000}

    assert accepts(ANTHROPIC, old, prompt_tokens=168_000)
    assert rejection(ANTHROPIC, old, prompt_tokens=168_001).message.startswith(
        "input length and `max_tokens` exceed context limit: 168001 + 32000 > 200000"
    )


def test_count_tokens_takes_no_output_limit() -> None:
    body = {name: error for name, error in VALID_BODY.items() if name != "max_tokens"}

    assert accepts(ANTHROPIC, body, counting=True)
    assert accepts(ANTHROPIC, body, counting=True, prompt_tokens=5_000_000)
    assert rejection(ANTHROPIC, VALID_BODY, counting=True).message.startswith("max_tokens: Extra inputs")
    orphan = body | {"messages": [user(result())]}
    assert "unexpected `tool_use_id`" in rejection(ANTHROPIC, orphan, counting=True).message
