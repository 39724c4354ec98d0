"""Builds a minimal value that conforms to a JSON schema."""

from collections.abc import Callable
from typing import Any

from foveate.formats.json_text.parse import as_dict, as_list, to_json

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
        """Return a value of the schema itself, unless it is too long."""
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
