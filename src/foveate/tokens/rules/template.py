"""Models whose chat template is known or was fitted: open ones, and those of the smaller providers.

The templates are data (`tokens/data/templates.toml`), each entry with what it rests on.
"""

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from foveate.tokens.rendering import Rendering
from foveate.tokens.rules.joined import joined, roughly
from foveate.tokens.rules.opaque import unknown
from foveate.tokens.rules.template_text import dsml, schema_text, tool_text
from foveate.values import (
    Document,
    Format,
    Image,
    Message,
    Part,
    Request,
    Schema,
    Source,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)

_TABLE = Path(__file__).parents[1] / "data" / "templates.toml"
_SYSTEM_ROLES = ("system", "developer")
_MODEL_ROLES = ("assistant", "model")
_THINKING_OFF = ("none", "disabled")
_UNFORCED = ("", "auto", "none")
_THOUGHT_END = "</think>"
# Around thoughts that are sent back: `<think>` and `</think>`.
_THOUGHT_TOKENS = 2
# What may stand behind the name of a model without making it another one.
_BEHIND = (
    r"(?:[-:@](?:[ae]?\d+(?:\.\d+)?[bkme]|8192|0324|0528|2507|v\d+(?:\.\d+)?(?::\d+)?|0|it|instruct|chat|hf|latest"
    r"|preview|thinking|versatile|instant|turbo|fast|flash|air|free|exacto|nitro|tee|maas|cloud|gguf|mlx|awq|gptq"
    r"|bnb|4bit|8bit|fp8|fp16|bf16|int4|int8|i?q\d(?:_[0-9a-z]+)*))*"
)
_LONGEST_NAME_CHARS = 256
# How far the next version of a model, or what somebody has made of one, may be from it.
_KIN_SPREAD = 0.15
# Beside a template's spread, for every count that is not exact.
_MARGIN_TOKENS = 25
# Open vision models make one token of about 28 × 28 pixels (Qwen-VL) or less.
_PATCH_PIXELS = 28
# A picture whose size cannot be seen is taken for 900 × 900 pixels; twice as wide and high is common too.
_UNSEEN_IMAGE_TOKENS = 1024
_UNSEEN_IMAGE_MARGIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The constants of one chat template.

    `exact`: recordings without tools were met to the token with the model's own vocabulary. `spread` is how
    far, as a share, nineteen of twenty others were off. `thinks_unasked`: reasoning is on where the request
    says nothing. `cuts_thoughts`: what an earlier answer has in front of `</think>` is dropped.
    `schema_tokens`: a schema for the answer is shown to the model, in so many tokens more. `evidence` is what
    it all rests on, and `as_of` the month in which that was so.
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
    thinks_unasked: bool = True
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
    cuts_thoughts: bool = True
    keeps_thoughts: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    match: re.Pattern[str]
    hosts: re.Pattern[str]
    template: Template


def template_for(model: str, host: str) -> Template:
    """The template for `model` at `host`: the first entry of the table that fits; the last always does."""
    name, where = model.lower()[:_LONGEST_NAME_CHARS], host.lower()
    entries = _entries()
    fitting = (e.template for e in entries if e.match.search(name) and e.hosts.search(where))
    return next(fitting, entries[-1].template)


@cache
def _entries() -> tuple[_Entry, ...]:
    table = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(entry for found in table["template"] for entry in _read(**found))


def _read(
    *, names: str | None = None, match: str | None = None, hosts: str = "", **constants: Any
) -> Iterator[_Entry]:
    """One entry for the models that are known by name, and one for what else matches."""
    template = Template(**constants)
    where = re.compile(hosts)
    if names is not None:
        yield _Entry(re.compile(rf"^(?:.*[/.])?(?:{names}){_BEHIND}$"), where, template)
    if match is not None:
        yield _Entry(re.compile(match), where, template if names is None else _kin_of(template))


def _kin_of(template: Template) -> Template:
    return dataclasses.replace(
        template,
        name=f"kin of {template.name}",
        exact=False,
        spread=max(template.spread, _KIN_SPREAD),
        evidence=f"none; taken for {template.name}",
    )


