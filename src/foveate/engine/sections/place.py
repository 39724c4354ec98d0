"""Where injected texts stand: what is stable behind the client's system prompt, the rest behind the history.

The client's system prompt comes first, so that the prefix that it has cached stays as it is, whatever becomes
of the sections: they are edited more often than clients are rewritten. What changes with each turn is the last
thing that a model reads, so that it never stands in a prefix that the next request repeats.

Where a provider keeps what is marked, texts are blocks, which can be marked one by one. Other hosts that speak
the format of chats may take no lists of blocks: there a text joins the string that the client has sent.
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
    """Edits, and the places of blocks among them that the next request will not repeat."""

    edits: tuple[InsertParts, ...] = ()
    transient_places: tuple[Place, ...] = ()


def joins_plain_strings(request: Request, rules: CacheRules) -> bool:
    """Whether texts join plain strings, since nobody knows whether blocks are taken."""
    return request.format is not Format.ANTHROPIC and rules.caching not in (
        CachingMode.BREAKPOINTS,
        CachingMode.BOTH,
    )


def place_stable(
    request: Request, sections: Sequence[FittedSection], *, joins: bool
) -> tuple[InsertParts, ...]:
    """The sections behind the client's own system prompt."""
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
    """The sections behind the history: in the last message of the user's, or in one of their own behind it.

    None where nobody but the model has spoken.
    """
    last = last_user_message(request)
    if last is None or not sections:
        return PlacedSections()
    size = len(request.messages)
    if request.format is not Format.ANTHROPIC and not is_user_message(request, last):
        # What a tool has said is a message by itself here, into which no words of anybody else belong.
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
    # What stands behind is the beginning of an answer that the client asks to be gone on with.
    transient_places += [Place(Area.MESSAGES, index, 0) for index in range(last + 1, size)]
    return PlacedSections(edits, tuple(transient_places))


def insert_texts(
    request: Request, index: int, texts: Sequence[tuple[str, int]], reason: str, *, joins: bool
) -> tuple[InsertParts, ...]:
    """Texts, each with its tokens, at the end of a message of the user's."""
    place = Place(Area.MESSAGES, index, _block_count(request, index))
    return tuple(
        InsertParts(place=place, parts=(Text(text),), reason=reason, join_texts=joins, saved_tokens=-tokens)
        for text, tokens in texts
    )


def count_system_messages(request: Request) -> int:
    """How many system messages a chat begins with."""
    for number, raw in enumerate(request.messages):
        if _role(raw) not in _SYSTEM_ROLES:
            return number
    return len(request.messages)


def last_user_message(request: Request) -> int | None:
    """The number of the last message that is the user's, or a tool's; None where there is none."""
    for index in range(len(request.messages) - 1, -1, -1):
        if is_user_message(request, index) or is_tool_result(request, index):
            return index
    return None


def is_user_message(request: Request, index: int) -> bool:
    """Whether a message is the user's."""
    return _role(request.messages[index]) == "user"


def is_tool_result(request: Request, index: int) -> bool:
    """Whether a message is what a tool has said, and nothing else."""
    raw = request.messages[index]
    if request.format is Format.CHAT:
        return _role(raw) in ("tool", "function")
    if request.format is Format.RESPONSES:
        return as_text(parse_json(parse_fields(raw).get("type"))).endswith("_output")
    return False


def has_user_text(request: Request, index: int) -> bool:
    """Whether the user says something in a message, beside what tools have said."""
    if not is_user_message(request, index):
        return False
    if request.format is not Format.ANTHROPIC:
        return True
    parts = formats.parse_message(request.format, request.messages[index]).parts
    return any(not isinstance(part, ToolResult) for part in parts)


def read_user_text(request: Request, index: int) -> str:
    """What the user says in a message; nothing where it is somebody else's."""
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
