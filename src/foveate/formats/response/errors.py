"""Error responses in the format of each provider."""

from collections.abc import Mapping
from dataclasses import dataclass

from foveate.formats.json_text.parse import to_json
from foveate.model import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorResponse:
    """An error response of a provider.

    `kind` is the provider's error type; `param` and `code` are OpenAI's. `details` are Anthropic's, and contain
    its `error_code`.
    """

    message: str
    status: int = 400
    kind: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    details: Mapping[str, object] | None = None
    retry_after_seconds: float | None = None


# Error types by status: https://platform.claude.com/docs/en/api/errors and
# https://platform.openai.com/docs/guides/error-codes (read November 2026).
_ANTHROPIC_ERROR_TYPES = {
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
# https://ai.google.dev/gemini-api/docs/troubleshooting (November 2026). Google has no status for an
# exhausted budget; a project without billing gets this one, which clients do not retry.
_GEMINI_ERROR_TYPES = {
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
# no status for an exhausted budget; clients do not retry the one for a quota.
_BEDROCK_ERROR_TYPES = {
    401: "AccessDeniedException",
    402: "ServiceQuotaExceededException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
}
_OPENAI_ERROR_TYPES = {
    429: "rate_limit_exceeded",
    500: "server_error",
    502: "server_error",
    503: "server_error",
}


def make_status_error(api_format: Format, status: int, message: str = "") -> ErrorResponse:
    if api_format is Format.ANTHROPIC:
        kind = _ANTHROPIC_ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return ErrorResponse(message=message or _default_message(kind), status=status, kind=kind)
    if api_format is Format.GEMINI:
        kind = _GEMINI_ERROR_TYPES.get(status, "UNAVAILABLE" if status >= 500 else "INVALID_ARGUMENT")
        return ErrorResponse(message=message or _default_message(kind.lower()), status=status, kind=kind)
    if api_format is Format.BEDROCK:
        other = "ServiceUnavailableException" if status >= 500 else "ValidationException"
        kind = _BEDROCK_ERROR_TYPES.get(status, other)
        return ErrorResponse(message=message or kind, status=status, kind=kind)
    kind = _OPENAI_ERROR_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = "rate_limit_exceeded" if status == 429 else None
    return ErrorResponse(message=message or _default_message(kind), status=status, kind=kind, code=code)


def make_overloaded_error(api_format: Format) -> ErrorResponse:
    if api_format is Format.ANTHROPIC:
        return make_status_error(api_format, 529, "Overloaded")
    if api_format is Format.GEMINI:
        return make_status_error(api_format, 503, "The model is overloaded. Please try again later.")
    return make_status_error(api_format, 503, "The engine is currently overloaded, please try again later")


def make_invalid_json_error(api_format: Format, reason: str) -> ErrorResponse:
    if api_format is Format.ANTHROPIC:
        return ErrorResponse(message=f"The request body is not valid JSON: {reason}")
    if api_format is Format.GEMINI:
        return make_status_error(api_format, 400, f"Invalid JSON payload received. {reason}")
    return ErrorResponse(
        message="We could not parse the JSON body of your request. (HINT: This likely means you aren't using "
        f"your HTTP library correctly.) {reason}"
    )


def make_body_too_large_error(api_format: Format, limit_bytes: int) -> ErrorResponse:
    return make_status_error(api_format, 413, f"Request exceeds the maximum size of {limit_bytes} bytes")


def error_body(api_format: Format, error_response: ErrorResponse, request_id: str) -> bytes:
    if api_format is Format.ANTHROPIC:
        inner: dict[str, object] = {"type": error_response.kind, "message": error_response.message}
        if error_response.details is not None:
            inner["details"] = error_response.details
        return to_json({"type": "error", "error": inner, "request_id": request_id})
    if api_format is Format.GEMINI:
        return to_json({"error": gemini_error_object(error_response)})
    if api_format is Format.BEDROCK:
        return to_json({"message": error_response.message})
    return to_json({"error": openai_error_object(error_response)})


def gemini_error_object(error_response: ErrorResponse) -> dict[str, str | int]:
    """Return the error object of Google's APIs. An error without a Google type is an invalid argument."""
    kind = (
        error_response.kind
        if error_response.kind.isupper()
        else _GEMINI_ERROR_TYPES.get(error_response.status, "INVALID_ARGUMENT")
    )
    return {"code": error_response.status, "message": error_response.message, "status": kind}


def openai_error_object(error_response: ErrorResponse) -> dict[str, str | None]:
    return {
        "message": error_response.message,
        "type": error_response.kind,
        "param": error_response.param,
        "code": error_response.code,
    }


def _default_message(kind: str) -> str:
    return kind.replace("_", " ").capitalize()
