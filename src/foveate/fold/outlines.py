"""What folds look at in the messages that stay: who speaks, calls, answers and thinks, without what is said.

It is noted with each message in the tree of conversations, so that of one that grows by a turn a turn is read.
"""

from msgspec.structs import replace

from foveate import wire
from foveate.values import (
    Document,
    Format,
    Message,
    Opaque,
    Part,
    Request,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
)
from foveate.wire.body import parse_fields, parse_json

# Where chat completions carry the signed thoughts of Claude: at OpenRouter and in LiteLLM.
# https://openrouter.ai/docs/guides/best-practices/reasoning-tokens (read November 2026)
# https://docs.litellm.ai/docs/reasoning_content (read November 2026)
_THINKING_FIELDS = ("reasoning_details", "thinking_blocks")
# That of the Responses format only OpenAI can read; Anthropic's has its summary in plain words
# (https://platform.claude.com/docs/en/build-with-claude/compaction, read November 2026), and one without words
# did not come about.
PROVIDER_COMPACTION = "compaction"
"""A block by which a provider stands for all before it."""
# Under these it is noted.
_STRUCTURE_KEY, _HAS_THINKING_KEY = object(), object()


def read_structure(request: Request, trail: wire.MessageHistory, start: int) -> list[Message]:
    """The messages of a request with that trail from `start` on.

    Raises:
        MalformedRequest: one cannot be read.
    """
    first = [
        strip_message_text(wire.parse_message(request.format, raw))
        for raw in request.messages[start : trail.leading_system_messages]
    ]
    return first + [
        _read_message_structure(request.format, link)
        for link in trail.nodes[max(0, start - trail.leading_system_messages) :]
    ]


def strip_message_text(message: Message) -> Message:
    """A message without what it says."""
    return Message(role=message.role, parts=tuple([strip_text(part) for part in message.parts]))


def has_signed_thinking(request: Request, trail: wire.MessageHistory, index: int) -> bool:
    """Whether there are thoughts in a message that its provider has signed.

    Raises:
        MalformedRequest: it cannot be read.
    """
    if index < trail.leading_system_messages:
        return False  # the developer's
    link = trail.nodes[index - trail.leading_system_messages]
    known: bool | None = link.memo.get(_HAS_THINKING_KEY)
    if known is None:
        if request.format is Format.CHAT:
            message_fields = parse_fields(link.raw)
            known = any(parse_json(message_fields.get(name)) for name in _THINKING_FIELDS)
        else:
            known = any(
                isinstance(part, Thinking) for part in _read_message_structure(request.format, link).parts
            )
        link.memo[_HAS_THINKING_KEY] = known
    return known


def _read_message_structure(api_format: Format, link: wire.MessageNode) -> Message:
    known: Message | None = link.memo.get(_STRUCTURE_KEY)
    if known is None:
        known = link.memo[_STRUCTURE_KEY] = strip_message_text(wire.parse_message(api_format, link.raw))
    return known


def strip_text(part: Part) -> Part:
    """A part without what it says; of what a provider has folded, that matters."""
    match part:
        case Text():
            return _EMPTY_TEXT
        case Thinking():
            return _EMPTY_THINKING
        case ToolCall():
            return replace(part, arguments="")
        case ToolResult():
            return replace(part, parts=())
        case Opaque() if part.kind != PROVIDER_COMPACTION:
            return Opaque(part.kind, b"")
        case Document():
            return replace(part, text="")
        case _:
            return part


_EMPTY_TEXT, _EMPTY_THINKING = Text(""), Thinking("")
