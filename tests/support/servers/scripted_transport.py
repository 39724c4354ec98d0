"""A transport for `Engine.send` without a network: it returns scripted responses and records what was sent."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from foveate.errors import UpstreamError

JSON_HEADERS = ((b"content-type", b"application/json"),)
STREAM_HEADERS = ((b"content-type", b"text/event-stream"),)


@dataclass
class ScriptedResponse:
    """A response. An exception among the `chunks` is raised in its place; `is_open` until it is released."""

    chunks: Sequence[bytes | Exception]
    status: int = 200
    headers: Sequence[tuple[bytes, bytes]] = JSON_HEADERS
    is_open: bool = False
    _read: int = field(default=0, init=False)

    def header(self, name: bytes) -> bytes | None:
        return dict(self.headers).get(name)

    async def read_chunk(self) -> bytes:
        if self._read == len(self.chunks):
            return b""
        chunk = self.chunks[self._read]
        self._read += 1
        if isinstance(chunk, Exception):
            raise chunk
        return chunk


class ScriptedTransport:
    """Answers each request with the next of `responses`, or raises it."""

    base_url = "http://upstream.test"

    def __init__(
        self, *responses: ScriptedResponse | Exception, is_streaming: bool = False, is_unsent: bool = False
    ) -> None:
        self._responses = list(responses)
        self.is_streaming = is_streaming
        self._is_unsent = is_unsent
        self.sent: list[bytes] = []

    async def send(
        self, body: bytes, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[ScriptedResponse]:
        self.sent.append(body)
        return self._open(self._responses.pop(0))

    @asynccontextmanager
    async def _open(self, response: ScriptedResponse | Exception) -> AsyncIterator[ScriptedResponse]:
        if isinstance(response, Exception):
            raise response
        response.is_open = True
        try:
            yield response
        finally:
            response.is_open = False

    def is_unsent(self, error: UpstreamError | asyncio.CancelledError) -> bool:
        return self._is_unsent
