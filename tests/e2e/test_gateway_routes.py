"""Requests are routed by model name, and renamed to the name of the model at the upstream."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import process_time
from typing import Any

import anthropic
import httpx
import openai
import pytest

from foveate.gateway.endpoints import ApiFamily
from foveate.gateway.routing import Route, Upstream
from tests.support.oracles.system_state import wait_for_agent_sums
from tests.support.servers.gateway import RunningGateway, running_gateway
from tests.support.servers.scripted_upstream import http_response, respond_always, running_upstream

RESPONSES = {
    "/v1/messages": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "x",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 1},
    },
    "/v1/chat/completions": {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "x",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    },
    "/v1/completions": {
        "id": "c",
        "object": "text_completion",
        "created": 1,
        "model": "x",
        "choices": [{"index": 0, "text": "Hi", "finish_reason": "stop", "logprobs": None}],
    },
    "/v1/embeddings": {
        "object": "list",
        "model": "x",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    },
}
ReceivedRequests = list[tuple[str, dict[str, Any]]]


@contextmanager
def provider() -> Iterator[tuple[str, ReceivedRequests]]:
    """A provider that answers every request, and the requests it received."""
    requests: ReceivedRequests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_form = self.headers["content-type"].startswith("multipart/")
            requests.append((self.path, {} if is_form else json.loads(body)))
            response = json.dumps(RESPONSES.get(self.path, {})).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def routed_gateway(tmp_path: Path) -> Iterator[tuple[RunningGateway, ReceivedRequests, ReceivedRequests]]:
    """A gateway, and the requests received by its default providers and by another one."""
    with provider() as (default_url, default_requests), provider() as (other_url, other_requests):
        upstreams = [
            Upstream(name="other", base_url=f"{other_url}/v1", family=ApiFamily.OPENAI, provider="other"),
            Upstream(name="claude", base_url=other_url, family=ApiFamily.ANTHROPIC, provider="anthropic"),
        ]
        routes = [
            Route(models="fast", upstream="other", model="gpt-4.1-mini"),
            Route(models="text-*", upstream="other"),
            Route(models="vectors", upstream="other", model="text-embedding-3-small"),
            Route(models="best", upstream="claude", model="claude-opus-4-5"),
        ]
        with running_gateway(default_url, tmp_path, upstreams=upstreams, routes=routes) as gateway:
            yield gateway, default_requests, other_requests


def test_a_chat_goes_to_the_upstream_of_its_model_with_the_upstreams_model_name(
    routed_gateway: tuple[RunningGateway, ReceivedRequests, ReceivedRequests],
) -> None:
    gateway, default_requests, other_requests = routed_gateway
    with openai.OpenAI(base_url=gateway.openai_url, api_key="sk-x") as client:
        for model in ("fast", "gpt-4.1"):
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}])

    assert [body["model"] for _, body in other_requests] == ["gpt-4.1-mini"]
    assert [body["model"] for _, body in default_requests] == ["gpt-4.1"]


def test_limits_also_apply_to_a_renamed_request_that_is_not_parsed(
    routed_gateway: tuple[RunningGateway, ReceivedRequests, ReceivedRequests],
) -> None:
    """Regression: to rename its model, 300,000 messages were read on the event loop, which took seconds."""
    gateway, default_requests, other_requests = routed_gateway
    body = {"model": "fast", "messages": [{"role": "user", "content": "a"}] * 20_001}
    response = httpx.post(
        f"{gateway.openai_url}/completions", json=body, headers={"authorization": "Bearer sk-x"}, timeout=60
    )

    assert response.status_code == 400
    assert "20,001 messages" in response.json()["error"]["message"]
    assert default_requests == other_requests == []


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings"])
def test_an_overlong_model_name_is_not_repeated_in_the_error(
    routed_gateway: tuple[RunningGateway, ReceivedRequests, ReceivedRequests], path: str
) -> None:
    """Regression: the name of an unknown model was repeated in the response and the log, at any length."""
    gateway, default_requests, other_requests = routed_gateway
    body = {"model": "text-" * 1_000, "messages": [], "input": "Hi"}
    response = httpx.post(
        f"{gateway.openai_url}/{path}", json=body, headers={"authorization": "Bearer sk-x"}, timeout=60
    )

    assert response.status_code == 400
    assert response.json()["error"]["message"] == "the model's name has 5,000 characters, more than 1,000"
    assert default_requests == other_requests == []


def test_embeddings_are_routed_like_other_requests(
    routed_gateway: tuple[RunningGateway, ReceivedRequests, ReceivedRequests],
) -> None:
    """Regression: they went to the default provider, whatever the routes."""
    gateway, default_requests, other_requests = routed_gateway
    with openai.OpenAI(base_url=gateway.openai_url, api_key="sk-x") as client:
        for model in ("text-embedding-3-large", "vectors", "other-model"):
            client.embeddings.create(model=model, input="Hi", encoding_format="float")

    assert [body["model"] for _, body in other_requests] == ["text-embedding-3-large", "text-embedding-3-small"]
    assert [(path, body["model"]) for path, body in default_requests] == [("/v1/embeddings", "other-model")]


def test_a_route_only_leads_to_an_upstream_with_the_clients_api_format(
    routed_gateway: tuple[RunningGateway, ReceivedRequests, ReceivedRequests],
) -> None:
    """Regression: if its route used another API format, it went to the default provider with its key."""
    gateway, default_requests, other_requests = routed_gateway
    with anthropic.Anthropic(base_url=gateway.url, api_key="sk-x") as client:
        client.messages.create(model="best", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])
        with pytest.raises(anthropic.BadRequestError, match="does not have the anthropic API"):
            client.messages.create(model="fast", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])

    assert [body["model"] for _, body in other_requests] == ["claude-opus-4-5"]
    assert default_requests == []


def test_forwarded_requests_are_also_routed_by_their_model(
    routed_gateway: tuple[RunningGateway, ReceivedRequests, ReceivedRequests],
) -> None:
    """Regression: all but chats and embeddings went to the default provider, whatever their model."""
    gateway, default_requests, other_requests = routed_gateway
    with openai.OpenAI(base_url=gateway.openai_url, api_key="sk-x") as client:
        for model in ("fast", "gpt-4.1"):
            client.completions.create(model=model, prompt="Hi")

    assert [(path, body["model"]) for path, body in other_requests] == [("/v1/completions", "gpt-4.1-mini")]
    assert [(path, body["model"]) for path, body in default_requests] == [("/v1/completions", "gpt-4.1")]


def test_a_base_url_with_a_missing_or_doubled_version_works_and_calls_are_charged(tmp_path: Path) -> None:
    """Regression: chats of a client without `/v1` in its base URL were answered, but not charged."""
    with provider() as (url, requests), running_gateway(url, tmp_path) as gateway:
        for base_url in (gateway.url, f"{gateway.url}/v1/v1", f"{gateway.url}//v1"):
            with openai.OpenAI(base_url=base_url, api_key="sk-x", max_retries=0) as client:
                client.chat.completions.create(model="gpt-4.1", messages=[{"role": "user", "content": "Hi"}])
        with anthropic.Anthropic(
            base_url=gateway.openai_url, api_key="sk-x", max_retries=0
        ) as anthropic_client:
            anthropic_client.messages.create(
                model="gpt-4.1", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
            )

    assert [path for path, _ in requests] == ["/v1/chat/completions"] * 3 + ["/v1/messages"]
    (totals,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "default", 4)
    assert totals.calls == 4


def test_a_form_goes_to_the_upstream_of_its_model(
    routed_gateway: tuple[RunningGateway, ReceivedRequests, ReceivedRequests],
) -> None:
    gateway, default_requests, other_requests = routed_gateway
    audio = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\ntext-1\r\n' * 100_000
    with httpx.Client(base_url=gateway.openai_url, timeout=60) as client:
        for model in ("text-1", "whisper-1"):
            form: list[tuple[str, Any]] = [("file", audio), ("model", (None, model))]
            client.post("/audio/transcriptions", files=form).raise_for_status()

    assert (
        [path for path, _ in other_requests]
        == [path for path, _ in default_requests]
        == ["/v1/audio/transcriptions"]
    )


def test_a_model_gets_its_upstreams_name_in_a_form_and_in_the_path(tmp_path: Path) -> None:
    """Regression: a form and a request for one model kept the client's name of it."""
    with running_upstream(respond_always(http_response(b"{}"))) as upstream:
        other = Upstream(name="other", base_url=f"{upstream.url}/v1", family=ApiFamily.OPENAI, provider="other")
        with (
            running_gateway(
                upstream.url,
                tmp_path,
                upstreams=[other],
                routes=[Route(models="fast", upstream="other", model="org/new")],
            ) as gateway,
            httpx.Client(base_url=gateway.openai_url, headers={"authorization": "Bearer sk-x"}) as client,
        ):
            client.post("/audio/transcriptions", files={"file": b"\xff"}, data={"model": "fast"})
            client.get("/models/fast")

    assert b'name="model"\r\n\r\norg/new\r\n' in upstream.requests[0]
    assert upstream.requests[1].startswith(b"GET /v1/models/org%2Fnew ")


