"""Gemini 2.5 on AI Studio: functions are written as Python that declares and calls them.

Found from recorded bills of 2025 and 2026: 71 of 74 requests with tools to the token. Without a recording, and
so not certain: alternatives, defaults, formats. Not written: `additionalProperties`, bounds, patterns, titles.

    @dataclasses.dataclass(kw_only=True)      one for each nested object, innermost first
    class SearchFilter:
      \"\"\"Description.

Attributes:
        year: Its description.
      \"\"\"
      year: int
    def search(
        filter: SearchFilter,
        limit: int | None = None,
    ) -> dict:
      \"\"\"Description.

Args:
        filter: Its description.
        limit: Its description.
      \"\"\"
"""

import json
from dataclasses import dataclass

from foveate.tokens.rendering import Rendering
from foveate.tokens.rules.gemini_script import (
    FunctionDeclaration,
    Json,
    is_confirmed,
    schema_alternatives,
    unconfirmed_margin,
)
from foveate.tokens.rules.joined import join_renderings
from foveate.tokens.rules.references import SchemaReferences
from foveate.wire.body import as_dict, as_list, as_text

_PYTHON_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
# Objects nested deeper are `dict[str, Any]` (a recursive schema of 741 tokens shows it).
_MAX_CLASS_DEPTH = 5


class PythonSyntax:
    """Writes functions, calls and answers as Python."""

    def render_declaration(self, declaration: FunctionDeclaration) -> Rendering:
        """A declaration as a `def` behind the classes it needs."""
        schema = declaration.parameters
        rendering = Rendering(texts=(_write_function(declaration),))
        if is_confirmed(schema, enums=True) and not declaration.response:
            return rendering
        return join_renderings((rendering, unconfirmed_margin(json.dumps([schema, declaration.response]))))

    def render_call(self, name: str, arguments: Json) -> Rendering:
        """A call as a statement that prints its result."""
        written_arguments = ", ".join(f"{key} = {_python_literal(inner)}" for key, inner in arguments.items())
        return Rendering(texts=(f"print(default_api.{name}({written_arguments}))",))

    def render_result(self, name: str, response: Json) -> Rendering:
        """An answer as JSON under the function's name."""
        return Rendering(texts=(json.dumps({f"{name}_response": response}, ensure_ascii=False),))

    def render_response_schema(self, schema: Json) -> Rendering:
        """The answer's schema: no recording shows it."""
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
    """Writes the types of one declaration, and collects the classes that they name."""

    def __init__(self, schema: Json) -> None:
        self.classes: list[str] = []
        self._references = SchemaReferences(schema)

    def write_fields(self, schema: Json, owner: str, depth: int) -> list[_PythonField]:
        """The properties of an object; a class for one of them is named after `owner`."""
        required = {name for name in as_list(schema.get("required")) if isinstance(name, str)}
        return [
            self._write_field(name, self._references.resolve(inner), owner, depth, name in required)
            for name, inner in as_dict(schema.get("properties")).items()
        ]

    def _write_field(self, name: str, schema: Json, owner: str, depth: int, is_required: bool) -> _PythonField:
        python_type = self._write_type(schema, owner + _to_camel_case(name), depth)
        if not is_required:
            default = schema.get("default")
            shown = None if isinstance(default, list | dict) else default
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
