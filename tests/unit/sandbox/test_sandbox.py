"""The sandbox without a server: authentication, usage over time, and scripted faults."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from foveate.sandbox.http import MAX_BODY_BYTES, Provider, SandboxReply, SandboxRequest
from foveate.sandbox.sandbox import Sandbox
from foveate.sandbox.script import Script, ScriptedCall, ScriptStep
from tests.support.scenarios.valid_requests import (
    BINDING,
    LONG_MARK,
    MARK,
    MARKING_GPT,
    Json,
    assistant,
    chat,
    claude,
    response,
    text,
    tool,
    user,
)
from tests.support.servers.sandbox import ManualClock

ANTHROPIC = {"x-api-key": "a key", "anthropic-version": "2023-06-01"}
OPENAI = {"authorization": "Bearer a key"}
LONG = "These words are kept. " * 800


class Room:
    """A sandbox with its clock, and shortcuts for requests."""

    def __init__(self, *steps: ScriptStep, **more: Any) -> None:
        self.clock = ManualClock()
        self.sandbox = Sandbox(clock=self.clock, seed=b"x", script=Script(steps=steps), **more)

    def ask(
        self, path: str, body: Json | bytes, headers: Mapping[str, str], method: str = "POST"
    ) -> SandboxReply:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self.sandbox.reply(SandboxRequest(method=method, path=path, headers=headers, body=data))

    def messages(self, body: Json | bytes, **headers: str) -> SandboxReply:
        return self.ask("/v1/messages", body, ANTHROPIC | headers)

    def chat(self, body: Json | bytes) -> SandboxReply:
        return self.ask("/v1/chat/completions", body, OPENAI)

    def responses(self, body: Json | bytes) -> SandboxReply:
        return self.ask("/v1/responses", body, OPENAI)


def said(reply: SandboxReply) -> Json:
    assert len(reply.chunks) == 1
    found: Json = json.loads(reply.chunks[0])
    return found


def streamed(reply: SandboxReply) -> list[Json]:
    lines = b"".join(reply.chunks).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def cached(reply: SandboxReply) -> tuple[int, int, int, int]:
    """Return Anthropic's usage: uncached, read, written for five minutes and for an hour."""
    usage = said(reply)["usage"]
    written = usage["cache_creation"]
    assert usage["cache_creation_input_tokens"] == sum(written.values())
    return (
        usage["input_tokens"],
        usage["cache_read_input_tokens"],
        written["ephemeral_5m_input_tokens"],
        written["ephemeral_1h_input_tokens"],
    )


@pytest.mark.parametrize(
    "headers", [{}, {"x-api-key": " "}, {"authorization": "Basic x"}, {"authorization": "Bearer"}]
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1/nothing"])
def test_an_api_key_is_required(path: str, headers: dict[str, str]) -> None:
    reply = Room().ask(path, b"{}", headers)

    assert reply.status == 401
    assert "key" in said(reply)["error"]["message"]


def test_anthropic_requires_a_version_header() -> None:
    reply = Room().ask("/v1/messages", claude(), {"x-api-key": "k"})

    assert (reply.status, said(reply)["error"]["message"]) == (400, "anthropic-version: header is required")


def test_an_error_has_the_shape_of_its_provider() -> None:
    room = Room()
    theirs, ours = room.messages(claude(max_tokens=-1)), room.chat(chat(n=1, foveate=1))

    error = said(theirs)
    assert error.keys() == {"type", "error", "request_id"}
    assert error["error"].keys() == {"type", "message"}
    assert error["request_id"] == theirs.headers["request-id"]
    assert said(ours)["error"].keys() == {"message", "type", "param", "code"}
    assert ours.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'"x"', b'{"a": "\\ud83d"}', b"[" * 100_000])
def test_a_body_that_is_not_an_object_is_rejected(body: bytes) -> None:
    room = Room()

    assert said(room.messages(body))["error"]["message"].startswith("The request body is not valid JSON: ")
    assert said(room.chat(body))["error"]["message"].startswith("We could not parse the JSON body")
    assert room.responses(body).status == 400


