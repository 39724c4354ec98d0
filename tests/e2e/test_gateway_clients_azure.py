"""The official OpenAI client for Azure through the gateway and the sandbox."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from foveate.cost.caps import Cap, CapScope
from foveate.cost.ledger import GroupBy
from foveate.engine.options import AgentOptions
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Upstream
from foveate.sandbox.script import ScriptStep
from foveate.tokens.offline_counters import Backend, CounterOptions
from tests.support.oracles.system_state import wait_for_agent_sums, wait_until_settled
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.sandbox import RunningSandbox, running_sandbox, step_headers
from tests.support.servers.scripted_upstream import http_response, respond_always, running_upstream

KEY = "0123456789abcdef"
VERSION = "2025-04-01-preview"
MODEL = "gpt-4.1"
MESSAGES: Any = [{"role": "user", "content": "Hello"}]


def azure_upstream(url: str, **deployments: str) -> Upstream:
    return Upstream(
        name="azure", base_url=url, family=ApiFamily.AZURE, provider="azure", deployments=deployments
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[RunningSandbox]:
    with running_sandbox() as server:
        yield server


@pytest.fixture(scope="module")
def gateway(sandbox: RunningSandbox, folder: Path) -> Iterator[RunningGateway]:
    azure = azure_upstream(sandbox.url, house=MODEL)
    with running_gateway(sandbox.url, folder, clock=sandbox.clock, upstreams=[azure]) as server:
        yield server
    assert server.failed_steps == []


def open_client(gateway: RunningGateway, agent: str = "default") -> openai.AzureOpenAI:
    return openai.AzureOpenAI(
        azure_endpoint=gateway.url,
        api_key=KEY,
        api_version=VERSION,
        max_retries=0,
        default_headers={"x-foveate-agent": agent},
    )


def test_a_deployment_is_forwarded_unchanged_and_priced_by_its_model(
    gateway: RunningGateway, sandbox: RunningSandbox, folder: Path
) -> None:
    with open_client(gateway, "deployer") as client:
        response = client.chat.completions.create(model="house", messages=MESSAGES)
        chunks = list(client.chat.completions.create(model="house", messages=MESSAGES, stream=True))

    request = sandbox.requests[-1]
    assert (request.path, request.query) == (
        "/openai/deployments/house/chat/completions",
        f"api-version={VERSION}",
    )
    assert request.headers["api-key"] == KEY
    assert json.loads(request.body)["model"] == "house"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == response.choices[0].message.content
    assert response.usage is not None
    (total,) = wait_for_agent_sums(folder / "gateway.sqlite", "deployer", 2, GroupBy.MODEL)
    assert total.group == ("deployer", MODEL)
    assert (total.calls, total.unknown_calls) == (2, 0)
    assert total.uncached == 2 * response.usage.prompt_tokens
    assert total.dollars == 2 * (
        response.usage.prompt_tokens * Decimal("2e-6") + response.usage.completion_tokens * Decimal("8e-6")
    )


def test_responses_name_their_deployment_in_the_body(gateway: RunningGateway, folder: Path) -> None:
    with open_client(gateway, "responder") as client:
        first = client.responses.create(model="house", input="Hello")
        events: list[Any] = list(client.responses.create(model="house", input="Hello", stream=True))

    assert events[-1].response.output_text == first.output_text
    (total,) = wait_for_agent_sums(folder / "gateway.sqlite", "responder", 2, GroupBy.MODEL)
    assert (total.group, total.calls, total.unknown_calls) == (("responder", MODEL), 2, 0)


def test_the_plain_client_reaches_the_paths_below_v1(
    gateway: RunningGateway, sandbox: RunningSandbox, folder: Path
) -> None:
    headers = {"x-foveate-agent": "plain"}
    with openai.OpenAI(
        base_url=f"{gateway.url}/openai/v1", api_key=KEY, max_retries=0, default_headers=headers
    ) as client:
        client.chat.completions.create(model="house", messages=MESSAGES)
        client.responses.create(model=MODEL, input="Hello")

    assert [request.path for request in sandbox.requests[-2:]] == [
        "/openai/v1/chat/completions",
        "/openai/v1/responses",
    ]
    (total,) = wait_for_agent_sums(folder / "gateway.sqlite", "plain", 2, GroupBy.MODEL)
    assert (total.group, total.unknown_calls) == (("plain", MODEL), 0)


def test_a_deployment_of_an_unknown_model_is_charged_without_a_price(
    gateway: RunningGateway, folder: Path
) -> None:
    with open_client(gateway, "unknown") as client:
        client.chat.completions.create(model="attic", messages=MESSAGES)

    (total,) = wait_for_agent_sums(folder / "gateway.sqlite", "unknown", 1, GroupBy.MODEL)
    assert (total.group, total.unknown_calls) == (("unknown", "attic"), 1)


def test_a_conversation_with_a_deployment_is_one_session(gateway: RunningGateway, folder: Path) -> None:
    messages: Any = list(MESSAGES)
    with open_client(gateway, "talker") as client:
        for _ in range(3):
            response = client.chat.completions.create(model="house", messages=messages)
            messages += [
                {"role": "assistant", "content": response.choices[0].message.content},
                {"role": "user", "content": "And then?"},
            ]

    (session,) = wait_for_agent_sums(folder / "gateway.sqlite", "talker", 3, GroupBy.SESSION)
    assert session.calls == 3


@pytest.mark.parametrize(
    ("step", "error"),
    [(ScriptStep(status=401), openai.AuthenticationError), (ScriptStep(status=429), openai.RateLimitError)],
)
def test_provider_errors_raise_the_exceptions_of_the_client(
    gateway: RunningGateway, step: ScriptStep, error: type[openai.APIStatusError]
) -> None:
    with open_client(gateway) as client, pytest.raises(error):
        client.chat.completions.create(model="house", messages=MESSAGES, extra_headers=step_headers(step))


def test_caps_and_windows_apply_to_the_model_of_a_deployment(tmp_path: Path) -> None:
    caps = [Cap(scope=CapScope.AGENT, agent="poor", dollars=Decimal("0.01"))]
    with (
        running_sandbox() as sandbox,
        running_gateway(
            sandbox.url,
            tmp_path,
            caps=caps,
            options=AgentOptions(window_tokens=5_000),
            upstreams=[azure_upstream(sandbox.url, house=MODEL)],
        ) as gateway,
        open_client(gateway, "poor") as client,
    ):
        client.chat.completions.create(model="house", messages=MESSAGES, max_tokens=1_000)
        with pytest.raises(openai.APIStatusError, match="the cap on agent poor") as cap_error:
            client.chat.completions.create(model="house", messages=MESSAGES, max_tokens=2_000)
        with pytest.raises(openai.APIStatusError, match="price") as price_error:
            client.chat.completions.create(model="attic", messages=MESSAGES, max_tokens=10)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            client.chat.completions.create(
                model="house", messages=[{"role": "user", "content": "word " * 9_000}]
            )

    assert (cap_error.value.status_code, price_error.value.status_code) == (402, 402)
    assert len(sandbox.requests) == 1


def test_embeddings_of_a_deployment_are_charged_by_its_model(tmp_path: Path) -> None:
    vectors: dict[str, Any] = {
        "object": "list",
        "model": "text-embedding-3-small",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 2, "total_tokens": 2},
    }
    with (
        running_upstream(respond_always(http_response(json.dumps(vectors).encode()))) as upstream,
        running_gateway(
            upstream.url, tmp_path, upstreams=[azure_upstream(upstream.url, vectors="text-embedding-3-small")]
        ) as gateway,
        open_client(gateway) as client,
    ):
        client.embeddings.create(model="vectors", input="Hello", encoding_format="float")

    assert upstream.requests[0].startswith(b"POST /openai/deployments/vectors/embeddings?api-version=")
    (total,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "default", 1, GroupBy.MODEL)
    assert (total.group, total.dollars) == (("default", "text-embedding-3-small"), 2 * Decimal("0.02e-6"))


def test_a_count_is_never_sent_to_the_completion_route(tmp_path: Path) -> None:
    counter = CounterOptions(backend=Backend.ENDPOINT, use_endpoint=True)
    with (
        running_sandbox() as sandbox,
        running_gateway(
            sandbox.url,
            tmp_path,
            options=AgentOptions(counter=counter),
            upstreams=[azure_upstream(sandbox.url)],
        ) as gateway,
    ):
        httpx.post(
            f"{gateway.url}/openai/v1/chat/completions?api-version=preview",
            json={"model": MODEL, "messages": MESSAGES},
            headers={"api-key": KEY},
            timeout=60,
        ).raise_for_status()

    queries = [request.query for request in sandbox.requests if request.path == "/openai/v1/chat/completions"]
    assert queries == ["api-version=preview"]
    assert len(sandbox.requests) > 1


def test_without_an_upstream_for_azure_nothing_is_sent(tmp_path: Path) -> None:
    with (
        running_sandbox() as sandbox,
        running_gateway(sandbox.url, tmp_path) as gateway,
        open_client(gateway) as client,
        pytest.raises(openai.BadRequestError, match="no upstream is configured for the azure API"),
    ):
        client.chat.completions.create(model="house", messages=MESSAGES)

    assert sandbox.requests == []


def test_other_paths_are_forwarded_and_not_recorded(gateway: RunningGateway, sandbox: RunningSandbox) -> None:
    before = len(sandbox.requests)
    with httpx.Client(base_url=gateway.url, headers={"api-key": KEY}, timeout=60) as client:
        response = client.get(f"/openai/models?api-version={VERSION}")

    assert response.status_code == 200
    assert [request.path for request in sandbox.requests[before:]] == ["/openai/models"]


def test_the_gateway_key_replaces_the_client_key(tmp_path: Path) -> None:
    with running_sandbox() as sandbox:
        upstream = Upstream(
            name="azure",
            base_url=sandbox.url,
            family=ApiFamily.AZURE,
            provider="azure",
            key="of-the-gateway",
            replaces_keys=True,
        )
        with (
            running_gateway(sandbox.url, tmp_path, upstreams=[upstream]) as gateway,
            open_client(gateway) as client,
        ):
            client.chat.completions.create(model=MODEL, messages=MESSAGES)
        wait_until_settled(tmp_path / "gateway.sqlite", 1)

    assert sandbox.requests[0].headers["api-key"] == "of-the-gateway"
    assert "authorization" not in sandbox.requests[0].headers
