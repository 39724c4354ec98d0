"""A tool's JSON schema as the TypeScript type that OpenAI's models are shown."""

import json
from typing import Any

from foveate.tokens.rules.references import References
from foveate.values import Tool
from foveate.wire.body import as_list, as_record, record

_DEEPEST = 20
_PLAIN = {
    "string": "string",
    "boolean": "boolean",
    "null": "null",
    "number": "number",
    "integer": "number",
}


def function_type(tool: Tool) -> str:
    """A tool as `type name = (_: {…}) => any`, with its description as comment and no semicolon."""
    schema = record(tool.parameters)
    head = _comment(tool.description)
    if not schema.get("properties"):
        return f"{head}type {tool.name} = () => any"
    return f"{head}type {tool.name} = (_: {_comments(schema)}{_object(schema, References(schema), 0)}) => any"


def _type(schema: Any, references: References, depth: int) -> str:
    found = references.resolved(schema)
    if not found or depth > _DEEPEST:
        return "any"
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(found.get(name), list):
            return " | ".join(_type(choice, references, depth + 1) for choice in found[name])
    if isinstance(found.get("enum"), list):
        return " | ".join(map(_json, found["enum"]))
    if "const" in found:
        return _json(found["const"])
    kind = found.get("type")
    if isinstance(kind, list):
        kinds = dict.fromkeys(map(str, kind))  # a kind that stands there twice would double what is in it
        return " | ".join(_named(one, found, references, depth + 1) for one in kinds)
    if kind not in ("array", "object") and "properties" in found:
        kind = "object"
    return _named(str(kind), found, references, depth)


def _named(kind: str, schema: dict[str, Any], references: References, depth: int) -> str:
    if kind == "array":
        return _array(schema, references, depth)
    if kind == "object":
        return _object(schema, references, depth + 1)
    return _PLAIN.get(kind, "any")


def _array(schema: dict[str, Any], references: References, depth: int) -> str:
    if not as_record(schema.get("items")):
        return "any[]"
    inner = _type(schema["items"], references, depth + 1)
    return f"({inner})[]" if " | " in inner and not inner.startswith("{") else f"{inner}[]"


def _object(schema: dict[str, Any], references: References, depth: int) -> str:
    """On one line where no property has anything to say about itself, otherwise a line each."""
    properties = as_record(schema.get("properties"))
    if not properties:
        return "object"
    required = {name for name in as_list(schema.get("required")) if isinstance(name, str)}
    rows: list[tuple[str, str, str]] = []
    for name, given in properties.items():
        found = references.resolved(given)
        optional = "" if name in required else "?"
        rows.append((_comments(found), f"{name}{optional}: {_type(found, references, depth)}", _default(found)))
    if any(comments or default or "\n" in row for comments, row, default in rows):
        return "{\n" + "".join(f"{comments}{row},{default}\n" for comments, row, default in rows) + "}"
    return "{ " + ", ".join(row for _, row, _ in rows) + " }"


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    default = schema["default"]
    bare = isinstance(default, str) and "enum" in schema
    return f" // default: {default if bare else _json(default)}"


def _comments(schema: dict[str, Any]) -> str:
    return "".join(_comment(schema.get(name)) for name in ("title", "description"))


def _comment(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        return ""
    return "// " + "\n".join(line.strip() for line in text.strip().split("\n")) + "\n"


def _json(found: object) -> str:
    return json.dumps(found, ensure_ascii=False)
