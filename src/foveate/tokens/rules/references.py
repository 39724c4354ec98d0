"""What the `$ref`s of a schema stand for."""

from typing import Any

from foveate.wire.body import as_record, compact

# How much references may add: so many times the schema, within bounds. A schema that refers to itself has no
# end, and a large definition that is named everywhere makes a quadratic text; people write far less.
_MOST_GROWTH = 16
_LEAST_BYTES, _MOST_BYTES = 8 * 1024, 1024 * 1024
_EACH_BYTES = 16
_MOST_IN_A_ROW = 8


class References:
    """Follows the references of one schema, as long as what they add is in proportion to it."""

    def __init__(self, schema: dict[str, Any], *, in_lines: bool = False) -> None:
        """`in_lines`: every property is written on a line of its own."""
        self.in_lines = in_lines
        self._schema = schema
        self._sizes_bytes: dict[str, int] = {}
        self._left_bytes: int | None = None

    def resolved(self, schema: object) -> dict[str, Any]:
        """`schema` with what it refers to in its place, and without it where that would be too much."""
        found = as_record(schema)
        for _ in range(_MOST_IN_A_ROW):
            reference = found.get("$ref")
            if not isinstance(reference, str):
                break
            found = {**self._target(reference), **{k: v for k, v in found.items() if k != "$ref"}}
        return found

    def _target(self, reference: str) -> dict[str, Any]:
        target: Any = self._schema
        for step in filter(None, reference.lstrip("#").split("/")):
            target = as_record(target).get(step)
        found = as_record(target)
        if reference not in self._sizes_bytes:
            self._sizes_bytes[reference] = _EACH_BYTES + len(compact(found))
        if self._left_bytes is None:
            wanted = _MOST_GROWTH * len(compact(self._schema))
            self._left_bytes = min(max(wanted, _LEAST_BYTES), _MOST_BYTES)
        self._left_bytes -= self._sizes_bytes[reference]
        return found if self._left_bytes >= 0 else {}
