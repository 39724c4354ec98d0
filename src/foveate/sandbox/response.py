"""Generates responses independent of the API format: thinking, text, tool calls and the stop reason.

The input of a tool call is a minimal value that conforms to the tool's JSON schema.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, to_json
from foveate.model import Usage
from foveate.sandbox.script import ScriptedCall, ScriptStep

_MAX_DEPTH = 12
_STRINGS = {
    "date-time": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
    "time": "00:00:00Z",
    "duration": "PT1S",
    "email": "sandbox@example.com",
    "hostname": "example.com",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_WORD = "sandbox"
# Limits for a value: a schema of one line can require gigabytes.
_MAX_CHARS = 4 * 1024
_MAX_ITEMS = 100


def build_example(schema: object) -> Any:
    """Build a value with what `schema` requires and nothing else, limited in size."""
    return _ExampleBuilder(as_dict(schema)).build(as_dict(schema), 0)


class _ExampleBuilder:
    """Builds one value within a budget of characters, which inspecting the schema uses up too."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left_chars = _MAX_CHARS

    def build(self, schema: dict[str, Any], depth: int) -> Any:
        if depth > _MAX_DEPTH or not self._spend(1):  # a recursive or very large schema
            return None
        for keyword in ("const", "default"):
            if keyword in schema:
                return self._literal(schema[keyword])
        for list_keyword in ("enum", "examples"):
            if as_list(schema.get(list_keyword)):
                return self._literal(schema[list_keyword][0])
        if "$ref" in schema:
            return self.build(_resolve_reference(str(schema["$ref"]), self._root), depth + 1)
        for choices in ("anyOf", "oneOf"):
            if as_list(schema.get(choices)):
                return self.build(as_dict(schema[choices][0]), depth + 1)
        parts = as_list(schema.get("allOf"))
        if parts and self._spend(len(parts)):
            merged = {name: value for part in parts for name, value in as_dict(part).items()}
            return self.build(merged, depth + 1)
        kind = schema.get("type")
        return self._build_type(kind[0] if isinstance(kind, list) and kind else kind, schema, depth)

    def _build_type(self, kind: object, schema: dict[str, Any], depth: int) -> Any:
        match kind:
            case "string":
                return self._build_string(schema)
            case "integer" | "number":
                return _build_number(schema)
            case "boolean":
                return True
            case "array":
                items = as_dict(schema.get("items"))
                return self._build_list(
                    lambda: self.build(items, depth + 1), _positive_int(schema.get("minItems"))
                )
            case "null":
                return None
            case _:
                return self._build_object(schema, depth)

    def _build_string(self, schema: dict[str, Any]) -> str:
        word = _STRINGS.get(str(schema.get("format")), _WORD)
        max_length, min_length = (
            schema.get("maxLength"),
            min(_positive_int(schema.get("minLength")), self._left_chars),
        )
        self._spend(max(min_length, len(word)))
        return word.ljust(min_length, ".")[: max_length if isinstance(max_length, int) else None]

    def _build_list(self, make: Callable[[], Any], count: int) -> list[Any]:
        items: list[Any] = []
        while len(items) < min(count, _MAX_ITEMS) and self._left_chars > 0:
            items.append(make())
        return items

    def _build_object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties: dict[str, Any] = as_dict(schema.get("properties"))
        example: dict[str, Any] = {}
        for name in as_list(schema.get("required")):
            if not self._spend(len(str(name))):
                break
            if isinstance(name, str):
                example[name] = self.build(as_dict(properties.get(name)), depth + 1)
        return example

    def _literal(self, value: Any) -> Any:
        return value if self._spend(len(to_json(value))) else None

    def _spend(self, chars: int) -> bool:
        self._left_chars -= chars
        return self._left_chars >= 0


