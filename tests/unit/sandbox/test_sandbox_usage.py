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
    LONG_MARK,
    MARK,
    MARKING_GPT,
    Json,
    chat,
    claude,
    response,
    text,
    user,
)
from tests.support.servers.sandbox import ManualClock

LONG = "These words are kept. " * 400
HEADERS = {"x-api-key": "k", "authorization": "Bearer k", "anthropic-version": "2023-06-01"}
STEPS = (
    ScriptStep(text="Some words.", thinking="Hm."),
    ScriptStep(text="I look.", tools=(ScriptedCall(name="look", input={"path": "a"}),)),
)
ROUTES: dict[Format, tuple[str, Json]] = {
    Format.ANTHROPIC: (
        "/v1/messages",
        claude(user(text("Hello", MARK)), model=BINDING, system=[text(LONG, LONG_MARK)]),
    ),
    Format.CHAT: (
        "/v1/chat/completions",
        chat({"role": "user", "content": LONG}, model=MARKING_GPT),
    ),
    Format.RESPONSES: ("/v1/responses", response({"role": "user", "content": LONG}, model=MARKING_GPT)),
}


def pieces(api_format: Format, step: ScriptStep, *, streams: bool, again: bool) -> tuple[bytes, ...]:
    """Return the response of a new sandbox, or of one that got the same request before."""
    path, body = ROUTES[api_format]
    asked: Any = body | {"stream": streams}
    if api_format is Format.CHAT and streams:
        asked["stream_options"] = {"include_usage": True}
    sandbox = Sandbox(clock=ManualClock(), seed=b"x", script=Script(steps=(step,), repeat=True))
    ask = SandboxRequest(method="POST", path=path, headers=HEADERS, body=json.dumps(asked).encode())
    for _ in range(2 if again else 1):
        reply = sandbox.reply(ask)
    assert reply.status == 200
    return reply.chunks


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("api_format", ROUTES)
def test_usage_is_the_same_in_a_stream_and_in_a_whole_response(
    api_format: Format, step: ScriptStep, again: bool
) -> None:
    usage = read_response_usage(api_format, pieces(api_format, step, streams=False, again=again)[0])
    reader = StreamReader(api_format)
    for piece in pieces(api_format, step, streams=True, again=again):
        reader.feed(piece)

    assert usage is not None
    assert usage.output_tokens > 0
    if again:
        assert usage.cache.read > 1_500
    else:
        assert usage.cache.written_5m + usage.cache.written_1h > 1_500
    streamed = reader.usage
    assert streamed is not None
    assert reader.is_complete
    assert (streamed.cache, streamed.output_tokens) == (usage.cache, usage.output_tokens)
