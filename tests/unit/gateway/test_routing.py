"""Requests are routed by their model, and never to a provider that no route names."""

import pytest

from foveate.errors import MalformedRequest, NoUpstream, WrongApi
from foveate.formats.request_limits import RequestLimits
from foveate.gateway.endpoints import ApiFamily, match_endpoint
from foveate.gateway.model_name import find_requested_model, replace_body_model, replace_path_model
from foveate.gateway.request import parse_request
from foveate.gateway.routing import KNOWN_UPSTREAMS, Route, Routing, Upstream
from foveate.http.pool import parse_url

CHAT, MESSAGES = match_endpoint("POST", "/v1/chat/completions", {}), match_endpoint("POST", "/v1/messages", {})


def make_routing(**routes: str) -> Routing:
    return Routing(
        upstreams=KNOWN_UPSTREAMS,
        routes=[Route(models=models, upstream=upstream) for upstream, models in routes.items()],
    )


def test_requests_without_a_model_use_the_catch_all_route() -> None:
    """Regression: with a route for `*`, `GET /v1/models` went to OpenAI with another provider's key."""
    listing = match_endpoint("GET", "/v1/models", {})

    assert make_routing(deepseek="*").match(listing, "").upstream.name == "deepseek"
    assert make_routing(deepseek="deep*").match(listing, "").upstream.name == "openai"


def test_a_model_whose_upstream_has_another_api_is_rejected() -> None:
    """Regression: it silently went to the default provider."""
    with pytest.raises(WrongApi, match=r"'deepseek-chat' leads to the upstream deepseek, .* the anthropic API"):
        make_routing(deepseek="*").match(MESSAGES, "deepseek-chat")
    assert make_routing(deepseek="*").match(CHAT, "deepseek-chat").upstream.name == "deepseek"
    both = make_routing(deepseek="*", anthropic="*")
    assert both.match(MESSAGES, "claude-sonnet-4-5").upstream.name == "anthropic"


def test_a_model_in_the_path_is_routed_like_one_in_the_body() -> None:
    gemini = match_endpoint("POST", "/v1beta/models/quick:generateContent", {})
    aliases = Routing(
        upstreams=KNOWN_UPSTREAMS, routes=[Route(models="quick", upstream="google", model="gemini-3-flash")]
    )

    assert aliases.match(gemini, "quick").served_model == "gemini-3-flash"
    assert aliases.match(CHAT, "gpt-5").served_model == ""
    assert make_routing().match(gemini, "gemini-3-pro").upstream.name == "google"
    with pytest.raises(WrongApi, match=r"leads to the upstream deepseek, .* the gemini API"):
        make_routing(deepseek="*").match(gemini, "quick")


@pytest.mark.parametrize(
    ("base_url", "region"),
    [
        ("https://api.openai.com/v1", "global"),
        ("https://eu.api.openai.com/v1", "eu"),
        ("https://EU.api.openai.com", "EU"),
        ("https://eu.api.openai.com.example.org/v1", ""),
        ("https://gateway.example.org/eu.api.openai.com", ""),
        ("https://api.deepseek.com", ""),
    ],
)
def test_the_host_of_openai_tells_the_region(base_url: str, region: str) -> None:
    upstream = Upstream(name="openai", base_url=base_url, family=ApiFamily.OPENAI, provider="openai")

    assert upstream.region == region


def test_a_deployment_is_the_model_that_is_configured_for_it() -> None:
    azure = Upstream(
        name="azure",
        base_url="https://house.openai.azure.com",
        family=ApiFamily.AZURE,
        provider="azure",
        deployments={"house": "gpt-5.1"},
    )
    routing = Routing(upstreams={"azure": azure})
    deployment = match_endpoint("POST", "/openai/deployments/house/chat/completions", {})
    in_body = match_endpoint("POST", "/openai/v1/chat/completions", {})

    assert routing.match(deployment, "house").served_model == "gpt-5.1"
    assert routing.match(in_body, "house").served_model == "gpt-5.1"
    assert routing.match(in_body, "attic").served_model == ""
    url = "https://house.openai.azure.com/openai/v1/chat/completions?a=b"
    assert azure.url("/openai/v1/chat/completions", "a=b") == url


def test_a_request_in_an_api_without_an_upstream_is_rejected_with_advice() -> None:
    gemini = match_endpoint("POST", "/v1beta/models/m:generateContent", {})
    others = {name: upstream for name, upstream in KNOWN_UPSTREAMS.items() if name != "google"}

    assert list(Routing(upstreams=others).possible_upstreams(gemini)) == []
    with pytest.raises(NoUpstream, match=r"no upstream .* Nothing was sent\. .* `api: gemini`"):
        Routing(upstreams=others).match(gemini, "m")


