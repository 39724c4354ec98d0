"""The sandbox without a server: authentication, usage over time, and scripted faults."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from foveate.sandbox.http import MAX_BODY_BYTES, SandboxProvider, SandboxReply, SandboxRequest
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

    def send(
        self, path: str, body: Json | bytes, headers: Mapping[str, str], method: str = "POST"
    ) -> SandboxReply:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self.sandbox.reply(SandboxRequest(method=method, path=path, headers=headers, body=data))

    def messages(self, body: Json | bytes, **headers: str) -> SandboxReply:
        return self.send("/v1/messages", body, ANTHROPIC | headers)

    def chat(self, body: Json | bytes) -> SandboxReply:
        return self.send("/v1/chat/completions", body, OPENAI)

    def responses(self, body: Json | bytes) -> SandboxReply:
        return self.send("/v1/responses", body, OPENAI)


def reply_json(reply: SandboxReply) -> Json:
    assert len(reply.chunks) == 1
    body: Json = json.loads(reply.chunks[0])
    return body


def stream_events(reply: SandboxReply) -> list[Json]:
    lines = b"".join(reply.chunks).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def cache_usage(reply: SandboxReply) -> tuple[int, int, int, int]:
    """Return Anthropic's usage: uncached, read, written for five minutes and for an hour."""
    usage = reply_json(reply)["usage"]
    cache_writes = usage["cache_creation"]
    assert usage["cache_creation_input_tokens"] == sum(cache_writes.values())
    return (
        usage["input_tokens"],
        usage["cache_read_input_tokens"],
        cache_writes["ephemeral_5m_input_tokens"],
        cache_writes["ephemeral_1h_input_tokens"],
    )


@pytest.mark.parametrize(
    "headers", [{}, {"x-api-key": " "}, {"authorization": "Basic x"}, {"authorization": "Bearer"}]
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses", "/v1/nothing"])
def test_an_api_key_is_required(path: str, headers: dict[str, str]) -> None:
    reply = SandboxClient().send(path, b"{}", headers)

    assert reply.status == 401
    assert "key" in reply_json(reply)["error"]["message"]


def test_anthropic_requires_a_version_header() -> None:
    reply = SandboxClient().send("/v1/messages", claude(), {"x-api-key": "k"})

    assert (reply.status, reply_json(reply)["error"]["message"]) == (
        400,
        "anthropic-version: header is required",
    )


def test_an_error_has_the_shape_of_its_provider() -> None:
    client = SandboxClient()
    anthropic_reply, openai_reply = client.messages(claude(max_tokens=-1)), client.chat(chat(n=1, foveate=1))

    error = reply_json(anthropic_reply)
    assert error.keys() == {"type", "error", "request_id"}
    assert error["error"].keys() == {"type", "message"}
    assert error["request_id"] == anthropic_reply.headers["request-id"]
    assert reply_json(openai_reply)["error"].keys() == {"message", "type", "param", "code"}
    assert openai_reply.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'"x"', b'{"a": "\\ud83d"}', b"[" * 100_000])
def test_a_body_that_is_not_an_object_is_rejected(body: bytes) -> None:
    client = SandboxClient()

    assert reply_json(client.messages(body))["error"]["message"].startswith(
        "The request body is not valid JSON: "
    )
    assert reply_json(client.chat(body))["error"]["message"].startswith("We could not parse the JSON body")
    assert client.responses(body).status == 400


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
    reply = SandboxClient().send(path, b"", ANTHROPIC, method)

    assert reply.status == status
    assert reply_json(reply)["type"] == "error"
    openai_reply = SandboxClient().send(path.replace("/messages", "/chat/completions"), b"", OPENAI, method)
    assert openai_reply.status == status
    assert reply_json(openai_reply).keys() == {"error"}


def test_a_sandbox_of_one_provider_has_no_routes_of_another() -> None:
    anthropic_only = SandboxClient(providers=[SandboxProvider.ANTHROPIC])

    assert anthropic_only.messages(claude()).status == 200
    assert anthropic_only.send("/v1/chat/completions", chat(), ANTHROPIC).status == 404
    assert (
        SandboxClient(providers=[SandboxProvider.OPENAI]).send("/v1/messages", claude(), OPENAI).status == 404
    )


