"""Where the gateway's own calls for clients of Gemini go, and with which credential."""

from dataclasses import replace

import pytest

from foveate.gateway.asks import Ask, ask_of
from foveate.gateway.cloud_endpoints import google_endpoint
from foveate.gateway.keys import new_key
from foveate.gateway.routing import KNOWN_UPSTREAMS
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