def test_a_form_with_two_models_is_rejected(
    routed_gateway: tuple[RunningGateway, ReceivedRequests, ReceivedRequests],
) -> None:
    gateway, default_requests, other_requests = routed_gateway

    response = httpx.post(
        f"{gateway.openai_url}/audio/transcriptions",
        files={"file": b"x"},
        data={"model": ["text-1", "whisper-1"]},
        timeout=60,
    )

    assert response.status_code == 400
    assert "'model' 2 times" in response.json()["error"]["message"]
    assert response.headers["x-should-retry"] == "false"
    assert not default_requests
    assert not other_requests


def test_a_multipart_body_with_repeated_names_does_not_block_the_gateway(
    routed_gateway: tuple[RunningGateway, ReceivedRequests, ReceivedRequests],
) -> None:
    """Regression: 48 KB of them kept the event loop busy for 1.5 seconds, 168 KB for 16.7."""
    gateway, _, _ = routed_gateway
    headers = {"content-type": "multipart/form-data; boundary=b"}

    with httpx.Client(base_url=gateway.openai_url, headers=headers, timeout=60) as client:

        def cpu_seconds(size: int) -> float:
            before = process_time()
            client.post("/files", content=b"name=model\r\n" * (size // 12)).raise_for_status()
            return process_time() - before

        small_seconds, large_seconds = (min(cpu_seconds(size) for _ in range(3)) for size in (6_000, 48_000))

    assert large_seconds < 20 * small_seconds
