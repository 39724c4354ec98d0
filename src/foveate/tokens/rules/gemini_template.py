"""Gemini 3 on AI Studio: functions are written as in Gemma 4's public chat template.

Found from recorded bills of late 2025 and 2026: all 56 requests with tools and without thoughts to the token,
and 53 of 55 with thoughts where those were known. Without a recording, and so not certain: enums, alternatives,
formats, a function's `response`. With `~` for one control token and keys in alphabetical order:

    ~declaration:name{description:~…~,parameters:{properties:{city:{type:~STRING~}},type:~OBJECT~}}~
    ~call:name{city:~Paris~,days:3}~
    ~response:name{sunny:true}~
"""

import json

from foveate.tokens.rendering import Rendering
from foveate.tokens.rules.gemini_script import (
    Declaration,
    Json,
    is_confirmed,
    unconfirmed,
)
from foveate.tokens.rules.joined import joined
from foveate.tokens.rules.references import References
from foveate.wire.body import as_list, as_record

# Stands for one control token while a text is put together; no JSON holds it unescaped.
_MARK = "\0"
_UNWRITTEN = frozenset(
    ("additionalProperties", "additional_properties", "title", "$defs", "definitions", "$schema",
     "propertyOrdering", "property_ordering")
)  # fmt: skip
_ALTERNATIVES = frozenset(("anyOf", "any_of", "oneOf"))
_MAX_DEPTH = 6


class GemmaTemplate:
    """Writes functions, calls and answers between control tokens."""

    def declaration(self, declaration: Declaration) -> Rendering:
        """A declaration; what is empty is left out."""
        fields = []
        if declaration.description:
            fields.append("description:" + _value(declaration.description))
        for key, schema in (
            ("parameters", declaration.parameters),
            ("response", declaration.response),
        ):
            if schema:
                fields.append(f"{key}:{_schema(schema, References(schema), 0)}")
        written = _marked(f"declaration:{declaration.name}{{{','.join(fields)}}}")
        if is_confirmed(declaration.parameters, enums=False) and not declaration.response:
            return written
        return joined((written, unconfirmed(json.dumps(declaration.parameters))))

    def call(self, name: str, arguments: Json) -> Rendering:
        """A call."""
        return _marked(f"call:{name}{_value(arguments)}")

    def answer(self, name: str, response: Json) -> Rendering:
        """An answer."""
        return _marked(f"response:{name}{_value(response)}")

    def form(self, schema: Json) -> Rendering:
        """The answer's schema: no recording shows it."""
        return unconfirmed(json.dumps(schema))


def _marked(text: str) -> Rendering:
    pieces = f"{_MARK}{text}{_MARK}".split(_MARK)
    return Rendering(texts=tuple(filter(None, pieces)), fixed_tokens=len(pieces) - 1)


def _value(value: object) -> str:
    match value:
        case str():
            return f"{_MARK}{value}{_MARK}"
        case dict():
            return "{" + ",".join(f"{key}:{_value(value[key])}" for key in sorted(value)) + "}"
        case list():
            return "[" + ",".join(map(_value, value)) + "]"
        case True | False | None:
            return json.dumps(value)
        case _:
            return repr(value)


def _schema(schema: object, references: References, depth: int) -> str:
    if depth > _MAX_DEPTH:
        return "{}"
    found = references.resolved(schema)
    fields = (_field(key, found, references, depth + 1) for key in sorted(found))
    return "{" + ",".join(filter(None, fields)) + "}"


def _field(key: str, schema: Json, references: References, depth: int) -> str:
    """One key of a schema, or nothing where it is not written."""
    value = schema[key]
    if key in _UNWRITTEN or (key in ("description", "properties") and not value):
        return ""
    if key == "properties":
        inner = as_record(value)
        written = (f"{name}:{_schema(inner[name], references, depth)}" for name in sorted(inner))
        return "properties:{" + ",".join(written) + "}"
    if key == "items" and isinstance(value, dict):
        return "items:" + _schema(value, references, depth)
    if key in _ALTERNATIVES:
        choices = (_schema(choice, references, depth) for choice in as_list(value))
        return "anyOf:[" + ",".join(choices) + "]"
    if key == "type" and isinstance(value, str):
        return "type:" + _value(value.upper())
    return f"{key}:{_value(value)}"
