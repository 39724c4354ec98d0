"""Forced tool calls in each format, and usage of several choices."""

import json
from typing import Any

import pytest

from foveate.sandbox.http import SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import Script, ScriptedCall, ScriptStep
from tests.support.scenarios.valid_requests import Json, chat, claude, response, tool
from tests.support.servers.sandbox import ManualClock

HEADERS = {"x-api-key": "k", "authorization": "Bearer k", "anthropic-version": "2023-06-01"}
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
LOOK = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
LISTEN = {"type": "function", "function": {"name": "listen"}}
WRITE = {"type": "custom", "custom": {"name": "write"}}
RESPONSES_TOOLS = [
    {"type": "function", "name": "look", "parameters": SCHEMA},
    {"type": "custom", "name": "write"},
]
LEGACY = [{"name": "listen"}, {"name": "look", "parameters": SCHEMA}]


def send(path: str, body: Json, *steps: ScriptStep) -> tuple[bytes, ...]:
    sandbox = Sandbox(clock=ManualClock(), seed=b"x", script=Script(steps=steps))
    reply = sandbox.reply(
        SandboxRequest(method="POST", path=path, headers=HEADERS, body=json.dumps(body).encode())
    )
    assert reply.status == 200, reply.chunks
    return reply.chunks


def send_chat(body: Json, *steps: ScriptStep) -> Json:
    reply: Json = json.loads(send("/v1/chat/completions", body, *steps)[0])
    return reply


def stream_deltas(body: Json) -> list[Json]:
    """Return the deltas of the first choice of a stream."""
    lines = b"".join(send("/v1/chat/completions", body | {"stream": True})).decode().splitlines()
    rows = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [row["choices"][0]["delta"] for row in rows if row["choices"] and row["choices"][0]["index"] == 0]


def allowed_tools(mode: str, *tools: Json) -> Json:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


@pytest.mark.parametrize(
    ("tool_choice", "kind", "name"),
    [
        ("required", "custom", "write"),
        ({"type": "custom", "custom": {"name": "write"}}, "custom", "write"),
        ({"type": "function", "function": {"name": "look"}}, "function", "look"),
        (allowed_tools("required", {"type": "function", "function": {"name": "listen"}}), "function", "listen"),
        (allowed_tools("required", {"type": "custom", "custom": {"name": "write"}}), "custom", "write"),
    ],
)
def test_a_forced_tool_is_called_in_chat_completions(tool_choice: Any, kind: str, name: str) -> None:
    body = chat(tools=[WRITE, LOOK, LISTEN], tool_choice=tool_choice)
    (completion_choice,) = send_chat(body)["choices"]

    (call,) = completion_choice["message"]["tool_calls"]
    assert completion_choice["finish_reason"] == "tool_calls"
    assert (call["type"], call[kind]["name"]) == (kind, name)
    assert call[kind]["input" if kind == "custom" else "arguments"]
    first, *later_deltas = [delta["tool_calls"][0] for delta in stream_deltas(body) if "tool_calls" in delta]
    assert first[kind]["name"] == name
    field = "input" if kind == "custom" else "arguments"
    assert "".join(piece[kind][field] for piece in later_deltas) == call[kind][field]


@pytest.mark.parametrize("tool_choice", ["auto", "none", allowed_tools("auto", LOOK)])
def test_a_tool_that_is_not_forced_is_not_called(tool_choice: Any) -> None:
    (completion_choice,) = send_chat(chat(tools=[WRITE, LOOK], tool_choice=tool_choice))["choices"]

    assert "tool_calls" not in completion_choice["message"]
    assert completion_choice["message"]["content"]


