"""Credentials of one provider never go to another."""

from dataclasses import replace

import pytest

from foveate.errors import KeyRefused
from foveate.gateway.auth.callers import generate_key
from foveate.gateway.auth.credentials import check_credentials, needs_chatgpt, official_provider
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.request import ClientRequest, parse_request
from foveate.gateway.routing import KNOWN_UPSTREAMS, Upstream

CHAT = "/v1/chat/completions"


def make_upstream(url: str, *, replaces_keys: bool = False) -> Upstream:
    return Upstream(
        name="there",
        base_url=url,
        family=ApiFamily.OPENAI,
        provider="any",
        key="ours",
        replaces_keys=replaces_keys,
    )


OFFICIAL = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "google": "https://generativelanguage.googleapis.com/v1beta/openai",
    "nvidia": "https://integrate.api.nvidia.com/v1",
    "azure": "https://house.openai.azure.com/openai/v1",
    "aws": "https://bedrock-runtime.eu-west-1.amazonaws.com",
    "xai": "https://api.x.ai/v1",
    "groq": "https://api.groq.com/openai/v1",
    "github": "https://api.githubcopilot.com",
}


def make_request(header: str, value: str, *, path: str = CHAT, query: str = "") -> ClientRequest:
    headers = [(header.encode(), value.encode())] if header else []
    return parse_request({"method": "POST", "path": path, "query_string": query.encode(), "headers": headers})


def allowed_providers(request: ClientRequest) -> set[str]:
    """Return the official providers that may receive a request."""
    messages = {provider: error_message(request, url) for provider, url in OFFICIAL.items()}
    assert all("Nothing was sent" in text and "secret" not in text for text in messages.values() if text)
    return {provider for provider, text in messages.items() if not text}


def error_message(request: ClientRequest, url: str) -> str:
    try:
        check_credentials(request, make_upstream(url))
    except KeyRefused as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("header", "value", "query", "owners"),
    [
        ("x-api-key", "sk-ant-api03-secret", "", {"anthropic"}),
        ("authorization", "Bearer sk-ant-oat01-secret", "", {"anthropic"}),
        ("authorization", "Bearer sk-proj-secret", "", {"openai"}),
        ("authorization", "bearer   sk-svcacct-secret", "", {"openai"}),
        ("authorization", "Bearer sk-secret", "", {"openai", "deepseek"}),
        ("x-api-key", "sk-secret", "", {"openai", "deepseek"}),
        ("authorization", "Bearer sk-or-v1-secret", "", {"openrouter"}),
        ("authorization", "Bearer AIzaSecret-secret", "", {"google"}),
        ("x-goog-api-key", "secret", "", {"google"}),
        ("", "", "key=AIzaSecret-secret", {"google"}),
        ("", "", "alt=sse&key=secret", {"google"}),
        ("authorization", "Bearer ya29.secret", "", {"google"}),
        ("x-goog-api-key", "sk-proj-secret", "", {"openai"}),
        ("api-key", "0123secret", "", {"azure"}),
        ("api-key", "sk-ant-api03-secret", "", {"anthropic"}),
        ("authorization", "AWS4-HMAC-SHA256 Credential=AKIAsecret/20261117", "", {"aws"}),
        ("authorization", "AWS4-ECDSA-P256-SHA256 Credential=AKIAsecret/20261117", "", {"aws"}),
        ("x-amz-security-token", "secret", "", {"aws"}),
        ("", "", "X-Amz-Credential=AKIAsecret&X-Amz-Signature=secret", {"aws"}),
        ("authorization", "Bearer bedrock-api-key-secret", "", {"aws"}),
        ("authorization", "Bearer ABSKsecret", "", {"aws"}),
        ("authorization", "Bearer xai-secret", "", {"xai"}),
        ("authorization", "Bearer gsk_secret", "", {"groq"}),
        ("authorization", "Bearer nvapi-secret", "", {"nvidia"}),
        ("authorization", "Bearer gho_secret", "", {"github"}),
        ("authorization", "Bearer hf_secret", "", set()),
        ("authorization", "Bearer sk-proj-secret", "key=AIzaSecret-secret", set()),
    ],
)
def test_a_credential_is_sent_only_to_its_own_provider(
    header: str, value: str, query: str, owners: set[str]
) -> None:
    request = make_request(header, value, query=query)

    assert allowed_providers(request) == owners
    check_credentials(request, make_upstream("http://127.0.0.1:4000/v1"))
    check_credentials(request, make_upstream("https://gateway.example/openai.com/v1"))


@pytest.mark.parametrize("value", ["Bearer eyJhbGciOi.secret", "Basic c2VjcmV0", "Bearer secret", ""])
def test_an_ambiguous_credential_is_sent_where_the_client_sent_it(value: str) -> None:
    assert allowed_providers(make_request("authorization", value)) == set(OFFICIAL)


