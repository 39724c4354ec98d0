"""Replay predicts what the gateway spends on a session, with edits that pay."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import foveate
from foveate.cost.pricing.price_book import PriceBook
from foveate.formats.response.usage import parse_usage
from foveate.model import Format
from foveate.replay.outcomes import Policy
from foveate.replay.recording import RecordedCall, RecordedMessage, Recording
from foveate.replay.recording_files import read_recordings
from foveate.replay.run import ReplayOptions, replay_recording
from foveate.sandbox.script import Script, ScriptedCall, ScriptStep
from tests.e2e.test_gateway_paying_edits import configure, read_cost, read_edits
from tests.support.scenarios.priced_workloads import HEADERS, MODEL, Texts
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import RunningSandbox, running_sandbox

Body = dict[str, Any]
SESSION = "37f83ec9"
ENVELOPE: Body = {
    "model": MODEL,
    "max_tokens": 4_096,
    "system": [
        {"type": "text", "text": Texts()(4_000), "cache_control": {"type": "ephemeral"}},
    ],
    "tools": [
        {"name": name, "description": f"{name}s.", "input_schema": {"type": "object", "properties": {}}}
        for name in ("Read", "Edit", "Write", "Bash", "Grep", "Glob", "TodoWrite", "Task", "WebFetch")
    ],
}


class Summarizer(Script, frozen=True):
    """Goes on with a tool call, and writes a summary when it is asked for one."""

    def step(self, number: int) -> ScriptStep:
        del number
        body = json.loads(RUNNING[-1].requests[-1].body)
        if "call no tool" not in json.dumps(body["messages"][-1]):
            return ScriptStep(tools=(ScriptedCall(name="Read", input={"file_path": "src/next.py"}),))
        return ScriptStep(text=foveate.summarize(_readable(body["messages"]), limit_tokens=2_500))


RUNNING: list[RunningSandbox] = []


def _readable(messages: list[Body]) -> list[Body]:
    return [{"role": message["role"], "content": message["content"]} for message in messages[:-1]]


def make_body(call: RecordedCall) -> Body:
    messages = [_clean(json.loads(message.raw)) for message in call.last_message.history()]
    last = messages[-1]
    blocks = [*last["content"][:-1], {**last["content"][-1], "cache_control": {"type": "ephemeral"}}]
    return {**ENVELOPE, "messages": [*messages[:-1], {**last, "content": blocks}]}


def _clean(message: Body) -> Body:
    """A message without thinking, whose signatures are not the sandbox's, and with blocks only."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    kept = [block for block in blocks if block["type"] in ("text", "tool_use", "tool_result")]
    return {
        "role": message["role"],
        "content": [_clean_block(block) for block in kept] or [{"type": "text", "text": "…"}],
    }


def _clean_block(block: Body) -> Body:
    names = {
        "text": ("type", "text"),
        "tool_use": ("type", "id", "name", "input"),
        "tool_result": ("type", "tool_use_id", "content", "is_error"),
    }
    return {name: block[name] for name in names[block["type"]] if block.get(name) is not None}


def send_all(
    calls: Sequence[RecordedCall], url: str, sandbox: RunningSandbox, gateway: RunningGateway | None = None
) -> Iterator[Body]:
    """Send the calls of a recording at their times; yield the responses."""
    with httpx.Client(base_url=url, headers=HEADERS, timeout=120) as client:
        for number, call in enumerate(calls, 1):
            sandbox.clock.now = call.at
            response = client.post("/v1/messages", json=make_body(call))
            assert response.status_code == 200, response.text
            yield response.json()
            if gateway is not None:
                gateway.wait_for_compactions(number)


def as_sent(calls: Sequence[RecordedCall], responses: Sequence[Body]) -> Sequence[RecordedCall]:
    """The calls with the usage that the sandbox reported. Like in a log, they share their messages."""
    messages: dict[tuple[RecordedMessage | None, bytes], RecordedMessage] = {}

    def message_after(previous: RecordedMessage | None, message: RecordedMessage) -> RecordedMessage:
        raw = json.dumps(_clean(json.loads(message.raw))).encode()
        return messages.setdefault(
            (previous, raw),
            RecordedMessage(
                previous=previous,
                role=message.role,
                raw=raw,
                depth=0 if previous is None else previous.depth + 1,
            ),
        )

    sent = []
    for call, response in zip(calls, responses, strict=True):
        last_message = None
        for message in call.last_message.history():
            last_message = message_after(last_message, message)
        assert last_message is not None
        sent.append(
            replace(
                call,
                model=MODEL,
                last_message=last_message,
                response=json.dumps({"role": "assistant", "content": response["content"]}).encode(),
                envelope=json.dumps(ENVELOPE).encode(),
                usage=parse_usage(Format.ANTHROPIC, json.dumps(response["usage"]).encode()),
                response_at=call.at,
                has_thinking=False,
                output_is_known=True,
            )
        )
    return sent


@pytest.mark.slow
@pytest.mark.process
def test_a_recorded_session_costs_what_replay_predicts(shared_data: Path, tmp_path: Path) -> None:
    (path,) = (shared_data / "sessions" / "claude_code").glob(f"*_{SESSION}*")
    (recording,) = read_recordings(path)
    calls = tuple(call for call in recording.calls if call.conversation == recording.calls[0].conversation)
    options = configure({"enabled": True, "trigger": "cost", "clearing": "cost", "tail_keep_tokens": 20_000})
    with running_sandbox(script=Summarizer()) as sandbox:
        RUNNING.append(sandbox)
        responses = list(send_all(calls, sandbox.url, sandbox))
    with (
        running_sandbox(script=Summarizer()) as sandbox,
        running_gateway(sandbox.url, tmp_path, clock=sandbox.clock, options=options) as gateway,
    ):
        RUNNING.append(sandbox)
        list(send_all(calls, gateway.url, sandbox, gateway))
        assert gateway.failed_steps == []
    sent = as_sent(calls, responses)
    replayed = replay_recording(
        Recording(name="sent", source=recording.source, format=Format.ANTHROPIC, calls=tuple(sent)),
        PriceBook(),
        ReplayOptions(policies=(Policy.GATEWAY,), gateway=options),
    )
    predicted = replayed.outcomes[Policy.GATEWAY].dollars

    assert read_edits(tmp_path)
    assert predicted is not None
    assert read_cost(tmp_path) == pytest.approx(float(predicted), rel=0.02)
