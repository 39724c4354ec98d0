"""A provider that responds at once, as a separate process, for the gateway benchmark.

It implements just enough of Anthropic's and OpenAI's chat APIs for both proxies. Of a request it reads the
path, the length, and whether to stream, so that it is far faster than the gateways. On request, it streams
slowly, piece by piece like a model, each with the time at which it was written. It prints its port, and ends
when its standard input does. With a file of a certificate and its key as argument, it uses TLS.
"""

import asyncio
import json
import re
import ssl
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

STREAMED_CHUNKS, SLOW_CHUNKS = 500, 20
SLOWLY = "Answer slowly."
WRITTEN_AT = re.compile(rb" @([0-9]+\.[0-9]+)@")
"""When a piece of a slow answer was written, by the clock that all processes of a machine share."""
_SLOW_SECONDS = 0.002
_BUFFER_BYTES = 256 * 1024
# Long requests are not searched: none of them asks for a stream.
_SEARCHED_BYTES = 64 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length:\s*([0-9]+)", re.IGNORECASE)
_STREAMS = re.compile(rb'"stream":\s*true')

_MODEL = "claude-opus-5-5"
# Usage is about the size of the request, since gateways learn from it.
_BYTES_A_TOKEN = 3.5
_CACHED_BYTES = 16 * 1024
_NEW_TOKENS = 400
_CHAT_USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}


class InstantProvider(asyncio.BufferedProtocol):
    """One connection: request, response, next request."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._received = bytearray()
        self._remaining_body = -1  # bytes whose head is not complete yet
        self._size = 0
        self._waiting: list[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Respond if a request is complete."""
        if self._remaining_body > nbytes and len(self._received) > _SEARCHED_BYTES:
            self._remaining_body -= nbytes  # the middle of a long body is only counted
            return
        self._received += self._buffer[:nbytes]
        if self._remaining_body < 0:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._received, 0, end + 2)
            self._size = int(length[1]) if length else 0
            self._remaining_body = self._size - (len(self._received) - end - 4)
        else:
            self._remaining_body -= nbytes
        if self._remaining_body > 0:
            return
        request = bytes(self._received[:_SEARCHED_BYTES])
        self._received.clear()
        self._remaining_body = -1
        path = request[: request.index(b"\r\n")]
        is_chat = b"/chat/completions" in path
        if SLOWLY.encode() in request:
            self._write_next(_slow_pieces(), wait_seconds=_SLOW_SECONDS)
        elif _STREAMS.search(request) is not None:
            self._write_next(iter(_CHAT_PIECES if is_chat else _ANTHROPIC_PIECES))
        else:
            self._transport.write(_CHAT_ANSWER if is_chat else _anthropic_answer(self._size))

    def pause_writing(self) -> None:
        """Stop writing until the client has read more."""
        self._waiting = []

    def resume_writing(self) -> None:
        waiting, self._waiting = self._waiting, None
        for piece in waiting or ():
            self._transport.write(piece)

    def _write_next(self, pieces: Iterator[bytes], wait_seconds: float = 0.0) -> None:
        """Write each piece in its own turn of the event loop, so that it is sent separately."""
        piece = next(pieces, None)
        if piece is None or self._transport.is_closing():
            return
        if self._waiting is None:
            self._transport.write(piece)
        else:
            self._waiting.append(piece)
        loop = asyncio.get_running_loop()
        if wait_seconds:
            loop.call_later(wait_seconds, self._write_next, pieces, wait_seconds)
        else:
            loop.call_soon(self._write_next, pieces)


def _complete_response(answer: object) -> bytes:
    body = json.dumps(answer).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    return head + body


def _stream_pieces(events: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a response of events, each in its own HTTP chunk; the first is sent with the head."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    for event in events:
        yield b"%s%x\r\n%s\r\n" % (head, len(event), event)
        head = b""
    yield b"0\r\n\r\n"


def _slow_pieces() -> Iterator[bytes]:
    """Yield pieces that contain the time at which they are generated."""
    return _stream_pieces(_anthropic_events(f" word @{time.monotonic():.6f}@" for _ in range(SLOW_CHUNKS)))


def _anthropic_events(words: Iterable[str]) -> Iterator[bytes]:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": _MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 45, "output_tokens": 1},
    }
    yield _event("message_start", message=message)
    yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for word in words:
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield _event("content_block_stop", index=0)
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _event("message_delta", delta=stop, usage={"output_tokens": 1000})
    yield _event("message_stop")


def _event(kind: str, **events_data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **events_data})}\n\n".encode()


def _chat_events() -> list[bytes]:
    events_data = [
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1_790_000_000,
            "model": _MODEL,
            "choices": [{"index": 0, "delta": {"content": f" word {number}"}, "finish_reason": None}],
        }
        for number in range(STREAMED_CHUNKS)
    ]
    return [f"data: {json.dumps(event)}\n\n".encode() for event in events_data] + [b"data: [DONE]\n\n"]


def _anthropic_answer(size: int) -> bytes:
    """Return the response to a request of this size; a long one gets a plausible summary."""
    tokens = int(size / _BYTES_A_TOKEN)
    is_cached = size > _CACHED_BYTES
    read, written = (tokens - _NEW_TOKENS, _NEW_TOKENS) if is_cached else (0, 0)
    body = _ANTHROPIC_BODY[is_cached] % (tokens - read - written, written, read)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


def _anthropic_body(text: str) -> bytes:
    """Return a response with placeholders for the uncached, written and read tokens."""
    usage = b'"input_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d,"output_tokens":3'
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": _MODEL,
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    return json.dumps(message).encode().removesuffix(b"}") + b',"usage":{%s}}' % usage


_SUMMARY = (
    "The user asked for a task in the modules under src. The assistant read them with the tools, line by line, "
    "and noted what each of them does: parsing of arguments, reading and writing of files, the loop of events "
    "and its handlers, encodings of text, dates and times. Nothing has been changed yet. Decided: the public "
    "names stay as they are, errors are raised and never printed, and every change has a test. Open: which of "
    "the modules holds the defect, whether the tests of the loop pass after the change, and whether the "
    "documentation has to say more. Next: go on with the module that was read last, and then run the tests."
)
_ANTHROPIC_BODY = {False: _anthropic_body("Hello"), True: _anthropic_body(_SUMMARY)}
_ANTHROPIC_PIECES = list(
    _stream_pieces(_anthropic_events(f" word {number}" for number in range(STREAMED_CHUNKS)))
)
_CHAT_PIECES = list(_stream_pieces(_chat_events()))
_CHAT_ANSWER = _complete_response(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": _MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
        ],
        "usage": _CHAT_USAGE,
    }
)


async def _serve(certificate: str | None = None) -> None:
    loop = asyncio.get_running_loop()
    context = None
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
    server = await loop.create_server(InstantProvider, "127.0.0.1", 0, backlog=1024, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(*sys.argv[1:]))
