"""Rendering of OpenAI's chat completions and Responses requests.

OpenAI's generations of models differ in the overhead of messages, tools, calls and schemas. They are
reconstructed from recorded chat completions and Responses and their usage (November 2026). There are two
renderings: the older one up to GPT-4.5, and `harmony` with channels from the o-series and GPT-5 on.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from foveate.errors import MalformedRequest
from foveate.formats.json_text.duplicate_keys import has_unique_keys
from foveate.formats.json_text.parse import parse_json, parse_object, to_json
from foveate.model import (
    SYSTEM_ROLES,
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
from foveate.tokens.rendering.images import ImagePricing, PatchImagePricing, TileImagePricing
from foveate.tokens.rendering.json_schema import write_function_type
from foveate.tokens.rendering.rendering import Rendering, join_renderings, render_unknown_block


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLayout:
    """Text around function types. Each type is counted together with the separator before it.

    The pieces begin at a semicolon, since o200k takes `;`, the newlines and the `//` of a comment as one piece.
    """

    opening: str
    before_first: str
    between: str
    closing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIGeneration:
    name: str
    family: str  # its generations differ in image prices, and in how Responses render calls
    vocabulary: str
    images: ImagePricing
    layout: ToolLayout
    reply: int
    message: int = 4
    name_tokens: int = 0  # overhead of a name; 1 by OpenAI's cookbook for cl100k, 0 by recordings for o200k
    assistant: int = 0  # `<|channel|>final` before an assistant's text
    channels: bool = False  # harmony: every call is its own message, tools are never merged
    chat_tools: int
    responses_tools: int
    chat_call: int
    responses_call: int
    stored_call: int  # a call with the id of a stored item
    forced: int | None  # if only one function can be called
    schema_alone: int  # chat: the response schema without system message and tools
    schema_responses: int
    schema_name: bool = False  # chat: the response begins with the name of the schema
    is_2023: bool = False  # tools without titles, one property per line
    keeps_reasoning: bool = False
    known: bool = True


_BRACES_LAYOUT = ToolLayout(
    opening="# Tools\n\n## functions\n\nnamespace functions",
    before_first=" {\n\n",
    between=";\n\n",
    closing=";\n\n} // namespace functions",
)
_NAMESPACE_LAYOUT = ToolLayout(
    opening="## Namespace: functions\n\n### Target channel: commentary\n\n### Tool definitions",
    before_first="\n",
    between=";\n\n",
    closing=";",
)
BEDROCK_TOOLS_TOKENS = 6

_GPT_4O = OpenAIGeneration(
    name="gpt-4o",
    family="gpt-4o",
    vocabulary="o200k_base",
    images=TileImagePricing(85, 170),
    layout=_BRACES_LAYOUT,
    reply=3,
    chat_tools=3,
    responses_tools=-3,
    chat_call=5,
    responses_call=3,
    stored_call=3,
    forced=6,
    schema_alone=6,
    schema_name=True,
    schema_responses=1,
)
_GPT_5 = OpenAIGeneration(
    name="gpt-5",
    family="gpt-5",
    vocabulary="o200k_base",
    images=TileImagePricing(70, 140),
    layout=_NAMESPACE_LAYOUT,
    reply=2,
    assistant=2,
    channels=True,
    chat_tools=82,  # with a preamble about tools
    responses_tools=0,
    chat_call=11,
    responses_call=9,
    stored_call=3,
    forced=None,
    schema_alone=4,
    schema_responses=0,
)
_GPT_5_4 = dataclasses.replace(
    _GPT_5,
    name="gpt-5.4",
    images=PatchImagePricing(2500, 1.0),
    keeps_reasoning=True,
    responses_call=12,
    stored_call=0,
)
_CL100K = "cl100k_base"

# The first pattern that matches the name without its prefix applies.
_GENERATIONS: tuple[tuple[str, OpenAIGeneration], ...] = (
    (
        r"gpt-3\.?5|davinci|babbage|text-embedding-(3|ada)",
        dataclasses.replace(_GPT_4O, name="gpt-3.5", family="gpt-3.5", vocabulary=_CL100K, name_tokens=1),
    ),
    (
        r"gpt-4(-32k)?(-0[36]\d\d|$)",
        dataclasses.replace(
            _GPT_4O, name="gpt-4-0613", family="gpt-4-0613", vocabulary=_CL100K, name_tokens=1, is_2023=True
        ),
    ),
    (
        r"gpt-4(-|$)(?!o)",
        dataclasses.replace(_GPT_4O, name="gpt-4", family="gpt-3.5", vocabulary=_CL100K, name_tokens=1),
    ),
    (r"gpt-4o-mini", dataclasses.replace(_GPT_4O, name="gpt-4o-mini", images=TileImagePricing(2833, 5667))),
    (r"(chatgpt|gpt)-4o", _GPT_4O),
    (
        r"gpt-4\.1-mini",
        dataclasses.replace(
            _GPT_4O, name="gpt-4.1-mini", family="gpt-4.1", images=PatchImagePricing(1536, 1.62)
        ),
    ),
    (
        r"gpt-4\.1-nano",
        dataclasses.replace(
            _GPT_4O, name="gpt-4.1-nano", family="gpt-4.1", images=PatchImagePricing(1536, 2.46)
        ),
    ),
    (r"gpt-4\.1", dataclasses.replace(_GPT_4O, name="gpt-4.1", family="gpt-4.1")),
    (
        r"gpt-4\.5",
        dataclasses.replace(_GPT_4O, name="gpt-4.5", family="gpt-4.5", images=TileImagePricing(75, 150)),
    ),
    (
        r"o1-(mini|preview)",
        dataclasses.replace(_GPT_5, name="o1-mini", family="o1-mini", message=8, assistant=0, known=False),
    ),
    (
        r"o4-mini",
        dataclasses.replace(
            _GPT_5, name="o4-mini", family="o4-mini", assistant=0, images=PatchImagePricing(1536, 1.72)
        ),
    ),
    (
        r"o[134](-|$)|computer-use",
        dataclasses.replace(
            _GPT_5,
            name="o-series",
            family="o-series",
            assistant=0,
            chat_tools=1,
            chat_call=5,
            images=TileImagePricing(75, 150),
        ),
    ),
    (r"gpt-5-mini", dataclasses.replace(_GPT_5, name="gpt-5-mini", images=PatchImagePricing(1536, 1.62))),
    (r"gpt-5-nano", dataclasses.replace(_GPT_5, name="gpt-5-nano", images=PatchImagePricing(1536, 2.46))),
    (r"(gpt-5|chatgpt-5)(-|$|\.[0-3](?!\d))", _GPT_5),
    (r"gpt-5\.[4-6](?!\d)", _GPT_5_4),
    (r"codex|o\d|gpt-([5-9]|\d\d)", dataclasses.replace(_GPT_5_4, name="newer", family="newer", known=False)),
)
_UNKNOWN_GENERATION = dataclasses.replace(_GPT_4O, name="unknown", family="unknown", known=False)


def find_generation(model: str) -> OpenAIGeneration:
    """An unknown model inherits from a related one, and is not exact."""
    name = model.lower().strip().rpartition("/")[2]
    name = re.sub(r"^(us\.|eu\.|ft:)?(openai[.:-])?", "", name)
    for pattern, generation in _GENERATIONS:
        if re.match(pattern, name):
            return generation
    return _UNKNOWN_GENERATION


# Encrypted reasoning, by its length: 9 recorded items, median error 3%, 90th percentile 17%.
_ENCRYPTED_BASE_CHARS, _ENCRYPTED_TOKENS_PER_CHAR, _MIN_ENCRYPTED_TOKENS = 960, 0.183, 12
# Maximum error of the recorded tool sets.
_TOOLS_MARGIN, _TOOLS_MARGIN_TOKENS = 0.02, 2
# What the next generation of models may add to messages, tools and texts.
_UNKNOWN_MODEL_SPREAD, _UNKNOWN_MODEL_TOKENS, _UNKNOWN_MODEL_TOOLS_TOKENS = 0.05, 10, 100
# Keywords of a response schema that the model does not see: `default`, `minimum`, `maximum` and `maxItems` by
# recordings (November 2026), the others because they constrain values in the same way.
_HIDDEN_KEYWORDS = frozenset(
    (
        "additionalProperties", "required", "default", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "minLength", "maxLength",
        "pattern", "format",
    )
)  # fmt: skip
_SCHEMA_MAP_KEYS = ("properties", "$defs", "definitions")
_VALUE_KEYS = ("enum", "const")
# Overhead of parallel calls in one chat message, and of the list of their results.
_PARALLEL_CALLS_TOKENS = 16
# A PDF is rendered as the text and an image of each page (developers.openai.com/docs/guides/pdf-files, November
# 2026). The sizes are not documented; assumed are a page of prose, and A4 at about 124 dpi. No recording
# contains one.
_PAGE_TEXT_TOKENS, _PAGE_PIXELS = 500, (1024, 1448)
_BYTES_PER_PAGE = 50_000
# OpenAI's vocabularies take consecutive punctuation as one piece. So the ends of a string are counted together
# with the punctuation of the list around it.
_TOKENS_PER_ESCAPE = 4.0  # 3 in the recording
_PUNCTUATION = re.compile(r"(?:[^\s\w]|_)*")
_REVERSED_PUNCTUATION = re.compile(r"(?:[^\s\w]|_)* ?")


def build_openai_rules(model: str) -> "OpenAIRules":
    return OpenAIRules(
        find_generation(model),
        on_bedrock="openai." in model,
        is_routed="/" in model and not model.startswith("azure/"),
    )


class OpenAIRules:
    vendor = "openai"
    api_formats = frozenset((Format.CHAT, Format.RESPONSES))

    def __init__(
        self, generation: OpenAIGeneration, *, on_bedrock: bool = False, is_routed: bool = False
    ) -> None:
        """`is_routed`: the name is a router's, which may render requests in its own way."""
        suffix = f"{' on Bedrock' * on_bedrock}{' by a router' * is_routed}"
        self.family, self.generation = generation.family + suffix, generation.name + suffix
        self._generation = generation
        self._on_bedrock = on_bedrock
        self.keeps_thinking = generation.keeps_reasoning
        self.vocabulary = generation.vocabulary
        self.known = generation.known
        self.spread = 0.0 if generation.known else _UNKNOWN_MODEL_SPREAD

    def render_frame(self, request: Request, first: Message | None, last: Message | None) -> Rendering:
        """The beginning of the response, and the response schema."""
        del last
        margin = 0 if self.known else _UNKNOWN_MODEL_TOKENS
        frame = Rendering(fixed_tokens=self._generation.reply, margin_tokens=margin)
        if request.schema is None:
            return frame
        schema_tokens, schema_margin = self._schema_overhead(request, first)
        texts: tuple[str, ...] = (_schema_text(request.schema),)
        if request.format is Format.CHAT and self._generation.schema_name and not request.tools:
            texts += (request.schema.name,)
        return replace(
            frame,
            texts=texts,
            fixed_tokens=frame.fixed_tokens + schema_tokens,
            margin_tokens=margin + schema_margin,
        )

    def render_system(self, request: Request) -> Rendering:
        """The instructions of a Responses request, as one more message."""
        return self._render_parts(request.system, self._generation.message) if request.system else Rendering()

    def render_tool_preamble(
        self, request: Request, first: Message | None, loaded_tools: Sequence[str]
    ) -> Rendering:
        if not request.tools:
            return Rendering()
        generation, layout = self._generation, self._generation.layout
        texts: tuple[str, ...] = (layout.opening, layout.closing)
        if request.format is Format.RESPONSES:
            fixed = generation.responses_tools + (BEDROCK_TOOLS_TOKENS if self._on_bedrock else 0)
            forced = self._forced_function(request)
            if forced and generation.forced is not None:
                texts, fixed = (*texts, f"functions.{forced}"), fixed + generation.forced
        elif generation.channels:
            fixed = generation.chat_tools
        else:
            fixed = generation.chat_tools
            if _is_system(first):  # tools become part of the system message
                fixed += _blank_line_tokens(first) - generation.message
            if generation.forced is not None and (name := _chosen_function(request)):
                texts, fixed = (*texts, f"functions.{name}"), fixed + generation.forced
        margin = _TOOLS_MARGIN_TOKENS + (0 if self.known else _UNKNOWN_MODEL_TOOLS_TOKENS)
        return Rendering(texts=texts, fixed_tokens=fixed, margin_tokens=margin)

    def render_tool(self, tool: Tool, position: int) -> Rendering:
        """A function type with the separator before it. Tools on OpenAI's side are unexplained."""
        if tool.kind not in ("function", "custom"):
            return Rendering(certain=False, unexplained=(f"server tool {tool.kind}",))
        layout = self._generation.layout
        before = layout.between if position else layout.before_first
        text = before + write_function_type(tool, is_2023=self._generation.is_2023)
        return Rendering(texts=(text,), margin_tokens=_TOOLS_MARGIN * len(text) / 4)

    def render_message(self, message: Message) -> Rendering:
        generation = self._generation
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        other_parts = tuple(part for part in message.parts if not isinstance(part, ToolCall))
        if not calls:
            around_tokens = generation.message + (generation.assistant if message.role == "assistant" else 0)
            rendering = self._render_parts(other_parts, around_tokens, role=message.role, name=message.name)
            if message.role == "tool" and not generation.channels:
                text = "".join(rendering.texts)
                margin = count_escape_tokens(text)
                return replace(rendering, list_entry=split_list_entry(text), entry_margin_tokens=margin)
            return rendering
        calls_rendering = self._render_calls(calls)
        if all(isinstance(part, Thinking) or part == Text("") for part in other_parts):
            return calls_rendering
        return join_renderings(
            (self._render_parts(other_parts, generation.message + generation.assistant), calls_rendering)
        )

    def _render_parts(
        self, parts: tuple[Part, ...], around_tokens: int, *, role: str = "", name: str = ""
    ) -> Rendering:
        inner = _unwrap_results(parts)
        if len(inner) == 1 and isinstance(inner[0], Text) and not name:  # fast path for most messages
            texts: tuple[str, ...] = (inner[0].text,)
            return Rendering(texts=texts, fixed_tokens=around_tokens, opens_turn=role == "user")
        if inner and all(isinstance(part, Thinking) for part in inner):
            return _render_thinking(inner)
        generation = self._generation
        text = "".join(part.text for part in inner if isinstance(part, Text))
        text_rendering = Rendering(
            texts=(text, name) if name else (text,),
            fixed_tokens=around_tokens + (generation.name_tokens if name else 0),
            opens_turn=role == "user",
        )
        non_texts = [self._render_non_text(part) for part in inner if not isinstance(part, Text | Thinking)]
        return join_renderings((text_rendering, *non_texts)) if non_texts else text_rendering

    def _render_non_text(self, part: Part) -> Rendering:
        match part:
            case Image():
                return self._render_image(part)
            case Document(source=MediaSource.INLINE, media_type=kind, text=text) if kind.startswith("text/"):
                return Rendering(texts=(text,), certain=False)
            case Document(source=MediaSource.INLINE):
                return self._render_pages(part)
            case Document(source=source, media_type=kind):
                return Rendering(certain=False, unexplained=(f"{kind or 'file'} ({source})",))
            case Opaque():
                return render_unknown_block(part)
            case _:
                return Rendering()

    def _render_image(self, image: Image) -> Rendering:
        pricing = self._generation.images
        size = (image.width, image.height) if image.width and image.height else None
        tokens = pricing.tokens(size, image.detail)
        return Rendering(
            image_tokens=tokens,
            image_margin_tokens=max(0, pricing.max_tokens - tokens),
            certain=False,
            unexplained=() if image.source is MediaSource.INLINE else (f"image ({image.source})",),
        )

    def _render_pages(self, document: Document) -> Rendering:
        """Estimate a file by its pages. It is not known how files other than PDF are rendered."""
        pages = document.pages or max(1, document.size_bytes // _BYTES_PER_PAGE)
        tokens = pages * (_PAGE_TEXT_TOKENS + self._generation.images.tokens(_PAGE_PIXELS, "high"))
        is_pdf = document.media_type == "application/pdf"
        return Rendering(
            texts=(document.text,) if document.text else (),
            fixed_tokens=tokens,
            margin_tokens=tokens,
            certain=False,
            unexplained=() if is_pdf else (document.media_type,),
        )

    def _render_calls(self, calls: list[ToolCall]) -> Rendering:
        """Each call is its own message; in chats of older models, several calls are one combined call."""
        generation = self._generation
        compacted = [_compact_arguments(call.arguments) for call in calls]
        certain = None not in compacted
        arguments = [
            call.arguments if call_arguments is None else call_arguments
            for call, call_arguments in zip(calls, compacted, strict=True)
        ]
        margin = 3 * len(calls)
        if len(calls) > 1 and not generation.channels:
            uses = ",".join(
                f'{{"recipient_name":"functions.{call.name}","parameters":{call_arguments}}}'
                for call, call_arguments in zip(calls, arguments, strict=True)
            )
            return Rendering(
                texts=(f'{{"tool_uses":[{uses}]}}',),
                fixed_tokens=generation.message + _PARALLEL_CALLS_TOKENS,
                margin_tokens=margin,
                certain=certain,
                parallel_calls=len(calls),
            )
        texts: list[str] = []
        fixed = 0
        for call, call_arguments in zip(calls, arguments, strict=True):
            texts += (call.name, f"functions.{call.name}", call_arguments)
            fixed += generation.message - 1 + self._call_tokens(call)
        return Rendering(texts=tuple(texts), fixed_tokens=fixed, margin_tokens=margin, certain=certain)

    def _call_tokens(self, call: ToolCall) -> int:
        generation = self._generation
        if call.format is not Format.RESPONSES:
            return generation.chat_call
        return generation.responses_call + (generation.stored_call if call.item_id else 0)

    def _schema_overhead(self, request: Request, first: Message | None) -> tuple[int, int]:
        """Return the overhead of the response schema, and a margin."""
        generation = self._generation
        if request.format is Format.RESPONSES:
            return generation.schema_responses, 0
        if request.tools:
            return 1, 8
        margin = 8 if generation.channels else 0
        if _is_system(first):
            return (2 if generation.schema_name else 4) + _blank_line_tokens(first), margin
        return generation.schema_alone, margin

    def _forced_function(self, request: Request) -> str:
        if request.tool_choice in ("", "auto", "none"):
            return ""
        if request.tool_choice != "required":
            return request.tool_choice
        if len(request.tools) > 1:
            return ""
        return str(parse_object(request.tools[0]).get("name", ""))


def _chosen_function(request: Request) -> str:
    return "" if request.tool_choice in ("", "auto", "none", "required") else request.tool_choice


def _unwrap_results(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    unwrapped: list[Part] = []
    for part in parts:
        unwrapped += part.parts if isinstance(part, ToolResult) else (part,)
    return tuple(unwrapped)


def _render_thinking(parts: tuple[Part, ...]) -> Rendering:
    encrypted_chars = sum(part.encrypted_chars for part in parts if isinstance(part, Thinking))
    tokens = 0.0
    if encrypted_chars:
        extra_tokens = max(0.0, _ENCRYPTED_TOKENS_PER_CHAR * (encrypted_chars - _ENCRYPTED_BASE_CHARS))
        tokens = _MIN_ENCRYPTED_TOKENS + extra_tokens
    return Rendering(
        thinking_tokens=tokens,
        margin_tokens=20 + 0.08 * encrypted_chars if encrypted_chars else 0,
        certain=not encrypted_chars,
        unexplained=("sealed reasoning",) if encrypted_chars else (),
    )


def _is_system(message: Message | None) -> bool:
    return message is not None and message.role in SYSTEM_ROLES


def _blank_line_tokens(message: Message | None) -> int:
    """Tokens of the blank line after a system text: none after punctuation, with which it merges."""
    texts = [part.text for part in message.parts if isinstance(part, Text)] if message else []
    return 1 if texts and texts[-1][-1:].isalnum() else 0


def _schema_text(schema: ResponseSchema) -> str:
    head = f"# Response Formats\n\n## {schema.name}\n\n"
    parsed = parse_json(schema.schema)
    if not isinstance(parsed, dict):  # on Bedrock the schema is a string with any content
        return head + (parsed if isinstance(parsed, str) else _to_json(parsed))
    described = f"// {schema.description}\n" if schema.description else ""
    return head + described + _to_ascii_json(_visible_schema(parsed))


def _visible_schema(schema: Any) -> Any:
    """Drop the parts of a schema that only constrain sampling."""
    if isinstance(schema, list):
        return [_visible_schema(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: {key: _visible_schema(subschema) for key, subschema in inner.items()}
        if name in _SCHEMA_MAP_KEYS and isinstance(inner, dict)
        else inner
        if name in _VALUE_KEYS
        else _visible_schema(inner)
        for name, inner in schema.items()
        if name not in _HIDDEN_KEYWORDS
    }


def _compact_arguments(arguments: str) -> str | None:
    """Return the arguments without spaces. None if they are not JSON; models write anything."""
    if not has_unique_keys(arguments):
        return None
    try:
        return _to_json(parse_json(arguments.encode()))
    except (MalformedRequest, UnicodeError):
        return None


def _to_ascii_json(data: object) -> str:
    return json.dumps(data, separators=(",", ":"))


def _to_json(data: object) -> str:
    return to_json(data).decode()


def split_list_entry(text: str) -> tuple[str, ...]:
    """Split a result of parallel calls: its text, and its two ends as the first, another and the last list
    entry.

    In chats, models before GPT-5 see parallel calls as one call of `multi_tool_use.parallel`, so the results
    are one message: a JSON list of strings. Of 24 recorded chats of four sources (November 2026), 22 match
    exactly. Results in another order than their calls, which changes a token, are not handled.
    """
    encoded = json.dumps(text, ensure_ascii=False)[1:-1]
    head = _match_start(_PUNCTUATION, encoded)
    if head == encoded:
        return "", f'["{head}",', "", f' "{head}",', "", f' "{head}"]', ""
    rest = encoded[len(head) :]
    tail = _match_start(_REVERSED_PUNCTUATION, rest[::-1])[::-1]
    inner = rest[: len(rest) - len(tail)]
    return inner, f'["{head}', f'{tail}",', f' "{head}', f'{tail}",', f' "{head}', f'{tail}"]'


def count_escape_tokens(text: str) -> float:
    """Tokens that escaping the non-ASCII letters of a result would add. One of four recordings escapes them."""
    if text.isascii():
        return 0.0
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    return _TOKENS_PER_ESCAPE * (units - len(text.encode("ascii", "ignore")))


def _match_start(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.match(text)
    return match[0] if match else ""
