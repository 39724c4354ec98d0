"""Who reads an error response, and what it tells them.

Whoever runs the gateway reads everything. An agent that shows its key reads how its own caps stand, and nothing
of the machine. A caller without a key reads what is wrong with the request: no amounts, no names of upstreams
or agents, no addresses and no paths.
"""

from collections.abc import Sequence
from enum import Enum, auto

from foveate.errors import (
    BadPath,
    BudgetExceeded,
    CallRefused,
    CapUncheckable,
    DoesNotFit,
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
from foveate.gateway.admin import is_proxied

# What is wrong with a request. Every other error is one of the gateway, and may name a file or an address.
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
    """Who reads an error response."""

    OPERATOR = auto()
    AGENT = auto()
    STRANGER = auto()


def classify_audience(headers: Sequence[tuple[bytes, bytes]], *, has_key: bool, is_open: bool) -> Audience:
    """Return who sent a request.

    `has_key`: it shows a valid key of the gateway. `is_open`: other machines reach the gateway.
    """
    if not is_open and not is_proxied(name for name, _ in headers):
        return Audience.OPERATOR
    return Audience.AGENT if has_key else Audience.STRANGER


def error_text(error: FoveateError, audience: Audience) -> str:
    """Return what an error response says to its reader."""
    if audience is Audience.OPERATOR:
        return _operator_text(error)
    if isinstance(error, CapUncheckable) and error.is_outage:
        return f"a spending cap cannot be checked: {_OUTAGE_TEXT}; try again later"
    if isinstance(error, UpstreamTimeout):
        return "the provider did not answer in time"
    if isinstance(error, UpstreamError):
        return "the provider could not be reached"
    if not isinstance(error, _REQUEST_ERRORS):
        return "the gateway has failed; its log says why, under the id of this request"
    if audience is Audience.STRANGER:
        return _public_text(error)
    return _shared_cap_text(error) if isinstance(error, CallRefused) and error.is_shared else str(error)


def _operator_text(error: FoveateError) -> str:
    if isinstance(error, UpstreamTimeout):
        return f"the provider did not answer in time ({error.reason})"
    if isinstance(error, UpstreamError):
        return f"the provider could not be reached ({error.reason})"
    return str(error)


def _shared_cap_text(error: CallRefused) -> str:
    """Return what an agent is told of a cap that it shares with others: not how much of it they have spent."""
    if isinstance(error, CapUncheckable):
        return f"{error.cap} cannot be checked: {error.reason}; {error.remedy}"
    return f"{error.cap} has no room for this call; {error.remedy}"


def _public_text(error: FoveateError) -> str:
    match error:
        case CapUncheckable():
            return f"a spending cap of this gateway cannot be checked for this call: {error.reason}"
        case CallRefused():
            return "a spending cap of this gateway has no room for this call; send less, or try again later"
        case KeyRefused():
            return error.public
        case OperationRefused():
            return f"{error.operation} is not among the operations that this gateway allows"
        case WrongApi():
            return f"this gateway has no route for this model in the API of {error.api}"
        case NoUpstream():
            return f"this gateway does not serve the API of {error.api}"
        case BudgetExceeded():
            return "what the gateway adds to this request does not fit"
        case DoesNotFit():
            return "the request is too long for the model"
        case _:
            return str(error)
