"""The endpoint and upstream of a request."""

import pytest

from foveate.gateway.endpoints import ApiFamily, Endpoint, Operation, canonicalize_path, match_endpoint
from foveate.gateway.routing import KNOWN_UPSTREAMS, Route, Routing, Upstream
from foveate.model import Format

ANTHROPIC = {"anthropic-version": "2023-06-01", "x-api-key": "k"}
OPENAI = {"authorization": "Bearer k"}
GOOGLE = {"x-goog-api-key": "k"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "endpoint"),
    [
        ("POST", "/v1/messages", OPENAI, Endpoint(Operation.GENERATE, ApiFamily.ANTHROPIC, Format.ANTHROPIC)),
        (
            "POST",
            "/v1/messages/count_tokens",
            {},
            Endpoint(Operation.COUNT_TOKENS, ApiFamily.ANTHROPIC, Format.ANTHROPIC),
        ),
        ("POST", "/v1/messages/batches", {}, Endpoint(Operation.OTHER, ApiFamily.ANTHROPIC)),
        (
            "POST",
            "/v1/chat/completions",
            ANTHROPIC,
            Endpoint(Operation.GENERATE, ApiFamily.OPENAI, Format.CHAT),
        ),
        ("POST", "/v1/responses", OPENAI, Endpoint(Operation.GENERATE, ApiFamily.OPENAI, Format.RESPONSES)),
        ("GET", "/v1/responses/resp_1", OPENAI, Endpoint(Operation.OTHER, ApiFamily.OPENAI)),
        ("POST", "/", OPENAI, Endpoint(Operation.OTHER, ApiFamily.OPENAI)),
        ("POST", "/v1/embeddings", OPENAI, Endpoint(Operation.EMBEDDINGS, ApiFamily.OPENAI)),
        ("GET", "/v1/models", OPENAI, Endpoint(Operation.LIST_MODELS, ApiFamily.OPENAI)),
        ("GET", "/v1/models", ANTHROPIC, Endpoint(Operation.LIST_MODELS, ApiFamily.ANTHROPIC)),
        ("GET", "/v1/models/claude-opus-5-5", ANTHROPIC, Endpoint(Operation.LIST_MODELS, ApiFamily.ANTHROPIC)),
        ("POST", "//v1/messages/batches", {}, Endpoint(Operation.OTHER, ApiFamily.ANTHROPIC)),
        ("GET", "/v1/files", ANTHROPIC, Endpoint(Operation.OTHER, ApiFamily.ANTHROPIC)),
        ("GET", "/v1/files", OPENAI, Endpoint(Operation.OTHER, ApiFamily.OPENAI)),
        ("GET", "/v1/chat/completions", OPENAI, Endpoint(Operation.OTHER, ApiFamily.OPENAI)),
        ("GET", "/v1/models", GOOGLE, Endpoint(Operation.LIST_MODELS, ApiFamily.GEMINI)),
        ("GET", "/v1beta/models/gemini-3-pro", {}, Endpoint(Operation.LIST_MODELS, ApiFamily.GEMINI)),
        ("POST", "/openai/v1/responses", {}, Endpoint(Operation.GENERATE, ApiFamily.AZURE, Format.RESPONSES)),
        ("POST", "/openai/responses", {}, Endpoint(Operation.GENERATE, ApiFamily.AZURE, Format.RESPONSES)),
        (
            "POST",
            "/openai/v1/responses/input_tokens",
            {},
            Endpoint(Operation.COUNT_TOKENS, ApiFamily.AZURE, Format.RESPONSES),
        ),
        (
            "POST",
            "/openai/deployments/a/embeddings",
            {},
            Endpoint(Operation.EMBEDDINGS, ApiFamily.AZURE, model="a"),
        ),
        (
            "POST",
            "/openai/deployments/a/images/generations",
            {},
            Endpoint(Operation.OTHER, ApiFamily.AZURE, model="a"),
        ),
        ("POST", "/openai/v1/messages", {}, Endpoint(Operation.OTHER, ApiFamily.AZURE)),
        ("GET", "/openai/models", {}, Endpoint(Operation.OTHER, ApiFamily.AZURE)),
        (
            "POST",
            "/openai/deployments/a/chat/completions",
            {},
            Endpoint(Operation.GENERATE, ApiFamily.AZURE, Format.CHAT, model="a"),
        ),
        ("POST", "/v1beta/cachedContents", {}, Endpoint(Operation.OTHER, ApiFamily.GEMINI)),
        ("POST", "/upload/v1beta/files", {}, Endpoint(Operation.OTHER, ApiFamily.GEMINI)),
        ("POST", "/v1/files", GOOGLE, Endpoint(Operation.OTHER, ApiFamily.GEMINI)),
        ("POST", "/v1beta/models/m:embedContent", {}, Endpoint(Operation.OTHER, ApiFamily.GEMINI, model="m")),
        ("GET", "/v1beta/models/m:generateContent", {}, Endpoint(Operation.OTHER, ApiFamily.GEMINI, model="m")),
    ],
)
def test_paths_and_headers_select_the_endpoint(
    method: str, path: str, headers: dict[str, str], endpoint: Endpoint
) -> None:
    assert match_endpoint(method, path, headers) == endpoint


