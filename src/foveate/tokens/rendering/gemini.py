"""Rendering of requests to Gemini, by host and generation of the model.

Derived from 339 recordings of 2024 to 2026. Without tools, 70 of 71 match exactly; with tools 77%, and most of
the others are Gemini 3 requests that send thinking back, whose size only the provider knows. These have no
effect on the count: `toolConfig`, `thinkingConfig`, `responseJsonSchema`, `responseMimeType`, ids, labels.

There are three ways to render functions, calls and results. Which one applies depends on the generation of the
model and on the host. All three are reconstructed from recorded usage.

Images and files follow https://ai.google.dev/gemini-api/docs/tokens, /image-understanding, /document-processing
and /media-resolution (read November 2026). No recording contains media, so these are not certain.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from foveate.errors import MalformedRequest
from foveate.formats.json_text.duplicate_keys import has_unique_keys
from foveate.formats.json_text.parse import as_dict, as_list, as_text, parse_json, parse_object
from foveate.model import (
    Document,
    Format,
    Image,
    MediaSource,
    Message,
    Opaque,
    Part,
    Request,
    ResponseSchema,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from foveate.tokens.rendering.json_schema import SchemaReferences
from foveate.tokens.rendering.rendering import (
    Rendering,
    estimate_margin_tokens,
    join_renderings,
    render_unknown_block,
)

Json = dict[str, Any]

# Schema keys whose rendering is confirmed by recordings. The others are rendered by the best guess.
_CONFIRMED_KEYS = frozenset(
    ("type", "description", "properties", "required", "items", "title", "additionalProperties",
     "$defs", "$ref", "default", "enum")
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionDeclaration:
    """`is_json_schema`: given as `parametersJsonSchema`, not as `parameters`."""

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
    """Each of 9 recorded numbers was one token, whatever its length."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiDialect:
    """Counting rules of one generation on one host.

    `family` names the models. `content_tokens` is the overhead of each content and of the system instruction.
    `counts_thinking`: a signature is charged with the thinking that it stands for, until the next text of the
    user. `knows_turns`: that rule is certain.
    """

    family: str
    vocabulary: str
    content_tokens: int
    syntax: FunctionSyntax
    counts_thinking: bool = False
    knows_turns: bool = True


# Words that only one of the vocabularies contains (" haiku", " meow") tell them apart: 2.0 (3 of 3) and Vertex
# (4 of 4) use gemma2, 2.5 and 3 on AI Studio (17 of 17) gemma3.
_LEAVES_DIALECT = GeminiDialect(
    family="gemini-1.5 and 2.0", vocabulary="gemma2", content_tokens=0, syntax=LeafStringSyntax()
)
_PYTHON_DIALECT = GeminiDialect(
    family="gemini-2.5", vocabulary="gemma3", content_tokens=1, syntax=PythonSyntax()
)
_TEMPLATE_DIALECT = GeminiDialect(
    family="gemini-3",
    vocabulary="gemma3",
    content_tokens=1,
    syntax=GemmaTemplateSyntax(),
    counts_thinking=True,
)
# From 3.6 on, a text right after a function response did not end the turn (2 recordings of 2026).
_TEMPLATE_DIALECT_3_6 = dataclasses.replace(_TEMPLATE_DIALECT, family="gemini-3.6", knows_turns=False)
# A signature is charged with the thinking of its response. Fitted to 60 recorded pairs of signature bytes and
# thinking tokens: half are within 3.7%, nine in ten within 18%.
_THINKING_TOKENS_PER_BYTE = 0.2787
_THINKING_TOKENS_OFFSET = 23.3
_THINKING_TOKENS_PER_BYTE_UPPER = 0.31
_BYTES_PER_SIGNATURE_CHAR = 0.75
# A signature up to this length is a placeholder ("skip_thought_signature_validator") without thinking.
_MAX_PLACEHOLDER_SIGNATURE_CHARS = 48
# Up to 2.5 these add nothing to the prompt (13 of 13 recordings): their results are charged separately, as
# `toolUsePromptTokenCount`. From 3 on, on both hosts, they are part of the prompt and cannot be separated.
_SERVER_TOOLS = frozenset(
    ("googleSearch", "googleSearchRetrieval", "codeExecution", "urlContext", "fileSearch", "googleMaps",
     "computerUse", "enterpriseWebSearch", "retrieval")
)  # fmt: skip
# In other formats only the call names the function; the translator looks it up.
_UNNAMED_RESULT_TOKENS = 4
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_KNOWN_VERSIONS = frozenset(((1, 5), (2, 0), (2, 5), (3, 0), (3, 1), (3, 5), (3, 6)))
# Up to 2.5, an image of at most this size is one tile, and a larger one is split into several.
_SINGLE_TILE_PIXELS = 384
_TILE_TOKENS = 258
_TILE_PIXELS = (256, 768)
_LOW_DETAIL_TOKENS = 64
_SINGLE_TILE_DETAILS = frozenset(("low", "medium"))  # the size does not matter for these
# From 3 on: maximum tokens of an image by resolution.
_IMAGE_TOKENS = {"low": 280, "medium": 560, "high": 1120, "ultra_high": 2240}
_PDF_PAGE_TOKENS = {2: 258, 3: 560}
_MEDIA_MARGIN = 0.1


