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
    BREAKPOINT,
    BREAKPOINT_GPT,
    LONG_BREAKPOINT,
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


class SandboxClient:
    """A sandbox with its clock, and shortcuts for requests."""

    def __init__(self, *steps: ScriptStep, **fields: Any) -> None:
        self.clock = ManualClock()
        self.sandbox = Sandbox(clock=self.clock, seed=b"x", script=Script(steps=steps), **fields)

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


def reply_json(reply: SandboxReply) -> Json:
    assert len(reply.chunks) == 1
    found: Json = json.loads(reply.chunks[0])
    return found


def stream_events(reply: SandboxReply) -> list[Json]:
    lines = b"".join(reply.chunks).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def cache_usage(reply: SandboxReply) -> tuple[int, int, int, int]:
    """Return Anthropic's usage: uncached, read, written for five minutes and for an hour."""
    usage = reply_json(reply)["usage"]
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
    reply = SandboxClient().ask(path, b"{}", headers)

    assert reply.status == 401
    assert "key" in reply_json(reply)["error"]["message"]


def test_anthropic_requires_a_version_header() -> None:
    reply = SandboxClient().ask("/v1/messages", claude(), {"x-api-key": "k"})

    assert (reply.status, reply_json(reply)["error"]["message"]) == (
        400,
        "anthropic-version: header is required",
    )


def test_an_error_has_the_shape_of_its_provider() -> None:
    room = SandboxClient()
    theirs, ours = room.messages(claude(max_tokens=-1)), room.chat(chat(n=1, foveate=1))

    error = reply_json(theirs)
    assert error.keys() == {"type", "error", "request_id"}
    assert error["error"].keys() == {"type", "message"}
    assert error["request_id"] == theirs.headers["request-id"]
    assert reply_json(ours)["error"].keys() == {"message", "type", "param", "code"}
    assert ours.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'"x"', b'{"a": "\\ud83d"}', b"[" * 100_000])
def test_a_body_that_is_not_an_object_is_rejected(body: bytes) -> None:
    room = SandboxClient()

    assert reply_json(room.messages(body))["error"]["message"].startswith(
        "The request body is not valid JSON: "
    )
    assert reply_json(room.chat(body))["error"]["message"].startswith("We could not parse the JSON body")
    assert room.responses(body).status == 400


def test_a_body_over_32_mb_is_too_large() -> None:
    reply = SandboxClient().messages(b" " * (MAX_BODY_BYTES + 1))

    assert (reply.status, reply_json(reply)["error"]["type"]) == (413, "request_too_large")


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
    reply = SandboxClient().ask(path, b"", ANTHROPIC, method)

    assert reply.status == status
    assert reply_json(reply)["type"] == "error"
    ours = SandboxClient().ask(path.replace("/messages", "/chat/completions"), b"", OPENAI, method)
    assert ours.status == status
    assert reply_json(ours).keys() == {"error"}


def test_a_sandbox_of_one_provider_has_no_routes_of_another() -> None:
    only = SandboxClient(providers=[Provider.ANTHROPIC])

    assert only.messages(claude()).status == 200
    assert only.ask("/v1/chat/completions", chat(), ANTHROPIC).status == 404
    assert SandboxClient(providers=[Provider.OPENAI]).ask("/v1/messages", claude(), OPENAI).status == 404


def test_models_are_listed_in_the_format_of_the_provider() -> None:
    room = SandboxClient()
    theirs = reply_json(room.ask("/v1/models", b"", ANTHROPIC, "GET"))
    ours = reply_json(room.ask("/v1/models", b"", OPENAI, "GET"))

    assert theirs["first_id"] == theirs["data"][0]["id"]
    assert {row["type"] for row in theirs["data"]} == {"model"}
    assert ours["object"] == "list"
    assert reply_json(room.ask("/v1/models/gpt-4o", b"", OPENAI, "GET"))["id"] == "gpt-4o"
    assert reply_json(room.ask(f"/v1/models/{BINDING}", b"", ANTHROPIC, "GET"))["max_tokens"] == 128_000
    assert room.ask("/v1/models/gpt-4o", b"", ANTHROPIC, "GET").status == 404
    assert room.ask("/v1/models/nobody", b"", OPENAI, "GET").status == 404


WITH_BREAKPOINT = claude(
    user(text("Now.", BREAKPOINT)),
    model=BINDING,
    system=[text(LONG, LONG_BREAKPOINT)],
    tools=[tool(cache_control=LONG_BREAKPOINT)],
)


