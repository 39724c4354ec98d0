"""Recorded sessions as the demo sends them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foveate import formats
from foveate.demo.recording import DemoRequest, DemoSession, add_client_breakpoints, load_session
from foveate.errors import UnreadableInput
from foveate.model import Format

TOOL_CALL = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}


TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "a line\n" * 2400}


THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "AAAA"}


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "What is it? " * 200},
    {"role": "assistant", "content": [THINKING, TOOL_CALL]},
    {"role": "user", "content": [TOOL_RESULT]},
    {"role": "assistant", "content": "A file."},
    {"role": "user", "content": "And then? 🙂"},
    {"role": "assistant", "content": [THINKING]},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": "It ends."},
]


SESSION = DemoSession(name="mine", model="claude-sonnet-4-5", format=Format.ANTHROPIC, requests=())


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"model": "claude-sonnet-4-5", "system": "Be brief.", "messages": MESSAGES}))
    return path


def test_each_request_has_the_full_history(recording: Path) -> None:
    session = load_session(recording)
    requests = [formats.parse_request(step.body) for step in session.requests]

    assert [len(request.messages) for request in requests] == [1, 3, 5, 7]
    assert {request.model for request in requests} == {"claude-sonnet-4-5"}
    assert [step.after_seconds for step in session.requests] == [0.0, 20.0, 120.0, 900.0]
    assert not session.has_times


def test_thinking_is_removed_and_used_tools_are_declared(
    recording: Path,
) -> None:
    session = load_session(recording)
    last = json.loads(session.requests[-1].body)

    assert session.is_thinking_removed
    assert not [step for step in session.requests if b"signature" in step.body]
    assert last["messages"][1]["content"] == [TOOL_CALL]
    assert last["messages"][5]["content"] == [{"type": "text", "text": "(thinking)"}]
    assert [tool["name"] for tool in last["tools"]] == ["read"]
    assert "tools" not in json.loads(session.requests[0].body)


def test_tool_results_follow_their_calls_and_missing_ones_are_replaced(
    tmp_path: Path,
) -> None:
    """A log has reminders between results, and no results of interrupted calls."""
    second_call = {**TOOL_CALL, "id": "t2"}
    reminder, result = {"type": "text", "text": "Remember."}, {**TOOL_RESULT, "content": "a line"}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": [TOOL_CALL, second_call]},
        {"role": "user", "content": [reminder, result]},
        {"role": "assistant", "content": [{**TOOL_CALL, "id": "t3"}]},
        {"role": "assistant", "content": "Stopped."},
        {"role": "user", "content": [{**result, "tool_use_id": "t9"}]},
        {"role": "assistant", "content": "It ends."},
    ]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"model": "claude-sonnet-4-5", "messages": messages}))
    sent_messages = json.loads(load_session(path).requests[-1].body)["messages"]

    assert [(block["type"], block.get("tool_use_id")) for block in sent_messages[2]["content"]] == [
        ("tool_result", "t1"),
        ("tool_result", "t2"),
        ("text", None),
    ]
    assert [block.get("tool_use_id") for block in sent_messages[4]["content"]] == ["t3"]
    assert [block["type"] for block in sent_messages[-1]["content"]] == ["text"]


def test_a_model_unknown_to_the_sandbox_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    path.write_text(json.dumps({"model": "llama-9", "messages": chat}))

    assert load_session(path).model in ("gpt-5", "claude-sonnet-4-5")


def test_only_the_first_requests_of_a_long_session_are_sent(recording: Path) -> None:
    session = load_session(recording, max_steps=3)

    assert (len(session.requests), session.left_out) == (3, 1)


@pytest.mark.parametrize("text", ["", "nothing of the kind", "{}", "[]"])
def test_a_file_that_is_not_a_recording_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)

    with pytest.raises(UnreadableInput):
        load_session(path)


def test_client_breakpoints_are_on_the_system_prompt_and_the_last_two_user_messages(
    recording: Path,
) -> None:
    session = add_client_breakpoints(load_session(recording))
    bodies = [json.loads(step.body) for step in session.requests]

    assert all("cache_control" in body["system"][-1] for body in bodies)
    user_messages = [message for message in bodies[-1]["messages"] if message["role"] == "user"]
    assert [json.dumps(message).count("cache_control") for message in user_messages] == [0, 0, 1, 1]
    assert all(json.dumps(body).count("cache_control") <= 4 for body in bodies)


def test_without_a_system_prompt_the_tools_get_a_breakpoint_and_empty_texts_do_not() -> None:
    content = [{"type": "text", "text": "hi"}, {"type": "text", "text": " "}]
    body = {"tools": [{"name": "a"}, {"name": "b"}], "messages": [{"role": "user", "content": content}]}
    session = replace(SESSION, requests=[DemoRequest(json.dumps(body).encode(), 0.0)])
    (step,) = add_client_breakpoints(session).requests
    request = json.loads(step.body)

    assert ["cache_control" in tool for tool in request["tools"]] == [False, True]
    assert ["cache_control" in block for block in request["messages"][0]["content"]] == [True, False]
