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
from foveate.wire.body import fields, value

# Where chat completions carry the signed thoughts of Claude: at OpenRouter and in LiteLLM.
# https://openrouter.ai/docs/guides/best-practices/reasoning-tokens (read November 2026)
# https://docs.litellm.ai/docs/reasoning_content (read November 2026)
_CARRIERS = ("reasoning_details", "thinking_blocks")
# That of the Responses format only OpenAI can read; Anthropic's has its summary in plain words
# (https://platform.claude.com/docs/en/build-with-claude/compaction, read November 2026), and one without words
# did not come about.
COMPACTION = "compaction"
"""A block by which a provider stands for all before it."""
# Under these it is noted.
_OUTLINE, _THINKS = object(), object()


def outlines(request: Request, trail: wire.Trail, start: int) -> list[Message]:
    """The messages of a request with that trail from `start` on.

    Raises:
        MalformedRequest: one cannot be read.
    """
    first = [outline(wire.message(request.format, raw)) for raw in request.messages[start : trail.head]]
    return first + [_outline_at(request.format, link) for link in trail.links[max(0, start - trail.head) :]]


def outline(message: Message) -> Message:
    """A message without what it says."""
    return Message(role=message.role, parts=tuple([without_words(part) for part in message.parts]))


def thinks(request: Request, trail: wire.Trail, place: int) -> bool:
    """Whether there are thoughts in a message that its provider has signed.

    Raises:
        MalformedRequest: it cannot be read.
    """
    if place < trail.head:
        return False  # the developer's
    link = trail.links[place - trail.head]
    known: bool | None = link.known.get(_THINKS)
    if known is None:
        if request.format is Format.CHAT:
            found = fields(link.raw)
            known = any(value(found.get(name)) for name in _CARRIERS)
        else:
            known = any(isinstance(part, Thinking) for part in _outline_at(request.format, link).parts)
        link.known[_THINKS] = known
    return known


def _outline_at(spoken: Format, link: wire.Link) -> Message:
    known: Message | None = link.known.get(_OUTLINE)
    if known is None:
        known = link.known[_OUTLINE] = outline(wire.message(spoken, link.raw))
    return known


def without_words(part: Part) -> Part:
    """A part without what it says; of what a provider has folded, that matters."""
    match part:
        case Text():
            return _NO_TEXT
        case Thinking():
            return _NO_THOUGHT
        case ToolCall():
            return replace(part, arguments="")
        case ToolResult():
            return replace(part, parts=())
        case Opaque() if part.kind != COMPACTION:
            return Opaque(part.kind, b"")
        case Document():
            return replace(part, text="")
        case _:
            return part


_NO_TEXT, _NO_THOUGHT = Text(""), Thinking("")