def test_a_cache_entry_is_read_until_it_expires() -> None:
    room = SandboxClient()
    uncached, read, short, long = cache_usage(room.messages(WITH_BREAKPOINT))
    assert (uncached, read) == (0, 0)
    assert long > 3_000 > short > 0

    assert cache_usage(room.messages(WITH_BREAKPOINT)) == (0, long + short, 0, 0)
    room.clock.now += 299
    assert cache_usage(room.messages(WITH_BREAKPOINT)) == (0, long + short, 0, 0), (
        "each use keeps it for as long again"
    )
    room.clock.now += 301
    assert cache_usage(room.messages(WITH_BREAKPOINT)) == (0, long, short, 0)
    room.clock.now += 3_601
    assert cache_usage(room.messages(WITH_BREAKPOINT)) == (0, 0, short, long)


def test_each_key_has_its_own_cache() -> None:
    room = SandboxClient()
    room.messages(WITH_BREAKPOINT)

    assert cache_usage(room.messages(WITH_BREAKPOINT, **{"x-api-key": "another"}))[1] == 0
    assert cache_usage(room.messages(WITH_BREAKPOINT))[1] > 3_000


def test_a_rejected_or_failed_request_leaves_nothing_in_the_cache() -> None:
    room = SandboxClient(ScriptStep(status=500), ScriptStep(overloaded=True))
    assert room.messages(WITH_BREAKPOINT | {"max_tokens": -1}).status == 400
    assert room.messages(WITH_BREAKPOINT).status == 500
    assert room.messages(WITH_BREAKPOINT).status == 529

    assert cache_usage(room.messages(WITH_BREAKPOINT))[1] == 0


def test_a_cache_entry_cannot_be_read_before_its_response_starts() -> None:
    room = SandboxClient(ScriptStep(delay_seconds=5))
    room.messages(WITH_BREAKPOINT)
    room.clock.now += 4
    assert cache_usage(room.messages(WITH_BREAKPOINT))[1] == 0
    room.clock.now += 1
    assert cache_usage(room.messages(WITH_BREAKPOINT))[1] > 3_000


def test_reported_input_equals_the_count() -> None:
    room = SandboxClient()
    asked = {name: value for name, value in WITH_BREAKPOINT.items() if name != "max_tokens"}
    counted = reply_json(room.ask("/v1/messages/count_tokens", asked, ANTHROPIC))["input_tokens"]

    assert sum(cache_usage(room.messages(WITH_BREAKPOINT))) == counted


def test_a_returned_thinking_block_is_accepted_until_the_history_is_edited() -> None:
    room = SandboxClient()
    asked = WITH_BREAKPOINT | {"thinking": {"type": "adaptive"}, "max_tokens": 4_096}
    answer = reply_json(room.messages(asked))
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    fields = [*asked["messages"], assistant(*answer["content"]), user("More.")]

    assert room.messages(asked | {"messages": fields}).status == 200
    edited = room.messages(asked | {"messages": fields, "system": "Another."})
    assert edited.status == 400
    assert "prefix_mismatch" in reply_json(edited)["error"]["message"]


def test_omitted_thinking_is_still_signed() -> None:
    room = SandboxClient()
    asked = claude(model=BINDING, thinking={"type": "adaptive", "display": "omitted"})
    answer = reply_json(room.messages(asked))
    assert answer["content"][0]["thinking"] == ""

    again = asked | {"messages": [*asked["messages"], assistant(*answer["content"]), user("More.")]}
    assert room.messages(again).status == 200


def test_a_prompt_over_the_window_is_rejected_with_its_size() -> None:
    reply = SandboxClient().messages(claude(user("word " * 250_000)))

    assert reply.status == 400
    assert reply_json(reply)["error"]["message"].startswith("prompt is too long: ")
    assert reply_json(reply)["error"]["message"].endswith(" tokens > 200000 maximum")


def test_chat_usage_includes_cache_reads_in_the_prompt() -> None:
    room = SandboxClient()
    body = chat({"role": "system", "content": LONG}, {"role": "user", "content": "x"}, model=BREAKPOINT_GPT)
    first, second = (reply_json(room.chat(body))["usage"] for _ in range(2))

    assert first["prompt_tokens"] == second["prompt_tokens"] > 3_000
    assert first["prompt_tokens_details"]["cache_write_tokens"] > 3_000
    assert second["prompt_tokens_details"] == {
        "cached_tokens": first["prompt_tokens_details"]["cache_write_tokens"],
        "audio_tokens": 0,
        "cache_write_tokens": 0,
    }
    assert second["total_tokens"] == second["prompt_tokens"] + second["completion_tokens"]


def test_chat_before_gpt_5_6_reads_in_steps_and_reports_no_cache_writes() -> None:
    room = SandboxClient()
    body = chat({"role": "system", "content": LONG}, {"role": "user", "content": "x"})
    room.chat(body)
    details = reply_json(room.chat(body))["usage"]["prompt_tokens_details"]

    assert details.keys() == {"cached_tokens", "audio_tokens"}
    assert details["cached_tokens"] > 3_000
    assert details["cached_tokens"] % 128 == 0


