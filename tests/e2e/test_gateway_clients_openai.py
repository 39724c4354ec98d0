"""The official OpenAI client through the gateway and the sandbox: features and errors."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
import pytest

from foveate.cost.caps import Cap, CapScope
from foveate.engine.options import AgentOptions
from foveate.sandbox.script import ScriptedCall, ScriptStep
from tests.support.oracles.system_state import wait_for_agent_sums, wait_until_settled
from tests.support.scenarios.images import png
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox, step_headers
from tests.support.servers.scripted_upstream import http_response, respond_always, running_upstream

MODEL = "gpt-4.1"
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOL: Any = {"type": "function", "function": {"name": "read_file", "parameters": PARAMETERS}}
FLAT_TOOL: Any = {"type": "function", "name": "read_file", "parameters": PARAMETERS, "strict": False}
MESSAGES: Any = [{"role": "user", "content": "Hello"}]
CHAT: Any = {"model": MODEL, "messages": MESSAGES}
RESPONSE: Any = {"model": MODEL, "input": "Hello"}
TOOL_STEP = ScriptStep(tools=(ScriptedCall(name="read_file", input={"path": "a.md"}),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(sandbox: RunningSandbox, folder: Path) -> Iterator[RunningGateway]:
    with running_gateway(sandbox.url, folder, clock=sandbox.clock) as server:
        yield server
    assert server.failed_steps == []


@pytest.fixture(scope="module")
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as sdk_client:
        yield sdk_client


def test_a_response_is_unchanged_and_has_both_ids(client: openai.OpenAI, sandbox: RunningSandbox) -> None:
    gateway_response = client.chat.completions.with_raw_response.create(**CHAT)
    with openai.OpenAI(base_url=sandbox.openai_url, api_key=KEY, max_retries=0) as direct_client:
        direct_response = direct_client.chat.completions.create(**CHAT)

    assert gateway_response.parse().choices[0].message.content == direct_response.choices[0].message.content
    assert gateway_response.headers["x-request-id"]
    assert gateway_response.headers["x-foveate-request-id"].startswith("req_")


def test_a_streamed_chat_equals_the_plain_one_and_has_usage_only_on_request(client: openai.OpenAI) -> None:
    response = client.chat.completions.create(**CHAT)
    chunks = list(client.chat.completions.create(**CHAT, stream=True))
    chunks_with_usage = list(
        client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True})
    )

    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == response.choices[0].message.content
    )
    assert all(chunk.usage is None for chunk in chunks)
    assert chunks_with_usage[-1].choices == []
    assert chunks_with_usage[-1].usage is not None
    assert response.usage is not None
    assert chunks_with_usage[-1].usage.completion_tokens == response.usage.completion_tokens
    assert len(chunks_with_usage) == len(chunks) + 1


@pytest.mark.parametrize("streams", [False, True])
def test_a_tool_loop_completes(client: openai.OpenAI, streams: bool) -> None:
    messages: Any = list(MESSAGES)
    results = 0
    for step in (TOOL_STEP, TOOL_STEP, TOOL_STEP, None):
        arguments: Any = CHAT | {"messages": messages, "tools": [TOOL]}
        headers = step_headers(step) if step is not None else {}
        if streams:
            with client.chat.completions.stream(**arguments, extra_headers=headers) as stream:
                stream.until_done()
                message: Any = stream.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**arguments, extra_headers=headers).choices[0].message
        calls = [call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls or ()]
        for call in calls:
            call["function"].pop("parsed_arguments", None)
        messages.append(
            {"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})}
        )
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "# A"} for call in calls]
        results += len(calls)

    assert results == 3
    assert messages[-1]["content"]


@pytest.mark.parametrize("streams", [False, True])
def test_a_response_calls_a_tool_and_accepts_its_output(client: openai.OpenAI, streams: bool) -> None:
    arguments: Any = RESPONSE | {"tools": [FLAT_TOOL]}
    if streams:
        with client.responses.stream(**arguments, extra_headers=step_headers(TOOL_STEP)) as stream:
            first: Any = stream.until_done().get_final_response()
    else:
        first = client.responses.create(**arguments, extra_headers=step_headers(TOOL_STEP))
    (call,) = first.output
    assert (call.type, json.loads(call.arguments)) == ("function_call", {"path": "a.md"})
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "# A"}

    continued = client.responses.create(**arguments | {"input": [output]}, previous_response_id=first.id)
    items = [*MESSAGES, call.model_dump(exclude={"parsed_arguments"}, exclude_none=True), output]
    repeated = client.responses.create(**arguments | {"input": items})

    assert (continued.status, repeated.status) == ("completed", "completed")


def test_a_streamed_response_equals_the_plain_one(client: openai.OpenAI) -> None:
    response = client.responses.create(**RESPONSE)
    events: list[Any] = list(client.responses.create(**RESPONSE, stream=True))

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == response.output_text


def test_images_are_accepted_and_charged(client: openai.OpenAI, sandbox: RunningSandbox) -> None:
    image = f"data:image/png;base64,{png(512, 512)}"
    chat: Any = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "Hello"}]
    item: Any = [
        {"type": "input_image", "image_url": image, "detail": "auto"},
        {"type": "input_text", "text": "Hello"},
    ]
    usage_without_image = client.chat.completions.create(**CHAT).usage
    usage_with_image = client.chat.completions.create(
        **CHAT | {"messages": [{"role": "user", "content": chat}]}
    ).usage
    response = client.responses.create(**RESPONSE | {"input": [{"role": "user", "content": item}]})

    assert usage_without_image is not None
    assert usage_with_image is not None
    assert usage_with_image.prompt_tokens >= usage_without_image.prompt_tokens + 85
    assert response.usage is not None
    assert response.usage.input_tokens >= usage_without_image.prompt_tokens + 85
    assert image.encode() in sandbox.requests[-1].body


def test_token_counts_match_the_usage_and_models_are_listed(client: openai.OpenAI) -> None:
    count = client.responses.input_tokens.count(**RESPONSE)
    usage = client.responses.create(**RESPONSE).usage

    assert usage is not None
    assert count.input_tokens == usage.input_tokens
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).owned_by == "openai"


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (ScriptStep(status=401), openai.AuthenticationError),
        (ScriptStep(status=403), openai.PermissionDeniedError),
        (ScriptStep(status=429), openai.RateLimitError),
        (ScriptStep(status=500), openai.InternalServerError),
        (ScriptStep(overloaded=True), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_provider_errors_raise_the_exceptions_of_the_client(
    client: openai.OpenAI, step: ScriptStep, error: type[openai.APIStatusError], streams: bool
) -> None:
    with pytest.raises(error) as exc_info:
        client.chat.completions.create(**CHAT, stream=streams, extra_headers=step_headers(step))
    with pytest.raises(error):
        client.responses.create(**RESPONSE, stream=streams, extra_headers=step_headers(step))

    assert exc_info.value.response.headers["x-foveate-request-id"]


def test_a_truncated_response_is_an_error(client: openai.OpenAI) -> None:
    """A response that is not streamed gets an error status, so that the client can retry."""
    for pieces in (0, 1):
        with pytest.raises((openai.APIConnectionError, openai.InternalServerError)):
            client.chat.completions.create(
                **CHAT, extra_headers=step_headers(ScriptStep(disconnect_after=pieces))
            )
    with pytest.raises(openai.APIConnectionError):
        list(
            client.chat.completions.create(
                **CHAT, stream=True, extra_headers=step_headers(ScriptStep(disconnect_after=3))
            )
        )
    with pytest.raises(openai.APIError, match="currently overloaded"):
        list(
            client.chat.completions.create(
                **CHAT, stream=True, extra_headers=step_headers(ScriptStep(fail_after=3))
            )
        )
    *_, last = client.responses.create(
        **RESPONSE, stream=True, extra_headers=step_headers(ScriptStep(fail_after=3))
    )
    assert last.type == "error"


def test_an_invalid_request_is_reported_by_the_provider(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown_model_error:
        client.chat.completions.create(**CHAT | {"model": "nobody"})
    with pytest.raises(openai.BadRequestError) as unknown_response_error:
        client.responses.create(**RESPONSE, previous_response_id="resp_nothing")
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input="x")  # the sandbox has no embeddings

    assert unknown_model_error.value.code == "model_not_found"
    assert unknown_response_error.value.code == "previous_response_not_found"


async def test_the_async_client_works(gateway: RunningGateway) -> None:
    async with openai.AsyncOpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client:
        completion = await client.chat.completions.create(**CHAT)
        pieces = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True)]
        tool_response = await client.chat.completions.create(
            **CHAT, tools=[TOOL], extra_headers=step_headers(TOOL_STEP)
        )
        response = await client.responses.create(**RESPONSE)
        events = [event async for event in await client.responses.create(**RESPONSE, stream=True)]
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(**CHAT, extra_headers=step_headers(ScriptStep(status=429)))

    text = "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert text == completion.choices[0].message.content == response.output_text
    assert tool_response.choices[0].finish_reason == "tool_calls"
    assert events[-1].type == "response.completed"


def test_each_answered_call_is_charged_according_to_its_usage(gateway: RunningGateway, folder: Path) -> None:
    agent = {"x-foveate-agent": "one-of-each"}
    with openai.OpenAI(
        base_url=gateway.openai_url, api_key=KEY, max_retries=0, default_headers=agent
    ) as client:
        chat_usage, response_usage = (
            client.chat.completions.create(**CHAT).usage,
            client.responses.create(**RESPONSE).usage,
        )
        list(client.chat.completions.create(**CHAT, stream=True))
        list(client.responses.create(**RESPONSE, stream=True))
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(**CHAT, extra_headers=step_headers(ScriptStep(status=429)))

    (totals,) = wait_for_agent_sums(folder / "gateway.sqlite", "one-of-each", 4)
    assert (totals.calls, totals.partial_calls, totals.unknown_calls) == (4, 0, 0)
    assert chat_usage is not None
    assert response_usage is not None
    assert totals.uncached + totals.read == 2 * (chat_usage.prompt_tokens + response_usage.input_tokens)
    assert totals.output_tokens == 2 * (chat_usage.completion_tokens + response_usage.output_tokens)


def test_embeddings_are_forwarded_and_charged(tmp_path: Path) -> None:
    vectors: dict[str, Any] = {
        "object": "list",
        "model": "text-embedding-3-small",
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    vectors["data"] = [{"object": "embedding", "index": index, "embedding": [0.5, -0.25]} for index in range(2)]
    with (
        running_upstream(respond_always(http_response(json.dumps(vectors).encode()))) as upstream,
        running_gateway(upstream.url, tmp_path) as gateway,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client,
    ):
        response = client.embeddings.create(
            model="text-embedding-3-small", input=["Hello", "there"], encoding_format="float"
        )

    assert [vector.embedding for vector in response.data] == [[0.5, -0.25]] * 2
    (totals,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "default", 1)
    assert (totals.calls, totals.uncached, totals.dollars) == (1, 2, 2 * Decimal("0.02e-6"))


@pytest.mark.parametrize("streams", [False, True])
def test_the_fee_of_a_web_search_is_charged(tmp_path: Path, streams: bool) -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
    body = {
        "id": "resp_1",
        "object": "response",
        "model": MODEL,
        "output": [search, search],
        "tool_usage": {"web_search": {"num_requests": 1}},
        "service_tier": "default",
        "usage": {"input_tokens": 1_000, "output_tokens": 100, "total_tokens": 1_100},
    }
    event = {"type": "response.completed", "sequence_number": 0, "response": body}
    response = (
        http_response(
            b"event: response.completed\ndata: " + json.dumps(event).encode() + b"\n\n",
            content_type="text/event-stream",
        )
        if streams
        else http_response(json.dumps(body).encode())
    )
    with (
        running_upstream(respond_always(response)) as upstream,
        running_gateway(upstream.url, tmp_path) as gateway,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=0) as client,
    ):
        result = client.responses.create(**RESPONSE, tools=[{"type": "web_search"}], stream=streams)
        if streams:
            list(result)

    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "default", 1)
    assert total.dollars == 1_000 * Decimal("2e-6") + 100 * Decimal("8e-6") + Decimal("0.01")


def test_a_client_retries_after_429_and_503_of_the_provider(tmp_path: Path) -> None:
    rate_limited = ScriptStep(status=429, retry_after_seconds=0.01)
    with (
        running_sandbox(rate_limited, ScriptStep(overloaded=True, retry_after_seconds=0.01)) as sandbox,
        running_gateway(sandbox.url, tmp_path) as gateway,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=2) as client,
    ):
        response = client.chat.completions.create(**CHAT)
        with pytest.raises(openai.RateLimitError) as exc_info:
            client.with_options(max_retries=0).chat.completions.create(
                **CHAT, extra_headers=step_headers(rate_limited)
            )

    assert response.choices[0].finish_reason == "stop"
    assert len(sandbox.requests) == 4
    assert exc_info.value.response.headers["retry-after"] == "0.01"
    assert wait_until_settled(tmp_path / "gateway.sqlite", 1).complete_calls == 1


def test_an_oversized_request_is_a_bad_request_and_a_cap_rejection_is_not_retried(
    tmp_path: Path,
) -> None:
    options = AgentOptions(window_tokens=1_000)
    caps = [Cap(scope=CapScope.AGENT, agent="poor", dollars=Decimal("0.0001"))]
    long_text: Any = "word " * 3_000
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, options=options, caps=caps) as gateway,
        openai.OpenAI(base_url=gateway.openai_url, api_key=KEY, max_retries=5) as client,
    ):
        with pytest.raises(openai.BadRequestError, match="maximum context length") as chat_error:
            client.chat.completions.create(**CHAT | {"messages": [{"role": "user", "content": long_text}]})
        with pytest.raises(openai.BadRequestError, match="maximum context length") as response_error:
            client.responses.create(**RESPONSE | {"input": long_text})
        with pytest.raises(openai.APIStatusError, match="the cap on agent poor") as cap_error:
            client.chat.completions.create(**CHAT, extra_headers={"x-foveate-agent": "poor"})

    assert sandbox.requests == []
    assert [error.value.code for error in (chat_error, response_error)] == ["context_length_exceeded"] * 2
    assert [error.value.param for error in (chat_error, response_error)] == ["messages", "input"]
    assert (cap_error.value.status_code, cap_error.value.code) == (402, "insufficient_quota")
    assert all(error.value.request_id for error in (chat_error, response_error, cap_error))
