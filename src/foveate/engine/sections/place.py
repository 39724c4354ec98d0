"""Places injected texts: stable ones after the client's system prompt, the others after the history.

The client's system prompt comes first, so that its cached prefix does not depend on sections, which change more
often. What changes with each turn comes last, so that it is never in a prefix that the next request repeats.

If a provider caches by breakpoints, texts are blocks, each of which can have one. Other hosts of the chat
format may not accept lists of blocks: there a text is appended to the client's string.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from foveate import formats
from foveate.engine.sections.fit import FittedSection
from foveate.formats.json_text.parse import as_text, parse_fields, parse_items, parse_json
from foveate.model import Area, Format, InsertParts, Place, Request, Text, ToolResult
from foveate.prompt_cache.rules import CacheRules, CachingMode

_SYSTEM_ROLES = frozenset(("system", "developer"))


@dataclass(frozen=True, slots=True)
class PlacedSections:
    """Edits, and the places of blocks that the next request will not repeat."""

    edits: tuple[InsertParts, ...] = ()
    transient_places: tuple[Place, ...] = ()


def joins_plain_strings(request: Request, rules: CacheRules) -> bool:
    """Whether texts are appended to strings, since blocks may not be accepted."""
    return request.format is not Format.ANTHROPIC and rules.caching not in (
        CachingMode.BREAKPOINTS,
        CachingMode.BOTH,
    )


def place_stable(
    request: Request, sections: Sequence[FittedSection], *, joins: bool
) -> tuple[InsertParts, ...]:
    """Insert sections after the client's system prompt."""
    if request.format is not Format.CHAT:
        place = Place(Area.SYSTEM, len(request.system))
        return tuple(_insert_section(place, section, joins=joins) for section in sections)
    head = count_system_messages(request)
    if not head:
        first = Place(Area.MESSAGES, 0)
        return tuple(_insert_section(first, section, role="system", joins=True) for section in sections)
    place = Place(Area.MESSAGES, head - 1, _block_count(request, head - 1))
    return tuple(_insert_section(place, section, joins=joins) for section in sections)


def place_turn(request: Request, sections: Sequence[FittedSection], *, joins: bool) -> PlacedSections:
    """Insert sections after the history: into the last user message, or as a message after it.

    Returns no edits if there are only messages of the model.
    """
    last = last_user_message(request)
    if last is None or not sections:
        return PlacedSections()
    size = len(request.messages)
    if request.format is not Format.ANTHROPIC and not is_user_message(request, last):
        # A tool result is a message of its own here, which must not contain other text.
        new_message = Place(Area.MESSAGES, last + 1)
        edits = tuple(_insert_section(new_message, section, joins=True) for section in sections)
        return PlacedSections(edits, (Place(Area.MESSAGES, last + 1, 0),))
    blocks = _block_count(request, last)
    place = Place(Area.MESSAGES, last, blocks)
    edits = tuple(_insert_section(place, section, joins=joins) for section in sections)
    is_string = joins and _is_string(request, last)
    first = 0 if is_string else blocks
    transient_places = [
        Place(Area.MESSAGES, last, first + number) for number in range(1 if is_string else len(edits))
    ]
    # Messages after it are the beginning of a response that the model is to continue.
    transient_places += [Place(Area.MESSAGES, index, 0) for index in range(last + 1, size)]
    return PlacedSections(edits, tuple(transient_places))


def insert_texts(
    request: Request, index: int, texts: Sequence[tuple[str, int]], reason: str, *, joins: bool
) -> tuple[InsertParts, ...]:
    """Append texts, each with its tokens, to a user message."""
    place = Place(Area.MESSAGES, index, _block_count(request, index))
    return tuple(
        InsertParts(place=place, parts=(Text(text),), reason=reason, join_texts=joins, saved_tokens=-tokens)
        for text, tokens in texts
    )


def count_system_messages(request: Request) -> int:
    """Count the system messages that a chat begins with."""
    for number, raw in enumerate(request.messages):
        if _role(raw) not in _SYSTEM_ROLES:
            return number
    return len(request.messages)


def last_user_message(request: Request) -> int | None:
    """The index of the last message of the user or a tool; None if there is none."""
    for index in range(len(request.messages) - 1, -1, -1):
        if is_user_message(request, index) or is_tool_result(request, index):
            return index
    return None


def is_user_message(request: Request, index: int) -> bool:
    return _role(request.messages[index]) == "user"


def is_tool_result(request: Request, index: int) -> bool:
    """Whether a message is a tool result and nothing else."""
    raw = request.messages[index]
    if request.format is Format.CHAT:
        return _role(raw) in ("tool", "function")
    if request.format is Format.RESPONSES:
        return as_text(parse_json(parse_fields(raw).get("type"))).endswith("_output")
    return False


def has_user_text(request: Request, index: int) -> bool:
    """Whether the user says something in a message, besides tool results."""
    if not is_user_message(request, index):
        return False
    if request.format is not Format.ANTHROPIC:
        return True
    parts = formats.parse_message(request.format, request.messages[index]).parts
    return any(not isinstance(part, ToolResult) for part in parts)


def read_user_text(request: Request, index: int) -> str:
    """The user's text in a message, empty if it is not a user message."""
    if not is_user_message(request, index):
        return ""
    parts = formats.parse_message(request.format, request.messages[index]).parts
    return "\n".join(part.text for part in parts if isinstance(part, Text)).strip()


def _insert_section(place: Place, section: FittedSection, *, role: str = "user", joins: bool) -> InsertParts:
    return InsertParts(
        place=place,
        parts=(Text(section.text),),
        reason=section.reason,
        role=role,
        join_texts=joins,
        saved_tokens=-section.tokens,
    )


def _role(raw: bytes) -> str:
    return as_text(parse_json(parse_fields(raw).get("role")))


def _content(request: Request, index: int) -> bytes:
    return bytes(parse_fields(request.messages[index]).get("content") or b"null")


def _is_string(request: Request, index: int) -> bool:
    return _content(request, index).startswith(b'"')


def _block_count(request: Request, index: int) -> int:
    content = parse_fields(request.messages[index]).get("content")
    if content is None or bytes(content) == b"null":
        return 0
    return 1 if bytes(content).startswith(b'"') else len(parse_items(content))
