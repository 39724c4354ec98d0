"""Optional parameters that the gateway adds are omitted for an upstream that rejects them."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.servers.gateway import running_gateway

CHAT = {"model": "gpt-5.2", "messages": [{"role": "user", "content": "Hi"}]}


def _contains_key(value: Any, name: str) -> bool:
    """Return whether a request contains a key with a value at any depth."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, dict) and value.get(name) is not None) or any(
        _contains_key(child, name) for child in children
    )


@contextmanager
def strict_provider(unknown: Collection[str]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A provider that rejects parameters by name, one at a time, and the bodies it received."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            rejected = [name for name in unknown if name in bodies[-1] or _contains_key(bodies[-1], name)]
            if rejected:
                error = {"message": f"Unknown parameter: '{rejected[0]}'.", "param": rejected[0]}
                self._respond(400, "application/json", json.dumps({"error": error}).encode())
            elif bodies[-1].get("stream"):
                chunk = {"choices": [{"delta": {"content": "Hello"}, "finish_reason": "stop"}]}
                self._respond(
                    200, "text/event-stream", b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(chunk).encode()
                )
            else:
                usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
                self._respond(200, "application/json", json.dumps({"choices": [], "usage": usage}).encode())

        def _respond(self, status: int, content_type: str, value: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(value)))
            self.end_headers()
            self.wfile.write(value)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        server.server_close()


def post(url: str, value: dict[str, Any]) -> int:
    headers = {"content-type": "application/json", "authorization": "Bearer sk-x"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, json.dumps(value).encode(), headers), timeout=30
        ) as response:
            response.read()
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_rejected_parameters_are_omitted_and_the_client_sees_no_error(tmp_path: Path) -> None:
    """Regression: a `prompt_cache_key` that an upstream rejected was never omitted."""
    streamed = {**CHAT, "stream": True}
    with (
        strict_provider(["prompt_cache_key", "stream_options"]) as (url, bodies),
        running_gateway(url, tmp_path) as gateway,
    ):
        chat_url = f"{gateway.openai_url}/chat/completions"
        statuses = [post(chat_url, streamed), post(chat_url, streamed), post(chat_url, CHAT)]

    assert statuses == [200, 200, 200]
    added_parameters = [{"prompt_cache_key", "stream_options"} & value.keys() for value in bodies]
    assert added_parameters == [{"prompt_cache_key", "stream_options"}, {"stream_options"}, set(), set(), set()]
    assert bodies[2:] == [streamed, streamed, CHAT]


def test_an_error_about_a_parameter_of_the_client_reaches_the_client(tmp_path: Path) -> None:
    request = {**CHAT, "prompt_cache_key": "mine"}
    with strict_provider(["prompt_cache_key"]) as (url, bodies), running_gateway(url, tmp_path) as gateway:
        statuses = [post(f"{gateway.openai_url}/chat/completions", value) for value in (request, request, CHAT)]

    assert statuses == [400, 400, 200]
    assert bodies[:2] == [request, request]


def test_only_rejected_parameters_are_omitted(tmp_path: Path) -> None:
    with strict_provider(["prompt_cache_key"]) as (url, bodies), running_gateway(url, tmp_path) as gateway:
        chat_url = f"{gateway.openai_url}/chat/completions"
        statuses = [post(chat_url, {**CHAT, "stream": True}) for _ in range(2)]
        other_model_status = post(chat_url, {**CHAT, "model": "gpt-5.1"})

    assert (statuses, other_model_status) == ([200, 200], 200)
    assert [value.get("stream_options") for value in bodies[:3]] == [{"include_usage": True}] * 3
    assert ["prompt_cache_key" in value for value in bodies] == [True, False, False, True, False]


CLIENT_BREAKPOINTS = {
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be kind. " * 2_000, "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "Hi"}],
}


def test_breakpoints_of_a_client_are_omitted_for_an_upstream_that_rejects_them(tmp_path: Path) -> None:
    """Regression: only Foveate's own were omitted, so the client got the error."""
    with strict_provider(["cache_control"]) as (url, bodies), running_gateway(url, tmp_path) as gateway:
        body = {"model": "claude-sonnet-4-5", **CLIENT_BREAKPOINTS}
        assert post(f"{gateway.url}/v1/messages", body) == 200
        attempts = len(bodies)
        assert attempts > 1
        assert not _contains_key(bodies[-1], "cache_control")

        assert post(f"{gateway.url}/v1/messages", body) == 200
        assert len(bodies) == attempts + 1, "the rejection is remembered"


def test_a_model_that_rejects_breakpoints_never_gets_any(tmp_path: Path) -> None:
    with strict_provider(["cache_control"]) as (url, bodies), running_gateway(url, tmp_path) as gateway:
        assert post(f"{gateway.url}/v1/messages", {"model": "claude-2.1", **CLIENT_BREAKPOINTS}) == 200
        assert len(bodies) == 1
