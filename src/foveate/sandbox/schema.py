"""Validates JSON against a provider's request schema.

A table (`schemas/*.toml`) has schemas by name. A schema gives the type of each field:

- `string`, `integer`, `number`, `boolean`, `object`, `list`, `any`; `base64` is a Base64 string;
- `number 0..2`, `integer 1..`: with a range; `[string] 1..128`: a list of such values, with a length;
- `= low high`: one of these words; `@image`: an object with the schema `image`;
- alternatives separated by ` / `; and `!` at the end: required, and not null.

`"..."` names a schema whose fields are included, `"*"` allows unknown fields. If a schema contains schemas, the
field `tag` (default: `type`) selects one of them, or else `default` does. Names separated by a space share a
schema, and `@block: text image` allows only these.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from foveate.model import Format

_FOLDER = Path(__file__).parent / "schemas"
_TYPE_PATTERN = re.compile(r"(?P<name>\w+)(?: (?P<least>-?\d+)\.\.(?P<most>\d*))?")
_LIST_PATTERN = re.compile(r"\[(?P<inner>.*)\](?: (?P<least>\d+)\.\.(?P<most>\d*))?")
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+(?:=+\s*)?")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "base64": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "list": (list,),
}


@dataclass(frozen=True, slots=True)
class TypeTag:
    """A step of a path that only says which of several schemas applies."""

    name: str


SchemaPath = tuple[str | int | TypeTag, ...]


class Violation(StrEnum):
    MISSING = "missing"
    UNKNOWN = "unknown"
    TYPE = "type"
    VALUE = "value"
    TAG = "tag"
    LOW = "low"
    HIGH = "high"
    SHORT = "short"
    LONG = "long"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaType:
    """A type that a value may have; `item` is the type of a list's items."""

    name: str
    minimum: int | None = None
    maximum: int | None = None
    values: tuple[str, ...] = ()
    schema: str = ""
    tags: tuple[str, ...] = ()
    item: "SchemaType | None" = None

    def fits(self, value: object) -> bool:
        """Return whether a value has the JSON type. Booleans are not numbers."""
        if self.name == "any":
            return True
        return isinstance(value, _TYPES[self.name]) and (self.name == "boolean" or not isinstance(value, bool))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaError:
    """The invalid value `found`, what is wrong with it, and where."""

    path: SchemaPath
    violation: Violation
    found: Any = None
    expected_types: tuple[SchemaType, ...] = ()
    allowed: tuple[str, ...] = ()
    tag: str = ""

    @property
    def expected_type(self) -> SchemaType:
        """The type that came closest."""
        return self.expected_types[-1]


@dataclass(frozen=True, slots=True)
class _FieldSchema:
    types: tuple[SchemaType, ...]
    is_required: bool


@dataclass(frozen=True, slots=True)
class _ObjectSchema:
    fields: Mapping[str, _FieldSchema]
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaggedSchemas:
    """Schemas selected by a tag; a single schema has no tag."""

    tag: str
    default: str | None
    schemas: Mapping[str, _ObjectSchema]


class RequestSchemas:
    def __init__(self, table: Mapping[str, Mapping[str, Any]]) -> None:
        self._schemas = {name: _parse_schemas(rows, table) for name, rows in table.items()}

    def find_errors(self, name: str, value: Mapping[str, Any]) -> Iterator[SchemaError]:
        return self._check_object(value, SchemaType(name="object", schema=name), ())

    def _check_object(
        self, found: Mapping[str, Any], value_type: SchemaType, path: SchemaPath
    ) -> Iterator[SchemaError]:
        schemas = self._schemas[value_type.schema]
        tag_value = ""
        if schemas.tag:
            tag_value = found.get(schemas.tag, schemas.default)
            allowed = value_type.tags or tuple(schemas.schemas)
            if tag_value is None:
                yield SchemaError(path=(*path, schemas.tag), violation=Violation.MISSING)
                return
            if tag_value not in allowed:
                yield SchemaError(
                    path=path, violation=Violation.TAG, found=tag_value, allowed=allowed, tag=schemas.tag
                )
                return
            path = (*path, TypeTag(tag_value)) if schemas.tag == "type" else path
        schema = schemas.schemas[tag_value]
        for name, field in schema.fields.items():
            value = found.get(name)
            if field.is_required and name not in found:
                yield SchemaError(path=(*path, name), violation=Violation.MISSING)
            elif value is not None or field.is_required:
                yield from self._check_value(value, field.types, (*path, name))
        for name in found:
            if name not in schema.fields and name != schemas.tag and not schema.is_open:
                yield SchemaError(path=(*path, name), violation=Violation.UNKNOWN)

    def _check_value(
        self, value: Any, types: tuple[SchemaType, ...], path: SchemaPath
    ) -> Iterator[SchemaError]:
        value_type = next((value_type for value_type in types if value_type.fits(value)), None)
        if value_type is None:
            yield SchemaError(path=path, violation=Violation.TYPE, found=value, expected_types=types)
            return
        violation = _check_bounds(value, value_type)
        if violation is not None:
            yield SchemaError(
                path=path,
                violation=violation,
                found=value,
                expected_types=(value_type,),
                allowed=value_type.values,
            )
        if value_type.item is not None:
            for number, item in enumerate(value):
                yield from self._check_value(item, (value_type.item,), (*path, number))
        if value_type.schema:
            yield from self._check_object(value, value_type, path)