def build_gemini_rules(model: str, host: str) -> "GeminiRules":
    """Build the rules for `model` at `host`; without a host, for AI Studio."""
    match = _VERSION.search(model.lower())
    major, minor = (int(match[1]), int(match[2] or 0)) if match else (3, 0)
    if "aiplatform" in host.lower() or (major, minor) < (2, 5):
        dialect = _LEAVES_DIALECT
    elif major == 2:
        dialect = _PYTHON_DIALECT
    else:
        dialect = _TEMPLATE_DIALECT if (major, minor) < (3, 6) else _TEMPLATE_DIALECT_3_6
    known = match is not None and (major, minor) in _KNOWN_VERSIONS and "embedding" not in model.lower()
    version = f"gemini-{major}.{minor}" if known else "gemini"
    if "-exp" in model.lower():
        version += " experimental"
    if "aiplatform" in host.lower():
        family = "gemini on Vertex AI"
        version += " on Vertex AI"
    else:
        family = dialect.family if known else "gemini"
    return GeminiRules(dialect, generation=major, known=known, family=family, version=version)


class GeminiRules:
    """Renders requests to Gemini, in its own format or translated from another."""

    vendor = "gemini"
    api_formats = frozenset((Format.GEMINI,))

    keeps_thinking = False

    def __init__(
        self,
        dialect: GeminiDialect,
        *,
        generation: int,
        known: bool = True,
        family: str = "gemini",
        version: str = "gemini",
    ) -> None:
        """`known`: usage of this version is recorded. Other versions inherit, and are not exact."""
        self.family, self.generation = family, version
        self._dialect = dialect
        self._syntax = dialect.syntax
        self._generation = generation
        self.known = known

    @property
    def vocabulary(self) -> str:
        return self._dialect.vocabulary

    def render_frame(self, request: Request, first: Message | None, last: Message | None) -> Rendering:
        """The response schema. The system instruction and the response have no frame."""
        return self._render_schema(request.schema) if request.schema else Rendering()

    def render_system(self, request: Request) -> Rendering:
        if not request.system:
            return Rendering()
        return self._render_content(Message(role="system", parts=request.system))

    def render_tool_preamble(
        self, request: Request, first: Message | None, loaded_tools: Sequence[str]
    ) -> Rendering:
        """Nothing: functions have no preamble."""
        return Rendering()

    def render_tool(self, tool: Tool, position: int) -> Rendering:
        if tool.kind == "function":
            return _render_or_raw(lambda: self._syntax.render_declaration(parse_declaration(tool)), tool.raw)
        known = re.sub(r"_(\w)", lambda m: m[1].upper(), tool.kind) in _SERVER_TOOLS
        billed_apart = known and self._generation < 3
        return Rendering(unexplained=() if billed_apart else (tool.kind,))

    def render_message(self, message: Message) -> Rendering:
        has_text = any(isinstance(part, Text) for part in message.parts)
        return replace(self._render_content(message), opens_turn=message.role == "user" and has_text)

    def _render_content(self, message: Message) -> Rendering:
        content_overhead = Rendering(fixed_tokens=self._dialect.content_tokens)
        return join_renderings(
            (content_overhead, *(self._render_part(part, message.role) for part in message.parts))
        )

    def _render_part(self, part: Part, role: str) -> Rendering:
        match part:
            case Text(text):
                return Rendering(texts=(text,))
            case Thinking(text, sealed):
                # Visible thinking is charged as text. Translators drop the thinking of other formats.
                texts = (text,) if role == "model" else ()
                return join_renderings((Rendering(texts=texts), self._render_signature(sealed)))
            case Image():
                return render_image(part, self._generation)
            case Document():
                return render_document(part, self._generation)
            case ToolCall():
                return self._render_call(part)
            case ToolResult():
                return self._render_result(part)
            case Opaque():
                return render_unknown_block(part)

    def _render_call(self, call: ToolCall) -> Rendering:
        raw = call.arguments.encode("utf-8", "surrogatepass")
        return _render_or_raw(lambda: self._render_parsed_call(call.name, raw), raw)

    def _render_parsed_call(self, name: str, arguments: bytes) -> Rendering:
        parsed = _parse_object(arguments or b"{}")
        if parsed is None:  # a truncated response ends inside a call
            text = replace(_render_raw(arguments), margin_tokens=estimate_margin_tokens(arguments) / 4)
            return join_renderings((self._syntax.render_call(name, {}), text))
        return self._syntax.render_call(name, parsed)

    def _render_result(self, result: ToolResult) -> Rendering:
        text = "".join(part.text for part in result.parts if isinstance(part, Text))
        raw = text.encode("utf-8", "surrogatepass")
        answer = _render_or_raw(
            lambda: self._syntax.render_result(result.name, _parse_object(raw) or {"result": text}), raw
        )
        unnamed = Rendering(fixed_tokens=0 if result.name else _UNNAMED_RESULT_TOKENS)
        media = [self._render_part(part, "") for part in result.parts if not isinstance(part, Text)]
        return join_renderings((answer, unnamed, *media))

    def _render_signature(self, length: int) -> Rendering:
        if not self._dialect.counts_thinking or length <= _MAX_PLACEHOLDER_SIGNATURE_CHARS:
            return Rendering()
        size = length * _BYTES_PER_SIGNATURE_CHAR
        tokens = max(0.0, _THINKING_TOKENS_PER_BYTE * size - _THINKING_TOKENS_OFFSET)
        upper = _THINKING_TOKENS_PER_BYTE_UPPER * size
        return Rendering(
            thinking_tokens=tokens,
            thinking_margin_tokens=upper - tokens + 2,
            certain=self._dialect.knows_turns,
        )

    def _render_schema(self, schema: ResponseSchema) -> Rendering:
        if schema.name == "responseJsonSchema":  # not counted (about 20 recordings of 2.0 and 2.5)
            return Rendering()
        return _render_or_raw(lambda: self._render_parsed_schema(schema.schema), schema.schema)

    def _render_parsed_schema(self, schema: bytes) -> Rendering:
        parsed = _parse_object(schema)
        return _render_raw(schema) if parsed is None else self._syntax.render_response_schema(parsed)


