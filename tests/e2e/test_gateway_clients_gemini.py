"""The official Google client through the gateway and the sandbox: features and errors."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from google import genai
from google.genai import errors, types
from google.genai.models import Models

from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import GroupBy
from foveate.engine.options import AgentOptions
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Route, Upstream
from foveate.sandbox.script import ScriptedCall, ScriptStep
from tests.support.oracles.system_state import files_containing, wait_for_agent_sums, wait_until_settled
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import RunningSandbox, running_sandbox, step_headers
from tests.support.servers.scripted_upstream import http_response, respond_always, running_upstream

MODEL = "gemini-2.5-flash"
KEY = "AIzaOfATest"
READ_FILE = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="read_file",
            description="Read a file.",
            parameters_json_schema={
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
            },
        )
    ]
)
TOOL_STEP = ScriptStep(tools=(ScriptedCall(name="read_file", input={"path": "a.md"}),))
ROUTE = f"/v1beta/models/{MODEL}:generateContent"
HELLO = {"contents": [{"role": "user", "parts": [{"text": "Hello"}]}]}
# Prices of gemini-2.5-flash in dollars per token (ai.google.dev/gemini-api/docs/pricing, November 2026).
INPUT_DOLLARS, READ_DOLLARS, OUTPUT_DOLLARS = Decimal("0.30e-6"), Decimal("0.03e-6"), Decimal("2.50e-6")


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


@contextmanager
def open_models(url: str, **headers: str) -> Iterator[Models]:
    """The Google client without retries."""
    options = types.HttpOptions(
        base_url=url,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        retry_options=types.HttpRetryOptions(attempts=1),
    )
    with genai.Client(api_key=KEY, http_options=options) as client:
        yield client.models


def request_config(step: ScriptStep | None = None, **config: Any) -> types.GenerateContentConfig:
    """Configuration of one request that selects its own sandbox step."""
    http_options = types.HttpOptions(headers=step_headers(step)) if step is not None else None
    return types.GenerateContentConfig(http_options=http_options, **config)


def test_a_response_is_unchanged(gateway: RunningGateway, sandbox: RunningSandbox) -> None:
    with open_models(gateway.url) as models, open_models(sandbox.url) as direct_models:
        gateway_response = models.generate_content(model=MODEL, contents="Hello")
        direct_response = direct_models.generate_content(model=MODEL, contents="Hello")

    assert gateway_response.text == direct_response.text
    assert gateway_response.usage_metadata == direct_response.usage_metadata


def test_a_request_is_forwarded_unchanged(gateway: RunningGateway, sandbox: RunningSandbox) -> None:
    body = json.dumps(HELLO, indent=3).encode()
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        response = client.post(f"{ROUTE}?key={KEY}&prettyPrint=false", content=body)

    request = sandbox.requests[-1]
    assert response.status_code == 200
    assert (request.path, request.query, request.body) == (ROUTE, f"key={KEY}&prettyPrint=false", body)


@pytest.mark.parametrize("query", ["alt=sse", ""])
def test_a_streamed_response_equals_the_plain_one_and_is_charged(
    gateway: RunningGateway, folder: Path, query: str
) -> None:
    agent = f"streaming-{query or 'list'}"
    headers = {"x-goog-api-key": KEY, "x-foveate-agent": agent}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=60) as client:
        response = client.post(ROUTE, json=HELLO).json()
        streamed = client.post(f"/v1beta/models/{MODEL}:streamGenerateContent?{query}", json=HELLO)

    lines = streamed.text.split("\r\n\r\n")
    chunks = [json.loads(line[len("data: ") :]) for line in lines if line] if query else streamed.json()
    streamed_text = "".join(chunk["candidates"][0]["content"]["parts"][0]["text"] for chunk in chunks)
    assert streamed_text == response["candidates"][0]["content"]["parts"][0]["text"]
    (totals,) = wait_for_agent_sums(folder / "gateway.sqlite", agent, 2)
    usage = response["usageMetadata"]
    assert (totals.calls, totals.partial_calls, totals.unknown_calls) == (2, 0, 0)
    assert totals.uncached == 2 * usage["promptTokenCount"]
    assert totals.output_tokens == 2 * usage["candidatesTokenCount"]


def test_the_official_client_streams(gateway: RunningGateway) -> None:
    with open_models(gateway.url) as models:
        response = models.generate_content(model=MODEL, contents="Hello")
        chunks = list(models.generate_content_stream(model=MODEL, contents="Hello"))

    assert "".join(chunk.text or "" for chunk in chunks) == response.text
    assert chunks[-1].usage_metadata == response.usage_metadata


def test_a_tool_loop_is_one_session(gateway: RunningGateway, folder: Path) -> None:
    contents: list[Any] = [types.UserContent("Hello")]
    for step in (TOOL_STEP, TOOL_STEP, None):
        config = request_config(step, tools=[READ_FILE], system_instruction="You read files.")
        with open_models(gateway.url, x_foveate_agent="looper") as models:
            response = models.generate_content(model=MODEL, contents=contents, config=config)
        assert response.candidates is not None
        contents.append(response.candidates[0].content)
        for call in response.function_calls or ():
            part = types.Part.from_function_response(name=str(call.name), response={"result": "# A"})
            contents.append(types.Content(role="user", parts=[part]))

    assert len(contents) == 6
    (session,) = wait_for_agent_sums(folder / "gateway.sqlite", "looper", 3, GroupBy.SESSION)
    assert session.calls == 3


def test_a_different_first_message_starts_another_session(gateway: RunningGateway, folder: Path) -> None:
    with open_models(gateway.url, x_foveate_agent="two-talks") as models:
        for text in ("One", "Two"):
            models.generate_content(model=MODEL, contents=text)

    assert len(wait_for_agent_sums(folder / "gateway.sqlite", "two-talks", 2, GroupBy.SESSION)) == 2


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent"])
def test_parallel_conversations_with_the_same_first_message_are_separate_sessions(
    gateway: RunningGateway, folder: Path, method: str
) -> None:
    """The text of the responses distinguishes the two conversations."""
    agent = f"parallel-{method}"
    route, headers = f"/v1beta/models/{MODEL}:{method}", {"x-goog-api-key": KEY, "x-foveate-agent": agent}
    conversations: list[list[Any]] = [list(HELLO["contents"]), list(HELLO["contents"])]
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=60) as client:
        for turn in range(3):
            for number, contents in enumerate(conversations):
                step = step_headers(ScriptStep(text=f"Answer {turn} of conversation {number}."))
                response = client.post(route, json={"contents": contents}, headers=step).json()
                chunks = response if isinstance(response, list) else [response]
                parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
                text = "".join(part["text"] for part in parts)
                contents.append({"role": "model", "parts": [{"text": text}]})
                contents.append({"role": "user", "parts": [{"text": "And then?"}]})

    sessions = wait_for_agent_sums(folder / "gateway.sqlite", agent, 6, GroupBy.SESSION)
    assert sorted(session.calls for session in sessions) == [3, 3]


def test_thinking_and_cached_tokens_are_priced_according_to_the_usage(
    gateway: RunningGateway, folder: Path
) -> None:
    config = request_config(
        ScriptStep(text="So.", thinking="Hm, hm."),
        system_instruction="These words are kept. " * 800,
        thinking_config=types.ThinkingConfig(include_thoughts=True),
    )
    with open_models(gateway.url, x_foveate_agent="thinker") as models:
        first, second = [
            models.generate_content(model=MODEL, contents="Hello", config=config).usage_metadata
            for _ in range(2)
        ]

    assert first is not None
    assert second is not None
    cached_tokens = second.cached_content_token_count or 0
    assert first.thoughts_token_count
    assert cached_tokens > 2_048
    (totals,) = wait_for_agent_sums(folder / "gateway.sqlite", "thinker", 2, GroupBy.MODEL)
    assert totals.group == ("thinker", MODEL)
    prompt = (first.prompt_token_count or 0) + (second.prompt_token_count or 0)
    output = sum(
        (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0) for usage in (first, second)
    )
    assert (totals.uncached, totals.read, totals.output_tokens) == (
        prompt - cached_tokens,
        cached_tokens,
        output,
    )
    expected = (prompt - cached_tokens) * INPUT_DOLLARS + cached_tokens * READ_DOLLARS + output * OUTPUT_DOLLARS
    assert totals.dollars == expected


def test_token_counts_match_the_usage_and_models_are_listed(gateway: RunningGateway) -> None:
    with open_models(gateway.url) as models:
        count = models.count_tokens(model=MODEL, contents="Hello, what is in a.md?")
        response = models.generate_content(model=MODEL, contents="Hello, what is in a.md?").usage_metadata
        model_names = [model.name for model in models.list()]

    assert response is not None
    assert count.total_tokens == response.prompt_token_count
    assert f"models/{MODEL}" in model_names


def test_the_gateway_counts_for_an_upstream_without_a_counter(tmp_path: Path) -> None:
    not_found = http_response(
        b'{"error":{"code":404,"message":"no such route","status":"NOT_FOUND"}}', status="404 Not Found"
    )
    with (
        running_upstream(respond_always(not_found)) as upstream,
        running_gateway(upstream.url, tmp_path) as gateway,
        httpx.Client(base_url=gateway.url, headers={"x-goog-api-key": KEY}, timeout=60) as client,
    ):
        response = client.post(f"/v1beta/models/{MODEL}:countTokens", json=HELLO)

    assert response.json() == {"totalTokens": 2}
    assert response.headers["x-foveate-count"] == "exact"


@pytest.mark.parametrize(
    ("step", "status"),
    [
        (ScriptStep(status=401), "UNAUTHENTICATED"),
        (ScriptStep(status=429), "RESOURCE_EXHAUSTED"),
        (ScriptStep(status=500), "INTERNAL"),
        (ScriptStep(overloaded=True), "UNAVAILABLE"),
    ],
)
def test_provider_errors_raise_the_exceptions_of_the_client(
    gateway: RunningGateway, step: ScriptStep, status: str
) -> None:
    with open_models(gateway.url) as models:
        with pytest.raises(errors.APIError) as exc_info:
            models.generate_content(model=MODEL, contents="Hello", config=request_config(step))
        with pytest.raises(errors.APIError) as stream_exc_info:
            list(models.generate_content_stream(model=MODEL, contents="Hello", config=request_config(step)))

    assert (exc_info.value.status, stream_exc_info.value.status) == (status, status)


def test_a_truncated_stream_is_charged_for_its_output(gateway: RunningGateway, folder: Path) -> None:
    config = request_config(ScriptStep(disconnect_after=3))
    with (
        open_models(gateway.url, x_foveate_agent="broken-off") as models,
        pytest.raises((httpx2.HTTPError, errors.APIError)),
    ):
        list(models.generate_content_stream(model=MODEL, contents="Hello", config=config))

    (totals,) = wait_for_agent_sums(folder / "gateway.sqlite", "broken-off", 1)
    assert (totals.calls, totals.partial_calls) == (1, 1)


def test_a_request_over_the_window_is_rejected_in_the_error_format_of_google(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, options=AgentOptions(window_tokens=1_000)) as gateway,
        open_models(gateway.url) as models,
        pytest.raises(errors.ClientError, match="exceeds the maximum number of tokens allowed") as exc_info,
    ):
        models.generate_content(model=MODEL, contents="word " * 3_000)

    assert (exc_info.value.code, exc_info.value.status) == (400, "INVALID_ARGUMENT")
    assert sandbox.requests == []


def test_a_cap_checks_the_output_limit_of_a_request(tmp_path: Path) -> None:
    """1,000 tokens of output are within the cap, and 2,000 are not."""
    caps = [Cap(scope=CapScope.AGENT, agent="poor", dollars=Decimal("0.003"))]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, caps=caps) as gateway,
        open_models(gateway.url, x_foveate_agent="poor") as models,
    ):
        models.generate_content(model=MODEL, contents="Hello", config=request_config(max_output_tokens=1_000))
        with pytest.raises(errors.ClientError, match="the cap on agent poor") as candidates_error:
            models.generate_content(
                model=MODEL, contents="Hello", config=request_config(max_output_tokens=1_000, candidate_count=2)
            )
        with pytest.raises(errors.ClientError, match="the cap on agent poor") as limit_error:
            models.generate_content(
                model=MODEL, contents="Hello", config=request_config(max_output_tokens=2_000)
            )
        with pytest.raises(errors.ClientError, match="cannot be checked") as unbounded_error:
            models.embed_content(model="gemini-embedding-001", contents="Hello")

    assert [error.value.code for error in (candidates_error, limit_error, unbounded_error)] == [402] * 3
    assert len(sandbox.requests) == 1
    assert wait_until_settled(tmp_path / "gateway.sqlite", 1).reservations == 0


@pytest.mark.parametrize(
    ("fields", "limit_path"),
    [
        ({}, ("generationConfig", "maxOutputTokens")),
        ({"generationConfig": {"temperature": 0}}, ("generationConfig", "maxOutputTokens")),
        ({"generation_config": {"temperature": 0}}, ("generation_config", "max_output_tokens")),
    ],
)
def test_a_request_without_an_output_limit_gets_one_that_fits_the_cap(
    tmp_path: Path, fields: dict[str, Any], limit_path: tuple[str, str]
) -> None:
    caps = [Cap(scope=CapScope.AGENT, agent="default", dollars=Decimal("0.05"))]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, caps=caps) as gateway,
        httpx.Client(base_url=gateway.url, headers={"x-goog-api-key": KEY}, timeout=60) as client,
    ):
        response = client.post(ROUTE, json=HELLO | fields)

    assert response.status_code == 200, response.text
    limit = json.loads(sandbox.requests[0].body)[limit_path[0]][limit_path[1]]
    assert 4_000 <= limit <= 20_000  # at $2.50 a million


def test_a_request_without_room_for_output_is_rejected_and_reserves_nothing(tmp_path: Path) -> None:
    """Regression: it got 500, and its reservation blocked other calls for hours."""
    caps = [Cap(scope=CapScope.TOTAL, dollars=Decimal("0.01"))]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, caps=caps) as gateway,
        httpx.Client(base_url=gateway.url, headers={"x-goog-api-key": KEY}, timeout=60) as client,
    ):
        rejection = client.post(ROUTE, json=HELLO | {"generationConfig": []})
        response = client.post(ROUTE, json=HELLO | {"generationConfig": {"maxOutputTokens": 1_000}})

    assert (rejection.status_code, response.status_code) == (402, 200), rejection.text


@pytest.mark.parametrize(
    "fields",
    [
        {"system_instruction": {"parts": [{"text": "word " * 9_000}]}, "systemInstruction": {}},
        {"generationConfig": {"candidateCount": 1, "candidate_count": 8}},
        {"generationConfig": {}, "generation_config": {"maxOutputTokens": 9}},
    ],
)
def test_a_field_in_two_spellings_is_rejected(tmp_path: Path, fields: dict[str, Any]) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path) as gateway,
        httpx.Client(base_url=gateway.url, headers={"x-goog-api-key": KEY}, timeout=60) as client,
    ):
        response = client.post(ROUTE, json=HELLO | fields)

    assert (response.status_code, sandbox.requests) == (400, [])


def test_the_key_is_never_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = "AIzaSecretOfATest"
    with (
        caplog.at_level("DEBUG"),
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path) as gateway,
        httpx.Client(base_url=gateway.url, timeout=60) as client,
    ):
        response = client.post(f"{ROUTE}?key={secret}", json=HELLO)
        client.post(ROUTE, json=HELLO, headers={"x-goog-api-key": secret})
        wait_until_settled(tmp_path / "gateway.sqlite", 2)

    assert response.status_code == 200
    assert secret not in response.text
    records = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert not [record for record in records if secret in record.getMessage()]
    assert files_containing(tmp_path, secret) == []


def test_the_gateway_key_replaces_the_client_key_in_every_position(tmp_path: Path) -> None:
    with running_sandbox() as sandbox:
        google = Upstream(
            name="google",
            base_url=sandbox.url,
            family=ApiFamily.GEMINI,
            provider="google",
            key="AIzaOfTheGateway",
            replaces_keys=True,
        )
        with (
            running_gateway(sandbox.url, tmp_path, upstreams=[google]) as gateway,
            httpx.Client(base_url=gateway.url, timeout=60) as client,
        ):
            client.post(f"{ROUTE}?alt=json&key={KEY}", json=HELLO)
            client.post(ROUTE, json=HELLO, headers={"x-goog-api-key": KEY})

    for request in sandbox.requests:
        assert request.headers["x-goog-api-key"] == "AIzaOfTheGateway"
        assert KEY not in request.query
    assert sandbox.requests[0].query == "alt=json"


def test_a_route_renames_the_model_in_the_path(tmp_path: Path) -> None:
    routes = [Route(models="quick", upstream="google", model=MODEL)]
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path, routes=routes) as gateway,
        open_models(gateway.url) as models,
    ):
        response = models.generate_content(model="quick", contents="Hello")

    assert response.model_version == MODEL
    assert sandbox.requests[0].path.endswith(f"/models/{MODEL}:generateContent")
    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "default", 1, GroupBy.MODEL)
    assert total.group == ("default", MODEL)
