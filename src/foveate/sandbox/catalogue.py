"""What providers answer to other questions than prompts: which models there are, and that a stream failed."""

from typing import Any

from foveate.budget.windows import find_context_window
from foveate.sandbox.anthropic_answers import error_event
from foveate.sandbox.models import find_model, list_model_names
from foveate.sandbox.rendering import encode_event
from foveate.values import Format
from foveate.wire.body import to_json
from foveate.wire.refusals import (
    ErrorResponse,
    gemini_error_object,
    make_overloaded_error,
    make_status_error,
    openai_error_object,
)


def render_models(api_format: Format, name: str) -> bytes | ErrorResponse:
    """The list of models or, with a name, one of them."""
    describe = _MODEL_RENDERERS.get(api_format, _openai_model)
    if name:
        if find_model(api_format, name) is None:
            return _model_not_found(api_format, name)
        return to_json(describe(name))
    rows = [describe(model) for model in list_model_names(api_format)]
    if api_format is Format.ANTHROPIC:
        ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]}
        return to_json({"data": rows, "has_more": False, **ends})
    if api_format is Format.GEMINI:
        return to_json({"models": rows})
    return to_json({"object": "list", "data": rows})


def render_stream_error(api_format: Format, number: int) -> bytes:
    """What a stream ends with when its provider fails in the middle; `number` is that of the event."""
    refusal = make_overloaded_error(api_format)
    if api_format is Format.ANTHROPIC:
        return error_event(refusal.message)
    if api_format is Format.CHAT:
        return encode_event({"error": openai_error_object(refusal)})
    if api_format is Format.GEMINI:
        return encode_event({"error": gemini_error_object(refusal)})
    fields = {"type": "error", "sequence_number": number, "code": refusal.kind, "message": refusal.message}
    return encode_event(fields | {"param": None}, "error")


def _anthropic_model(name: str) -> dict[str, Any]:
    window, model = find_context_window(name), find_model(Format.ANTHROPIC, name)
    return {
        "type": "model",
        "id": name,
        "display_name": name.replace("-", " ").title(),
        "created_at": "1970-01-01T00:00:00Z",  # as the API has it where a date is not known
        "lifecycle": "active",
        "max_input_tokens": window.tokens if window else None,
        "max_tokens": model.most_output_tokens if model else None,
    }


def _openai_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "openai"}


def _google_model(name: str) -> dict[str, Any]:
    window, model = find_context_window(name), find_model(Format.GEMINI, name)
    return {
        "name": f"models/{name}",
        "displayName": name.replace("-", " ").title(),
        "inputTokenLimit": window.tokens if window else None,
        "outputTokenLimit": model.most_output_tokens if model else None,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


_MODEL_RENDERERS = {Format.ANTHROPIC: _anthropic_model, Format.GEMINI: _google_model}


def _model_not_found(api_format: Format, name: str) -> ErrorResponse:
    if api_format is Format.ANTHROPIC:
        return ErrorResponse(message=f"model: {name}", status=404, kind="not_found_error")
    if api_format is Format.GEMINI:
        return make_status_error(api_format, 404, f"models/{name} is not found for API version v1beta.")
    message = f"The model '{name}' does not exist"
    return ErrorResponse(message=message, status=404, param="model", code="model_not_found")
