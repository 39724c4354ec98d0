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
FLAT = [{"type": "function", "name": "look", "parameters": SCHEMA}, {"type": "custom", "name": "write"}]
LEGACY = [{"name": "listen"}, {"name": "look", "parameters": SCHEMA}]


def send(path: str, body: Json, *steps: ScriptStep) -> tuple[bytes, ...]:
    sandbox = Sandbox(clock=ManualClock(), seed=b"x", script=Script(steps=steps))
    reply = sandbox.reply(
        SandboxRequest(method="POST", path=path, headers=HEADERS, body=json.dumps(body).encode())
    )
    assert reply.status == 200, reply.chunks
    return reply.chunks


def completion(body: Json, *steps: ScriptStep) -> Json:
    found: Json = json.loads(send("/v1/chat/completions", body, *steps)[0])
    return found


def chunks(body: Json) -> list[Json]:
    """Return the deltas of the first choice of a stream."""
    lines = b"".join(send("/v1/chat/completions", body | {"stream": True})).decode().splitlines()
    rows = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [row["choices"][0]["delta"] for row in rows if row["choices"] and row["choices"][0]["index"] == 0]


def allowed(mode: str, *tools: Json) -> Json:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


@pytest.mark.parametrize(
    ("choice", "kind", "name"),
    [
        ("required", "custom", "write"),
        ({"type": "custom", "custom": {"name": "write"}}, "custom", "write"),
        ({"type": "function", "function": {"name": "look"}}, "function", "look"),
        (allowed("required", {"type": "function", "function": {"name": "listen"}}), "function", "listen"),
        (allowed("required", {"type": "custom", "custom": {"name": "write"}}), "custom", "write"),
    ],
)
def test_a_forced_tool_is_called_in_chat_completions(choice: Any, kind: str, name: str) -> None:
    body = chat(tools=[WRITE, LOOK, LISTEN], tool_choice=choice)
    (told,) = completion(body)["choices"]

    (call,) = told["message"]["tool_calls"]
    assert told["finish_reason"] == "tool_calls"
    assert (call["type"], call[kind]["name"]) == (kind, name)
    assert call[kind]["input" if kind == "custom" else "arguments"]
    first, *rest = [delta["tool_calls"][0] for delta in chunks(body) if "tool_calls" in delta]
    assert first[kind]["name"] == name
    field = "input" if kind == "custom" else "arguments"
    assert "".join(piece[kind][field] for piece in rest) == call[kind][field]


@pytest.mark.parametrize("choice", ["auto", "none", allowed("auto", LOOK)])
def test_a_tool_that_is_not_forced_is_not_called(choice: Any) -> None:
    (told,) = completion(chat(tools=[WRITE, LOOK], tool_choice=choice))["choices"]

    assert "tool_calls" not in told["message"]
    assert told["message"]["content"]


def test_a_legacy_function_is_called_in_the_legacy_format() -> None:
    body = chat(functions=LEGACY, function_call={"name": "look"})
    (told,) = completion(body)["choices"]

    assert told["finish_reason"] == "function_call"
    assert told["message"]["function_call"] == {"name": "look", "arguments": '{"path": "sandbox"}'}
    assert "tool_calls" not in told["message"]
    first, *rest = [delta["function_call"] for delta in chunks(body) if "function_call" in delta]
    assert first == {"name": "look", "arguments": ""}
    assert "".join(piece["arguments"] for piece in rest) == '{"path": "sandbox"}'
    (silent,) = completion(chat(functions=LEGACY, function_call="auto"))["choices"]
    assert silent["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("choice", "kind", "name"),
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
def test_a_forced_tool_is_called_in_the_responses_api(choice: Any, kind: str, name: str) -> None:
    body = response(tools=FLAT, tool_choice=choice)
    (item,) = json.loads(send("/v1/responses", body)[0])["output"]
    assert (item["type"], item["name"], item["status"]) == (kind, name, "completed")

    lines = b"".join(send("/v1/responses", body | {"stream": True})).decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    field, stem = (
        ("input", "custom_tool_call_input")
        if kind == "custom_tool_call"
        else (
            "arguments",
            "function_call_arguments",
        )
    )
    deltas = [event["delta"] for event in events if event["type"] == f"response.{stem}.delta"]
    assert "".join(deltas) == item[field]
    (done,) = [event for event in events if event["type"] == f"response.{stem}.done"]
    assert done[field] == item[field]


def test_a_custom_tool_call_and_its_output_are_accepted() -> None:
    body = response(tools=FLAT, tool_choice={"type": "custom", "name": "write"})
    (item,) = json.loads(send("/v1/responses", body)[0])["output"]
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "written"}

    send("/v1/responses", response({"role": "user", "content": "x"}, item, output))


def test_a_call_of_a_namespaced_tool_names_the_namespace_and_is_accepted() -> None:
    namespace = {"type": "namespace", "name": "files", "tools": FLAT}
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
    one, three = (completion(chat(tools=[LOOK], n=n), step) for n in (1, 3))

    assert three["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"] > 0
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert [told["index"] for told in three["choices"]] == [0, 1, 2]
    assert len({told["message"]["tool_calls"][0]["id"] for told in three["choices"]}) == 3
