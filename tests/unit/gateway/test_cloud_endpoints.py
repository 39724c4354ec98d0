"""Where the gateway's own calls for clients of Gemini and Azure go, and with which credential."""

from dataclasses import replace

import pytest

from foveate.gateway.asks import Ask, ask_of
from foveate.gateway.cloud_endpoints import azure_endpoint, google_endpoint
from foveate.gateway.doors import Family
from foveate.gateway.keys import new_key
from foveate.gateway.routing import KNOWN_UPSTREAMS, Upstream
from foveate.values import Format

GOOGLE = KNOWN_UPSTREAMS["google"]


def asked(query: str = "", **headers: str) -> Ask:
    return ask_of(
        {
            "method": "POST",
            "path": "/v1beta/models/gemini-3-pro:generateContent",
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), said.encode()) for name, said in headers.items()],
        }
    )


@pytest.mark.parametrize(
    ("ask", "credential"),
    [
        (asked(x_goog_api_key="AIza1"), "Bearer AIza1"),
        (asked("alt=sse&key=AIza%2B1"), "Bearer AIza+1"),
        (asked(authorization="Bearer ya29.token"), "Bearer ya29.token"),
        (asked(x_goog_api_key=new_key()), "Bearer ours"),
        (asked(), ""),
    ],
)
def test_googles_endpoint_for_chats_gets_the_clients_credential_or_the_gateways(
    ask: Ask, credential: str
) -> None:
    endpoint = google_endpoint(ask, replace(GOOGLE, key="ours"))

    assert endpoint.url == "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"
    assert (endpoint.spoken, endpoint.headers["authorization"]) == (Format.CHAT, credential)


@pytest.mark.parametrize(
    ("path", "query", "url"),
    [
        (
            "/openai/deployments/the house/chat/completions",
            "api-version=1",
            "https://h.openai.azure.com/openai/deployments/the%20house/chat/completions?api-version=1",
        ),
        (
            "/openai/v1/responses",
            "api-version=preview",
            "https://h.openai.azure.com/openai/v1/chat/completions",
        ),
    ],
)
def test_azure_is_asked_for_chats_where_its_client_asks_it(path: str, query: str, url: str) -> None:
    azure = Upstream(
        name="azure", base_url="https://h.openai.azure.com", family=Family.AZURE, provider="azure", key="ours"
    )
    scope = {"method": "POST", "path": path, "query_string": query.encode()}
    theirs = azure_endpoint(ask_of({**scope, "headers": [(b"api-key", b"theirs"), (b"x", b"y")]}), azure)
    ours = azure_endpoint(ask_of({**scope, "headers": [(b"api-key", new_key().encode())]}), azure)

    assert theirs.url == ours.url == url
    assert (theirs.headers, ours.headers) == ({"api-key": "theirs"}, {"api-key": "ours"})
