"""Error responses of the gateway, in the format of the provider that the client expects.

Clients decide by the status whether to retry, so each error has the status that makes them do the right thing.
If a retry cannot help, `x-should-retry` says so too, which the official clients respect.

The text depends on who reads it. The operator reads everything. An agent with a key reads the state of its own
caps, but nothing about the machine. A caller without a key reads only what is wrong with the request: no
amounts, names of upstreams or agents, addresses or paths.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum, auto

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
from foveate.formats.response.errors import ErrorResponse, make_status_error
from foveate.gateway.auth.admin import is_proxied
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


SHOULD_RETRY_HEADER = "x-should-retry"

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