def test_a_body_over_32_mb_is_too_large() -> None:
    reply = Room().messages(b" " * (MAX_BODY_BYTES + 1))

    assert (reply.status, said(reply)["error"]["type"]) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v1/nothing", "POST", 404),
        ("/", "GET", 404),
        ("/v1/messages", "GET", 405),
        ("/v1/messages/batches", "POST", 404),
    ],
)
def test_an_unknown_route_is_not_found(path: str, method: str, status: int) -> None:
    reply = Room().ask(path, b"", ANTHROPIC, method)

    assert reply.status == status
    assert said(reply)["type"] == "error"
    ours = Room().ask(path.replace("/messages", "/chat/completions"), b"", OPENAI, method)
    assert ours.status == status
    assert said(ours).keys() == {"error"}


def test_a_sandbox_of_one_provider_has_no_routes_of_another() -> None:
    only = Room(providers=[Provider.ANTHROPIC])

    assert only.messages(claude()).status == 200
    assert only.ask("/v1/chat/completions", chat(), ANTHROPIC).status == 404
    assert Room(providers=[Provider.OPENAI]).ask("/v1/messages", claude(), OPENAI).status == 404


def test_models_are_listed_in_the_format_of_the_provider() -> None:
    room = Room()
    theirs = said(room.ask("/v1/models", b"", ANTHROPIC, "GET"))
    ours = said(room.ask("/v1/models", b"", OPENAI, "GET"))

    assert theirs["first_id"] == theirs["data"][0]["id"]
    assert {row["type"] for row in theirs["data"]} == {"model"}
    assert ours["object"] == "list"
    assert said(room.ask("/v1/models/gpt-4o", b"", OPENAI, "GET"))["id"] == "gpt-4o"
    assert said(room.ask(f"/v1/models/{BINDING}", b"", ANTHROPIC, "GET"))["max_tokens"] == 128_000
    assert room.ask("/v1/models/gpt-4o", b"", ANTHROPIC, "GET").status == 404
    assert room.ask("/v1/models/nobody", b"", OPENAI, "GET").status == 404


MARKED = claude(
    user(text("Now.", MARK)),
    model=BINDING,
    system=[text(LONG, LONG_MARK)],
    tools=[tool(cache_control=LONG_MARK)],
)


def test_a_cache_entry_is_read_until_it_expires() -> None:
    room = Room()
    uncached, read, short, long = cached(room.messages(MARKED))
    assert (uncached, read) == (0, 0)
    assert long > 3_000 > short > 0

    assert cached(room.messages(MARKED)) == (0, long + short, 0, 0)
    room.clock.now += 299
    assert cached(room.messages(MARKED)) == (0, long + short, 0, 0), "each use keeps it for as long again"
    room.clock.now += 301
    assert cached(room.messages(MARKED)) == (0, long, short, 0)
    room.clock.now += 3_601
    assert cached(room.messages(MARKED)) == (0, 0, short, long)


def test_each_key_has_its_own_cache() -> None:
    room = Room()
    room.messages(MARKED)

    assert cached(room.messages(MARKED, **{"x-api-key": "another"}))[1] == 0
    assert cached(room.messages(MARKED))[1] > 3_000


def test_a_rejected_or_failed_request_leaves_nothing_in_the_cache() -> None:
    room = Room(ScriptStep(status=500), ScriptStep(overloaded=True))
    assert room.messages(MARKED | {"max_tokens": -1}).status == 400
    assert room.messages(MARKED).status == 500
    assert room.messages(MARKED).status == 529

    assert cached(room.messages(MARKED))[1] == 0


def test_a_cache_entry_cannot_be_read_before_its_response_starts() -> None:
    room = Room(ScriptStep(delay_seconds=5))
    room.messages(MARKED)
    room.clock.now += 4
    assert cached(room.messages(MARKED))[1] == 0
    room.clock.now += 1
    assert cached(room.messages(MARKED))[1] > 3_000