def test_models_are_listed_in_the_format_of_the_provider() -> None:
    client = SandboxClient()
    anthropic_models = reply_json(client.send("/v1/models", b"", ANTHROPIC, "GET"))
    openai_models = reply_json(client.send("/v1/models", b"", OPENAI, "GET"))

    assert anthropic_models["first_id"] == anthropic_models["data"][0]["id"]
    assert {row["type"] for row in anthropic_models["data"]} == {"model"}
    assert openai_models["object"] == "list"
    assert reply_json(client.send("/v1/models/gpt-4o", b"", OPENAI, "GET"))["id"] == "gpt-4o"
    assert reply_json(client.send(f"/v1/models/{BINDING}", b"", ANTHROPIC, "GET"))["max_tokens"] == 128_000
    assert client.send("/v1/models/gpt-4o", b"", ANTHROPIC, "GET").status == 404
    assert client.send("/v1/models/nobody", b"", OPENAI, "GET").status == 404


WITH_BREAKPOINT = claude(
    user(text("Now.", BREAKPOINT)),
    model=BINDING,
    system=[text(LONG, LONG_BREAKPOINT)],
    tools=[tool(cache_control=LONG_BREAKPOINT)],
)


def test_a_cache_entry_is_read_until_it_expires() -> None:
    client = SandboxClient()
    uncached_tokens, read_tokens, short_tokens, long_tokens = cache_usage(client.messages(WITH_BREAKPOINT))
    assert (uncached_tokens, read_tokens) == (0, 0)
    assert long_tokens > 3_000 > short_tokens > 0

    assert cache_usage(client.messages(WITH_BREAKPOINT)) == (0, long_tokens + short_tokens, 0, 0)
    client.clock.now += 299
    assert cache_usage(client.messages(WITH_BREAKPOINT)) == (0, long_tokens + short_tokens, 0, 0), (
        "each use restarts the TTL"
    )
    client.clock.now += 301
    assert cache_usage(client.messages(WITH_BREAKPOINT)) == (0, long_tokens, short_tokens, 0)
    client.clock.now += 3_601
    assert cache_usage(client.messages(WITH_BREAKPOINT)) == (0, 0, short_tokens, long_tokens)


def test_each_key_has_its_own_cache() -> None:
    client = SandboxClient()
    client.messages(WITH_BREAKPOINT)

    assert cache_usage(client.messages(WITH_BREAKPOINT, **{"x-api-key": "another"}))[1] == 0
    assert cache_usage(client.messages(WITH_BREAKPOINT))[1] > 3_000


def test_a_rejected_or_failed_request_leaves_nothing_in_the_cache() -> None:
    client = SandboxClient(ScriptStep(status=500), ScriptStep(overloaded=True))
    assert client.messages(WITH_BREAKPOINT | {"max_tokens": -1}).status == 400
    assert client.messages(WITH_BREAKPOINT).status == 500
    assert client.messages(WITH_BREAKPOINT).status == 529

    assert cache_usage(client.messages(WITH_BREAKPOINT))[1] == 0


def test_a_cache_entry_cannot_be_read_before_its_response_starts() -> None:
    client = SandboxClient(ScriptStep(delay_seconds=5))
    client.messages(WITH_BREAKPOINT)
    client.clock.now += 4
    assert cache_usage(client.messages(WITH_BREAKPOINT))[1] == 0
    client.clock.now += 1
    assert cache_usage(client.messages(WITH_BREAKPOINT))[1] > 3_000


def test_reported_input_equals_the_count() -> None:
    client = SandboxClient()
    count_body = {name: value for name, value in WITH_BREAKPOINT.items() if name != "max_tokens"}
    counted = reply_json(client.send("/v1/messages/count_tokens", count_body, ANTHROPIC))["input_tokens"]

    assert sum(cache_usage(client.messages(WITH_BREAKPOINT))) == counted