@pytest.mark.parametrize(
    ("path", "expected_path"),
    [
        ("/v1beta/models/quick:generateContent", "/v1beta/models/a%2Fb:generateContent"),
        ("/v1beta/models/quick%3AcountTokens", "/v1beta/models/a%2Fb:countTokens"),
        ("/v1beta/models/models:generateContent", "/v1beta/models/a%2Fb:generateContent"),
        ("/openai/deployments/openai/chat/completions", "/openai/deployments/a%2Fb/chat/completions"),
        ("/openai/deployments/chat/chat/completions", "/openai/deployments/a%2Fb/chat/completions"),
        ("/model/model/converse", "/model/a%2Fb/converse"),
        (
            "/v1/projects/p/locations/us/publishers/google/models/p:countTokens",
            "/v1/projects/p/locations/us/publishers/google/models/a%2Fb:countTokens",
        ),
    ],
)
def test_a_model_gets_another_name_in_the_path(path: str, expected_path: str) -> None:
    """Regression: an equal segment before the model was replaced, such as the project of the same name."""
    scope = {
        "method": "POST",
        "path": path.replace("%3A", ":"),
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [],
    }

    assert replace_path_model(parse_request(scope), "a/b").raw_path == expected_path
    with pytest.raises(MalformedRequest, match="does not contain the model's name"):
        replace_path_model(parse_request({**scope, "raw_path": b"/v1beta/elsewhere"}), "a/b")


@pytest.mark.parametrize("path", ["/v1@elsewhere.com/x", "/v1.elsewhere.com/x", "/v1:99/x", "/v1/x", "/v1"])
def test_no_path_leads_to_another_host(path: str) -> None:
    """Regression: after the host of an upstream whose base URL has no path, the rest named another host."""
    upstream = Upstream(
        name="perplexity", base_url="https://api.perplexity.ai", family=ApiFamily.OPENAI, provider="perplexity"
    )

    assert parse_url(upstream.url(path)).authority == b"api.perplexity.ai"


@pytest.mark.parametrize("name", ["llama.cpp", "vllm"])
def test_local_servers_accept_both_apis(name: str) -> None:
    """Regression: they had only one API, so prompts in the other went to Anthropic."""
    routing = Routing(upstreams=KNOWN_UPSTREAMS, routes=[Route(models="qwen*", upstream=name)])

    for endpoint, path in ((CHAT, "/v1/chat/completions"), (MESSAGES, "/v1/messages")):
        upstream = routing.match(endpoint, "qwen3").upstream
        assert (upstream.name, upstream.url(path).count("/v1")) == (name, 1)


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n\x00\xff\r\n'
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--b--\r\n'
)


@pytest.mark.parametrize(
    ("method", "path", "kind", "body", "model"),
    [
        ("POST", "/v1/completions", b"application/json", b'{"model": "a", "prompt": "Hi"}', "a"),
        ("POST", "/v1/audio/transcriptions", b"multipart/form-data; boundary=b", FORM, "whisper-1"),
        ("GET", "/v1/models/org%2Fa", b"", b"", "org/a"),
        ("GET", "/v1/models", b"", b"", ""),
        ("POST", "/v1/files", b"application/json", b"[1]", ""),
        ("POST", "/v1/batches", b"application/json", b'{"model": 3}', ""),
    ],
)
def test_the_model_of_a_request_is_found_wherever_it_is(
    method: str, path: str, kind: bytes, body: bytes, model: str
) -> None:
    scope = {
        "method": method,
        "path": path.replace("%2F", "/"),
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"content-type", kind)],
    }

    assert find_requested_model(parse_request(scope), body) == model


@pytest.mark.parametrize(
    ("kind", "body"),
    [(b"multipart/form-data; boundary=b", FORM), (b"application/json", b'{"n": 1e400, "model" : "whisper-1"}')],
)
def test_a_model_gets_another_name_in_the_body(kind: bytes, body: bytes) -> None:
    """Regression: a form kept the client's name of the model, which the upstream does not know."""
    path, headers = "/v1/audio/transcriptions", [(b"content-type", kind)]
    request = parse_request({"method": "POST", "path": path, "query_string": b"", "headers": headers})

    assert replace_body_model(request, body, "a/b", RequestLimits()) == body.replace(b"whisper-1", b"a/b")
