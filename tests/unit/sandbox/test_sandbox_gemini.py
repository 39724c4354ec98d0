"""Validation and responses of the Gemini API."""

import json
from typing import Any

import pytest

from foveate.formats.response.streaming import StreamReader
from foveate.formats.response.usage import read_response_usage
from foveate.model import Format
from foveate.sandbox.http import SandboxReply, SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import Script, ScriptedCall, ScriptStep
from tests.support.servers.sandbox import ManualClock

CALL = {"functionCall": {"name": "look", "args": {"a_b": 1}}}
RESULT = {"functionResponse": {"name": "look", "response": {"c_d": 1}}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


HELLO = user({"text": "Hello"})


def send(
    body: Any, *, name: str = "gemini-2.5-flash", method: str = "generateContent", query: str = ""
) -> SandboxReply:
    sandbox = Sandbox(clock=ManualClock(), seed=b"x", script=Script(steps=(STEP,), repeat=True))
    headers = {"x-goog-api-key": "k"}
    path = f"/v1beta/models/{name}:{method}"
    return sandbox.reply(
        SandboxRequest(method="POST", path=path, headers=headers, body=json.dumps(body).encode(), query=query)
    )


STEP = ScriptStep(
    text="Some words to be streamed in pieces.", thinking="Hm.", tools=(ScriptedCall(name="look", input={}),)
)


@pytest.mark.parametrize(
    "contents",
    [
        [HELLO],
        [HELLO, model({"text": "Hi"}), HELLO],
        [HELLO, model({"text": "I look."}, CALL), user(RESULT)],
        [HELLO, model(CALL, CALL), user(RESULT, RESULT), model({"text": "So."})],
        [{"parts": [{"inline_data": {"mime_type": "image/png", "data": "aGk="}}, {"text": "?"}]}],
        [HELLO, model({"thoughtSignature": "aGk="}), HELLO],
        [HELLO, model({"text": "Hi", "thoughtSignature": "skip_thought_signature_validator"}), HELLO],
    ],
)
def test_valid_gemini_requests_are_answered(contents: list[Any]) -> None:
    body = {
        "contents": contents,
        "system_instruction": {"parts": [{"text": "Be kind."}]},
        "generationConfig": {"maxOutputTokens": 500, "thinking_config": {"include_thoughts": True}},
        "tools": [{"function_declarations": [{"name": "look", "parameters": {"type": "OBJECT"}}]}],
    }

    assert send(body).status == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "contents is not specified"),
        ({"contents": []}, "out of range"),
        ({"contents": [{"role": "assistant", "parts": [{"text": "x"}]}]}, "Invalid value at"),
        ({"contents": [{"role": "user"}]}, "must not be empty"),
        ({"contents": [user({})]}, "required oneof field 'data'"),
        (
            {"contents": [user({"text": "x", "functionCall": CALL["functionCall"]})]},
            "required oneof field 'data'",
        ),
        ({"contents": [HELLO], "messages": []}, 'Unknown name "messages": Cannot find field'),
        (
            {"contents": [HELLO], "generationConfig": {"max_tokens": 1}},
            "Unknown name \"maxTokens\" at 'generationConfig'",
        ),
        ({"contents": [HELLO], "generationConfig": {"maxOutputTokens": 0}}, "out of range"),
        ({"contents": [HELLO], "generationConfig": {"maxOutputTokens": 65_537}}, "supported range"),
        ({"contents": [HELLO, model(CALL), HELLO]}, "number of function response parts"),
        ({"contents": [HELLO, model(CALL, CALL), user(RESULT)]}, "number of function response parts"),
        ({"contents": [user(RESULT)]}, "number of function response parts"),
        ({"contents": [HELLO, model(CALL)]}, "function response turn"),
        ({"contents": [model(CALL), user(RESULT)]}, "function call turn comes immediately after"),
    ],
)
def test_invalid_gemini_requests_get_the_error_text_of_google(body: Any, message: str) -> None:
    reply = send(body)
    error = json.loads(reply.chunks[0])["error"]

    assert (reply.status, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert message in error["message"]


def test_an_unknown_model_is_not_found_and_a_key_is_required() -> None:
    assert send({"contents": [HELLO]}, name="nobody").status == 404
    request = SandboxRequest(
        method="POST", path="/v1beta/models/gemini-2.5-flash:generateContent", headers={}, body=b"{}"
    )
    assert Sandbox(clock=ManualClock(), seed=b"x").reply(request).status == 403


@pytest.mark.parametrize("query", ["alt=sse", ""])
def test_usage_is_the_same_in_a_stream_and_in_a_whole_response(query: str) -> None:
    body = {"contents": [HELLO], "generationConfig": {"candidateCount": 2}}
    usage = read_response_usage(Format.GEMINI, send(body).chunks[0])
    reader = StreamReader(Format.GEMINI)
    for chunk in send(body, method="streamGenerateContent", query=query).chunks:
        reader.feed(chunk)
    reader.end()

    assert usage is not None
    assert usage.reasoning_tokens > 0
    assert reader.usage == usage
    assert (reader.is_complete, reader.stop_reason, reader.model) == (True, "STOP", "gemini-2.5-flash")


def test_a_count_equals_the_reported_usage() -> None:
    contents_count = send({"contents": [HELLO]}, method="countTokens")
    wrapped_count = send({"generateContentRequest": {"contents": [HELLO]}}, method="countTokens")
    usage = read_response_usage(Format.GEMINI, send({"contents": [HELLO]}).chunks[0])

    assert usage is not None
    for reply in (contents_count, wrapped_count):
        assert json.loads(reply.chunks[0])["totalTokens"] == usage.cache.input_tokens
