"""Tools and calls as chat templates write them: JSON in several layouts, TypeScript, DeepSeek's markup."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from foveate.errors import MalformedRequest
from foveate.tokens.rendering import Rendering
from foveate.tokens.rules.joined import estimate_margin_tokens
from foveate.tokens.rules.typescript import write_function_type
from foveate.values import ResponseSchema, Tool, ToolCall
from foveate.wire.body import as_dict, parse_json, parse_object
from foveate.wire.duplicate_keys import has_unique_keys

# Stands for one control token while a text is put together.
_CONTROL_TOKEN = "\0"
# Indenting makes a schema three or four times as long; so much longer only one that is nested beyond reason.
_MAX_INDENTED_FACTOR = 32


def write_tool(tool: Tool, layout: str) -> str:
    """A function in one of the `LAYOUTS`."""
    return TOOL_LAYOUTS[layout](tool)


def write_schema(schema: ResponseSchema) -> str:
    """The answer's schema as JSON, with its name."""
    named = {"name": schema.name, "description": schema.description, "schema": parse_json(schema.schema)}
    return json.dumps({key: value for key, value in named.items() if value}, ensure_ascii=False)


def _function_object(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": parse_object(tool.parameters),
    }
    raw = parse_object(tool.raw)
    strict = (as_dict(raw.get("function")) or raw).get("strict")
    return function if strict is None else {**function, "strict": strict}


def _wrapped_function(tool: Tool) -> dict[str, Any]:
    return {"type": "function", "function": _function_object(tool)}


def _write_indented(tool: Tool) -> str:
    function = _wrapped_function(tool)
    plain = json.dumps(function, ensure_ascii=False)
    pieces: list[str] = []
    remaining_chars = _MAX_INDENTED_FACTOR * len(plain)
    for piece in json.JSONEncoder(ensure_ascii=False, indent=4).iterencode(function):
        pieces.append(piece)
        remaining_chars -= len(piece)
        if remaining_chars < 0:
            return plain
    return "".join(pieces)


def _write_half(tool: Tool) -> str:
    """Cohere bills about half of a tool's JSON; which half could not be found out."""
    text = json.dumps(_wrapped_function(tool), ensure_ascii=False)
    return text[: len(text) // 2]


def _write_typescript(tool: Tool) -> str:
    """gpt-oss: https://github.com/openai/harmony, "Function calling" (read November 2026)."""
    return f"{write_function_type(tool)};\n\n"


TOOL_LAYOUTS: dict[str, Callable[[Tool], str]] = {
    "function": lambda tool: json.dumps(_function_object(tool), ensure_ascii=False),
    "function compact": lambda tool: json.dumps(
        _function_object(tool), ensure_ascii=False, separators=(",", ":")
    ),
    "wrapped": lambda tool: json.dumps(_wrapped_function(tool), ensure_ascii=False),
    "wrapped indented": _write_indented,
    "half": _write_half,
    "typescript": _write_typescript,
}


def render_dsml_calls(calls: Sequence[ToolCall]) -> Rendering:
    """Calls in the markup of DeepSeek V3.2 and V4, whose `DSML` is one control token.

    From `encoding_dsv32.py` in the models' repositories (read November 2026).
    """
    lines = "".join(line for call in calls for line in _iter_invocation_lines(call))
    pieces = f"\n\n<{_CONTROL_TOKEN}tool_calls>\n{lines}</{_CONTROL_TOKEN}tool_calls>".split(_CONTROL_TOKEN)
    margin = sum(estimate_margin_tokens(call.arguments) / 4 for call in calls if _parse_arguments(call) is None)
    return Rendering(texts=tuple(filter(None, pieces)), fixed_tokens=len(pieces) - 1, margin_tokens=margin)


def _iter_invocation_lines(call: ToolCall) -> Iterator[str]:
    yield f'<{_CONTROL_TOKEN}invoke name="{call.name}">\n'
    arguments = _parse_arguments(call)
    if arguments is None:
        yield f"{call.arguments}\n"
        arguments = {}
    for name, inner in arguments.items():
        value_text = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
        kind = "true" if isinstance(inner, str) else "false"
        yield f'<{_CONTROL_TOKEN}parameter name="{name}" string="{kind}">{value_text}</{_CONTROL_TOKEN}parameter>\n'
    yield f"</{_CONTROL_TOKEN}invoke>\n"


def _parse_arguments(call: ToolCall) -> dict[str, Any] | None:
    """A call's arguments; None if they are not an object or have duplicate keys: a model can write anything."""
    if not has_unique_keys(call.arguments or "{}"):
        return None
    try:
        parsed = parse_json((call.arguments or "{}").encode("utf-8", "surrogatepass"))
    except MalformedRequest:
        return None
    return {} if parsed is None else parsed if isinstance(parsed, dict) else None