def test_reported_input_equals_the_count() -> None:
    room = Room()
    asked = {name: value for name, value in MARKED.items() if name != "max_tokens"}
    counted = said(room.ask("/v1/messages/count_tokens", asked, ANTHROPIC))["input_tokens"]

    assert sum(cached(room.messages(MARKED))) == counted


def test_a_returned_thinking_block_is_accepted_until_the_history_is_edited() -> None:
    room = Room()
    asked = MARKED | {"thinking": {"type": "adaptive"}, "max_tokens": 4_096}
    answer = said(room.messages(asked))
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    more = [*asked["messages"], assistant(*answer["content"]), user("More.")]

    assert room.messages(asked | {"messages": more}).status == 200
    edited = room.messages(asked | {"messages": more, "system": "Another."})
    assert edited.status == 400
    assert "prefix_mismatch" in said(edited)["error"]["message"]


def test_omitted_thinking_is_still_signed() -> None:
    room = Room()
    asked = claude(model=BINDING, thinking={"type": "adaptive", "display": "omitted"})
    answer = said(room.messages(asked))
    assert answer["content"][0]["thinking"] == ""

    again = asked | {"messages": [*asked["messages"], assistant(*answer["content"]), user("More.")]}
    assert room.messages(again).status == 200


def test_a_prompt_over_the_window_is_rejected_with_its_size() -> None:
    reply = Room().messages(claude(user("word " * 250_000)))

    assert reply.status == 400
    assert said(reply)["error"]["message"].startswith("prompt is too long: ")
    assert said(reply)["error"]["message"].endswith(" tokens > 200000 maximum")


def test_chat_usage_includes_cache_reads_in_the_prompt() -> None:
    room = Room()
    body = chat({"role": "system", "content": LONG}, {"role": "user", "content": "x"}, model=MARKING_GPT)
    first, second = (said(room.chat(body))["usage"] for _ in range(2))

    assert first["prompt_tokens"] == second["prompt_tokens"] > 3_000
    assert first["prompt_tokens_details"]["cache_write_tokens"] > 3_000
    assert second["prompt_tokens_details"] == {
        "cached_tokens": first["prompt_tokens_details"]["cache_write_tokens"],
        "audio_tokens": 0,
        "cache_write_tokens": 0,
    }
    assert second["total_tokens"] == second["prompt_tokens"] + second["completion_tokens"]


def test_chat_before_gpt_5_6_reads_in_steps_and_reports_no_cache_writes() -> None:
    room = Room()
    body = chat({"role": "system", "content": LONG}, {"role": "user", "content": "x"})
    room.chat(body)
    details = said(room.chat(body))["usage"]["prompt_tokens_details"]

    assert details.keys() == {"cached_tokens", "audio_tokens"}
    assert details["cached_tokens"] > 3_000
    assert details["cached_tokens"] % 128 == 0


def test_responses_usage_reports_cache_writes_by_ttl() -> None:
    room = Room()
    body = response({"role": "user", "content": LONG}, model=MARKING_GPT, prompt_cache_options={"ttl": "12h"})
    details = said(room.responses(body))["usage"]["input_tokens_details"]

    assert details["cache_write_tokens_details"] == {
        "ttl_30m_tokens": 0,
        "ttl_12h_tokens": details["cache_write_tokens"],
    }
    assert details["cache_write_tokens"] > 3_000


def test_a_response_continues_a_stored_one_of_the_same_key() -> None:
    room = Room(ScriptStep(tools=(ScriptedCall(name="look", input={}),)))
    first = said(room.responses(response(tools=[{"type": "function", "name": "look"}])))
    call_id = first["output"][-1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "found"}
    more = response(output, previous_response_id=first["id"])

    second = said(room.responses(more))
    assert second["status"] == "completed"
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    unanswered = room.responses(response({"role": "user", "content": "x"}, previous_response_id=first["id"]))
    assert said(unanswered)["error"]["message"] == f"No tool output found for function call {call_id}."
    elsewhere = room.ask("/v1/responses", more, {"authorization": "Bearer another"})
    assert said(elsewhere)["error"]["code"] == "previous_response_not_found"


