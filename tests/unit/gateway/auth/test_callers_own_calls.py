"""Endpoints and credentials of the gateway's own calls for clients of Gemini and Azure."""

from dataclasses import replace
from urllib.parse import quote

import pytest

from foveate.gateway.auth.callers import find_summary_endpoint, generate_key
from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.request import ClientRequest, parse_request
from foveate.gateway.routing import KNOWN_UPSTREAMS, Upstream
from foveate.model import Format

GOOGLE = KNOWN_UPSTREAMS["google"]


def make_request(query: str = "", **headers: str) -> ClientRequest:
    return parse_request(
        {
            "method": "POST",
            "path": "/v1beta/models/gemini-3-pro:generateContent",
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()],
        }
    )


@pytest.mark.parametrize(
    ("client_request", "credential"),
    [
        (make_request(x_goog_api_key="AIza1"), "Bearer AIza1"),
        (make_request("alt=sse&key=AIza%2B1"), "Bearer AIza+1"),
        (make_request(authorization="Bearer ya29.token"), "Bearer ya29.token"),
        (make_request(x_goog_api_key=generate_key()), "Bearer ours"),
        (make_request(), ""),
    ],
)
def test_googles_chat_endpoint_gets_the_clients_credential_or_the_gateways(
    client_request: ClientRequest, credential: str
) -> None:
    endpoint = find_summary_endpoint(
        client_request, replace(GOOGLE, key="ours"), client_request.api_format, "gemini-3-pro"
    )

    assert endpoint.url == "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"
    assert (endpoint.api_format, endpoint.headers["authorization"]) == (Format.CHAT, credential)
    assert endpoint.model == "gemini-3-pro"


@pytest.mark.parametrize(
    ("path", "query", "url", "api_format"),
    [
        (
            "/openai/deployments/the house/chat/completions",
            "api-version=1",
            "/openai/deployments/the%20house/chat/completions?api-version=1",
            Format.CHAT,
        ),
        ("/openai/v1/chat/completions", "", "/openai/v1/chat/completions", Format.CHAT),
        (
            "/openai/v1/responses/",
            "api-version=preview",
            "/openai/v1/responses?api-version=preview",
            Format.RESPONSES,
        ),
        ("/openai/responses", "api-version=1", "/openai/responses?api-version=1", Format.RESPONSES),
        ("/openai/v1/responses/input_tokens", "", "/openai/v1/responses", Format.RESPONSES),
    ],
)
def test_azure_is_called_at_the_clients_own_endpoint_and_format(
    path: str, query: str, url: str, api_format: Format
) -> None:
    azure = Upstream(
        name="azure",
        base_url="https://h.openai.azure.com",
        family=ApiFamily.AZURE,
        provider="azure",
        key="ours",
    )
    raw_path = quote(path).encode()
    scope = {"method": "POST", "path": path, "raw_path": raw_path, "query_string": query.encode()}
    with_client_key = parse_request({**scope, "headers": [(b"api-key", b"theirs"), (b"x", b"y")]})
    with_gateway_key = parse_request({**scope, "headers": [(b"api-key", generate_key().encode())]})
    endpoints = [
        find_summary_endpoint(request, azure, request.api_format, "house")
        for request in (with_client_key, with_gateway_key)
    ]

    for endpoint in endpoints:
        assert endpoint.url == f"https://h.openai.azure.com{url}"
        assert (endpoint.api_format, endpoint.model) == (api_format, "house")
    assert [endpoint.headers for endpoint in endpoints] == [{"api-key": "theirs"}, {"api-key": "ours"}]
