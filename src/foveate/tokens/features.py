"""Features of a request that decide how far its count can be trusted.

The evidence table (`evidence`) says which of them recordings of several sources have confirmed. A feature is
anything that could change how a provider renders a request: a role, a kind of block, a keyword of a schema, a
field. Those of messages are bits, since every message has some and a session unites those of thousands.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntFlag, auto
from typing import Any

from foveate.errors import MalformedRequest
from foveate.values import (
    Document,
    Image,
    Message,
    Opaque,
    Part,
    Request,
    Schema,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from foveate.wire.around import around_of
from foveate.wire.body import as_list, as_record, compact, fields, record, value

# Fields that other features stand for, and those that by the providers' documentation (November 2026) only
# concern the answer, its delivery or the account.
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
_SAMPLING = frozenset(
    (
        "temperature", "topP", "top_p", "topK", "top_k", "maxOutputTokens", "max_output_tokens",
        "stopSequences", "stop_sequences", "candidateCount", "candidate_count", "seed", "presencePenalty",
        "frequencyPenalty", "responseLogprobs", "logprobs",
    )
)  # fmt: skip
_NESTED = ("generationConfig", "generation_config", "text", "output_config")
_DEFINITIONS = ("$defs", "definitions")
_FEW_REFERENCES = 8
_CONTAINERS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
# Constraints on values, which recordings showed to be left out of a schema.
_CONSTRAINTS = frozenset(("additionalProperties", "required", "minimum", "maximum", "maxItems"))
_PLAIN_CHOICES = ("auto", "none", "required", "tool", "validated")
# Without a choice providers take `auto` (documented by all), and they call the same thing by several names.
_CHOICES = {"": "auto", "any": "required"}
_SYSTEM_FIELDS = ("instructions", "system", "systemInstruction", "system_instruction")
_NOTHING_SAID = (b"null", b"[]", b"{}", b'""')


class Feature(IntFlag):
    """Features of messages."""

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


_ROLES = {
    "user": Feature.USER,
    "assistant": Feature.ASSISTANT,
    "model": Feature.ASSISTANT,
    "system": Feature.SYSTEM,
    "developer": Feature.SYSTEM,
    "tool": Feature.TOOL,
    "function": Feature.TOOL,
}
_ROLE_BITS = {role: int(feature) for role, feature in _ROLES.items()}
_OTHER_ROLE = int(Feature.OTHER_ROLE)
_BITS = [(int(feature), feature.name.lower().replace("_", " ")) for feature in Feature if feature.name]


def message_features(message: Message) -> int:
    """The features of one message, as bits."""
    bits = _ROLE_BITS.get(message.role, _OTHER_ROLE)
    parts = message.parts
    if len(parts) == 1 and type(parts[0]) is Text and not message.name:  # most messages
        return bits
    if message.name:
        bits |= Feature.NAME
    bits |= _parts_features(parts)
    calls = [part for part in parts if type(part) is ToolCall]
    if calls:
        bits |= Feature.TOOL_CALL
        if len(calls) > 1:
            bits |= Feature.PARALLEL_TOOL_CALLS
        if any(type(part) is Text and part.text for part in parts):
            bits |= Feature.TEXT_BESIDE_TOOL_CALL
        if any(call.item_id for call in calls):
            bits |= Feature.STORED_TOOL_CALL
        if not all(call.arguments.isascii() and "\\u" not in call.arguments for call in calls):
            bits |= Feature.TOOL_CALL_BEYOND_ASCII
    results = [part for part in parts if type(part) is ToolResult]
    if results:
        bits |= Feature.TOOL_RESULT
        if len(results) > 1:
            bits |= Feature.SEVERAL_TOOL_RESULTS
        for result in results:
            if result.is_error:
                bits |= Feature.TOOL_ERROR
            if len(result.parts) != 1 or type(result.parts[0]) is not Text:
                bits |= Feature.TOOL_RESULT_IN_BLOCKS | _parts_features(result.parts)
    return int(bits)


def _parts_features(parts: Iterable[Part]) -> int:
    bits = texts = 0
    for part in parts:
        match part:
            case Text():
                texts += 1
            case Thinking(sealed=sealed):
                bits |= Feature.SEALED_THINKING if sealed else Feature.THINKING
            case Image():
                bits |= Feature.IMAGE
            case Document():
                bits |= Feature.DOCUMENT
            case Opaque():
                bits |= Feature.OTHER_BLOCK
    return bits | (Feature.SEVERAL_TEXTS if texts > 1 else 0)


def feature_names(bits: int) -> frozenset[str]:
    """The names of message features."""
    return frozenset(name for bit, name in _BITS if bits & bit)


def tool_features(tool: Tool) -> frozenset[str]:
    """The features of one tool."""
    found = {f"tool kind {tool.kind}"}
    if "\n" in tool.description.strip():
        found.add("tool description of several lines")
    if not tool.raw.isascii() or b"\\u" in tool.raw:
        found.add("tool beyond ASCII")
    if tool.kind == "function":
        found |= {f"tool {name}" for name in schema_features(tool.parameters)}
    if b'"strict"' in tool.raw and _is_strict(tool.raw):
        found.add("strict tool")
    return frozenset(found)


def _is_strict(raw: bytes) -> bool:
    found = record(raw)
    return as_record(found.get("function", found)).get("strict") is True


def request_features(request: Request) -> frozenset[str]:
    """The features of a request beside its messages and its tools."""
    found = set(_field_features(request))
    if request.system:
        found.add("system")
        if len(request.system) > 1:
            found.add("several system blocks")
        if any(type(part) is not Text for part in request.system):
            found.add("system of other blocks")
    if request.tools:
        choice = _CHOICES.get(request.tool_choice, request.tool_choice)
        found |= {"tools", f"tool choice {choice if choice in _PLAIN_CHOICES else 'of one function'}"}
    if request.thinking:
        found.add(f"thinking {request.thinking}")
    if request.schema is not None:
        found |= {"schema", *_answer_features(request.schema)}
        if request.tools:
            found.add("schema beside tools")
    return frozenset(found)


def _answer_features(schema: Schema) -> Iterator[str]:
    for name in schema_features(schema.schema):
        is_hidden = name.startswith(("default", "keyword default"))  # so recordings showed, as with constraints
        yield "schema constraint" if is_hidden else f"schema {name}"
    if schema.description:
        yield "schema described apart"
    if not (schema.schema.isascii() and schema.name.isascii()):
        yield "schema beyond ASCII"


def _field_features(request: Request) -> Iterator[str]:
    around = around_of(request)
    said: Mapping[str, Any] = around.fields if around is not None else fields(request.body)
    for name, raw in said.items():
        if name in _NESTED:
            inner = value(raw)
            keys = as_record(inner).keys() - _SAMPLING
            yield from (f"field {name}.{key}" for key in keys if key not in ("format", "responseModalities"))
        elif name not in _KNOWN_FIELDS:
            if bytes(raw) not in _NOTHING_SAID:
                yield f"field {name}"
        elif name in _SYSTEM_FIELDS and bytes(raw) == b'""':
            yield "empty system"


def schema_features(schema: bytes) -> set[str]:
    """The keywords of a JSON schema, and what else decides how it is rendered."""
    try:
        root = value(schema)
    except MalformedRequest:
        return {"not JSON"}
    found: set[str] = set()
    if references := schema.count(b'"$ref"'):
        if references > _FEW_REFERENCES:
            found.add("many references")
        if any(b'"$ref"' in compact(as_record(root).get(name)) for name in _DEFINITIONS):
            found.add("reference in a definition")
    left: list[tuple[Any, bool]] = [(root, True)]
    while left:
        at, is_root = left.pop()
        if isinstance(at, list):
            left += [(inner, False) for inner in at]
        if not isinstance(at, dict):
            continue
        for name, inner in at.items():
            if name in _CONSTRAINTS and not isinstance(inner, dict):
                found.add("constraint")
            elif name in _CONTAINERS and isinstance(inner, dict):
                left += [(one, False) for one in inner.values()]
                if name == "properties":
                    if not is_root:
                        found.add("nested object")
                    if not all(str.isidentifier(key) for key in inner):
                        found.add("odd name")
            elif name == "type":
                if isinstance(inner, list):
                    found.add("several types")
            elif name in ("title", "description"):
                if isinstance(inner, str) and "\n" in inner.strip():
                    found.add(f"{name} of several lines")
            elif name in ("enum", "const", "default", "examples"):
                found.add(f"keyword {name}")
                if name == "enum" and not all(isinstance(one, str) for one in as_list(inner)):
                    found.add("enum of other values")
                if name == "default" and not isinstance(inner, str | bool | int | float):
                    found.add("default null" if inner is None else "default of several values")
            else:
                found.add(f"keyword {name}")
                left.append((inner, False))
                if name == "$ref" and not str(inner).startswith(("#/$defs/", "#/definitions/")):
                    found.add("reference elsewhere")
        if isinstance(at.get("title"), str):
            found.add("title and description" if isinstance(at.get("description"), str) else "title")
    return found
