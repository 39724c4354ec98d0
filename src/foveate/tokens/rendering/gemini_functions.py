"""Gemini's three ways to render functions, calls and results in a prompt.

Which one applies depends on the generation of the model and on the host (`gemini`). All three are reconstructed
from recorded usage.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from foveate.formats.json_text.parse import as_dict, as_list, as_text, parse_object
from foveate.model import Tool
from foveate.tokens.rendering.json_schema import SchemaReferences
from foveate.tokens.rendering.rendering import Rendering, estimate_margin_tokens, join_renderings

Json = dict[str, Any]

# Schema keys whose rendering is confirmed by recordings. The others are rendered by the best guess.
_CONFIRMED_KEYS = frozenset(
    ("type", "description", "properties", "required", "items", "title", "additionalProperties",
     "$defs", "$ref", "default", "enum")
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionDeclaration:
    """A function declaration. `is_json_schema`: given as `parametersJsonSchema`, not as `parameters`."""

    name: str
    description: str
    parameters: Json
    response: Json
    is_json_schema: bool


class FunctionSyntax(Protocol):
    def render_declaration(self, declaration: FunctionDeclaration) -> Rendering: ...

    def render_call(self, name: str, arguments: Json) -> Rendering: ...

    def render_result(self, name: str, response: Json) -> Rendering: ...

    def render_response_schema(self, schema: Json) -> Rendering: ...


def parse_declaration(tool: Tool) -> FunctionDeclaration:
    """Convert a tool of any format."""
    raw = parse_object(tool.raw)
    response = raw.get("response") or raw.get("responseJsonSchema")
    return FunctionDeclaration(
        name=tool.name,
        description=tool.description,
        parameters=parse_object(tool.parameters),
        response=as_dict(response),
        is_json_schema="parametersJsonSchema" in raw or "parameters_json_schema" in raw,
    )


def schema_alternatives(schema: Json) -> list[Any]:
    """The subschemas of `anyOf` or `oneOf`."""
    for key in ("anyOf", "any_of", "oneOf"):
        if isinstance(schema.get(key), list):
            return list(schema[key])
    return []


def is_confirmed(schema: object, *, enums: bool) -> bool:
    """Return whether recordings confirm how each part of `schema` is rendered. `enums`: including enums."""
    if not isinstance(schema, dict):
        return True
    if schema.keys() - _CONFIRMED_KEYS or isinstance(schema.get("type"), list):
        return False
    if schema.get("default") is not None or ("enum" in schema and not enums):
        return False
    inner = [schema.get("items"), *as_dict(schema.get("properties")).values()]
    inner += as_dict(schema.get("$defs")).values()
    return all(is_confirmed(entry, enums=enums) for entry in inner)


def unconfirmed_margin(text: str) -> Rendering:
    """Margin for a part whose rendering no recording confirms."""
    return Rendering(margin_tokens=2 + estimate_margin_tokens(text), certain=False)


class LeafStringSyntax:
    """Gemini up to 2.0, and everything on Vertex AI: each string of a structure is counted on its own.

    Names, descriptions, keys and strings are counted, and a number as one token; nothing else is. The rule of
    the SDK's local tokenizer (google-genai `local_tokenizer`), except that types in schemas count too.
    Recordings of 2024 to 2026: 69 of 69 requests with tools match on Vertex, 10 of 12 on AI Studio (2.0). The
    other two are from early 2025, before types were counted there.
    """

    def render_declaration(self, declaration: FunctionDeclaration) -> Rendering:
        """The contents of `parametersJsonSchema` are not counted."""
        schema = {} if declaration.is_json_schema else declaration.parameters
        return Rendering(texts=(declaration.name, declaration.description, *_iter_schema_strings(schema)))

    def render_call(self, name: str, arguments: Json) -> Rendering:
        return Rendering(texts=(name, *_iter_strings(arguments)), fixed_tokens=_count_numbers(arguments))

    def render_result(self, name: str, response: Json) -> Rendering:
        return Rendering(texts=(name, *_iter_strings(response)), fixed_tokens=_count_numbers(response))

    def render_response_schema(self, schema: Json) -> Rendering:
        """Counted like the schema of a function (1 recording of 41 tokens)."""
        return Rendering(texts=tuple(_iter_schema_strings(schema)))


def _iter_strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _iter_strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_strings(inner)


def _count_numbers(value: object) -> int:
    """Count numbers. Each of 9 recorded ones was one token, whatever its length."""
    if isinstance(value, dict):
        return sum(map(_count_numbers, value.values()))
    if isinstance(value, list):
        return sum(map(_count_numbers, value))
    return int(isinstance(value, int | float) and not isinstance(value, bool))


def _iter_schema_strings(schema: Json) -> Iterator[str]:
    for key in ("type", "format", "description"):
        if isinstance(schema.get(key), str):
            yield schema[key]
    for key in ("enum", "required", "propertyOrdering", "property_ordering"):
        yield from (item for item in as_list(schema.get(key)) if isinstance(item, str))
    if items := as_dict(schema.get("items")):
        yield from _iter_schema_strings(items)
    for name, inner in as_dict(schema.get("properties")).items():
        yield name
        yield from _iter_schema_strings(as_dict(inner))
    for inner in schema_alternatives(schema):
        yield from _iter_schema_strings(as_dict(inner))


_PYTHON_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
# Deeper objects are `dict[str, Any]` (a recording of a recursive schema with 741 tokens).
_MAX_CLASS_DEPTH = 5


# Functions in Gemini 2.5's prompts look like this:
#
#     @dataclasses.dataclass(kw_only=True)      one for each nested object, innermost first
#     class SearchFilter:
#       """Description.
#
#       Attributes:
#         year: Its description.
#       """
#       year: int
#     def search(
#         filter: SearchFilter,
#         limit: int | None = None,
#     ) -> dict:
#       """Description.
#
#       Args:
#         filter: Its description.
#         limit: Its description.
#       """
class PythonSyntax:
    """Gemini 2.5 on AI Studio: functions are written as Python declarations and calls.

    Recordings of 2025 and 2026: 71 of 74 requests with tools match exactly. Not recorded, and so not certain:
    alternatives, defaults, formats. Not written: `additionalProperties`, bounds, patterns, titles.
    """

    def render_declaration(self, declaration: FunctionDeclaration) -> Rendering:
        """A `def` after the classes that it needs."""
        schema = declaration.parameters
        rendering = Rendering(texts=(_write_function(declaration),))
        if is_confirmed(schema, enums=True) and not declaration.response:
            return rendering
        return join_renderings((rendering, unconfirmed_margin(json.dumps([schema, declaration.response]))))

    def render_call(self, name: str, arguments: Json) -> Rendering:
        """A statement that prints the result of the call."""
        written_arguments = ", ".join(f"{key} = {_python_literal(inner)}" for key, inner in arguments.items())
        return Rendering(texts=(f"print(default_api.{name}({written_arguments}))",))

    def render_result(self, name: str, response: Json) -> Rendering:
        """JSON under the name of the function."""
        return Rendering(texts=(json.dumps({f"{name}_response": response}, ensure_ascii=False),))

    def render_response_schema(self, schema: Json) -> Rendering:
        """A margin only: no recording contains one."""
        return unconfirmed_margin(json.dumps(schema))


