"""Rendering of Claude's requests: the overhead of texts, tools, calls and results.

Claude's rendering is not public. Each piece of structure has a fitted constant (`data/claude.json`). What
Anthropic's models add to a request is documented, or measured on recorded usage (as of November 2026).
Documented: images, and the tool system prompts from 4.5 on. Measured: bases, thinking, the tool prompts of 3.5
to 4, the memory tool. Figures of the other client tools are documented, but not confirmed by usage.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec.structs import replace

from foveate.formats import anthropic
from foveate.formats.json_text import large_json
from foveate.formats.json_text.duplicate_keys import has_unique_keys
from foveate.formats.json_text.parse import as_dict, parse_object
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
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from foveate.tokens.rendering.images import GridImagePricing
from foveate.tokens.rendering.rendering import Rendering, join_renderings, render_unknown_block
from foveate.tokens.tokenizers.claude import (
    ClaudeConstants,
    ClaudeVersion,
    claude_family,
    extra_margin,
    load_fitted_constants,
    parse_claude_version,
)


@dataclass(frozen=True, slots=True)
class ToolPrompt:
    """Tokens of the system prompt for tools, with `tool_choice` free or forced."""

    free_tokens: int
    forced_tokens: int


# A version that is missing here uses the previous one of its series and tokenizer.
_TOOL_PROMPTS = {
    ClaudeVersion("opus", (5, 0)): ToolPrompt(286, 406),
    ClaudeVersion("haiku", (5, 5)): ToolPrompt(286, 406),
    ClaudeVersion("fable", (5, 0)): ToolPrompt(290, 410),
    ClaudeVersion("mythos", (5, 0)): ToolPrompt(290, 410),
    ClaudeVersion("sonnet", (5, 0)): ToolPrompt(354, 474),
    ClaudeVersion("opus", (4, 8)): ToolPrompt(290, 410),
    ClaudeVersion("opus", (4, 7)): ToolPrompt(675, 804),
    ClaudeVersion("opus", (4, 6)): ToolPrompt(497, 589),
    ClaudeVersion("sonnet", (4, 6)): ToolPrompt(497, 589),
    ClaudeVersion("opus", (4, 5)): ToolPrompt(496, 588),
    ClaudeVersion("sonnet", (4, 5)): ToolPrompt(496, 588),
    ClaudeVersion("haiku", (4, 5)): ToolPrompt(496, 588),
    ClaudeVersion("opus", (4, 0)): ToolPrompt(313, 313),
    ClaudeVersion("sonnet", (4, 0)): ToolPrompt(313, 313),
    ClaudeVersion("sonnet", (3, 7)): ToolPrompt(313, 313),
    ClaudeVersion("haiku", (3, 5)): ToolPrompt(264, 340),
    ClaudeVersion("sonnet", (3, 5)): ToolPrompt(294, 261),
    ClaudeVersion("opus", (3, 0)): ToolPrompt(530, 281),
    ClaudeVersion("sonnet", (3, 0)): ToolPrompt(159, 235),
    ClaudeVersion("haiku", (3, 0)): ToolPrompt(264, 340),
}
_TOOL_PROMPT_BY_FAMILY = {
    "claude-2": ToolPrompt(264, 340),
    "claude-3": ToolPrompt(497, 589),
    "claude-4.7": ToolPrompt(290, 410),
}

# Tokens that thinking adds, by mode. None if a tool is forced.
_THINKING = {
    ClaudeVersion("opus", (4, 7)): {"adaptive": 5, "enabled": 5},
    ClaudeVersion("sonnet", (4, 6)): {"enabled": 28},
    ClaudeVersion("opus", (4, 6)): {"enabled": 28, "adaptive": 17},
}
_THINKING_BY_FAMILY = {"claude-2": {}, "claude-3": {"enabled": 29, "adaptive": 17}, "claude-4.7": {}}

_BASE_TOKENS = {"claude-2": 9, "claude-3": 7, "claude-4.7": 6}

# Tools defined by Anthropic; the longest matching name applies. For server tools the results are charged too,
# which no request shows.
CLIENT_TOOL_TOKENS = {"memory": 1068, "bash": 245, "text_editor": 700, "computer": 735}
SERVER_TOOL_TOKENS = {
    "tool_search_tool_regex": 213,
    "tool_search": 194,
    "web_search": 1710,
    "web_fetch": 525,
    "code_execution": 4130,
    "advisor": 500,
    "mcp_toolset": 0,
}
# Factor for the newer tokenizer.
_NEW_TOKENIZER_TOOL_FACTOR = 1.45

TASK_BUDGET_TOKENS = 40

# A PDF page is charged as an image and as its text, which is not extracted here. From public measurements of
# dense pages (November 2026), so with a wide margin.
_PDF_PAGE_TOKENS = {"claude-2": 2110, "claude-3": 2110, "claude-4.7": 2330}
PDF_MARGIN = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeModel:
    family: str
    base_tokens: int
    tool_prompt: ToolPrompt
    thinking_tokens: dict[str, int]
    images: GridImagePricing
    pdf_page_tokens: int
    keeps_thinking: bool
    defers_tools: bool

    def tool_factor(self) -> float:
        return _NEW_TOKENIZER_TOOL_FACTOR if self.family == "claude-4.7" else 1.0


def claude_model_figures(model: str) -> ClaudeModel:
    """Unknown figures are taken from the model's series or family."""
    version, family = parse_claude_version(model), claude_family(model)
    has_new_tokenizer = family == "claude-4.7"
    thinking = _THINKING_BY_FAMILY[family]
    return ClaudeModel(
        family=family,
        base_tokens=_BASE_TOKENS[family],
        tool_prompt=_find_tool_prompt(version, family),
        thinking_tokens=_THINKING.get(version, thinking) if version else thinking,
        images=GridImagePricing(2576, 4784) if has_new_tokenizer else GridImagePricing(1568, 1568),
        pdf_page_tokens=_PDF_PAGE_TOKENS[family],
        # Thinking of finished turns is dropped, except by Opus 4.5 and all models from 4.6 on (documentation).
        keeps_thinking=has_new_tokenizer or version == ClaudeVersion("opus", (4, 5)) or _is_4_6(version),
        defers_tools=has_new_tokenizer,
    )