@pytest.mark.parametrize(
    ("path", "owners"),
    [
        ("/v1beta/models/gemini-3-pro:generateContent", {"google"}),
        ("/v1beta/models/gemini-3-pro:streamGenerateContent", {"google"}),
        ("/v1alpha/models", {"google"}),
        ("/v1internal:streamGenerateContent", {"google"}),
        ("/v1/projects/p/locations/eu/publishers/anthropic/models/claude:rawPredict", {"google"}),
        ("/v1/publishers/google/models/gemini-3-pro:generateContent", {"google"}),
        ("/v1beta1/projects/p/locations/eu/publishers/google/models/m:countTokens", {"google"}),
        ("/model/arn:aws:bedrock:eu-west-1:1:inference-profile/claude/converse-stream", {"aws"}),
        ("/model/anthropic.claude-sonnet/converse", {"aws"}),
        ("/model/anthropic.claude-sonnet/invoke-with-response-stream", {"aws"}),
        ("/openai/deployments/house/chat/completions", {"azure"}),
        ("/openai/v1/responses", {"azure"}),
        ("/v1/files", set(OFFICIAL)),
        ("/v1/models", set(OFFICIAL)),
    ],
)
def test_a_path_of_one_provider_is_not_forwarded_to_another(path: str, owners: set[str]) -> None:
    assert allowed_providers(make_request("", "", path=path)) == owners
    check_credentials(make_request("", "", path=path), make_upstream("http://127.0.0.1:4000"))


def test_a_replaced_key_is_not_checked_but_one_in_the_url_is() -> None:
    upstream = make_upstream(OFFICIAL["openai"], replaces_keys=True)
    check_credentials(make_request("x-api-key", "sk-ant-secret"), upstream)
    check_credentials(make_request("x-api-key", generate_key()), make_upstream(OFFICIAL["openai"]))
    with pytest.raises(KeyRefused, match="contains a Google API key but is routed to there"):
        check_credentials(make_request("x-api-key", generate_key(), query="key=AIzaSecret"), upstream)


def test_every_known_remote_upstream_has_an_official_address() -> None:
    local = {name for name, upstream in KNOWN_UPSTREAMS.items() if official_provider(upstream) is None}

    assert local == {"llama.cpp", "vllm"}


@pytest.mark.parametrize(
    ("host", "provider"),
    [
        ("bedrock-runtime.eu-west-1.amazonaws.com", "aws"),
        ("bedrock-runtime-fips.us-gov-west-1.amazonaws.com", "aws"),
        ("bedrock.us-east-1.amazonaws.com.", "aws"),
        ("Bedrock-Runtime.us-east-1.amazonaws.com:443", "aws"),
        ("vpce-0a1-b2.bedrock-runtime.us-east-1.vpce.amazonaws.com", "aws"),
        ("house.openai.azure.com", "azure"),
        ("house.services.ai.azure.com", "azure"),
        ("house.cognitiveservices.azure.com", "azure"),
        ("house-1.us-east-1.elb.amazonaws.com", None),
        ("bedrock-proxy-1.us-east-1.elb.amazonaws.com", None),
        ("ec2-3-4-5-6.compute-1.amazonaws.com:4000", None),
        ("ec2-3-4-5-6.eu-west-1.compute.amazonaws.com", None),
        ("abc.execute-api.us-east-1.amazonaws.com", None),
        ("vpce-0a1.vpce-svc-0b2.us-east-1.vpce.amazonaws.com", None),
        ("llm.westeurope.cloudapp.azure.com:4000", None),
        ("house.westeurope.azurecontainer.io", None),
    ],
)
def test_a_server_of_a_customer_of_aws_or_azure_is_not_an_official_address(
    host: str, provider: str | None
) -> None:
    """Regression: LiteLLM behind an AWS load balancer got no requests with its own `sk-` keys."""
    upstream = make_upstream(f"https://{host}/v1")

    assert official_provider(upstream) == provider
    if provider is None:
        check_credentials(make_request("authorization", "Bearer sk-1234"), upstream)


LOGIN = {"authorization": "Bearer eyJhbGciOi.x.y", "chatgpt-account-id": "a1"}


@pytest.mark.parametrize(
    ("headers", "upstream", "is_needed"),
    [
        (LOGIN, KNOWN_UPSTREAMS["openai"], True),
        (LOGIN | {"authorization": "Bearer sk-proj-1"}, KNOWN_UPSTREAMS["openai"], False),
        ({"authorization": "Bearer eyJhbGciOi.x.y"}, KNOWN_UPSTREAMS["openai"], False),
        (LOGIN, replace(KNOWN_UPSTREAMS["openai"], base_url="http://127.0.0.1:9/v1"), False),
        (LOGIN, replace(KNOWN_UPSTREAMS["openai"], replaces_keys=True, key="ours"), False),
        (LOGIN, KNOWN_UPSTREAMS["openrouter"], False),
    ],
)
def test_only_a_chatgpt_login_on_its_way_to_openai_needs_the_address_of_chatgpt(
    headers: dict[str, str], upstream: Upstream, is_needed: bool
) -> None:
    request = parse_request(
        {
            "method": "POST",
            "path": "/v1/responses",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )

    assert needs_chatgpt(request, upstream) is is_needed


def test_responses_of_chatgpt_have_their_own_address() -> None:
    url = KNOWN_UPSTREAMS["chatgpt"].url("/v1/responses")

    assert url == "https://chatgpt.com/backend-api/codex/responses"
