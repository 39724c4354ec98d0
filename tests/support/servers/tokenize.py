"""A server like llama.cpp that tokenizes by words, and can count whole chats."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def tokenize_server(*, chat_tokens: int | None = None) -> Iterator[tuple[str, list[str]]]:
    """Run the server; yields its URL and the requested paths. Without `chat_tokens` it has only `/tokenize`."""
    paths: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["content-length"])))
            paths.append(self.path)
            status = 404
            message: dict[str, Any] = {"error": {"message": "not found"}}
            if self.path == "/tokenize" and "content" in body:
                words = str(body["content"]).split()
                tokens: list[Any] = [{"id": at, "piece": word} for at, word in enumerate(words)]
                message = {"tokens": tokens if body.get("with_pieces") else list(range(len(words)))}
                status = 200
            elif self.path == "/v1/chat/completions/input_tokens" and chat_tokens is not None:
                status, message = 200, {"input_tokens": chat_tokens}
            data = json.dumps(message).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        server.server_close()
