"""A value that fits a JSON schema: the least that is required."""

from collections.abc import Callable
from typing import Any

from foveate.wire.body import as_list, as_record, compact

_DEEPEST = 12
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
# No value is longer, whatever its schema wants: a schema of one line can ask for gigabytes.
_MOST_CHARS = 4 * 1024
_MOST_ITEMS = 100


def fitting(schema: object) -> Any:
    """A value that `schema` allows, with what it requires and nothing else, and no more than can be told."""
    return _Fitting(as_record(schema)).value(as_record(schema), 0)


class _Fitting:
    """A value in the making, with what is left for it; what is looked at costs as well as what is said."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left_chars = _MOST_CHARS

    def value(self, schema: dict[str, Any], depth: int) -> Any:
        if depth > _DEEPEST or not self._pays(1):  # a schema that holds itself, or has too much in it
            return None
        for known in ("const", "default"):
            if known in schema:
                return self._given(schema[known])
        for listed in ("enum", "examples"):
            if as_list(schema.get(listed)):
                return self._given(schema[listed][0])
        if "$ref" in schema:
            return self.value(_referred(str(schema["$ref"]), self._root), depth + 1)
        for choices in ("anyOf", "oneOf"):
            if as_list(schema.get(choices)):
                return self.value(as_record(schema[choices][0]), depth + 1)
        parts = as_list(schema.get("allOf"))
        if parts and self._pays(len(parts)):
            merged = {name: value for part in parts for name, value in as_record(part).items()}
            return self.value(merged, depth + 1)
        kind = schema.get("type")
        return self._typed(kind[0] if isinstance(kind, list) and kind else kind, schema, depth)

    def _typed(self, kind: object, schema: dict[str, Any], depth: int) -> Any:
        match kind:
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return _counted(schema)
            case "boolean":
                return True
            case "array":
                items = as_record(schema.get("items"))
                return self._several(lambda: self.value(items, depth + 1), _number(schema.get("minItems")))
            case "null":
                return None
            case _:
                return self._object(schema, depth)

    def _string(self, schema: dict[str, Any]) -> str:
        word = _STRINGS.get(str(schema.get("format")), _WORD)
        longest, wanted = schema.get("maxLength"), min(_number(schema.get("minLength")), self._left_chars)
        self._pays(max(wanted, len(word)))
        return word.ljust(wanted, ".")[: longest if isinstance(longest, int) else None]

    def _several(self, make: Callable[[], Any], wanted: int) -> list[Any]:
        made: list[Any] = []
        while len(made) < min(wanted, _MOST_ITEMS) and self._left_chars > 0:
            made.append(make())
        return made

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties: dict[str, Any] = as_record(schema.get("properties"))
        found: dict[str, Any] = {}
        for name in as_list(schema.get("required")):
            if not self._pays(len(str(name))):
                break
            if isinstance(name, str):
                found[name] = self.value(as_record(properties.get(name)), depth + 1)
        return found

    def _given(self, value: Any) -> Any:
        """A value of the schema's own, unless it is too long."""
        return value if self._pays(len(compact(value))) else None

    def _pays(self, chars: int) -> bool:
        self._left_chars -= chars
        return self._left_chars >= 0


def _counted(schema: dict[str, Any]) -> int | float:
    step = schema.get("multipleOf")
    step = step if isinstance(step, (int, float)) and step > 0 else 1
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most = schema.get("maximum")
    if isinstance(above, (int, float)) and not isinstance(above, bool):
        return above // step * step + step
    if isinstance(least, (int, float)):
        return -(-least // step) * step
    return min(step, most // step * step) if isinstance(most, (int, float)) else step


def _referred(path: str, root: dict[str, Any]) -> dict[str, Any]:
    found: object = root
    for name in path.removeprefix("#").strip("/").split("/"):
        if name:
            found = as_record(found).get(name.replace("~1", "/").replace("~0", "~"))
    return as_record(found)


def _number(found: object) -> int:
    return found if isinstance(found, int) and found > 0 else 0
