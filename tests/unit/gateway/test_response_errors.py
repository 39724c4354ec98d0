"""Error texts help to fix the error, and contain no key."""

import json
from decimal import Decimal

import pytest

from foveate.errors import (
    BadOption,
    CapUncheckable,
    DoesNotFit,
    DuplicateKey,
    FoveateError,
    KeyRefused,
    NoUpstream,
    UpstreamUnreachable,
)
from foveate.formats.response.errors import error_body
from foveate.gateway.response import build_error_response, log_reason
from foveate.model import Format


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("https://api.example/v1/messages?key=SECRET", "api.example: no connection"),
        ("http://ana:SECRET@10.0.0.5:8000/v1", "10.0.0.5:8000: no connection"),
        ("https://api.example?key=SECRET@x", "api.example: no connection"),
        ("http://[::1]:8000", "[::1]:8000: no connection"),
        ("the local model", "no connection"),
    ],
)
def test_the_log_names_an_unreachable_host_but_not_its_url(url: str, text: str) -> None:
    assert log_reason(UpstreamUnreachable(url, "no connection")) == text


def test_any_other_error_is_logged_unchanged() -> None:
    assert log_reason(BadOption("no")) == "no"


def test_the_log_names_a_duplicate_key_only_if_it_is_a_parameter() -> None:
    """Keys inside messages can be content of a model or user."""
    error = DuplicateKey(("messages", 3, "content", 0, "input", "SECRET"))

    assert log_reason(error) == "a key occurs twice in `messages`"
    assert log_reason(DuplicateKey(("max_tokens",))).startswith("the key `max_tokens` occurs twice")


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (KeyRefused("no"), 401, "AccessDeniedException"),
        (NoUpstream("bedrock"), 400, "ValidationException"),
        (UpstreamUnreachable("https://h", "no connection"), 502, "ServiceUnavailableException"),
        (DoesNotFit(tokens=9, limit_tokens=8, window_tokens=8, reason="no"), 400, "ValidationException"),
        (
            CapUncheckable("no", "ask", cap="c", limit=Decimal(1), reason="r"),
            402,
            "ServiceQuotaExceededException",
        ),
    ],
)
def test_bedrock_clients_get_errors_in_the_format_of_aws(error: FoveateError, status: int, kind: str) -> None:
    error_response = build_error_response(error, Format.BEDROCK)

    assert (error_response.status, error_response.kind) == (status, kind)
    assert json.loads(error_body(Format.BEDROCK, error_response, "req_1")) == {
        "message": error_response.message
    }


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (KeyRefused("no"), 401, "UNAUTHENTICATED"),
        (NoUpstream("gemini"), 400, "INVALID_ARGUMENT"),
        (UpstreamUnreachable("https://h", "no connection"), 502, "UNAVAILABLE"),
        (DoesNotFit(tokens=9, limit_tokens=8, window_tokens=8, reason="no"), 400, "INVALID_ARGUMENT"),
        (CapUncheckable("no", "ask", cap="c", limit=Decimal(1), reason="r"), 402, "FAILED_PRECONDITION"),
    ],
)
def test_gemini_clients_get_errors_in_the_format_of_google(error: FoveateError, status: int, kind: str) -> None:
    error_response = build_error_response(error, Format.GEMINI)
    body = json.loads(error_body(Format.GEMINI, error_response, "req_1"))["error"]

    assert (error_response.status, body["code"], body["status"]) == (status, status, kind)
    assert body["message"]
