"""Which provider and format a request means, and where it goes."""

import pytest

from foveate.gateway.doors import Asks, Door, Family, door_of, meant_path
from foveate.gateway.routing import KNOWN_UPSTREAMS, Route, Routing, Upstream
from foveate.values import Format

ANTHROPIC = {"anthropic-version": "2023-06-01", "x-api-key": "k"}
OPENAI = {"authorization": "Bearer k"}
GOOGLE = {"x-goog-api-key": "k"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "door"),
    [
        ("POST", "/v1/messages", OPENAI, Door(Asks.ANSWER, Family.ANTHROPIC, Format.ANTHROPIC)),
        ("POST", "/v1/messages/count_tokens", {}, Door(Asks.COUNT, Family.ANTHROPIC, Format.ANTHROPIC)),
        ("POST", "/v1/messages/batches", {}, Door(Asks.OTHER, Family.ANTHROPIC)),
        ("POST", "/v1/chat/completions", ANTHROPIC, Door(Asks.ANSWER, Family.OPENAI, Format.CHAT)),
        ("POST", "/v1/responses", OPENAI, Door(Asks.ANSWER, Family.OPENAI, Format.RESPONSES)),
        ("GET", "/v1/responses/resp_1", OPENAI, Door(Asks.OTHER, Family.OPENAI)),
        ("POST", "/", OPENAI, Door(Asks.OTHER, Family.OPENAI)),
        ("POST", "/v1/embeddings", OPENAI, Door(Asks.EMBEDDINGS, Family.OPENAI)),
        ("GET", "/v1/models", OPENAI, Door(Asks.MODELS, Family.OPENAI)),
        ("GET", "/v1/models", ANTHROPIC, Door(Asks.MODELS, Family.ANTHROPIC)),
        ("GET", "/v1/models/claude-opus-5-5", ANTHROPIC, Door(Asks.MODELS, Family.ANTHROPIC)),
        ("POST", "//v1/messages/batches", {}, Door(Asks.OTHER, Family.ANTHROPIC)),
        ("GET", "/v1/files", ANTHROPIC, Door(Asks.OTHER, Family.ANTHROPIC)),
        ("GET", "/v1/files", OPENAI, Door(Asks.OTHER, Family.OPENAI)),
        ("GET", "/v1/chat/completions", OPENAI, Door(Asks.OTHER, Family.OPENAI)),
        ("GET", "/v1/models", GOOGLE, Door(Asks.MODELS, Family.GEMINI)),
        ("GET", "/v1beta/models/gemini-3-pro", {}, Door(Asks.MODELS, Family.GEMINI)),
        ("POST", "/openai/v1/responses", {}, Door(Asks.ANSWER, Family.AZURE, Format.RESPONSES)),
        ("POST", "/openai/responses", {}, Door(Asks.ANSWER, Family.AZURE, Format.RESPONSES)),
        ("POST", "/openai/v1/responses/input_tokens", {}, Door(Asks.COUNT, Family.AZURE, Format.RESPONSES)),
        ("POST", "/openai/deployments/a/embeddings", {}, Door(Asks.EMBEDDINGS, Family.AZURE, model="a")),
        ("POST", "/openai/deployments/a/images/generations", {}, Door(Asks.OTHER, Family.AZURE, model="a")),
        ("POST", "/openai/v1/messages", {}, Door(Asks.OTHER, Family.AZURE)),
        ("GET", "/openai/models", {}, Door(Asks.OTHER, Family.AZURE)),
        (
            "POST",
            "/openai/deployments/a/chat/completions",
            {},
            Door(Asks.ANSWER, Family.AZURE, Format.CHAT, model="a"),
        ),
        ("POST", "/v1beta/cachedContents", {}, Door(Asks.OTHER, Family.GEMINI)),
        ("POST", "/upload/v1beta/files", {}, Door(Asks.OTHER, Family.GEMINI)),
        ("POST", "/v1/files", GOOGLE, Door(Asks.OTHER, Family.GEMINI)),
        ("POST", "/v1beta/models/m:embedContent", {}, Door(Asks.OTHER, Family.GEMINI, model="m")),
        ("GET", "/v1beta/models/m:generateContent", {}, Door(Asks.OTHER, Family.GEMINI, model="m")),
    ],
)
def test_a_request_comes_through_a_door(method: str, path: str, headers: dict[str, str], door: Door) -> None:
    assert door_of(method, path, headers) == door


