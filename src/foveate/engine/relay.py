"""Sends a prepared call to its upstream, and yields the response as events for the client."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from foveate.engine.exchange import Exchange
from foveate.errors import KeyRefused, UpstreamError
from foveate.formats.response.usage import count_response_body
from foveate.model import Format
from foveate.tokens.remote.endpoints import UNSUPPORTED_STATUSES

# Errors about cache breakpoints are shorter than this.
_MAX_ERROR_BYTES = 64 * 1024
_EVENT_STREAM = b"text/event-stream"
_AWS_EVENT_STREAM = b"application/vnd.amazon.eventstream"


class UpstreamResponse(Protocol):
    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]: ...

    @property
    def read_chunk(self) -> Callable[[], Awaitable[bytes]]:
        """Returns the next part of the body; an empty one is the end."""

    def header(self, name: bytes) -> bytes | None:
        """Return the first header with this lowercase name."""


class Transport(Protocol):
    """Sends the requests of one call: the first one, and those without what the provider rejects."""

    @property
    def base_url(self) -> str: ...

    @property
    def is_streaming(self) -> bool:
        """Return whether a successful response is a stream, whatever its content type."""

    async def send(
        self, body: bytes, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[UpstreamResponse]:
        """Return the pending response. `headers` replace those of the client; empty ones are removed."""

    def is_unsent(self, error: UpstreamError | asyncio.CancelledError) -> bool:
        """Return whether the upstream cannot have started on the request that ended with an error."""


class CallPrepared(msgspec.Struct, frozen=True):
    """The request is ready. Nothing was sent yet."""

    exchange: Exchange


class ResponseStarted(msgspec.Struct, frozen=True):
    """The head of the response. `is_changed`: the client may get other bytes than the provider sent."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    is_changed: bool


class ResponseChunk(msgspec.Struct, frozen=True):
    data: bytes


class ResponseFinished(msgspec.Struct, frozen=True):
    """The last bytes of the response. The charge is recorded, and hooks are started."""

    data: bytes


class CountedLocally(msgspec.Struct, frozen=True):
    """The response to a count request whose upstream has no counting endpoint."""

    body: bytes
    is_exact: bool


ResponseEvent = CallPrepared | ResponseStarted | ResponseChunk | ResponseFinished | CountedLocally


class UpstreamsWithoutCounts:
    """Upstreams known to have no counting endpoint, by URL and format, for the lifetime of the process."""

    def __init__(self) -> None:
        self.known: set[tuple[str, Format]] = set()


class _CountFallback:
    """The local count, for an upstream that has no counting endpoint."""

    def __init__(self, exchange: Exchange, transport: Transport, upstreams: UpstreamsWithoutCounts) -> None:
        context = exchange.context
        self._count = context.count.total if context is not None else None
        self._api_format = exchange.incoming.api_format
        self._key = (transport.base_url, self._api_format)
        self._upstreams = upstreams

    @property
    def is_needed(self) -> bool:
        return self._count is not None and self._key in self._upstreams.known

    def learn(self, status: int, error_body: bytes) -> bool:
        """Return whether a response means that there is no counting endpoint, and remember that.

        A 404 can also mean that the model does not exist; that response is for the client.
        """
        if status in UNSUPPORTED_STATUSES and not (status == 404 and b"model" in error_body.lower()):
            self._upstreams.known.add(self._key)
        return self.is_needed

    def response(self) -> CountedLocally:
        assert self._count is not None
        return CountedLocally(count_response_body(self._api_format, self._count.tokens), self._count.exact)


async def relay_call(
    prepare: Callable[[], Awaitable[Exchange]],
    transport: Transport,
    *,
    upstreams_without_counts: UpstreamsWithoutCounts | None = None,
) -> AsyncGenerator[ResponseEvent]:
    """Prepare a call, send it, again if the provider rejects what we added, and yield its response.

    The last bytes of a response that does not stream are held back until its charge is recorded. Close the
    generator to cancel the call. An interrupted call is completed before the generator ends, so that its
    reservation is released before the client tries again. With `upstreams_without_counts`, the call is a count
    request, which is answered here if its upstream cannot.

    Raises:
        FoveateError: the request is rejected.
        UpstreamError: the upstream cannot be reached, or its response is incomplete.
        KeyRefused: the request cannot be signed.
    """
    exchange = await prepare()
    yield CallPrepared(exchange)
    fallback = (
        None
        if upstreams_without_counts is None
        else _CountFallback(exchange, transport, upstreams_without_counts)
    )
    pending, is_interrupted = b"", True
    try:
        while fallback is None or not fallback.is_needed:
            request = exchange.upstream_request
            async with await transport.send(request.body, request.headers) as response:
                error_body = await _read_error(response)
                if fallback is not None:
                    if fallback.learn(response.status, error_body):
                        continue
                elif error_body and await exchange.should_resend(response.status, error_body):
                    continue
                _start_response(exchange, response, is_streaming=transport.is_streaming)
                yield ResponseStarted(response.status, response.headers, exchange.changes_response)
                is_streaming = exchange.is_streaming
                pending = exchange.on_chunk(error_body) if error_body else b""
                try:
                    while chunk := await response.read_chunk():
                        if pending:
                            yield ResponseChunk(pending)
                        pending = exchange.on_chunk(chunk)
                        # Some providers send whitespace as a keep-alive.
                        if pending and (is_streaming or pending.isspace()):
                            yield ResponseChunk(pending)
                            pending = b""
                except UpstreamError:
                    if pending:
                        yield ResponseChunk(pending)
                    raise
                pending += exchange.flush()
            break
        else:
            yield fallback.response()
        is_interrupted = False
    except KeyRefused:
        exchange.mark_unsent()
        raise
    except (UpstreamError, asyncio.CancelledError) as error:
        if transport.is_unsent(error):
            exchange.mark_unsent()
        raise
    finally:
        exchange.finish(is_interrupted=is_interrupted)
        if is_interrupted:
            await exchange.wait_until_completed()
    yield ResponseFinished(pending)


def _start_response(exchange: Exchange, response: UpstreamResponse, *, is_streaming: bool) -> None:
    content_type = response.header(b"content-type") or b""
    is_framed = content_type.startswith(_AWS_EVENT_STREAM)
    is_streaming = (
        content_type.startswith(_EVENT_STREAM) or is_framed or (is_streaming and 200 <= response.status < 300)
    )
    exchange.on_response_start(
        response.status, is_streaming=is_streaming, is_framed=is_framed, headers=response.headers
    )


async def _read_error(response: UpstreamResponse) -> bytes:
    """Read the body of a 4xx response; return nothing for any other status."""
    if not 400 <= response.status < 500:
        return b""
    error_body = b""
    while len(error_body) < _MAX_ERROR_BYTES and (chunk := await response.read_chunk()):
        error_body += chunk
    return error_body
