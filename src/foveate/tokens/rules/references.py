"""What the `$ref`s of a schema stand for."""

from typing import Any

from foveate.wire.body import as_dict, to_json

# How much references may add: so many times the schema, within bounds. A schema that refers to itself has no
# end, and a large definition that is named everywhere makes a quadratic text; people write far less.
_MAX_GROWTH = 16
_MIN_BYTES, _MAX_BYTES = 8 * 1024, 1024 * 1024
_BYTES_PER_REFERENCE = 16
_MAX_CHAINED_REFERENCES = 8


class SchemaReferences:
    """Follows the references of one schema, as long as what they add is in proportion to it."""

    def __init__(self, schema: dict[str, Any], *, one_property_per_line: bool = False) -> None:
        """`in_lines`: every property is written on a line of its own."""
        self.one_property_per_line = one_property_per_line
        self._schema = schema
        self._sizes_bytes: dict[str, int] = {}
        self._remaining_bytes: int | None = None

    def resolve(self, schema: object) -> dict[str, Any]:
        """`schema` with what it refers to in its place, and without it where that would be too much."""
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
