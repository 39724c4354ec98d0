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
    Declaration,
    Json,
    alternatives,
    is_confirmed,
    unconfirmed,
)
from foveate.tokens.rules.joined import joined
from foveate.tokens.rules.references import References
from foveate.wire.body import as_list, as_record, as_text

_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
# Objects nested deeper are `dict[str, Any]` (a recursive schema of 741 tokens shows it).
_MAX_CLASSES_DEEP = 5


class PythonText:
    """Writes functions, calls and answers as Python."""

    def declaration(self, declaration: Declaration) -> Rendering:
        """A declaration as a `def` behind the classes it needs."""
        schema = declaration.parameters
        written = Rendering(texts=(_function(declaration),))
        if is_confirmed(schema, enums=True) and not declaration.response:
            return written
        return joined((written, unconfirmed(json.dumps([schema, declaration.response]))))

    def call(self, name: str, arguments: Json) -> Rendering:
        """A call as a statement that prints its result."""
        given = ", ".join(f"{key} = {_value(inner)}" for key, inner in arguments.items())
        return Rendering(texts=(f"print(default_api.{name}({given}))",))

    def answer(self, name: str, response: Json) -> Rendering:
        """An answer as JSON under the function's name."""
        return Rendering(texts=(json.dumps({f"{name}_response": response}, ensure_ascii=False),))

    def form(self, schema: Json) -> Rendering:
        """The answer's schema: no recording shows it."""
        return unconfirmed(json.dumps(schema))


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _function(declaration: Declaration) -> str:
    writer = _Writer(declaration.parameters)
    fields = writer.fields(declaration.parameters, _camel(declaration.name), 0)
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


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    type: str
    description: str


class _Writer:
    """Writes the types of one declaration, and collects the classes that they name."""

    def __init__(self, schema: Json) -> None:
        self.classes: list[str] = []
        self._references = References(schema)

    def fields(self, schema: Json, owner: str, depth: int) -> list[_Field]:
        """The properties of an object; a class for one of them is named after `owner`."""
        required = {name for name in as_list(schema.get("required")) if isinstance(name, str)}
        return [
            self._field(name, self._references.resolved(inner), owner, depth, name in required)
            for name, inner in as_record(schema.get("properties")).items()
        ]

    def _field(self, name: str, schema: Json, owner: str, depth: int, is_required: bool) -> _Field:
        written = self._type(schema, owner + _camel(name), depth)
        if not is_required:
            default = schema.get("default")
            shown = None if isinstance(default, list | dict) else default
            optional = "" if written.endswith("None") else " | None"
            written = f"{written}{optional} = {shown!r}"
        return _Field(name=name, type=written, description=as_text(schema.get("description")))

    def _type(self, schema: Json, name: str, depth: int) -> str:
        schema = self._references.resolved(schema)
        if choices := alternatives(schema):
            types = [self._type(as_record(choice), name, depth) for choice in choices]
            return " | ".join(dict.fromkeys(types))
        if values := as_list(schema.get("enum")):
            return f"Literal[{', '.join(map(repr, values))}]"
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(_TYPES.get(str(one).lower(), "Any") for one in kind)
        return self._named_type(str(kind).lower(), schema, name, depth)

    def _named_type(self, kind: str, schema: Json, name: str, depth: int) -> str:
        if kind == "array":
            items = schema.get("items")
            return f"list[{self._type(items, name, depth) if isinstance(items, dict) else 'Any'}]"
        if kind == "object":
            if not schema.get("properties") or depth == _MAX_CLASSES_DEEP:
                return "dict[str, Any]"
            self._add_class(schema, name, depth + 1)
            return name
        return _TYPES.get(kind, "Any")

    def _add_class(self, schema: Json, name: str, depth: int) -> None:
        fields = self.fields(schema, name, depth)
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
