"""What a provider says no with: its status, its words, and the JSON that it wraps them in."""

from collections.abc import Mapping
from dataclasses import dataclass

from foveate.values import Format
from foveate.wire.body import compact


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that the provider does not take.

    `kind` is the error's type in the provider's own words; `param` and `code` are OpenAI's, who names the
    parameter that is wrong and, for some errors, a code. `details` are Anthropic's, with
    its `error_code`. `retry_after_seconds` says when to come back.
    """

    message: str
    status: int = 400
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    details: Mapping[str, object] | None = None
    retry_after_seconds: float | None = None


# The type that each provider gives an error of a status: https://platform.claude.com/docs/en/api/errors and
# https://platform.openai.com/docs/guides/error-codes (read November 2026).
_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
# https://ai.google.dev/gemini-api/docs/troubleshooting (November 2026). Google has no status for money that has
# run out; a project without billing gets this one, which clients do not retry.
_GEMINI_KINDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
# https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html (November 2026). AWS has
# none for money that has run out; clients do not retry the one for a quota.
_BEDROCK_KINDS = {
    401: "AccessDeniedException",
    402: "ServiceQuotaExceededException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
}
_OPENAI_KINDS = {429: "rate_limit_exceeded", 500: "server_error", 502: "server_error", 503: "server_error"}


def failed(spoken: Format, status: int, message: str = "") -> Refusal:
    """A status that has nothing to do with what the request says, with the type that the provider gives it."""
    if spoken is Format.ANTHROPIC:
        kind = _ANTHROPIC_KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return Refusal(message=message or _words(kind), status=status, kind=kind)
    if spoken is Format.GEMINI:
        kind = _GEMINI_KINDS.get(status, "UNAVAILABLE" if status >= 500 else "INVALID_ARGUMENT")
        return Refusal(message=message or _words(kind.lower()), status=status, kind=kind)
    if spoken is Format.BEDROCK:
        other = "ServiceUnavailableException" if status >= 500 else "ValidationException"
        kind = _BEDROCK_KINDS.get(status, other)
        return Refusal(message=message or kind, status=status, kind=kind)
    kind = _OPENAI_KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = "rate_limit_exceeded" if status == 429 else None
    return Refusal(message=message or _words(kind), status=status, kind=kind, code=code)


def overloaded(spoken: Format) -> Refusal:
    """More requests than the provider can serve."""
    if spoken is Format.ANTHROPIC:
        return failed(spoken, 529, "Overloaded")
    if spoken is Format.GEMINI:
        return failed(spoken, 503, "The model is overloaded. Please try again later.")
    return failed(spoken, 503, "The engine is currently overloaded, please try again later")


def unreadable(spoken: Format, reason: str) -> Refusal:
    """A body that is not JSON, or no object."""
    if spoken is Format.ANTHROPIC:
        return Refusal(message=f"The request body is not valid JSON: {reason}")
    if spoken is Format.GEMINI:
        return failed(spoken, 400, f"Invalid JSON payload received. {reason}")
    return Refusal(
        message="We could not parse the JSON body of your request. (HINT: This likely means you aren't using "
        f"your HTTP library correctly.) {reason}"
    )


def too_large(spoken: Format, limit_bytes: int) -> Refusal:
    """A body of more bytes than are read."""
    return failed(spoken, 413, f"Request exceeds the maximum size of {limit_bytes} bytes")


def error_body(spoken: Format, refusal: Refusal, request_id: str) -> bytes:
    """The JSON that a provider answers with when it refuses."""
    if spoken is Format.ANTHROPIC:
        inner: dict[str, object] = {"type": refusal.kind, "message": refusal.message}
        if refusal.details is not None:
            inner["details"] = refusal.details
        return compact({"type": "error", "error": inner, "request_id": request_id})
    if spoken is Format.GEMINI:
        return compact({"error": gemini_error(refusal)})
    if spoken is Format.BEDROCK:
        return compact({"message": refusal.message})
    return compact({"error": openai_error(refusal)})


def gemini_error(refusal: Refusal) -> dict[str, str | int]:
    """An error as Google's APIs have it inside of others; a plain refusal is an invalid argument."""
    kind = refusal.kind if refusal.kind.isupper() else _GEMINI_KINDS.get(refusal.status, "INVALID_ARGUMENT")
    return {"code": refusal.status, "message": refusal.message, "status": kind}


def openai_error(refusal: Refusal) -> dict[str, str | None]:
    """An error as OpenAI has it inside of others."""
    return {
        "message": refusal.message,
        "type": refusal.kind,
        "param": refusal.param,
        "code": refusal.code,
    }


def _words(kind: str) -> str:
    return kind.replace("_", " ").capitalize()