ARN = "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-sonnet-4-5-20250929-v1:0"


@pytest.mark.parametrize(
    ("path", "asks", "spoken", "model", "streams"),
    [
        ("/model/m/converse", Asks.ANSWER, Format.BEDROCK, "m", False),
        ("/model/m/converse-stream", Asks.ANSWER, Format.BEDROCK, "m", True),
        (f"/model/{ARN}/converse", Asks.ANSWER, Format.BEDROCK, ARN, False),
        (f"/model/{ARN}/invoke", Asks.ANSWER, Format.ANTHROPIC, ARN, False),
        (f"/model/{ARN}/invoke-with-response-stream", Asks.ANSWER, Format.ANTHROPIC, ARN, True),
        ("/model/amazon.nova-pro-v1:0/invoke", Asks.ANSWER, Format.BEDROCK, "amazon.nova-pro-v1:0", False),
        ("/model/meta.llama3-v1:0/invoke", Asks.OTHER, None, "meta.llama3-v1:0", False),
        ("/model/m/count-tokens", Asks.OTHER, None, "", False),
    ],
)
def test_bedrock_names_the_model_in_the_path(
    path: str, asks: Asks, spoken: Format | None, model: str, streams: bool
) -> None:
    assert door_of("POST", path, {}) == Door(asks, Family.BEDROCK, spoken, model=model, streams=streams)


@pytest.mark.parametrize("place", ["/v1/projects/p/locations/eu", "/v1beta1/projects/p/locations/eu", "/v1"])
@pytest.mark.parametrize(
    ("method", "asks", "spoken", "model", "streams"),
    [
        ("google/models/g:generateContent", Asks.ANSWER, Format.GEMINI, "g", False),
        ("google/models/g:streamGenerateContent", Asks.ANSWER, Format.GEMINI, "g", True),
        ("google/models/g:countTokens", Asks.COUNT, Format.GEMINI, "g", False),
        ("google/models/g:predict", Asks.OTHER, None, "g", False),
        ("anthropic/models/c@1:rawPredict", Asks.ANSWER, Format.ANTHROPIC, "c@1", False),
        ("anthropic/models/c@1:streamRawPredict", Asks.ANSWER, Format.ANTHROPIC, "c@1", True),
        ("anthropic/models/count-tokens:rawPredict", Asks.OTHER, None, "count-tokens", False),
        ("mistralai/models/m:rawPredict", Asks.OTHER, None, "m", False),
    ],
)
def test_vertex_names_publisher_model_and_location_in_the_path(
    place: str, method: str, asks: Asks, spoken: Format | None, model: str, streams: bool
) -> None:
    door = door_of("POST", f"{place}/publishers/{method}", {})

    region = "eu" if spoken is not None and place.endswith("/eu") else ""
    assert door == Door(asks, Family.VERTEX, spoken, model=model, streams=streams, region=region)