def _is_4_6(version: ClaudeVersion | None) -> bool:
    return version is not None and version.number == (4, 6)


def _find_tool_prompt(version: ClaudeVersion | None, family: str) -> ToolPrompt:
    if version is None:
        return _TOOL_PROMPT_BY_FAMILY[family]
    earlier_versions = [
        known
        for known in _TOOL_PROMPTS
        if known.series == version.series
        and known.number <= version.number
        and claude_family(f"claude-{known.series}-{known.number[0]}-{known.number[1]}") == family
    ]
    return _TOOL_PROMPTS[max(earlier_versions)] if earlier_versions else _TOOL_PROMPT_BY_FAMILY[family]


# Characters of encrypted thinking per token, approximately.
_ENCRYPTED_CHARS_PER_TOKEN = 8
_DOCUMENTED_SPREAD = 0.05
_EMPTY = Rendering()
_JSON_ENCODER = json.JSONEncoder(ensure_ascii=False)


def build_claude_rules(model: str) -> "ClaudeRules":
    figures = claude_model_figures(model)
    return ClaudeRules(figures, load_fitted_constants().families[figures.family], extra_margin(model))


class ClaudeRules:
    vendor = "claude"
    # Chats that routers translate were charged like these too.
    api_formats = frozenset((Format.ANTHROPIC, Format.BEDROCK, Format.CHAT))

    def __init__(self, model: ClaudeModel, constants: ClaudeConstants, extra_margin: float = 0.0) -> None:
        self.family = self.generation = model.family
        self._model = model
        self._constants = constants
        self._extra_margin = extra_margin
        self.keeps_thinking = model.keeps_thinking
        self._structures = {name: self._build_structure(name, 1) for name in constants.structure}

    def render_frame(self, request: Request, first: Message | None, last: Message | None) -> Rendering:
        """The base with the first user turn, thinking, and the response schema."""
        rendering = Rendering(
            fixed_tokens=self._model.base_tokens, margin_tokens=self._constants.around_tokens, certain=False
        )
        rendering = _join_estimates(rendering, self._structure("m_user", -1))
        if first is not None and first.role == "assistant":
            rendering = _join_estimates(rendering, self._structure("starts_assistant"))
        if last is not None and last.role == "assistant":  # a prefill does not open a turn
            rendering = _join_estimates(rendering, self._structure("m_assistant", -1))
        if not _forces_tool_use(request):
            rendering = _join_estimates(
                rendering, _documented_tokens(self._thinking_mode_tokens(request.thinking))
            )
        if "task_budget" in request.extras:
            rendering = _join_estimates(rendering, _documented_tokens(TASK_BUDGET_TOKENS))
        if request.schema is None:
            return rendering
        text = _schema_text(request.schema.schema)
        references = self._structure("format_ref", text.count('"$ref"'))
        return _join_estimates(rendering, Rendering(texts=(text,)), self._structure("format"), references)

    def render_system(self, request: Request) -> Rendering:
        """A system prompt has no overhead."""
        return _join_estimates(Rendering(), *(self._render_part(part) for part in request.system))

    def render_tool_preamble(
        self, request: Request, first: Message | None, loaded_tools: Sequence[str]
    ) -> Rendering:
        del first
        if not request.tools:
            return Rendering()
        prompt = self._model.tool_prompt
        parts = [_documented_tokens(prompt.forced_tokens if _forces_tool_use(request) else prompt.free_tokens)]
        deferred = [raw for raw in request.tools if _is_deferred(raw)]
        if deferred and self._model.defers_tools:
            parts.append(self._structure("deferred_any"))
        if loaded_tools:
            parts += self._render_loaded_tools(deferred, loaded_tools)
        return _join_estimates(*parts)

    def render_tool(self, tool: Tool, position: int) -> Rendering:
        """A tool's definition. A deferred tool costs little or nothing until it is loaded."""
        del position
        if tool.kind != "function":
            return self._render_anthropic_tool(tool.kind)
        if _is_deferred(tool.raw):
            return self._structure("deferred") if self._model.defers_tools else Rendering()
        return self._render_definition(tool.name, tool.description, tool.parameters)

    def render_message(self, message: Message) -> Rendering:
        if message.role in SYSTEM_ROLES:
            message_overhead = (
                self._structure("m_system") if self._model.family == "claude-4.7" else Rendering()
            )
        else:
            message_overhead = self._structure(
                "m_assistant" if message.role in ("assistant", "model") else "m_user"
            )
        results = len([part for part in message.parts if isinstance(part, ToolResult)])
        extra = (self._structure("tr_extra", results - 1),) if results > 1 else ()
        renderings = [message_overhead, *extra, *[self._render_part(part) for part in message.parts]]
        opens_turn = message.role == "user" and results < len(message.parts)
        return join_renderings(renderings, certain=False, opens_turn=opens_turn)

    def _thinking_mode_tokens(self, thinking: str) -> int:
        """Other formats specify an effort instead of a mode."""
        if thinking in ("", "none", "disabled"):
            return 0
        kind = thinking if thinking == "adaptive" else "enabled"
        return self._model.thinking_tokens.get(kind, 0)

    def _render_part(self, part: Part) -> Rendering:
        match part:
            case Text(text=text):
                return Rendering(texts=(text,))
            case Thinking(text=text, encrypted_chars=sealed):
                sealed_tokens = 0 if text else sealed / _ENCRYPTED_CHARS_PER_TOKEN
                tokens = self._constants.structure["thinking"] + sealed_tokens
                return Rendering(
                    thinking_texts=(text,) if text else (),
                    thinking_tokens=tokens,
                    thinking_margin_tokens=tokens,
                )
            case ToolCall():
                return self._render_call(part)
            case ToolResult(parts=parts, is_error=is_error):
                result_overhead = [self._structure("tool_result")]
                if is_error:
                    result_overhead.append(self._structure("tool_err"))
                return _join_estimates(*result_overhead, *(self._render_part(inner) for inner in parts))
            case Image():
                return self._render_image(part)
            case Document():
                return self._render_document(part)
            case Opaque():
                return self._render_opaque(part)

    def _render_call(self, call: ToolCall) -> Rendering:
        """The name, and each parameter with its value: a string as it is, anything else as JSON."""
        try:
            arguments = _parse_arguments(call.arguments) if call.arguments else {}
        except (ValueError, RecursionError):  # models write anything
            arguments = call.arguments
        if not isinstance(arguments, dict):
            return _join_estimates(
                self._structure("tool_use"), Rendering(texts=(call.name, _value_text(arguments)))
            )
        texts = [call.name]
        for name, value in arguments.items():
            texts += (name, _value_text(value))
        return _join_estimates(
            self._structure("tool_use"), self._structure("param", len(arguments)), Rendering(texts=tuple(texts))
        )

    def _render_definition(self, name: str, description: str, parameters: bytes) -> Rendering:
        if (
            len(description) + len(parameters) >= large_json.LARGE_BYTES
        ):  # re-serializing changes few tokens of a large definition
            texts = name, description, parameters.decode("utf-8", "replace")
            return _join_estimates(self._structure("tool"), Rendering(texts=texts))
        schema = json.loads(parameters)
        text = _to_json({"description": description, "name": name, "parameters": schema})
        return _join_estimates(self._structure("tool"), Rendering(texts=(text,)))

    def _render_anthropic_tool(self, kind: str) -> Rendering:
        name = re.sub(r"_\d{8}$", "", kind)
        for known, tokens in CLIENT_TOOL_TOKENS.items():
            if name.startswith(known):
                return _documented_tokens(tokens * self._model.tool_factor(), spread=0.2)
        tokens = next((n for known, n in SERVER_TOOL_TOKENS.items() if name.startswith(known)), 0)
        return replace(
            _documented_tokens(tokens * self._model.tool_factor()), unexplained=(f"server tool {name}",)
        )

    def _render_loaded_tools(self, deferred: Sequence[bytes], loaded_tools: Sequence[str]) -> list[Rendering]:
        times = Counter(loaded_tools)
        tools = [tool for tool in map(anthropic.parse_tool, deferred) if times[tool.name]]
        return [
            self._render_definition(tool.name, tool.description, tool.parameters)
            for tool in tools
            for _ in range(times[tool.name])
        ]

    def _render_image(self, image: Image) -> Rendering:
        size = (image.width, image.height) if image.width and image.height else None
        tokens = self._model.images.tokens(size, image.detail)
        hidden = () if image.source is MediaSource.INLINE else (f"image ({image.source})",)
        return Rendering(image_tokens=tokens, image_margin_tokens=tokens // 10 + 3, unexplained=hidden)

    def _render_document(self, document: Document) -> Rendering:
        text = Rendering(texts=(document.text,) if document.text else ())
        if document.source is not MediaSource.INLINE:
            return replace(text, unexplained=(f"document ({document.source})",))
        if document.media_type.startswith("text/"):
            return _join_estimates(text, _documented_tokens(10, spread=1.0))
        pages = document.pages or max(1, document.size_bytes // 50_000)
        return _join_estimates(text, _documented_tokens(pages * self._model.pdf_page_tokens, spread=PDF_MARGIN))

    def _render_opaque(self, block: Opaque) -> Rendering:
        match block.kind:
            case "tool_reference":
                return replace(self._structure("tool_ref"), loaded_tools=_loaded_tool_names(block.raw))
            case "tool_addition":
                return replace(self._structure("tool_addition"), loaded_tools=_loaded_tool_names(block.raw))
            case "search_result" | "guardContent":
                return _join_estimates(
                    replace(render_unknown_block(block), unexplained=()), _documented_tokens(15, spread=1.0)
                )
            case _:
                return render_unknown_block(block)

    def _structure(self, name: str, times: int = 1) -> Rendering:
        if times == 1:
            return self._structures.get(name, _EMPTY)
        return self._build_structure(name, times)

    def _build_structure(self, name: str, times: int) -> Rendering:
        tokens = self._constants.structure.get(name, 0.0) * times
        spread = self._constants.structure_spread.get(name, 0.0) + self._extra_margin
        return Rendering(fixed_tokens=tokens, margin_tokens=max(0.0, tokens * spread))


def _join_estimates(*renderings: Rendering) -> Rendering:
    return join_renderings(renderings, certain=False)


def _documented_tokens(tokens: float, spread: float = _DOCUMENTED_SPREAD) -> Rendering:
    return Rendering(fixed_tokens=tokens, margin_tokens=tokens * spread)


def _forces_tool_use(request: Request) -> bool:
    """Return whether `tool_choice` forces a tool call. In chats it names the tool itself."""
    return request.tool_choice not in ("", "auto", "none")


def _is_deferred(raw: bytes) -> bool:
    return b"defer_loading" in raw and parse_object(raw).get("defer_loading") is True


def _loaded_tool_names(raw: bytes) -> tuple[str, ...]:
    block = parse_object(raw)
    name = block.get("tool_name") or as_dict(block.get("tool")).get("name") or block.get("name")
    return (name,) if isinstance(name, str) else ()


def _parse_arguments(arguments: str) -> object:
    if not has_unique_keys(arguments):  # both values count, not only the last one
        return arguments
    if len(arguments) >= large_json.LARGE_BYTES:
        return large_json.loads(arguments)
    try:
        return msgspec.json.decode(arguments)
    except (
        msgspec.MsgspecError,
        ValueError,
        RecursionError,
    ):  # the standard library accepts more, but is slower
        return json.loads(arguments)


def _value_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else _to_json(value)


def _schema_text(schema: bytes) -> str:
    try:
        return _to_json(json.loads(schema))
    except ValueError:  # on Bedrock the schema is a string with any content
        return schema.decode("utf-8", "replace")


def _to_json(value: object) -> str:
    return (
        "".join(_JSON_ENCODER.iterencode(value))
        if large_json.is_writing_in_pieces()
        else _JSON_ENCODER.encode(value)
    )
