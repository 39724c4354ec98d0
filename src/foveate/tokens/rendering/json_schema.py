"""JSON schemas of tools: resolved references, and the TypeScript type that OpenAI's models see."""

import json
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, parse_object, to_json
from foveate.model import Tool

# Limits on what references may add. A schema that refers to itself is endless, and a large definition that is
# used everywhere makes the text quadratic. Real schemas add far less.
_MAX_GROWTH = 16
_MIN_BYTES, _MAX_BYTES = 8 * 1024, 1024 * 1024
_BYTES_PER_REFERENCE = 16
_MAX_CHAINED_REFERENCES = 8
_MAX_TYPE_DEPTH = 20
_TYPESCRIPT_TYPES = {
    "string": "string",
    "boolean": "boolean",
    "null": "null",
    "number": "number",
    "integer": "number",
}


class SchemaReferences:
    """Resolves the references of one schema, as long as what they add is proportionate."""

    def __init__(self, schema: dict[str, Any], *, one_property_per_line: bool = False) -> None:
        self.one_property_per_line = one_property_per_line
        self._schema = schema
        self._sizes_bytes: dict[str, int] = {}
        self._remaining_bytes: int | None = None

    def resolve(self, schema: object) -> dict[str, Any]:
        """Replace the reference in `schema` by its definition, or drop it if that would add too much."""
        resolved = as_dict(schema)
        for _ in range(_MAX_CHAINED_REFERENCES):
            reference = resolved.get("$ref")
            if not isinstance(reference, str):
                break
            resolved = {**self._find_target(reference), **{k: v for k, v in resolved.items() if k != "$ref"}}
        return resolved

    def _find_target(self, reference: str) -> dict[str, Any]:
        target: Any = self._schema
        for step in filter(None, reference.lstrip("#").split("/")):
            target = as_dict(target).get(step)
        definition = as_dict(target)
        if reference not in self._sizes_bytes:
            self._sizes_bytes[reference] = _BYTES_PER_REFERENCE + len(to_json(definition))
        if self._remaining_bytes is None:
            allowed_bytes = _MAX_GROWTH * len(to_json(self._schema))
            self._remaining_bytes = min(max(allowed_bytes, _MIN_BYTES), _MAX_BYTES)
        self._remaining_bytes -= self._sizes_bytes[reference]
        return definition if self._remaining_bytes >= 0 else {}


def write_function_type(tool: Tool, *, is_2023: bool = False) -> str:
    """Write a tool as `type name = (_: {…}) => any`, with its description as comment and no semicolon.

    `is_2023`: as models of 2023 see it, without titles and with one property per line.
    """
    schema = parse_object(tool.parameters)
    if is_2023:
        schema = as_dict(_without_titles(schema))
    head = _write_comment(tool.description)
    if not schema.get("properties"):
        return f"{head}type {tool.name} = () => any"
    parameters = _write_object(schema, SchemaReferences(schema, one_property_per_line=is_2023), 0)
    return f"{head}type {tool.name} = (_: {_write_comments(schema)}{parameters}) => any"


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


def _write_type(schema: Any, references: SchemaReferences, depth: int) -> str:
    resolved = references.resolve(schema)
    if not resolved or depth > _MAX_TYPE_DEPTH:
        return "any"
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(resolved.get(name), list):
            return " | ".join(_write_type(choice, references, depth + 1) for choice in resolved[name])
    if isinstance(resolved.get("enum"), list):
        return " | ".join(map(_to_json, resolved["enum"]))
    if "const" in resolved:
        return _to_json(resolved["const"])
    kind = resolved.get("type")
    if isinstance(kind, list):
        kinds = dict.fromkeys(map(str, kind))  # a repeated type would double its content
        comments = _write_comments(resolved) if len(kinds) > 1 else ""
        comments = comments and "\n" + comments
        return " | ".join(
            comments + _write_named_type(type_name, resolved, references, depth + 1) for type_name in kinds
        )
    if kind not in ("array", "object") and "properties" in resolved:
        kind = "object"
    return _write_named_type(str(kind), resolved, references, depth)


def _write_named_type(kind: str, schema: dict[str, Any], references: SchemaReferences, depth: int) -> str:
    if kind == "array":
        return _write_array(schema, references, depth)
    if kind == "object":
        return _write_object(schema, references, depth + 1)
    return _TYPESCRIPT_TYPES.get(kind, "any")


def _write_array(schema: dict[str, Any], references: SchemaReferences, depth: int) -> str:
    if not as_dict(schema.get("items")):
        return "any[]"
    items = references.resolve(schema["items"])
    inner = _write_comments(items) + _write_type(items, references, depth + 1)
    if "\n" in inner and not references.one_property_per_line:
        return f"Array<\n{inner}\n>"
    return f"({inner})[]" if " | " in inner and not inner.startswith("{") else f"{inner}[]"


def _write_object(schema: dict[str, Any], references: SchemaReferences, depth: int) -> str:
    """On one line if no property has a comment, otherwise one property per line."""
    properties = as_dict(schema.get("properties"))
    if not properties:
        return "object"
    required = {name for name in as_list(schema.get("required")) if isinstance(name, str)}
    rows: list[tuple[str, str, str]] = []
    for name, subschema in properties.items():
        resolved = references.resolve(subschema)
        optional = "" if name in required else "?"
        declaration = f"{_write_key(name)}{optional}: {_write_type(resolved, references, depth)}"
        rows.append((_write_comments(resolved), declaration, _write_default(resolved)))
    if references.one_property_per_line or any(
        comments or default or "\n" in row for comments, row, default in rows
    ):
        return "{\n" + "".join(f"{comments}{row},{default}\n" for comments, row, default in rows) + "}"
    return "{ " + ", ".join(row for _, row, _ in rows) + " }"


def _write_default(schema: dict[str, Any]) -> str:
    if "default" not in schema:
        return ""
    default = schema["default"]
    bare = isinstance(default, str) and "enum" in schema
    return f" // default: {default if bare else _to_json(default)}"


def _write_key(name: str) -> str:
    return name if name.isidentifier() else _to_json(name)  # as in TypeScript


def _write_comments(schema: dict[str, Any]) -> str:
    """Title and description, with an empty comment line in between."""
    title, description = _write_comment(schema.get("title")), _write_comment(schema.get("description"))
    return f"{title}//\n{description}" if title and description else title + description


def _write_comment(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        return ""
    return "".join(f"// {line.strip()}".rstrip() + "\n" for line in text.strip().split("\n"))


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
