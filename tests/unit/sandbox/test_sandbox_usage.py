"""Foveate's own parsers agree with the usage and streams of the sandbox."""

import json
from typing import Any

import pytest

from foveate.formats.response.streaming import StreamReader
from foveate.formats.response.usage import read_response_usage
from foveate.model import Format
from foveate.sandbox.http import SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import Script, ScriptedCall, ScriptStep
from tests.support.scenarios.valid_requests import (
    BINDING,
    BREAKPOINT,
    BREAKPOINT_GPT,
    LONG_BREAKPOINT,
    Json,
    chat,
    claude,
    response,
    text,
    user,
)
from tests.support.servers.sandbox import ManualClock

LONG = "These words are cached. " * 400
HEADERS = {"x-api-key": "k", "authorization": "Bearer k", "anthropic-version": "2023-06-01"}
STEPS = (
    ScriptStep(text="Some words.", thinking="Hm."),
    ScriptStep(text="I look.", tools=(ScriptedCall(name="look", input={"path": "a"}),)),
)
ROUTES: dict[Format, tuple[str, Json]] = {
    Format.ANTHROPIC: (
        "/v1/messages",
        claude(user(text("Hello", BREAKPOINT)), model=BINDING, system=[text(LONG, LONG_BREAKPOINT)]),
    ),
    Format.CHAT: (
        "/v1/chat/completions",
        chat({"role": "user", "content": LONG}, model=BREAKPOINT_GPT),
    ),
    Format.RESPONSES: ("/v1/responses", response({"role": "user", "content": LONG}, model=BREAKPOINT_GPT)),
}


def response_chunks(
    api_format: Format, step: ScriptStep, *, is_streaming: bool, is_repeated: bool
) -> tuple[bytes, ...]:
    """Return the response of a new sandbox, or of one that got the same request before."""
    path, body = ROUTES[api_format]
    request_body: Any = body | {"stream": is_streaming}
    if api_format is Format.CHAT and is_streaming:
        request_body["stream_options"] = {"include_usage": True}
    sandbox = Sandbox(clock=ManualClock(), seed=b"x", script=Script(steps=(step,), repeat=True))
    request = SandboxRequest(method="POST", path=path, headers=HEADERS, body=json.dumps(request_body).encode())
    reply = sandbox.reply(request)
    if is_repeated:
        reply = sandbox.reply(request)
    assert reply.status == 200
    return reply.chunks


@pytest.mark.parametrize("is_repeated", [False, True])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("api_format", ROUTES)
def test_usage_is_the_same_in_a_stream_and_in_a_whole_response(
    api_format: Format, step: ScriptStep, is_repeated: bool
) -> None:
    usage = read_response_usage(
        api_format, response_chunks(api_format, step, is_streaming=False, is_repeated=is_repeated)[0]
    )
    reader = StreamReader(api_format)
    for chunk in response_chunks(api_format, step, is_streaming=True, is_repeated=is_repeated):
        reader.feed(chunk)

    assert usage is not None
    assert usage.output_tokens > 0
    if is_repeated:
        assert usage.cache.read > 1_500
    else:
        assert usage.cache.written_5m + usage.cache.written_1h > 1_500
    streamed = reader.usage
    assert streamed is not None
    assert reader.is_complete
    assert (streamed.cache, streamed.output_tokens) == (usage.cache, usage.output_tokens)