@cache
def schemas_for(api_format: Format) -> RequestSchemas:
    name = {
        Format.ANTHROPIC: "anthropic",
        Format.CHAT: "openai_chat",
        Format.RESPONSES: "openai_responses",
        Format.GEMINI: "gemini",
    }[api_format]
    return RequestSchemas(tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8")))


def is_base64(text: str) -> bool:
    return _BASE64.fullmatch(text) is not None


def _check_bounds(value: Any, value_type: SchemaType) -> Violation | None:
    match value_type.name:
        case "string" if value_type.values and value not in value_type.values:
            return Violation.VALUE
        case "base64" if not is_base64(value):
            return Violation.BASE64
        case "integer" | "number":
            if value_type.minimum is not None and not value >= value_type.minimum:
                return Violation.LOW
            return (
                Violation.HIGH if value_type.maximum is not None and not value <= value_type.maximum else None
            )
        case "list":
            if value_type.minimum is not None and len(value) < value_type.minimum:
                return Violation.SHORT
            return (
                Violation.LONG if value_type.maximum is not None and len(value) > value_type.maximum else None
            )
        case _:
            return None


def _parse_schemas(rows: Mapping[str, Any], table: Mapping[str, Mapping[str, Any]]) -> _TaggedSchemas:
    members = {name: row for name, row in rows.items() if isinstance(row, dict)}
    if not members:
        return _TaggedSchemas(tag="", default=None, schemas={"": _parse_object(rows, table)})
    return _TaggedSchemas(
        tag=rows.get("tag", "type"),
        default=rows.get("default"),
        schemas={tag: _parse_object(row, table) for names, row in members.items() for tag in names.split()},
    )


def _parse_object(row: Mapping[str, str], table: Mapping[str, Mapping[str, Any]]) -> _ObjectSchema:
    base = row.get("...")
    definitions = {**(table[base] if base else {}), **row}
    fields = {
        name: _parse_field(definition) for name, definition in definitions.items() if name not in ("...", "*")
    }
    return _ObjectSchema(fields, is_open="*" in definitions)


def _parse_field(definition: str) -> _FieldSchema:
    types = tuple(_parse_type(part) for part in definition.removesuffix("!").split(" / "))
    return _FieldSchema(types, is_required=definition.endswith("!"))


def _parse_type(definition: str) -> SchemaType:
    if definition.startswith("= "):
        return SchemaType(name="string", values=tuple(definition[2:].split()))
    if definition.startswith("@"):
        schema, _, tags = definition[1:].partition(": ")
        return SchemaType(name="object", schema=schema, tags=tuple(tags.split()))
    match = _LIST_PATTERN.fullmatch(definition) or _TYPE_PATTERN.fullmatch(definition)
    if match is None:
        raise ValueError(f"unknown type of value: {definition}")
    parts = match.groupdict()
    minimum, maximum = (int(parts[bound]) if parts[bound] else None for bound in ("least", "most"))
    item = _parse_type(parts["inner"]) if "inner" in parts else None
    return SchemaType(name=parts.get("name", "list"), minimum=minimum, maximum=maximum, item=item)
