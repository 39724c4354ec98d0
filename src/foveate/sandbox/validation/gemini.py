"""Validates requests as Google's generateContent and countTokens do.

After https://ai.google.dev/api/generate-content and recorded error responses of its API (read November 2026).
"""

import re
from collections.abc import Iterator
from typing import Any

from foveate.budget.model_limits import find_context_window
from foveate.formats.json_text.parse import as_dict, as_list, as_text
from foveate.formats.response.errors import ErrorResponse, make_status_error
from foveate.model import Format
from foveate.sandbox.models import find_model
from foveate.sandbox.schema import SchemaError, TypeTag, Violation, is_base64, schemas_for

_SNAKE = re.compile(r"_([a-z])")
_FREE_FORM_FIELDS = frozenset(
    ("args", "labels", "parameters", "parametersJsonSchema", "partMetadata", "response", "responseJsonSchema",
     "responseSchema")
)  # fmt: skip
# A part has exactly one of these fields.
_DATA_FIELDS = frozenset(
    ("text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode",
     "codeExecutionResult", "toolCall", "toolResponse")
)  # fmt: skip
# Clients send this if they have lost the signature of a call; Google then checks none.
_NO_SIGNATURE = "skip_thought_signature_validator"


def to_camel_case(body: Any) -> Any:
    """Convert field names from snake case, which Google accepts too, except within free-form values."""
    if isinstance(body, list):
        return [to_camel_case(entry) for entry in body]
    if not isinstance(body, dict):
        return body
    renamed = {_SNAKE.sub(lambda match: match[1].upper(), name): value for name, value in body.items()}
    return {
        name: value if name in _FREE_FORM_FIELDS else to_camel_case(value) for name, value in renamed.items()
    }


def find_error(body: dict[str, Any], model: str, *, counting: bool = False) -> ErrorResponse | None:
    return next(_check_request(body, model, counting=counting), None)


def find_window_error(model: str, prompt_tokens: int) -> ErrorResponse | None:
    window = find_context_window(model)
    if window is None or prompt_tokens <= window.tokens:
        return None
    return _invalid_argument(
        f"The input token count ({prompt_tokens}) exceeds the maximum number of tokens allowed"
        f" ({window.tokens})."
    )


def _check_request(body: dict[str, Any], model: str, *, counting: bool) -> Iterator[ErrorResponse]:
    known_model = find_model(Format.GEMINI, model)
    if known_model is None:
        yield make_status_error(
            Format.GEMINI,
            404,
            f"models/{model} is not found for API version v1beta, or is not supported for generateContent."
            " Call ListModels to see the list of available models and their supported methods.",
        )
        return
    if counting and body.keys() == {"generateContentRequest"}:
        body = as_dict(body["generateContentRequest"])
    for schema_error in schemas_for(Format.GEMINI).find_errors("request", body):
        yield _invalid_argument(_describe_error(schema_error))
    contents = as_list(body.get("contents"))
    if not contents:
        yield _invalid_argument("* GenerateContentRequest.contents: contents is not specified")
    for at, content in enumerate(contents):
        yield from _check_parts(f"contents[{at}]", content)
    yield from _check_turns(contents)
    limit = as_dict(body.get("generationConfig")).get("maxOutputTokens")
    if limit is not None and limit > known_model.max_output_tokens:
        yield _invalid_argument(
            f"Unable to submit request because it has a maxOutputTokens value of {limit} but the supported"
            f" range is from 1 (inclusive) to {known_model.max_output_tokens + 1} (exclusive)."
        )


def _check_parts(path: str, content: dict[str, Any]) -> Iterator[ErrorResponse]:
    if not as_list(content.get("parts")):
        yield _invalid_argument(f"* GenerateContentRequest.{path}.parts: contents.parts must not be empty.")
    for at, part in enumerate(as_list(content.get("parts"))):
        data_fields = _DATA_FIELDS & part.keys()
        if len(data_fields) > 1 or (not data_fields and "thoughtSignature" not in part):
            yield _invalid_argument(
                f"* GenerateContentRequest.{path}.parts[{at}].data: required oneof field 'data' must have one"
                " initialized field"
            )
        signature = part.get("thoughtSignature")
        if signature not in (None, _NO_SIGNATURE) and not is_base64(signature):
            yield _invalid_argument(
                f"Invalid value at '{path}.parts[{at}].thought_signature' (TYPE_BYTES), Base64 decoding failed"
            )


def _check_turns(contents: list[dict[str, Any]]) -> Iterator[ErrorResponse]:
    """Check that function calls follow a user turn, and that their responses follow immediately."""
    waiting = 0
    for at, content in enumerate(contents):
        calls = sum("functionCall" in part for part in as_list(content.get("parts")))
        responses = sum("functionResponse" in part for part in as_list(content.get("parts")))
        if responses != waiting and (responses or waiting):
            yield _invalid_argument(
                "Please ensure that the number of function response parts is equal to the number of function"
                " call parts of the function call turn."
            )
        if calls and at == 0:
            yield _invalid_argument(
                "Please ensure that function call turn comes immediately after a user turn or after a"
                " function response turn."
            )
        waiting = calls
    if waiting:
        yield _invalid_argument(
            "Please ensure that function response turn comes immediately after a function call turn."
        )


def _describe_error(schema_error: SchemaError) -> str:
    *before, last = [step.name if isinstance(step, TypeTag) else step for step in schema_error.path] or [""]
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in before).lstrip(".")
    at = f" at '{place}'" if place else ""
    match schema_error.violation:
        case Violation.UNKNOWN:
            return f'Invalid JSON payload received. Unknown name "{last}"{at}: Cannot find field.'
        case Violation.MISSING:
            return f"* GenerateContentRequest.{place}{'.' if place else ''}{last}: {last} is not specified"
        case Violation.TYPE | Violation.VALUE | Violation.BASE64:
            return (
                f"Invalid value at '{place}{'.' if place else ''}{last}', {as_text(schema_error.found)[:100]}"
            )
        case _:
            return f"* GenerateContentRequest.{place}{'.' if place else ''}{last}: value out of range"


def _invalid_argument(message: str) -> ErrorResponse:
    return make_status_error(Format.GEMINI, 400, message)
