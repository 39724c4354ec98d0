"""The response to a client: a relayed response, a local count, or an error."""

from collections.abc import Awaitable, Sequence

from foveate.engine.exchange import Exchange
from foveate.formats.response.errors import ErrorResponse, error_body
from foveate.formats.response.usage import count_response_body
from foveate.gateway.error_responses import SHOULD_RETRY_HEADER
from foveate.gateway.headers import forward_response_headers
from foveate.gateway.request import DEFAULT_AGENT, REQUEST_ID_HEADER, IncomingRequest, Send
from foveate.gateway.routing import Upstream
from foveate.http.pool import HttpResponse
from foveate.model import Format
from foveate.tokens.remote.endpoints import UNSUPPORTED_STATUSES

COUNT_HEADER = "x-foveate-count"
"""Header of a local count: `exact` if the model's own tokenizer counted, else `estimate`."""


class UpstreamsWithoutCounts:
    """Upstreams known to have no counting endpoint, for the lifetime of the process."""

    def __init__(self) -> None:
        self._known: set[tuple[str, Format]] = set()

    def contains(self, upstream: Upstream, api_format: Format) -> bool:
        return (upstream.base_url, api_format) in self._known

    def learn_from_response(self, upstream: Upstream, api_format: Format, status: int, body: bytes) -> bool:
        """Return whether a response means that there is no counting endpoint, and remember that.

        A 404 can also mean that the model does not exist; that response is for the client.
        """
        has_no_endpoint = status in UNSUPPORTED_STATUSES and not (status == 404 and b"model" in body.lower())
        if has_no_endpoint:
            self._known.add((upstream.base_url, api_format))
        return has_no_endpoint


def build_count_response(exchange: Exchange) -> tuple[bytes, str] | None:
    """Build the response to a count request from the local count, with its confidence; None without a count."""
    context = exchange.context
    if context is None or context.token_count is None:
        return None
    confidence = "exact" if context.token_count.exact else "estimate"
    return count_response_body(exchange.incoming.api_format, context.token_count.tokens), confidence


_NO_CONTENT = 204
_ID_HEADER = REQUEST_ID_HEADER.encode()
_ERROR_ID_HEADERS = {Format.ANTHROPIC: b"request-id"}


class ClientResponse:
    """The response to a client. Once started, it can only continue or be cut off."""

    def __init__(self, request: IncomingRequest, send: Send) -> None:
        self._request = request
        self.api_format = request.error_format
        self._send = send
        self.has_started = self.has_finished = False
        # For the access log.
        self.agent = DEFAULT_AGENT
        self.provider = ""
        self.exchange: Exchange | None = None
        self.received_at = 0.0
        self.status = self.received_bytes = self.sent_bytes = 0
        self.error_code = self.error_reason = ""

    def start(self, upstream_response: HttpResponse, *, is_changed: bool) -> Awaitable[None]:
        # A length without a body makes some clients wait for one (RFC 9110, 8.6).
        headers = forward_response_headers(
            upstream_response.headers, is_changed=is_changed or upstream_response.status == _NO_CONTENT
        )
        headers.append((_ID_HEADER, self._request.id.encode()))
        return self._send_head(upstream_response.status, headers)

    def send_chunk(self, chunk: bytes) -> Awaitable[None]:
        self.sent_bytes += len(chunk)
        return self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    def finish(self, chunk: bytes = b"") -> Awaitable[None]:
        self.sent_bytes += len(chunk)
        self.has_finished = True
        return self._send({"type": "http.response.body", "body": chunk})

    async def send_count(self, body: bytes, confidence: str) -> None:
        """Send a local count except for its end; a header states its confidence."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (_ID_HEADER, self._request.id.encode()),
            (COUNT_HEADER.encode(), confidence.encode()),
        ]
        await self._send_head(200, headers)
        await self.send_chunk(body)

    async def send_response(
        self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        size = [] if status == _NO_CONTENT else [(b"content-length", str(len(body)).encode())]
        await self._send_head(status, [*headers, *size, (_ID_HEADER, self._request.id.encode())])
        await self.finish(body)

    async def send_error(
        self, error_response: ErrorResponse, *, retry: bool, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Send an error of the gateway itself, if no response has started."""
        error_headers = [
            (b"content-type", b"application/json"),
            (_ERROR_ID_HEADERS.get(self.api_format, b"x-request-id"), self._request.id.encode()),
            *headers,
        ]
        if self.api_format is Format.BEDROCK:  # AWS clients read the error type here
            error_headers.append((b"x-amzn-errortype", error_response.kind.encode()))
        if not retry:
            error_headers.append((SHOULD_RETRY_HEADER.encode(), b"false"))
        await self.send_response(
            error_response.status, error_body(self.api_format, error_response, self._request.id), error_headers
        )

    def _send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> Awaitable[None]:
        self.has_started = True
        self.status = status
        return self._send({"type": "http.response.start", "status": status, "headers": headers})
