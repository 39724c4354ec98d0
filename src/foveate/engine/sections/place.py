"""Place injected texts: stable ones after the client's system prompt, the others after the history.

The client's system prompt comes first, so that its cached prefix does not depend on sections, which change
more often. What changes with each turn comes last, so that it is never in a prefix that the next request
repeats. Lines that are added to a stable text come last too, until it pays to write the history again
(`compaction.schedule`); if texts are pinned, they are pinned where they are.

If a provider caches by breakpoints, texts are blocks, each of which can have one. Other hosts of the chat
format may not accept lists of blocks: there a text is appended to the client's string.

Some texts must be pinned to their place. Some models accept a thinking block only after exactly what preceded
it (`binds_thinking`), and some drop the thinking of a turn in which the user says something new
(`drops_thinking`). For those, turn sections are injected once per turn, at a user message, and repeated at
the same place in all later requests. Pinned texts are found by the hash chain of the messages before them,
also in a fork or after a lost response. Only this process knows them, since message texts are not stored: if
they are unknown, all earlier thinking is dropped, as after a compaction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from foveate import formats
from foveate.caching import LruCache, hash_bytes, register
from foveate.engine.sections.fit import EMPTY_GROUP, FittedSection, SectionGroup
from foveate.formats.json_text.parse import as_text, parse_fields, parse_items, parse_json
from foveate.model import (
    SYSTEM_ROLES,
    Area,
    Format,
    InsertParts,
    Place,
    Request,
    SetParameter,
    Text,
    ToolResult,
)
from foveate.prompt_cache.rules import CacheRules, CachingMode
from foveate.session.hash_chain import HashChain

_MAX_CONVERSATIONS = 4 * 1024
# Clients add a few messages at a time.
_LOOKBACK_MESSAGES = 64
_NOT_THINKING = frozenset(("", "disabled", "none"))


@dataclass(frozen=True, slots=True)
class PinnedText:
    """Texts after the message `message_index` of a chain, each with its tokens."""

    message_index: int
    texts: tuple[tuple[str, int], ...]

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedSections:
    """Sections that are pinned in a conversation up to a message.

    `user_text` is the user's last text. `stable_group` is what is in the system prompt. If that is pinned,
    `stable_version` identifies it, `latest_group` has also what was added since, and `sources` is what that was
    made of. `pinned_texts` must be repeated, unless `privacy` has changed. Thinking in the first
    `invalid_before` messages is invalid; `drop_request` asks the provider to drop it if we cannot.
    """

    user_text: str = ""
    stable_version: bytes = b""
    stable_group: SectionGroup = EMPTY_GROUP
    latest_group: SectionGroup = EMPTY_GROUP
    sources: tuple[object, ...] = ()
    privacy: tuple[object, ...] = ()
    pinned_texts: tuple[PinnedText, ...] = ()
    invalid_before: int = 0
    drop_request: SetParameter | None = None


class PinnedSectionCache:
    def __init__(self) -> None:
        self.clear()
        register(self)

    def clear(self) -> None:
        self._entries: LruCache[PinnedSections] = LruCache(_MAX_CONVERSATIONS)

    def find(self, agent: str, chain: HashChain) -> tuple[PinnedSections | None, int]:
        """Return what is pinned in a conversation, and the number of messages it covers."""
        name = agent.encode("utf-8", "surrogatepass")
        for length in range(len(chain), max(0, len(chain) - _LOOKBACK_MESSAGES), -1):
            pinned = self._entries.get(hash_bytes(name, chain.hashes[length - 1]))
            if pinned is not None:
                return pinned, length
        return None, 0

    def put(self, agent: str, chain: HashChain, pinned: PinnedSections) -> None:
        if chain.hashes:
            self._entries.put(hash_bytes(agent.encode("utf-8", "surrogatepass"), chain.hashes[-1]), pinned)


def must_be_pinned(request: Request, rules: CacheRules) -> bool:
    """Return whether text that is injected into a request must be repeated in all later ones."""
    return rules.binds_thinking or (rules.drops_thinking and request.thinking not in _NOT_THINKING)


def find_message(request: Request, original: Request, index: int) -> int | None:
    """The index of a client's message in the request as sent; None if it was removed."""
    size, sent_size = len(original.messages), len(request.messages)
    if sent_size == size:
        return index
    place = index + sent_size - size  # what was replaced precedes it
    if place < 0 or request.messages[place] != original.messages[index]:
        return None
    return place


@dataclass(frozen=True, slots=True)
class PlacedSections:
    """Edits, and the places of blocks that the next request will not repeat."""

    edits: tuple[InsertParts, ...] = ()
    transient_places: tuple[Place, ...] = ()


def joins_plain_strings(request: Request, rules: CacheRules) -> bool:
    """Return whether texts are appended to strings, since blocks may not be accepted."""
    return request.format is not Format.ANTHROPIC and rules.caching not in (
        CachingMode.BREAKPOINTS,
        CachingMode.BOTH,
    )


def place_stable(
    request: Request, sections: Sequence[FittedSection], *, joins: bool
) -> tuple[InsertParts, ...]:
    if request.format is not Format.CHAT:
        place = Place(Area.SYSTEM, len(request.system))
        return tuple(_insert_section(place, section, joins=joins) for section in sections)
    head = count_leading_system_messages(request)
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
    place = Place(Area.MESSAGES, index, _block_count(request, index))
    return tuple(
        InsertParts(place=place, parts=(Text(text),), reason=reason, join_texts=joins, saved_tokens=-tokens)
        for text, tokens in texts
    )


def count_leading_system_messages(request: Request) -> int:
    for number, raw in enumerate(request.messages):
        if _role(raw) not in SYSTEM_ROLES:
            return number
    return len(request.messages)


def last_user_message(request: Request) -> int | None:
    """The index of the last message of the user or a tool."""
    for index in range(len(request.messages) - 1, -1, -1):
        if is_user_message(request, index) or is_tool_result(request, index):
            return index
    return None


def is_user_message(request: Request, index: int) -> bool:
    return _role(request.messages[index]) == "user"


def is_tool_result(request: Request, index: int) -> bool:
    """False if the message has anything besides tool results."""
    raw = request.messages[index]
    if request.format is Format.CHAT:
        return _role(raw) in ("tool", "function")
    if request.format is Format.RESPONSES:
        return as_text(parse_json(parse_fields(raw).get("type"))).endswith("_output")
    return False


def has_user_text(request: Request, index: int) -> bool:
    """Tool results are not the user's text."""
    if not is_user_message(request, index):
        return False
    if request.format is not Format.ANTHROPIC:
        return True
    parts = formats.parse_message(request.format, request.messages[index]).parts
    return any(not isinstance(part, ToolResult) for part in parts)


def read_user_text(request: Request, index: int) -> str:
    """Empty if it is not a user message."""
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
