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


def function_type(tool: Tool, *, is_2023: bool = False) -> str:
    """A tool as `type name = (_: {…}) => any`, with its description as comment and no semicolon.

    `is_2023`: as models of 2023 are shown it, without titles and with a line for every property.
    """
    schema = record(tool.parameters)
    if is_2023:
        schema = as_record(_without_titles(schema))
    head = _comment(tool.description)
    if not schema.get("properties"):
        return f"{head}type {tool.name} = () => any"
    parameters = _object(schema, References(schema, in_lines=is_2023), 0)
    return f"{head}type {tool.name} = (_: {_comments(schema)}{parameters}) => any"


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_titles(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_titles(inner)
        for name, inner in schema.items()
        if name != "title" or not isinstance(inner, str)
    }


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
        comments = _comments(found) if len(kinds) > 1 else ""
        comments = comments and "\n" + comments
        return " | ".join(comments + _named(one, found, references, depth + 1) for one in kinds)
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
    items = references.resolved(schema["items"])
    inner = _comments(items) + _type(items, references, depth + 1)
    if "\n" in inner and not references.in_lines:
        return f"Array<\n{inner}\n>"
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
        typed = f"{_key(name)}{optional}: {_type(found, references, depth)}"
        rows.append((_comments(found), typed, _default(found)))
    if references.in_lines or any(comments or default or "\n" in row for comments, row, default in rows):
        return "{\n" + "".join(f"{comments}{row},{default}\n" for comments, row, default in rows) + "}"
    return "{ " + ", ".join(row for _, row, _ in rows) + " }"


def _default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    default = schema["default"]
    bare = isinstance(default, str) and "enum" in schema
    return f" // default: {default if bare else _json(default)}"


def _key(name: str) -> str:
    return name if name.isidentifier() else _json(name)  # as in TypeScript


def _comments(schema: dict[str, Any]) -> str:
    """Title and description, with an empty comment line between them if there are both."""
    title, description = _comment(schema.get("title")), _comment(schema.get("description"))
    return f"{title}//\n{description}" if title and description else title + description


def _comment(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        return ""
    return "".join(f"// {line.strip()}".rstrip() + "\n" for line in text.strip().split("\n"))


def _json(found: object) -> str:
    return json.dumps(found, ensure_ascii=False)
