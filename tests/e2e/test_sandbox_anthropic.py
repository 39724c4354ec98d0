"""Anthropic's official client against the sandbox, over HTTP; all tests share one client and one sandbox."""

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from foveate.sandbox.script import ScriptedCall, ScriptStep
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox, step_headers

MODEL = "claude-opus-5-5"
LONG_TEXT = "These words are cached. " * 800
TOOL: Any = {
    "name": "read_file",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
HELLO: Any = [{"role": "user", "content": "Hello"}]
REQUEST: Any = {"model": MODEL, "max_tokens": 4_000, "messages": HELLO}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as running:
        yield running


@pytest.fixture(scope="module")
def client(sandbox: RunningSandbox) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=sandbox.url, api_key=KEY, max_retries=0) as anthropic_client:
        yield anthropic_client


def first_text(response: anthropic.types.Message) -> str:
    assert response.content[0].type == "text"
    return response.content[0].text


def test_a_message_is_answered(client: anthropic.Anthropic) -> None:
    response = client.messages.create(**REQUEST)

    assert "sandbox" in first_text(response)
    assert response.stop_reason == "end_turn"
    assert response.usage.input_tokens > 0
    assert response.usage.output_tokens > 10
    assert response._request_id


def test_cache_usage_is_reported_and_entries_expire(
    client: anthropic.Anthropic, sandbox: RunningSandbox
) -> None:
    system: Any = [{"type": "text", "text": LONG_TEXT, "cache_control": {"type": "ephemeral"}}]
    usages = []
    for seconds in (0, 200, 301):
        sandbox.clock.now += seconds
        usage = client.messages.create(**REQUEST, system=system).usage
        usages.append((usage.cache_read_input_tokens, usage.cache_creation_input_tokens))

    written = usages[0][1] or 0
    assert written > 3_000
    assert usages == [(0, written), (written, 0), (0, written)]


def test_a_streamed_message_equals_the_whole_one(client: anthropic.Anthropic) -> None:
    request: Any = REQUEST | {"thinking": {"type": "adaptive"}}
    full = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        kinds = {event.type for event in stream}
        streamed = stream.get_final_message()

    compared_fields = {"type", "text", "thinking", "signature"}
    assert [block.model_dump(include=compared_fields) for block in streamed.content] == [
        block.model_dump(include=compared_fields) for block in full.content
    ]
    assert streamed.usage.output_tokens == full.usage.output_tokens
    assert streamed.stop_reason == full.stop_reason
    assert {"message_start", "content_block_start", "thinking", "signature", "text", "message_stop"} <= kinds


def test_raw_events_have_the_order_of_the_api(client: anthropic.Anthropic) -> None:
    stream = client.messages.create(**REQUEST, stream=True, tools=[TOOL], tool_choice={"type": "any"})
    kinds = [event.type for event in stream]

    assert kinds[0] == "message_start"
    assert kinds[1] == "content_block_start"
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_a_tool_is_called_and_its_result_is_accepted(client: anthropic.Anthropic) -> None:
    step = ScriptStep(text="I look.", tools=(ScriptedCall(name="read_file", input={"path": "a.md"}),))
    request: Any = {"model": MODEL, "max_tokens": 500, "tools": [TOOL]}
    with client.messages.stream(messages=HELLO, extra_headers=step_headers(step), **request) as stream:
        first = stream.get_final_message()
    call = first.content[1]
    assert call.type == "tool_use"
    assert (first.stop_reason, call.input) == ("tool_use", {"path": "a.md"})
    history: Any = [*HELLO, {"role": "assistant", "content": first.content}]
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "# A"}

    with pytest.raises(anthropic.BadRequestError, match="without `tool_result` blocks"):
        client.messages.create(messages=[*history, *HELLO], **request)
    second = client.messages.create(messages=[*history, {"role": "user", "content": [result]}], **request)

    assert second.stop_reason == "end_turn"


def test_a_forced_tool_is_called_with_valid_arguments(client: anthropic.Anthropic) -> None:
    response = client.messages.create(
        **REQUEST, tools=[TOOL], tool_choice={"type": "tool", "name": "read_file"}
    )

    assert response.content[0].type == "tool_use"
    assert response.content[0].input == {"path": "sandbox"}


@pytest.mark.parametrize("streams", [False, True])
def test_a_thinking_block_can_be_sent_back(client: anthropic.Anthropic, streams: bool) -> None:
    request: Any = REQUEST | {"thinking": {"type": "adaptive"}, "system": "Be brief."}
    if streams:
        with client.messages.stream(**request) as stream:
            content: Any = stream.get_final_message().content
    else:
        content = client.messages.create(**request).content
    assert content[0].type == "thinking"
    request["messages"] = [*HELLO, {"role": "assistant", "content": content}, *HELLO]

    assert client.messages.create(**request).stop_reason == "end_turn"
    with pytest.raises(anthropic.BadRequestError, match="prefix_mismatch"):
        client.messages.create(**request | {"system": "Be long."})


