"""What Gemini's three ways to write down functions, calls and answers have in common."""

from dataclasses import dataclass
from typing import Any, Protocol

from foveate.tokens.rendering import Rendering
from foveate.tokens.rules.joined import estimate_margin_tokens
from foveate.values import Tool
from foveate.wire.body import as_dict, parse_object

Json = dict[str, Any]

# Keys of a schema whose rendering the recordings confirm. Everything else is rendered as well as it is known.
_CONFIRMED_KEYS = frozenset(
    ("type", "description", "properties", "required", "items", "title", "additionalProperties",
     "$defs", "$ref", "default", "enum")
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionDeclaration:
    """A function as it was declared. `is_json_schema`: in `parametersJsonSchema`, not in `parameters`."""

    name: str
    description: str
    parameters: Json
    response: Json
    is_json_schema: bool


class FunctionSyntax(Protocol):
    """One way to write down what is not plain text."""

    def render_declaration(self, declaration: FunctionDeclaration) -> Rendering:
        """A function that the model may call."""

    def render_call(self, name: str, arguments: Json) -> Rendering:
        """A call of it."""

    def render_result(self, name: str, response: Json) -> Rendering:
        """What it answered."""

    def render_response_schema(self, schema: Json) -> Rendering:
        """The `responseSchema` that the model's answer is held to."""


def parse_declaration(tool: Tool) -> FunctionDeclaration:
    """A tool as a declaration, whichever format it came in."""
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
    """What a schema may be one of."""
    for key in ("anyOf", "any_of", "oneOf"):
        if isinstance(schema.get(key), list):
            return list(schema[key])
    return []


def is_confirmed(schema: object, *, enums: bool) -> bool:
    """Whether recordings show how each part of `schema` is rendered; `enums`: those too."""
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
    """Room for what may be rendered in a way that no recording shows."""
    return Rendering(margin_tokens=2 + estimate_margin_tokens(text), certain=False)
