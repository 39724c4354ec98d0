"""The response to a client: a relayed response, a local count, or an error."""

from collections.abc import Awaitable, Sequence

from foveate.engine.exchange import Exchange
from foveate.formats.response.errors import ErrorResponse, error_body
from foveate.gateway.error_responses import SHOULD_RETRY_HEADER
from foveate.gateway.headers import Headers, forward_response_headers
from foveate.gateway.request import DEFAULT_AGENT, REQUEST_ID_HEADER, ClientRequest, Send
from foveate.model import Format

COUNT_HEADER = "x-foveate-count"
"""Header of a local count: `exact` if the model's own tokenizer counted, else `estimate`."""


_NO_CONTENT = 204
_ID_HEADER = REQUEST_ID_HEADER.encode()
_ERROR_ID_HEADERS = {Format.ANTHROPIC: b"request-id"}


class ClientResponse:
    """The response to a client. Once started, it can only continue or be cut off."""

    def __init__(self, request: ClientRequest, send: Send) -> None:
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

    def start(self, status: int, upstream_headers: Headers, *, is_changed: bool) -> Awaitable[None]:
        # A length without a body makes some clients wait for one (RFC 9110, 8.6).
        headers = forward_response_headers(upstream_headers, is_changed=is_changed or status == _NO_CONTENT)
        headers.append((_ID_HEADER, self._request.id.encode()))
        return self._send_head(status, headers)

    def send_chunk(self, chunk: bytes) -> Awaitable[None]:
        self.sent_bytes += len(chunk)
        return self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    def finish(self, chunk: bytes = b"") -> Awaitable[None]:
        self.sent_bytes += len(chunk)
        self.has_finished = True
        return self._send({"type": "http.response.body", "body": chunk})

    async def send_count(self, body: bytes, *, is_exact: bool) -> None:
        """Send a local count except for its end; a header states its confidence."""
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (_ID_HEADER, self._request.id.encode()),
            (COUNT_HEADER.encode(), b"exact" if is_exact else b"estimate"),
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
