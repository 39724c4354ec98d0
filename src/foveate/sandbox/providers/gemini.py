"""Google's generateContent and countTokens: validates requests, and renders responses or the chunks of a
stream.

After https://ai.google.dev/api/generate-content and recorded error responses of the API (read November 2026).
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from foveate.budget.model_limits import find_context_window
from foveate.formats.json_text.parse import as_dict, as_list, as_text, to_json
from foveate.formats.response.errors import ErrorResponse, make_status_error
from foveate.model import Format
from foveate.sandbox.models import find_model
from foveate.sandbox.response import (
    GeneratedResponse,
    ResponseMetadata,
    ResponseSpec,
    StopReason,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    split_chunks,
)
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


_FINISH_REASONS = {StopReason.LIMIT: "MAX_TOKENS", StopReason.WINDOW: "MAX_TOKENS"}


def read_response_spec(
    body: dict[str, Any], model: str, room_tokens: int | None, *, streams: bool
) -> ResponseSpec:
    config = as_dict(body.get("generationConfig"))
    tools = [
        as_dict(function)
        for tool in as_list(body.get("tools"))
        for function in as_list(as_dict(tool).get("functionDeclarations"))
    ]
    calling = as_dict(as_dict(body.get("toolConfig")).get("functionCallingConfig"))
    allowed = as_list(calling.get("allowedFunctionNames"))
    schema = config.get("responseJsonSchema") or config.get("responseSchema")
    is_json = config.get("responseMimeType") == "application/json"
    last = as_dict(as_list(body.get("contents"))[-1])
    return ResponseSpec(
        model=model,
        is_streaming=streams,
        includes_thinking=as_dict(config.get("thinkingConfig")).get("includeThoughts") is True,
        tools=tuple((as_text(tool.get("name")), _tool_schema(tool)) for tool in tools),
        forced_tool=(as_text(allowed[0]) if allowed else "") if calling.get("mode") == "ANY" else None,
        schema=(as_dict(schema) if schema else {}) if is_json else None,
        limit_tokens=config.get("maxOutputTokens"),
        window_tokens_left=room_tokens,
        stop_sequences=tuple(as_list(config.get("stopSequences"))),
        last_message_text="\n".join(
            as_text(part.get("text")) for part in map(as_dict, as_list(last.get("parts")))
        ),
    )


def count_candidates(body: dict[str, Any]) -> int:
    return as_dict(body.get("generationConfig")).get("candidateCount") or 1


def _tool_schema(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a function's schema. Google also accepts type names in capitals."""
    return as_dict(_lowercase_types(tool.get("parametersJsonSchema") or tool.get("parameters")))


def _lowercase_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_lowercase_types(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) else _lowercase_types(value)
        for name, value in schema.items()
    }


class GeminiResponse:
    """`as_events`: a stream uses server-sent events instead of one JSON list."""

    def __init__(
        self, generated: GeneratedResponse, metadata: ResponseMetadata, body: dict[str, Any], *, as_events: bool
    ) -> None:
        self._generated = generated
        self._metadata = metadata
        self._id = metadata.new_id("")
        self._candidate_count = count_candidates(body)
        self._as_events = as_events

    def body(self) -> bytes:
        parts = [
            part
            for generated_part in self._generated.parts
            for part in _render_parts(generated_part, is_whole=True)
        ]
        candidates = [self._candidate(index, parts, is_last=True) for index in range(self._candidate_count)]
        return to_json(self._envelope(candidates))

    def events(self) -> Iterator[bytes]:
        chunks: list[dict[str, Any]] = []
        for index in range(self._candidate_count):
            parts = [
                part
                for generated_part in self._generated.parts
                for part in _render_parts(generated_part, is_whole=False)
            ]
            chunks += [self._candidate(index, [part], is_last=False) for part in parts]
            chunks.append(self._candidate(index, [{"text": ""}], is_last=True))
        for number, chunk in enumerate(chunks):
            encoded = to_json(self._envelope([chunk]))
            if self._as_events:
                yield b"data: " + encoded + b"\r\n\r\n"
            else:
                yield (b",\r\n" if number else b"[") + encoded
        if not self._as_events:
            yield b"]"

    def _candidate(self, index: int, parts: list[dict[str, Any]], *, is_last: bool) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": index}
        return (
            candidate | {"finishReason": _FINISH_REASONS.get(self._generated.stop, "STOP")}
            if is_last
            else candidate
        )

    def _envelope(self, candidates: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "candidates": candidates,
            "usageMetadata": usage_block(self._metadata),
            "modelVersion": self._metadata.model,
            "responseId": self._id,
        }


def _render_parts(part: ThinkingPart | TextPart | ToolCallPart, *, is_whole: bool) -> list[dict[str, Any]]:
    if isinstance(part, ToolCallPart):
        signature = b64encode(part.name.encode() * 4).decode()
        call = {"name": part.name, "args": json.loads(part.arguments)}
        return [{"functionCall": call, "thoughtSignature": signature}]
    texts = [part.text] if is_whole else split_chunks(part.text)
    extra: dict[str, Any] = {"thought": True} if isinstance(part, ThinkingPart) else {}
    return [{"text": text} | extra for text in texts]


def usage_block(metadata: ResponseMetadata) -> dict[str, Any]:
    """Render usage as Google does: the prompt includes cache reads, the candidates exclude thinking."""
    usage = metadata.usage
    prompt, thinking_tokens = usage.cache.input_tokens, usage.reasoning_tokens
    block: dict[str, Any] = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": usage.output_tokens - thinking_tokens,
        "totalTokenCount": prompt + usage.output_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
    }
    if usage.cache.read:
        block["cachedContentTokenCount"] = usage.cache.read
        block["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": usage.cache.read}]
    return block | ({"thoughtsTokenCount": thinking_tokens} if thinking_tokens else {})


def render_count(tokens: int) -> bytes:
    return to_json({"totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]})
