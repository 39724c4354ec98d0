import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from foveate.errors import BadOption, UpstreamGarbled, UpstreamStatus, UpstreamTimeout, UpstreamUnreachable
from foveate.memory.search.embeddings import EndpointEmbedder

Json = dict[str, Any]


@dataclass
class EmbeddingServer:
    """A local embeddings server that records requests."""

    url: str = ""
    requests: list[Json] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


def _shuffled_vectors(body: Json) -> Json:
    """Return the vectors in another order, since OpenAI does not guarantee the order."""
    rows = [
        {"object": "embedding", "index": n, "embedding": [len(text), 1.0]}
        for n, text in enumerate(body["input"])
    ]
    return {"object": "list", "model": body["model"], "data": rows[::-1]}


@contextmanager
def _run_server(
    make_response: Callable[[Json], Json | bytes] = _shuffled_vectors, status: int = 200
) -> Iterator[EmbeddingServer]:
    server = EmbeddingServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(
                self.rfile.read(int(self.headers["content-length"] or 0))
                if self.headers["content-length"]
                else _read_chunked_body(self)
            )
            server.requests.append(body)
            server.paths.append(self.path)
            server.keys.append(self.headers["authorization"])
            response = make_response(body)
            raw = response if isinstance(response, bytes) else json.dumps(response).encode()
            with suppress(ConnectionError):  # the client did not wait
                self.send_response(status)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            ...

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{listening.server_address[1]}"
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def _read_chunked_body(handler: BaseHTTPRequestHandler) -> bytes:
    body = b""
    while size := int(handler.rfile.readline(), 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body


def test_every_text_gets_its_vector_whatever_the_response_order() -> None:
    with _run_server() as server:
        rows = EndpointEmbedder(server.url, "small", api_key="sk-good").embed(["a", "bbb"])
    np.testing.assert_allclose(rows, [[0.7071, 0.7071], [0.9487, 0.3162]], atol=1e-4)
    assert server.requests == [{"model": "small", "input": ["a", "bbb"], "encoding_format": "float"}]
    assert server.paths == ["/v1/embeddings"]
    assert server.keys == ["Bearer sk-good"]


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/v1/embeddings"])
def test_the_url_may_be_written_in_several_ways(suffix: str) -> None:
    with _run_server() as server:
        EndpointEmbedder(server.url + suffix, "small").embed(["a"])
    assert server.paths == ["/v1/embeddings"]
    assert server.keys == [None]


def test_many_texts_are_sent_in_batches() -> None:
    texts = ["x" * (1 + number % 9) for number in range(500)]
    with _run_server() as server:
        rows = EndpointEmbedder(server.url, "small", dimensions=2).embed(texts)
    assert max(len(body["input"]) for body in server.requests) <= 64
    assert all(body["dimensions"] == 2 for body in server.requests)
    np.testing.assert_allclose(rows[:, 0] / rows[:, 1], [len(text) for text in texts], rtol=1e-4)


def test_a_text_without_words_is_not_sent() -> None:
    with _run_server() as server:
        rows = EndpointEmbedder(server.url, "small").embed(["", "a", " \n"])
        assert server.requests[0]["input"] == ["a"]
        assert rows.any(axis=1).tolist() == [False, True, False]
        assert not EndpointEmbedder(server.url, "small").embed([" "]).any()
    assert len(server.requests) == 1


async def test_it_can_be_used_within_an_event_loop() -> None:
    with _run_server() as server:
        assert EndpointEmbedder(server.url, "small").embed(["a"]).shape == (1, 2)


def test_an_unpaired_surrogate_is_replaced() -> None:
    with _run_server() as server:
        EndpointEmbedder(server.url, "small").embed(["a\ud800"])
    assert server.requests[0]["input"] == ["a?"]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"data": []}, "0 vectors for 2 texts"),
        ({"error": "no"}, "no list of vectors"),
        ({"data": "vectors"}, "no list of vectors"),
        ({"data": [{"embedding": ["a"]}, {"embedding": [1]}]}, "no list of vectors"),
        (
            {"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]},
            "indexes of the vectors do not match",
        ),
        ({"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}, "different lengths"),
        ({"data": [{"embedding": []}, {"embedding": []}]}, "a vector without numbers"),
        (b'{"data": [{"embedding": [1e999]}, {"embedding": [1]}]}', "no list of vectors|without numbers"),
        (b"[1, 2]", "not a JSON object"),
        (b"<html>", "not a JSON object"),
    ],
)
def test_an_unusable_response_is_an_error_with_its_reason(response: Json | bytes, reason: str) -> None:
    with _run_server(lambda _: response) as server, pytest.raises(UpstreamGarbled, match=reason):
        EndpointEmbedder(server.url, "small").embed(["one", "two"])


def test_a_rejection_and_a_missing_response_are_errors() -> None:
    with (
        _run_server(lambda _: {"error": "no such model"}, status=404) as server,
        pytest.raises(UpstreamStatus, match="no such model"),
    ):
        EndpointEmbedder(server.url, "small").embed(["one"])
    with pytest.raises(UpstreamUnreachable):
        EndpointEmbedder(server.url, "small").embed(["one"])


def test_a_slow_server_times_out() -> None:
    wait = threading.Event()

    def slow(body: Json) -> Json:
        wait.wait(5)
        return _shuffled_vectors(body)

    with _run_server(slow) as server:
        with pytest.raises(UpstreamTimeout):
            EndpointEmbedder(server.url, "small", timeout_seconds=0.2).embed(["one"])
        wait.set()


def test_the_name_includes_model_and_dimensions() -> None:
    names = {
        EndpointEmbedder(url, model, dimensions=dimensions).name
        for url in ("http://a", "http://b/v1")
        for model in ("x", "y")
        for dimensions in (None, 256)
    }
    assert len(names) == 8
    assert EndpointEmbedder("http://a", "x", api_key="sk-secret").name.find("secret") < 0


@pytest.mark.parametrize(
    ("url", "model", "dimensions"),
    [("ftp://a", "x", None), ("", "x", None), ("http://a", "", None), ("http://a", "x", 0)],
)
def test_invalid_settings_are_rejected(url: str, model: str, dimensions: int | None) -> None:
    with pytest.raises(BadOption):
        EndpointEmbedder(url, model, dimensions=dimensions)
