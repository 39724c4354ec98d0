"""Requests go where their model's name leads, under the name that it has there."""

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

SAID = {
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
Heard = list[tuple[str, dict[str, Any]]]


@contextmanager
def provider() -> Iterator[tuple[str, Heard]]:
    """A provider that says hello to everybody, and what it was asked."""
    heard: Heard = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_form = self.headers["content-type"].startswith("multipart/")
            heard.append((self.path, {} if is_form else json.loads(body)))
            said = json.dumps(SAID.get(self.path, {})).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", heard
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def routed(tmp_path: Path) -> Iterator[tuple[RunningGateway, Heard, Heard]]:
    """A gateway, what its usual providers heard, and what another one did."""
    with provider() as (usual, at_usual), provider() as (other, at_other):
        upstreams = [
            Upstream(name="other", base_url=f"{other}/v1", family=ApiFamily.OPENAI, provider="other"),
            Upstream(name="claude", base_url=other, family=ApiFamily.ANTHROPIC, provider="anthropic"),
        ]
        routes = [
            Route(models="fast", upstream="other", model="gpt-4.1-mini"),
            Route(models="text-*", upstream="other"),
            Route(models="vectors", upstream="other", model="text-embedding-3-small"),
            Route(models="best", upstream="claude", model="claude-opus-4-5"),
        ]
        with running_gateway(usual, tmp_path, upstreams=upstreams, routes=routes) as gateway:
            yield gateway, at_usual, at_other


def test_a_chat_goes_to_the_upstream_of_its_model_under_its_name_there(
    routed: tuple[RunningGateway, Heard, Heard],
) -> None:
    gateway, at_usual, at_other = routed
    with openai.OpenAI(base_url=gateway.openai_url, api_key="sk-x") as client:
        for model in ("fast", "gpt-4.1"):
            client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}])

    assert [body["model"] for _, body in at_other] == ["gpt-4.1-mini"]
    assert [body["model"] for _, body in at_usual] == ["gpt-4.1"]


def test_a_renamed_request_that_is_not_read_is_held_to_the_limits_too(
    routed: tuple[RunningGateway, Heard, Heard],
) -> None:
    """Defect: to rename its model, 300,000 messages were read on the event loop, which took seconds."""
    gateway, at_usual, at_other = routed
    body = {"model": "fast", "messages": [{"role": "user", "content": "a"}] * 20_001}
    found = httpx.post(f"{gateway.openai_url}/completions", json=body, headers={"authorization": "Bearer sk-x"})

    assert found.status_code == 400
    assert "20,001 messages" in found.json()["error"]["message"]
    assert at_usual == at_other == []


@pytest.mark.parametrize("path", ["chat/completions", "completions", "embeddings"])
def test_a_name_that_is_too_long_for_a_model_is_not_repeated_in_the_error(
    routed: tuple[RunningGateway, Heard, Heard], path: str
) -> None:
    """Defect: the name of a model that no upstream serves was in the answer and the log, whatever its size."""
    gateway, at_usual, at_other = routed
    body = {"model": "text-" * 1_000, "messages": [], "input": "Hi"}
    found = httpx.post(f"{gateway.openai_url}/{path}", json=body, headers={"authorization": "Bearer sk-x"})

    assert found.status_code == 400
    assert found.json()["error"]["message"] == "the name of its model has 5,000 characters"
    assert at_usual == at_other == []


def test_embeddings_are_routed_as_all_else_is(routed: tuple[RunningGateway, Heard, Heard]) -> None:
    """Defect: they went to the usual provider, whatever the routes said."""
    gateway, at_usual, at_other = routed
    with openai.OpenAI(base_url=gateway.openai_url, api_key="sk-x") as client:
        for model in ("text-embedding-3-large", "vectors", "other-model"):
            client.embeddings.create(model=model, input="Hi", encoding_format="float")

    assert [body["model"] for _, body in at_other] == ["text-embedding-3-large", "text-embedding-3-small"]
    assert [(path, body["model"]) for path, body in at_usual] == [("/v1/embeddings", "other-model")]


