"""HTTP over a plain socket: requests that no client would send, and the exact bytes of responses."""

import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class RawResponse:
    """A response. `is_complete`: it has the length that its head announces."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_complete: bool
    rest: bytes = b""


def connect(url: str, *, timeout_seconds: float = 30) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=timeout_seconds)


def build_post(path: str, body: bytes, **headers: str) -> bytes:
    """Build a request whose connection is closed after the response."""
    all_headers = {"host": "127.0.0.1", "content-length": str(len(body)), "connection": "close"}
    all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items() if value)
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def send_raw(url: str, request: bytes, *, timeout_seconds: float = 30, ends: bool = False) -> RawResponse:
    """Send bytes and read until the connection is closed; with `ends`, close the sending side first.

    Raises:
        TimeoutError: it stays open without data.
    """
    with connect(url, timeout_seconds=timeout_seconds) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):  # an earlier response may still be readable
            connection.sendall(request)
            if ends:
                connection.shutdown(socket.SHUT_WR)
        return parse_response(receive_all(connection))


def receive_all(connection: socket.socket) -> bytes:
    chunks = []
    while True:
        try:
            chunk = connection.recv(262_144)
        except ConnectionResetError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks)


def read_until(connection: socket.socket, end: bytes) -> None:
    """Read until these bytes have arrived."""
    received = b""
    while end not in received:
        data = connection.recv(65_536)
        assert data, received
        received += data


def count_received_bytes(url: str, request: bytes, *, timeout_seconds: float = 30) -> int:
    """Count the bytes of a response without keeping them."""
    size = 0
    with connect(url, timeout_seconds=timeout_seconds) as connection:
        connection.sendall(request)
        while chunk := connection.recv(262_144):
            size += len(chunk)
    return size


def parse_response(data: bytes) -> RawResponse:
    """Parse the first response in some bytes; status 0 if there is none."""
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        return RawResponse(0, {}, b"", False, data)
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        content, is_complete, rest = _decode_chunks(body)
    else:
        length = int(headers.get("content-length", len(body)))
        content, is_complete, rest = body[:length], len(body) >= length, body[length:]
    return RawResponse(int(status.split()[1]), headers, content, is_complete, rest)


def _decode_chunks(body: bytes) -> tuple[bytes, bool, bytes]:
    chunks: list[bytes] = []
    while True:
        size, line, rest = body.partition(b"\r\n")
        if not line:
            return b"".join(chunks), False, b""
        length = int(size, 16)
        chunks.append(rest[:length])
        if len(rest) < length + 2:
            return b"".join(chunks), False, b""
        body = rest[length + 2 :]
        if not length:
            return b"".join(chunks), True, body


ANTHROPIC = {"content_type": "application/json", "anthropic_version": "2023-06-01"}


def claude_request(key: str, *, stream: bool = False, text: str = "Hello", **headers: str) -> bytes:
    fields = {"model": "claude-opus-4-5", "max_tokens": 100, "messages": [{"role": "user", "content": text}]}
    body = json.dumps(fields | ({"stream": True} if stream else {})).encode()
    return build_post("/v1/messages", body, **ANTHROPIC, x_api_key=key, **headers)


def chat_request(key: str, *, stream: bool = False, text: str = "Hello", **headers: str) -> bytes:
    fields = {"model": "gpt-4.1", "max_tokens": 100, "messages": [{"role": "user", "content": text}]}
    body = json.dumps(fields | ({"stream": True} if stream else {})).encode()
    return build_post(
        "/v1/chat/completions", body, content_type="application/json", authorization=f"Bearer {key}", **headers
    )
