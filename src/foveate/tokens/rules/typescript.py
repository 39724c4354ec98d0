"""A tool's JSON schema as the TypeScript type that OpenAI's models are shown."""

import json
from typing import Any

import msgspec

from foveate.values import Tool

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
    schema = _record(msgspec.json.decode(tool.parameters))
    head = _comment(tool.description)
    if not schema.get("properties"):
        return f"{head}type {tool.name} = () => any"
    return f"{head}type {tool.name} = (_: {_comments(schema)}{_object(schema, schema, 0)}) => any"


def _type(schema: Any, root: dict[str, Any], depth: int) -> str:
    found = _resolved(schema, root)
    if not found or depth > _DEEPEST:
        return "any"
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(found.get(name), list):
            return " | ".join(_type(choice, root, depth + 1) for choice in found[name])
    if isinstance(found.get("enum"), list):
        return " | ".join(map(_json, found["enum"]))
    if "const" in found:
        return _json(found["const"])
    kind = found.get("type")
    if isinstance(kind, list):
        return " | ".join(_type({**found, "type": one}, root, depth + 1) for one in kind)
    if kind == "array":
        return _array(found, root, depth)
    if kind == "object" or "properties" in found:
        return _object(found, root, depth + 1)
    return _PLAIN.get(str(kind), "any")


def _array(schema: dict[str, Any], root: dict[str, Any], depth: int) -> str:
    if not _record(schema.get("items")):
        return "any[]"
    inner = _type(schema["items"], root, depth + 1)
    return f"({inner})[]" if " | " in inner and not inner.startswith("{") else f"{inner}[]"


def _object(schema: dict[str, Any], root: dict[str, Any], depth: int) -> str:
    """On one line where no property has anything to say about itself, otherwise a line each."""
    properties = _record(schema.get("properties"))
    if not properties:
        return "object"
    required = schema.get("required") or ()
    rows: list[tuple[str, str, str]] = []
    for name, given in properties.items():
        found = _resolved(given, root)
        optional = "" if name in required else "?"
        rows.append((_comments(found), f"{name}{optional}: {_type(given, root, depth)}", _default(found)))
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


def _resolved(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """`schema` with its reference followed, up to eight in a row."""
    found = _record(schema)
    for _ in range(8):
        reference = found.get("$ref")
        if not isinstance(reference, str):
            break
        target: Any = root
        for step in reference.lstrip("#/").split("/"):
            target = _record(target).get(step)
        found = {**_record(target), **{k: v for k, v in found.items() if k != "$ref"}}
    return found


def _record(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _json(found: object) -> str:
    return json.dumps(found, ensure_ascii=False)
