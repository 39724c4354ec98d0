"""What Google takes for generateContent and countTokens.

After https://ai.google.dev/api/generate-content and what its API answered to others (read November 2026).
"""

import re
from collections.abc import Iterator
from typing import Any

from foveate.budget.windows import window_of
from foveate.sandbox.models import model_of
from foveate.sandbox.shapes import Fault, Tag, Wrong, is_base64, shapes_of
from foveate.values import Format
from foveate.wire.body import as_list, as_record, as_text
from foveate.wire.refusals import Refusal, failed

_SNAKE = re.compile(r"_([a-z])")
_FREE = frozenset(
    ("args", "labels", "parameters", "parametersJsonSchema", "partMetadata", "response", "responseJsonSchema",
     "responseSchema")
)  # fmt: skip
# What a part may hold; exactly one of these.
_DATA = frozenset(
    ("text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode",
     "codeExecutionResult", "toolCall", "toolResponse")
)  # fmt: skip


def camel_case(asked: Any) -> Any:
    """A body in the first of the two spellings that Google reads; what holds any names stays as it is."""
    if isinstance(asked, list):
        return [camel_case(entry) for entry in asked]
    if not isinstance(asked, dict):
        return asked
    renamed = {_SNAKE.sub(lambda found: found[1].upper(), name): said for name, said in asked.items()}
    return {name: said if name in _FREE else camel_case(said) for name, said in renamed.items()}


def first_problem(asked: dict[str, Any], model: str, *, counting: bool = False) -> Refusal | None:
    """Why Google would not take a request for a model, or None where it would."""
    return next(_problems(asked, model, counting=counting), None)


def too_long(model: str, prompt_tokens: int) -> Refusal | None:
    """Why a prompt does not fit in the model's window."""
    window = window_of(model)
    if window is None or prompt_tokens <= window.tokens:
        return None
    return _refusal(
        f"The input token count ({prompt_tokens}) exceeds the maximum number of tokens allowed"
        f" ({window.tokens})."
    )


def _problems(asked: dict[str, Any], model: str, *, counting: bool) -> Iterator[Refusal]:
    known = model_of(Format.GEMINI, model)
    if known is None:
        yield failed(
            Format.GEMINI,
            404,
            f"models/{model} is not found for API version v1beta, or is not supported for generateContent."
            " Call ListModels to see the list of available models and their supported methods.",
        )
        return
    if counting and asked.keys() == {"generateContentRequest"}:
        asked = as_record(asked["generateContentRequest"])
    for fault in shapes_of(Format.GEMINI).faults("request", asked):
        yield _refusal(_words(fault))
    contents = as_list(asked.get("contents"))
    if not contents:
        yield _refusal("* GenerateContentRequest.contents: contents is not specified")
    for at, content in enumerate(contents):
        yield from _parts(f"contents[{at}]", content)
    yield from _turns(contents)
    limit = as_record(asked.get("generationConfig")).get("maxOutputTokens")
    if limit is not None and limit > known.most_output_tokens:
        yield _refusal(
            f"Unable to submit request because it has a maxOutputTokens value of {limit} but the supported"
            f" range is from 1 (inclusive) to {known.most_output_tokens + 1} (exclusive)."
        )


# What clients send that have lost the signature of a call: Google then checks none.
_NO_SIGNATURE = "skip_thought_signature_validator"


def _parts(path: str, content: dict[str, Any]) -> Iterator[Refusal]:
    if not as_list(content.get("parts")):
        yield _refusal(f"* GenerateContentRequest.{path}.parts: contents.parts must not be empty.")
    for at, part in enumerate(as_list(content.get("parts"))):
        held = _DATA & part.keys()
        if len(held) > 1 or (not held and "thoughtSignature" not in part):
            yield _refusal(
                f"* GenerateContentRequest.{path}.parts[{at}].data: required oneof field 'data' must have one"
                " initialized field"
            )
        signature = part.get("thoughtSignature")
        if signature not in (None, _NO_SIGNATURE) and not is_base64(signature):
            yield _refusal(
                f"Invalid value at '{path}.parts[{at}].thought_signature' (TYPE_BYTES), Base64 decoding failed"
            )


def _turns(contents: list[dict[str, Any]]) -> Iterator[Refusal]:
    """Calls of functions stand after what the user says, and their responses right after them."""
    waiting = 0
    for at, content in enumerate(contents):
        calls = sum("functionCall" in part for part in as_list(content.get("parts")))
        responses = sum("functionResponse" in part for part in as_list(content.get("parts")))
        if responses != waiting and (responses or waiting):
            yield _refusal(
                "Please ensure that the number of function response parts is equal to the number of function"
                " call parts of the function call turn."
            )
        if calls and at == 0:
            yield _refusal(
                "Please ensure that function call turn comes immediately after a user turn or after a"
                " function response turn."
            )
        waiting = calls
    if waiting:
        yield _refusal(
            "Please ensure that function response turn comes immediately after a function call turn."
        )


def _words(fault: Fault) -> str:
    *before, last = [step.name if isinstance(step, Tag) else step for step in fault.path] or [""]
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in before).lstrip(".")
    at = f" at '{place}'" if place else ""
    match fault.wrong:
        case Wrong.UNKNOWN:
            return f'Invalid JSON payload received. Unknown name "{last}"{at}: Cannot find field.'
        case Wrong.MISSING:
            return f"* GenerateContentRequest.{place}{'.' if place else ''}{last}: {last} is not specified"
        case Wrong.TYPE | Wrong.VALUE | Wrong.BASE64:
            return f"Invalid value at '{place}{'.' if place else ''}{last}', {as_text(fault.found)[:100]}"
        case _:
            return f"* GenerateContentRequest.{place}{'.' if place else ''}{last}: value out of range"


def _refusal(message: str) -> Refusal:
    return failed(Format.GEMINI, 400, message)
