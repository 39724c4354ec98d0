"""What providers answer to other questions than prompts: which models there are, and that a stream failed."""

from typing import Any

from foveate.budget.windows import window_of
from foveate.sandbox.anthropic_answers import failure
from foveate.sandbox.models import listed, model_of
from foveate.sandbox.rendering import event
from foveate.values import Format
from foveate.wire.body import compact
from foveate.wire.refusals import Refusal, failed, gemini_error, openai_error, overloaded


def models(spoken: Format, name: str) -> bytes | Refusal:
    """The list of models or, with a name, one of them."""
    describe = _DESCRIBE.get(spoken, _openai_model)
    if name:
        if model_of(spoken, name) is None:
            return _no_such_model(spoken, name)
        return compact(describe(name))
    rows = [describe(model) for model in listed(spoken)]
    if spoken is Format.ANTHROPIC:
        ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]}
        return compact({"data": rows, "has_more": False, **ends})
    if spoken is Format.GEMINI:
        return compact({"models": rows})
    return compact({"object": "list", "data": rows})


def stream_error(spoken: Format, number: int) -> bytes:
    """What a stream ends with when its provider fails in the middle; `number` is that of the event."""
    refusal = overloaded(spoken)
    if spoken is Format.ANTHROPIC:
        return failure(refusal.message)
    if spoken is Format.CHAT:
        return event({"error": openai_error(refusal)})
    if spoken is Format.GEMINI:
        return event({"error": gemini_error(refusal)})
    said = {"type": "error", "sequence_number": number, "code": refusal.kind, "message": refusal.message}
    return event(said | {"param": None}, "error")


def _anthropic_model(name: str) -> dict[str, Any]:
    window, model = window_of(name), model_of(Format.ANTHROPIC, name)
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
    window, model = window_of(name), model_of(Format.GEMINI, name)
    return {
        "name": f"models/{name}",
        "displayName": name.replace("-", " ").title(),
        "inputTokenLimit": window.tokens if window else None,
        "outputTokenLimit": model.most_output_tokens if model else None,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


_DESCRIBE = {Format.ANTHROPIC: _anthropic_model, Format.GEMINI: _google_model}


def _no_such_model(spoken: Format, name: str) -> Refusal:
    if spoken is Format.ANTHROPIC:
        return Refusal(message=f"model: {name}", status=404, kind="not_found_error")
    if spoken is Format.GEMINI:
        return failed(spoken, 404, f"models/{name} is not found for API version v1beta.")
    message = f"The model '{name}' does not exist"
    return Refusal(message=message, status=404, param="model", code="model_not_found")
