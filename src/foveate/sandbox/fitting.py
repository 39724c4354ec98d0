"""A value that fits a JSON schema: the least that is required."""

from typing import Any

from foveate.wire.body import as_list, as_record

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


def fitting(schema: object) -> Any:
    """A value that `schema` allows, with what it requires and nothing else."""
    return _value(as_record(schema), as_record(schema), 0)


def _value(schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
    if depth > _DEEPEST:  # a schema that holds itself
        return None
    for known in ("const", "default"):
        if known in schema:
            return schema[known]
    for listed in ("enum", "examples"):
        if as_list(schema.get(listed)):
            return schema[listed][0]
    if "$ref" in schema:
        return _value(_referred(str(schema["$ref"]), root), root, depth + 1)
    for choices in ("anyOf", "oneOf"):
        if as_list(schema.get(choices)):
            return _value(as_record(schema[choices][0]), root, depth + 1)
    if as_list(schema.get("allOf")):
        merged = {name: value for part in schema["allOf"] for name, value in as_record(part).items()}
        return _value(merged, root, depth + 1)
    kind = schema.get("type")
    return _typed(kind[0] if isinstance(kind, list) and kind else kind, schema, root, depth)


def _typed(kind: object, schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
    match kind:
        case "string":
            word = _STRINGS.get(str(schema.get("format")), _WORD)
            longest = schema.get("maxLength")
            return word.ljust(_number(schema.get("minLength")), ".")[
                : longest if isinstance(longest, int) else None
            ]
        case "integer" | "number":
            return _counted(schema)
        case "boolean":
            return True
        case "array":
            items = as_record(schema.get("items"))
            return [_value(items, root, depth + 1) for _ in range(min(_number(schema.get("minItems")), 100))]
        case "null":
            return None
        case _:
            properties = as_record(schema.get("properties"))
            required = [name for name in as_list(schema.get("required")) if isinstance(name, str)]
            return {name: _value(as_record(properties.get(name)), root, depth + 1) for name in required}


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
