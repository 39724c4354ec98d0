"""Models whose chat template is known or fitted: open models, and those of smaller providers.

The templates are data (`tokens/data/templates.toml`); each entry names its evidence. Tools and calls are
written as JSON in several layouts, as TypeScript, or in DeepSeek's markup.
"""

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from foveate.errors import MalformedRequest
from foveate.formats.json_text.duplicate_keys import has_unique_keys
from foveate.formats.json_text.parse import as_dict, parse_json, parse_object
from foveate.model import (
    SYSTEM_ROLES,
    Document,
    Format,
    Image,
    MediaSource,
    Message,
    Part,
    Request,
    ResponseSchema,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from foveate.tokens.rendering.json_schema import write_function_type
from foveate.tokens.rendering.rendering import (
    Rendering,
    estimate_margin_tokens,
    join_renderings,
    render_unknown_block,
)

_TEMPLATES_FILE = Path(__file__).parents[1] / "data" / "templates.toml"
_MODEL_ROLES = ("assistant", "model")
_THINKING_OFF = ("none", "disabled")
_UNFORCED_CHOICES = ("", "auto", "none")
_THINKING_END = "</think>"
# `<think>` and `</think>` around thinking that is sent back.
_THINKING_TAG_TOKENS = 2
# Suffixes of a model name that do not change the model.
_NAME_SUFFIX = (
    r"(?:[-:@](?:[ae]?\d+(?:\.\d+)?[bkme]|8192|0324|0528|2507|v\d+(?:\.\d+)?(?::\d+)?|0|it|instruct|chat|hf|latest"
    r"|preview|thinking|versatile|instant|turbo|fast|flash|air|free|exacto|nitro|tee|maas|cloud|gguf|mlx|awq|gptq"
    r"|bnb|4bit|8bit|fp8|fp16|bf16|int4|int8|i?q\d(?:_[0-9a-z]+)*))*"
)
_MAX_NAME_CHARS = 256
# Relative margin for the next version of a model, or a derivative of it.
_RELATED_SPREAD = 0.15
# Added to the spread of a template for every count that is not exact.
_MARGIN_TOKENS = 25
# Open vision models use one token for about 28 × 28 pixels (Qwen-VL), or fewer tokens.
_PATCH_PIXELS = 28
# An image of unknown size is assumed to have 900 × 900 pixels. Twice the width and height is common too.
_UNKNOWN_IMAGE_TOKENS = 1024
_UNKNOWN_IMAGE_MARGIN = 3
# Placeholder for one control token while a text is built.
_CONTROL_TOKEN = "\0"
# Indentation makes a schema three or four times as long. Only one that is nested absurdly deep becomes this
# much longer.
_MAX_INDENTED_FACTOR = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """Constants of one chat template.

    `exact`: recordings without tools matched exactly with the model's own vocabulary. `spread`: the relative
    error that 19 of 20 other recordings were within. `thinks_by_default`: thinking is on unless the request
    says otherwise. `strips_thinking`: the text of earlier responses up to `</think>` is dropped.
    `schema_tokens`: the model sees the response schema, with so many tokens of overhead. `evidence` names the
    sources, `as_of` their month.
    """

    name: str
    as_of: str
    evidence: str
    vocabulary: str
    exact: bool = False
    spread: float = 0.15
    bos_tokens: int = 0
    preamble_tokens: int = 0
    responses_tokens: int = 0
    no_system_tokens: int = 0
    schema_tokens: int | None = None
    reply_tokens: int = 0
    thinking_off_tokens: int = 0
    thinks_by_default: bool = True
    system_tokens: int = 0
    user_tokens: int = 0
    assistant_tokens: int = 0
    result_tokens: int = 0
    call_tokens: int = 6
    call_layout: str = "json"
    tool_layout: str = "wrapped"
    tool_tokens: int = 2
    toolbox_tokens: int = 60
    toolbox_forced_tokens: int = 0
    toolbox_with_system_tokens: int = 0
    toolbox_without_system_tokens: int = 0
    strips_thinking: bool = True
    keeps_thinking: bool = False


@dataclass(frozen=True, slots=True)
class _TemplateEntry:
    match: re.Pattern[str]
    hosts: re.Pattern[str]
    template: ChatTemplate


def find_template(model: str, host: str) -> ChatTemplate:
    """Return the template for `model` at `host`: the first entry that matches. The last one always does."""
    name, host_name = model.lower()[:_MAX_NAME_CHARS], host.lower()
    entries = _load_entries()
    matching = (e.template for e in entries if e.match.search(name) and e.hosts.search(host_name))
    return next(matching, entries[-1].template)


@cache
def _load_entries() -> tuple[_TemplateEntry, ...]:
    table = tomllib.loads(_TEMPLATES_FILE.read_text(encoding="utf-8"))
    return tuple(entry for row in table["template"] for entry in _parse_entry(**row))


def _parse_entry(
    *, names: str | None = None, match: str | None = None, hosts: str = "", **constants: Any
) -> Iterator[_TemplateEntry]:
    template = ChatTemplate(**constants)
    hosts_pattern = re.compile(hosts)
    if names is not None:
        yield _TemplateEntry(re.compile(rf"^(?:.*[/.])?(?:{names}){_NAME_SUFFIX}$"), hosts_pattern, template)
    if match is not None:
        yield _TemplateEntry(
            re.compile(match), hosts_pattern, template if names is None else _related_template(template)
        )


def _related_template(template: ChatTemplate) -> ChatTemplate:
    return dataclasses.replace(
        template,
        name=f"kin of {template.name}",
        exact=False,
        spread=max(template.spread, _RELATED_SPREAD),
        evidence=f"none; taken for {template.name}",
    )


class ChatTemplateRules:
    vendor = "open models"
    api_formats = frozenset((Format.CHAT, Format.RESPONSES, Format.BEDROCK))

    def __init__(self, template: ChatTemplate) -> None:
        self.family = self.generation = template.name
        self.template = template
        self.keeps_thinking = template.keeps_thinking

    @property
    def vocabulary(self) -> str:
        return self.template.vocabulary

    def render_frame(self, request: Request, first: Message | None, last: Message | None) -> Rendering:
        template = self.template
        tokens = template.bos_tokens + template.preamble_tokens + template.reply_tokens
        if request.format is Format.RESPONSES:
            tokens += template.responses_tokens
        if not _has_system(request, first):
            tokens += template.no_system_tokens
        if _thinking_is_off(request, template):
            tokens += template.thinking_off_tokens
        margin = 0 if template.exact else _MARGIN_TOKENS
        opening = Rendering(fixed_tokens=tokens, margin_tokens=margin, certain=template.exact)
        return join_renderings((opening, self._render_schema(request.schema))) if request.schema else opening

    def render_system(self, request: Request) -> Rendering:
        if not request.system:
            return Rendering()
        return self.render_message(Message(role="system", parts=request.system))

    def render_tool_preamble(
        self, request: Request, first: Message | None, loaded_tools: Sequence[str]
    ) -> Rendering:
        template = self.template
        if not request.tools or template.tool_layout == "none":
            return Rendering()
        tokens = template.toolbox_tokens
        if request.tool_choice not in _UNFORCED_CHOICES:
            tokens += template.toolbox_forced_tokens
        if _has_system(request, first):
            tokens += template.toolbox_with_system_tokens
        else:
            tokens += template.toolbox_without_system_tokens
        return self._with_margin(Rendering(fixed_tokens=tokens, margin_tokens=_MARGIN_TOKENS))

    def render_tool(self, tool: Tool, position: int) -> Rendering:
        """Tools other than functions run on the provider's side and are unexplained."""
        if tool.kind != "function":
            return Rendering(unexplained=(tool.kind,))
        if self.template.tool_layout == "none":
            return Rendering()
        try:
            text = write_tool(tool, self.template.tool_layout)
        except RecursionError:
            text = tool.raw.decode("utf-8", "replace")
        return self._with_margin(Rendering(texts=(text,), fixed_tokens=self.template.tool_tokens))

    def render_message(self, message: Message) -> Rendering:
        full_text = "".join(part.text for part in message.parts if isinstance(part, Text))
        text = self._visible_text(full_text, message.role)
        calls = tuple(part for part in message.parts if isinstance(part, ToolCall))
        others = [part for part in message.parts if not isinstance(part, Text | ToolCall)]
        rendering = join_renderings(
            (
                Rendering(texts=(text,), fixed_tokens=self._control_tokens(message)),
                self._render_calls(calls),
                *map(self._render_part, others),
            )
        )
        has_results = any(isinstance(part, ToolResult) for part in others)
        rendering = replace(rendering, opens_turn=message.role == "user" and not has_results)
        is_plain = self.template.exact and not calls and not others and text == full_text
        return rendering if is_plain else self._with_margin(rendering)

    def _render_schema(self, schema: ResponseSchema) -> Rendering:
        """Most servers only constrain the response by its schema, and show the model nothing."""
        try:
            text = write_schema(schema)
        except RecursionError:
            text = schema.schema.decode("utf-8", "replace")
        if self.template.schema_tokens is None:
            return Rendering(margin_tokens=estimate_margin_tokens(text) + _MARGIN_TOKENS, certain=False)
        return self._with_margin(Rendering(texts=(text,), fixed_tokens=self.template.schema_tokens))

    def _visible_text(self, text: str, role: str) -> str:
        if role in _MODEL_ROLES and self.template.strips_thinking and _THINKING_END in text:
            return text.rpartition(_THINKING_END)[2].lstrip("\n")
        return text

    def _control_tokens(self, message: Message) -> int:
        """Messages of only thinking or only results have no control tokens of their own."""
        kinds = {type(part) for part in message.parts}
        if message.role in SYSTEM_ROLES:
            return self.template.system_tokens
        if message.role in _MODEL_ROLES:
            return 0 if kinds == {Thinking} else self.template.assistant_tokens
        return 0 if kinds == {ToolResult} else self.template.user_tokens

    def _render_calls(self, calls: tuple[ToolCall, ...]) -> Rendering:
        if calls and self.template.call_layout == "dsml":
            return render_dsml_calls(calls)
        texts = tuple(text for call in calls for text in (call.name, call.arguments))
        return Rendering(texts=texts, fixed_tokens=self.template.call_tokens * len(calls))

    def _render_part(self, part: Part) -> Rendering:
        match part:
            case Thinking(text, _):
                thinking = Rendering(thinking_texts=(text,), thinking_tokens=_THINKING_TAG_TOKENS)
                return thinking if text else Rendering()
            case ToolResult():
                result_text = "".join(inner.text for inner in part.parts if isinstance(inner, Text))
                media = [self._render_part(inner) for inner in part.parts if not isinstance(inner, Text)]
                result = Rendering(texts=(result_text,), fixed_tokens=self.template.result_tokens)
                return join_renderings((result, *media))
            case Image():
                return _render_image(part)
            case Document():
                is_text = part.source is MediaSource.INLINE and part.media_type.startswith("text/")
                hidden = () if is_text else (part.media_type or "file",)
                return Rendering(texts=(part.text,), unexplained=hidden)
            case Text(text):
                return Rendering(texts=(text,))
            case ToolCall():
                return self._render_calls((part,))
            case _:
                return render_unknown_block(part)

    def _with_margin(self, rendering: Rendering) -> Rendering:
        size = rendering.fixed_tokens + sum(map(estimate_margin_tokens, rendering.texts))
        thinking_size = rendering.thinking_tokens + sum(map(estimate_margin_tokens, rendering.thinking_texts))
        return replace(
            rendering,
            margin_tokens=rendering.margin_tokens + self.template.spread * size,
            thinking_margin_tokens=self.template.spread * thinking_size,
            certain=False,
        )


def _has_system(request: Request, first: Message | None) -> bool:
    return bool(request.system) or (first is not None and first.role in SYSTEM_ROLES)


def _thinking_is_off(request: Request, template: ChatTemplate) -> bool:
    if not request.thinking:
        return not template.thinks_by_default
    return request.thinking in _THINKING_OFF


def _render_image(image: Image) -> Rendering:
    """A rough guess, since each model splits images in its own way."""
    if image.source is not MediaSource.INLINE or not image.width or not image.height:
        margin = _UNKNOWN_IMAGE_MARGIN * _UNKNOWN_IMAGE_TOKENS
        hidden = () if image.source is MediaSource.INLINE else ("image",)
        return Rendering(
            image_tokens=_UNKNOWN_IMAGE_TOKENS, image_margin_tokens=margin, certain=False, unexplained=hidden
        )
    tokens = -(-image.width // _PATCH_PIXELS) * -(-image.height // _PATCH_PIXELS)
    return Rendering(image_tokens=tokens, image_margin_tokens=2 * tokens)


def write_tool(tool: Tool, layout: str) -> str:
    return TOOL_LAYOUTS[layout](tool)


def write_schema(schema: ResponseSchema) -> str:
    named = {"name": schema.name, "description": schema.description, "schema": parse_json(schema.schema)}
    return json.dumps({key: value for key, value in named.items() if value}, ensure_ascii=False)


def _function_object(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": parse_object(tool.parameters),
    }
    raw = parse_object(tool.raw)
    strict = (as_dict(raw.get("function")) or raw).get("strict")
    return function if strict is None else {**function, "strict": strict}


def _wrapped_function(tool: Tool) -> dict[str, Any]:
    return {"type": "function", "function": _function_object(tool)}


def _write_indented(tool: Tool) -> str:
    function = _wrapped_function(tool)
    plain = json.dumps(function, ensure_ascii=False)
    pieces: list[str] = []
    remaining_chars = _MAX_INDENTED_FACTOR * len(plain)
    for piece in json.JSONEncoder(ensure_ascii=False, indent=4).iterencode(function):
        pieces.append(piece)
        remaining_chars -= len(piece)
        if remaining_chars < 0:
            return plain
    return "".join(pieces)


def _write_half(tool: Tool) -> str:
    """Cohere charges for about half of a tool's JSON. It is not known which half."""
    text = json.dumps(_wrapped_function(tool), ensure_ascii=False)
    return text[: len(text) // 2]


def _write_typescript(tool: Tool) -> str:
    """gpt-oss: https://github.com/openai/harmony, "Function calling" (read November 2026)."""
    return f"{write_function_type(tool)};\n\n"


TOOL_LAYOUTS: dict[str, Callable[[Tool], str]] = {
    "function": lambda tool: json.dumps(_function_object(tool), ensure_ascii=False),
    "function compact": lambda tool: json.dumps(
        _function_object(tool), ensure_ascii=False, separators=(",", ":")
    ),
    "wrapped": lambda tool: json.dumps(_wrapped_function(tool), ensure_ascii=False),
    "wrapped indented": _write_indented,
    "half": _write_half,
    "typescript": _write_typescript,
}


def render_dsml_calls(calls: Sequence[ToolCall]) -> Rendering:
    """Render calls in the markup of DeepSeek V3.2 and V4, whose `DSML` is one control token.

    From `encoding_dsv32.py` in the models' repositories (read November 2026).
    """
    lines = "".join(line for call in calls for line in _iter_invocation_lines(call))
    pieces = f"\n\n<{_CONTROL_TOKEN}tool_calls>\n{lines}</{_CONTROL_TOKEN}tool_calls>".split(_CONTROL_TOKEN)
    margin = sum(estimate_margin_tokens(call.arguments) / 4 for call in calls if _parse_arguments(call) is None)
    return Rendering(texts=tuple(filter(None, pieces)), fixed_tokens=len(pieces) - 1, margin_tokens=margin)


def _iter_invocation_lines(call: ToolCall) -> Iterator[str]:
    yield f'<{_CONTROL_TOKEN}invoke name="{call.name}">\n'
    arguments = _parse_arguments(call)
    if arguments is None:
        yield f"{call.arguments}\n"
        arguments = {}
    for name, inner in arguments.items():
        value_text = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
        kind = "true" if isinstance(inner, str) else "false"
        tag = f"{_CONTROL_TOKEN}parameter"
        yield f'<{tag} name="{name}" string="{kind}">{value_text}</{tag}>\n'
    yield f"</{_CONTROL_TOKEN}invoke>\n"


def _parse_arguments(call: ToolCall) -> dict[str, Any] | None:
    """Parse a call's arguments. None if they are not an object or have duplicate keys; models write
    anything.
    """
    if not has_unique_keys(call.arguments or "{}"):
        return None
    try:
        parsed = parse_json((call.arguments or "{}").encode("utf-8", "surrogatepass"))
    except MalformedRequest:
        return None
    return {} if parsed is None else parsed if isinstance(parsed, dict) else None
