"""A misbehaving provider on a real socket: tests decide what it does with each connection."""

import json
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Lock, Thread

_READ_BYTES = 65_536
_COUNTER_LOCK = Lock()


class ConnectionClosed(Exception):
    """The other side closed the connection."""


@dataclass
class UpstreamConnection:
    """A connection from the provider's side."""

    socket: socket.socket
    requests: list[bytes]
    _buffer: bytes = b""

    def read_request(self) -> bytes:
        """Read the next request, head and body.

        Raises:
            ConnectionClosed: no more requests come.
        """
        while b"\r\n\r\n" not in self._buffer:
            self._receive()
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0].partition(b":")[2]) if lengths else 0
        while len(rest) < length:
            self._receive()
            rest = self._buffer.partition(b"\r\n\r\n")[2]
        self._buffer = rest[length:]
        self.requests.append(head + b"\r\n\r\n" + rest[:length])
        return self.requests[-1]

    def send(self, *pieces: bytes, pause_seconds: float = 0) -> None:
        """Send pieces with pauses between them.

        Raises:
            ConnectionClosed: the client is gone.
        """
        for number, piece in enumerate(pieces):
            if number and pause_seconds and self.is_closed_by_peer(within_seconds=pause_seconds):
                raise ConnectionClosed
            try:
                self.socket.sendall(piece)
            except OSError:
                raise ConnectionClosed from None

    def is_closed_by_peer(self, *, within_seconds: float) -> bool:
        """Wait for the other side to close the connection."""
        self.socket.settimeout(within_seconds)
        try:
            found = self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except OSError:
            return True
        finally:
            self.socket.settimeout(None)
        return not found

    def reset(self) -> None:
        """Close the connection with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def _receive(self) -> None:
        try:
            data = self.socket.recv(_READ_BYTES)
        except OSError:
            raise ConnectionClosed from None
        if not data:
            raise ConnectionClosed
        self._buffer += data


Behaviour = Callable[[UpstreamConnection], None]


@dataclass
class ScriptedUpstream:
    """URL, behaviour for the next connection, recorded requests, and clients that left early."""

    url: str
    behave: Behaviour
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    lost_clients: int = 0
    open_connections: int = 0

    def wait_until_idle(self, *, within_seconds: float = 30) -> bool:
        """Wait until all connections are closed, so that none is reused."""
        deadline = time.monotonic() + within_seconds
        while self.open_connections and time.monotonic() < deadline:
            time.sleep(0.002)
        return not self.open_connections

    def wait_for_lost_client(self, *, within_seconds: float = 30) -> bool:
        """Wait for a client that leaves before its response is complete."""
        deadline = time.monotonic() + within_seconds
        while not self.lost_clients and time.monotonic() < deadline:
            time.sleep(0.01)
        return bool(self.lost_clients)


@contextmanager
def running_upstream(behave: Behaviour) -> Iterator[ScriptedUpstream]:
    """Run a provider until the end of the block. Tests may change `behave` meanwhile."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        upstream = ScriptedUpstream(f"http://127.0.0.1:{server.getsockname()[1]}", behave)
        Thread(target=_accept_connections, args=(server, upstream), daemon=True).start()
        try:
            yield upstream
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)


def _accept_connections(server: socket.socket, upstream: ScriptedUpstream) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # otherwise small pieces are delayed
        upstream.connections += 1
        with _COUNTER_LOCK:
            upstream.open_connections += 1
        Thread(target=_handle_connection, args=(connection, upstream), daemon=True).start()


def _handle_connection(connection: socket.socket, upstream: ScriptedUpstream) -> None:
    with connection:
        try:
            upstream.behave(UpstreamConnection(connection, upstream.requests))
        except ConnectionClosed:
            upstream.lost_clients += 1
    with _COUNTER_LOCK:
        upstream.open_connections -= 1


def respond_always(*pieces: bytes, pause_seconds: float = 0) -> Behaviour:
    """Send the same response to every request on a connection."""

    def behave(connection: UpstreamConnection) -> None:
        while True:
            try:
                connection.read_request()
            except ConnectionClosed:
                return
            connection.send(*pieces, pause_seconds=pause_seconds)

    return behave


def respond_once(*pieces: bytes, pause_seconds: float = 0) -> Behaviour:
    """Respond to one request, then close the connection."""

    def behave(connection: UpstreamConnection) -> None:
        connection.read_request()
        connection.send(*pieces, pause_seconds=pause_seconds)

    return behave


def http_response(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    all_headers = {"content-type": "application/json", "content-length": str(len(body))}
    all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items() if value)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1") + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def claude_events(*texts: str) -> Sequence[bytes]:
    """Return the events of a streamed Claude response."""
    start: dict[str, object] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-5",
        "content": [],
    }
    started = start | {"stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 1}}
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    events: list[dict[str, object]] = [
        {"type": "message_start", "message": started},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
            for text in texts
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1 + len(texts)}},
        {"type": "message_stop"},
    ]
    return [
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
        for event in events
    ]


def claude_response(text: str) -> bytes:
    fields = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-5",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 3},
    }
    return json.dumps(fields, ensure_ascii=False).encode()
