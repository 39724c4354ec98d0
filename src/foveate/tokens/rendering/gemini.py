"""Rendering of requests to Gemini, by host and generation of the model.

Derived from 339 recordings of 2024 to 2026. Without tools, 70 of 71 match exactly; with tools 77%, and most of
the others are Gemini 3 requests that send thinking back, whose size only the provider knows. These have no
effect on the count: `toolConfig`, `thinkingConfig`, `responseJsonSchema`, `responseMimeType`, ids, labels.

Images and files follow https://ai.google.dev/gemini-api/docs/tokens, /image-understanding, /document-processing
and /media-resolution (read November 2026). No recording contains media, so these are not certain.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from foveate.errors import MalformedRequest
from foveate.formats.json_text.duplicate_keys import has_unique_keys
from foveate.formats.json_text.parse import parse_json
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
from foveate.tokens.rendering.gemini_functions import (
    FunctionSyntax,
    GemmaTemplateSyntax,
    Json,
    LeafStringSyntax,
    PythonSyntax,
    parse_declaration,
)
from foveate.tokens.rendering.rendering import (
    Rendering,
    estimate_margin_tokens,
    join_renderings,
    render_unknown_block,
)


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
        """A function, or one of Google's tools."""
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
    """Return the rendering, or the raw JSON if it is nested too deeply to be rendered."""
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
