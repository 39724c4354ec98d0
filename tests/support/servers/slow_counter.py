"""A chat server whose token counter is slow or fails."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def slow_counter_upstream(count_seconds: float | None = None) -> Iterator[tuple[str, list[str]]]:
    """A llama.cpp-like server whose counter is slow or fails, and the requests it receives."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            paths.append(self.path)
            status, payload = 200, {}
            match self.path:
                case "/v1/chat/completions":
                    usage = {"prompt_tokens": 777, "completion_tokens": 1, "total_tokens": 778}
                    message = {"role": "assistant", "content": "Yes."}
                    choice = {"index": 0, "message": message, "finish_reason": "stop"}
                    metadata = {"id": "c", "object": "chat.completion", "created": 1, "model": "tiny"}
                    payload = {**metadata, "choices": [choice], "usage": usage}
                case "/tokenize":
                    time.sleep(count_seconds or 0)
                    payload = {"tokens": [1]}
                case _ if count_seconds is None:
                    status = 500
                case _:
                    payload = {"input_tokens": 777}
            body = json.dumps(payload).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            with suppress(ConnectionError):  # the client may have disconnected
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object, **__: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", paths
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
