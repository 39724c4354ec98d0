"""The official Anthropic client through the gateway and the sandbox: features and errors."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from foveate.cost.caps import Cap, CapScope
from foveate.engine.options import AgentOptions
from foveate.sandbox.script import ScriptedCall, ScriptStep
from tests.support.oracles.system_state import wait_for_agent_sums, wait_until_settled
from tests.support.scenarios.images import png
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import KEY, RunningSandbox, running_sandbox, step_headers

MODEL = "claude-opus-4-5"
TOOL: Any = {
    "name": "read_file",
    "description": "Reads a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
}
MESSAGES: Any = [{"role": "user", "content": "Hello"}]
REQUEST: Any = {"model": MODEL, "max_tokens": 400, "messages": MESSAGES}
TOOL_STEP = ScriptStep(text="I look.", tools=(ScriptedCall(name="read_file", input={"path": "a.md"}),))


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
def client(gateway: RunningGateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as sdk_client:
        yield sdk_client


def response_text(response: anthropic.types.Message) -> str:
    assert response.content[0].type == "text"
    return response.content[0].text


def test_a_response_is_unchanged_and_has_both_ids(client: anthropic.Anthropic, sandbox: RunningSandbox) -> None:
    gateway_response = client.messages.with_raw_response.create(**REQUEST)
    with anthropic.Anthropic(base_url=sandbox.url, api_key=KEY, max_retries=0) as direct_client:
        direct_response = direct_client.messages.create(**REQUEST)

    assert response_text(gateway_response.parse()) == response_text(direct_response)
    assert gateway_response.headers["request-id"].startswith("req_")
    assert gateway_response.headers["x-foveate-request-id"].startswith("req_")
    assert gateway_response.headers["x-foveate-request-id"] != gateway_response.headers["request-id"]


@pytest.mark.parametrize("is_raw", [True, False])
def test_a_streamed_response_equals_the_plain_one(client: anthropic.Anthropic, is_raw: bool) -> None:
    response = client.messages.create(**REQUEST)
    if is_raw:
        events = list(client.messages.create(**REQUEST, stream=True))
        streamed_text = "".join(
            event.delta.text
            for event in events
            if event.type == "content_block_delta" and event.delta.type == "text_delta"
        )
        assert events[-1].type == "message_stop"
    else:
        with client.messages.stream(**REQUEST) as stream:
            streamed_text = stream.get_final_text()

    assert streamed_text == response_text(response)


@pytest.mark.parametrize("streams", [False, True])
def test_a_tool_loop_completes(client: anthropic.Anthropic, streams: bool) -> None:
    messages: Any = list(MESSAGES)
    steps = iter((TOOL_STEP, TOOL_STEP, TOOL_STEP, None))
    results = 0
    while True:
        step = next(steps)
        arguments: Any = REQUEST | {"messages": messages, "tools": [TOOL]}
        headers = step_headers(step) if step is not None else {}
        if streams:
            with client.messages.stream(**arguments, extra_headers=headers) as stream:
                response: Any = stream.get_final_message()
        else:
            response = client.messages.create(**arguments, extra_headers=headers)
        messages.append({"role": "assistant", "content": response.content})
        calls = [block for block in response.content if block.type == "tool_use"]
        if not calls:
            break
        results += len(calls)
        messages.append(
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": call.id, "content": "# A"} for call in calls
                ],
            }
        )

    assert (results, response.stop_reason) == (3, "end_turn")


def test_images_are_accepted_and_charged(client: anthropic.Anthropic, sandbox: RunningSandbox) -> None:
    tokens_without_image = client.messages.create(**REQUEST).usage.input_tokens
    image = png(280, 280)
    source = {"type": "base64", "media_type": "image/png", "data": image}
    content: Any = [{"type": "image", "source": source}, {"type": "text", "text": "Hello"}]
    tokens_with_image = client.messages.create(**REQUEST | {"messages": [{"role": "user", "content": content}]})

    assert tokens_with_image.usage.input_tokens >= tokens_without_image + 100
    assert image.encode() in sandbox.requests[-1].body


def test_a_thinking_block_survives_a_round_trip(client: anthropic.Anthropic) -> None:
    arguments: Any = REQUEST | {
        "model": "claude-opus-5-5",
        "max_tokens": 4_000,
        "thinking": {"type": "adaptive"},
    }
    with client.messages.stream(**arguments) as stream:
        content: Any = stream.get_final_message().content
    arguments["messages"] = [*MESSAGES, {"role": "assistant", "content": content}, *MESSAGES]

    assert content[0].type == "thinking"
    assert client.messages.create(**arguments).stop_reason == "end_turn"


def test_token_counts_match_the_usage_and_models_are_listed(client: anthropic.Anthropic) -> None:
    arguments: Any = {"model": MODEL, "messages": MESSAGES, "tools": [TOOL], "system": "Be brief."}
    count = client.messages.count_tokens(**arguments)
    message = client.messages.create(max_tokens=5, **arguments)

    assert count.input_tokens == message.usage.input_tokens
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (ScriptStep(status=401), anthropic.AuthenticationError),
        (ScriptStep(status=403), anthropic.PermissionDeniedError),
        (ScriptStep(status=429), anthropic.RateLimitError),
        (ScriptStep(status=500), anthropic.InternalServerError),
        (ScriptStep(overloaded=True), anthropic.InternalServerError),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_provider_errors_raise_the_exceptions_of_the_client(
    client: anthropic.Anthropic, step: ScriptStep, error: type[anthropic.APIStatusError], streams: bool
) -> None:
    with pytest.raises(error) as exc_info:
        client.messages.create(**REQUEST, stream=streams, extra_headers=step_headers(step))

    assert exc_info.value.request_id
    assert exc_info.value.response.headers["x-foveate-request-id"]


def test_an_invalid_request_is_reported_by_the_provider(client: anthropic.Anthropic) -> None:
    for fields, error in [
        ({"messages": []}, anthropic.BadRequestError),
        ({"model": "claud-opus"}, anthropic.NotFoundError),
        ({"max_tokens": -1}, anthropic.BadRequestError),
    ]:
        with pytest.raises(error):
            client.messages.create(**REQUEST | fields)


def test_an_error_in_the_middle_of_a_stream_is_raised(client: anthropic.Anthropic) -> None:
    stream = client.messages.create(
        **REQUEST, stream=True, extra_headers=step_headers(ScriptStep(fail_after=4))
    )

    with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        list(stream)


@pytest.mark.parametrize("events", [0, 3])
def test_a_truncated_stream_is_incomplete_for_the_client(client: anthropic.Anthropic, events: int) -> None:
    stream = client.messages.create(
        **REQUEST, stream=True, extra_headers=step_headers(ScriptStep(disconnect_after=events))
    )

    with pytest.raises(Exception, match="peer closed connection"):
        list(stream)


def test_an_unknown_gateway_key_is_an_authentication_error(gateway: RunningGateway) -> None:
    with (
        anthropic.Anthropic(base_url=gateway.url, api_key="fov-nobody-made-this") as client,
        pytest.raises(anthropic.AuthenticationError) as exc_info,
    ):
        client.messages.create(**REQUEST)

    assert exc_info.value.request_id == exc_info.value.response.headers["x-foveate-request-id"]


async def test_the_async_client_works(gateway: RunningGateway) -> None:
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key=KEY, max_retries=0) as client:
        response = await client.messages.create(**REQUEST)
        async with client.messages.stream(**REQUEST) as stream:
            streamed_text = "".join([piece async for piece in stream.text_stream])
        tool_response = await client.messages.create(
            **REQUEST, tools=[TOOL], extra_headers=step_headers(TOOL_STEP)
        )
        count = await client.messages.count_tokens(model=MODEL, messages=MESSAGES)
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**REQUEST | {"messages": []})
        with pytest.raises(anthropic.RateLimitError):
            await client.messages.create(**REQUEST, extra_headers=step_headers(ScriptStep(status=429)))

    assert streamed_text == response_text(response)
    assert tool_response.stop_reason == "tool_use"
    assert count.input_tokens == response.usage.input_tokens


def test_each_answered_call_is_charged_according_to_its_usage(gateway: RunningGateway, folder: Path) -> None:
    agent = {"x-foveate-agent": "one-of-each"}
    with anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=0, default_headers=agent) as client:
        usages: list[Any] = [client.messages.create(**REQUEST).usage]
        with client.messages.stream(**REQUEST) as stream:
            usages.append(stream.get_final_message().usage)
        with pytest.raises(anthropic.RateLimitError):
            client.messages.create(**REQUEST, extra_headers=step_headers(ScriptStep(status=429)))

    (totals,) = wait_for_agent_sums(folder / "gateway.sqlite", "one-of-each", 2)
    assert (totals.calls, totals.partial_calls, totals.unknown_calls) == (2, 0, 0)
    assert totals.uncached == sum(usage.input_tokens for usage in usages)
    assert totals.output_tokens == sum(usage.output_tokens for usage in usages)


def test_betas_on_several_lines_all_reach_the_provider(
    gateway: RunningGateway, sandbox: RunningSandbox
) -> None:
    headers = [
        ("x-api-key", KEY),
        ("anthropic-version", "2023-06-01"),
        ("anthropic-beta", "context-1m-2025-08-07"),
        ("anthropic-beta", "interleaved-thinking-2025-05-14"),
    ]
    body = {"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}
    response = httpx.post(f"{gateway.url}/v1/messages", headers=headers, json=body, timeout=60)

    assert response.status_code == 200
    betas = sandbox.requests[-1].headers["anthropic-beta"]
    assert betas == "context-1m-2025-08-07, interleaved-thinking-2025-05-14"


def test_a_client_retries_after_429_and_529_of_the_provider(tmp_path: Path) -> None:
    rate_limited = ScriptStep(status=429, retry_after_seconds=0.01)
    with (
        running_sandbox(rate_limited, ScriptStep(overloaded=True, retry_after_seconds=0.01)) as sandbox,
        running_gateway(sandbox.url, tmp_path) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=2) as client,
    ):
        response = client.messages.create(**REQUEST)
        with pytest.raises(anthropic.RateLimitError) as exc_info:
            client.with_options(max_retries=0).messages.create(
                **REQUEST, extra_headers=step_headers(rate_limited)
            )

    assert response.stop_reason == "end_turn"
    assert len(sandbox.requests) == 4
    assert exc_info.value.response.headers["retry-after"] == "0.01"
    assert wait_until_settled(tmp_path / "gateway.sqlite", 1).complete_calls == 1


def test_an_oversized_request_is_a_bad_request_and_a_cap_rejection_is_not_retried(
    tmp_path: Path,
) -> None:
    options = AgentOptions(window_tokens=1_000)
    caps = [Cap(scope=CapScope.AGENT, agent="poor", dollars=Decimal("0.0001"))]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, options=options, caps=caps) as gateway,
        anthropic.Anthropic(base_url=gateway.url, api_key=KEY, max_retries=5) as client,
    ):
        with pytest.raises(
            anthropic.BadRequestError, match=r"prompt is too long: .* tokens > .* maximum"
        ) as window_error:
            client.messages.create(**REQUEST | {"messages": [{"role": "user", "content": "word " * 3_000}]})
        with pytest.raises(anthropic.APIStatusError, match="the cap on agent poor") as cap_error:
            client.messages.create(**REQUEST, extra_headers={"x-foveate-agent": "poor"})

    # The only request was a token count: a rejection must be based on an exact count.
    assert [request.path for request in sandbox.requests] == ["/v1/messages/count_tokens"]
    assert (window_error.value.status_code, cap_error.value.status_code) == (400, 402)
    assert cap_error.value.type == "billing_error"
    assert all(error.value.request_id for error in (window_error, cap_error))