def test_counted_tokens_equal_reported_usage(client: anthropic.Anthropic) -> None:
    request: Any = {"model": MODEL, "messages": HELLO, "tools": [TOOL], "system": "Be brief."}
    counted = client.messages.count_tokens(**request)
    reported = client.messages.create(max_tokens=5, **request)

    assert counted.input_tokens == reported.usage.input_tokens
    assert reported.stop_reason == "max_tokens"
    assert reported.usage.output_tokens == 5


def test_stop_sequences_are_honoured(client: anthropic.Anthropic) -> None:
    response = client.messages.create(**REQUEST, stop_sequences=[", not"])

    assert (response.stop_reason, response.stop_sequence) == ("stop_sequence", ", not")
    assert first_text(response) == "This is Foveate's sandbox"


def test_models_are_listed(client: anthropic.Anthropic) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).max_input_tokens == 1_000_000


def test_beta_headers_are_ignored(client: anthropic.Anthropic, sandbox: RunningSandbox) -> None:
    beta = {"anthropic-beta": "context-1m-2025-08-07,extended-cache-ttl-2025-04-11"}
    response = client.messages.create(**REQUEST, extra_headers=beta, extra_query={"beta": "true"})

    assert response.stop_reason == "end_turn"
    assert sandbox.requests[-1].headers["anthropic-beta"] == beta["anthropic-beta"]


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (ScriptStep(status=401), anthropic.AuthenticationError),
        (ScriptStep(status=403), anthropic.PermissionDeniedError),
        (ScriptStep(status=429), anthropic.RateLimitError),
        (ScriptStep(status=500), anthropic.InternalServerError),
        (ScriptStep(overloaded=True), anthropic.InternalServerError),
        (ScriptStep(fail_after=1), anthropic.InternalServerError),
    ],
)
def test_provider_failures_raise_the_clients_own_errors(
    client: anthropic.Anthropic, step: ScriptStep, error: type[anthropic.APIStatusError]
) -> None:
    with pytest.raises(error) as raised:
        client.messages.create(**REQUEST, extra_headers=step_headers(step))

    assert raised.value.request_id


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"messages": []}, anthropic.BadRequestError),
        ({"model": "claud-opus"}, anthropic.NotFoundError),
        ({"max_tokens": 10_000_000, "timeout": 10}, anthropic.BadRequestError),
    ],
)
def test_rejected_requests_raise_the_clients_own_errors(
    client: anthropic.Anthropic, changes: dict[str, Any], error: type[anthropic.APIStatusError]
) -> None:
    with pytest.raises(error):
        client.messages.create(**REQUEST | changes)


def test_a_client_retries_after_an_overload() -> None:
    with (
        running_sandbox(ScriptStep(overloaded=True, retry_after_seconds=0.01)) as sandbox,
        anthropic.Anthropic(base_url=sandbox.url, api_key=KEY, max_retries=1) as client,
    ):
        response = client.messages.create(**REQUEST)

    assert response.stop_reason == "end_turn"
    assert len(sandbox.requests) == 2


@pytest.mark.parametrize("events", [0, 3])
def test_an_interrupted_stream_is_a_lost_connection(client: anthropic.Anthropic, events: int) -> None:
    stream = client.messages.create(
        **REQUEST, stream=True, extra_headers=step_headers(ScriptStep(disconnect_after=events))
    )

    with pytest.raises(Exception, match="peer closed connection"):
        list(stream)


@pytest.mark.parametrize("chunks", [0, 1])
def test_an_interrupted_response_is_a_lost_connection(client: anthropic.Anthropic, chunks: int) -> None:
    with pytest.raises(anthropic.APIConnectionError):
        client.messages.create(**REQUEST, extra_headers=step_headers(ScriptStep(disconnect_after=chunks)))


def test_a_stream_that_fails_midway_raises_its_error(client: anthropic.Anthropic) -> None:
    stream = client.messages.create(
        **REQUEST, stream=True, extra_headers=step_headers(ScriptStep(fail_after=4))
    )

    with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        list(stream)


def test_the_sandbox_notices_a_client_that_disconnects(
    client: anthropic.Anthropic, sandbox: RunningSandbox
) -> None:
    sandbox.abandoned_requests.clear()
    headers = step_headers(ScriptStep(pace_seconds=30))
    stream = client.messages.create(**REQUEST, stream=True, extra_headers=headers)
    next(iter(stream))
    stream.close()

    assert (
        sandbox.wait_for_abandoned_request(within_seconds=10).headers["x-sandbox-answer"]
        == headers["x-sandbox-answer"]
    )


async def test_the_async_client_works_too(sandbox: RunningSandbox) -> None:
    async with anthropic.AsyncAnthropic(base_url=sandbox.url, api_key=KEY, max_retries=0) as client:
        response = await client.messages.create(**REQUEST)
        async with client.messages.stream(**REQUEST) as stream:
            text = "".join([chunk async for chunk in stream.text_stream])
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**REQUEST | {"messages": []})

    assert first_text(response) == text