def _build_number(schema: dict[str, Any]) -> int | float:
    step = schema.get("multipleOf")
    step = step if isinstance(step, (int, float)) and step > 0 else 1
    minimum, exclusive_minimum = schema.get("minimum"), schema.get("exclusiveMinimum")
    maximum = schema.get("maximum")
    if isinstance(exclusive_minimum, (int, float)) and not isinstance(exclusive_minimum, bool):
        return exclusive_minimum // step * step + step
    if isinstance(minimum, (int, float)):
        return -(-minimum // step) * step
    return min(step, maximum // step * step) if isinstance(maximum, (int, float)) else step


def _resolve_reference(path: str, root: dict[str, Any]) -> dict[str, Any]:
    target: object = root
    for name in path.removeprefix("#").strip("/").split("/"):
        if name:
            target = as_dict(target).get(name.replace("~1", "/").replace("~0", "~"))
    return as_dict(target)


def _positive_int(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


DEFAULT_TEXT = (
    "This is Foveate's sandbox, not a model. It took your request, counted it, and has nothing to add."
)
DEFAULT_TOOL_INPUT = "This is what a sandbox writes."
DEFAULT_THINKING = "A sandbox does not think, but it can keep the form."

# The size of a chunk in a stream.
_CHUNK_CHARS = 24


class StopReason(StrEnum):
    DONE = "done"
    TOOL_CALL = "called"
    LIMIT = "limit"
    SEQUENCE = "sequence"
    WINDOW = "window"


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    text: str


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallPart:
    """`arguments` is JSON, or free text for a custom tool."""

    name: str
    arguments: str
    is_text: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSpec:
    """Requirements of a request for its response.

    `tools` are the callable tools with their schemas, `text_tools` those that take free text. `forced_tool` is
    the tool that must be called, "" for any. `schema` is the schema of the response text. `limit_tokens` limits
    the output, `window_tokens_left` is what the window has left for it.
    """

    model: str
    is_streaming: bool
    includes_thinking: bool = False
    tools: tuple[tuple[str, dict[str, Any]], ...] = ()
    forced_tool: str | None = None
    text_tools: frozenset[str] = frozenset()
    schema: dict[str, Any] | None = None
    limit_tokens: int | None = None
    window_tokens_left: int | None = None
    stop_sequences: tuple[str, ...] = ()
    last_message_text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedResponse:
    parts: tuple[ThinkingPart | TextPart | ToolCallPart, ...]
    stop: StopReason
    stop_sequence: str | None
    output_tokens: int
    thinking_tokens: int


def generate_response(
    spec: ResponseSpec, step: ScriptStep | None, count: Callable[[str], int]
) -> GeneratedResponse:
    text, sequence = _cut_at_stop_sequence(_response_text(spec, step), spec.stop_sequences)
    calls = [] if sequence is not None else _tool_calls(spec, step)
    planned: list[ThinkingPart | TextPart | ToolCallPart] = []
    if spec.includes_thinking or (step is not None and step.thinking is not None):
        planned.append(ThinkingPart(step.thinking if step and step.thinking is not None else DEFAULT_THINKING))
    planned += [TextPart(text)] if text else []
    planned += calls
    limits = {StopReason.LIMIT: spec.limit_tokens, StopReason.WINDOW: spec.window_tokens_left}
    stop, limit = min(
        ((stop, limit) for stop, limit in limits.items() if limit is not None),
        key=lambda bound: bound[1],
        default=(StopReason.LIMIT, None),
    )
    parts, tokens, is_complete = _cut_to_limit(planned, limit, count)
    thinking_tokens = sum(count(part.text) for part in parts if isinstance(part, ThinkingPart))
    if is_complete:
        stop = (
            StopReason.SEQUENCE if sequence is not None else StopReason.TOOL_CALL if calls else StopReason.DONE
        )
    return GeneratedResponse(
        parts=tuple(parts),
        stop=stop,
        stop_sequence=sequence if stop is StopReason.SEQUENCE else None,
        output_tokens=tokens,
        thinking_tokens=thinking_tokens,
    )


def split_chunks(text: str) -> list[str]:
    return [text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS)]


def _response_text(spec: ResponseSpec, step: ScriptStep | None) -> str:
    if step is not None and (step.text is not None or step.tools):
        return step.text or ""
    if spec.forced_tool is not None:
        return ""
    if spec.schema is not None:
        return json.dumps(build_example(spec.schema))
    return DEFAULT_TEXT


def _tool_calls(spec: ResponseSpec, step: ScriptStep | None) -> list[ToolCallPart]:
    schemas = dict(spec.tools)
    if step is not None and (step.tools or step.text is not None):
        calls = step.tools
    elif spec.forced_tool is not None and spec.tools:
        calls = (ScriptedCall(name=spec.forced_tool or spec.tools[0][0]),)
    else:
        calls = ()
    return [_tool_call(call, spec, schemas) for call in calls]


def _tool_call(call: ScriptedCall, spec: ResponseSpec, schemas: dict[str, dict[str, Any]]) -> ToolCallPart:
    if call.name in spec.text_tools:
        return ToolCallPart(
            call.name, DEFAULT_TOOL_INPUT if call.input is None else json.dumps(call.input), is_text=True
        )
    arguments = build_example(schemas.get(call.name, {})) if call.input is None else call.input
    return ToolCallPart(call.name, json.dumps(arguments))


def _cut_at_stop_sequence(text: str, stop_sequences: tuple[str, ...]) -> tuple[str, str | None]:
    first_stop = min(
        ((text.find(stop), stop) for stop in stop_sequences if stop and stop in text), default=None
    )
    return (text, None) if first_stop is None else (text[: first_stop[0]], first_stop[1])


def _cut_to_limit(
    planned: list[ThinkingPart | TextPart | ToolCallPart], limit: int | None, count: Callable[[str], int]
) -> tuple[list[ThinkingPart | TextPart | ToolCallPart], int, bool]:
    """Return the parts that fit the limit, their tokens, and whether that is all. Tool calls are never cut."""
    parts: list[ThinkingPart | TextPart | ToolCallPart] = []
    tokens = 0
    for part in planned:
        size = count(part.name + part.arguments if isinstance(part, ToolCallPart) else part.text)
        if limit is not None and tokens + size > limit:
            if not isinstance(part, ToolCallPart):
                text = _cut_text(part.text, limit - tokens, count)
                parts += [type(part)(text)] if text.strip() else []
            return parts, limit, False
        parts.append(part)
        tokens += size
    return parts, tokens, True


def _cut_text(text: str, limit: int, count: Callable[[str], int]) -> str:
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle]) <= limit else (low, middle - 1)
    return text[:low]


NewId = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseMetadata:
    """Model, time, usage and ids of a response.

    `charges_cache_writes`: the model charges for cache writes, so the usage has a line for them.
    """

    model: str
    created_at: float
    usage: Usage
    new_id: NewId
    charges_cache_writes: bool = True


def encode_event(data: object, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + to_json(data) + b"\n\n"
