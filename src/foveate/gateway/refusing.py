"""What the gateway itself says no with: as the provider would that the client believes it talks to.

Clients decide by the status whether to try again, so each has the one with which they do the right thing; where
trying again cannot help, `x-should-retry` says so as well, which the official clients heed.
"""

import re
from dataclasses import replace

from foveate.errors import (
    BadPath,
    BudgetExceeded,
    CallRefused,
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
from foveate.gateway.audience import Audience, error_text
from foveate.values import Format
from foveate.wire.refusals import ErrorResponse, make_status_error
from foveate.wire.threads import NOT_FOUND

SHOULD_RETRY_HEADER = "x-should-retry"

_URL_HOST = re.compile(r"https?://(?:[^/?#]*@)?([^/?#@]+)")


def build_error_response(
    error: FoveateError, api_format: Format, audience: Audience = Audience.OPERATOR
) -> ErrorResponse:
    """Return the response for an error, with what its reader may know of it."""
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
    """What is told of an error in the log: of where it was only the host, since an address may hold a key.

    Of a duplicate key only the field that holds it, because keys further inside can be part of a message.
    """
    if isinstance(error, DuplicateKey):
        return f"a key occurs twice in `{error.path[0]}`" if len(error.path) > 1 else str(error)
    if not isinstance(error, UpstreamError):
        return str(error)
    found = _URL_HOST.match(error.url)
    return error.reason if found is None else f"{found[1]}: {error.reason}"


def may_retry(error: FoveateError) -> bool:
    """Whether the same request may be answered a little later."""
    return isinstance(error, UpstreamError)


def _context_overflow_response(error: DoesNotFit, api_format: Format, message: str) -> ErrorResponse:
    """In each provider's own words first: clients look for them, and shorten the conversation by themselves."""
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