def test_a_legacy_function_is_called_in_the_legacy_format() -> None:
    body = chat(functions=LEGACY, function_call={"name": "look"})
    (completion_choice,) = send_chat(body)["choices"]

    assert completion_choice["finish_reason"] == "function_call"
    assert completion_choice["message"]["function_call"] == {"name": "look", "arguments": '{"path": "sandbox"}'}
    assert "tool_calls" not in completion_choice["message"]
    first, *later_deltas = [delta["function_call"] for delta in stream_deltas(body) if "function_call" in delta]
    assert first == {"name": "look", "arguments": ""}
    assert "".join(piece["arguments"] for piece in later_deltas) == '{"path": "sandbox"}'
    (uncalled_choice,) = send_chat(chat(functions=LEGACY, function_call="auto"))["choices"]
    assert uncalled_choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("tool_choice", "kind", "name"),
    [
        ("required", "function_call", "look"),
        ({"type": "custom", "name": "write"}, "custom_tool_call", "write"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "write"}]},
            "custom_tool_call",
            "write",
        ),
    ],
)
def test_a_forced_tool_is_called_in_the_responses_api(tool_choice: Any, kind: str, name: str) -> None:
    body = response(tools=RESPONSES_TOOLS, tool_choice=tool_choice)
    (item,) = json.loads(send("/v1/responses", body)[0])["output"]
    assert (item["type"], item["name"], item["status"]) == (kind, name, "completed")

    lines = b"".join(send("/v1/responses", body | {"stream": True})).decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    field, event_name = (
        ("input", "custom_tool_call_input")
        if kind == "custom_tool_call"
        else (
            "arguments",
            "function_call_arguments",
        )
    )
    deltas = [event["delta"] for event in events if event["type"] == f"response.{event_name}.delta"]
    assert "".join(deltas) == item[field]
    (done_event,) = [event for event in events if event["type"] == f"response.{event_name}.done"]
    assert done_event[field] == item[field]


def test_a_custom_tool_call_and_its_output_are_accepted() -> None:
    body = response(tools=RESPONSES_TOOLS, tool_choice={"type": "custom", "name": "write"})
    (item,) = json.loads(send("/v1/responses", body)[0])["output"]
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "written"}

    send("/v1/responses", response({"role": "user", "content": "x"}, item, output))


def test_a_call_of_a_namespaced_tool_names_the_namespace_and_is_accepted() -> None:
    namespace = {"type": "namespace", "name": "files", "tools": RESPONSES_TOOLS}
    body = response(tools=[namespace], tool_choice="required")
    (item,) = json.loads(send("/v1/responses", body)[0])["output"]
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "seen"}

    assert (item["name"], item["namespace"]) == ("look", "files")
    send("/v1/responses", response({"role": "user", "content": "x"}, item, output))


def test_messages_between_agents_are_accepted() -> None:
    content = [
        {"type": "input_text", "text": "NEW_TASK"},
        {"type": "encrypted_content", "encrypted_content": "x"},
    ]
    message = {"type": "agent_message", "author": "/root", "recipient": "/root/one", "content": content}

    send("/v1/responses", response({"role": "user", "content": "x"}, message))


def test_a_client_side_provider_tool_can_be_forced() -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]
    body = claude(tools=[*tools, tool()], tool_choice={"type": "any"})
    (block,) = json.loads(send("/v1/messages", body)[0])["content"]

    assert (block["type"], block["name"]) == ("tool_use", "bash")


def test_every_choice_is_charged_and_has_its_own_tool_calls() -> None:
    step = ScriptStep(text="I look.", tools=(ScriptedCall(name="look", input={"path": "a"}),))
    single, triple = (send_chat(chat(tools=[LOOK], n=count), step) for count in (1, 3))

    assert triple["usage"]["completion_tokens"] == 3 * single["usage"]["completion_tokens"] > 0
    assert triple["usage"]["prompt_tokens"] == single["usage"]["prompt_tokens"]
    assert [completion_choice["index"] for completion_choice in triple["choices"]] == [0, 1, 2]
    assert (
        len({completion_choice["message"]["tool_calls"][0]["id"] for completion_choice in triple["choices"]})
        == 3
    )
