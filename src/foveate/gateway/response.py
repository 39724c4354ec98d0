"""The response to a client: a relayed response, a local count, or an error in the format of its provider.

Clients decide by the status whether to retry, so each error has the status that makes them do the right thing.
If a retry cannot help, `x-should-retry` says so too, which the official clients respect.

The text depends on who reads it. The operator reads everything. An agent with a key reads the state of its own
caps, but nothing about the machine. A caller without a key reads only what is wrong with the request: no
amounts, names of upstreams or agents, addresses or paths.
"""

import re
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from enum import Enum, auto

from foveate.engine.exchange import Exchange
from foveate.errors import (
    BadPath,
    BudgetExceeded,
    CallRefused,
    CapUncheckable,
    DoesNotFit,
    DuplicateKey,
    FoveateError,
    KeyRefused,
    MalformedRequest,
    MethodRefused,
    NoUpstream,
    OperationRefused,
    RequestLimitExceeded,
    ThreadRefused,
    UpstreamError,
    UpstreamTimeout,
    WebSocketRefused,
    WrongApi,
)
from foveate.formats.message_threads import NOT_FOUND
from foveate.formats.response.errors import ErrorResponse, error_body, make_status_error
from foveate.gateway.auth.page_access import is_proxied
from foveate.gateway.forwarded_headers import Headers, forward_response_headers
from foveate.gateway.request import DEFAULT_AGENT, REQUEST_ID_HEADER, ClientRequest, Send
from foveate.model import Format

# Errors of the request. Every other error is one of the gateway, and may name a file or an address.
_REQUEST_ERRORS = (
    *(
        BadPath,
        BudgetExceeded,
        CallRefused,
        DoesNotFit,
        KeyRefused,
        MalformedRequest,
        MethodRefused,
        NoUpstream,
    ),
    *(OperationRefused, RequestLimitExceeded, ThreadRefused, WebSocketRefused, WrongApi),
)

_OUTAGE_TEXT = "the gateway's ledger cannot be reached"


class Audience(Enum):
    OPERATOR = auto()
    AGENT = auto()
    STRANGER = auto()


def classify_audience(headers: Sequence[tuple[bytes, bytes]], *, has_key: bool, is_open: bool) -> Audience:
    """Classify the sender of a request.

    `has_key`: the request has a valid gateway key. `is_open`: other machines can reach the gateway.
    """
    if not is_open and not is_proxied(name for name, _ in headers):
        return Audience.OPERATOR
    return Audience.AGENT if has_key else Audience.STRANGER


def error_text(error: FoveateError, audience: Audience) -> str:
    if audience is Audience.OPERATOR:
        return _operator_text(error)
    if isinstance(error, CapUncheckable) and error.is_outage:
        return f"a spending cap cannot be checked: {_OUTAGE_TEXT}; try again later"
    if isinstance(error, UpstreamTimeout):
        return "the provider did not respond in time"
    if isinstance(error, UpstreamError):
        return "the provider could not be reached"
    if not isinstance(error, _REQUEST_ERRORS):
        return "internal error in the gateway; its log has the reason under the id of this request"
    if audience is Audience.STRANGER:
        return _public_text(error)
    return _shared_cap_text(error) if isinstance(error, CallRefused) and error.is_shared else str(error)


def _operator_text(error: FoveateError) -> str:
    if isinstance(error, UpstreamTimeout):
        return f"the provider did not respond in time ({error.reason})"
    if isinstance(error, UpstreamError):
        return f"the provider could not be reached ({error.reason})"
    return str(error)


def _shared_cap_text(error: CallRefused) -> str:
    """Describe a shared cap to an agent, without what others have spent."""
    if isinstance(error, CapUncheckable):
        return f"{error.cap} cannot be checked: {error.reason}; {error.remedy}"
    return f"{error.cap} does not leave enough for this call; {error.remedy}"