def test_a_route_leads_only_to_an_upstream_that_speaks_the_clients_language(
    routed: tuple[RunningGateway, Heard, Heard],
) -> None:
    """Defect: a request went to the usual provider, with its key, where that of its route spoke another API."""
    gateway, at_usual, at_other = routed
    with anthropic.Anthropic(base_url=gateway.url, api_key="sk-x") as client:
        client.messages.create(model="best", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])
        with pytest.raises(anthropic.BadRequestError, match="does not speak the API of anthropic"):
            client.messages.create(model="fast", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])

    assert [body["model"] for _, body in at_other] == ["claude-opus-4-5"]
    assert at_usual == []


def test_what_only_passes_is_routed_by_its_model_too(routed: tuple[RunningGateway, Heard, Heard]) -> None:
    """Defect: all but answers and embeddings went to the usual provider, whatever model they named."""
    gateway, at_usual, at_other = routed
    with openai.OpenAI(base_url=gateway.openai_url, api_key="sk-x") as client:
        for model in ("fast", "gpt-4.1"):
            client.completions.create(model=model, prompt="Hi")

    assert [(path, body["model"]) for path, body in at_other] == [("/v1/completions", "gpt-4.1-mini")]
    assert [(path, body["model"]) for path, body in at_usual] == [("/v1/completions", "gpt-4.1")]


def test_a_base_url_with_the_version_missing_or_doubled_leads_to_the_same_and_is_booked(tmp_path: Path) -> None:
    """Defect: chats of a client that was not given `/v1` were answered, and not in the ledger."""
    with provider() as (url, heard), running_gateway(url, tmp_path) as gateway:
        for base_url in (gateway.url, f"{gateway.url}/v1/v1", f"{gateway.url}//v1"):
            with openai.OpenAI(base_url=base_url, api_key="sk-x", max_retries=0) as client:
                client.chat.completions.create(model="gpt-4.1", messages=[{"role": "user", "content": "Hi"}])
        with anthropic.Anthropic(base_url=gateway.openai_url, api_key="sk-x", max_retries=0) as claude:
            claude.messages.create(model="gpt-4.1", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])

    assert [path for path, _ in heard] == ["/v1/chat/completions"] * 3 + ["/v1/messages"]
    (found,) = wait_for_agent_sums(tmp_path / "gateway.sqlite", "default", 4)
    assert found.calls == 4


def test_a_form_goes_to_the_upstream_of_the_model_that_it_names(
    routed: tuple[RunningGateway, Heard, Heard],
) -> None:
    gateway, at_usual, at_other = routed
    audio = b'\r\nContent-Disposition: form-data; name="model"\r\n\r\ntext-1\r\n' * 100_000
    with httpx.Client(base_url=gateway.openai_url) as client:
        for model in ("text-1", "whisper-1"):
            form: list[tuple[str, Any]] = [("file", audio), ("model", (None, model))]
            client.post("/audio/transcriptions", files=form).raise_for_status()

    assert [path for path, _ in at_other] == [path for path, _ in at_usual] == ["/v1/audio/transcriptions"]


def test_a_form_that_names_two_models_is_refused(routed: tuple[RunningGateway, Heard, Heard]) -> None:
    gateway, at_usual, at_other = routed

    said = httpx.post(
        f"{gateway.openai_url}/audio/transcriptions",
        files={"file": b"x"},
        data={"model": ["text-1", "whisper-1"]},
    )

    assert said.status_code == 400
    assert "'model' 2 times" in said.json()["error"]["message"]
    assert said.headers["x-should-retry"] == "false"
    assert not at_usual
    assert not at_other


def test_a_multipart_body_of_repeated_names_does_not_freeze_the_gateway(
    routed: tuple[RunningGateway, Heard, Heard],
) -> None:
    """Defect: 48 KB of them kept the event loop busy for 1.5 seconds, 168 KB for 16.7."""
    gateway, _, _ = routed
    headers = {"content-type": "multipart/form-data; boundary=b"}

    with httpx.Client(base_url=gateway.openai_url, headers=headers) as client:

        def cpu_seconds(size: int) -> float:
            before = process_time()
            client.post("/files", content=b"name=model\r\n" * (size // 12)).raise_for_status()
            return process_time() - before

        small, large = (min(cpu_seconds(size) for _ in range(3)) for size in (6_000, 48_000))

    assert large < 20 * small