@pytest.mark.parametrize("version", ["/v1beta", "/v1", "/v1alpha", "/v1beta2", "//v1beta/"])
@pytest.mark.parametrize(
    ("method", "asks", "streams"),
    [
        ("generateContent", Asks.ANSWER, False),
        ("streamGenerateContent", Asks.ANSWER, True),
        ("countTokens", Asks.COUNT, False),
    ],
)
def test_gemini_names_the_model_and_what_is_asked_for_in_the_path(
    version: str, method: str, asks: Asks, streams: bool
) -> None:
    door = door_of("POST", f"{version}/models/gemini-3-pro:{method}", {})

    assert door == Door(asks, Family.GEMINI, Format.GEMINI, model="gemini-3-pro", streams=streams)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/messages", "/v1/messages"),
        ("/v1/messages/", "/v1/messages"),
        ("//v1/messages//", "/v1/messages"),
        ("/messages", "/v1/messages"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/v1/messages/batches", "/v1/messages/batches"),
        ("/v1//chat///completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"),
        ("/responses", "/v1/responses"),
        ("/embeddings/", "/v1/embeddings"),
        ("/models", "/v1/models"),
        ("/models/gpt-4o", "/v1/models/gpt-4o"),
        ("/v1/v1/models/a%2Fb", "/v1/models/a%2Fb"),
    ],
)
def test_a_base_url_may_have_the_version_or_not_and_a_slash_at_its_end(path: str, meant: str) -> None:
    assert meant_path(path) == meant


@pytest.mark.parametrize(
    "path",
    ["", "*", "/", "/v1", "/v1/v1", "/v1/files//x/", "/v1beta/models/x", "/api/v1/messages", "/v12/messages"],
)
def test_a_path_that_is_not_read_stays_as_it_came(path: str) -> None:
    assert meant_path(path) == path


CHAT = door_of("POST", "/v1/chat/completions", {})
MESSAGES = door_of("POST", "/v1/messages", {})


def test_without_a_route_a_request_goes_to_the_provider_of_its_door() -> None:
    routing = Routing(upstreams=KNOWN_UPSTREAMS)

    assert routing.of(CHAT, "deepseek-chat").upstream.name == "openai"
    assert routing.of(MESSAGES, "gpt-5.6").upstream.name == "anthropic"
    assert routing.of(MESSAGES, "").model is None


def test_the_first_route_that_matches_the_model_and_speaks_its_api_is_taken() -> None:
    routing = Routing(
        upstreams=KNOWN_UPSTREAMS,
        routes=[
            Route(models="claude-*", upstream="openrouter", model="anthropic/claude-opus-5.5"),
            Route(models="claude-*", upstream="anthropic"),
            Route(models="fast", upstream="deepseek", model="deepseek-chat"),
            Route(models="deepseek-chat", upstream="deepseek", model="deepseek-chat"),
            Route(models="*", upstream="vllm"),
        ],
    )

    def went(door: Door, model: str) -> tuple[str, str | None]:
        routed = routing.of(door, model)
        return routed.upstream.name, routed.model

    assert went(CHAT, "claude-opus-5-5") == ("openrouter", "anthropic/claude-opus-5.5")
    assert went(MESSAGES, "claude-opus-5-5") == ("anthropic", None)
    assert went(CHAT, "fast") == ("deepseek", "deepseek-chat")
    assert went(CHAT, "deepseek-chat") == ("deepseek", None)
    assert went(CHAT, "Fast") == ("vllm", None)
    assert went(CHAT, "") == ("vllm", None)


@pytest.mark.parametrize(
    ("family", "base_url", "path", "query", "url"),
    [
        (Family.ANTHROPIC, "https://a.example", "/v1/messages", "", "https://a.example/v1/messages"),
        (Family.ANTHROPIC, "https://a.example/x/", "/v1/messages", "beta=true", "https://a.example/x/v1/messages?beta=true"),
        (Family.OPENAI, "https://o.example/api/v1", "/v1/chat/completions", "", "https://o.example/api/v1/chat/completions"),
        (Family.OPENAI, "https://g.example/v1beta/openai/", "/v1/models", "", "https://g.example/v1beta/openai/models"),
    ],
)  # fmt: skip
def test_an_upstream_is_asked_under_the_address_that_its_clients_know(
    family: Family, base_url: str, path: str, query: str, url: str
) -> None:
    upstream = Upstream(name="x", base_url=base_url, family=family, provider="x")

    assert upstream.url(path, query) == url
