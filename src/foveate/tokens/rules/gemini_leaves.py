"""Gemini up to 2.0, and everything on Vertex AI: each string of a structure is counted on its own.

The rule of the SDK's local tokenizer (google-genai `local_tokenizer`), which leaves the types of a schema out;
the service counts them. From recorded bills of 2024 to 2026: Vertex 69 of 69 requests with tools, 2.0 on AI
Studio 10 of 12; the two others are of early 2025, before types were counted there.
"""

from collections.abc import Iterator

from foveate.tokens.rendering import Rendering
from foveate.tokens.rules.gemini_script import FunctionDeclaration, Json, schema_alternatives
from foveate.wire.body import as_dict, as_list


class LeafStringSyntax:
    """Counts names, descriptions, keys and strings, and a number as one token; all else is free."""

    def render_declaration(self, declaration: FunctionDeclaration) -> Rendering:
        """A declaration. What stands in `parametersJsonSchema` is not counted."""
        schema = {} if declaration.is_json_schema else declaration.parameters
        return Rendering(texts=(declaration.name, declaration.description, *_iter_schema_strings(schema)))

    def render_call(self, name: str, arguments: Json) -> Rendering:
        """A call."""
        return Rendering(texts=(name, *_iter_strings(arguments)), fixed_tokens=_count_numbers(arguments))

    def render_result(self, name: str, response: Json) -> Rendering:
        """An answer."""
        return Rendering(texts=(name, *_iter_strings(response)), fixed_tokens=_count_numbers(response))

    def render_response_schema(self, schema: Json) -> Rendering:
        """The answer's schema, counted like a function's (1 recording: 41 tokens)."""
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
    """How many numbers there are; each of 9 recorded ones was one token, whatever its length."""
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
