"""Validates requests by the rules of their API format, without a server."""

from collections.abc import Collection
from typing import Any

import msgspec

from foveate.errors import MalformedRequest
from foveate.formats.json_text.parse import TOO_DEEP_MESSAGE
from foveate.formats.response.errors import ErrorResponse, make_invalid_json_error
from foveate.model import Format, Request
from foveate.sandbox.providers import anthropic, gemini, openai_chat, openai_responses

SUPPORTED_FORMATS = (Format.ANTHROPIC, Format.CHAT, Format.RESPONSES, Format.GEMINI)


def validate_request(
    request: Request,
    *,
    prompt_tokens: int | None = None,
    counting: bool = False,
    betas: Collection[str] = (),
) -> ErrorResponse | None:
    """Return the error with which the provider of a request's format would reject it, or None.

    Args:
        request: the request.
        prompt_tokens: the size of the prompt; None skips the check whether it fits the window.
        counting: whether the request is for Anthropic's `count_tokens`.
        betas: the values of Anthropic's header `anthropic-beta`.

    Raises:
        MalformedRequest: the sandbox does not support the format of the request.
    """
    body = decode_body(request.format, request.body)
    if isinstance(body, ErrorResponse):
        return body
    error_response = find_error(request.format, body, counting=counting, betas=betas, model=request.model)
    if error_response is not None or prompt_tokens is None or counting:
        return error_response
    return find_window_error(request.format, body, prompt_tokens, model=request.model)


def find_error(
    api_format: Format,
    body: dict[str, Any],
    *,
    counting: bool = False,
    betas: Collection[str] = (),
    model: str = "",
) -> ErrorResponse | None:
    """Return the first error of a body, whatever its size. Gemini requests have the `model` in their path.

    Raises:
        MalformedRequest: the sandbox does not support the format.
    """
    match api_format:
        case Format.ANTHROPIC:
            return anthropic.find_error(body, counting=counting, betas=betas)
        case Format.CHAT:
            return openai_chat.find_error(body)
        case Format.RESPONSES:
            return openai_responses.find_error(body)
        case Format.GEMINI:
            return gemini.find_error(body, model, counting=counting)
        case unsupported:
            raise MalformedRequest(f"the sandbox does not support {unsupported}")


def find_window_error(
    api_format: Format, body: dict[str, Any], prompt_tokens: int, *, model: str = ""
) -> ErrorResponse | None:
    match api_format:
        case Format.ANTHROPIC:
            return anthropic.find_window_error(body, prompt_tokens)
        case Format.CHAT:
            return openai_chat.find_window_error(body, prompt_tokens)
        case Format.GEMINI:
            return gemini.find_window_error(model, prompt_tokens)
        case _:
            return openai_responses.find_window_error(body, prompt_tokens)


def decode_body(api_format: Format, body: bytes) -> dict[str, Any] | ErrorResponse:
    """Decode a JSON object. Like the providers, reject lone surrogates."""
    try:
        decoded = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        return make_invalid_json_error(api_format, str(error))
    except UnicodeDecodeError:
        return make_invalid_json_error(api_format, "it is not UTF-8")
    except RecursionError:
        return make_invalid_json_error(api_format, TOO_DEEP_MESSAGE)
    if not isinstance(decoded, dict):
        return make_invalid_json_error(api_format, "it is not an object")
    return gemini.to_camel_case(decoded) if api_format is Format.GEMINI else decoded