def _parse_object(raw: bytes) -> Json | None:
    """Parse a JSON object; null is an empty one. None for anything else.

    An object with duplicate keys counts as something else: parsing would drop all but the last of them.
    """
    try:
        if not has_unique_keys(raw.decode("utf-8", "surrogatepass")):
            return None
        parsed = parse_json(raw)
    except (MalformedRequest, UnicodeDecodeError):
        return None
    return {} if parsed is None else parsed if isinstance(parsed, dict) else None


def _render_or_raw(render: Callable[[], Rendering], raw: bytes) -> Rendering:
    try:
        return render()
    except RecursionError:
        return _render_raw(raw)


def _render_raw(raw: bytes) -> Rendering:
    return Rendering(
        texts=(raw.decode("utf-8", "replace"),), margin_tokens=estimate_margin_tokens(raw), certain=False
    )


def render_image(image: Image, generation: int) -> Rendering:
    hidden = () if image.source is MediaSource.INLINE else ("image by reference",)
    if generation >= 3:
        return _media_rendering(_IMAGE_TOKENS.get(image.detail, _IMAGE_TOKENS["high"]), hidden)
    has_size = bool(image.width and image.height)
    if not hidden and not has_size and image.detail not in _SINGLE_TILE_DETAILS:
        hidden = ("image whose size cannot be seen",)
    return _media_rendering(_tile_tokens(image), hidden)


def render_document(document: Document, generation: int) -> Rendering:
    """A file: its text if it is text, otherwise its pages if their number is known."""
    if document.media_type.startswith("text/") and document.source is MediaSource.INLINE:
        return Rendering(texts=(document.text,), certain=False)
    kind = document.media_type or "file"
    hidden = () if document.pages is not None else (f"{kind} whose length cannot be seen",)
    return _media_rendering((document.pages or 0) * _PDF_PAGE_TOKENS[min(max(generation, 2), 3)], hidden)


def _tile_tokens(image: Image) -> int:
    if image.detail == "low":
        return _LOW_DETAIL_TOKENS
    width, height = image.width or 0, image.height or 0
    if max(width, height) <= _SINGLE_TILE_PIXELS or image.detail == "medium":
        return _TILE_TOKENS
    min_side, max_side = _TILE_PIXELS
    side = max(min_side, min(max_side, int(min(width, height) / 1.5)))
    return _TILE_TOKENS * -(-width // side) * -(-height // side)


def _media_rendering(tokens: int, unexplained: tuple[str, ...]) -> Rendering:
    return Rendering(
        image_tokens=tokens,
        image_margin_tokens=round(tokens * _MEDIA_MARGIN),
        certain=False,
        unexplained=unexplained,
    )