def test_responses_usage_reports_cache_writes_by_ttl() -> None:
    room = SandboxClient()
    body = response(
        {"role": "user", "content": LONG}, model=BREAKPOINT_GPT, prompt_cache_options={"ttl": "12h"}
    )
    details = reply_json(room.responses(body))["usage"]["input_tokens_details"]

    assert details["cache_write_tokens_details"] == {
        "ttl_30m_tokens": 0,
        "ttl_12h_tokens": details["cache_write_tokens"],
    }
    assert details["cache_write_tokens"] > 3_000


def test_a_response_continues_a_stored_one_of_the_same_key() -> None:
    room = SandboxClient(ScriptStep(tools=(ScriptedCall(name="look", input={}),)))
    first = reply_json(room.responses(response(tools=[{"type": "function", "name": "look"}])))
    call_id = first["output"][-1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "found"}
    fields = response(output, previous_response_id=first["id"])

    second = reply_json(room.responses(fields))
    assert second["status"] == "completed"
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    unanswered = room.responses(response({"role": "user", "content": "x"}, previous_response_id=first["id"]))
    assert reply_json(unanswered)["error"]["message"] == f"No tool output found for function call {call_id}."
    elsewhere = room.ask("/v1/responses", fields, {"authorization": "Bearer another"})
    assert reply_json(elsewhere)["error"]["code"] == "previous_response_not_found"


def test_a_response_with_store_false_is_not_stored() -> None:
    room = SandboxClient()
    first = reply_json(room.responses(response(store=False)))

    assert room.responses(response(previous_response_id=first["id"])).status == 400


def test_ids_are_unique() -> None:
    room = SandboxClient()
    ids = {reply_json(room.messages(claude()))["id"] for _ in range(50)}

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
    room = SandboxClient(step, step)
    replies = room.messages(claude()), room.chat(chat())

    assert (replies[0].status, replies[1].status) == status
    assert [reply_json(reply)["error"]["type"] for reply in replies] == [theirs, ours]


def test_retry_after_is_sent() -> None:
    reply = SandboxClient(ScriptStep(status=429, retry_after_seconds=1.5)).messages(claude())

    assert reply.headers["retry-after"] == "1.5"


def test_a_failing_stream_ends_with_the_error_of_its_provider() -> None:
    room = SandboxClient(*[ScriptStep(fail_after=3)] * 3)

    theirs = stream_events(room.messages(claude(stream=True)))
    assert [event["type"] for event in theirs[-2:]] == ["ping", "error"]
    assert len(theirs) == 4
    assert stream_events(room.chat(chat(stream=True)))[-1].keys() == {"error"}
    assert stream_events(room.responses(response(stream=True)))[-1]["type"] == "error"


def test_a_response_is_cut_off_where_the_step_says() -> None:
    step = ScriptStep(disconnect_after=2, pace_seconds=0.5, delay_seconds=1)
    reply = SandboxClient(step).messages(claude(stream=True))

    assert reply.disconnects
    assert len(reply.chunks) == 2
    assert (reply.delay_seconds, reply.pace_seconds) == (1, 0.5)
    full = SandboxClient(ScriptStep(disconnect_after=1)).messages(claude())
    with pytest.raises(json.JSONDecodeError):
        json.loads(full.chunks[0])


def test_a_script_is_followed_step_by_step_and_then_the_default_follows() -> None:
    room = SandboxClient(ScriptStep(text="One."), ScriptStep(text="Two."))
    room.messages(claude(max_tokens=-1))  # rejected, so no step is used
    texts = [reply_json(room.messages(claude()))["content"][0]["text"] for _ in range(3)]

    assert texts[:2] == ["One.", "Two."]
    assert "sandbox" in texts[2]


def test_a_request_can_bring_its_own_step() -> None:
    room = SandboxClient(ScriptStep(text="By the script."))
    by_header = room.messages(claude(), **{"x-sandbox-answer": '{"text": "By header."}'})
    marker = 'Please [[sandbox {"text": "By marker.", "tools": [{"name": "look", "input": {"a": [[1]]}}]}]] now'
    by_marker = reply_json(room.messages(claude(user(marker))))

    assert reply_json(by_header)["content"][0]["text"] == "By header."
    assert by_marker["content"][0]["text"] == "By marker."
    assert by_marker["content"][1]["input"] == {"a": [[1]]}
    assert by_marker["stop_reason"] == "tool_use"
    assert reply_json(room.messages(claude()))["content"][0]["text"] == "By the script."


@pytest.mark.parametrize("header", ["{", '{"txet": "x"}', '{"status": 200}', '{"delay_seconds": -1}', "[]"])
def test_an_invalid_step_is_rejected(header: str) -> None:
    reply = SandboxClient().messages(claude(), **{"x-sandbox-answer": header})

    assert reply.status == 400
    assert reply_json(reply)["error"]["message"].startswith("x-sandbox-answer: ")
