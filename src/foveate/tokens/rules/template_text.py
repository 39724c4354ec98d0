"""Tools and calls as chat templates write them: JSON in several layouts, TypeScript, DeepSeek's markup."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from foveate.errors import MalformedRequest
from foveate.tokens.rendering import Rendering
from foveate.tokens.rules.joined import roughly
from foveate.tokens.rules.typescript import function_type
from foveate.values import Schema, Tool, ToolCall
from foveate.wire.body import as_record, record, value
from foveate.wire.duplicate_keys import has_unique_keys

# Stands for one control token while a text is put together.
_MARK = "\0"
# Indenting makes a schema three or four times as long; so much longer only one that is nested beyond reason.
_MOST_INDENTED = 32


def tool_text(tool: Tool, layout: str) -> str:
    """A function in one of the `LAYOUTS`."""
    return LAYOUTS[layout](tool)


def schema_text(schema: Schema) -> str:
    """The answer's schema as JSON, with its name."""
    named = {"name": schema.name, "description": schema.description, "schema": value(schema.schema)}
    return json.dumps({key: value for key, value in named.items() if value}, ensure_ascii=False)


def _function(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": record(tool.parameters),
    }
    given = record(tool.raw)
    strict = (as_record(given.get("function")) or given).get("strict")
    return function if strict is None else {**function, "strict": strict}


def _wrapped(tool: Tool) -> dict[str, Any]:
    return {"type": "function", "function": _function(tool)}


def _indented(tool: Tool) -> str:
    whole = _wrapped(tool)
    plain = json.dumps(whole, ensure_ascii=False)
    pieces: list[str] = []
    left_chars = _MOST_INDENTED * len(plain)
    for piece in json.JSONEncoder(ensure_ascii=False, indent=4).iterencode(whole):
        pieces.append(piece)
        left_chars -= len(piece)
        if left_chars < 0:
            return plain
    return "".join(pieces)


def _half(tool: Tool) -> str:
    """Cohere bills about half of a tool's JSON; which half could not be found out."""
    whole = json.dumps(_wrapped(tool), ensure_ascii=False)
    return whole[: len(whole) // 2]


def _typescript(tool: Tool) -> str:
    """gpt-oss: https://github.com/openai/harmony, "Function calling" (read November 2026)."""
    return f"{function_type(tool)};\n\n"


LAYOUTS: dict[str, Callable[[Tool], str]] = {
    "function": lambda tool: json.dumps(_function(tool), ensure_ascii=False),
    "function compact": lambda tool: json.dumps(_function(tool), ensure_ascii=False, separators=(",", ":")),
    "wrapped": lambda tool: json.dumps(_wrapped(tool), ensure_ascii=False),
    "wrapped indented": _indented,
    "half": _half,
    "typescript": _typescript,
}


def dsml(calls: Sequence[ToolCall]) -> Rendering:
    """Calls in the markup of DeepSeek V3.2 and V4, whose `DSML` is one control token.

    From `encoding_dsv32.py` in the models' repositories (read November 2026).
    """
    lines = "".join(line for call in calls for line in _invocation(call))
    pieces = f"\n\n<{_MARK}tool_calls>\n{lines}</{_MARK}tool_calls>".split(_MARK)
    margin = sum(roughly(call.arguments) / 4 for call in calls if _arguments(call) is None)
    return Rendering(texts=tuple(filter(None, pieces)), fixed_tokens=len(pieces) - 1, margin_tokens=margin)


def _invocation(call: ToolCall) -> Iterator[str]:
    yield f'<{_MARK}invoke name="{call.name}">\n'
    given = _arguments(call)
    if given is None:
        yield f"{call.arguments}\n"
        given = {}
    for name, inner in given.items():
        written = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
        kind = "true" if isinstance(inner, str) else "false"
        yield f'<{_MARK}parameter name="{name}" string="{kind}">{written}</{_MARK}parameter>\n'
    yield f"</{_MARK}invoke>\n"


def _arguments(call: ToolCall) -> dict[str, Any] | None:
    """A call's arguments; None if they are not an object or have duplicate keys: a model can write anything."""
    if not has_unique_keys(call.arguments or "{}"):
        return None
    try:
        found = value((call.arguments or "{}").encode("utf-8", "surrogatepass"))
    except MalformedRequest:
        return None
    return {} if found is None else found if isinstance(found, dict) else None