def test_a_returned_thinking_block_is_accepted_until_the_history_is_edited() -> None:
    client = SandboxClient()
    body = WITH_BREAKPOINT | {"thinking": {"type": "adaptive"}, "max_tokens": 4_096}
    message = reply_json(client.messages(body))
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    messages = [*body["messages"], assistant(*message["content"]), user("More.")]

    assert client.messages(body | {"messages": messages}).status == 200
    edited = client.messages(body | {"messages": messages, "system": "Another."})
    assert edited.status == 400
    assert "prefix_mismatch" in reply_json(edited)["error"]["message"]


def test_omitted_thinking_is_still_signed() -> None:
    client = SandboxClient()
    body = claude(model=BINDING, thinking={"type": "adaptive", "display": "omitted"})
    message = reply_json(client.messages(body))
    assert message["content"][0]["thinking"] == ""

    next_body = body | {"messages": [*body["messages"], assistant(*message["content"]), user("More.")]}
    assert client.messages(next_body).status == 200


def test_a_prompt_over_the_window_is_rejected_with_its_size() -> None:
    reply = SandboxClient().messages(claude(user("word " * 250_000)))

    assert reply.status == 400
    assert reply_json(reply)["error"]["message"].startswith("prompt is too long: ")
    assert reply_json(reply)["error"]["message"].endswith(" tokens > 200000 maximum")


def test_chat_usage_includes_cache_reads_in_the_prompt() -> None:
    client = SandboxClient()
    body = chat({"role": "system", "content": LONG}, {"role": "user", "content": "x"}, model=BREAKPOINT_GPT)
    first, second = (reply_json(client.chat(body))["usage"] for _ in range(2))

    assert first["prompt_tokens"] == second["prompt_tokens"] > 3_000
    assert first["prompt_tokens_details"]["cache_write_tokens"] > 3_000
    assert second["prompt_tokens_details"] == {
        "cached_tokens": first["prompt_tokens_details"]["cache_write_tokens"],
        "audio_tokens": 0,
        "cache_write_tokens": 0,
    }
    assert second["total_tokens"] == second["prompt_tokens"] + second["completion_tokens"]


def test_chat_before_gpt_5_6_reads_in_steps_and_reports_no_cache_writes() -> None:
    client = SandboxClient()
    body = chat({"role": "system", "content": LONG}, {"role": "user", "content": "x"})
    client.chat(body)
    details = reply_json(client.chat(body))["usage"]["prompt_tokens_details"]

    assert details.keys() == {"cached_tokens", "audio_tokens"}
    assert details["cached_tokens"] > 3_000
    assert details["cached_tokens"] % 128 == 0


def test_responses_usage_reports_cache_writes_by_ttl() -> None:
    client = SandboxClient()
    body = response(
        {"role": "user", "content": LONG}, model=BREAKPOINT_GPT, prompt_cache_options={"ttl": "12h"}
    )
    details = reply_json(client.responses(body))["usage"]["input_tokens_details"]

    assert details["cache_write_tokens_details"] == {
        "ttl_30m_tokens": 0,
        "ttl_12h_tokens": details["cache_write_tokens"],
    }
    assert details["cache_write_tokens"] > 3_000


def test_a_response_continues_a_stored_one_of_the_same_key() -> None:
    client = SandboxClient(ScriptStep(tools=(ScriptedCall(name="look", input={}),)))
    first = reply_json(client.responses(response(tools=[{"type": "function", "name": "look"}])))
    call_id = first["output"][-1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "found"}
    next_body = response(output, previous_response_id=first["id"])

    second = reply_json(client.responses(next_body))
    assert second["status"] == "completed"
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    without_output = client.responses(
        response({"role": "user", "content": "x"}, previous_response_id=first["id"])
    )
    assert (
        reply_json(without_output)["error"]["message"] == f"No tool output found for function call {call_id}."
    )
    other_key = client.send("/v1/responses", next_body, {"authorization": "Bearer another"})
    assert reply_json(other_key)["error"]["code"] == "previous_response_not_found"


def test_a_response_with_store_false_is_not_stored() -> None:
    client = SandboxClient()
    first = reply_json(client.responses(response(store=False)))

    assert client.responses(response(previous_response_id=first["id"])).status == 400


