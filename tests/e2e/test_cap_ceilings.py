"""Attacks on caps: requests with features whose cost the ceiling does not include."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.config.settings import Settings, StoreSettings
from foveate.cost.caps import Cap, CapScope, UnknownPricePolicy
from foveate.cost.pricing.price_book import PriceBook
from foveate.engine.options import AgentOptions, SpendingOptions
from foveate.gateway.app import GatewayOptions
from foveate.gateway.config import ResolvedConfig
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Route, Routing, Upstream
from tests.support.servers.gateway import running_gateway
from tests.support.servers.scripted_upstream import (
    ScriptedUpstream,
    http_response,
    respond_always,
    running_upstream,
)
from tests.support.stores.templates import ensure_store

CAP = Cap(scope=CapScope.TOTAL, dollars=Decimal(1_000_000))
MESSAGES = [{"role": "user", "content": "Hi"}]
PATHS: Mapping[str, dict[str, Any]] = {
    "/v1/messages": {"model": "claude-opus-4-5", "max_tokens": 9, "messages": MESSAGES},
    "/v1/chat/completions": {"model": "gpt-4.1", "max_tokens": 9, "messages": MESSAGES},
    "/v1/responses": {"model": "gpt-4.1", "max_output_tokens": 9, "input": MESSAGES},
    "/v1/embeddings": {"model": "text-embedding-3-small", "input": "Hi"},
    "/v1beta/models/gemini-2.5-flash:generateContent": {
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}]
    },
}
USAGE = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}'


@dataclass(frozen=True)
class CappedGateway:
    """A gateway with a cap that admits every request of known cost, and its upstream."""

    url: str
    upstream: ScriptedUpstream

    def send(
        self, path: str, fields: Mapping[str, Any], more_headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        headers = {"anthropic-version": "2023-06-01"} if path == "/v1/messages" else {}
        headers |= more_headers or {}
        body = json.dumps({**PATHS[path], **fields}).encode()
        return httpx.post(
            f"{self.url}{path}",
            content=body,
            headers={**headers, "content-type": "application/json"},
            timeout=60,
        )


@contextmanager
def capped_gateway(
    folder: Path, caps: Sequence[Cap] = (CAP,), allow_fields: Sequence[str] = ()
) -> Iterator[CappedGateway]:
    with running_upstream(respond_always(http_response(USAGE))) as upstream:
        families = {"anthropic": ApiFamily.ANTHROPIC, "openai": ApiFamily.OPENAI, "google": ApiFamily.GEMINI}
        upstreams = {
            name: Upstream(
                name=name,
                base_url=f"{upstream.url}/v1" if family is ApiFamily.OPENAI else upstream.url,
                family=family,
                provider=name,
            )
            for name, family in {**families, "openrouter": ApiFamily.OPENAI}.items()
        }
        config = ResolvedConfig(
            settings=Settings(store=StoreSettings(url=ensure_store(folder / "gateway.sqlite"))),
            gateway=GatewayOptions(
                routing=Routing(upstreams=upstreams, routes=[Route(models="*/*", upstream="openrouter")])
            ),
            agents=lambda _agent: AgentOptions(),
            cost=SpendingOptions(caps=caps, prices=PriceBook(), allow_fields=allow_fields),
        )
        with running_gateway(upstream.url, folder, config=config) as gateway:
            yield CappedGateway(gateway.url, upstream)


SONNET = "anthropic/claude-sonnet-4.5"
ATTACKS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "the field `plugins`": ("/v1/chat/completions", {"model": SONNET, "plugins": [{"id": "web"}]}),
    f"the model `{SONNET}:online`": ("/v1/chat/completions", {"model": f"{SONNET}:online"}),
    "the field `preset`": ("/v1/chat/completions", {"model": SONNET, "preset": "expensive"}),
    "the field `provider.order`": (
        "/v1/chat/completions",
        {"model": SONNET, "provider": {"order": ["expensive"]}},
    ),
    "the fallback model `nobody/knows-it`": (
        "/v1/chat/completions",
        {"model": SONNET, "models": ["nobody/knows-it"], "route": "fallback"},
    ),
    "audio output": ("/v1/chat/completions", {"modalities": ["text", "audio"], "audio": {"voice": "x"}}),
    "the field `search_parameters`": ("/v1/chat/completions", {"search_parameters": {"mode": "auto"}}),
    "the field `service_tier`": ("/v1/chat/completions", {"service_tier": "gold"}),
    "the tool `image_generation`": ("/v1/responses", {"tools": [{"type": "image_generation"}]}),
    "the field `prompt`": ("/v1/responses", {"prompt": {"id": "pmpt_1"}}),
    "the field `container`": ("/v1/messages", {"container": "c_1"}),
    "the tool `code_execution_20260120`": (
        "/v1/messages",
        {"tools": [{"type": "code_execution_20260120", "name": "code_execution"}]},
    ),
    "the field `fallbacks`": ("/v1/messages", {"fallbacks": [{"model": "claude-fable-5-2"}]}),
    "the field `generationConfig.routingConfig`": (
        "/v1beta/models/gemini-2.5-flash:generateContent",
        {"generationConfig": {"routingConfig": {}}},
    ),
    "the tool `googleMaps`": (
        "/v1beta/models/gemini-2.5-flash:generateContent",
        {"tools": [{"googleMaps": {}}]},
    ),
    "the field `models`": ("/v1/embeddings", {"models": ["expensive"]}),
}


@pytest.mark.parametrize("feature", ATTACKS)
def test_a_feature_of_unknown_cost_does_not_pass_a_cap(tmp_path: Path, feature: str) -> None:
    path, fields = ATTACKS[feature]
    with capped_gateway(tmp_path) as gateway:
        response = gateway.send(path, fields)

    assert response.status_code == 402
    assert f"the cost of {feature} is unknown" in response.text
    assert "cost.allow_fields" in response.text
    assert gateway.upstream.requests == []


@pytest.mark.parametrize("feature", ATTACKS)
def test_without_a_cap_a_feature_of_unknown_cost_is_forwarded_unchanged(tmp_path: Path, feature: str) -> None:
    path, fields = ATTACKS[feature]
    with capped_gateway(tmp_path, caps=()) as gateway:
        assert gateway.send(path, fields).status_code == 200

    assert len(gateway.upstream.requests) == 1


def test_a_cap_that_allows_unknown_cost_lets_features_through(tmp_path: Path) -> None:
    cap = Cap(scope=CapScope.TOTAL, dollars=Decimal(1_000), unknown=UnknownPricePolicy.ALLOW)
    with capped_gateway(tmp_path, caps=[cap]) as gateway:
        statuses = [gateway.send(path, fields).status_code for path, fields in ATTACKS.values()]

    assert set(statuses) == {200}


def test_a_cap_that_allows_unknown_cost_still_limits_known_cost(tmp_path: Path) -> None:
    cap = Cap(scope=CapScope.CALL, dollars=Decimal("0.01"), unknown=UnknownPricePolicy.ALLOW)
    fields = {"model": SONNET, "max_tokens": 64_000, "plugins": [{"id": "web"}]}
    with capped_gateway(tmp_path, caps=[cap]) as gateway:
        assert gateway.send("/v1/chat/completions", fields).status_code == 402


def test_only_explicitly_allowed_fields_pass_a_cap(tmp_path: Path) -> None:
    fields = {"model": SONNET, "provider": {"order": ["anthropic"]}}
    with capped_gateway(tmp_path, allow_fields=["provider.*", "code_execution_*", "web_search"]) as gateway:
        assert gateway.send("/v1/chat/completions", fields).status_code == 200
        assert gateway.send(*ATTACKS["the tool `code_execution_20260120`"]).status_code == 200
        assert gateway.send("/v1/chat/completions", {**fields, "plugins": [{"id": "web"}]}).status_code == 402


@pytest.mark.parametrize("path", PATHS)
def test_a_plain_request_passes_a_cap(tmp_path: Path, path: str) -> None:
    with capped_gateway(tmp_path) as gateway:
        assert gateway.send(path, {}).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "openai/gpt-4o-mini", "max_tokens": 100_000, "models": ["anthropic/claude-opus-4.5"]},
        {"model": "gpt-4.1", "prediction": {"type": "content", "content": "word " * 50_000}},
        {"model": "gpt-4.1", "max_tokens": 10_000, "n": 1, "best_of": 20},
    ],
    ids=["an expensive fallback model", "a long prediction", "many candidates, one of them returned"],
)
def test_surcharges_are_part_of_the_cost_ceiling(tmp_path: Path, fields: dict[str, Any]) -> None:
    cap = Cap(scope=CapScope.CALL, dollars=Decimal("0.30"))
    plain_fields: dict[str, Any] = {name: fields[name] for name in ("model", "max_tokens") if name in fields}
    with capped_gateway(tmp_path, caps=[cap]) as gateway:
        assert gateway.send("/v1/chat/completions", plain_fields).status_code == 200
        response = gateway.send("/v1/chat/completions", fields)

    assert response.status_code == 402
    assert "this call may cost $" in response.text
    assert len(gateway.upstream.requests) == 1


def test_an_unknown_field_never_passes_a_cap(tmp_path: Path) -> None:
    with capped_gateway(tmp_path) as gateway:

        @settings(max_examples=60, deadline=None)
        @given(
            path=st.sampled_from(list(PATHS)),
            name=st.text(st.characters(codec="utf-8"), max_size=8).map(lambda text: f"new_{text}"),
            value=st.one_of(st.booleans(), st.integers(), st.text(), st.lists(st.integers()), st.just({})),
            known=st.sampled_from([{}, {"temperature": 1}, {"stream": False}]),
        )
        def check_rejected(path: str, name: str, value: object, known: dict[str, Any]) -> None:
            response = gateway.send(path, {name: value, **known})

            assert response.status_code == 402, (path, name, value)

        check_rejected()

    assert gateway.upstream.requests == []


@pytest.mark.parametrize("path", PATHS)
def test_a_header_that_selects_a_more_expensive_service_is_rejected_under_a_cap(
    path: str, tmp_path: Path
) -> None:
    expensive_headers = {
        "X-Amzn-Bedrock-GuardrailIdentifier": "g",
        "X-Amzn-Bedrock-PerformanceConfig-Latency": "optimized",
        "X-Amzn-Bedrock-Service-Tier": "priority",
        "X-Vertex-AI-LLM-Shared-Request-Type": "priority",
    }
    plain_headers = {"X-Amzn-Bedrock-Service-Tier": "default", "X-Amzn-Bedrock-Accept": "application/json"}
    with capped_gateway(tmp_path) as gateway:
        for name, value in expensive_headers.items():
            response = gateway.send(path, {}, {name: value})

            assert response.status_code == 402, response.text
            assert f"the header `{name.lower()}`" in response.text
        assert gateway.upstream.requests == []
        assert gateway.send(path, {}, plain_headers).status_code == 200