def test_a_response_with_store_false_is_not_stored() -> None:
    room = Room()
    first = said(room.responses(response(store=False)))

    assert room.responses(response(previous_response_id=first["id"])).status == 400


def test_ids_are_unique() -> None:
    room = Room()
    ids = {said(room.messages(claude()))["id"] for _ in range(50)}

    assert len(ids) == 50


@pytest.mark.parametrize(
    ("step", "status", "theirs", "ours"),
    [
        (ScriptStep(status=429, message="Slow down."), (429, 429), "rate_limit_error", "rate_limit_exceeded"),
        (ScriptStep(status=500), (500, 500), "api_error", "server_error"),
        (ScriptStep(overloaded=True), (529, 503), "overloaded_error", "server_error"),
        (ScriptStep(fail_after=2), (529, 503), "overloaded_error", "server_error"),
    ],
)
def test_a_step_can_fail(step: ScriptStep, status: tuple[int, int], theirs: str, ours: str) -> None:
    room = Room(step, step)
    replies = room.messages(claude()), room.chat(chat())

    assert (replies[0].status, replies[1].status) == status
    assert [said(reply)["error"]["type"] for reply in replies] == [theirs, ours]


def test_retry_after_is_sent() -> None:
    reply = Room(ScriptStep(status=429, retry_after_seconds=1.5)).messages(claude())

    assert reply.headers["retry-after"] == "1.5"


def test_a_failing_stream_ends_with_the_error_of_its_provider() -> None:
    room = Room(*[ScriptStep(fail_after=3)] * 3)

    theirs = streamed(room.messages(claude(stream=True)))
    assert [event["type"] for event in theirs[-2:]] == ["ping", "error"]
    assert len(theirs) == 4
    assert streamed(room.chat(chat(stream=True)))[-1].keys() == {"error"}
    assert streamed(room.responses(response(stream=True)))[-1]["type"] == "error"


def test_a_response_is_cut_off_where_the_step_says() -> None:
    step = ScriptStep(disconnect_after=2, pace_seconds=0.5, delay_seconds=1)
    reply = Room(step).messages(claude(stream=True))

    assert reply.disconnects
    assert len(reply.chunks) == 2
    assert (reply.delay_seconds, reply.pace_seconds) == (1, 0.5)
    whole = Room(ScriptStep(disconnect_after=1)).messages(claude())
    with pytest.raises(json.JSONDecodeError):
        json.loads(whole.chunks[0])


def test_a_script_is_followed_step_by_step_and_then_the_default_follows() -> None:
    room = Room(ScriptStep(text="One."), ScriptStep(text="Two."))
    room.messages(claude(max_tokens=-1))  # rejected, so no step is used
    texts = [said(room.messages(claude()))["content"][0]["text"] for _ in range(3)]

    assert texts[:2] == ["One.", "Two."]
    assert "sandbox" in texts[2]


def test_a_request_can_bring_its_own_step() -> None:
    room = Room(ScriptStep(text="By the script."))
    by_header = room.messages(claude(), **{"x-sandbox-answer": '{"text": "By header."}'})
    marker = 'Please [[sandbox {"text": "By marker.", "tools": [{"name": "look", "input": {"a": [[1]]}}]}]] now'
    by_marker = said(room.messages(claude(user(marker))))

    assert said(by_header)["content"][0]["text"] == "By header."
    assert by_marker["content"][0]["text"] == "By marker."
    assert by_marker["content"][1]["input"] == {"a": [[1]]}
    assert by_marker["stop_reason"] == "tool_use"
    assert said(room.messages(claude()))["content"][0]["text"] == "By the script."


@pytest.mark.parametrize("header", ["{", '{"txet": "x"}', '{"status": 200}', '{"delay_seconds": -1}', "[]"])
def test_an_invalid_step_is_rejected(header: str) -> None:
    reply = Room().messages(claude(), **{"x-sandbox-answer": header})

    assert reply.status == 400
    assert said(reply)["error"]["message"].startswith("x-sandbox-answer: ")