ARN = "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-sonnet-4-5-20250929-v1:0"


@pytest.mark.parametrize(
    ("path", "operation", "api_format", "model", "is_streaming"),
    [
        ("/model/m/converse", Operation.GENERATE, Format.BEDROCK, "m", False),
        ("/model/m/converse-stream", Operation.GENERATE, Format.BEDROCK, "m", True),
        (f"/model/{ARN}/converse", Operation.GENERATE, Format.BEDROCK, ARN, False),
        (f"/model/{ARN}/invoke", Operation.GENERATE, Format.ANTHROPIC, ARN, False),
        (f"/model/{ARN}/invoke-with-response-stream", Operation.GENERATE, Format.ANTHROPIC, ARN, True),
        (
            "/model/amazon.nova-pro-v1:0/invoke",
            Operation.GENERATE,
            Format.BEDROCK,
            "amazon.nova-pro-v1:0",
            False,
        ),
        ("/model/meta.llama3-v1:0/invoke", Operation.OTHER, None, "meta.llama3-v1:0", False),
        ("/model/m/count-tokens", Operation.OTHER, None, "", False),
    ],
)
def test_bedrock_names_the_model_in_the_path(
    path: str, operation: Operation, api_format: Format | None, model: str, is_streaming: bool
) -> None:
    assert match_endpoint("POST", path, {}) == Endpoint(
        operation, ApiFamily.BEDROCK, api_format, model=model, is_streaming=is_streaming
    )


@pytest.mark.parametrize("place", ["/v1/projects/p/locations/eu", "/v1beta1/projects/p/locations/eu", "/v1"])
@pytest.mark.parametrize(
    ("method", "operation", "api_format", "model", "is_streaming"),
    [
        ("google/models/g:generateContent", Operation.GENERATE, Format.GEMINI, "g", False),
        ("google/models/g:streamGenerateContent", Operation.GENERATE, Format.GEMINI, "g", True),
        ("google/models/g:countTokens", Operation.COUNT_TOKENS, Format.GEMINI, "g", False),
        ("google/models/g:predict", Operation.OTHER, None, "g", False),
        ("anthropic/models/c@1:rawPredict", Operation.GENERATE, Format.ANTHROPIC, "c@1", False),
        ("anthropic/models/c@1:streamRawPredict", Operation.GENERATE, Format.ANTHROPIC, "c@1", True),
        ("anthropic/models/count-tokens:rawPredict", Operation.OTHER, None, "count-tokens", False),
        ("mistralai/models/m:rawPredict", Operation.OTHER, None, "m", False),
    ],
)
def test_vertex_names_publisher_model_and_location_in_the_path(
    place: str, method: str, operation: Operation, api_format: Format | None, model: str, is_streaming: bool
) -> None:
    endpoint = match_endpoint("POST", f"{place}/publishers/{method}", {})

    region = "eu" if api_format is not None and place.endswith("/eu") else ""
    assert endpoint == Endpoint(
        operation, ApiFamily.VERTEX, api_format, model=model, is_streaming=is_streaming, region=region
    )


