"""System messages among the others, which Anthropic accepts between a user and an assistant turn."""

import pytest

from foveate.model import Format
from tests.support.scenarios.valid_requests import (
    BINDING,
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
)

ANTHROPIC = Format.ANTHROPIC
DIRECTIVE: Json = {"role": "system", "content": [], "output_config": {"effort": "low"}}
SEARCH: Json = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
SEARCH_RESULT: Json = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
MUST_FOLLOW_USER = (
    "role 'system' must follow a 'user' message or an 'assistant' message ending in a server tool result"
)
MUST_PRECEDE_ASSISTANT = "role 'system' must precede an 'assistant' message or end the array"
MUST_NOT_BE_FIRST = "use the top-level 'system' parameter for the initial system prompt"


def system_message(*texts: str) -> Json:
    return {"role": "system", "content": [text(line) for line in texts]}


def make_request(*messages: Json) -> Json:
    return claude(*messages, model=BINDING, tools=[tool()])


@pytest.mark.parametrize(
    "messages",
    [
        [user("x"), system_message("a")],
        [user("x"), system_message("a"), assistant("y"), user("z")],
        [user("x"), system_message("a"), system_message("b"), assistant("y"), user("z"), system_message("c")],
        [user("x"), assistant(call()), user(result()), system_message("a"), assistant("y"), user("z")],
        [user("x"), assistant(SEARCH, SEARCH_RESULT), system_message("a"), assistant("y"), user("z")],
        [user("x"), {"role": "system", "content": [{"type": "tool_addition", "tool": {}}]}],
        [user("x"), {**system_message("a"), "clear_at": "next_user_message"}, assistant("y"), user("z")],
        [DIRECTIVE, user("x"), assistant("y"), DIRECTIVE, user("z")],
        [user("x"), system_message("a"), DIRECTIVE, assistant("y"), user("z")],
    ],
)
def test_a_system_message_is_accepted_between_user_and_assistant(messages: list[Json]) -> None:
    assert accepts(ANTHROPIC, make_request(*messages))


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([system_message("a"), user("x")], f"messages.0: {MUST_NOT_BE_FIRST}; the directive-only form"),
        (
            [user("x"), assistant("y"), system_message("a"), user("z")],
            f"messages.2: {MUST_FOLLOW_USER}; the directive-only",
        ),
        (
            [user("x"), assistant("y"), system_message("a"), assistant("b"), user("z")],
            f"messages.2: {MUST_FOLLOW_USER}",
        ),
        (
            [user("x"), assistant("y"), system_message("a"), system_message("b"), user("z")],
            f"messages.2: {MUST_FOLLOW_USER}",
        ),
        (
            [user("x"), system_message("a"), user("z")],
            f"messages.1: {MUST_PRECEDE_ASSISTANT}; the directive-only form",
        ),
        (
            [user("x"), system_message("a"), system_message("b"), user("z")],
            f"messages.2: {MUST_PRECEDE_ASSISTANT}",
        ),
        (
            [user("x"), assistant(call()), system_message("a"), user(result())],
            f"messages.2: {MUST_FOLLOW_USER}",
        ),
        ([user("x"), system_message()], "messages.1: system content must contain at least one block"),
        ([user("x"), system_message("")], "messages: text content blocks must be non-empty"),
    ],
)
def test_a_system_message_anywhere_else_is_rejected(messages: list[Json], message: str) -> None:
    assert rejection(ANTHROPIC, make_request(*messages)).message.startswith(message)


@pytest.mark.parametrize("model", [CLAUDE, "claude-opus-4-7", "claude-opus-4-6", "claude-3-7-sonnet-latest"])
def test_models_before_opus_4_8_accept_no_system_messages(model: str) -> None:
    body = claude(user("x"), system_message("a"), model=model)

    assert rejection(ANTHROPIC, body).message == "role 'system' is not supported on this model"
    assert accepts(ANTHROPIC, body | {"model": "claude-opus-4-8"})
