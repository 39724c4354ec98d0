"""The shape of JSON: the path of every key and the types of its values, without the values."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_TYPES: dict[type[object], str] = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "text",
    type(None): "null",
}


@dataclass
class _Shape:
    """What was observed at one path, over all values."""

    count: int = 0
    types: set[str] = field(default_factory=set)
    keys: "dict[str, _Shape]" = field(default_factory=dict)
    items: "_Shape | None" = None
    objects: int = 0

    def add(self, value: object, path: str, maps: Sequence[str]) -> None:
        self.count += 1
        if isinstance(value, dict):
            self.types.add("object")
            self.objects += 1
            is_map = any(re.fullmatch(pattern, path) for pattern in maps)
            for key, inner in value.items():
                name = "*" if is_map else key
                self.keys.setdefault(name, _Shape()).add(inner, _join_path(path, name), maps)
        elif isinstance(value, list):
            self.types.add("list")
            self.items = self.items or _Shape()
            for inner in value:
                self.items.add(inner, f"{path}[]", maps)
        else:
            self.types.add(_TYPES[type(value)])

    def describe(self, path: str, *, is_optional: bool) -> Iterator[tuple[str, str]]:
        if path and self.types:
            yield path, " or ".join(sorted(self.types)) + (", not always there" if is_optional else "")
        if self.items is not None:
            yield from self.items.describe(f"{path}[]", is_optional=False)
        for key, inner in self.keys.items():
            optional = key != "*" and inner.count < self.objects
            yield from inner.describe(_join_path(path, key), is_optional=optional)


def _join_path(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def describe_shape(documents: Iterable[object], maps: Sequence[str] = ()) -> dict[str, str]:
    """Describe every key of some documents by its path: `requests[].usage.read` is `number`.

    `maps` are patterns of paths whose keys are data, such as names of models; they become `*`.
    """
    shape = _Shape()
    for document in documents:
        shape.add(document, "", maps)
    return dict(shape.describe("", is_optional=False))