def _python_literal(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _write_function(declaration: FunctionDeclaration) -> str:
    writer = _PythonTypeWriter(declaration.parameters)
    fields = writer.write_fields(declaration.parameters, _to_camel_case(declaration.name), 0)
    return "".join(
        (
            *writer.classes,
            f"def {declaration.name}(\n",
            *(f"    {field.name}: {field.type},\n" for field in fields),
            f') -> dict:\n  """{declaration.description}\n\n  Args:\n',
            *(f"    {field.name}: {field.description}\n" for field in fields),
            '  """\n',
        )
    )


def _to_camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PythonField:
    name: str
    type: str
    description: str


class _PythonTypeWriter:
    def __init__(self, schema: Json) -> None:
        self.classes: list[str] = []
        self._references = SchemaReferences(schema)

    def write_fields(self, schema: Json, owner: str, depth: int) -> list[_PythonField]:
        """Write the properties of an object. Classes for them are named after `owner`."""
        required = {name for name in as_list(schema.get("required")) if isinstance(name, str)}
        return [
            self._write_field(name, self._references.resolve(inner), owner, depth, name in required)
            for name, inner in as_dict(schema.get("properties")).items()
        ]

    def _write_field(self, name: str, schema: Json, owner: str, depth: int, is_required: bool) -> _PythonField:
        python_type = self._write_type(schema, owner + _to_camel_case(name), depth)
        if not is_required:
            default = schema.get("default")
            shown = None if isinstance(default, (list, dict)) else default
            optional = "" if python_type.endswith("None") else " | None"
            python_type = f"{python_type}{optional} = {shown!r}"
        return _PythonField(name=name, type=python_type, description=as_text(schema.get("description")))

    def _write_type(self, schema: Json, name: str, depth: int) -> str:
        schema = self._references.resolve(schema)
        if choices := schema_alternatives(schema):
            types = [self._write_type(as_dict(choice), name, depth) for choice in choices]
            return " | ".join(dict.fromkeys(types))
        if values := as_list(schema.get("enum")):
            return f"Literal[{', '.join(map(repr, values))}]"
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(_PYTHON_TYPES.get(str(name_of_type).lower(), "Any") for name_of_type in kind)
        return self._write_named_type(str(kind).lower(), schema, name, depth)

    def _write_named_type(self, kind: str, schema: Json, name: str, depth: int) -> str:
        if kind == "array":
            items = schema.get("items")
            return f"list[{self._write_type(items, name, depth) if isinstance(items, dict) else 'Any'}]"
        if kind == "object":
            if not schema.get("properties") or depth == _MAX_CLASS_DEPTH:
                return "dict[str, Any]"
            self._add_class(schema, name, depth + 1)
            return name
        return _PYTHON_TYPES.get(kind, "Any")

    def _add_class(self, schema: Json, name: str, depth: int) -> None:
        fields = self.write_fields(schema, name, depth)
        self.classes.append(
            "".join(
                (
                    "@dataclasses.dataclass(kw_only=True)\n",
                    f'class {name}:\n  """{as_text(schema.get("description"))}\n\n  Attributes:\n',
                    *(f"    {field.name}: {field.description}\n" for field in fields),
                    '  """\n',
                    *(f"  {field.name}: {field.type}\n" for field in fields),
                )
            )
        )


# Placeholder for one control token while a text is built. JSON never contains it unescaped.
_CONTROL_TOKEN = "\0"
_OMITTED_KEYS = frozenset(
    ("additionalProperties", "additional_properties", "title", "$defs", "definitions", "$schema",
     "propertyOrdering", "property_ordering")
)  # fmt: skip
_ALTERNATIVE_KEYS = frozenset(("anyOf", "any_of", "oneOf"))
_MAX_SCHEMA_DEPTH = 6


class GemmaTemplateSyntax:
    """Gemini 3 on AI Studio: functions are written as in Gemma 4's public chat template.

    Recordings of late 2025 and 2026: all 56 requests with tools and without thinking match exactly, and 53 of
    55 with thinking of known size. Not recorded, and so not certain: enums, alternatives, formats, a function's
    `response`. With `~` for one control token and keys in alphabetical order:

        ~declaration:name{description:~…~,parameters:{properties:{city:{type:~STRING~}},type:~OBJECT~}}~
        ~call:name{city:~Paris~,days:3}~
        ~response:name{sunny:true}~
    """

    def render_declaration(self, declaration: FunctionDeclaration) -> Rendering:
        """Empty parts are left out."""
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
        return _render_with_control_tokens(f"call:{name}{_write_template_value(arguments)}")

    def render_result(self, name: str, response: Json) -> Rendering:
        return _render_with_control_tokens(f"response:{name}{_write_template_value(response)}")

    def render_response_schema(self, schema: Json) -> Rendering:
        """A margin only: no recording contains one."""
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
    """Write one key of a schema. Empty if the template omits it."""
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
