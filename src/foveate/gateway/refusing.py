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
from foveate.gateway.audience import Audience, text_for
from foveate.values import Format
from foveate.wire.refusals import Refusal, failed
from foveate.wire.threads import NOT_FOUND

SHOULD_RETRY = "x-should-retry"

_HOST = re.compile(r"https?://(?:[^/?#]*@)?([^/?#@]+)")


def refusal_for(error: FoveateError, spoken: Format, audience: Audience = Audience.OPERATOR) -> Refusal:
    """Return the response for an error, with what its reader may know of it."""
    said = text_for(error, audience)
    match error:
        case DoesNotFit():
            return _too_long(error, spoken, said)
        case CallRefused():
            return _over_cap(said, spoken)
        case ThreadRefused():
            refusal = failed(spoken, 404 if error.thread_code == NOT_FOUND else 400, said)
            return replace(refusal, details={"error_code": error.thread_code})
        case WebSocketRefused():
            return failed(spoken, 426, said)
        case KeyRefused():
            return failed(spoken, 401, said)
        case OperationRefused():
            return failed(spoken, 403, said)
        case MethodRefused():
            return failed(spoken, 405, said)
        case (
            BadPath()
            | BudgetExceeded()
            | NoUpstream()
            | WrongApi()
            | MalformedRequest()
            | RequestLimitExceeded()
        ):
            return failed(spoken, 400, said)
        case UpstreamTimeout():
            return failed(spoken, 504, said)
        case UpstreamError():
            return failed(spoken, 502, said)
        case _:
            return failed(spoken, 500, said)


def reason_of(error: FoveateError) -> str:
    """What is told of an error in the log: of where it was only the host, since an address may hold a key.

    Of a duplicate key only the field that holds it, because keys further inside can be part of a message.
    """
    if isinstance(error, DuplicateKey):
        return f"a key occurs twice in `{error.path[0]}`" if len(error.path) > 1 else str(error)
    if not isinstance(error, UpstreamError):
        return str(error)
    found = _HOST.match(error.url)
    return error.reason if found is None else f"{found[1]}: {error.reason}"


def may_retry(error: FoveateError) -> bool:
    """Whether the same request may be answered a little later."""
    return isinstance(error, UpstreamError)


def _too_long(error: DoesNotFit, spoken: Format, said: str) -> Refusal:
    """In each provider's own words first: clients look for them, and shorten the conversation by themselves."""
    if spoken is Format.ANTHROPIC:
        return Refusal(
            message=f"prompt is too long: {error.tokens} tokens > {error.limit_tokens} maximum. {said}"
        )
    if spoken is Format.BEDROCK:
        return failed(spoken, 400, f"Input is too long for requested model. {said}")
    if spoken is Format.GEMINI:
        return failed(
            spoken,
            400,
            f"The input token count ({error.tokens}) exceeds the maximum number of tokens allowed"
            f" ({error.limit_tokens}). {said}",
        )
    return Refusal(
        message=f"This model's maximum context length is {error.window_tokens} tokens. However, your messages "
        f"resulted in {error.tokens} tokens. Please reduce the length of the messages. {said}",
        code="context_length_exceeded",
        param="input" if spoken is Format.RESPONSES else "messages",
    )


def _over_cap(said: str, spoken: Format) -> Refusal:
    if spoken in (Format.ANTHROPIC, Format.GEMINI, Format.BEDROCK):
        return failed(spoken, 402, said)
    return Refusal(message=said, status=402, kind="insufficient_quota", code="insufficient_quota")
