"""OpenAI's official client against the sandbox, over HTTP; all tests share one client and one sandbox."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from foveate.sandbox.script import ScriptedCall, ScriptStep
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox, step_headers

MODEL = "gpt-5.6-sol"
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL: Any = {"type": "function", "function": {"name": "read_file", "parameters": PARAMETERS}}
RESPONSES_TOOL: Any = {"type": "function", "name": "read_file", "parameters": PARAMETERS, "strict": False}
HELLO: Any = [{"role": "user", "content": "Hello"}]
CHAT_REQUEST: Any = {"model": MODEL, "messages": HELLO}
RESPONSES_REQUEST: Any = {"model": MODEL, "input": "Hello"}
CALL_STEP = ScriptStep(tools=(ScriptedCall(name="read_file", input={"path": "a.md"}),))


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as running:
        yield running


@pytest.fixture(scope="module")
def client(sandbox: RunningSandbox) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=sandbox.openai_url, api_key=KEY, max_retries=0) as openai_client:
        yield openai_client


def test_a_chat_is_answered(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(**CHAT_REQUEST)

    assert "sandbox" in (completion.choices[0].message.content or "")
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert completion._request_id


def test_chat_usage_includes_the_cache(client: openai.OpenAI, sandbox: RunningSandbox) -> None:
    messages: Any = [{"role": "system", "content": "These words are cached. " * 800}, *HELLO]
    details = []
    for seconds in (0, 1_700, 1_801):
        sandbox.clock.now += seconds
        usage = client.chat.completions.create(model=MODEL, messages=messages).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        details.append(
            (usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens_details.cache_write_tokens)
        )

    written = details[0][1] or 0
    assert written > 3_000
    assert details == [(0, written), (written, 0), (0, written)]


def test_a_streamed_chat_completion_equals_the_whole_one(client: openai.OpenAI) -> None:
    full = client.chat.completions.create(**CHAT_REQUEST)
    chunks = list(client.chat.completions.create(**CHAT_REQUEST, stream=True))

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == full.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_is_in_the_last_chunk_if_requested(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(**CHAT_REQUEST, stream=True, stream_options={"include_usage": True})
    )

    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 10
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.parametrize("streams", [False, True])
def test_a_chat_calls_a_tool_and_accepts_its_result(client: openai.OpenAI, streams: bool) -> None:
    request: Any = CHAT_REQUEST | {"tools": [TOOL]}
    if streams:
        with client.chat.completions.stream(**request, extra_headers=step_headers(CALL_STEP)) as stream:
            stream.until_done()
            choice: Any = stream.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**request, extra_headers=step_headers(CALL_STEP)).choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert json.loads(call.function.arguments) == {"path": "a.md"}
    call_message = {"role": "assistant", "tool_calls": [call.model_dump(include={"id", "type", "function"})]}
    call_message["tool_calls"][0]["function"].pop("parsed_arguments", None)
    result = {"role": "tool", "tool_call_id": call.id, "content": "# A"}

    with pytest.raises(openai.BadRequestError, match="must be followed by tool messages"):
        client.chat.completions.create(**request | {"messages": [*HELLO, call_message, *HELLO]})
    completion = client.chat.completions.create(**request | {"messages": [*HELLO, call_message, result]})
    assert completion.choices[0].finish_reason == "stop"


def test_a_forced_tool_is_called_with_valid_arguments(client: openai.OpenAI) -> None:
    message = (
        client.chat.completions.create(**CHAT_REQUEST, tools=[TOOL], tool_choice="required").choices[0].message
    )

    assert message.tool_calls
    assert message.tool_calls[0].type == "function"
    assert json.loads(message.tool_calls[0].function.arguments) == {"path": "sandbox"}


def test_requested_json_conforms_to_its_schema(client: openai.OpenAI) -> None:
    response_format: Any = {"type": "json_schema", "json_schema": {"name": "path", "schema": PARAMETERS}}
    completion = client.chat.completions.create(**CHAT_REQUEST, response_format=response_format)

    assert json.loads(completion.choices[0].message.content or "") == {"path": "sandbox"}


def test_limits_and_stops_are_honoured(client: openai.OpenAI) -> None:
    short = client.chat.completions.create(**CHAT_REQUEST, max_completion_tokens=3)
    stopped = client.chat.completions.create(**CHAT_REQUEST, stop=[", not"])

    assert short.choices[0].finish_reason == "length"
    assert short.usage is not None
    assert short.usage.completion_tokens == 3
    assert stopped.choices[0].message.content == "This is Foveate's sandbox"


def test_a_response_is_answered(client: openai.OpenAI) -> None:
    response = client.responses.create(**RESPONSES_REQUEST)

    assert "sandbox" in response.output_text
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_streamed_response_equals_the_whole_one(client: openai.OpenAI) -> None:
    request: Any = RESPONSES_REQUEST | {"reasoning": {"effort": "low"}}
    full = client.responses.create(**request)
    events: list[Any] = list(client.responses.create(**request, stream=True))

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[1].type] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == full.output_text
    assert [item.type for item in events[-1].response.output] == ["reasoning", "message"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == full.output_text


def test_a_response_calls_a_tool_and_accepts_its_output(client: openai.OpenAI) -> None:
    request: Any = RESPONSES_REQUEST | {"tools": [RESPONSES_TOOL]}
    with client.responses.stream(**request, extra_headers=step_headers(CALL_STEP)) as stream:
        first: Any = stream.until_done().get_final_response()
    (call,) = first.output
    assert (call.type, json.loads(call.arguments)) == ("function_call", {"path": "a.md"})
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "# A"}

    with pytest.raises(openai.BadRequestError, match="No tool call found"):
        client.responses.create(**request | {"input": [output]})
    continued = client.responses.create(**request | {"input": [output]}, previous_response_id=first.id)
    assert continued.status == "completed"
    items = [*HELLO, call.model_dump(exclude={"parsed_arguments"}, exclude_none=True), output]
    assert client.responses.create(**request | {"input": items}).status == "completed"


def test_a_response_that_is_cut_short_is_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(**RESPONSES_REQUEST, max_output_tokens=16)

    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


def test_counted_input_tokens_equal_reported_usage(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(**RESPONSES_REQUEST)
    reported = client.responses.create(**RESPONSES_REQUEST).usage

    assert reported is not None
    assert counted.input_tokens == reported.input_tokens


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve("gpt-4o").owned_by == "openai"


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (ScriptStep(status=401), openai.AuthenticationError),
        (ScriptStep(status=429), openai.RateLimitError),
        (ScriptStep(status=500), openai.InternalServerError),
        (ScriptStep(overloaded=True), openai.InternalServerError),
        (ScriptStep(disconnect_after=0), openai.APIConnectionError),
        (ScriptStep(disconnect_after=1), openai.APIConnectionError),
    ],
)
def test_provider_failures_raise_the_clients_own_errors(
    client: openai.OpenAI, step: ScriptStep, error: type[openai.APIError]
) -> None:
    with pytest.raises(error):
        client.chat.completions.create(**CHAT_REQUEST, extra_headers=step_headers(step))


def test_rejected_requests_raise_the_clients_own_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown_model:
        client.chat.completions.create(**CHAT_REQUEST | {"model": "nobody"})
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "word " * 9_000}])
    with pytest.raises(openai.BadRequestError) as unknown_response:
        client.responses.create(**RESPONSES_REQUEST, previous_response_id="resp_nothing")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input="x")

    assert unknown_model.value.code == "model_not_found"
    assert too_long.value.code == "context_length_exceeded"
    assert unknown_response.value.code == "previous_response_not_found"


def test_a_stream_that_fails_midway_raises_its_error(client: openai.OpenAI) -> None:
    headers = step_headers(ScriptStep(fail_after=3))

    with pytest.raises(openai.APIError, match="currently overloaded"):
        list(client.chat.completions.create(**CHAT_REQUEST, stream=True, extra_headers=headers))
    *_, last = client.responses.create(**RESPONSES_REQUEST, stream=True, extra_headers=headers)
    assert (last.type, last.sequence_number) == (
        "error",
        3,
    )  # the client yields this event instead of raising an error


async def test_the_async_client_works_too(sandbox: RunningSandbox) -> None:
    async with openai.AsyncOpenAI(base_url=sandbox.openai_url, api_key=KEY, max_retries=0) as client:
        completion = await client.chat.completions.create(**CHAT_REQUEST)
        chunks = [chunk async for chunk in await client.chat.completions.create(**CHAT_REQUEST, stream=True)]
        response = await client.responses.create(**RESPONSES_REQUEST)

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == completion.choices[0].message.content == response.output_text
