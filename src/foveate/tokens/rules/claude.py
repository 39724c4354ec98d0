"""How Claude's requests are billed: what goes around texts, tools, calls and results.

Claude's rendering is not public. Each piece of structure has a fitted constant (`data/claude.json`); what is
documented stands in `claude_models`.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from foveate.tokens.claude import Constants, extra_margin, fitted
from foveate.tokens.rendering import Rendering
from foveate.tokens.rules.claude_models import (
    CLIENT_TOOL_TOKENS,
    PDF_MARGIN,
    SERVER_TOOL_TOKENS,
    TASK_BUDGET_TOKENS,
    ClaudeModel,
    claude_model,
)
from foveate.tokens.rules.joined import joined
from foveate.tokens.rules.opaque import unknown
from foveate.values import (
    Document,
    Format,
    Image,
    Message,
    Opaque,
    Part,
    Request,
    Source,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)
from foveate.wire import anthropic, large_json
from foveate.wire.body import as_record, record
from foveate.wire.duplicate_keys import has_unique_keys

_SYSTEM_ROLES = ("system", "developer")
# A sealed thought is about this many characters a token.
_SEALED_CHARS_PER_TOKEN = 8
_FACT_SPREAD = 0.05
_NOTHING = Rendering()
_JSON = json.JSONEncoder(ensure_ascii=False)


def claude_rules(model: str) -> "ClaudeRules":
    """The rules of a Claude model."""
    figures = claude_model(model)
    return ClaudeRules(figures, fitted().families[figures.family], extra_margin(model))


class ClaudeRules:
    """One model's figures over its family's fitted constants."""

    vendor = "claude"
    # Chats through routers that translate were billed like these too.
    speaks = frozenset((Format.ANTHROPIC, Format.BEDROCK, Format.CHAT))

    def __init__(self, model: ClaudeModel, constants: Constants, extra: float = 0.0) -> None:
        self.family = self.generation = model.family
        self._model = model
        self._constants = constants
        self._extra = extra
        self.keeps_thoughts = model.keeps_thoughts
        self._single = {name: self._times(name, 1) for name in constants.structure}

    def frame(self, request: Request, first: Message | None, last: Message | None) -> Rendering:
        """The base with the first user turn in it, thinking, and the answer's schema."""
        rendering = Rendering(
            fixed_tokens=self._model.base_tokens, margin_tokens=self._constants.around_tokens, certain=False
        )
        rendering = _together(rendering, self._built("m_user", -1))
        if first is not None and first.role == "assistant":
            rendering = _together(rendering, self._built("starts_assistant"))
        if last is not None and last.role == "assistant":  # a prefill opens no turn of its own
            rendering = _together(rendering, self._built("m_assistant", -1))
        if not _is_forced(request):
            rendering = _together(rendering, _fact(self._thinking_tokens(request.thinking)))
        if "task_budget" in request.extras:
            rendering = _together(rendering, _fact(TASK_BUDGET_TOKENS))
        if request.schema is None:
            return rendering
        text = _spaced(request.schema.schema)
        references = self._built("format_ref", text.count('"$ref"'))
        return _together(rendering, Rendering(texts=(text,)), self._built("format"), references)

    def system(self, request: Request) -> Rendering:
        """The system texts; that there is a system prompt costs nothing by itself."""
        return _together(Rendering(), *(self._part(part) for part in request.system))

    def toolbox(self, request: Request, first: Message | None, loads: Sequence[str]) -> Rendering:
        """The tool system prompt, and the deferred tools that the conversation has loaded."""
        del first
        if not request.tools:
            return Rendering()
        prompt = self._model.tool_prompt
        parts = [_fact(prompt.forced_tokens if _is_forced(request) else prompt.free_tokens)]
        deferred = [raw for raw in request.tools if _is_deferred(raw)]
        if deferred and self._model.defers_tools:
            parts.append(self._built("deferred_any"))
        if loads:
            parts += self._loaded(deferred, loads)
        return _together(*parts)

    def tool(self, tool: Tool, position: int) -> Rendering:
        """One tool's definition; a deferred one costs little or nothing until it is loaded."""
        del position
        if tool.kind != "function":
            return self._own_tool(tool.kind)
        if _is_deferred(tool.raw):
            return self._built("deferred") if self._model.defers_tools else Rendering()
        return self._definition(tool.name, tool.description, tool.parameters)

    def message(self, message: Message) -> Rendering:
        """One message, its blocks one after the other."""
        if message.role in _SYSTEM_ROLES:
            around = self._built("m_system") if self._model.family == "claude-4.7" else Rendering()
        else:
            around = self._built("m_assistant" if message.role in ("assistant", "model") else "m_user")
        results = len([part for part in message.parts if isinstance(part, ToolResult)])
        extra = (self._built("tr_extra", results - 1),) if results > 1 else ()
        said = [around, *extra, *[self._part(part) for part in message.parts]]
        opens_turn = message.role == "user" and results < len(message.parts)
        return joined(said, certain=False, opens_turn=opens_turn)

    def _thinking_tokens(self, thinking: str) -> int:
        """What reasoning adds; other formats say how hard to think instead of whether."""
        if thinking in ("", "none", "disabled"):
            return 0
        kind = thinking if thinking == "adaptive" else "enabled"
        return self._model.thinking_tokens.get(kind, 0)

    def _part(self, part: Part) -> Rendering:
        match part:
            case Text(text=text):
                return Rendering(texts=(text,))
            case Thinking(text=text, sealed=sealed):
                sealed_tokens = 0 if text else sealed / _SEALED_CHARS_PER_TOKEN
                tokens = self._constants.structure["thinking"] + sealed_tokens
                return Rendering(
                    thoughts=(text,) if text else (), thought_tokens=tokens, thought_margin_tokens=tokens
                )
            case ToolCall():
                return self._call(part)
            case ToolResult(parts=parts, is_error=is_error):
                around = [self._built("tool_result")]
                if is_error:
                    around.append(self._built("tool_err"))
                return _together(*around, *(self._part(inner) for inner in parts))
            case Image():
                return self._image(part)
            case Document():
                return self._document(part)
            case Opaque():
                return self._opaque(part)

    def _call(self, call: ToolCall) -> Rendering:
        """Name, and each parameter with its value: a string as it is, anything else as JSON."""
        try:
            given = _given(call.arguments) if call.arguments else {}
        except (ValueError, RecursionError):  # a model can write anything
            given = call.arguments
        if not isinstance(given, dict):
            return _together(self._built("tool_use"), Rendering(texts=(call.name, _said(given))))
        texts = [call.name]
        for name, value in given.items():
            texts += (name, _said(value))
        return _together(
            self._built("tool_use"), self._built("param", len(given)), Rendering(texts=tuple(texts))
        )

    def _definition(self, name: str, description: str, parameters: bytes) -> Rendering:
        if len(description) + len(parameters) >= large_json.LARGE_BYTES:  # few tokens of these are spaces
            texts = name, description, parameters.decode("utf-8", "replace")
            return _together(self._built("tool"), Rendering(texts=texts))
        schema = json.loads(parameters)
        text = _dumped({"description": description, "name": name, "parameters": schema})
        return _together(self._built("tool"), Rendering(texts=(text,)))

    def _own_tool(self, kind: str) -> Rendering:
        bare = re.sub(r"_\d{8}$", "", kind)
        for known, tokens in CLIENT_TOOL_TOKENS.items():
            if bare.startswith(known):
                return _fact(tokens * self._model.tool_factor(), spread=0.2)
        tokens = next((n for known, n in SERVER_TOOL_TOKENS.items() if bare.startswith(known)), 0)
        return replace(_fact(tokens * self._model.tool_factor()), unexplained=(f"server tool {bare}",))

    def _loaded(self, deferred: Sequence[bytes], loads: Sequence[str]) -> list[Rendering]:
        times = Counter(loads)
        tools = [tool for tool in map(anthropic.tool, deferred) if times[tool.name]]
        return [
            self._definition(tool.name, tool.description, tool.parameters)
            for tool in tools
            for _ in range(times[tool.name])
        ]

    def _image(self, image: Image) -> Rendering:
        size = (image.width, image.height) if image.width and image.height else None
        tokens = self._model.images.tokens(size, image.detail)
        hidden = () if image.source is Source.INLINE else (f"image ({image.source})",)
        return Rendering(image_tokens=tokens, image_margin_tokens=tokens // 10 + 3, unexplained=hidden)

    def _document(self, document: Document) -> Rendering:
        text = Rendering(texts=(document.text,) if document.text else ())
        if document.source is not Source.INLINE:
            return replace(text, unexplained=(f"document ({document.source})",))
        if document.media_type.startswith("text/"):
            return _together(text, _fact(10, spread=1.0))
        pages = document.pages or max(1, document.size_bytes // 50_000)
        return _together(text, _fact(pages * self._model.pdf_page_tokens, spread=PDF_MARGIN))

    def _opaque(self, block: Opaque) -> Rendering:
        match block.kind:
            case "tool_reference":
                return replace(self._built("tool_ref"), loads=_named(block.raw))
            case "tool_addition":
                return replace(self._built("tool_addition"), loads=_named(block.raw))
            case "search_result" | "guardContent":
                return _together(replace(unknown(block), unexplained=()), _fact(15, spread=1.0))
            case _:
                return unknown(block)

    def _built(self, name: str, times: int = 1) -> Rendering:
        """So many pieces of one kind of structure."""
        if times == 1:
            return self._single.get(name, _NOTHING)
        return self._times(name, times)

    def _times(self, name: str, times: int) -> Rendering:
        tokens = self._constants.structure.get(name, 0.0) * times
        spread = self._constants.structure_spread.get(name, 0.0) + self._extra
        return Rendering(fixed_tokens=tokens, margin_tokens=max(0.0, tokens * spread))


def _together(*renderings: Rendering) -> Rendering:
    return joined(renderings, certain=False)


def _fact(tokens: float, spread: float = _FACT_SPREAD) -> Rendering:
    return Rendering(fixed_tokens=tokens, margin_tokens=tokens * spread)


def _is_forced(request: Request) -> bool:
    """A choice that leaves the model no way but a tool; chat names the tool itself."""
    return request.tool_choice not in ("", "auto", "none")


def _is_deferred(raw: bytes) -> bool:
    return b"defer_loading" in raw and record(raw).get("defer_loading") is True


def _named(raw: bytes) -> tuple[str, ...]:
    """The tool that a block brings in."""
    block = record(raw)
    name = block.get("tool_name") or as_record(block.get("tool")).get("name") or block.get("name")
    return (name,) if isinstance(name, str) else ()


def _given(arguments: str) -> object:
    if not has_unique_keys(arguments):  # all of it counts, and not only the last of two values
        return arguments
    if len(arguments) >= large_json.LARGE_BYTES:
        return large_json.loads(arguments)
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # the standard library reads more, in more time
        return json.loads(arguments)


def _said(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else _dumped(value)


def _spaced(schema: bytes) -> str:
    try:
        return _dumped(json.loads(schema))
    except ValueError:  # Bedrock takes the schema as a string, which can hold anything
        return schema.decode("utf-8", "replace")


def _dumped(found: object) -> str:
    return "".join(_JSON.iterencode(found)) if large_json.writes_in_pieces() else _JSON.encode(found)