@pytest.mark.parametrize("version", ["/v1beta", "/v1", "/v1alpha", "/v1beta2", "//v1beta/"])
@pytest.mark.parametrize(
    ("method", "operation", "is_streaming"),
    [
        ("generateContent", Operation.GENERATE, False),
        ("streamGenerateContent", Operation.GENERATE, True),
        ("countTokens", Operation.COUNT_TOKENS, False),
    ],
)
def test_gemini_names_the_model_and_the_operation_in_the_path(
    version: str, method: str, operation: Operation, is_streaming: bool
) -> None:
    endpoint = match_endpoint("POST", f"{version}/models/gemini-3-pro:{method}", {})

    assert endpoint == Endpoint(
        operation, ApiFamily.GEMINI, Format.GEMINI, model="gemini-3-pro", is_streaming=is_streaming
    )


@pytest.mark.parametrize(
    ("path", "canonical"),
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
def test_a_base_url_may_have_the_version_and_a_trailing_slash(path: str, canonical: str) -> None:
    assert canonicalize_path(path) == canonical


@pytest.mark.parametrize(
    "path",
    ["", "*", "/", "/v1", "/v1/v1", "/v1/files//x/", "/v1beta/models/x", "/api/v1/messages", "/v12/messages"],
)
def test_a_path_that_is_not_parsed_stays_unchanged(path: str) -> None:
    assert canonicalize_path(path) == path


CHAT = match_endpoint("POST", "/v1/chat/completions", {})
MESSAGES = match_endpoint("POST", "/v1/messages", {})


def test_without_a_route_a_request_goes_to_the_provider_of_its_endpoint() -> None:
    routing = Routing(upstreams=KNOWN_UPSTREAMS)

    assert routing.match(CHAT, "deepseek-chat").upstream.name == "openai"
    assert routing.match(MESSAGES, "gpt-5.6").upstream.name == "anthropic"
    assert routing.match(MESSAGES, "").model is None


def test_the_first_route_with_the_model_and_the_api_is_used() -> None:
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

    def route(endpoint: Endpoint, model: str) -> tuple[str, str | None]:
        routed = routing.match(endpoint, model)
        return routed.upstream.name, routed.model

    assert route(CHAT, "claude-opus-5-5") == ("openrouter", "anthropic/claude-opus-5.5")
    assert route(MESSAGES, "claude-opus-5-5") == ("anthropic", None)
    assert route(CHAT, "fast") == ("deepseek", "deepseek-chat")
    assert route(CHAT, "deepseek-chat") == ("deepseek", None)
    assert route(CHAT, "Fast") == ("vllm", None)
    assert route(CHAT, "") == ("vllm", None)


@pytest.mark.parametrize(
    ("family", "base_url", "path", "query", "url"),
    [
        (ApiFamily.ANTHROPIC, "https://a.example", "/v1/messages", "", "https://a.example/v1/messages"),
        (ApiFamily.ANTHROPIC, "https://a.example/x/", "/v1/messages", "beta=true", "https://a.example/x/v1/messages?beta=true"),
        (ApiFamily.OPENAI, "https://o.example/api/v1", "/v1/chat/completions", "", "https://o.example/api/v1/chat/completions"),
        (ApiFamily.OPENAI, "https://g.example/v1beta/openai/", "/v1/models", "", "https://g.example/v1beta/openai/models"),
    ],
)  # fmt: skip
def test_an_upstream_is_called_at_the_address_that_its_clients_use(
    family: ApiFamily, base_url: str, path: str, query: str, url: str
) -> None:
    upstream = Upstream(name="x", base_url=base_url, family=family, provider="x")

    assert upstream.url(path, query) == url