def test_ids_are_unique() -> None:
    client = SandboxClient()
    ids = {reply_json(client.messages(claude()))["id"] for _ in range(50)}

    assert len(ids) == 50


@pytest.mark.parametrize(
    ("step", "status", "anthropic_error", "openai_error"),
    [
        (ScriptStep(status=429, message="Slow down."), (429, 429), "rate_limit_error", "rate_limit_exceeded"),
        (ScriptStep(status=500), (500, 500), "api_error", "server_error"),
        (ScriptStep(overloaded=True), (529, 503), "overloaded_error", "server_error"),
        (ScriptStep(fail_after=2), (529, 503), "overloaded_error", "server_error"),
    ],
)
def test_a_step_can_fail(
    step: ScriptStep, status: tuple[int, int], anthropic_error: str, openai_error: str
) -> None:
    client = SandboxClient(step, step)
    replies = client.messages(claude()), client.chat(chat())

    assert (replies[0].status, replies[1].status) == status
    assert [reply_json(reply)["error"]["type"] for reply in replies] == [anthropic_error, openai_error]


def test_retry_after_is_sent() -> None:
    reply = SandboxClient(ScriptStep(status=429, retry_after_seconds=1.5)).messages(claude())

    assert reply.headers["retry-after"] == "1.5"


def test_a_failing_stream_ends_with_the_error_of_its_provider() -> None:
    client = SandboxClient(*[ScriptStep(fail_after=3)] * 3)

    events = stream_events(client.messages(claude(stream=True)))
    assert [event["type"] for event in events[-2:]] == ["ping", "error"]
    assert len(events) == 4
    assert stream_events(client.chat(chat(stream=True)))[-1].keys() == {"error"}
    assert stream_events(client.responses(response(stream=True)))[-1]["type"] == "error"


def test_a_response_is_cut_off_after_the_configured_chunks() -> None:
    step = ScriptStep(disconnect_after=2, pace_seconds=0.5, delay_seconds=1)
    reply = SandboxClient(step).messages(claude(stream=True))

    assert reply.disconnects
    assert len(reply.chunks) == 2
    assert (reply.delay_seconds, reply.pace_seconds) == (1, 0.5)
    truncated = SandboxClient(ScriptStep(disconnect_after=1)).messages(claude())
    with pytest.raises(json.JSONDecodeError):
        json.loads(truncated.chunks[0])


def test_a_script_is_followed_step_by_step_and_then_the_default_response_is_used() -> None:
    client = SandboxClient(ScriptStep(text="One."), ScriptStep(text="Two."))
    client.messages(claude(max_tokens=-1))  # rejected, so no step is used
    texts = [reply_json(client.messages(claude()))["content"][0]["text"] for _ in range(3)]

    assert texts[:2] == ["One.", "Two."]
    assert "sandbox" in texts[2]


def test_a_request_can_contain_its_own_step() -> None:
    client = SandboxClient(ScriptStep(text="By the script."))
    header_reply = client.messages(claude(), **{"x-sandbox-answer": '{"text": "By header."}'})
    marker = 'Please [[sandbox {"text": "By marker.", "tools": [{"name": "look", "input": {"a": [[1]]}}]}]] now'
    marker_message = reply_json(client.messages(claude(user(marker))))

    assert reply_json(header_reply)["content"][0]["text"] == "By header."
    assert marker_message["content"][0]["text"] == "By marker."
    assert marker_message["content"][1]["input"] == {"a": [[1]]}
    assert marker_message["stop_reason"] == "tool_use"
    assert reply_json(client.messages(claude()))["content"][0]["text"] == "By the script."


@pytest.mark.parametrize("header", ["{", '{"txet": "x"}', '{"status": 200}', '{"delay_seconds": -1}', "[]"])
def test_an_invalid_step_is_rejected(header: str) -> None:
    reply = SandboxClient().messages(claude(), **{"x-sandbox-answer": header})

    assert reply.status == 400
    assert reply_json(reply)["error"]["message"].startswith("x-sandbox-answer: ")