def _public_text(error: FoveateError) -> str:
    match error:
        case CapUncheckable():
            return f"a spending cap of this gateway cannot be checked for this call: {error.reason}"
        case CallRefused():
            return (
                "a spending cap of this gateway does not leave enough for this call;"
                " send less, or try again later"
            )
        case KeyRefused():
            return error.public
        case OperationRefused():
            return f"this gateway does not allow {error.operation}"
        case WrongApi():
            return f"this gateway has no route for this model in the {error.api} API"
        case NoUpstream():
            return f"this gateway does not serve the {error.api} API"
        case BudgetExceeded():
            return "the sections that the gateway adds to this request do not fit"
        case DoesNotFit():
            return "the request is too long for the model"
        case _:
            return str(error)


_SHOULD_RETRY_HEADER = "x-should-retry"

_URL_HOST = re.compile(r"https?://(?:[^/?#]*@)?([^/?#@]+)")


def build_error_response(
    error: FoveateError, api_format: Format, audience: Audience = Audience.OPERATOR
) -> ErrorResponse:
    message = error_text(error, audience)
    match error:
        case DoesNotFit():
            return _context_overflow_response(error, api_format, message)
        case CallRefused():
            return _cap_exceeded_response(message, api_format)
        case ThreadRefused():
            error_response = make_status_error(
                api_format, 404 if error.thread_code == NOT_FOUND else 400, message
            )
            return replace(error_response, details={"error_code": error.thread_code})
        case WebSocketRefused():
            return make_status_error(api_format, 426, message)
        case KeyRefused():
            return make_status_error(api_format, 401, message)
        case OperationRefused():
            return make_status_error(api_format, 403, message)
        case MethodRefused():
            return make_status_error(api_format, 405, message)
        case (
            BadPath()
            | BudgetExceeded()
            | NoUpstream()
            | WrongApi()
            | MalformedRequest()
            | RequestLimitExceeded()
        ):
            return make_status_error(api_format, 400, message)
        case UpstreamTimeout():
            return make_status_error(api_format, 504, message)
        case UpstreamError():
            return make_status_error(api_format, 502, message)
        case _:
            return make_status_error(api_format, 500, message)


def log_reason(error: FoveateError) -> str:
    """Return the reason of an error for the log.

    Of a URL only the host is logged, since the rest may contain a key. Of a duplicate key only the top-level
    field is logged, since nested keys can be message content.
    """
    if isinstance(error, DuplicateKey):
        return f"a key occurs twice in `{error.path[0]}`" if len(error.path) > 1 else str(error)
    if not isinstance(error, UpstreamError):
        return str(error)
    match = _URL_HOST.match(error.url)
    return error.reason if match is None else f"{match[1]}: {error.reason}"


def may_retry(error: FoveateError) -> bool:
    """Return whether the same request may succeed a little later."""
    return isinstance(error, UpstreamError)


def _context_overflow_response(error: DoesNotFit, api_format: Format, message: str) -> ErrorResponse:
    """Start with the provider's own words: clients look for them and shorten the conversation."""
    if api_format is Format.ANTHROPIC:
        return ErrorResponse(
            message=f"prompt is too long: {error.tokens} tokens > {error.limit_tokens} maximum. {message}"
        )
    if api_format is Format.BEDROCK:
        return make_status_error(api_format, 400, f"Input is too long for requested model. {message}")
    if api_format is Format.GEMINI:
        return make_status_error(
            api_format,
            400,
            f"The input token count ({error.tokens}) exceeds the maximum number of tokens allowed"
            f" ({error.limit_tokens}). {message}",
        )
    return ErrorResponse(
        message=f"This model's maximum context length is {error.window_tokens} tokens. However, your messages "
        f"resulted in {error.tokens} tokens. Please reduce the length of the messages. {message}",
        code="context_length_exceeded",
        param="input" if api_format is Format.RESPONSES else "messages",
    )


def _cap_exceeded_response(message: str, api_format: Format) -> ErrorResponse:
    if api_format in (Format.ANTHROPIC, Format.GEMINI, Format.BEDROCK):
        return make_status_error(api_format, 402, message)
    return ErrorResponse(message=message, status=402, kind="insufficient_quota", code="insufficient_quota")


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
            error_headers.append((_SHOULD_RETRY_HEADER.encode(), b"false"))
        await self.send_response(
            error_response.status, error_body(self.api_format, error_response, self._request.id), error_headers
        )

    def _send_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> Awaitable[None]:
        self.has_started = True
        self.status = status
        return self._send({"type": "http.response.start", "status": status, "headers": headers})
