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
    FunctionDeclaration,
    Json,
    is_confirmed,
    unconfirmed_margin,
)
from foveate.tokens.rules.joined import join_renderings
from foveate.tokens.rules.references import SchemaReferences
from foveate.wire.body import as_dict, as_list

# Stands for one control token while a text is put together; no JSON holds it unescaped.
_CONTROL_TOKEN = "\0"
_OMITTED_KEYS = frozenset(
    ("additionalProperties", "additional_properties", "title", "$defs", "definitions", "$schema",
     "propertyOrdering", "property_ordering")
)  # fmt: skip
_ALTERNATIVE_KEYS = frozenset(("anyOf", "any_of", "oneOf"))
_MAX_SCHEMA_DEPTH = 6


class GemmaTemplateSyntax:
    """Writes functions, calls and answers between control tokens."""

    def render_declaration(self, declaration: FunctionDeclaration) -> Rendering:
        """A declaration; what is empty is left out."""
        fields = []
        if declaration.description:
            fields.append("description:" + _write_template_value(declaration.description))
        for key, schema in (
            ("parameters", declaration.parameters),
            ("response", declaration.response),
        ):
            if schema:
                fields.append(f"{key}:{_write_template_schema(schema, SchemaReferences(schema), 0)}")
        rendering = _render_with_control_tokens(f"declaration:{declaration.name}{{{','.join(fields)}}}")
        if is_confirmed(declaration.parameters, enums=False) and not declaration.response:
            return rendering
        return join_renderings((rendering, unconfirmed_margin(json.dumps(declaration.parameters))))

    def render_call(self, name: str, arguments: Json) -> Rendering:
        """A call."""
        return _render_with_control_tokens(f"call:{name}{_write_template_value(arguments)}")

    def render_result(self, name: str, response: Json) -> Rendering:
        """An answer."""
        return _render_with_control_tokens(f"response:{name}{_write_template_value(response)}")

    def render_response_schema(self, schema: Json) -> Rendering:
        """The answer's schema: no recording shows it."""
        return unconfirmed_margin(json.dumps(schema))


def _render_with_control_tokens(text: str) -> Rendering:
    pieces = f"{_CONTROL_TOKEN}{text}{_CONTROL_TOKEN}".split(_CONTROL_TOKEN)
    return Rendering(texts=tuple(filter(None, pieces)), fixed_tokens=len(pieces) - 1)


def _write_template_value(value: object) -> str:
    match value:
        case str():
            return f"{_CONTROL_TOKEN}{value}{_CONTROL_TOKEN}"
        case dict():
            return "{" + ",".join(f"{key}:{_write_template_value(value[key])}" for key in sorted(value)) + "}"
        case list():
            return "[" + ",".join(map(_write_template_value, value)) + "]"
        case True | False | None:
            return json.dumps(value)
        case _:
            return repr(value)


def _write_template_schema(schema: object, references: SchemaReferences, depth: int) -> str:
    if depth > _MAX_SCHEMA_DEPTH:
        return "{}"
    resolved = references.resolve(schema)
    fields = (_write_template_field(key, resolved, references, depth + 1) for key in sorted(resolved))
    return "{" + ",".join(filter(None, fields)) + "}"


def _write_template_field(key: str, schema: Json, references: SchemaReferences, depth: int) -> str:
    """One key of a schema, or nothing where it is not written."""
    value = schema[key]
    if key in _OMITTED_KEYS or (key in ("description", "properties") and not value):
        return ""
    if key == "properties":
        inner = as_dict(value)
        written = (f"{name}:{_write_template_schema(inner[name], references, depth)}" for name in sorted(inner))
        return "properties:{" + ",".join(written) + "}"
    if key == "items" and isinstance(value, dict):
        return "items:" + _write_template_schema(value, references, depth)
    if key in _ALTERNATIVE_KEYS:
        choices = (_write_template_schema(choice, references, depth) for choice in as_list(value))
        return "anyOf:[" + ",".join(choices) + "]"
    if key == "type" and isinstance(value, str):
        return "type:" + _write_template_value(value.upper())
    return f"{key}:{_write_template_value(value)}"