class TemplateRules:
    """Renders a request as a chat template does."""

    vendor = "open models"
    speaks = frozenset((Format.CHAT, Format.RESPONSES, Format.BEDROCK))

    def __init__(self, template: Template) -> None:
        self.family = self.generation = template.name
        self.template = template
        self.keeps_thoughts = template.keeps_thoughts

    @property
    def vocabulary(self) -> str:
        """The vocabulary to tokenise with."""
        return self.template.vocabulary

    def frame(self, request: Request, first: Message | None, last: Message | None) -> Rendering:
        """What opens the request and the reply."""
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
        return joined((opening, self._schema(request.schema))) if request.schema else opening

    def system(self, request: Request) -> Rendering:
        """The system prompt that stands outside the messages."""
        if not request.system:
            return Rendering()
        return self.message(Message(role="system", parts=request.system))

    def toolbox(self, request: Request, first: Message | None, loads: Sequence[str]) -> Rendering:
        """The instructions in front of the tools."""
        template = self.template
        if not request.tools or template.tool_layout == "none":
            return Rendering()
        tokens = template.toolbox_tokens
        if request.tool_choice not in _UNFORCED:
            tokens += template.toolbox_forced_tokens
        if _has_system(request, first):
            tokens += template.toolbox_with_system_tokens
        else:
            tokens += template.toolbox_without_system_tokens
        return self._fitted(Rendering(fixed_tokens=tokens, margin_tokens=_MARGIN_TOKENS))

    def tool(self, tool: Tool, position: int) -> Rendering:
        """One tool; what is not a function is the provider's own."""
        if tool.kind != "function":
            return Rendering(unexplained=(tool.kind,))
        if self.template.tool_layout == "none":
            return Rendering()
        try:
            text = tool_text(tool, self.template.tool_layout)
        except RecursionError:
            text = tool.raw.decode("utf-8", "replace")
        return self._fitted(Rendering(texts=(text,), fixed_tokens=self.template.tool_tokens))

    def message(self, message: Message) -> Rendering:
        """One message: its text as a whole, then its calls, answers and media."""
        said = "".join(part.text for part in message.parts if isinstance(part, Text))
        text = self._shown(said, message.role)
        calls = tuple(part for part in message.parts if isinstance(part, ToolCall))
        others = [part for part in message.parts if not isinstance(part, Text | ToolCall)]
        whole = joined(
            (
                Rendering(texts=(text,), fixed_tokens=self._around(message)),
                self._calls(calls),
                *map(self._part, others),
            )
        )
        answers = any(isinstance(part, ToolResult) for part in others)
        whole = replace(whole, opens_turn=message.role == "user" and not answers)
        is_plain = self.template.exact and not calls and not others and text == said
        return whole if is_plain else self._fitted(whole)

    def _schema(self, schema: Schema) -> Rendering:
        """A schema for the answer; most servers only hold the answer to it, and show the model nothing."""
        try:
            text = schema_text(schema)
        except RecursionError:
            text = schema.schema.decode("utf-8", "replace")
        if self.template.schema_tokens is None:
            return Rendering(margin_tokens=roughly(text) + _MARGIN_TOKENS, certain=False)
        return self._fitted(Rendering(texts=(text,), fixed_tokens=self.template.schema_tokens))

    def _shown(self, text: str, role: str) -> str:
        if role in _MODEL_ROLES and self.template.cuts_thoughts and _THOUGHT_END in text:
            return text.rpartition(_THOUGHT_END)[2].lstrip("\n")
        return text

    def _around(self, message: Message) -> int:
        """The control tokens of a message; one that holds only thoughts or answers has none of its own."""
        kinds = {type(part) for part in message.parts}
        if message.role in _SYSTEM_ROLES:
            return self.template.system_tokens
        if message.role in _MODEL_ROLES:
            return 0 if kinds == {Thinking} else self.template.assistant_tokens
        return 0 if kinds == {ToolResult} else self.template.user_tokens

    def _calls(self, calls: tuple[ToolCall, ...]) -> Rendering:
        if calls and self.template.call_layout == "dsml":
            return dsml(calls)
        texts = tuple(text for call in calls for text in (call.name, call.arguments))
        return Rendering(texts=texts, fixed_tokens=self.template.call_tokens * len(calls))

    def _part(self, part: Part) -> Rendering:
        match part:
            case Thinking(text, _):
                thoughts = Rendering(thoughts=(text,), thought_tokens=_THOUGHT_TOKENS)
                return thoughts if text else Rendering()
            case ToolResult():
                said = "".join(inner.text for inner in part.parts if isinstance(inner, Text))
                media = [self._part(inner) for inner in part.parts if not isinstance(inner, Text)]
                answer = Rendering(texts=(said,), fixed_tokens=self.template.result_tokens)
                return joined((answer, *media))
            case Image():
                return _image(part)
            case Document():
                is_text = part.source is Source.INLINE and part.media_type.startswith("text/")
                hidden = () if is_text else (part.media_type or "file",)
                return Rendering(texts=(part.text,), unexplained=hidden)
            case Text(text):
                return Rendering(texts=(text,))
            case ToolCall():
                return self._calls((part,))
            case _:
                return unknown(part)

    def _fitted(self, rendering: Rendering) -> Rendering:
        """`rendering` with room for what its template was off by."""
        size = rendering.fixed_tokens + sum(map(roughly, rendering.texts))
        thoughts = rendering.thought_tokens + sum(map(roughly, rendering.thoughts))
        return replace(
            rendering,
            margin_tokens=rendering.margin_tokens + self.template.spread * size,
            thought_margin_tokens=self.template.spread * thoughts,
            certain=False,
        )


def _has_system(request: Request, first: Message | None) -> bool:
    return bool(request.system) or (first is not None and first.role in _SYSTEM_ROLES)


def _thinking_is_off(request: Request, template: Template) -> bool:
    if not request.thinking:
        return not template.thinks_unasked
    return request.thinking in _THINKING_OFF


def _image(image: Image) -> Rendering:
    """A picture; each model cuts it up in its own way, so this is a rough guess."""
    if image.source is not Source.INLINE or not image.width or not image.height:
        margin = _UNSEEN_IMAGE_MARGIN * _UNSEEN_IMAGE_TOKENS
        hidden = () if image.source is Source.INLINE else ("image",)
        return Rendering(
            image_tokens=_UNSEEN_IMAGE_TOKENS, image_margin_tokens=margin, certain=False, unexplained=hidden
        )
    tokens = -(-image.width // _PATCH_PIXELS) * -(-image.height // _PATCH_PIXELS)
    return Rendering(image_tokens=tokens, image_margin_tokens=2 * tokens)
