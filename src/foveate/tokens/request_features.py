"""Features of requests that decide how accurate their count is.

A feature is anything that could change how a provider renders a request: a role, a kind of block, a schema
keyword, a field. The evidence table (`accuracy`) says which of them are confirmed by recordings. Features of
messages are bits, since a session combines those of thousands of messages.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntFlag, auto
from typing import Any

from foveate.errors import MalformedRequest
from foveate.formats.incremental.envelope import get_envelope
from foveate.formats.json_text.parse import as_dict, as_list, parse_fields, parse_json, parse_object, to_json
from foveate.model import (
    Document,
    Image,
    Message,
    Opaque,
    Part,
    Request,
    ResponseSchema,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)

# Fields that other features cover, and fields that only concern the response, its delivery or the account
# (documentation of the providers, November 2026).
_KNOWN_FIELDS = frozenset(
    (
        "model", "messages", "input", "contents", "system", "instructions", "systemInstruction",
        "system_instruction", "tools", "functions", "tool_choice", "function_call", "toolConfig", "tool_config",
        "response_format", "text", "output_config", "thinking", "reasoning", "reasoning_effort",
        "generationConfig", "generation_config", "generateContentRequest", "inferenceConfig",
        "stream", "stream_options", "temperature", "top_p", "top_k", "n", "stop", "stop_sequences", "seed",
        "max_tokens", "max_completion_tokens", "max_output_tokens", "presence_penalty", "frequency_penalty",
        "logit_bias", "logprobs", "top_logprobs", "user", "metadata", "store", "include", "service_tier",
        "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "safetySettings", "labels",
        "cache_control", "anthropic_version", "background", "truncation", "requestMetadata",
        "additionalModelResponseFieldPaths", "moderation", "parallel_tool_calls", "prompt_cache_options",
        "usage", "reasoning_format",
    )
)  # fmt: skip
_SAMPLING_FIELDS = frozenset(
    (
        "temperature", "topP", "top_p", "topK", "top_k", "maxOutputTokens", "max_output_tokens",
        "stopSequences", "stop_sequences", "candidateCount", "candidate_count", "seed", "presencePenalty",
        "frequencyPenalty", "responseLogprobs", "logprobs",
    )
)  # fmt: skip
_NESTED_FIELDS = ("generationConfig", "generation_config", "text", "output_config")
_DEFINITION_KEYS = ("$defs", "definitions")
_MAX_FEW_REFERENCES = 8
_CONTAINER_KEYS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
# Constraints on values: recordings show that they are not rendered.
_CONSTRAINT_KEYS = frozenset(("additionalProperties", "required", "minimum", "maximum", "maxItems"))
_PLAIN_CHOICES = ("auto", "none", "required", "tool", "validated")
# The default is `auto` (documented by all providers); names for the same choice differ.
_CHOICE_NAMES = {"": "auto", "any": "required"}
_SYSTEM_FIELDS = ("instructions", "system", "systemInstruction", "system_instruction")
_EMPTY_VALUES = (b"null", b"[]", b"{}", b'""')


class MessageFeature(IntFlag):
    USER = auto()
    ASSISTANT = auto()
    SYSTEM = auto()
    TOOL = auto()
    OTHER_ROLE = auto()
    NAME = auto()
    SEVERAL_TEXTS = auto()
    TOOL_CALL = auto()
    PARALLEL_TOOL_CALLS = auto()
    TEXT_BESIDE_TOOL_CALL = auto()
    STORED_TOOL_CALL = auto()
    TOOL_RESULT = auto()
    SEVERAL_TOOL_RESULTS = auto()
    TOOL_RESULT_IN_BLOCKS = auto()
    TOOL_ERROR = auto()
    THINKING = auto()
    SEALED_THINKING = auto()
    IMAGE = auto()
    DOCUMENT = auto()
    OTHER_BLOCK = auto()
    TOOL_CALL_BEYOND_ASCII = auto()


_ROLE_FEATURES = {
    "user": MessageFeature.USER,
    "assistant": MessageFeature.ASSISTANT,
    "model": MessageFeature.ASSISTANT,
    "system": MessageFeature.SYSTEM,
    "developer": MessageFeature.SYSTEM,
    "tool": MessageFeature.TOOL,
    "function": MessageFeature.TOOL,
}
_ROLE_BITS = {role: int(feature) for role, feature in _ROLE_FEATURES.items()}
_OTHER_ROLE_BIT = int(MessageFeature.OTHER_ROLE)
_FEATURE_BITS = [
    (int(feature), feature.name.lower().replace("_", " ")) for feature in MessageFeature if feature.name
]


def message_features(message: Message) -> int:
    """Return the features of one message as bits."""
    bits = _ROLE_BITS.get(message.role, _OTHER_ROLE_BIT)
    parts = message.parts
    if len(parts) == 1 and type(parts[0]) is Text and not message.name:  # most messages
        return bits
    if message.name:
        bits |= MessageFeature.NAME
    bits |= _part_features(parts)
    calls = [part for part in parts if type(part) is ToolCall]
    if calls:
        bits |= MessageFeature.TOOL_CALL
        if len(calls) > 1:
            bits |= MessageFeature.PARALLEL_TOOL_CALLS
        if any(type(part) is Text and part.text for part in parts):
            bits |= MessageFeature.TEXT_BESIDE_TOOL_CALL
        if any(call.item_id for call in calls):
            bits |= MessageFeature.STORED_TOOL_CALL
        if not all(call.arguments.isascii() and "\\u" not in call.arguments for call in calls):
            bits |= MessageFeature.TOOL_CALL_BEYOND_ASCII
    results = [part for part in parts if type(part) is ToolResult]
    if results:
        bits |= MessageFeature.TOOL_RESULT
        if len(results) > 1:
            bits |= MessageFeature.SEVERAL_TOOL_RESULTS
        for result in results:
            if result.is_error:
                bits |= MessageFeature.TOOL_ERROR
            if len(result.parts) != 1 or type(result.parts[0]) is not Text:
                bits |= MessageFeature.TOOL_RESULT_IN_BLOCKS | _part_features(result.parts)
    return int(bits)


def _part_features(parts: Iterable[Part]) -> int:
    bits = texts = 0
    for part in parts:
        match part:
            case Text():
                texts += 1
            case Thinking(encrypted_chars=sealed):
                bits |= MessageFeature.SEALED_THINKING if sealed else MessageFeature.THINKING
            case Image():
                bits |= MessageFeature.IMAGE
            case Document():
                bits |= MessageFeature.DOCUMENT
            case Opaque():
                bits |= MessageFeature.OTHER_BLOCK
    return bits | (MessageFeature.SEVERAL_TEXTS if texts > 1 else 0)


def feature_names(bits: int) -> frozenset[str]:
    return frozenset(name for bit, name in _FEATURE_BITS if bits & bit)


def tool_features(tool: Tool) -> frozenset[str]:
    features = {f"tool kind {tool.kind}"}
    if "\n" in tool.description.strip():
        features.add("tool description of several lines")
    if not tool.raw.isascii() or b"\\u" in tool.raw:
        features.add("tool beyond ASCII")
    if tool.kind == "function":
        features |= {f"tool {name}" for name in schema_features(tool.parameters)}
    if b'"strict"' in tool.raw and _is_strict(tool.raw):
        features.add("strict tool")
    return frozenset(features)


def _is_strict(raw: bytes) -> bool:
    tool = parse_object(raw)
    return as_dict(tool.get("function", tool)).get("strict") is True


def request_features(request: Request) -> frozenset[str]:
    """Return the features of a request other than those of its messages and tools."""
    features = set(_field_features(request))
    if request.system:
        features.add("system")
        if len(request.system) > 1:
            features.add("several system blocks")
        if any(type(part) is not Text for part in request.system):
            features.add("system of other blocks")
    if request.tools:
        choice = _CHOICE_NAMES.get(request.tool_choice, request.tool_choice)
        features |= {"tools", f"tool choice {choice if choice in _PLAIN_CHOICES else 'of one function'}"}
    if request.thinking:
        features.add(f"thinking {request.thinking}")
    if request.schema is not None:
        features |= {"schema", *_response_schema_features(request.schema)}
        if request.tools:
            features.add("schema beside tools")
    return frozenset(features)


def _response_schema_features(schema: ResponseSchema) -> Iterator[str]:
    for name in schema_features(schema.schema):
        is_hidden = name.startswith(("default", "keyword default"))  # not rendered (recordings)
        yield "schema constraint" if is_hidden else f"schema {name}"
    if schema.description:
        yield "schema described apart"
    if not (schema.schema.isascii() and schema.name.isascii()):
        yield "schema beyond ASCII"


def _field_features(request: Request) -> Iterator[str]:
    envelope = get_envelope(request)
    body_fields: Mapping[str, Any] = envelope.fields if envelope is not None else parse_fields(request.body)
    for name, raw in body_fields.items():
        if name in _NESTED_FIELDS:
            inner = parse_json(raw)
            keys = as_dict(inner).keys() - _SAMPLING_FIELDS
            yield from (f"field {name}.{key}" for key in keys if key not in ("format", "responseModalities"))
        elif name not in _KNOWN_FIELDS:
            if bytes(raw) not in _EMPTY_VALUES:
                yield f"field {name}"
        elif name in _SYSTEM_FIELDS and bytes(raw) == b'""':
            yield "empty system"


def schema_features(schema: bytes) -> set[str]:
    """Return the keywords of a JSON schema, and whatever else decides how it is rendered."""
    try:
        root = parse_json(schema)
    except MalformedRequest:
        return {"not JSON"}
    features: set[str] = set()
    if references := schema.count(b'"$ref"'):
        if references > _MAX_FEW_REFERENCES:
            features.add("many references")
        if any(b'"$ref"' in to_json(as_dict(root).get(name)) for name in _DEFINITION_KEYS):
            features.add("reference in a definition")
    pending: list[tuple[Any, bool]] = [(root, True)]
    while pending:
        node, is_root = pending.pop()
        if isinstance(node, list):
            pending += [(inner, False) for inner in node]
        if not isinstance(node, dict):
            continue
        for name, inner in node.items():
            if name in _CONSTRAINT_KEYS and not isinstance(inner, dict):
                features.add("constraint")
            elif name in _CONTAINER_KEYS and isinstance(inner, dict):
                pending += [(item, False) for item in inner.values()]
                if name == "properties":
                    if not is_root:
                        features.add("nested object")
                    if not all(str.isidentifier(key) for key in inner):
                        features.add("odd name")
            elif name == "type":
                if isinstance(inner, list):
                    features.add("several types")
            elif name in ("title", "description"):
                if isinstance(inner, str) and "\n" in inner.strip():
                    features.add(f"{name} of several lines")
            elif name in ("enum", "const", "default", "examples"):
                features.add(f"keyword {name}")
                if name == "enum" and not all(isinstance(item, str) for item in as_list(inner)):
                    features.add("enum of other values")
                if name == "default" and not isinstance(inner, str | bool | int | float):
                    features.add("default null" if inner is None else "default of several values")
            else:
                features.add(f"keyword {name}")
                pending.append((inner, False))
                if name == "$ref" and not str(inner).startswith(("#/$defs/", "#/definitions/")):
                    features.add("reference elsewhere")
        if isinstance(node.get("title"), str):
            features.add("title and description" if isinstance(node.get("description"), str) else "title")
    return features
