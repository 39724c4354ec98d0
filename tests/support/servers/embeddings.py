"""A server with OpenAI's `/v1/embeddings` whose vectors a test chooses."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class EmbeddingServer:
    """URL of the server, and its requests: path, authorization and body."""

    url: str
    requests: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)


@contextmanager
def embedding_server(vector: Callable[[str], list[float]]) -> Iterator[EmbeddingServer]:
    """Run a server that returns `vector` for each text, until the end of the block."""
    running = EmbeddingServer("")

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            running.requests.append((self.path, self.headers.get("authorization", ""), body))
            rows = [{"index": at, "embedding": vector(text)} for at, text in enumerate(body["input"])]
            response = json.dumps({"data": rows}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(response)))
            self.end_headers()
            self.wfile.write(response)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    running.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
